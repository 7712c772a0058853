"""`specbench compare`: compare two measurements, and separate changes of a method from changes of the machine.

The verdicts of `specbench compare` and `specbench gate` are written as a table, Markdown, JSON, GitHub annotations and step
summary, and JUnit XML.
"""

import os
import re
import sys
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from xml.etree import ElementTree as Tree

import typer

from specbench import files
from specbench.cli.console import output_console, print_table, say
from specbench.errors import ConfigError
from specbench.features.gate.verdict import UNDECIDED_STATUSES, GateLimits, GateVerdict, Status, exit_code, fails
from specbench.reporting.escaping import json_text, terminal_lines

if TYPE_CHECKING:
    from specbench.reporting.tables import Table


class VerdictFormat(StrEnum):
    table = "table"
    md = "md"
    json = "json"
    github = "github"


class Undecided(StrEnum):
    passes = "pass"
    fails = "fail"


Form = Annotated[VerdictFormat, typer.Option("--format", "-f", help="Output format.")]
JUnit = Annotated[Path | None, typer.Option("--junit", help="Also write JUnit XML to this file.")]
Inconclusive = Annotated[
    Undecided, typer.Option(help="Whether results that cannot be compared or decided pass, or fail with exit code 6.")
]
Alpha = Annotated[float, typer.Option(help="Significance level of each test.")]
MaxSlowdown = Annotated[float, typer.Option(help="A significant slow-down beyond this is a regression, in percent.")]
MaxQualityDrop = Annotated[
    float, typer.Option(help="A significant quality drop larger than this is a regression, in points of 100.")
]
RequireSpeed = Annotated[
    bool, typer.Option("--require-speed", help="Fail with exit code 6 if speeds cannot be compared.")
]
CountersOnly = Annotated[
    bool,
    typer.Option("--counters-only", help="Compare tokens, counters and quality, but no times. Works on any machine."),
]
AcrossConfig = Annotated[
    bool,
    typer.Option(
        "--across-config", help="Compare methods whose settings differ, by forwards per token, quality and time."
    ),
]
COLUMN_OF = {"engine": "speed", "comparability": "decoding", "acceptance": "decoding", "cost": "speed"}  # of an aspect
FAILING = ("regression", "not comparable", "inconclusive")
LEVELS = {"regression": "error", "not comparable": "warning", "inconclusive": "warning", "improved": "notice"}


def limits_of(
    alpha: float,
    max_slowdown: float,
    max_quality_drop: float,
    require_speed: bool,
    counters_only: bool,
    across_config: bool,
) -> GateLimits:
    """Return the limits of a comparison. Raises ConfigError for a value out of range."""
    for name, value, most in (
        ("alpha", alpha, 1.0), ("max-slowdown", max_slowdown, 100.0), ("max-quality-drop", max_quality_drop, 100.0),
    ):  # fmt: skip
        if not 0.0 <= value < most:
            raise ConfigError(f"--{name} {value:g} must be at least 0 and below {most:g}")
    return GateLimits(
        alpha=alpha,
        max_slowdown=max_slowdown,
        max_quality_drop=max_quality_drop,
        require_speed=require_speed,
        counters_only=counters_only,
        across_config=across_config,
    )


def write_verdicts(
    verdicts: list[GateVerdict], form: VerdictFormat, junit: Path | None, title: str, undecided: Undecided
) -> int:
    """Write the verdicts in the given format, and JUnit XML to `junit`. Returns the exit code.

    In GitHub Actions, also prints annotations (on stderr if the format is JSON) and appends a table to the step summary.
    """
    code = exit_code(verdicts, undecided is Undecided.passes)
    if form is VerdictFormat.table:
        _print(verdicts, title)
    elif form is VerdictFormat.md:
        print(markdown(verdicts, title), end="")
    elif form is VerdictFormat.json:
        print(json_text({"exit_code": code, "verdicts": list(map(asdict, verdicts))}, indent=2))
    else:
        print(f"{title}: {outcome(verdicts)}")
    if form is VerdictFormat.github or os.environ.get("GITHUB_ACTIONS"):
        for line in annotations(verdicts):
            print(line, file=sys.stderr if form is VerdictFormat.json else sys.stdout)
        if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
            with Path(summary).open("a", encoding="utf-8") as file:
                file.write(markdown(verdicts, title))
    if junit:
        junit.parent.mkdir(parents=True, exist_ok=True)
        with files.add_path_to_errors(junit):
            junit.write_bytes(junit_xml(verdicts, title, undecided is Undecided.passes))
    return code


def table_of(verdicts: list[GateVerdict], title: str) -> "Table":
    """Return a table with a row per method of a run, and a column per aspect."""
    from specbench.reporting.tables import Table  # imports numpy

    lines: dict[tuple[str, str], dict[str, list[str]]] = {}
    for verdict in verdicts:
        column = COLUMN_OF.get(verdict.aspect, verdict.aspect)
        mark = f"{verdict.status.value.upper()}: " if verdict.status in FAILING else ""
        lines.setdefault((verdict.run, verdict.method or "all"), {}).setdefault(column, []).append(mark + verdict.short)
    columns = ("decoding", "quality", "speed")
    rows = [[*key, *("; ".join(line.get(column, ["–"])) for column in columns)] for key, line in lines.items()]
    return Table(title, ["run", "method", *columns], rows)


def findings(verdicts: list[GateVerdict]) -> list[str]:
    """Return a sentence for each verdict other than ok."""
    return [
        f"{verdict.status.value}: {verdict.title}, {_where(verdict)}: {verdict.detail}"
        for verdict in verdicts
        if verdict.status != "ok"
    ]


