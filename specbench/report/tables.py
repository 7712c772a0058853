"""Summaries as tables: for a terminal, as Markdown, CSV and JSON. One list of columns serves all four."""

import csv
import io
import json
from dataclasses import dataclass
from typing import Any

from specbench.report.chains import chain_of
from specbench.report.columns import NONE, Cell, interval, number, over, score, special, times
from specbench.report.notes import notes

Summary = dict[str, Any]
NOT_EXECUTED = "not executed"
MOST_GROUPS = 8  # that a table shows


@dataclass(frozen=True)
class Table:
    """A title, column heads, and text rows; the first column is left-aligned, all others right."""

    title: str
    heads: list[str]
    rows: list[list[str]]


def tables(summary: Summary) -> list[Table]:
    """Speed beside theory and quality; what explains it; where the time goes; the same by other conventions, and hygiene."""
    methods = [row for row in summary["methods"] if "tokens" in row]
    metrics = [metric["name"] for metric in summary["metrics"]]
    missing = NOT_EXECUTED if summary["not_executed"] else NONE
    base = summary["baseline"]
    whole, large = summary["clock"] == "end to end", list(summary["models"])[-1]
    paper = {"paper's theory": number("papers_prediction", "{:.2f}x")}
    speed: dict[str, Cell] = {
        "method": lambda r: r["label"],
        "tokens/s": number("tokens_per_second", "{:.1f}"),
        **({f"end to end over {base}": over(base, "end_to_end_speedup")} if whole else {}),
        f"{'decoding' if whole else 'speedup'} over {base}": over(base, "speedup"),
        **(paper if any("papers_prediction" in r for r in methods) else {}),
        "theory": number("predicted", "{:.2f}x"),
        "corrected": number("corrected", "{:.2f}x"),
        "measured/corrected": number("measured_over_corrected", "{:.2f}"),
        **{metric: score(metric, missing) for metric in metrics if metric == summary["headline"]},
    }
    why: dict[str, Cell] = {
        "method": lambda r: r["label"],
        "draft lengths": _lengths,
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
        "end to end tokens/s": number("end_to_end_tokens_per_second", "{:.1f}"),
        "drift": number("drift", "{:+.1%}"),
    }
    if any(row["communication_share"] is not None for row in methods):
        where |= {
            "communication": number("communication_share", "{:.1%}"),
            "bytes moved/token": number("moved_bytes_per_token", "{:.0f}"),
        }
    also: dict[str, Cell] = {
        "method": lambda r: r["label"],
        "end to end": lambda r: times(r.get("end_to_end_speedup")),
        "geometric mean": lambda r: times(r.get("geometric_mean_speedup")),
        "papers' average": number("papers_speedup", "{:.2f}x"),
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
    head = f"{summary['pair']}, {summary['task']}"
    shown = {
        f"{head}: speed and quality": speed,
        "What explains it": why,
        **special(methods, base, large),
        "Where the time goes": where,
        "By other conventions": also,
        "Quality": quality,
    }
    for key, title in (("quality_by_group", summary["headline"]), ("groups", f"speedup over {base}")):
        groups = sorted({group for row in methods for group in row.get(key, {})})
        if 1 < len(groups) <= MOST_GROUPS:
            columns = {group: _group(key, group) for group in groups}
            shown[f"{title} by group"] = {"method": lambda r: r["label"], **columns}
    out = [
        Table(title, list(columns), [[cell(row) for cell in columns.values()] for row in methods])
        for title, columns in shown.items()
    ]
    out[0].rows.extend(_failed(row, len(speed)) for row in summary["methods"] if row["failed"] and "tokens" not in row)
    return out


def across(summaries: list[Summary]) -> Table:
    """One line a run and method: speed and the headline score."""
    whole = ["end to end"] if any(summary["clock"] == "end to end" for summary in summaries) else []
    heads = ["task", "method", "tokens/s", *whole, "speedup", "theory", "corrected", "acceptance", "metric", "score"]
    heads, lines = [*heads, "prompts"], []
    for summary in summaries:
        metric = summary["headline"] or NONE
        missing = NOT_EXECUTED if summary["not_executed"] else NONE
        for row in summary["methods"]:
            if "tokens" not in row:
                lines += [[summary["task"], *_failed(row, len(heads) - 1)]] if row["failed"] else []
                continue
            lines.append([
                summary["task"],
                row["label"],
                number("tokens_per_second", "{:.1f}")(row),
                *([over(summary["baseline"], "end_to_end_speedup")(row)] if whole else []),
                over(summary["baseline"], "speedup")(row),
                number("predicted", "{:.2f}x")(row),
                number("corrected", "{:.2f}x")(row),
                number("acceptance_rate", "{:.3f}")(row),
                metric,
                score(metric, missing)(row),
                str(row["prompts"]),
            ])  # fmt: skip
    return Table(", ".join(dict.fromkeys(summary["pair"] for summary in summaries)), heads, lines)


def markdown(summaries: list[Summary]) -> str:
    """GitHub-flavoured tables with their notes."""
    parts = [markdown_table(across(summaries))] if len(summaries) > 1 else []
    for summary in summaries:
        parts += map(markdown_table, tables(summary))
        parts.append("\n".join(f"- {note}" for note in notes(summary)))
    return "\n\n".join(parts) + "\n"


def markdown_table(table: Table) -> str:
    """A GitHub-flavoured table, under its title where it has one."""
    align = [":--", *["--:"] * (len(table.heads) - 1)]
    title = f"**{table.title}**\n\n" if table.title else ""
    return title + "\n".join(f"| {' | '.join(line)} |" for line in [table.heads, align, *table.rows])


def flat(summaries: list[Summary]) -> str:
    """One CSV line a run and method, nested values joined by dots."""
    lines = [
        {"run": s["run"], "made_up": s["made_up"], "pair": s["pair"], "task": s["task"], "baseline": s["baseline"]}
        | {"data": s["data"]["source"], "headline": s["headline"], "engine": s["engine"]["name"]}
        | {"complete": s["complete"]}
        | {f"decoding.{k}": v for k, v in s["decoding"].items()}
        | {k: v for k, v in _flatten(row).items() if not k.startswith("config.")}
        for s in summaries
        for row in s["methods"]
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(k for line in lines for k in line)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def as_json(summaries: list[Summary]) -> str:
    return json.dumps(summaries, indent=2, ensure_ascii=False) + "\n"


def _failed(row: dict[str, Any], columns: int) -> list[str]:
    """The line of a method of which no generation came through."""
    return [row["label"], f"all {row['failed']} failed", *[NONE] * (columns - 2)]


def _group(key: str, group: str) -> Cell:
    if key == "groups":
        return lambda row: times(row[key].get(group, {}).get("speedup"))
    return lambda row: interval(row[key].get(group), "{:.1f}", scale=100.0) or NONE


def _lengths(row: dict[str, Any]) -> str:
    config, (proposer, chains) = row["config"], chain_of(row["config"])
    above = "".join(f", then at least {each['threshold']}" for each in chains)
    gamma = config.get("gamma") or proposer.get("gamma")
    most = "up to " if "stop" in proposer or proposer.get("name") == "pld" else ""
    told = NONE if gamma is None else ", ".join(map(str, gamma)) if isinstance(gamma, list) else f"{most}{gamma}"
    return told + above


def _flatten(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, list):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return {path: value}
    return {k: v for key, each in value.items() for k, v in _flatten(each, f"{path}.{key}".lstrip(".")).items()}
