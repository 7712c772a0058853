"""All results of a suite, for every format: summaries, points, tables and expectations.

Also the coverage of the papers by the suites: every table, figure, algorithm and theorem, what it was reproduced on, and
the command.
"""

import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import NotRequired, TypedDict

from specbench.analysis.comparisons import Comparisons
from specbench.analysis.frontier import frontier_points
from specbench.analysis.points import Point, Reference, points, reference_of, stated_values
from specbench.analysis.quality import JUDGE, judged_points
from specbench.analysis.run_summary import RunSummary
from specbench.analysis.summary import summaries_of
from specbench.config.pair import PACKAGE
from specbench.config.presets import preset
from specbench.config.suite import TINY, Suite, read_suite, suites
from specbench.errors import ConfigError
from specbench.files import checked
from specbench.reporting.chain import Profile, forwards_table, pairs_table, prices_table, verdicts
from specbench.reporting.conclusion import conclusion
from specbench.reporting.expectations import ExpectationVerdict, outcome_counts, outcome_lines, outcomes_of
from specbench.reporting.notes import common_notes
from specbench.reporting.suite_tables import (
    SELECTED,
    choice_tables,
    paper_tables,
    stated_table,
    suite_tables,
    unknown_values,
)
from specbench.reporting.tables import Table, require_columns
from specbench.reporting.verifiers import VerifierReport, verifier_reports, verifier_table, with_thresholds
from specbench.runs.suite_index import DONE, SUITES, Index, IndexEntry

WEIGHTS, BUNDLED, MADE_UP, NOT_YET = "the paper's weights", "tiny", "dummy + synthetic", "not yet"
BY_TESTS, EXPLAINED, SHOWN = "by tests", "explained", "shown"  # of items that are not measurements
NUMBERED = ("table", "figure", "algorithm")
PARTLY, OUTDATED = ", in part", ", with an earlier definition"
SAME = "the same grid, other models"
Swept = dict[str, list[object]]


