"""Options that several commands share, as Typer annotations, and the parsing of their values."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from specbench.config.construct import Table
from specbench.config.flags import Flag, Panel
from specbench.config.options import FLAGS, Options
from specbench.config.presets import KINDS, WORDS, escaped_path, names
from specbench.errors import ConfigError, hint
from specbench.reporting.plots.figures import FORMATS, SUPPORTED_FORMATS
from specbench.vocabulary import SandboxKind


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
    return ",".join(f"{role}={escaped_path(path)}" for role, path in (("draft", draft), ("target", target)) if path)


def plot_formats(values: Sequence[str] | None, plots: object) -> Sequence[str]:
    """Return the formats of plots. Raises ConfigError for an unknown format, and for a format without `--plots`."""
    formats = words(values)
    if formats and not plots:
        raise ConfigError("--plot-format applies to --plots; help: --plots FOLDER")
    for format_ in formats:
        if format_ not in SUPPORTED_FORMATS:
            raise ConfigError(f"--plot-format {format_}{hint(format_, SUPPORTED_FORMATS)}")
    return formats or FORMATS


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


PANELS = tuple(Panel)
WHAT, MEASUREMENT, MACHINE, OVERRIDES = Panel.what, Panel.measurement, Panel.machine, Panel.overrides
SUITES, OUTPUT = Panel.suites, Panel.output
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
MethodOrDefault = Annotated[str | None, preset_option("method", "A method, or a TOML file. [the pair's]")]
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


def typer_option(name: str, flag: Flag) -> inspect.Parameter:
    """Return the parameter of a command for a flag of the field `name` of `Options`."""
    word = flag.word or name
    declarations = [f"--{word.replace('_', '-')}", *([flag.short] if flag.short else [])]
    is_repeated = isinstance(FIELDS[name].default, tuple)
    kind: Any = (
        list[str] | None if is_repeated else str if flag.parse else flag.choices or get_type_hints(Options)[name]
    )
    default: Any = None if is_repeated or flag.is_unset else FIELDS[name].default
    if flag.choices and default is not None:
        default = flag.choices(default)
    if flag.is_unset:
        kind = kind | None
    declared = typer.Option(*declarations, help=flag.help, rich_help_panel=flag.panel, show_default=flag.shows_default)
    return inspect.Parameter(
        word, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, declared]
    )


FIELDS = {field.name: field for field in fields(Options)}
GIVEN = {  # the flags of every command that resolves a request, by the name of their parameter: field and flag
    flag.word or name: (name, flag) for name, declared in FLAGS.items() for flag in (declared, declared.also) if flag
}
OnDevice, InDtype = (typer_option(name, FLAGS[name]).annotation for name in ("device", "dtype"))
Plugins = typer_option("plugins", FLAGS["plugins"]).annotation


@dataclass(frozen=True)
class SharedOptions:
    """The options of every command that resolves a request, as given. `with_shared_options` adds them to a command.

    `given` has the values by the words of `GIVEN`; an option that it lacks has its default.
    """

    given: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, word: str) -> Any:
        """Return the value of an option; its default if it was not given."""
        return self.given.get(word, typer_option(*GIVEN[word]).default)

    def options(self, **values: Any) -> Options:
        """Parse the options, importing plugins first. `values` belong to options that the command defines itself."""
        given = {**self.given, **values}
        plugins = import_plugins(given.get("plugin"))  # first, since the names of a plugin's presets may be scopes
        parsed: dict[str, Any] = {"plugins": plugins}
        for word, value in given.items():
            name, flag = GIVEN[word]
            if flag.entry is None:
                if name != "plugins" and not (value is None and flag.is_unset):
                    parsed[name] = flag.parse(value) if flag.parse else value
                continue
            texts = [text for text in value or [] if text or name not in ("data", "gamma")]
            entries = [entry for text in texts for entry in _entries(flag, text)]
            parsed[name] = (*parsed.get(name, ()), *entries)
        return Options(**parsed)

    def arguments(self) -> list[str]:
        """Return the words of the command line that give the options which differ from their defaults."""
        arguments = []
        for word, value in self.given.items():
            parameter = typer_option(*GIVEN[word])
            for item in value if isinstance(value, list) else [value] if value != parameter.default else []:
                flag = f"--{word.replace('_', '-')}"
                arguments += [flag] if item is True else [flag, str(item)]
        return arguments


def _entries(flag: Flag, text: str) -> Sequence[Any]:
    """Return the entries of an option that one text gives."""
    assert flag.entry
    entry = flag.entry(text)
    return entry if isinstance(entry, list) else [entry]


def with_shared_options(*leave_out: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace the parameter `shared` of a command by the options of `SharedOptions`.

    Options that the command defines itself, and those to `leave_out`, are not added.
    """

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command).parameters
        added = [typer_option(*GIVEN[word]) for word in GIVEN if word not in (*signature, *leave_out)]

        @wraps(command)
        def wrapper(**values: Any) -> None:
            shared = SharedOptions({parameter.name: values.pop(parameter.name) for parameter in added})
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
