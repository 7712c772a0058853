"""Options that several commands have, and what a few may be, as Typer wants to know it."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from specbench.config.options import SandboxKind
from specbench.config.pair import HeadKind as HeadKind
from specbench.config.presets import KINDS, names


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


class Overflow(StrEnum):
    error = "error"
    left = "truncate-left"
    right = "truncate-right"
    middle = "truncate-middle"


class Chat(StrEnum):
    off = "off"
    auto = "auto"
    required = "required"


class Device(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Engine(StrEnum):
    auto = "auto"
    eager = "eager"
    lean = "lean"
    graph = "graph"
    compiled = "compiled"


class Dtype(StrEnum):
    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


# What to measure.
Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method", "-m", help="A method, or a TOML file; repeat for several. [se]", autocompletion=known("method")
    ),
]
Method = Annotated[
    str, typer.Option("--method", "-m", help="A method, or a TOML file.", autocompletion=known("method"))
]
Pair = Annotated[
    str, typer.Option("--pair", "-p", help="A pair of models, or a TOML file.", autocompletion=known("pair"))
]
PairOrTiny = Annotated[
    str | None,
    typer.Option("--pair", "-p", help="A pair of models, or a TOML file. [tiny]", autocompletion=known("pair")),
]
Tasks = Annotated[
    list[str] | None,
    typer.Option(
        "--task", "-t", help="A task, or a TOML file; repeat for several. [all]", autocompletion=known("task")
    ),
]
Suite = Annotated[
    str | None,
    typer.Option(
        "--suite",
        help="The grid of a paper's table or figure, instead of -m, -p and -t.",
        autocompletion=known("suite"),
    ),
]

# On which samples, and how they are decoded.
Data = Annotated[
    list[str] | None,
    typer.Option("--data", help="hub, synthetic or a JSONL file; TASK=... for one task. [the pair's, else hub]"),
]
Limit = Annotated[
    int | None, typer.Option("--limit", "-n", help="Use only the first N samples; 0: all (synthetic data: 32).")
]
Drawn = Annotated[
    int, typer.Option(help="Only N samples, drawn at random, the same ones every time; overrules --limit.")
]
Gamma = Annotated[
    list[str] | None,
    typer.Option(
        "--gamma", help="Draft length N, or one per model N,N; METHOD=N for one method. [by the models' sizes]"
    ),
]
MaxNewTokens = Annotated[int | None, typer.Option(help="Most tokens to generate. [the task's]")]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Fixed length: no EOS, no stop strings.")]
Temperature = Annotated[float | None, typer.Option(help="0 is greedy. [1 for cascades and ensembles, else 0]")]
Seed = Annotated[int, typer.Option(help="Repeat r uses seed + r.")]
Repeats = Annotated[int | None, typer.Option(help="How often each prompt is decoded by each method. [3]")]

# On what.
OnDevice = Annotated[Device, typer.Option(help="auto takes CUDA where there is one.")]
InDtype = Annotated[Dtype, typer.Option(help="auto: float32 on a CPU, bfloat16 on a GPU.")]
ByEngine = Annotated[
    Engine,
    typer.Option(
        help="eager: transformers' modules; lean: our own forward; graph: lean as CUDA graphs; compiled: graph with"
        " torch.compile; auto: graph, else lean, else eager."
    ),
]
CodeExecution = Annotated[
    bool, typer.Option("--allow-code-execution", help="Run what models wrote, in a sandbox, to score it.")
]
Sandbox = Annotated[SandboxKind, typer.Option(help="How generated code is isolated; none gives no protection.")]

# What is changed of the presets.
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", help="Override a key: method.target.mu=0.2, task.shots=0, task.mmlu.shots=0."),
]
Heads = Annotated[
    list[str] | None,
    typer.Option("--head", help="Use another head: sprinter=FOLDER, eagle@middle=FOLDER, PAIR:sprinter=FOLDER."),
]
Plugins = Annotated[
    list[str] | None,
    typer.Option("--plugin", help="A Python file or module with targets, stop rules, methods or tasks of your own."),
]

# What becomes of it.
Out = Annotated[Path, typer.Option("--out", "-o", help="Where run folders go.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Measure again what is already measured.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for another process that uses the run folder.")]
BreakLock = Annotated[
    bool, typer.Option("--break-lock", help="Remove the lock of a process on another host that no longer runs.")
]
Json = Annotated[bool, typer.Option("--json", help="Write JSON to stdout, for a script.")]
