"""The registry of report columns. To add a column to a table, add an entry to COLUMNS.

The columns of a table appear in the order of the registry. The tables of docs/reading-a-table.md are generated from it by
`python -m scripts.reference_tables`.
"""

from specbench.analysis.run_summary import RunSummary
from specbench.reporting.column import (
    ACCEPTANCE,
    CASCADES,
    CHAINS,
    CHANGE,
    CONVENTIONS,
    COUNT,
    DECODING,
    END_TO_END,
    HUNDREDTHS,
    MERGED,
    MILLISECONDS,
    MOST_GROUPS,
    NONE,
    PERCENT,
    QUALITY,
    RUN_TABLES,
    SCORE,
    SCORE_GROUPS,
    SIGNED_SCORE,
    SPEED,
    SPEED_GROUPS,
    SPRINTER,
    STEPS,
    SUITES,
    TENTHS,
    TENTHS_OF_PERCENT,
    TEXT,
    THEORY,
    THOUSANDTHS,
    THREE_DIGITS,
    TIME,
    TIMES,
    Column,
    NumberCell,
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

RANKED = {  # the best value is bold in LaTeX
    "speedup", "end_to_end_speedup", "over_sd", "geometric_mean_speedup", "papers_speedup", "speed_groups", "matching",
    "within_drop", "score", "main_score", "score_groups", "best",
}  # fmt: skip
POSITIONS = 6  # of a draft that the column "by position" shows
COLUMNS = (
    Column(
        key="method", heading="method", format=TEXT, tables=RUN_TABLES, value=lambda run, row: row.label,
        definition="Name of the method. `(dummy)`: random weights. `(synthetic)`: synthetic logits.",
    ),
    Column(
        key="rank", heading="rank", format=TEXT, tables=(SPEED,),
        value=lambda run, row: NumberCell(row.rank.first, str(row.rank)) if row.rank else None,
        definition="Place by speed among all methods of the run, the baseline included. `2-4`: one method is"
        " significantly faster, and two others are not significantly different (permutation test, familywise 5 %). Missing"
        " for too few prompts: two methods need 6, three need 7, ten need 11.",
    ),
    Column(
        key="tokens_per_second", heading="tokens/s", clock=DECODING, format=TENTHS, tables=(SPEED, MERGED),
        priority=Priority.low,
    ),
    Column(
        key="end_to_end_speedup", heading="speedup", heading_in_run="speedup over {baseline}", clock=END_TO_END,
        format=TIMES, tables=(SPEED, MERGED, CONVENTIONS), one_for="baseline", priority=Priority.high,
        is_visible=lambda run, table: table == CONVENTIONS or run.end_to_end,
    ),
    Column(
        key="speedup", heading="speedup", heading_in_run="speedup over {baseline}", clock=DECODING, format=TIMES,
        tables=(SPEED, MERGED, CHAINS), one_for="baseline", priority=Priority.high,
    ),
    Column(
        key="lossless", heading="lossless", format=TEXT, tables=(SPEED, MERGED), value=lossless,
        priority=Priority.late,
        definition="Whether the method declares the output distribution of the baseline; *undeclared*: it declares none."
        " *contradicted*: it does, but greedy tokens differ from the baseline's choice by more than rounding explains."
        " `specbench verify` tests the declaration.",
    ),
    Column(
        key="papers_prediction", heading="paper's theory", format=TIMES, tables=(THEORY,),
        is_visible=defined("papers_prediction"),
        definition="Speculative Ensemble of two models: its Theorem 3.6 as printed, which describes one cycle and not the"
        " long run.",
    ),
    Column(
        key="predicted", heading="theory", format=TIMES, tables=(THEORY, STEPS, MERGED), priority=Priority.low,
        definition="The long-run speedup at the measured acceptance rate (of a tree, by rank) and cost ratio c, if a block"
        " costs as much as one token, as the papers assume.",
    ),
    Column(
        key="corrected", heading="corrected theory", format=TIMES, tables=(SPEED, THEORY, MERGED),
        priority=Priority.low,
        definition="The same at the measured cost of a block of each length; lengths that did not occur are interpolated.",
    ),
    Column(
        key="speedup_at_limit", heading="at the limit", format=TIMES, tables=(SPEED, THEORY, MERGED), priority=Priority.low,
        definition="What would remain of the speedup if no forward of one token, of the baseline or of the method, took"
        " longer than its bytes at 85 % of the read bandwidth. A lower bound with respect to blocks, which keep their"
        " measured times although a faster engine would speed them up too.",
    ),
    Column(
        key="measured_over_corrected", heading="measured/corrected", format=HUNDREDTHS, tables=(THEORY,),
        definition="speedup / corrected. A value well below 1 means that time is spent on something that theory does not"
        " model (see outside forwards).",
    ),
    *(
        Column(
            key=f"step_{name}", heading=heading, format=TIMES, tables=(STEPS,),
            value=step(name),
            definition=definition,
        )
        for name, heading, definition in (
            ("rounds", "rounds", "The speedup with the measured numbers of forwards, each at the cost of one token. Below the"
             " theory if drafts end early or tokens are not accepted independently."),
            ("drafting", "+ drafting", "The same with the measured seconds of the drafting models."),
            ("blocks", "+ blocks", "The same with the measured seconds of the verifying models: the price of blocks."),
            ("host", "+ host", "The same with the time outside forwards, of both sides: the measured decoding speedup."),
            ("prefill", "+ prefill", "The same with prefill, of both sides: the measured end-to-end speedup."),
        )
    ),
    Column(
        key="acceptance_rate", heading="acceptance", format=THOUSANDTHS, tables=(SPEED, ACCEPTANCE, MERGED),
        priority=Priority.low,
    ),
    Column(
        key="score", heading="score", format=SCORE, tables=(SPEED, QUALITY), split=headline_scores, unit="x 100",
        priority=Priority.high,
        definition="A column per metric of the task, under the metric's name. The first table has the main metric only.",
    ),
    Column(
        key="score_change", heading="change of the score", format=SIGNED_SCORE, tables=(QUALITY,), unit="x 100",
        value=lambda run, row: row.score_change,
        definition="The main score minus the baseline's, with the interval over prompts that both completed.",
    ),
    Column(
        key="draft_lengths", heading="draft lengths", format=TEXT, tables=(ACCEPTANCE,), unit="tokens",
        value=lambda run, row: run.traits(row).draft_length or NONE,
        definition="gamma, one per model in the order of the ensemble; \"up to N\" if a rule may stop earlier; \"tree N,"
        " depth D\" for a tree of N tokens; \"then at least N\" for the threshold of a chain.",
    ),
    Column(
        key="metric", heading="metric", format=TEXT, tables=(MERGED,), value=lambda run, row: run.headline or None,
        definition="The task's main metric.",
    ),
    Column(
        key="main_score", heading="score", format=SCORE, tables=(MERGED,), unit="x 100",
        value=lambda run, row: score(run.headline)(run, row), definition="The score by that metric.",
        priority=Priority.high,
    ),
    Column(
        key="prompts", heading="prompts", format=COUNT, tables=(MERGED,), value=lambda run, row: row.prompts,
        definition="Prompts with at least one completed generation.",
    ),
    Column(
        key="acceptance_by_position", heading="by position", format=HUNDREDTHS, tables=(ACCEPTANCE,),
        value=lambda run, row: row.acceptance_by_position[:POSITIONS],
        definition=f"Acceptance rate of the first, second, ... token that a round tests, given that all tokens before it were"
        f" accepted; at most {POSITIONS}. A pending deferred bonus token counts as the first.",
    ),
    Column(
        key="outside_vocabulary", heading="outside the vocabulary", format=TENTHS_OF_PERCENT, tables=(ACCEPTANCE,),
        is_visible=defined("outside_vocabulary"), lower_is_better=True,
        definition="Mean probability that a draft model with another tokenizer gives to tokens that the target"
        " lacks, at T = 1.",
    ),
    Column(
        key="undraftable", heading="not in the draft's vocabulary", format=TENTHS_OF_PERCENT, tables=(ACCEPTANCE,),
        is_visible=defined("undraftable"), lower_is_better=True,
        definition="Share of output tokens that the draft model's vocabulary lacks, if its tokenizer differs from the"
        " target's. They are never drafted.",
    ),
    Column(
        key="survival", heading="survival", format=HUNDREDTHS, tables=(ACCEPTANCE,), is_visible=has_trees,
        value=lambda run, row: row.survival[:POSITIONS],
        definition=f"Share of drafts of which the first, second, ... token, in a tree the first, second, ... depth, was"
        f" accepted; at most {POSITIONS}. A pending deferred bonus token counts as the first.",
    ),
    Column(
        key="acceptance_by_rank", heading="by rank", format=HUNDREDTHS, tables=(ACCEPTANCE,), is_visible=has_trees,
        value=lambda run, row: row.acceptance_by_rank[:POSITIONS],
        definition=f"Acceptance rate of first, second, ... children in draft trees, given that the earlier children were"
        f" rejected; at most {POSITIONS}. Empty for chains that verify a tree.",
    ),
    Column(
        key="nodes_per_round", heading="tokens/tree", format=TENTHS, tables=(ACCEPTANCE,),
        is_visible=defined("nodes_per_round"),
    ),
    Column(
        key="best_tree", heading="best tree", format=TEXT, tables=(THEORY,),
        is_visible=lambda run, table: any(row.best_tree for row in run.methods),
        value=lambda run, row: row.best_tree.text if row.best_tree else None,
        definition="The static tree with the highest predicted speedup at the measured acceptance by rank and costs of blocks"
        " and of draft forwards, with the time outside forwards: tokens, depth, speedup.",
    ),
    Column(key="accepted_length", heading="accepted length", format=HUNDREDTHS, tables=(ACCEPTANCE, CHAINS)),
    Column(
        key="forwards_per_token", heading="forwards/token", format=HUNDREDTHS, tables=(ACCEPTANCE,),
        value=lambda run, row: row.forwards_per_token,
        definition="Forwards of each model, including its first, / committed tokens.",
    ),
    Column(
        key="cost_ratio", heading="c", format=HUNDREDTHS, tables=(ACCEPTANCE, THEORY),
        definition="Seconds of a one-token forward of the first model / of the last. The c of SE and of Leviathan et al.",
    ),
    Column(key="outside_forwards", heading="outside forwards", format=TENTHS_OF_PERCENT, tables=(ACCEPTANCE,)),
    Column(
        key="relative_latency", heading="relative latency", clock=END_TO_END, format=HUNDREDTHS, tables=(CASCADES,),
        one_for="baseline", lower_is_better=True,
    ),
    Column(key="average_tokens", heading="tokens/run", format=HUNDREDTHS, tables=(SPRINTER,)),
    Column(key="verifier_run", heading="verifier accepts/run", format=HUNDREDTHS, tables=(SPRINTER,)),
    Column(
        key="generation_milliseconds", heading="ms/generation", clock=END_TO_END, format=TENTHS, tables=(SPRINTER,),
        lower_is_better=True,
    ),
    Column(
        key="over_lossless", heading="speedup over the fastest lossless method", clock=END_TO_END, format=TIMES,
        tables=(QUALITY,), is_visible=defined("over_lossless"),
    ),
    Column(key="over_sd", heading="speedup over sd", clock=END_TO_END, format=TIMES, tables=(SPRINTER,), one_for="sd"),
    Column(key="answer_length", heading="tokens/generation", format=TENTHS, tables=(CASCADES, SPRINTER)),
    Column(key="rule_rate", heading="rule rate", format=TENTHS_OF_PERCENT, tables=(CASCADES,)),
    Column(
        key="expected_acceptance", heading="expected acceptance", format=THOUSANDTHS, tables=(CASCADES,),
        definition="1 - mean over tested tokens of the probability of a rejection: delta TV(q, p) for a token drafted from q,"
        " as in SpecCascade's Lemma 3, and (1 - delta) TV(q, p) for a deferred bonus token, which was drawn from p.",
    ),
    Column(
        key="target_calls", heading="target forwards/token", format=THOUSANDTHS, tables=(CASCADES, SPRINTER),
        lower_is_better=True,
    ),
    Column(key="rejections_per_token", heading="rejections/token", format=THOUSANDTHS, tables=(CASCADES,)),
    Column(
        key="fallbacks", heading="fallbacks", format=COUNT, tables=(CASCADES,), value=counter("fallbacks"),
        definition="BiLD: how often the small model was not confident, over the run.",
    ),
    Column(
        key="rollbacks", heading="rollbacks", format=COUNT, tables=(CASCADES,), value=counter("rollbacks"),
        definition="BiLD: how often the large model rejected tokens, over the run.",
    ),
    Column(key="gigaflops", heading="GFLOP/generation", format=THREE_DIGITS, tables=(SPRINTER,), unit="GFLOP"),
    Column(
        key="papers_gigaflops", heading="GFLOP/generation, paper's count", format=THREE_DIGITS, tables=(SPRINTER,),
        definition="The same by another count. A run costs n F_q + F_p, as if the target read only one position of the run,"
        " although it reads all of them. Speculation costs n F_q + n F_p.",
    ),
    Column(key="verifier_rate", heading="verifier acceptance", format=TENTHS_OF_PERCENT, tables=(SPRINTER,)),
    Column(key="predicted_distance", heading="predicted distance from target", format=THOUSANDTHS, tables=(SPRINTER,)),
    Column(
        key="levels", heading="levels", format=TEXT, tables=(CHAINS,), value=levels,
        definition="Innermost first: the model whose drafts were tested, acceptance rate, tokens/round ± standard deviation,"
        " rounds per round of the target.",
    ),
    Column(key="discarded_per_token", heading="discarded/token", format=HUNDREDTHS, tables=(CHAINS,)),
    Column(
        key="round_milliseconds", heading="ms/round", format=TENTHS, tables=(TIME,), unit="ms",
        value=lambda run, row: row.round_milliseconds,
        definition="Milliseconds of each model's forwards per round; `host` is everything else.",
    ),
    Column(key="first_token_seconds", heading="ms to first token", format=MILLISECONDS, tables=(TIME,), unit="ms"),
    Column(
        key="bound_share", heading="of memory bandwidth", heading_in_run="of {bandwidth} bandwidth", format=PERCENT,
        tables=(TIME,),
        definition="(Bytes of weights and cache that the forwards had to read / read bandwidth, measured at the start) /"
        " decoding seconds. Runs without a read bandwidth are compared with the copy bandwidth, and the heading says so."
        " Above 100 % if weights fit into a processor's cache. A slow baseline gets a warning.",
    ),
    Column(
        key="end_to_end_tokens_per_second", heading="tokens/s", clock=END_TO_END, format=TENTHS, tables=(TIME,),
    ),
    Column(
        key="drift", heading="drift", format=CHANGE, tables=(TIME,),
        definition="Last repeat's tokens/s / first repeat's, minus 1: the drift of the machine. Beyond 10 % it gets a"
        " warning.",
    ),
    Column(
        key="communication_share", heading="communication", format=TENTHS_OF_PERCENT, tables=(TIME,),
        is_visible=defined("communication_share"),
    ),
    Column(
        key="moved_bytes_per_token", heading="bytes moved/token", format=COUNT, tables=(TIME,), unit="bytes",
        is_visible=defined("communication_share"),
    ),
    Column(
        key="geometric_mean_speedup", heading="geometric mean speedup", clock=DECODING, format=TIMES,
        tables=(CONVENTIONS,), one_for="baseline",
    ),
    Column(
        key="papers_speedup", heading="papers' average", clock=END_TO_END, format=TIMES, tables=(CONVENTIONS,),
        one_for="baseline",
    ),
    Column(key="wasted_share", heading="wasted drafts", format=PERCENT, tables=(CONVENTIONS,)),
    Column(key="identical_output", heading="same output", format=PERCENT, tables=(CONVENTIONS,)),
    Column(
        key="no_answer", heading="no answer", format=PERCENT, tables=(QUALITY,), value=lambda run, row: row.no_answer,
        is_visible=lambda run, table: any(row.no_answer is not None for row in run.methods),
        definition="Share of generations whose text contains no answer.",
    ),
    Column(key="cut_by_length", heading="cut by length", format=PERCENT, tables=(QUALITY,)),
    Column(key="cut_prompts", heading="cut prompts", format=PERCENT, tables=(QUALITY,)),
    Column(
        key="score_groups", heading="by group", format=SCORE, tables=(SCORE_GROUPS,), split=score_groups, unit="x 100",
        definition=f"The main score of each subject or category, {MOST_GROUPS} at most.",
    ),
    Column(
        key="speed_groups", heading="by group", format=TIMES, tables=(SPEED_GROUPS,), split=speed_groups,
        definition=f"The decoding speedup on each subject or category, {MOST_GROUPS} at most.",
    ),
    # Columns that only suites show. They name them by key.
    Column(
        key="proposer_weight", heading="weight of the default proposer", format=HUNDREDTHS, tables=(SUITES,),
        definition="The weight of the model that a speculative ensemble lists first, in a mixture.",
    ),
    Column(
        key="proposer_acceptance", heading="acceptance of the default proposer", format=THOUSANDTHS, tables=(SUITES,),
        definition="Accepted / tested draft tokens of the model that a speculative ensemble lists first.",
    ),
    Column(
        key="deferral_rate", heading="deferral rate", format=TENTHS_OF_PERCENT, tables=(SUITES,),
        definition="The rule rate; for methods without a rule, target forwards/token.",
    ),
    Column(
        key="matching", heading="speed at the large model's quality", clock=END_TO_END, format=TIMES, tables=(SUITES,),
        definition="The large model's latency / the smallest latency at which the curve reaches its quality.",
    ),
    Column(
        key="within_drop", heading="speed within the allowed drop", clock=END_TO_END, format=TIMES, tables=(SUITES,),
        definition="The large model's latency / the smallest latency at which the curve reaches its quality minus the drop.",
    ),
    Column(
        key="best", heading="best quality within its latency", format=SCORE, tables=(SUITES,), unit="x 100",
        definition="The best score of a point that is no slower than the large model.",
    ),
    Column(
        key="wins", heading="wins", format=TENTHS_OF_PERCENT, tables=(SUITES,),
        definition="Comparisons in which the judge preferred the method's continuation / comparisons.",
    ),
    Column(key="length_by_round", heading="accepted length by round", format=HUNDREDTHS, tables=(SUITES,)),
    Column(key="length_by_prompt", heading="accepted length by prompt", format=HUNDREDTHS, tables=(SUITES,)),
    Column(
        key="length_variance_by_prompt", heading="variance over prompts", format=HUNDREDTHS, tables=(SUITES,),
        lower_is_better=True,
    ),
    Column(key="length_variation", heading="coefficient of variation", format=HUNDREDTHS, tables=(SUITES,)),
    Column(key="verification_rounds", heading="rounds/generation", format=TENTHS, tables=(SUITES,), lower_is_better=True),
    Column(
        key="generation_deviation", heading="ms/generation, standard deviation", clock=END_TO_END, format=TENTHS,
        tables=(SUITES,), definition="Standard deviation over generations of the time from the prompt to the last token.",
    ),
    Column(key="flops_ratio", heading="baseline's GFLOP / the method's", format=HUNDREDTHS, tables=(SUITES,)),
    Column(key="flops_ratio_sd", heading="sd's GFLOP / the method's", format=HUNDREDTHS, tables=(SUITES,)),
    Column(
        key="papers_flops_ratio_sd", heading="sd's GFLOP / the method's, paper's count", format=HUNDREDTHS,
        tables=(SUITES,),
    ),
    Column(
        key="tau_train", heading="tau_train", format=HUNDREDTHS, tables=(SUITES,),
        definition="The threshold of the labels that SPRINTER's verifier was trained on.",
    ),
    Column(
        key="tau_inf", heading="tau_inf", format=HUNDREDTHS, tables=(SUITES,),
        definition="The score from which SPRINTER's verifier accepts a token.",
    ),
    Column(
        key="score_per_second", heading="score/s", clock=END_TO_END, format=SCORE, tables=(SUITES,), unit="x 100",
        definition="The main score / the mean seconds of a generation: quality over latency, by which the best thresholds"
        " are chosen. The paper does not state its criterion.",
    ),
    Column(
        key="ties", heading="ties", format=TENTHS_OF_PERCENT, tables=(SUITES,),
        definition="Comparisons in which the judge preferred neither / comparisons.",
    ),
    Column(
        key="losses", heading="losses", format=TENTHS_OF_PERCENT, tables=(SUITES,),
        definition="Comparisons in which the judge preferred the other method's continuation / comparisons.",
    ),
    Column(
        key="decided_wins", heading="wins without ties", format=TENTHS_OF_PERCENT, tables=(SUITES,),
        definition="Wins / (wins + losses).",
    ),
    Column(
        key="wins_half_ties", heading="wins and half of the ties", format=TENTHS_OF_PERCENT, tables=(SUITES,),
        definition="(Wins + ties / 2) / comparisons. 50 % if neither is preferred.",
    ),
    Column(
        key="wins_spread", heading="wins, standard deviation", format=TENTHS_OF_PERCENT, tables=(SUITES,),
        definition="Standard deviation of the wins over repeats, as SPRINTER prints it.",
    ),
)  # fmt: skip
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


def column_of(key: str) -> Column:
    """Return the column of a value. A value without an entry, such as a metric of a task, gets a plain column."""
    return BY_KEY.get(key) or Column(key=key, heading=key, format=HUNDREDTHS)
