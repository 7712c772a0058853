"""Options that several commands have, and what a few may be, as Typer wants to know it."""

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated

import typer

from specbench.presets import KINDS, names

Plugins = Annotated[
    list[str] | None,
    typer.Option("--plugin", help="A Python file or module with targets, stop rules, methods or tasks of your own."),
]

Json = Annotated[bool, typer.Option("--json", help="Write JSON to stdout, for a script.")]


def with_plugins(plugins: list[str] | None) -> tuple[tuple[str, str], ...]:
    """The plugins' names and checksums, once they are imported."""
    if not plugins:
        return ()
    from specbench.plugins import load

    return tuple(map(load, plugins))


def known(kind: str) -> Callable[[str], list[str]]:
    """A completion of presets of a kind, the last word of a comma list included. Files are the shell's to complete."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in names(kind) if name.startswith(last)]

    return complete


def known_kinds(incomplete: str) -> list[str]:
    return [kind for kind in KINDS if kind.startswith(incomplete)]


def known_there(ctx: typer.Context, incomplete: str) -> list[str]:
    """A completion of presets of the kind that the argument `kind` names."""
    kind = ctx.params.get("kind")
    return known(kind)(incomplete) if kind in KINDS else []


class SandboxKind(StrEnum):
    auto = "auto"
    bwrap = "bwrap"
    unshare = "unshare"
    none = "none"


class Overflow(StrEnum):
    error = "error"
    left = "truncate-left"
    right = "truncate-right"
    middle = "truncate-middle"


class Chat(StrEnum):
    off = "off"
    auto = "auto"
    required = "required"


class HeadKind(StrEnum):
    sprinter = "sprinter"
    specdec = "specdec++"
    dsl = "dsl"
    eagle = "eagle"


class Device(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Engine(StrEnum):
    auto = "auto"
    eager = "eager"
    lean = "lean"
    graph = "graph"


class Dtype(StrEnum):
    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


OnDevice = Annotated[Device, typer.Option(help="auto takes CUDA where there is one.")]
InDtype = Annotated[Dtype, typer.Option(help="auto: float32 on a CPU, bfloat16 on a GPU.")]
ByEngine = Annotated[
    Engine, typer.Option(help="eager: transformers' modules; lean: ours; graph: ours, as CUDA graphs.")
]
