"""`specbench compare`: compare two measurements, and separate changes of a method from changes of the machine."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.verdict_output import (
    AcrossConfig,
    Alpha,
    CountersOnly,
    Form,
    Inconclusive,
    JUnit,
    MaxQualityDrop,
    MaxSlowdown,
    RequireSpeed,
    Undecided,
    VerdictFormat,
    limits_of,
    write,
)
from specbench.regression import compare as comparison
from specbench.regression import snapshot


def compare(
    base: Annotated[Path, typer.Argument(help="A run folder, a folder of run folders, or a snapshot file.")],
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

    Exit code 5 for a regression, 6 if something could not be compared or decided.
    """
    limits = limits_of(alpha, max_slowdown, max_quality_drop, require_speed, counters_only, across_config)
    verdicts = comparison.compare(snapshot.open_(base), snapshot.open_(new), limits)
    code = write(verdicts, form, junit, f"{new} against {base}", inconclusive)
    sys.exit(0 if exit_zero else code)
