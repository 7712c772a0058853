"""A report as one self-contained HTML file: conclusion, interactive chart, samples, tables, plots and conditions.

The page fetches nothing. Its Content-Security-Policy allows only its own script and style, by their hashes, and images in
data URLs.
"""

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypedDict

from specbench.analysis.acceptance import rejected_drafts, token_origins
from specbench.analysis.method_records import seconds
from specbench.analysis.number_format import SCORE, TIMES
from specbench.analysis.quality import scores_of
from specbench.analysis.run_summary import MethodSummary, RunSummary
from specbench.note import Note, warnings_of, without_warnings
from specbench.reporting import escaping
from specbench.reporting.column import lossless
from specbench.reporting.columns import BY_KEY
from specbench.reporting.conclusion import conclusion
from specbench.reporting.differences import folders
from specbench.reporting.notes import notes_of
from specbench.reporting.plots.run_plots import of_runs as plots_of_runs
from specbench.reporting.plots.styles import Style, dark, styles_of
from specbench.reporting.setup_lines import counted, method_lines, page_title, setup_line
from specbench.reporting.standings import SPEEDUPS, speedup_of
from specbench.reporting.tables import Table, across, ranked, tables_by_run
from specbench.runs.record import Record
from specbench.runs.run_folder import CONFIG, ENVIRONMENT, read

SCRIPTS = ("page.js", "chart.js", "tables.js", "samples.js", "start.js")  # in the order in which they run
MOST_CONDITIONS = 12  # runs whose config and environment the page contains
POLICY = (
    "default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; img-src data:; base-uri 'none';"
    " form-action 'none'"
)
MOST_SAMPLES = 1000  # generations on a page
SEPARATOR = "\x1f"  # between the pieces of a text; no tokenizer produces it


class _PageTable(TypedDict):
    """A table of the page. `tips` are the definitions of its columns, `texts` which of them are aligned to the left.

    `task` limits it to one task of the filter.
    """

    title: str
    heads: list[str]
    tips: list[str]
    texts: list[bool]
    rows: list[list[str]]
    task: str


class PageImage(TypedDict):
    """A plot as data URLs, for a light and for a dark page."""

    name: str
    source: str
    dark: str


@dataclass(frozen=True, kw_only=True)
class PageContent:
    """The content of a page before escaping. Each table has its task, which is empty for a table of several tasks."""

    title: str
    verdict: Sequence[Note]
    tables: Sequence[tuple[str, Table]]
    notes: Sequence[Note]
    summaries: Sequence[RunSummary]
    images: Sequence[PageImage] = field(default_factory=list)


def of_runs(summaries: Sequence[RunSummary]) -> str:
    """Return the page of some runs."""
    with TemporaryDirectory() as folder:
        images = images_of(plots_of_runs(summaries, Path(folder), ("svg",)))
    merged = [("", across(summaries))] if len(summaries) > 1 else []
    return page(
        PageContent(
            title=page_title(summaries),
            verdict=conclusion(summaries),
            tables=[*merged, *((s.task, table) for s, tables in tables_by_run(summaries) for table in tables)],
            notes=notes_of(summaries),
            summaries=summaries,
            images=images,
        )
    )


def page(content: PageContent) -> str:
    runs, left_out = browsed(content.summaries)
    data = {
        "about": _plain(setup_line(content.summaries)),
        "methods": list(map(_plain, method_lines(content.summaries))),
        "verdict": [_plain(str(note)) for note in content.verdict],
        "chart": chart_rows(content.summaries),
        "tables": [_shown(table, task) for task, table in content.tables],
        "warnings": [_plain(str(note)) for note in warnings_of(content.notes)],
        "notes": [_plain(str(note)) for note in (*without_warnings(content.notes), *_omitted(content.summaries))],
        "images": content.images,
        "runs": runs,
        "leftOut": left_out,
        "separator": SEPARATOR,
        "conditions": _conditions(content.summaries),
    }
    script, style = "\n".join(map(_part, SCRIPTS)), _part("page.css")
    parts = {
        "policy": POLICY.format(script=_digest(script), style=_digest(style)),
        "title": escaping.html_text(content.title),
        "style": style,
        "script": script,
        "data": escaping.json_script(data),
    }
    # all at once, since a title may contain {{data}}
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _part("page.html"))


