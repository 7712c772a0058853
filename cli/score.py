"""`specbench score`: score stored generations again, without a model."""

from pathlib import Path
from typing import Annotated

import typer

import specbench.tasks  # noqa: F401  (registers the tasks)
from specbench.cli.console import output_console, progress
from specbench.cli.params import BreakLock, Plugins, Wait, import_plugins
from specbench.cli.report import newest, show
from specbench.config.request import Access
from specbench.errors import ConfigError
from specbench.runs.locking import locked
from specbench.runs.run_folder import read
from specbench.sandbox import Sandbox
from specbench.vocabulary import SandboxKind


def score(
    runs: Annotated[list[Path] | None, typer.Argument(help="Run folders; default: the newest in --from.")] = None,
    data: Annotated[str, typer.Option(help="The file with the rows of the task, if it has moved.")] = "",
    allow_code_execution: Annotated[
        bool, typer.Option("--allow-code-execution", help="Execute generated code in a sandbox.")
    ] = False,
    sandbox: Annotated[SandboxKind, typer.Option(help="Sandbox backend; none disables isolation.")] = SandboxKind.auto,
    results: Annotated[Path, typer.Option("--from", help="Folder of run folders.")] = Path("results"),
    plugin: Plugins = None,
    wait: Wait = False,
    break_lock: BreakLock = False,
) -> None:
    """Score stored generations again with the current tasks."""
    import_plugins(plugin)
    from specbench.experiment import scorer  # imports torch
    from specbench.experiment.pipeline import summarize_run  # imports torch

    folders = runs or newest(results)
    if not folders:
        raise ConfigError(f"no run folder in {results}; help: specbench run")
    for folder in folders:
        task, rows = scorer.task_of(folder, data)
        if scorer.is_executed(folder) and not allow_code_execution:
            raise ConfigError(f"{folder} was scored by executing generated code; help: --allow-code-execution")
        box = Sandbox.find(sandbox) if allow_code_execution and task.executes_code else None
        with locked([folder], Access(wait=wait, break_lock=break_lock)):
            with progress(f"scoring {folder.name}", sum(1 for _ in read(folder))) as advance:
                scorer.score(folder, task, rows, box, advance)
            summary = summarize_run(folder)
        show([summary], output_console())
