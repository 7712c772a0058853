"""The training of a suite's heads on another machine: forwards that collect its rows, and the fit.

Every constant is assumed, as in `specbench.machine.hardware`.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from specbench.analysis import theory
from specbench.config.construct import Table
from specbench.config.pair import Answers, HeadKind, default_base
from specbench.data.task import Task
from specbench.errors import ConfigError, MissingAsset
from specbench.features.plan.machine_plan import (
    ELSEWHERE,
    FAST,
    SLOW,
    MachineRow,
    PlannedMachine,
    downloads_of,
    longest_prompt,
)
from specbench.features.suites.prepared_heads import TrainingStep, has_rows, steps_of
from specbench.features.suites.suite import Preparation, PreparedHead, Suite
from specbench.machine.accelerator import Accelerator, forward_seconds, prefill_seconds
from specbench.models.resolve_models import resolve_models
from specbench.models.resolved_model import ResolvedModel
from specbench.resolution import selection
from specbench.resolution.memory_estimate import memory_by_device
from specbench.training.recipes import MOST_EPOCHS, training_share

KINDS = 4  # of SPRINTER's prefixes
STEP = (2e-3, 3e-4)  # assumed: slow and fast seconds of an optimizer's step for a small head
BACKWARD = 3  # operations of a forward and its backward pass over those of a forward


@dataclass(frozen=True)
class _Training:
    """Heads that share their rows, and the models that collect these. `recipe` is one of the heads' `recipes`."""

    preparation: Preparation
    recipes: Sequence[Table]
    base: str
    models: Mapping[str, ResolvedModel]
    task: Task
    recipe: Table
    machine: Accelerator

    def forward(self, role: str, fast: bool) -> float:
        """Return the seconds of a decoding forward, with the cache of the longest text; fast: with none."""
        model = self.models[role]
        cache = model.size.cache_bytes(0 if fast else longest_prompt(self.models, self.task))
        return forward_seconds(self.machine, model.engine, model.size.forward_bytes + cache, model.size.layers, fast)

    def read(self, role: str, tokens: int, fast: bool) -> float:
        """Return the seconds of a forward that reads so many tokens at once."""
        by_arithmetic = prefill_seconds(self.machine, self.models[role].size.parameters, tokens, fast)
        return max(by_arithmetic, self.forward(role, fast))

    def number(self, key: str) -> int:
        """Return a whole number of the recipe."""
        value = self.recipe.get(key, 0)
        return int(value) if isinstance(value, int | float) else 0


def training_rows(suite: Suite, target: PlannedMachine) -> list[MachineRow]:
    """Return the estimates of the heads' training: one for the heads that share their rows, which are collected once.

    Heads whose rows the user has not named are left out, since they are not trained.
    """
    groups: dict[Hashable, list[TrainingStep]] = {}
    for step in steps_of(suite):
        if has_rows(step.head, step.options):
            groups.setdefault(step.rows_key, []).append(step)
    return [_row(steps, target) for steps in groups.values()]


def _row(steps: Sequence[TrainingStep], target: PlannedMachine) -> MachineRow:
    head, options = steps[0].head, replace(steps[0].options, heads=())
    kind = head.preparation.kind
    preset, pair = selection.read_pair(head.pair, options)
    name, task = selection.read_task(head.task, pair, options)
    row = MachineRow(
        pair=preset.name, task=name, methods=f"train {len(steps)} {kind}" if len(steps) > 1 else f"train {head.name}"
    )
    base = head.preparation.base or default_base(kind)
    roles = [base] if kind == HeadKind.eagle else [base, "target"]
    try:
        on = replace(ELSEWHERE, dtype=options.dtype, engine=options.engine)
        models = resolve_models(pair.on(head.task), tuple(roles), preset.path.parent, on)
        texts = _texts(steps[0])
    except (ConfigError, MissingAsset) as error:
        return replace(row, why=str(error))
    devices = memory_by_device(models, [], longest_prompt(models, task) + task.max_new_tokens)
    recipes = [step.recipe for step in steps]
    training = _Training(head.preparation, recipes, base, models, task, recipes[0], target.machine)
    seconds = None if texts is None else (_seconds(training, texts, True), _seconds(training, texts, False))
    return replace(
        row,
        devices=tuple(devices),
        downloads=downloads_of(models),
        fits=target.fits(devices),
        seconds=seconds,
        why="" if seconds else _unknown(head),
    )


