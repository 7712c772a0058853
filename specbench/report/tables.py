"""Summaries as tables: for a terminal, as Markdown, CSV and JSON. One list of columns serves all four."""

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from specbench.analysis.chains import NONE
from specbench.analysis.differences import differences, places
from specbench.report import escaping
from specbench.report.columns import Cell, interval, number, over, score, special, times
from specbench.report.notes import notes

Summary = dict[str, Any]
NOT_EXECUTED = "not executed"
MOST_GROUPS = 8  # that a table shows
IDENTITY = ("source", "checksum")  # of a head


@dataclass(frozen=True)
class Table:
    """A title, column heads, and text rows; the first column is left-aligned, all others right."""

    title: str
    heads: list[str]
    rows: list[list[str]]


def tables(summary: Summary, place: str = "") -> list[Table]:
    """Speed beside theory and quality; what explains it; where the time goes; the same by other conventions, and hygiene.

    `place` tells the run from others on the same page, in every title.
    """
    methods = [row for row in summary["methods"] if "tokens" in row]
    metrics = [metric["name"] for metric in summary["metrics"]]
    missing = NOT_EXECUTED if summary["not_executed"] else NONE
    base = summary["baseline"]
    whole, large = summary["clock"] == "end to end", list(summary["models"])[-1]
    paper = {"paper's theory": number("papers_prediction", "{:.2f}x")}
    speed: dict[str, Cell] = {
        "method": lambda r: r["label"],
        "tokens/s, decoding": number("tokens_per_second", "{:.1f}"),
        **({f"end to end over {base}": over(base, "end_to_end_speedup")} if whole else {}),
        (f"decoding over {base}" if whole else f"speedup over {base}, decoding"): over(base, "speedup"),
        **(paper if any("papers_prediction" in r for r in methods) else {}),
        "theory": number("predicted", "{:.2f}x"),
        "corrected": number("corrected", "{:.2f}x"),
        "measured/corrected": number("measured_over_corrected", "{:.2f}"),
        **{metric: score(metric, missing) for metric in metrics if metric == summary["headline"]},
    }
    why: dict[str, Cell] = {
        "method": lambda r: r["label"],
        "draft lengths": lambda row: row["draft_length"] or NONE,
        "acceptance": number("acceptance_rate", "{:.3f}"),
        "by position": lambda r: " ".join(f"{a:.2f}" for a in r["acceptance_by_position"][:6]) or NONE,
        "accepted length": number("accepted_length", "{:.2f}"),
        "forwards/token": lambda r: " ".join(f"{role} {n:.2f}" for role, n in r["forwards_per_token"].items()),
        "c": number("cost_ratio", "{:.2f}"),
        "outside forwards": number("outside_forwards", "{:.1%}"),
    }
    where: dict[str, Cell] = {
        "method": lambda r: r["label"],
        "ms a round": lambda r: " ".join(f"{role} {ms:.1f}" for role, ms in r["round_milliseconds"].items()),
        "ms to first token": lambda r: f"{1e3 * r['first_token_seconds']:.0f}",
        "of the memory's bound": number("bound_share", "{:.0%}"),
        "tokens/s, end to end": number("end_to_end_tokens_per_second", "{:.1f}"),
        "drift": number("drift", "{:+.1%}"),
    }
    if any(row["communication_share"] is not None for row in methods):
        where |= {
            "communication": number("communication_share", "{:.1%}"),
            "bytes moved/token": number("moved_bytes_per_token", "{:.0f}"),
        }
    also: dict[str, Cell] = {
        "method": lambda r: r["label"],
        "speedup, end to end": lambda r: times(r.get("end_to_end_speedup")),
        "geometric mean, decoding": lambda r: times(r.get("geometric_mean_speedup")),
        "papers' average, end to end": number("papers_speedup", "{:.2f}x"),
        "drafts wasted": number("wasted_share", "{:.0%}"),
        "same output": number("identical_output", "{:.0%}"),
    }
    quality: dict[str, Cell] = {
        "method": lambda r: r["label"],
        **{metric: score(metric, missing) for metric in metrics},
        **({"no answer": number("no_answer", "{:.0%}")} if any(r["no_answer"] is not None for r in methods) else {}),
        "cut by length": number("cut_by_length", "{:.0%}"),
        "cut prompts": number("cut_prompts", "{:.0%}"),
    }
    shown = {
        f"{place or _place(summary)}: speed and quality": speed,
        "What explains it": why,
        **special(methods, base, large),
        "Where the time goes": where,
        "By other conventions": also,
        "Quality": quality,
    }
    for key, title in (("quality_by_group", summary["headline"]), ("groups", f"speedup over {base}, decoding")):
        groups = sorted({group for row in methods for group in row.get(key, {})})
        if 1 < len(groups) <= MOST_GROUPS:
            columns = {group: _group(key, group) for group in groups}
            shown[f"{title} by group"] = {"method": lambda r: r["label"], **columns}
    before = f"{place}: " if place else ""
    out = [
        Table(
            title if i == 0 else before + title,
            list(columns),
            [[cell(row) for cell in columns.values()] for row in methods],
        )
        for i, (title, columns) in enumerate(shown.items())
    ]
    failed = [row for row in summary["methods"] if row["failed"] and "tokens" not in row]
    out[0].rows.extend([row["label"], *_failed(row, len(speed) - 1)] for row in failed)
    return out


