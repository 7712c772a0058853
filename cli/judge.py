"""`specbench judge`: let a language model compare the stored generations of two methods."""

from pathlib import Path
from typing import Annotated

import typer

import specbench.tasks  # noqa: F401  (registers the tasks)
from specbench.cli.arguments import imported, judge_table
from specbench.cli.console import place, print_table, terminal
from specbench.cli.params import BreakLock, Device, JudgeModel, JudgeSource, OnDevice, Plugins, Wait
from specbench.cli.progress import Terminal
from specbench.cli.report_output import conclude, newest
from specbench.config.options import Access
from specbench.errors import ConfigError
from specbench.runs.locking import locked
from specbench.runs.run_folder import spec_of


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
    imported(plugin)
    table = judge_table(judge_, judge_model)
    if not table:
        raise ConfigError("--judge is missing: a URL such as http://localhost:8000/v1, or a local model")
    folders = runs or newest(results)
    if not folders:
        raise ConfigError(f"no run folder in {results}; help: specbench run")
    from specbench.experiment import scorer  # imports torch
    from specbench.experiment.judging import JudgeRequest, judge_run, methods_of  # imports torch
    from specbench.models.resolve import device_of  # imports torch
    from specbench.report.judged import judged_conclusion  # imports numpy
    from specbench.report.tables import judged_table  # imports numpy

    console = terminal()
    for folder in folders:
        other = against or spec_of(folder).baseline
        rest = [name for name in methods_of(folder) if name != other]
        if not of and len(rest) != 1:
            raise ConfigError(
                f"{folder} has the methods {', '.join(rest) or 'none'}; help: --of {(rest or ['NAME'])[0]}"
            )
        request = JudgeRequest(table, of or rest[0], other)
        with locked([folder], Access(wait=wait, break_lock=break_lock)):
            _, rows = scorer.task_of(folder, data)
            judged = judge_run(folder, rows, request, device_of(device.value), Terminal())
        print_table(judged_table(judged), console)
        conclude(judged_conclusion(judged), console)
        place(folder, console)
