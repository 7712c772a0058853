"""All results of a suite, for every format: summaries, points, tables and expectations."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specbench.analysis.points import Point, Reference, points, reference_of, stated_values
from specbench.analysis.quality import JUDGE, judged_points
from specbench.analysis.run_summary import RunSummary
from specbench.analysis.summary import summaries_of
from specbench.config.presets import preset
from specbench.errors import ConfigError
from specbench.features.profile.chain_profile import Profile
from specbench.features.profile.chain_tables import costs_table, forwards_table, pairs_table, verdicts
from specbench.features.suites.frontier import fastest_within, frontier_points
from specbench.features.suites.papers.claims_ledger import change_lines, ledger
from specbench.features.suites.papers.comparisons import Comparisons
from specbench.features.suites.papers.expectations import ExpectationVerdict, outcomes_of
from specbench.features.suites.papers.fidelity import fidelity_tables
from specbench.features.suites.papers.mechanisms import mechanism_lines
from specbench.features.suites.papers.outcome_texts import (
    outcome_caveats,
    outcome_counts,
    outcome_lines,
    together_lines,
)
from specbench.features.suites.papers.stand_ins import StandIns, has_other_costs, pairs_with_earlier_costs
from specbench.features.suites.papers.verifiers import (
    VerifierReport,
    verifier_reports,
    verifier_table,
    with_thresholds,
    with_verifier_values,
)
from specbench.features.suites.suite import Suite
from specbench.features.suites.suite_index import Index, IndexEntry
from specbench.features.suites.suite_tables import (
    SELECTED,
    choice_tables,
    paper_tables,
    stated_table,
    suite_tables,
    unknown_values,
)
from specbench.note import Note, warning
from specbench.reporting.conclusion import conclusion
from specbench.reporting.notes import common_notes
from specbench.reporting.reasons import overstated
from specbench.reporting.tables import Table, require_columns
from specbench.runs.run_state import RunState

LENGTH_OF_PAIRS = "accepted length"  # the name of the metric in the reference values of Polybasic's Table 1
STAND_INS = (
    "The bundled models stand in for the paper's: what they confirm or contradict says little about those of the paper."
)


@dataclass(frozen=True)
class Collected:
    """The results of a suite. `missing` are run folders that were measured once and no longer exist.

    `judged` are the expectations with their outcomes, `verdicts` the lines about them, and `mechanisms` those on why some
    were contradicted. `verifiers` are those that the suite trained.
    """

    suite: Suite
    index: Index
    folders: list[Path]
    missing: list[str]
    summaries: list[RunSummary]
    points: list[Point]
    tables: list[Table]
    judged: list[ExpectationVerdict]
    verdicts: list[Note]
    mechanisms: list[Note]
    conclusion: list[Note]
    verifiers: list[VerifierReport]


def collect(suite: Suite, results: Path, changed: bool = False) -> Collected:
    """Collect the measured runs of a suite.

    `changed` selects its runs with overridden options, which are also used if there are no others. Raises
    ConfigError if nothing was measured.
    """
    index, runs = measured_runs(suite, results, changed)
    folders = [results / run.folder for run in runs]
    summaries = summaries_of(folders)
    measured = points(summaries, printed_values(suite))
    for folder in folders:
        measured += judged_points(folder, measured)
        if suite.frontier:
            measured += frontier_points(folder, measured, suite.drop)
    verifiers = verifier_reports(suite, results, measured)
    measured = with_verifier_values(suite, with_thresholds(suite, measured), verifiers)
    is_timed = any(summary.is_timed for summary in summaries)
    stand_ins = StandIns([each for each in summaries if not has_other_costs(each)], measured)
    judged = outcomes_of(suite, measured, Comparisons(summaries), stand_ins)
    tables = suite_tables(suite, measured)
    lines = [Note("expectation", line) for line in outcome_lines(judged)]
    lines += [Note("together", line) for line in together_lines(suite.together, judged)]
    lines += unknown_values(suite, measured, is_timed)
    beside = _printed_lengths(suite, summaries) if suite.kind == "profile" else []
    tables += paper_tables([row for row in without_counterpart(suite, measured) if row not in beside])
    tables += stated_table(stated_values(suite.of), measured)
    tables += choice_tables(measured)
    tables += fidelity_tables(stand_ins, reference_of(suite.of))
    chain_verdicts: list[Note] = []
    if suite.kind == "profile":
        profile_tables, chain_verdicts = _profiles(suite, summaries, [run.levels for run in runs])
        tables += profile_tables
    tables += hardware_tables(summaries)
    if verifiers:
        tables.append(verifier_table(verifiers))
    missing = [run.folder or run.key for run in index.done if run not in runs]
    return Collected(
        suite=suite, index=index, folders=folders, missing=missing, summaries=summaries, points=measured, tables=tables,
        judged=judged, verdicts=lines, verifiers=verifiers,
        mechanisms=[Note("mechanism", line) for line in mechanism_lines(judged, measured)],
        conclusion=_conclusion(suite, summaries, judged, chain_verdicts, measured),
    )  # fmt: skip


def measured_runs(suite: Suite, results: Path, changed: bool = False) -> tuple[Index, list[IndexEntry]]:
    """Return the index of a suite, and the runs of it that are done and whose folders exist.

    `changed` as in `collect`. Raises ConfigError if there are none.
    """
    index = Index.of(suite.name, results, changed=True) if changed else Index.any_of(suite.name, results)
    runs = index.measured(results)
    if not runs:
        once = f", though {len(index.done)} runs were measured once" if index.done else ""
        name = suite.requested or suite.name
        raise ConfigError(
            f"nothing of {suite.name} is in {results}{once}; help: specbench run --suite {name}, or --from FOLDER"
        )
    return index, runs


def chosen_suite(collected: Collected, keys: Sequence[str]) -> Collected:
    """Return the results of a suite with these values in its tables, each layout once.

    Raises ConfigError for a value that no point has.
    """
    measured = {name for point in collected.points for name in point.values}
    require_columns(keys, measured)
    layouts = {(spec.rows, spec.columns, str(spec.only)): spec for spec in reversed(collected.suite.tables)}
    values = tuple(dict.fromkeys(keys))
    specs = tuple(replace(spec, title="", values=values) for spec in reversed(layouts.values()))
    suite = replace(collected.suite, tables=specs)
    return replace(collected, tables=suite_tables(suite, collected.points))


def suite_notes(collected: Collected) -> list[Note]:
    """Return the expectations with their outcomes, why some were contradicted, and `conditions_of`."""
    return [*collected.verdicts, *collected.mechanisms, *conditions_of(collected)]


def conditions_of(collected: Collected) -> list[Note]:
    """Return the conditions, the warnings, the missing runs and the log of changes."""
    lines = [Note("suite", text) for text in [collected.suite.note] if text]
    if any(SELECTED in text for table in collected.tables for row in table.rows for text in row):
        text = f"{SELECTED} the best of several settings, chosen by the first of these numbers, as in the paper."
        lines.append(Note("best settings", text))
    judges = sorted({str(p.values[JUDGE]) for p in collected.points if JUDGE in p.values})
    lines += [Note("judge", f"judge: {judge}") for judge in judges]
    lines += common_notes(collected.summaries)
    if (machines := len({summary.machine for summary in collected.summaries})) > 1:
        text = (
            f"measured on {machines} kinds of machines (table Hardware): every speedup is a ratio within one run, and no"
            " expectation and no best setting compares machines"
        )
        lines.append(warning("several machines", text))
    lines += [
        warning("missing folder", f"{folder}: was measured, and its folder is gone") for folder in collected.missing
    ]
    if collected.index.changes:
        changed = ", ".join(map(str, collected.index.changes))
        lines.append(warning("overridden options", f"options of the suite were overridden: {changed}"))
    elif collected.index.definition not in ("", collected.suite.definition):
        text = "measured with an earlier definition of the suite"
        lines.append(warning("earlier definition", text, help="measure it again"))
    elif pairs := pairs_with_earlier_costs(collected.suite, collected.summaries):
        text = f"measured with earlier costs of {', '.join(pairs)}"
        lines.append(warning("earlier costs", text, help="measure it again"))
    absent = [run for run in collected.index.runs.values() if run.state is not RunState.done]
    lines += [warning("absent run", f"{run.state}: {run.pair}, {run.task}: {run.why}") for run in absent]
    changes = change_lines(collected.suite.name, collected.judged, ledger())
    return lines + [Note("changed expectation", line) for line in changes]


def hardware_tables(summaries: Sequence[RunSummary]) -> list[Table]:
    """Return a table of the hardware of every run; none if all were measured on one kind of machine."""
    if len({summary.machine for summary in summaries}) < 2:
        return []
    rows = [[s.run, s.pair, s.task, f"{s.decoding.temperature:g}", s.machine] for s in summaries]
    return [Table("Hardware", ["run", "pair", "task", "T", "machine"], rows)]


def printed_values(suite: Suite) -> list[Reference]:
    """Return the values that the paper prints, and copies of them for the suite's pairs that stand for the paper's pairs."""
    rows, ours = reference_of(suite.name), _pairs_by_original(suite)
    return rows + [replace(row, pair=pair) for row in rows for pair in ours.get(row.pair, ())]


def _pairs_by_original(suite: Suite) -> dict[str, list[str]]:
    """Return the suite's pairs that stand for a pair of the paper, by the paper's name of it; only if it prints values."""
    pairs: dict[str, list[str]] = defaultdict(list)
    for pair in dict.fromkeys(pair for _, pair, _ in suite.parts()) if reference_of(suite.of) else ():
        pairs[preset("pair", pair).table.get("stands_for", "")].append(pair)
    return pairs


def without_counterpart(suite: Suite, points: Sequence[Point]) -> list[Reference]:
    """Return the values that the paper prints and that have no measured counterpart."""
    ours = _pairs_by_original(suite)

    def has_measured_counterpart(row: Reference) -> bool:
        forms = [row, *(replace(row, pair=pair) for pair in ours.get(row.pair, ()))]
        return any(
            row.metric in point.paper and point.number(row.metric) is not None and form.covers(point)
            for point in points
            for form in forms
        )

    return [row for row in reference_of(suite.of) if not has_measured_counterpart(row)]


def _conclusion(
    suite: Suite,
    summaries: Sequence[RunSummary],
    judged: Sequence[ExpectationVerdict],
    chains: Sequence[Note],
    measured: Sequence[Point],
) -> list[Note]:
    """Return the conclusion of a suite: its claims, and its speeds or the verdicts on its chains.

    A suite that compares whole curves has no sentences on speeds, except on slow baselines.
    """
    counts = [Note("outcomes", text) for text in outcome_counts(judged, suite.is_of_paper)]
    caveats = [Note("errors of outcomes", text) for text in outcome_caveats(judged)]
    if counts and suite.is_tiny and suite.is_of_paper:
        caveats.append(Note("stand-ins", STAND_INS))
    if chains:
        return [*counts, *overstated(summaries), *chains, *caveats]
    speeds = overstated(summaries) if suite.frontier or suite.kind == "profile" else conclusion(summaries)
    return [*counts, *speeds, *fastest_within(measured, suite.drop), *caveats]


def _printed_lengths(suite: Suite, summaries: Sequence[RunSummary]) -> list[Reference]:
    """Return the mean acceptance lengths that the paper prints for the pairs of models of profiled chains."""
    measured = {(run.pair, run.task) for run in summaries if run.is_of_real_models_and_data}
    return [row for row in printed_values(suite) if row.metric == LENGTH_OF_PAIRS and (row.pair, row.task) in measured]


def _profiles(
    suite: Suite, summaries: Sequence[RunSummary], levels: Sequence[Sequence[str]]
) -> tuple[list[Table], list[Note]]:
    """Return the tables and verdicts of runs that profile a chain."""
    tables, lines = list[Table](), list[Note]()
    for summary, chain in zip(summaries, levels, strict=True):
        profile = Profile.of(summary, chain)
        printed = {row.method: row.value for row in _printed_lengths(suite, [summary])}
        tables += [forwards_table(profile), pairs_table(profile, printed), costs_table(profile)]
        lines += [
            Note("middle model", f"{summary.pair}, {summary.task}: {' '.join(verdict)}")
            for verdict in verdicts(profile)
        ]
    return tables, lines