def outcome(verdicts: list[GateVerdict]) -> str:
    """Return the number of methods without a finding, and the number of checks of each status, the worst first."""
    methods = {(verdict.run, verdict.method) for verdict in verdicts if verdict.method}
    failing = [verdict for verdict in verdicts if verdict.status.value in FAILING]
    whole_runs = {verdict.run for verdict in failing if not verdict.method}
    passing = {(run, method) for run, method in methods if run not in whole_runs}
    passing -= {(verdict.run, verdict.method) for verdict in failing}
    counts = {
        status: sum(verdict.status == status for verdict in verdicts)
        for status in (*FAILING, "improved", "skipped", "ok")
    }
    checks = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    if not checks:
        return "nothing to compare"
    speeds = [verdict.status for verdict in verdicts if verdict.aspect in ("speed", "engine")]
    if speeds and set(speeds) == {Status.skipped}:
        checks += "; speed: no verdict"
    plural = "" if len(methods) == 1 else "s"
    passed = f"{len(passing)} of {len(methods)} method{plural} passed; " if methods else ""
    return f"{passed}{len(verdicts)} check{'' if len(verdicts) == 1 else 's'}: {checks}"


def markdown(verdicts: list[GateVerdict], title: str) -> str:
    """Return the verdicts as a Markdown table with notes."""
    from specbench.reporting.formats.writers import markdown_list, markdown_table  # imports numpy

    notes = markdown_list([*findings(verdicts), outcome(verdicts)])
    return f"{markdown_table(table_of(verdicts, title))}\n\n{notes}\n\n"


def annotations(verdicts: list[GateVerdict]) -> list[str]:
    """Return GitHub workflow commands: errors for regressions, warnings for undecided checks, notices for improvements."""
    return [
        f"::{LEVELS[verdict.status]} title={_property(f'{verdict.title}: {_where(verdict)}')}::{_message(verdict.detail)}"
        for verdict in verdicts
        if verdict.status in LEVELS
    ]


def junit_xml(verdicts: list[GateVerdict], title: str, undecided_passes: bool = False) -> bytes:
    """Return JUnit XML with a test case per verdict. A case fails if its verdict alone causes a nonzero exit code."""
    failed = [verdict for verdict in verdicts if fails(verdict.status, undecided_passes)]
    passing = UNDECIDED_STATUSES | {Status.skipped}
    skipped = [verdict for verdict in verdicts if verdict.status in passing and verdict not in failed]
    counts = {"tests": str(len(verdicts)), "failures": str(len(failed)), "skipped": str(len(skipped)), "errors": "0"}
    root = Tree.Element("testsuites", counts)
    suite = Tree.SubElement(root, "testsuite", {"name": _plain(title), **counts})
    for verdict in verdicts:
        name = ": ".join(
            filter(None, [verdict.method, verdict.aspect, verdict.short if verdict.aspect == "quality" else ""])
        )
        case = Tree.SubElement(suite, "testcase", {"classname": _plain(verdict.run), "name": _plain(name), "time": "0"})
        if verdict in failed:
            Tree.SubElement(case, "failure", {"message": _plain(verdict.title)}).text = _plain(verdict.detail)
        elif verdict in skipped:
            Tree.SubElement(case, "skipped", {"message": _plain(f"{verdict.title}: {verdict.detail}")})
        else:
            Tree.SubElement(case, "system-out").text = _plain(verdict.detail)
    return bytes(Tree.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _print(verdicts: list[GateVerdict], title: str) -> None:

    console = output_console()
    print_table(table_of(verdicts, title), console)
    for line in findings(verdicts):
        style = "red" if line.startswith("regression") else "yellow" if line.startswith(FAILING) else "dim"
        say(line, console, style)
    say(outcome(verdicts), console, "none")


def _where(verdict: GateVerdict) -> str:
    return " on ".join(filter(None, (verdict.method, verdict.run)))


def _message(text: str) -> str:
    return terminal_lines(text).replace("%", "%25").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")


def _plain(text: str) -> str:
    """Return the text without the characters that XML cannot represent."""
    return re.sub("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "", text)


def compare(
    base: Annotated[
        Path,
        typer.Argument(
            help="A run folder, a folder of run folders, a snapshot file, results of servers, a verification, or a profile of"
            " another tool."
        ),
    ],
    new: Annotated[Path, typer.Argument(help="The measurement to compare with BASE.")],
    form: Form = VerdictFormat.table,
    max_slowdown: MaxSlowdown = 3.0,
    max_quality_drop: MaxQualityDrop = 1.0,
    alpha: Alpha = 0.01,
    require_speed: RequireSpeed = False,
    counters_only: CountersOnly = False,
    inconclusive: Inconclusive = Undecided.fails,
    junit: JUnit = None,
    across_config: AcrossConfig = False,
    exit_zero: Annotated[bool, typer.Option("--exit-zero", help="Always exit 0.")] = False,
) -> None:
    """Compare two measurements: decoding, quality, speed.

    For results of servers, compares exactness, acceptance, quality and speedup. For verifications (the JSON of `verify`),
    compares exactness. If a side is a profile of another tool (NVIDIA's speculation_profile.json, a saved page of /metrics,
    or records by request), compares acceptance alone.

    Exit code 5 for a regression, 6 if something could not be compared or decided.
    """
    from specbench.features.exchange import measurement_kinds  # imports numpy

    limits = limits_of(alpha, max_slowdown, max_quality_drop, require_speed, counters_only, across_config)
    verdicts = measurement_kinds.compare(base, new, limits)
    code = write_verdicts(verdicts, form, junit, f"{new} against {base}", inconclusive)
    sys.exit(0 if exit_zero else code)
