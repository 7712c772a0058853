"""Options that several commands share, as Typer annotations, and the parsing of their values."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from specbench.config.construct import Table
from specbench.config.options import Chat as Chat
from specbench.config.options import Device as Device
from specbench.config.options import Dtype as Dtype
from specbench.config.options import Engine as Engine
from specbench.config.options import Options, SandboxKind
from specbench.config.options import Overflow as Overflow
from specbench.config.options import Sampling as Sampling
from specbench.config.pair import HeadKind as HeadKind
from specbench.config.pair import place_overrides
from specbench.config.presets import KINDS, WORDS, names, parse_head, parse_override, scoped
from specbench.errors import ConfigError, hint
from specbench.reporting.plots.figures import FORMATS, SUPPORTED_FORMATS


def words(values: Sequence[str] | None) -> list[str]:
    """Split repeated options and comma lists alike into words."""
    return [word.strip() for value in values or [] for word in value.split(",") if word.strip()]


def explicit_methods(methods: Sequence[str]) -> list[str]:
    """Return the methods that are named, without the words `all` and `lossless`."""
    return [method for method in methods if method not in WORDS]


def pair_of_models(pair: str | None, draft: str, target: str) -> str | None:
    """Return the value of --pair, or the pair of --draft and --target in its form. Raises ConfigError if they conflict."""
    if not draft and not target:
        return pair
    if pair:
        raise ConfigError("--pair and --target cannot be combined")
    if not target:
        raise ConfigError("--draft needs --target")
    return f"draft={draft},target={target}" if draft else f"target={target}"


def plot_formats(values: Sequence[str] | None, plots: object) -> Sequence[str]:
    """Return the formats of plots. Raises ConfigError for an unknown format, and for a format without `--plots`."""
    formats = words(values)
    if formats and not plots:
        raise ConfigError("--plot-format applies to --plots; help: --plots FOLDER")
    for format_ in formats:
        if format_ not in SUPPORTED_FORMATS:
            raise ConfigError(f"--plot-format {format_}{hint(format_, SUPPORTED_FORMATS)}")
    return formats or FORMATS


def lengths(text: str) -> tuple[str, tuple[int, ...]]:
    """Parse draft lengths, `N` or `N,N,...`, perhaps after `METHOD=`. Returns the method (empty: all) and the lengths."""
    method, value = scoped(text, "method", "--gamma")
    try:
        numbers = tuple(int(word) for word in value.split(",") if word.strip())
    except ValueError:
        raise ConfigError(f"--gamma {text}: write it as N, N,N or METHOD=N") from None
    if not numbers or min(numbers) < 1:
        raise ConfigError(f"--gamma {text}: a draft length is at least 1")
    return method, numbers


def import_plugins(plugins: Sequence[str] | None) -> tuple[tuple[str, str], ...]:
    """Import plugins, and return their names and checksums. Without plugins, torch is not imported."""
    if not plugins:
        return ()
    from specbench.resolution.plugins import load_all  # imports torch

    return load_all(plugins)


def judge_table(source: str, model: str) -> Table:
    """Return the table of a judge: a server for a URL, or a local model. Empty without a source."""
    if not source:
        if model:
            raise ConfigError("--judge-model needs --judge URL")
        return {}
    if source.startswith(("http://", "https://")):
        if not model:
            raise ConfigError("--judge-model is missing: the name of the model that the server runs")
        return {"name": "endpoint", "url": source, "model": model}
    if model:
        raise ConfigError(f"--judge-model applies to a server; --judge {source} is a local model")
    return {"name": "prompted", "path": source}


# Panels of `--help`, in their order.
WHAT, DATA, DECODING, MEASUREMENT = "What", "Data and prompts", "Decoding", "Measurement"
MACHINE, OVERRIDES, SUITES, OUTPUT = "Machine", "Overrides and plugins", "Suites and jobs", "Output"
PANELS = (WHAT, DATA, DECODING, MEASUREMENT, MACHINE, OVERRIDES, SUITES, OUTPUT)
SHORT = {"method": ("-m",), "pair": ("-p",), "task": ("-t",)}  # kind of preset -> short options


def preset_names(kind: str) -> Callable[[str], list[str]]:
    """Return a completion function for preset names of a kind. In a comma-separated list it completes the last name."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in names(kind) if name.startswith(last)]

    return complete


def preset_option(kind: str, text: str, panel: str | None = WHAT) -> Any:
    """Return the option `--KIND` that names presets of a kind, with completion. `text` is its help, in a panel or without."""
    flags = [f"--{kind}", *SHORT.get(kind, ())]
    return typer.Option(*flags, help=text, autocompletion=preset_names(kind), rich_help_panel=panel)


def complete_kinds(incomplete: str) -> list[str]:
    """Complete the kinds of presets."""
    return [kind for kind in KINDS if kind.startswith(incomplete)]