def _unknown(head: PreparedHead) -> str:
    """Return why there is no estimate for a head, and what gives one."""
    return (
        f"{head.words}: the number of training texts of {head.task} on the hub is not known offline; help: limit = N in"
        f" [[prepare]], or --data {head.task}=FILE"
    )


def _texts(step: TrainingStep) -> int | None:
    """Return the number of texts that train a head; None if only the hub's training split, which is not read, has it."""
    _, task = selection.read_task(step.head.task, step.pair, step.options)
    if step.source != "hub" or task.local:
        return step.texts()
    return step.head.preparation.limit or None


def _seconds(training: _Training, texts: int, fast: bool) -> float:
    """Return the seconds of collecting the rows once and fitting every head."""
    is_eagle = training.preparation.kind == HeadKind.eagle
    collecting = (_eagle_collecting if is_eagle else _collecting)(training, fast)
    fits = [replace(training, recipe=recipe) for recipe in training.recipes]
    seconds = texts * collecting + sum(
        (_eagle_fitting if is_eagle else _fitting)(training, texts, fast) for training in fits
    )
    budget = 60.0 * training.preparation.minutes
    return min(seconds, budget) if budget else seconds


def _collecting(training: _Training, fast: bool) -> float:
    """Return the seconds to collect the rows of a text, by reading its prompt and drawing tokens after it."""
    prompt = 0 if fast else longest_prompt(training.models, training.task)
    seconds = sum(training.read(role, prompt, fast) for role in training.models)
    return seconds + sum(times * training.forward(role, fast) for role, times in _forwards(training, fast).items())


def _forwards(training: _Training, fast: bool) -> dict[str, float]:
    """Return how many forwards of each model the rows of a text take (docs/papers/sprinter.md and drafting.md, Training)."""
    steps = training.number("steps")
    written = 0 if training.preparation.answers == Answers.reference else steps  # by the target
    if training.preparation.kind == HeadKind.sprinter:
        # The draft's prefix and the mixed one; the target's and the mixed one
        return {training.base: 2.0 * steps + KINDS, "target": 2.0 * steps + KINDS + written}
    if training.preparation.kind == HeadKind.specdec:
        return {training.base: 2.0, "target": 1.0 + written}
    gamma, a = max(training.number("gamma"), 1), (FAST if fast else SLOW).acceptance
    rounds = steps / theory.expectation(theory.round_lengths(a, gamma))
    return {training.base: rounds * gamma, "target": rounds}


def _fitting(training: _Training, texts: int, fast: bool) -> float:
    """Return the seconds of a fit to the rows, stopped early under the fast assumption."""
    rows = (
        training_share(training.recipe)
        * texts
        * training.number("steps")
        * (KINDS if training.preparation.kind == HeadKind.sprinter else 1)
    )
    epochs = training.number("epochs")
    if fast:
        epochs = min(epochs, training.number("patience") + 1)
    return epochs * math.ceil(rows / max(training.number("batch"), 1)) * STEP[fast]


def _eagle_collecting(training: _Training, fast: bool) -> float:
    """Return the seconds to collect the features of a text.

    The base writes it, unless it is a reference answer, and reads it once.
    """
    length = _eagle_length(training, fast)
    written = 0 if training.preparation.answers == Answers.reference else min(length, training.task.max_new_tokens)
    return written * training.forward(training.base, fast) + training.read(training.base, length, fast)


def _eagle_fitting(training: _Training, texts: int, fast: bool) -> float:
    """Return the seconds to train an EAGLE head, which is one layer and the LM head."""
    model = training.models[training.base]
    learned = int(model.size.parameters * model.size.head_bytes / model.size.resident_bytes)
    tokens = training_share(training.recipe) * texts * _eagle_length(training, fast)
    epochs = training.number("epochs") or MOST_EPOCHS
    return prefill_seconds(training.machine, BACKWARD * learned, int(tokens * epochs), fast)


def _eagle_length(training: _Training, fast: bool) -> int:
    """Return the assumed tokens of a text: the longest one, or a quarter of that under the fast assumption."""
    return training.number("most") // 4 if fast else training.number("most")
