"""Options that several commands share, as Typer annotations, and the values of some of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from specbench.config.choices import Chat as Chat
from specbench.config.choices import Device as Device
from specbench.config.choices import Dtype as Dtype
from specbench.config.choices import Engine as Engine
from specbench.config.choices import Overflow as Overflow
from specbench.config.options import SandboxKind
from specbench.config.pair import HeadKind as HeadKind
from specbench.config.presets import KINDS, names


def known(kind: str) -> Callable[[str], list[str]]:
    """Return a completion of preset names of a kind, also for the last name of a comma-separated list."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in names(kind) if name.startswith(last)]

    return complete


def known_kinds(incomplete: str) -> list[str]:
    """Complete the kinds of presets."""
    return [kind for kind in KINDS if kind.startswith(incomplete)]


def known_there(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete preset names of the kind given by the argument `kind`."""
    kind = ctx.params.get("kind")
    return known(kind)(incomplete) if kind in KINDS else []


# Panels of `--help`, in their order.
WHAT, DATA, DECODING, MEASUREMENT = "What", "Data and prompts", "Decoding", "Measurement"
MACHINE, OVERRIDES, SUITES, OUTPUT = "Machine", "Overrides and plugins", "Suites and jobs", "Output"
PANELS = (WHAT, DATA, DECODING, MEASUREMENT, MACHINE, OVERRIDES, SUITES, OUTPUT)

# Methods, pair and tasks.
Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        "-m",
        help="A method, or a TOML file; repeat for several. all: every method that the pair allows; lossless: those that"
        " keep the output distribution. [sd; for an ensemble se]",
        autocompletion=known("method"),
        rich_help_panel=WHAT,
    ),
]
Method = Annotated[
    str,
    typer.Option(
        "--method", "-m", help="A method, or a TOML file.", autocompletion=known("method"), rich_help_panel=WHAT
    ),
]
Pair = Annotated[
    str,
    typer.Option(
        "--pair",
        "-p",
        help="A pair of models, a TOML file, or draft=PATH,target=PATH.",
        autocompletion=known("pair"),
        rich_help_panel=WHAT,
    ),
]
PairOrTiny = Annotated[
    str | None,
    typer.Option(
        "--pair",
        "-p",
        help="A pair of models, a TOML file, or draft=PATH,target=PATH. [tiny]",
        autocompletion=known("pair"),
        rich_help_panel=WHAT,
    ),
]
Tasks = Annotated[
    list[str] | None,
    typer.Option(
        "--task",
        "-t",
        help="A task, or a TOML file; repeat for several. [the pair's, else all]",
        autocompletion=known("task"),
        rich_help_panel=WHAT,
    ),
]
Suite = Annotated[
    str | None,
    typer.Option(
        "--suite",
        help="A suite (the grid of a paper's table or figure), or a TOML file; replaces -m, -p and -t.",
        autocompletion=known("suite"),
        rich_help_panel=SUITES,
    ),
]

# Samples and decoding.
Data = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        help="hub, synthetic, a file (JSONL, JSON, CSV, Parquet, Arrow), or any data set of the hub as"
        " hf:REPO[:CONFIG][#SPLIT][@REVISION]; TASK=... for one task. [the pair's, else hub]",
        rich_help_panel=DATA,
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(
        "--limit",
        "-n",
        help="Use only the first N samples; 0: all (synthetic data: 32). [the pair's, else all]",
        rich_help_panel=DATA,
    ),
]
Drawn = Annotated[
    int,
    typer.Option(
        help="Use N random samples, the same in every run. Cannot be combined with --limit.", rich_help_panel=DATA
    ),
]
Gamma = Annotated[
    list[str] | None,
    typer.Option(
        "--gamma",
        help="Draft length N, or one per model N,N; METHOD=N for one method. [by the models' sizes]",
        rich_help_panel=DECODING,
    ),
]
MaxNewTokens = Annotated[
    int | None, typer.Option(help="Maximum number of tokens per generation. [the task's]", rich_help_panel=DECODING)
]
OnOverflow = Annotated[
    Overflow | None,
    typer.Option("--on-overflow", help="How to treat a prompt that is too long. [the task's]", rich_help_panel=DATA),
]
Templated = Annotated[
    Chat | None,
    typer.Option("--chat", help="Whether to apply the chat template. [the task's]", rich_help_panel=DATA),
]
IgnoreEos = Annotated[
    bool,
    typer.Option(
        "--ignore-eos", help="Decode a fixed number of tokens: ignore EOS and stop strings.", rich_help_panel=DECODING
    ),
]
Temperature = Annotated[
    float | None,
    typer.Option(
        help="Sampling temperature; 0 is greedy. [1 for cascades and ensembles, else 0]", rich_help_panel=DECODING
    ),
]
Seed = Annotated[int, typer.Option(help="Random seed; repeat r uses seed + r.", rich_help_panel=DECODING)]
Repeats = Annotated[
    int | None,
    typer.Option(help="Number of times that each method decodes each prompt. [3]", rich_help_panel=MEASUREMENT),
]

# Device and scoring.
OnDevice = Annotated[Device, typer.Option(help="auto: CUDA if available.", rich_help_panel=MACHINE)]
InDtype = Annotated[Dtype, typer.Option(help="auto: float32 on a CPU, bfloat16 on a GPU.", rich_help_panel=MACHINE)]
ByEngine = Annotated[
    Engine,
    typer.Option(
        help="eager: modules of transformers; lean: specbench's forward pass; graph: lean as CUDA graphs; compiled: graph"
        " with torch.compile; auto: the first available of graph, lean, eager.",
        rich_help_panel=MACHINE,
    ),
]
CodeExecution = Annotated[
    bool,
    typer.Option(
        "--allow-code-execution", help="Execute generated code in a sandbox to score it.", rich_help_panel=MEASUREMENT
    ),
]
Sandbox = Annotated[
    SandboxKind, typer.Option(help="Sandbox backend; none disables isolation.", rich_help_panel=MEASUREMENT)
]

# Judges.
JudgeSource = Annotated[
    str,
    typer.Option(
        "--judge", help="URL of an OpenAI-compatible server (http://HOST/v1), or a local model.", rich_help_panel=SUITES
    ),
]
JudgeModel = Annotated[
    str, typer.Option("--judge-model", help="The model that the server runs.", rich_help_panel=SUITES)
]

Place = Annotated[
    list[str] | None,
    typer.Option(
        "--place",
        help="Where a model runs: target=cuda:1, target=layers:0,1 (layers over two GPUs) or target=tensor:0,1 (split"
        " matrices). [the run's device]",
        rich_help_panel=MACHINE,
    ),
]

# Changes to presets.
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        help="Override a key: method.target.mu=0.2, task.shots=0, task.mmlu.shots=0.",
        rich_help_panel=OVERRIDES,
    ),
]
Heads = Annotated[
    list[str] | None,
    typer.Option(
        "--head",
        help="Use a trained head: sprinter=FOLDER, eagle@middle=FOLDER, PAIR:sprinter=FOLDER.",
        rich_help_panel=OVERRIDES,
    ),
]
Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        help="A Python file or module that defines targets, stop rules, proposers, methods or tasks.",
        rich_help_panel=OVERRIDES,
    ),
]

# Output and locks.
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder of run folders.", rich_help_panel=OUTPUT)]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Discard existing results and measure again.", rich_help_panel=OUTPUT)
]
Wait = Annotated[
    bool, typer.Option("--wait", help="Wait for another process that uses the run folder.", rich_help_panel=OUTPUT)
]
BreakLock = Annotated[
    bool,
    typer.Option(
        "--break-lock", help="Remove the lock of a process on another host that no longer runs.", rich_help_panel=OUTPUT
    ),
]
Full = Annotated[
    bool, typer.Option("--full", help="Show all tables and notes, not only the first.", rich_help_panel=OUTPUT)
]
Explain = Annotated[
    bool, typer.Option("--explain", help="Print the definition of every column.", rich_help_panel=OUTPUT)
]
PlotFormats = Annotated[
    list[str] | None,
    typer.Option("--plot-format", help="Formats of --plots: svg, png, pdf.  [svg,png]", rich_help_panel=OUTPUT),
]
Json = Annotated[bool, typer.Option("--json", help="Write JSON to stdout.", rich_help_panel=OUTPUT)]