@dataclass(frozen=True)
class Collected:
    """The results of a suite. `missing` are run folders that were measured once and no longer exist.

    `verifiers` are those that the suite trained.
    """

    suite: Suite
    index: Index
    folders: list[Path]
    missing: list[str]
    summaries: list[RunSummary]
    points: list[Point]
    tables: list[Table]
    verdicts: list[str]
    conclusion: list[str]
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
            measured += frontier_points(folder, measured)
    measured = with_thresholds(suite, measured)
    is_timed = any(summary.is_timed for summary in summaries)
    judged = outcomes_of(suite, measured, Comparisons(summaries))
    tables, lines = suite_tables(suite, measured), [*outcome_lines(judged), *unknown_values(suite, measured, is_timed)]
    tables += paper_tables(without_counterpart(suite, measured))
    tables += stated_table(stated_values(suite.of), measured)
    tables += choice_tables(measured)
    chain_verdicts: list[str] = []
    if suite.kind == "profile":
        profile_tables, chain_verdicts = _profiles(summaries, [run.levels for run in runs])
        tables += profile_tables
    tables += hardware_tables(summaries)
    verifiers = verifier_reports(suite, results, measured)
    if verifiers:
        tables.append(verifier_table(verifiers))
    missing = [run.folder or run.key for run in index.done if run not in runs]
    return Collected(
        suite=suite, index=index, folders=folders, missing=missing, summaries=summaries, points=measured, tables=tables,
        verdicts=lines, conclusion=chain_verdicts or _conclusion(suite, summaries, judged), verifiers=verifiers,
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


def suite_notes(collected: Collected) -> list[str]:
    """Return the expectations with their outcomes, the conditions, the warnings, and the missing runs, in this order."""
    lines = [*collected.verdicts, *filter(None, [collected.suite.note])]
    if any(SELECTED in text for table in collected.tables for row in table.rows for text in row):
        lines.append(f"{SELECTED} the best of several settings, chosen by these numbers, as in the paper.")
    judges = sorted({str(p.values[JUDGE]) for p in collected.points if JUDGE in p.values})
    lines += [f"judge: {judge}" for judge in judges]
    lines += common_notes(collected.summaries)
    if (machines := len({summary.machine for summary in collected.summaries})) > 1:
        lines.append(
            f"! measured on {machines} kinds of machines (table Hardware): every speedup is a ratio within one run, and no"
            " expectation and no best setting compares machines"
        )
    lines += [f"! {folder}: was measured, and its folder is gone" for folder in collected.missing]
    if collected.index.changes:
        lines.append(f"! options of the suite were overridden: {', '.join(collected.index.changes)}")
    elif collected.index.definition not in ("", collected.suite.definition):
        lines.append("! measured with an earlier definition of the suite; help: measure it again")
    absent = [run for run in collected.index.runs.values() if run.state != DONE]
    return lines + [f"! {run.state}: {run.pair}, {run.task}: {run.why}" for run in absent]


def hardware_tables(summaries: Sequence[RunSummary]) -> list[Table]:
    """Return a table of the hardware of every run; none if all were measured on one kind of machine."""
    if len({summary.machine for summary in summaries}) < 2:
        return []
    rows = [[s.run, s.pair, s.task, f"{s.decoding.temperature:g}", s.machine] for s in summaries]
    return [Table("Hardware", ["run", "pair", "task", "T", "machine"], rows)]


def printed_values(suite: Suite) -> list[Reference]:
    """Return the values that the paper prints, also for pairs that stand for those of the paper."""
    rows, stand_ins = reference_of(suite.name), _stand_ins(suite)
    return rows + [replace(row, pair=pair) for row in rows for pair in stand_ins.get(row.pair, ())]


def _stand_ins(suite: Suite) -> dict[str, list[str]]:
    """Return the suite's pairs that stand for a pair of the paper, by the paper's name of it; only if it prints values."""
    pairs: dict[str, list[str]] = defaultdict(list)
    for pair in dict.fromkeys(pair for _, pair, _ in suite.parts()) if reference_of(suite.of) else ():
        pairs[preset("pair", pair).table.get("stands_for", "")].append(pair)
    return pairs


def without_counterpart(suite: Suite, points: Sequence[Point]) -> list[Reference]:
    """Return the values that the paper prints and that have no measured counterpart."""
    stand_ins = _stand_ins(suite)

    def has_measured_counterpart(row: Reference) -> bool:
        forms = [row, *(replace(row, pair=pair) for pair in stand_ins.get(row.pair, ()))]
        return any(
            row.metric in point.paper and point.number(row.metric) is not None and form.covers(point)
            for point in points
            for form in forms
        )

    return [row for row in reference_of(suite.of) if not has_measured_counterpart(row)]


def _conclusion(suite: Suite, summaries: Sequence[RunSummary], judged: Sequence[ExpectationVerdict]) -> list[str]:
    """Return the conclusion of a suite: the speeds of its methods, unless it compares whole curves, and its expectations."""
    speeds = [] if suite.frontier or suite.kind == "profile" else conclusion(summaries)
    return [*speeds, *outcome_counts(judged, suite.is_of_paper)]


def _profiles(summaries: Sequence[RunSummary], levels: Sequence[Sequence[str]]) -> tuple[list[Table], list[str]]:
    """Return the tables and verdicts of runs that profile a chain."""
    tables, lines = [], []
    for summary, chain in zip(summaries, levels, strict=True):
        profile = Profile.of(summary, chain)
        tables += [forwards_table(profile), pairs_table(profile), prices_table(profile)]
        lines += [f"{summary.pair}, {summary.task}: {line}" for line in verdicts(profile)]
    return tables, lines


class _Item(TypedDict):
    """An item of configs/papers.toml: one of `suite`, `tests`, `docs` and `command`."""

    paper: str
    kind: str
    shows: str
    what: str
    suite: NotRequired[str]
    tests: NotRequired[str]
    docs: NotRequired[str]
    command: NotRequired[str]


class _Paper(TypedDict):
    item: list[_Item]


def results_folder() -> Path | None:
    """Return the folder of kept results: `results` here, else that of the checkout that the package runs from.

    None if there is neither, as in an installed package.
    """
    checkout = PACKAGE.parent
    folders = [Path("results"), *([checkout / "results"] if (checkout / "pyproject.toml").is_file() else [])]
    return next((folder for folder in folders if (folder / SUITES).is_dir()), None)


@dataclass(frozen=True)
class Item:
    """An item of a paper, the state of its reproduction, and the command that reproduces it, or the page that explains it.

    `kind` is table, figure, algorithm, theorem or claim.
    """

    paper: str
    kind: str
    shows: str
    what: str
    state: str
    command: str


def papers(results: Path | None) -> list[Item]:
    """Return every item of the papers, with its state according to a results folder, if there is one."""
    text = (resources.files("specbench.configs") / "papers.toml").read_text(encoding="utf-8")
    return [_item(item, results) for item in checked(tomllib.loads(text), _Paper, "papers.toml")["item"]]


def _item(item: _Item, results: Path | None) -> Item:
    kind = item["kind"]
    shows = f"{kind.title()} {item['shows']}" if kind in NUMBERED and item["shows"][0].isdigit() else item["shows"]
    labels = (item["paper"], kind, shows, item["what"])
    if "suite" in item:
        state, suite = state_of(item["suite"], results)
        return Item(*labels, state, f"specbench run --suite {suite}")
    if "tests" in item:
        return Item(*labels, BY_TESTS, f"pytest {item['tests']}")
    if "docs" in item:
        return Item(*labels, EXPLAINED, item["docs"])
    return Item(*labels, SHOWN, item["command"])


def state_of(suite: str, results: Path | None) -> tuple[str, str]:
    """Return the best models that a suite was measured on, and the suite to run for it: itself, or the one on tiny models."""
    if results is None:
        return NOT_YET, suite
    index, changed = Index.of(suite, results), Index.of(suite, results, changed=True)
    real = [run for run in index.done if not run.simulated]
    if not changed.swaps:
        real += [run for run in changed.done if not run.simulated]
    if real:
        partly = any(run.simulated for run in index.done)
        return WEIGHTS + _marks(index, suite, partly), suite
    tiny = Index.of(suite + TINY, results)
    if tiny.done:
        return BUNDLED + _marks(tiny, suite + TINY), suite + TINY
    if any(run.simulated for run in (*index.done, *changed.done)):
        return MADE_UP + _marks(index, suite), suite
    return NOT_YET, suite


def _marks(index: Index, suite: str, partly: bool = False) -> str:
    """Return that only a part of a suite was measured, and that its definition has changed since then."""
    changed = index.definition and suite in suites() and index.definition != read_suite(suite).definition
    return (PARTLY if partly or not index.complete else "") + (OUTDATED if changed else "")


def counterpart(suite: Suite) -> str:
    """Return a sentence that says whose counterpart a suite on the bundled models is, and how its grid differs.

    Empty for other suites.
    """
    if not suite.is_tiny or suite.of not in suites():
        return ""
    differences = list(_differences(suite, read_suite(suite.of)))
    what = f"other models, and another grid: {'; '.join(differences)}" if differences else SAME
    return f"The counterpart of {suite.of} on the bundled tiny models and synthetic data: {what}."


def _differences(tiny: Suite, paper: Suite) -> Iterator[str]:
    """Yield the differences between two grids in tasks, methods, temperatures, swept values and sizes of ensembles."""
    ours, theirs = _tasks(tiny), _tasks(paper)
    if set(ours) < set(theirs):
        yield f"{len(ours)} of the {len(theirs)} tasks ({', '.join(ours)})"
    elif set(ours) != set(theirs):
        yield f"{'tasks' if len(ours) > 1 else 'task'} {', '.join(ours)} instead of {', '.join(theirs)}"
    ours, theirs = _methods(tiny), _methods(paper)
    if more := [name for name in ours if name not in theirs]:
        yield f"also {', '.join(more)}"
    if less := [name for name in theirs if name not in ours]:
        yield f"without {', '.join(less)}"
    temperatures = [list(dict.fromkeys(line.options.temperature for line in suite.grid)) for suite in (tiny, paper)]
    if set(temperatures[0]) != set(temperatures[1]):
        words = [
            ", ".join("the methods' own" if t is None else f"{t:g}" for t in of_suite) for of_suite in temperatures
        ]
        yield f"temperatures {words[0]} instead of {words[1]}"
    tiny_swept, swept = _swept(tiny), _swept(paper)
    for key, values in swept.items():
        if not _is_numeric(values) or tiny_swept.get(key) == values or key.partition(".")[0] in less:
            continue
        shared = sum(value in values for value in tiny_swept.get(key, []))
        others = len(tiny_swept.get(key, [])) - shared
        yield f"{shared} of the {len(values)} values of {key}" + (f", and {others} others" if others else "")
    largest, of = (max(map(_ensemble_size, _pairs(suite))) for suite in (tiny, paper))
    if largest < of:
        yield f"no ensemble of {of} models"


def _tasks(suite: Suite) -> list[str]:
    """Return the tasks of a grid, without variants of prompts, which the bundled models cannot read."""
    return _unique(task.partition(":")[0] for line in suite.grid for task in line.tasks)


def _methods(suite: Suite) -> list[str]:
    return _unique(name for line in suite.grid for name in line.methods)


def _pairs(suite: Suite) -> list[str]:
    return _unique(name for line in suite.grid for name in line.pairs)


def _ensemble_size(pair: str) -> int:
    """Return the number of models in a pair's ensemble."""
    return len(preset("pair", pair).table.get("ensemble", ("draft", "target")))


def _swept(suite: Suite) -> Swept:
    """Return the values of each swept key in all lines of a grid."""
    swept: Swept = {}
    for line in suite.grid:
        for key, values in line.options.over:
            collected = swept.setdefault(key, [])
            collected += [value for value in values if value not in collected]
    return swept


def _is_numeric(value: object) -> bool:
    """Return whether a value is a number, or holds numbers only. Names of models and heads differ in any case."""
    if isinstance(value, list | tuple):
        return all(map(_is_numeric, value))
    return isinstance(value, int | float)


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