def complete_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete preset names of the kind given by the argument `kind`."""
    kind = ctx.params.get("kind")
    return preset_names(kind)(incomplete) if kind in KINDS else []


# Methods, pair and tasks.
Methods = Annotated[
    list[str] | None,
    preset_option(
        "method",
        "A method, or a TOML file; repeat for several. all: every method that the pair allows; lossless: those that"
        " keep the output distribution. [sd; for an ensemble se]",
    ),
]
Method = Annotated[str, preset_option("method", "A method, or a TOML file.")]
Pair = Annotated[str, preset_option("pair", "A pair of models, a TOML file, or draft=PATH,target=PATH.")]
PairOrTiny = Annotated[
    str | None, preset_option("pair", "A pair of models, a TOML file, or draft=PATH,target=PATH. [tiny]")
]
Target = Annotated[str, typer.Option(help="Instead of --pair: the target, a folder or a hub id.", rich_help_panel=WHAT)]
Draft = Annotated[str, typer.Option(help="With --target: the draft, a folder or a hub id.", rich_help_panel=WHAT)]
Tasks = Annotated[
    list[str] | None, preset_option("task", "A task, or a TOML file; repeat for several. [the pair's, else all]")
]
Suite = Annotated[
    str | None,
    preset_option(
        "suite", "A suite (the grid of a paper's table or figure), or a TOML file; replaces -m, -p and -t.", SUITES
    ),
]

# Scoring.
CodeExecution = Annotated[
    bool,
    typer.Option(
        "--allow-code-execution", help="Execute generated code in a sandbox to score it.", rich_help_panel=MEASUREMENT
    ),
]
SandboxOption = Annotated[
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
OnDevice = Annotated[Device, typer.Option(help="auto: CUDA if available.", rich_help_panel=MACHINE)]
InDtype = Annotated[Dtype, typer.Option(help="auto: float32 on a CPU, bfloat16 on a GPU.", rich_help_panel=MACHINE)]
Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        help="A Python file or module that defines targets, stop or rejection rules, proposers, methods, tasks or engines.",
        rich_help_panel=OVERRIDES,
    ),
]


PARSED = frozenset({"data", "gamma", "over", "set_", "place", "head", "plugin"})  # the others are fields of `Options`


@dataclass(frozen=True, kw_only=True)
class SharedOptions:
    """The options of every command that resolves a request. `with_shared_options` adds them to a command."""

    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            help="hub, synthetic, a file (JSONL, JSON, CSV, Parquet, Arrow), or any data set of the hub as"
            " hf:REPO[:CONFIG][#SPLIT][@REVISION]; TASK=... for one task. [the pair's, else hub]",
            rich_help_panel=DATA,
        ),
    ] = None
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            "-n",
            help="Use only the first N samples; 0: all (synthetic data: 32). [the pair's, else all]",
            rich_help_panel=DATA,
        ),
    ] = None
    sample: Annotated[
        int,
        typer.Option(
            help="Use N random samples, the same in every run. Cannot be combined with --limit.", rich_help_panel=DATA
        ),
    ] = 0
    gamma: Annotated[
        list[str] | None,
        typer.Option(
            "--gamma",
            help="Draft length N, or one per model N,N; METHOD=N for one method. [by the models' sizes]",
            rich_help_panel=DECODING,
        ),
    ] = None
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Maximum number of tokens per generation. [the task's]", rich_help_panel=DECODING)
    ] = None
    on_overflow: Annotated[
        Overflow | None,
        typer.Option(
            "--on-overflow", help="How to treat a prompt that is too long. [the task's]", rich_help_panel=DATA
        ),
    ] = None
    chat: Annotated[
        Chat | None,
        typer.Option("--chat", help="Whether to apply the chat template. [the task's]", rich_help_panel=DATA),
    ] = None
    ignore_eos: Annotated[
        bool,
        typer.Option(
            "--ignore-eos",
            help="Decode a fixed number of tokens: ignore EOS and stop strings.",
            rich_help_panel=DECODING,
        ),
    ] = False
    temperature: Annotated[
        float | None,
        typer.Option(
            help="Sampling temperature; 0 is greedy. [1 for cascades and ensembles, else 0]", rich_help_panel=DECODING
        ),
    ] = None
    top_k: Annotated[
        int, typer.Option(help="Sample from the k most likely tokens; 0: off.", rich_help_panel=DECODING)
    ] = 0
    top_p: Annotated[
        float,
        typer.Option(
            help="Sample from the smallest set of tokens with this probability; 1: off.", rich_help_panel=DECODING
        ),
    ] = 1.0
    sampling: Annotated[
        Sampling,
        typer.Option(help="checkpoint: as the generation config says.", show_default=False, rich_help_panel=DECODING),
    ] = Sampling.default
    seed: Annotated[int, typer.Option(help="Random seed; repeat r uses seed + r.", rich_help_panel=DECODING)] = 0
    repeats: Annotated[
        int | None,
        typer.Option(help="Number of times that each method decodes each prompt. [3]", rich_help_panel=MEASUREMENT),
    ] = None
    device: OnDevice = Device.auto
    dtype: InDtype = Dtype.auto
    engine: Annotated[
        Engine,
        typer.Option(
            help="eager: modules of transformers; lean: specbench's forward pass; graph: lean as CUDA graphs; compiled: graph"
            " with torch.compile; auto: the first available of graph, lean, eager.",
            show_default=False,
            rich_help_panel=MACHINE,
        ),
    ] = Engine.auto
    threads: Annotated[
        int,
        typer.Option(
            help="CPU threads; 0: OMP_NUM_THREADS, or by model size and free cores (verify, trace: PyTorch's default).",
            show_default=False,
            rich_help_panel=MACHINE,
        ),
    ] = 0
    place: Annotated[
        list[str] | None,
        typer.Option(
            "--place",
            help="Where a model runs: target=cuda:1 or target=layers:0,1 (layers over two GPUs). [the run's device]",
            rich_help_panel=MACHINE,
        ),
    ] = None
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            "-s",
            help="Override a key: method.target.mu=0.2, task.shots=0, task.mmlu.shots=0.",
            rich_help_panel=OVERRIDES,
        ),
    ] = None
    over: Annotated[
        list[str] | None,
        typer.Option(
            "--over",
            help="Sweep a key; each value is a variant: gamma=[1, 3, 5], method.target.alpha=[0.1, 0.3], lossy.bonus=[...].",
            rich_help_panel=OVERRIDES,
        ),
    ] = None
    head: Annotated[
        list[str] | None,
        typer.Option(
            "--head",
            help="Use a trained head: sprinter=FOLDER, eagle@middle=FOLDER, PAIR:sprinter=FOLDER.",
            rich_help_panel=OVERRIDES,
        ),
    ] = None
    plugin: Plugins = None
    shard: Annotated[
        str,
        typer.Option(help="Measure only part I/N of the prompts, in a run folder of its own.", rich_help_panel=SUITES),
    ] = ""

    def options(self, **values: Any) -> Options:
        """Parse the options, importing plugins first. `values` are those of options that the command defines itself."""
        chosen = replace(self, **values)
        plugins = import_plugins(chosen.plugin)  # first, since the names of a plugin's presets may be scopes
        plain = {field.name: getattr(chosen, field.name) for field in fields(self) if field.name not in PARSED}
        unset = {"on_overflow": "", "chat": "", "repeats": Options.repeats}
        return Options(
            **plain | {name: value for name, value in unset.items() if plain[name] is None},
            gamma=tuple(map(lengths, filter(None, chosen.gamma or []))),
            data=tuple(scoped(text, "task", "--data") for text in chosen.data or [] if text),
            overrides=(*map(parse_override, chosen.set_ or []), *place_overrides(chosen.place or [])),
            over=tuple(parse_override(text, "--over") for text in chosen.over or []),
            heads=tuple(map(parse_head, chosen.head or [])),
            plugins=plugins,
        )

    def arguments(self) -> list[str]:
        """Return the words of the command line that give the options which differ from their defaults."""
        words = []
        hints = get_type_hints(type(self), include_extras=True)
        for field in fields(self):
            value = getattr(self, field.name)
            declared = next(part for part in hints[field.name].__metadata__ if hasattr(part, "param_decls"))
            declarations = (declared.default, *(declared.param_decls or ()))  # Typer keeps the first one as the default
            flags = [flag for flag in declarations if isinstance(flag, str) and flag.startswith("--")]
            flag = flags[0] if flags else f"--{field.name.strip('_').replace('_', '-')}"
            for item in value if isinstance(value, list) else [value] if value != field.default else []:
                words += [flag] if item is True else [flag, str(item)]
        return words


def with_shared_options(*leave_out: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace the parameter `shared` of a command by the options of `SharedOptions`.

    Options that the command defines itself, and those to `leave_out`, are not added.
    """

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command).parameters
        hints = get_type_hints(SharedOptions, include_extras=True)
        added = [
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
            )
            for field in fields(SharedOptions)
            if field.name not in (*signature, *leave_out)
        ]

        @wraps(command)
        def wrapper(**values: Any) -> None:
            shared = SharedOptions(**{field.name: values.pop(field.name) for field in added})
            command(shared=shared, **values)

        parameters: list[inspect.Parameter] = []
        for parameter in signature.values():
            parameters += (
                added if parameter.name == "shared" else [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
            )
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what Typer reads
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return wrapper

    return decorated