def _part(name: str) -> str:
    return (resources.files("specbench.reporting.formats") / "page" / name).read_text(encoding="utf-8")


def _plain(text: str) -> str:
    """Return a sentence for a text node, which shows no code spans."""
    return escaping.terminal(text).replace("`", "")


def _digest(text: str) -> str:
    """Return the hash of an inline script or style, as a Content-Security-Policy writes it."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _shown(table: Table, task: str) -> _PageTable:
    """Return a table for the page's script, which draws text nodes, so that no cell can be markup."""
    table = table.compact()
    keys = table.keys or ("",) * len(table.heads)
    return {
        "title": escaping.terminal(table.title),
        "heads": list(map(escaping.terminal, table.heads)),
        "tips": [_definition(key) for key in keys],
        "texts": [table.is_text(i) for i in range(len(table.heads))],
        "rows": [list(map(escaping.terminal, row)) for row in table.rows],
        "task": task,
    }


def _definition(key: str) -> str:
    """Return the definition of a column with its unit; empty for a column that is not in the registry."""
    if key not in BY_KEY:
        return ""
    unit = BY_KEY[key].metric.documented_unit
    return _plain(BY_KEY[key].metric.definition) + (f"\nUnit: {unit}" if unit else "")


def images_of(paths: Sequence[Path]) -> list[PageImage]:
    """Return SVGs as data URLs, so that the page makes no request."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in paths}
    return [{"name": name, "source": _data_url(text), "dark": _data_url(dark(text))} for name, text in texts.items()]


def _data_url(svg: str) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def _omitted(summaries: Sequence[RunSummary]) -> list[Note]:
    """Return a note if the page contains the conditions of only some runs."""
    more = len(summaries) - MOST_CONDITIONS
    text = f"The page leaves out the configs of {counted(more, 'run')} after the first {MOST_CONDITIONS}."
    return [Note("omitted configs", text)] if more > 0 else []


def _conditions(summaries: Sequence[RunSummary]) -> list[dict[str, str]]:
    """Return the config and the environment of each run as text."""
    files = [Path(summary.folder) / name for summary in summaries[:MOST_CONDITIONS] for name in (CONFIG, ENVIRONMENT)]
    return [
        {
            "name": escaping.terminal(f"{path.parent.name}/{path.name}"),
            "text": escaping.terminal_lines(path.read_text(encoding="utf-8", errors="replace")),
        }
        for path in files
        if path.exists()
    ]


class ChartRow(TypedDict):
    """One method of one run: the heading of its block, its speedup with interval, and the text of its tooltip."""

    task: str
    heading: str
    method: str
    color: str
    marker: str
    value: float
    low: float | None
    high: float | None
    corrected: float | None
    text: str
    about: str


def chart_rows(summaries: Sequence[RunSummary]) -> list[ChartRow]:
    """Return a row for every method with a speedup, the baselines included at 1.

    Headings contain pair, task, temperature and clock, and the run if these do not identify it.
    """
    settings = [_setting_of(summary) for summary in summaries]
    styles = styles_of({label: name for summary in summaries for label, name in summary.spec.presets.items()})
    return [
        row
        for summary, setting in zip(summaries, settings, strict=True)
        for row in _chart_rows(
            summary, setting if settings.count(setting) == 1 else f"{setting}, {summary.run}", styles
        )
    ]


def _setting_of(summary: RunSummary) -> str:
    return f"{summary.title}, T = {summary.decoding.temperature:g}"


def _chart_rows(summary: RunSummary, setting: str, styles: Mapping[str, Style]) -> Iterator[ChartRow]:
    title = BY_KEY[SPEEDUPS[summary.clock]].title_in(summary)
    for row in ranked(summary):
        speedup = speedup_of(summary, row)
        if speedup is None and row.method != summary.baseline:
            continue
        yield ChartRow(
            task=escaping.terminal(summary.task),
            heading=escaping.terminal(f"{setting}: {title}"),
            method=escaping.terminal(row.label),
            color=styles[row.method].color,
            marker=styles[row.method].marker,
            value=speedup.value if speedup else 1.0,
            low=speedup.low if speedup else None,
            high=speedup.high if speedup else None,
            corrected=None if summary.end_to_end else row.number("corrected"),
            text=TIMES.text(speedup) if speedup else "1x (baseline)",
            about=escaping.terminal_lines("\n".join(_tooltip(summary, row, title))),
        )


def _tooltip(summary: RunSummary, row: MethodSummary, title: str) -> Iterator[str]:
    """Yield the lines of a tooltip."""
    speedup = speedup_of(summary, row)
    yield row.label if speedup is None else f"{row.label}: {TIMES.text(speedup)} {title}"
    for key in ("tokens_per_second", "acceptance_rate", "accepted_length", "corrected"):
        if row.value(key) is not None:
            yield f"{BY_KEY[key].title}: {BY_KEY[key].text(summary, row)}"
    if row.rank:
        yield f"rank: {row.rank}"
    if declared := lossless(summary, row):
        yield f"lossless: {declared}"
    if score := summary.score(row):
        yield f"{summary.headline}: {SCORE.text(score)}"


class BrowsedRun(TypedDict):
    """A run in the sample browser. `methods` are the labels of its methods, the fastest first."""

    name: str
    task: str
    baseline: str
    methods: list[str]
    prompts: dict[str, dict[str, str]]
    samples: list[dict[str, object]]


def browsed(summaries: Sequence[RunSummary]) -> tuple[list[BrowsedRun], int]:
    """Return the generations of each run in the sample browser, in the order of measurement, and how many were omitted."""
    share = max(MOST_SAMPLES // max(len(summaries), 1), 1)
    runs: list[BrowsedRun] = []
    left_out = 0
    for summary, name in zip(summaries, folders(summaries), strict=True):
        folder = Path(summary.folder)
        scores, labels = scores_of(folder), {row.method: escaping.terminal(row.label) for row in ranked(summary)}
        turns = max(share // max(len(labels), 1), 1)  # of all methods on one prompt
        complete = (record for record in read(folder) if record.error is None)
        shown = list(islice(complete, min(turns * len(labels), MOST_SAMPLES)))
        left_out += sum(row.generations for row in summary.methods) - len(shown)
        values = {(row["method"], row["sample"], row["repeat"]): row["values"] for row in scores["rows"]}
        prompts = scores.get("samples", {})
        runs.append({
            "name": escaping.terminal(name),
            "task": escaping.terminal(summary.task),
            "baseline": labels.get(summary.baseline, ""),
            "methods": list(labels.values()),
            "prompts": {sample: prompts.get(sample, {}) for sample in dict.fromkeys(r.sample for r in shown)},
            "samples": [
                _sample(record, labels.get(record.method, ""), values.get(record.key, {}).get(scores["headline"]))
                for record in shown
            ],
        })  # fmt: skip
    return runs, left_out


def _sample(record: Record, label: str, score: float | list[float] | None) -> dict[str, object]:
    """Return a generation with short keys: its pieces as one string, the origin of each as a letter, tokens per round."""
    has_pieces = len(record.pieces) == len(record.tokens)
    return {
        "m": label,
        "s": record.sample,
        "r": record.repeat,
        "t": SEPARATOR.join(record.pieces) if has_pieces else record.text,
        "k": token_origins(record) if has_pieces else "",
        "x": rejected_drafts(record) if has_pieces else [],
        "o": [entry.tokens for entry in record.rounds] or [1] * len(record.tokens),
        "n": len(record.tokens),
        "ms": round(1e3 * seconds(record, end_to_end=True), 1),
        "f": record.finish,
        **({"q": round(score, 4)} if isinstance(score, int | float) else {}),
    }
