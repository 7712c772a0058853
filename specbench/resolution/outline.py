"""What a request would measure, from architectures alone: for plans on another machine and for sizes of models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specbench.config.options import Options
from specbench.config.pair import Pair
from specbench.data.task import Task
from specbench.errors import MissingAsset
from specbench.models.resolve import Execution
from specbench.models.resolved_model import ResolvedModel
from specbench.resolution.methods import ResolvedMethod
from specbench.resolution.resolve import Choice, sizes_of
from specbench.resolution.selection import prompt_count, read_task


@dataclass(frozen=True)
class Outline:
    """What a request would measure on one task, from architectures alone: for estimates without weights and data.

    `prompts` is None if their number is not known. `missing` is the reason why models or local data are missing.
    """

    name: str  # of the pair
    pair: Pair
    models: Mapping[str, ResolvedModel]
    groups: Sequence[tuple[ResolvedMethod, ...]]
    task_name: str
    task: Task
    prompts: int | None
    options: Options
    missing: str = ""


def outline(choice: Choice, on: Execution) -> Outline:
    """Return the outline of a request with one task, on a machine. Raises ConfigError for a mistake in the request."""
    (word,), options = choice.request.tasks, choice.request.options
    name, task = read_task(word, choice.pair, options)
    models, prompts, missing = dict[str, ResolvedModel](), None, ""
    try:
        models = choice.resolved_models(choice.pair.on(word), on)
    except MissingAsset as error:
        missing = str(error)
    try:
        prompts = prompt_count(word, task, choice.pair, options)
    except MissingAsset as error:  # a local file that is not here
        missing = missing or str(error)
    groups = choice.methods.groups(sizes_of(models))
    return Outline(choice.preset.name, choice.pair, models, groups, name, task, prompts, options, missing)