def across(summaries: list[Summary]) -> Table:
    """One line a run and method: speed and the headline score, and whatever else tells the lines apart."""
    whole = any(summary["clock"] == "end to end" for summary in summaries)
    lines = [(s, row) for s in summaries for row in s["methods"] if "tokens" in row or row["failed"]]
    apart = differences(lines)
    pairs = apart.pop("pair", None)
    speed = ["tokens/s, decoding", *(["speedup, end to end"] if whole else []), "speedup, decoding"]
    measured = [*speed, "theory", "corrected", "acceptance", "metric", "score", "prompts"]
    heads = [*(["pair"] if pairs else []), "task", "method", *apart, *measured]
    rows = []
    for i, (summary, row) in enumerate(lines):
        place = [*([pairs[i]] if pairs else []), summary["task"], row["label"], *(cells[i] for cells in apart.values())]
        rows.append(place + (_measured(summary, row, whole) if "tokens" in row else _failed(row, len(measured))))
    names = list(dict.fromkeys(summary["pair"] for summary in summaries))
    return Table(names[0] if len(names) == 1 else f"{len(summaries)} runs", heads, rows)


def _measured(summary: Summary, row: dict[str, Any], whole: bool) -> list[str]:
    """The measured columns of `across`."""
    missing = NOT_EXECUTED if summary["not_executed"] else NONE
    end_to_end = [over(summary["baseline"], "end_to_end_speedup")(row)] if whole else []
    return [
        number("tokens_per_second", "{:.1f}")(row),
        *end_to_end,
        over(summary["baseline"], "speedup")(row),
        number("predicted", "{:.2f}x")(row),
        number("corrected", "{:.2f}x")(row),
        number("acceptance_rate", "{:.3f}")(row),
        summary["headline"] or NONE,
        score(summary["headline"], missing)(row),
        str(row["prompts"]),
    ]


def of_runs(summaries: list[Summary]) -> list[tuple[Summary, list[Table]]]:
    """The tables of each run, under titles that tell the runs apart where there are several."""
    named = places(summaries) if len(summaries) > 1 else [""]
    return [(summary, tables(summary, place)) for summary, place in zip(summaries, named, strict=True)]


def all_tables(summaries: list[Summary]) -> list[Table]:
    """The table of all runs, where there are several, and those of each."""
    every = [across(summaries)] if len(summaries) > 1 else []
    return every + [table for _, each in of_runs(summaries) for table in each]


def markdown(summaries: list[Summary]) -> str:
    """GitHub-flavoured tables with their notes."""
    parts = [markdown_table(across(summaries))] if len(summaries) > 1 else []
    for summary, each in of_runs(summaries):
        parts += map(markdown_table, each)
        parts.append(markdown_list(notes(summary)))
    return "\n\n".join(parts) + "\n"


def markdown_list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {escaping.markdown(line)}" for line in lines)


def markdown_table(table: Table) -> str:
    """A GitHub-flavoured table, under its title where it has one."""
    align = [":--", *["--:"] * (len(table.heads) - 1)]
    title = f"**{escaping.markdown(table.title)}**\n\n" if table.title else ""
    heads, *rows = ([escaping.markdown_cell(cell) for cell in line] for line in (table.heads, *table.rows))
    return title + "\n".join(f"| {' | '.join(line)} |" for line in (heads, align, *rows))


def flat(summaries: list[Summary]) -> str:
    """One CSV line a run and method, nested values joined by dots."""
    lines = [
        {escaping.csv_value(key): escaping.csv_value(value) for key, value in _line(summary, row).items()}
        for summary in summaries
        for row in summary["methods"]
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(k for line in lines for k in line)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _line(summary: Summary, row: dict[str, Any]) -> dict[str, Any]:
    """A run's conditions, under the names of its config, and what was measured of one method."""
    environment = summary["environment"]
    run = {
        key: summary[key] for key in ("run", "folder", "made_up", "pair", "task", "baseline", "headline", "complete")
    }
    told = {"data": summary["data"]["source"], "engine": summary["engine"]["name"]}
    nested = {
        "data": {key: value for key, value in summary["data"].items() if key != "source"},
        "decoding": summary["decoding"],
        "engine": {key: value for key, value in summary["engine"].items() if key != "name"},
        "models": summary["models"],
    }
    heads = {name: {key: head[key] for key in IDENTITY if key in head} for name, head in summary["heads"].items()}
    machine = {
        "cpu": environment["cpu"],
        "gpu": environment.get("gpu", {}).get("name"),
        "threads": environment["threads"],
        "revision": environment["git"].get("revision"),
    }
    return run | told | _flatten(nested | {"heads": heads, "machine": machine}) | _flatten(row)


def as_json(summaries: list[Summary]) -> str:
    return escaping.json_text(summaries, indent=2) + "\n"


def _place(summary: Summary) -> str:
    return f"{summary['pair']}, {summary['task']}"


def _failed(row: dict[str, Any], columns: int) -> list[str]:
    """The cells of a method of which no generation came through."""
    return [f"all {row['failed']} failed", *[NONE] * (columns - 1)]


def _group(key: str, group: str) -> Cell:
    if key == "groups":
        return lambda row: times(row[key].get(group, {}).get("speedup"))
    return lambda row: interval(row[key].get(group), "{:.1f}", scale=100.0) or NONE


def _flatten(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, list):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return {path: value}
    return {k: v for key, each in value.items() for k, v in _flatten(each, f"{path}.{key}".lstrip(".")).items()}
