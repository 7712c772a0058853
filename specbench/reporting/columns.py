"""The registry of report columns. To add a column to a table, add an entry to COLUMNS.

The columns of a table appear in the order of the registry. The tables of docs/reading-a-table.md are generated from it by
`python -m scripts.reference_tables`.
"""

from specbench.analysis.acceptance import POSITIONS
from specbench.analysis.metric import Metric
from specbench.analysis.number_format import (
    COUNT,
    NONE,
    SCORE,
    TEXT,
    TIMES,
    NumberCell,
)
from specbench.analysis.run_summary import RunSummary
from specbench.reporting.column import (
    ACCEPTANCE,
    CASCADES,
    CHAINS,
    CONVENTIONS,
    MERGED,
    MOST_GROUPS,
    QUALITY,
    RUN_TABLES,
    SCORE_GROUPS,
    SPEED,
    SPEED_GROUPS,
    SPRINTER,
    STEPS,
    THEORY,
    TIME,
    Column,
    Priority,
    counter,
    defined,
    has_trees,
    headline_scores,
    levels,
    lossless,
    score,
    score_groups,
    speed_groups,
    step,
)

COLUMNS = (
    Column(
        key="method",
        about=Metric(
            name="method",
            heading="method",
            definition="Name of the method. `(dummy)`: random weights. `(synthetic)`: synthetic logits.",
            format=TEXT,
        ),
        tables=RUN_TABLES,
        value=lambda run, row: row.label,
    ),
    Column(
        key="rank",
        about=Metric(
            name="rank",
            heading="rank",
            definition="Place by speed among all methods of the run, the baseline included. `2-4`: one method is"
            " significantly faster, and two others are not significantly different (permutation test, familywise 5 %)."
            " Missing for too few prompts: two methods need 6, three need 7, ten need 11.",
            format=TEXT,
        ),
        tables=(SPEED,),
        value=lambda run, row: NumberCell(row.rank.first, str(row.rank)) if row.rank else None,
    ),
    Column(key="tokens_per_second", tables=(SPEED, MERGED), priority=Priority.low),
    Column(
        key="end_to_end_speedup",
        tables=(SPEED, MERGED, CONVENTIONS),
        heading_in_run="speedup over {baseline}",
        is_visible=lambda run, table: table == CONVENTIONS or run.end_to_end,
        priority=Priority.high,
    ),
    Column(
        key="speedup",
        tables=(SPEED, MERGED, CHAINS),
        heading_in_run="speedup over {baseline}",
        priority=Priority.high,
    ),
    Column(
        key="lossless",
        about=Metric(
            name="lossless",
            heading="lossless",
            definition="Whether the method declares the output distribution of the baseline; *undeclared*: it declares none."
            " *contradicted*: it does, but greedy tokens differ from the baseline's choice by more than rounding explains."
            " `specbench verify` tests the declaration.",
            format=TEXT,
        ),
        tables=(SPEED, MERGED),
        value=lossless,
        priority=Priority.late,
    ),
    Column(key="papers_prediction", tables=(THEORY,), is_visible=defined("papers_prediction")),
    Column(key="predicted", tables=(THEORY, STEPS, MERGED), priority=Priority.low),
    Column(key="corrected", tables=(SPEED, THEORY, MERGED), priority=Priority.low),
    Column(key="speedup_at_limit", tables=(SPEED, THEORY, MERGED), priority=Priority.low),
    Column(key="measured_over_corrected", tables=(THEORY,)),
    *(
        Column(
            key=f"step_{name}",
            about=Metric(name=name, heading=heading, format=TIMES, definition=definition),
            tables=(STEPS,),
            value=step(name),
        )
        for name, heading, definition in (
            (
                "rounds",
                "rounds",
                "The speedup with the measured numbers of forwards, each at the cost of one token. Below the"
                " theory if drafts end early or tokens are not accepted independently.",
            ),
            ("drafting", "+ drafting", "The same with the measured seconds of the drafting models."),
            ("blocks", "+ blocks", "The same with the measured seconds of the verifying models: the cost of blocks."),
            (
                "host",
                "+ host",
                "The same with the time outside forwards, of both sides: the measured decoding speedup.",
            ),
            ("prefill", "+ prefill", "The same with prefill, of both sides: the measured end-to-end speedup."),
        )
    ),
    Column(key="acceptance_rate", tables=(SPEED, ACCEPTANCE, MERGED), priority=Priority.low),
    Column(key="score", tables=(SPEED, QUALITY), split=headline_scores, priority=Priority.high),
    Column(key="score_change", tables=(QUALITY,), value=lambda run, row: row.score_change),
    Column(
        key="draft_lengths",
        about=Metric(
            name="draft_lengths",
            heading="draft lengths",
            unit="tokens",
            definition='gamma, one per model in the order of the ensemble; "up to N" if a rule may stop earlier; "tree N,'
            ' depth D" for a tree of N tokens; "then at least N" for the threshold of a chain.',
            format=TEXT,
        ),
        tables=(ACCEPTANCE,),
        value=lambda run, row: run.traits(row).draft_length or NONE,
    ),
    Column(
        key="metric",
        about=Metric(name="metric", heading="metric", definition="The task's main metric.", format=TEXT),
        tables=(MERGED,),
        value=lambda run, row: run.headline or None,
    ),
    Column(
        key="main_score",
        about=Metric(
            name="main_score",
            is_ranked=True,
            heading="score",
            unit="x 100",
            definition="The score by that metric.",
            format=SCORE,
        ),
        tables=(MERGED,),
        value=lambda run, row: score(run.headline)(run, row),
        priority=Priority.high,
    ),
    Column(key="prompts", tables=(MERGED,), value=lambda run, row: row.prompts),
    Column(
        key="acceptance_by_position",
        tables=(ACCEPTANCE,),
        value=lambda run, row: row.acceptance_by_position[:POSITIONS],
    ),
    Column(key="outside_vocabulary", tables=(ACCEPTANCE,), is_visible=defined("outside_vocabulary")),
    Column(key="undraftable", tables=(ACCEPTANCE,), is_visible=defined("undraftable")),
    Column(key="survival", tables=(ACCEPTANCE,), value=lambda run, row: row.survival[:POSITIONS], is_visible=has_trees),
    Column(
        key="acceptance_by_rank",
        tables=(ACCEPTANCE,),
        value=lambda run, row: row.acceptance_by_rank[:POSITIONS],
        is_visible=has_trees,
    ),
    Column(key="nodes_per_round", tables=(ACCEPTANCE,), is_visible=defined("nodes_per_round")),
    Column(
        key="best_tree",
        about=Metric(
            name="best_tree",
            heading="best tree",
            definition="The static tree with the highest predicted speedup at the measured acceptance by rank and costs of"
            " blocks and of draft forwards, with the time outside forwards: tokens, depth, speedup.",
            format=TEXT,
        ),
        tables=(THEORY,),
        value=lambda run, row: row.best_tree.text if row.best_tree else None,
        is_visible=lambda run, table: any(row.best_tree for row in run.methods),
    ),
    Column(key="accepted_length", tables=(ACCEPTANCE, CHAINS)),
    Column(key="forwards_per_token", tables=(ACCEPTANCE,), value=lambda run, row: row.forwards_per_token),
    Column(key="cost_ratio", tables=(ACCEPTANCE, THEORY)),
    Column(key="outside_forwards", tables=(ACCEPTANCE,)),
    Column(key="relative_latency", tables=(CASCADES,)),
    Column(key="average_tokens", tables=(SPRINTER,)),
    Column(key="verifier_run", tables=(SPRINTER,)),
    Column(key="generation_milliseconds", tables=(SPRINTER,)),
    Column(key="over_lossless", tables=(QUALITY,), is_visible=defined("over_lossless")),
    Column(key="over_sd", tables=(SPRINTER,)),
    Column(key="answer_length", tables=(CASCADES, SPRINTER)),
    Column(key="rule_rate", tables=(CASCADES,)),
    Column(key="expected_acceptance", tables=(CASCADES,)),
    Column(key="target_calls", tables=(CASCADES, SPRINTER)),
    Column(key="rejections_per_token", tables=(CASCADES,)),
    Column(
        key="fallbacks",
        about=Metric(
            name="fallbacks",
            heading="fallbacks",
            definition="BiLD: how often the small model was not confident, over the run.",
            format=COUNT,
        ),
        tables=(CASCADES,),
        value=counter("fallbacks"),
    ),
    Column(
        key="rollbacks",
        about=Metric(
            name="rollbacks",
            heading="rollbacks",
            definition="BiLD: how often the large model rejected tokens, over the run.",
            format=COUNT,
        ),
        tables=(CASCADES,),
        value=counter("rollbacks"),
    ),
    Column(key="gigaflops", tables=(SPRINTER,)),
    Column(key="papers_gigaflops", tables=(SPRINTER,)),
    Column(key="verifier_rate", tables=(SPRINTER,)),
    Column(key="predicted_distance", tables=(SPRINTER,)),
    Column(
        key="levels",
        about=Metric(
            name="levels",
            heading="levels",
            definition="Innermost first: the model whose drafts were tested, acceptance rate, tokens/round ± standard"
            " deviation, rounds per round of the target.",
            format=TEXT,
        ),
        tables=(CHAINS,),
        value=levels,
    ),
    Column(key="discarded_per_token", tables=(CHAINS,)),
    Column(key="round_milliseconds", tables=(TIME,), value=lambda run, row: row.round_milliseconds),
    Column(key="first_token_seconds", tables=(TIME,)),
    Column(key="bound_share", tables=(TIME,), heading_in_run="of {bandwidth} bandwidth"),
    Column(key="end_to_end_tokens_per_second", tables=(TIME,)),
    Column(key="drift", tables=(TIME,)),
    Column(key="communication_share", tables=(TIME,), is_visible=defined("communication_share")),
    Column(key="moved_bytes_per_token", tables=(TIME,), is_visible=defined("communication_share")),
    Column(key="geometric_mean_speedup", tables=(CONVENTIONS,)),
    Column(key="papers_speedup", tables=(CONVENTIONS,)),
    Column(key="wasted_share", tables=(CONVENTIONS,)),
    Column(key="identical_output", tables=(CONVENTIONS,)),
    Column(
        key="no_answer",
        tables=(QUALITY,),
        value=lambda run, row: row.no_answer,
        is_visible=lambda run, table: any(row.no_answer is not None for row in run.methods),
    ),
    Column(key="cut_by_length", tables=(QUALITY,)),
    Column(key="cut_prompts", tables=(QUALITY,)),
    Column(
        key="score_groups",
        about=Metric(
            name="score_groups",
            is_ranked=True,
            heading="by group",
            unit="x 100",
            definition=f"The main score of each subject or category, {MOST_GROUPS} at most.",
            format=SCORE,
        ),
        tables=(SCORE_GROUPS,),
        split=score_groups,
    ),
    Column(
        key="speed_groups",
        about=Metric(
            name="speed_groups",
            is_ranked=True,
            heading="by group",
            definition=f"The decoding speedup on each subject or category, {MOST_GROUPS} at most.",
            format=TIMES,
        ),
        tables=(SPEED_GROUPS,),
        split=speed_groups,
    ),
)
BY_KEY = {column.key: column for column in COLUMNS}


def columns_of(table: str, run: RunSummary) -> list[Column]:
    """Return the columns of a table of a run, with split columns replaced by their parts."""
    shown = [column for column in COLUMNS if table in column.tables and column.is_visible(run, table)]
    return [part for column in shown for part in (column.split(run, table) if column.split else [column])]


def merged_columns(runs: list[RunSummary]) -> list[Column]:
    """Return the measured columns of the merged table of several runs."""
    return [
        column for column in COLUMNS if MERGED in column.tables and any(column.is_visible(run, MERGED) for run in runs)
    ]
