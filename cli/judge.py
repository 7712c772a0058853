"""`specbench judge`: let a language model compare the stored generations of two methods."""

from pathlib import Path
from typing import Annotated

import typer

import specbench.tasks  # noqa: F401  (registers the tasks)
from specbench.cli.console import TerminalObserver, output_console, print_path, print_table
from specbench.cli.params import (
    BreakLock,
    JudgeModel,
    JudgeSource,
    OnDevice,
    Plugins,
    Wait,
    import_plugins,
    judge_table,
)
from specbench.cli.report import conclude, newest
from specbench.config.request import Access
from specbench.errors import ConfigError
from specbench.runs.locking import locked
from specbench.runs.run_folder import spec_of
from specbench.vocabulary import Device


def judge(
    runs: Annotated[list[Path] | None, typer.Argument(help="Run folders; default: the newest in --from.")] = None,
    judge_: JudgeSource = "",
    judge_model: JudgeModel = "",
    of: Annotated[str, typer.Option(help="The method to judge; default: the one that is not the baseline.")] = "",
    against: Annotated[str, typer.Option(help="The method to compare it with; default: the baseline.")] = "",
    data: Annotated[str, typer.Option(help="The file with the rows of the task, if it has moved.")] = "",
    device: OnDevice = Device.auto,
    results: Annotated[Path, typer.Option("--from", help="Folder of run folders.")] = Path("results"),
    plugin: Plugins = None,
    wait: Wait = False,
    break_lock: BreakLock = False,
) -> None:
    """Let a language model compare the stored generations of two methods.

    Each pair of continuations is shown in both orders. A method wins a comparison if both answers prefer it; otherwise the
    comparison is a tie. Prompts and answers are stored in judged.json, and are not repeated by the same command. The key of a
    server is read from the environment variable OPENAI_API_KEY.
    """
    import_plugins(plugin)
    folders = runs or newest(results)
    if not folders:
        raise ConfigError(f"no run folder in {results}; help: specbench run")
    table = judge_table(judge_, judge_model) if judge_ or judge_model else {}
    url = "a URL such as http://localhost:8000/v1 with --judge-model"
    missing = [] if table else [f"--judge is missing: a local model, or {url}"]
    others = {folder: _judgeable(folder, against) for folder in folders}
    if ambiguous := next((folder for folder in folders if not of and len(others[folder]) != 1), None):
        names = others[ambiguous]
        missing.append(f"{ambiguous} has the methods {', '.join(names) or 'none'}; help: --of {(names or ['NAME'])[0]}")
    if missing:
        raise ConfigError("; ".join(missing))
    from specbench.experiment import scorer  # imports torch
    from specbench.features.judge.judging import JudgeRequest, judge_run  # imports torch
    from specbench.models.resolve_models import device_of  # imports torch
    from specbench.reporting.quality_conclusion import judged_conclusion  # imports numpy
    from specbench.reporting.tables import judged_table  # imports numpy

    console = output_console()
    for folder in folders:
        request = JudgeRequest(table, of or others[folder][0], against or spec_of(folder).baseline)
        with locked([folder], Access(wait=wait, break_lock=break_lock)):
            _, rows = scorer.task_of(folder, data)
            judged = judge_run(folder, rows, request, device_of(device.value), TerminalObserver())
        print_table(judged_table(judged), console)
        conclude(judged_conclusion(judged), console)
        print_path(folder, console)


def _judgeable(folder: Path, against: str) -> list[str]:
    """Return the methods of a run that can be judged against a method, by default the baseline."""
    spec = spec_of(folder)
    return [name for name in spec.methods if name != (against or spec.baseline)]
