"""The Python API: run benchmarks and read their results without the command line.

import specbench

result = specbench.run(method="sd", pair="tiny", task="gsm8k", limit=8)
print(result.table())
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from specbench.analysis.run_summary import RunSummary
from specbench.analysis.summary import summaries_of
from specbench.config.construct import Named, convert, require_plain
from specbench.config.options import Options, RunOptions, fields_of
from specbench.config.request import Access, Request, request_of
from specbench.errors import ConfigError, MissingAsset, hint, short_repr
from specbench.experiment import pipeline
from specbench.features.advise import MINUTES, advising, default_repeats
from specbench.features.advise import PROMPTS as ADVICE_PROMPTS
from specbench.features.advise.advice_runs import AdviceRequest
from specbench.features.advise.answer import EstimateRow, advice_row, answer, deciding_numbers, toml_of
from specbench.features.advise.candidates import Advice
from specbench.features.verify import CUTS, PROMPTS, TOKENS
from specbench.features.verify.verification_run import Verification, VerifyRequest, verify_method
from specbench.observer import Observer
from specbench.reporting.conclusion import conclusion
from specbench.reporting.escaping import html_text
from specbench.reporting.formats.export import method_row, position_rows, prompt_rows
from specbench.reporting.formats.writers import runs_text
from specbench.reporting.setup_lines import counted
from specbench.resolution import plugins
from specbench.resolution.resolve import ResolvedRequest, resolve
from specbench.resolution.run_store import progress_of
from specbench.runs.record import Record
from specbench.runs.run_folder import read, runs_in
from specbench.vocabulary import SandboxKind

if TYPE_CHECKING:
    import pandas as pd

MOST_LINES = 8  # of the text of a result or plan
MOST_ROWS = 60  # of a table in a notebook
MOST_NAME = 255  # bytes of a file name on common file systems
Names = str | Iterable[str]
Format = Literal["md", "csv", "json", "latex", "html", "acceptance"]
AnyPath = str | PathLike[str]


@dataclass(frozen=True)
class RunResult:
    """The results of one or several run folders.

    `summaries` has one `RunSummary` per folder, with the content of `specbench report --format json`. `unscored` is the
    reason why some runs were not scored, such as a missing sandbox, or None.
    """

    folders: tuple[Path, ...]
    summaries: tuple[RunSummary, ...]
    unscored: MissingAsset | None = None

    def __repr__(self) -> str:
        lines = (f"{summary.spec.words}{'' if summary.complete else ' (incomplete)'}" for summary in self.summaries)
        return _listed(f"RunResult of {counted(len(self.summaries), 'run')}:", list(lines))

    def _repr_html_(self) -> str:
        """Return the conclusion and the table for a notebook."""
        sentences = "".join(f"<p>{html_text(sentence)}</p>" for sentence in self.conclusion())
        return f"{sentences}{self.table().to_html(index=False, na_rep='', max_rows=MOST_ROWS)}"

    @property
    def complete(self) -> bool:
        """Whether every run has all of its generations."""
        return all(summary.complete for summary in self.summaries)

    def conclusion(self) -> list[str]:
        """Return the conclusion as sentences: which method is the fastest, by how much, why, and at what cost in quality.

        Empty if only baselines were measured.
        """
        return [str(note) for note in conclusion(self.summaries)]

    def records(self) -> list[Record]:
        """Return every generation, in the order in which it was measured, failed ones included."""
        return [record for folder in self.folders for record in read(folder)]

    def table(self) -> "pd.DataFrame":
        """Return one row per run and method, the baseline first.

        Columns: `pair`, `task`, `method`; `draft_length`, the longest draft in tokens; `temperature`; `rank` by speed,
        and `last_rank` (2 and 4 for a rank of 2-4);
        `generations`, `failed`; `tokens_per_second` while decoding; `speedup` over the baseline while decoding, with
        the 95 % interval `speedup_low` to `speedup_high` (1 without an interval for the baseline; none below five
        prompts); the same with prefill as `end_to_end_tokens_per_second` and `end_to_end_speedup`; `predicted` and
        `corrected`, the speedup that theory gives at the measured acceptance; `acceptance_rate`; `metric` and `score`
        in [0, 1].
        """
        return _frame(method_row(summary, row) for summary in self.summaries for row in summary.methods)

    def by_prompt(self) -> "pd.DataFrame":
        """Return one row per run, method and prompt, summed over the repeats that completed.

        Columns: `pair`, `task`, `method`, `temperature`; `prompt`, the id of the sample; `prompt_tokens`; `generations`;
        `tokens`, committed in all generations; `seconds` of decoding, and `end_to_end_seconds` with prefill (missing for
        untimed runs); `tokens_per_second` while decoding; `acceptance_rate` in [0, 1]; `accepted_length` in tokens per round;
        `score`, the mean of the main metric (missing for metrics that are no means over prompts).
        """
        return _frame(row for summary in self.summaries for row in prompt_rows(summary))

    def by_position(self) -> "pd.DataFrame":
        """Return one row per run, method that drafts, and position in the draft.

        Columns: `pair`, `task`, `method`, `temperature`; `position`, 1 for the first token of a round; `tested` and
        `accepted` tokens there; `acceptance_rate` in [0, 1], given that all tokens before it were accepted.
        """
        return _frame(row for summary in self.summaries for row in position_rows(summary))


@dataclass(frozen=True)
class Plan:
    """The runs that a call of `run` with the same arguments would measure."""

    resolved: ResolvedRequest

    def __repr__(self) -> str:
        runs = self.resolved.runs
        lines = [
            f"{run.spec.words}: {progress_of(run).done} of {run.spec.generations} generations done" for run in runs
        ]
        return _listed(f"Plan of {counted(len(runs), 'run')}:", lines)

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        return str(self.table().to_html(index=False, max_rows=MOST_ROWS))

    def table(self) -> "pd.DataFrame":
        """Return one row per run: `pair`, `task`, `methods`, `generations`, how many of them are `done`, and the `folder`."""
        return _frame(
            {
                "pair": run.spec.pair.name,
                "task": run.spec.task.name,
                "methods": ", ".join(run.spec.methods),
                "generations": run.spec.generations,
                "done": progress_of(run).done,
                "folder": str(run.folder),
            }
            for run in self.resolved.runs
        )


@dataclass(frozen=True)
class AdviceResult:
    """Advice on a pair and a task, as `specbench advise` gives it. Its text is the answer."""

    advice: Advice

    def __repr__(self) -> str:
        return "\n".join((*deciding_numbers(self.advice), *answer(self.advice)))

    @property
    def method(self) -> str:
        """The name of the selected method."""
        return self.advice.best.candidate.name

    @property
    def pays(self) -> bool | None:
        """Whether it is faster than the target alone; None if its interval contains 1, or if it was not measured."""
        return self.advice.pays

    @property
    def toml(self) -> str:
        """The selected method as the text of a TOML file, which `run` takes."""
        return toml_of(self.advice)

    def table(self) -> "pd.DataFrame":
        """Return one row per candidate, the selected one first.

        Columns: `method`; `lossless`; `predicted` and `measured` decoding speedups over the target alone, and
        `score_change` in [-1, 1], each with the bounds of its 95 % interval, `_low` and `_high`; `parts`, on how many parts
        of the prompts it was measured after the first; `why` it has no prediction.
        """
        return _frame(
            {
                "method": candidate["method"],
                "lossless": candidate["lossless"],
                **_bounds("predicted", candidate["predicted"]),
                **_bounds("measured", candidate["measured"]),
                **_bounds("score_change", candidate["score_change"]),
                "parts": candidate["parts"],
                "why": candidate["why"],
            }
            for candidate in advice_row(self.advice)["candidates"]
        )


def _bounds(name: str, estimate: EstimateRow | None) -> dict[str, float | None]:
    """Return an estimate and the bounds of its interval as columns."""
    if estimate is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    return {name: estimate["value"], f"{name}_low": estimate["low"], f"{name}_high": estimate["high"]}


def _frame(rows: Iterable[Mapping[str, object]]) -> "pd.DataFrame":
    import pandas as pd

    return pd.DataFrame(list(rows))


def _listed(first: str, lines: list[str]) -> str:
    """Return a heading and the first lines, with the number of the others."""
    more = [f"... and {len(lines) - MOST_LINES} more"] if len(lines) > MOST_LINES else []
    return "\n  ".join([first, *lines[:MOST_LINES], *more])


def run(
    method: Names = (),
    pair: str = "tiny",
    task: Names = (),
    *,
    out: str | PathLike[str] = "results",
    fresh: bool = False,
    observer: Observer | None = None,
    **options: Unpack[RunOptions],
) -> RunResult:
    """Measure methods on a pair and tasks, together with their baselines, and score the outputs.

    The same call resumes an interrupted run, and returns a finished one without measuring.

    Args:
        method: Methods: names of presets, or paths to TOML files. `all` is every method that the pair allows, `lossless`
            those that keep the output distribution. By default `sd` for a draft and a target, and `se` for an ensemble.
        pair: A pair of models: the name of a preset, or a path to a TOML file.
        task: Tasks. By default those that suit the pair.
        out: The folder that run folders are written to.
        fresh: Discard what the run folders hold and measure again.
        observer: Receives progress.
        **options: See `RunOptions`.

    Raises:
        ConfigError: An argument is wrong.
        MissingAsset: A model, data set or device is missing, or another process uses a run folder.
    """
    request = _request((method, pair, task), options, out=out, access=Access(fresh=fresh))
    results = pipeline.run(request, observer)
    folders = tuple(Path(summary.folder) for summary in results.summaries)
    return RunResult(folders, tuple(results.summaries), results.unscored)


def plan(
    method: Names = (),
    pair: str = "tiny",
    task: Names = (),
    *,
    out: str | PathLike[str] = "results",
    **options: Unpack[RunOptions],
) -> Plan:
    """Resolve what `run` would measure, without loading a model. Takes the same arguments; raises the same errors."""
    return Plan(resolve(_request((method, pair, task), options, out=out)))


def verify(
    method: str,
    pair: str = "tiny",
    task: Names = (),
    *,
    observer: Observer | None = None,
    **options: Unpack[RunOptions],
) -> Verification:
    """Test whether a method follows the distribution that it declares, on this pair and this device.

    Args:
        method: The name of a preset, or a path to a TOML file.
        pair: A pair of models: the name of a preset, or a path to a TOML file.
        task: Tasks that prompts are taken from. By default those that suit the pair.
        observer: Receives progress.
        **options: As for `run`. `limit` is the number of prompts, 6 by default, `max_new_tokens` is 24, and `repeats`, 6, is
            the number of sampled outputs per prompt. `temperature` is that of the sampled checks; 0 leaves them out.

    Returns:
        A `Verification`; its `verdict` has the outcome, one line that explains it, and the checks.

    Raises:
        ConfigError: An argument is wrong.
        MissingAsset: A model, data set or device is missing.
    """
    cuts = convert(options.pop("repeats", CUTS), int, "repeats")
    if cuts < 1:
        raise ConfigError(f"repeats = {cuts} must be at least 1")
    request = _request((method, pair, task), {"limit": PROMPTS, "max_new_tokens": TOKENS, **options}, out="results")
    return verify_method(
        VerifyRequest(method=method, pair=pair, tasks=request.tasks, options=request.options, cuts=cuts), observer
    )


class AdviceOptions(RunOptions, total=False):
    """The options of `advise`: those of `run`, how long to measure, and by how much the score may drop.

    No part of the measurements is begun that may end after `minutes`, 10 by default. With `max_drop`, methods that are not
    lossless are compared too, and one is advised if the score, in [0, 1], drops by at most this much.
    """

    minutes: float
    max_drop: float | None


def advise(
    pair: str = "",
    task: str = "",
    *,
    run: AnyPath | None = None,
    out: AnyPath = "results",
    fresh: bool = False,
    observer: Observer | None = None,
    **options: Unpack[AdviceOptions],
) -> AdviceResult:
    """Advise whether to speculate with a pair on a task and this machine, and how.

    Args:
        pair: A pair of models: the name of a preset, or a path to a TOML file. By default `tiny`.
        task: The task that the prompts are from. By default the pair's first task.
        run: A run folder with the target alone and a draft model. Other methods are predicted from it without decoding.
        out: The folder that run folders are written to.
        fresh: Discard what the run folders hold and measure again.
        observer: Receives progress.
        **options: See `AdviceOptions`. `limit` is 48 by default, and `repeats` 2, or 4 above temperature 0. Draft lengths and
            parts of the prompts are chosen here, so `gamma`, `over`, `sample`, `shard` and `ignore_eos` are not allowed.

    Raises:
        ConfigError: An argument is wrong, or there are too few prompts.
        MissingAsset: A model, data set or device is missing, or another process uses a run folder.
    """
    if run is not None:
        if pair or task or options or fresh:
            raise ConfigError("advise: takes a run folder or a pair with options, not both")
        return AdviceResult(advising.advise_on(_path("run", run), observer))
    minutes = convert(options.pop("minutes", MINUTES), float, "minutes")
    max_drop = options.pop("max_drop", None)
    max_drop = None if max_drop is None else convert(max_drop, float, "max_drop")
    if chosen := next((name for name in ("gamma", "over", "sample", "shard", "ignore_eos") if options.get(name)), None):
        raise ConfigError(f"advise: takes no {chosen}")
    defaults = {"limit": ADVICE_PROMPTS, "repeats": default_repeats(options.get("temperature"))}
    request = _request(((), pair, task or ()), {**defaults, **options}, out=out, access=Access(fresh=fresh))
    return AdviceResult(advising.advise(AdviceRequest.of(request, minutes, max_drop), observer))


def load(*folders: str | PathLike[str]) -> RunResult:
    """Read run folders, or folders that contain them. Raises ConfigError without folders, or for one without a run."""
    if not folders:
        raise ConfigError("load: takes paths of run folders")
    checked = [_path("load", folder) for folder in folders]
    paths = tuple(folder for path in checked for folder in runs_in(path) or [path])
    return RunResult(paths, tuple(summaries_of(paths)))


def report(result: RunResult, format: Format = "md", *, columns: Iterable[str] = (), full: bool = False) -> str:
    """Return a report of runs as Markdown, CSV, JSON, LaTeX, one HTML page, or JSON profiles of their acceptance.

    `columns` are the keys of the columns of one table, for `md` and `latex`. `full` adds the other tables to `md`. Raises
    ConfigError for a result without runs, another format or an unknown column.
    """
    if _is_path(result):
        raise ConfigError(f"report: {str(result)!r} is a path; help: specbench.report(specbench.load({str(result)!r}))")
    if not isinstance(result, RunResult) or not result.summaries:
        raise ConfigError(
            f"report: {str(result)[:60]} has no runs; help: specbench.load(FOLDER), or what run() returns"
        )
    return runs_text(result.summaries, format, list(columns), full)


def register(plugin: type[Named] | str | PathLike[str]) -> None:
    """Make a class of your own available to `run` by its name, or all classes of a Python file or module.

    A class is a subclass of Method, Proposer, Target, Stop or Task with a name. Runs record the hash of the source, so a
    changed class starts a new run. Raises ConfigError if the class has no name, or the file cannot be imported.
    """
    source = plugins.register(plugin) if isinstance(plugin, type) else plugins.load(str(plugin))
    _registered[source[0]] = source[1]


_registered: dict[str, str] = {}  # sources of registered classes: file name -> SHA-256


def _request(
    what: tuple[Names, str, Names],
    options: Mapping[str, Any],
    *,
    out: str | PathLike[str],
    access: Access | None = None,
) -> Request:
    """Return a request for methods, a pair and tasks."""
    method, pair, task = what
    values = dict(options)
    for option, value in values.items():
        require_plain(value, option)
    sandbox = values.pop("sandbox", None)
    files = _names("plugins", values.pop("plugins", ()))
    fields = fields_of(values, others=("method", "pair", "task", "plugins", "sandbox"))
    return request_of(
        _names("method", method),
        _name("pair", pair),
        _names("task", task),
        options=Options(plugins=(*_registered.items(), *plugins.load_all(files)), **fields),
        out=_path("out", out),
        access=access or Access(),
        sandbox=_sandbox(sandbox),
    )


def _sandbox(name: str | None) -> SandboxKind | None:
    if name is not None and (not isinstance(name, str) or name not in SandboxKind.__members__):
        raise ConfigError(f"sandbox = {name!r}{hint(str(name), SandboxKind.__members__)}")
    return None if name is None else SandboxKind(name)


def _is_path(value: object) -> bool:
    return isinstance(value, str | PathLike)


def _path(option: str, value: object) -> Path:
    """Return a path. Raises ConfigError for another value, and for a path that no file system has."""
    if not isinstance(value, str | PathLike):
        raise ConfigError(f"{option} = {short_repr(value)} must be a path")
    path = Path(_name(option, str(value)))
    if any(len(part.encode(errors="replace")) > MOST_NAME for part in path.parts):
        raise ConfigError(f"{option} = {short_repr(str(value))}: a file name has at most {MOST_NAME} bytes")
    return path


def _name(option: str, value: object) -> str:
    """Return a name or a path as text. Raises ConfigError for another value."""
    if not isinstance(value, str | PathLike):
        raise ConfigError(f"{option} = {short_repr(value)} must be a name or a path, not {type(value).__name__}")
    require_plain(value, option)
    return str(value)


def _names(option: str, names: Names) -> tuple[str, ...]:
    if isinstance(names, str | PathLike):
        return (_name(option, names),)
    if not isinstance(names, Iterable) or isinstance(names, Mapping | bytes):
        raise ConfigError(f"{option} = {short_repr(names)} must be a name, or a list of names")
    words = tuple(_name(option, name) for name in names)
    if not words and names != ():  # an empty tuple is the default
        raise ConfigError(f"{option} = {names!r} names nothing; help: leave it out for the default")
    return words
