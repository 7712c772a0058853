"""From resolved models, methods and tasks to a `RunSpec`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch

from specbench.analysis import speculation_profile
from specbench.config.construct import Table, to_table
from specbench.config.options import Options
from specbench.config.pair import Pair
from specbench.data.task import Data, Task
from specbench.decoding.method import Verification
from specbench.decoding.sampling import Sampler
from specbench.errors import ConfigError
from specbench.files import read_text
from specbench.models.heads.resolve_heads import ResolvedHead
from specbench.models.resolved_model import ResolvedModel
from specbench.models.simulated import calibrate
from specbench.resolution.methods import ResolvedMethod
from specbench.resolution.selection import SelectedTask
from specbench.runs.run_folder import SAMPLES, read
from specbench.runs.run_spec import DataSpec, DecodingSpec, PairSpec, Rate, RunSpec, Synthetic, TaskSpec

MOST_CHARACTERS = 40  # of a changed value in titles
SHOWN_ELSEWHERE = ("temperature", "ignore_eos", "seed", "repeats")  # settings that every table names
NOT_DECODING = ("chat", "on_overflow")  # options that change a task


@dataclass(frozen=True)
class ResolvedPair:
    """A pair with the sources of the models and heads that its methods need, on one device."""

    name: str
    pair: Pair
    base: Path  # what the pair's local folders are relative to
    device: torch.device
    models: Mapping[str, ResolvedModel]
    heads: Mapping[str, ResolvedHead]


def run_spec(
    group: Sequence[ResolvedMethod], resolved: ResolvedPair, selected: SelectedTask, options: Options
) -> RunSpec:
    """Return the spec of one group of methods on one task. Raises ConfigError for an acceptance rate that cannot be met."""
    simulated = resolved.pair.simulated
    return RunSpec(
        pair=pair_spec(group, resolved, selected.name, options),
        task=task_spec(selected.name, selected.task, selected.data),
        methods={method.label: method.spec for method in group},
        baseline=group[0].label,
        clock="end to end" if any(method.clock == "end to end" for method in group) else "decoding",
        decoding=DecodingSpec(
            **{
                **{field.name: getattr(options, field.name) for field in fields(DecodingSpec)},
                "temperature": group[0].temperature,
                "max_new_tokens": selected.task.max_new_tokens,
                "ignore_eos": options.ignore_eos or bool(simulated),  # simulated outputs have no meaningful EOS
            }
        ),
        device=str(resolved.device),
        plugins=dict(options.plugins),
        changes=changes_of(group, resolved.name, selected.name, options),
    )


def changes_of(group: Sequence[ResolvedMethod], pair: str, task: str, options: Options) -> tuple[str, ...]:
    """Return the options that change presets of a run, in the words of the command line."""
    names = [("pair", pair), ("task", task), *(("method", method.preset) for method in group)]
    applied = [override for kind, name in names for override in options.overrides_for(kind, name)]
    drafting = [method for method in group if method.baseline and method.has_draft_length]
    lengths = {method.preset: options.gamma_for(method.preset) for method in drafting}
    heads = options.heads_for(pair)
    settings = [field.name for field in fields(DecodingSpec) if field.name not in SHOWN_ELSEWHERE]
    changes = options.changes()
    return (
        *dict.fromkeys(f"{override.key} = {_shortened(override.value)}" for override in applied),
        *(f"{name.replace('_', '-')} = {changes[name]}" for name in (*settings, *NOT_DECODING) if name in changes),
        *(f"gamma of {name} = {','.join(map(str, length))}" for name, length in lengths.items() if length),
        *(f"head {name} = {_shortened(path)}" for name, path in heads),
    )


def _shortened(value: object) -> str:
    """Return a value as text, of a long one its end."""
    text = str(value)
    return text if len(text) <= MOST_CHARACTERS else f"…{text[1 - MOST_CHARACTERS :]}"


def pair_spec(group: Sequence[ResolvedMethod], resolved: ResolvedPair, task: str, options: Options) -> PairSpec:
    """Return the models and heads that a group of methods needs."""
    needed = {role for method in group for role in method.method.roles()}
    heads = {name for method in group for name in method.method.heads}
    models = {role: model.source for role, model in resolved.models.items() if role in needed}
    return PairSpec(
        name=resolved.name,
        models=models,
        heads={name: head.source for name, head in resolved.heads.items() if name in heads},
        simulated=resolved.pair.simulated,
        synthetic=_synthetic(group, tuple(models), resolved.pair, task, options)
        if resolved.pair.logits != "real"
        else None,
    )


def task_spec(name: str, task: Task, data: Data) -> TaskSpec:
    """Return a task with its samples."""
    return TaskSpec(
        name=name,
        version=task.version,
        continues=task.continues,
        options=_options(task),
        data=DataSpec(
            source=data.source,
            revision=data.revision or "",
            sha256=data.sha256,
            prompts_sha256=data.prompts_sha256,
            samples=len(data.samples),
            later_turns=sum(bool(sample.after) for sample in data.samples),
            total=data.total,
            shard=str(data.shard) if data.shard else None,
            drawn=data.is_random_sample or None,
            left_out=dict(data.left_out) or None,
        ),
    )


def _options(task: Task) -> Table:
    """Return the keys of a task, without its description and without keys of `omitted` that have their default."""
    defaults = {field.name: field.default for field in fields(task)}
    unset = {key for key in task.omitted if getattr(task, key) == defaults[key]}
    unset |= set() if task.template else {"template"}
    return {key: value for key, value in to_table(task).items() if key not in {"description", *unset}}


def _synthetic(
    group: Sequence[ResolvedMethod], roles: tuple[str, ...], pair: Pair, task: str, options: Options
) -> Synthetic:
    """Return the acceptance rates requested for the models that draft, and the spreads that produce them."""
    for method in group:
        if method.method.heads:
            raise ConfigError(f"{method.label} uses a trained head, which cannot be combined with synthetic logits")
    drafting = {}
    for method in group:
        tests = [test for test in method.method.verifications() if test.proposer in roles]  # prompt lookup is no model
        if tests:
            drafting[method.label] = tests
    sampler = Sampler(group[0].temperature, options.top_k, options.top_p)
    if acceptance := pair.acceptance_by_model:
        return _by_model(acceptance, drafting, roles, sampler)
    return _with_one_rate(pair, task, drafting, roles, sampler)


def _with_one_rate(
    pair: Pair, task: str, drafting: Mapping[str, Sequence[Verification]], roles: Sequence[str], sampler: Sampler
) -> Synthetic:
    """Return one spread for all models, with which the first method that drafts has the rate of the pair on the task."""
    if not drafting:
        return Synthetic(spreads=dict.fromkeys(roles, 1.0))
    method, (test, *_) = next(iter(drafting.items()))
    if isinstance(pair.acceptance, str):
        rate = _measured_rate(Path(pair.acceptance), test.proposer)
    else:
        rate = pair.acceptance_on(task.partition(":")[0])
    spread = calibrate(rate, test, lambda spread: dict.fromkeys(roles, spread), sampler)
    rates = {test.proposer: Rate(acceptance=rate, method=method, scorers=test.scorers)}
    return Synthetic(spreads=dict.fromkeys(roles, spread), rates=rates)


def _by_model(
    acceptance: Mapping[str, float],
    drafting: Mapping[str, Sequence[Verification]],
    roles: Sequence[str],
    sampler: Sampler,
) -> Synthetic:
    """Return a spread for each model that has a rate, and 0 for the others.

    A rate applies where its model drafts in the method that contains most models with a rate.
    """
    covering = sorted(drafting, key=lambda label: -sum(test.proposer in acceptance for test in drafting[label]))
    spreads, rates = dict.fromkeys(roles, 0.0), {}
    for label in covering:
        for test in drafting[label]:  # outermost first, so that the spreads of the scorers are known
            if test.proposer in acceptance and test.proposer not in rates:
                rate = acceptance[test.proposer]
                spreads[test.proposer] = calibrate(rate, test, _with_spread(spreads, test.proposer), sampler)
                rates[test.proposer] = Rate(acceptance=rate, method=label, scorers=test.scorers)
    return Synthetic(spreads=spreads, rates=rates)


def unused_rates(pair: Pair, specs: Iterable[RunSpec]) -> str:
    """Return a note on the models that have an acceptance rate and never draft in these runs; empty if all of them draft."""
    if pair.logits == "real":
        return ""
    drafting_roles = {role for spec in specs if spec.pair.synthetic for role in spec.pair.synthetic.rates}
    unused = ", ".join(role for role in pair.acceptance_by_model if role not in drafting_roles)
    return f"acceptance of {unused} has no effect: no method of this run drafts with it" if unused else ""


def _with_spread(spreads: Mapping[str, float], role: str) -> Callable[[float], dict[str, float]]:
    """Return a function from one model's spread to the spreads of all models. The others are fixed."""
    fixed = dict(spreads)
    return lambda spread: {**fixed, role: spread}


def _measured_rate(folder: Path, proposer: str) -> float:
    """Return the share of tested draft tokens that a run accepted, or that the profile in a file accepts.

    Raises ConfigError for a run in which the model did not draft, and for a file that is no profile.
    """
    if folder.is_file():
        return speculation_profile.read(read_text(folder), str(folder)).acceptance_rate
    tested = accepted = 0
    for record in read(folder) if (folder / SAMPLES).exists() else ():
        for round_ in record.rounds:
            tested += round_.proposers.count(proposer)
            accepted += round_.proposers[: round_.accepted].count(proposer)
    if not tested:
        raise ConfigError(f"acceptance = {str(folder)!r}: no run there in which '{proposer}' drafted")
    return accepted / tested
