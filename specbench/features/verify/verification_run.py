"""Verification of a method on a pair: loads models and prompts, runs the checks, and combines them in a verdict."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from specbench.config.construct import Table
from specbench.config.options import Options
from specbench.config.pair import Pair
from specbench.config.presets import preset, require_presets
from specbench.config.request import Request
from specbench.data.prompting import encode_firsts
from specbench.decoding.method import Method
from specbench.errors import ConfigError, MissingAsset
from specbench.features.exactness.exactness_verdict import ExactnessResult, verdict_on
from specbench.features.exactness.martingales import SIGNIFICANCE
from specbench.features.exactness.outcome import Outcome
from specbench.features.verify import CUTS
from specbench.features.verify.case import Case, Decoding
from specbench.features.verify.enumerated import Enumeration, enumerated
from specbench.features.verify.method_evidence import evidence_of
from specbench.files import in_one_line
from specbench.machine.threads import using
from specbench.methods.speculative import Speculative
from specbench.models.heads.resolve_heads import resolve_heads
from specbench.models.loaded_pair import LoadedPair
from specbench.models.loader import load
from specbench.models.resolve_models import Execution, device_of, resolve_models
from specbench.models.resolved_model import ResolvedModel
from specbench.observer import Observer
from specbench.resolution import selection
from specbench.resolution.methods import ResolvedMethod
from specbench.resolution.resolve import Choice, sizes_of

TEMPERATURE = 2.0  # small models are confident, and near-deterministic distributions are hard to distinguish
VERIFICATION_KIND = "verification"
TASK = "gsm8k"  # for a pair that does not name a suitable one


@dataclass(frozen=True, kw_only=True)
class Verification(ExactnessResult):
    """The verdict on a method, and where it was verified.

    Args:
        lossless: Whether its outputs follow its baseline's distribution.
        options: The method's options.
        pair: The pair.
        tasks: The tasks whose prompts were decoded.
        device: The device.
        dtype: The dtypes of the models.
        engine: The engines of the models.
        temperature: The temperature of the sampled checks; 0 without.
        seed: The seed.
    """

    kind: str = VERIFICATION_KIND
    lossless: bool = False
    options: Table = field(default_factory=dict)
    pair: str = ""
    tasks: tuple[str, ...] = ()
    device: str = ""
    dtype: str = ""
    engine: str = ""
    temperature: float = 0.0
    seed: int = 0

    def __repr__(self) -> str:
        where = f"{self.pair}, {', '.join(self.tasks)}, {self.device} {self.dtype}, T = {self.temperature:g}"
        return f"<Verification of {self.subject} on {where}: {self.line}>"


def verify(
    case: Case,
    name: str,
    baseline: Method,
    advance: Callable[[], None] = lambda: None,
    enumeration: Enumeration | None = None,
) -> Verification:
    """Check a method against the distribution that it must declare.

    The greedy checks are made at any temperature, the sampled checks if the case's temperature is above 0. A method that
    passes is lossless if `baseline` declares the same distribution, and if its enumeration or the power of the sampled checks
    supports that. `advance` is called once per output, `output_count` times in total.
    """
    evidence = evidence_of(case, name, baseline, advance, enumeration)
    outcome, line = verdict_on(evidence)
    return Verification(
        outcome=outcome,
        line=line,
        subject=name,
        reference=evidence.reference,
        checks=evidence.checks,
        power=evidence.power,
        missed=evidence.power.missed if evidence.power else (),
        tests=evidence.tests,
        significance_level=SIGNIFICANCE / max(evidence.tests, 1),
        lossless=outcome is Outcome.exact and evidence.is_lossless,
    )


def output_count(case: Case) -> int:
    """Return how many outputs a verdict needs, including the controls'."""
    return len(case.prompts) * (2 + (2 * case.cuts if case.temperature else 0))


def undeclared(method: Method, name: str) -> Verification:
    """Return the verdict on a method that declares no distribution."""
    why = ""
    if getattr(method, "bonus", "") == "paper":
        why = ": its bonus token is the target's, untested, which biases the output (bonus = 'deferred' does not)"
    elif inexact := next((test.rejection.name for test in method.verifications() if not test.rejection.exact), ""):
        why = f": tokens that the rule '{inexact}' accepts do not follow the scorers"
    elif isinstance(method, Speculative) and not method.proposer.exact:
        why = ": whether a drafted token is tested depends on the tokens drafted after it"
    elif reason := method.undefined_at(1.0):
        why = f": {reason}"
    line = f"{Outcome.undeclared.words}: {name} declares no distribution that its output follows{why}"
    return Verification(outcome=Outcome.undeclared, line=line, subject=name)


@dataclass(frozen=True, kw_only=True)
class VerifyRequest:
    """A method to verify on a pair, with prompts from tasks. `cuts` outputs are sampled per prompt."""

    method: str
    pair: str = "tiny"
    tasks: tuple[str, ...] = ()
    options: Options
    cuts: int = CUTS


def verify_method(request: VerifyRequest, observer: Observer | None = None) -> Verification:
    """Compare what a method decodes with the distribution that it declares, computed by transformers' own modules.

    Raises ConfigError for a mistake in the request, MissingAsset if a model or data are missing.
    """
    with using(request.options.threads):
        return _verification(request, observer or Observer())


def _verification(request: VerifyRequest, observer: Observer) -> Verification:
    choice = _choice(request)
    options, name, pair = choice.request.options, choice.preset.name, choice.pair
    on = Execution(device_of(options.device), options.dtype, options.engine)
    models = choice.resolved_models(pair, on)
    group = choice.methods.groups(sizes_of(models))[0]
    resolved, baseline = group[-1], group[0].method
    needed = {role: model for role, model in models.items() if role in resolved.method.roles()}
    tasks: tuple[str, ...] = ()
    if resolved.method.declared_distribution() is None:
        found = undeclared(resolved.method, resolved.label)
    else:
        with observer.status(f"enumerate {resolved.label}"):
            enumeration = _enumeration(request.method, pair, options, resolved)
        # data are read first, since models take long to load
        chosen = selection.select_tasks(request.tasks or (() if pair.defaults.tasks else (TASK,)), pair, options)
        tasks = tuple(task.name for task in chosen)
        decided_by = baseline if set(baseline.deciding) <= set(needed) else resolved.method
        with observer.status(f"loading {', '.join(needed)}, twice"):
            loaded, reference = _load_twice(choice, needed, on, resolved.method, decided_by)
        decoding = Decoding(options.max_new_tokens or 1, options.seed)
        case = Case(
            resolved.method, loaded, reference, _coarsest(needed.values()), _prompts(chosen, loaded, options), decoding,
            options.temperature or 0.0, request.cuts,
        )  # fmt: skip
        loaded.prepare(max(map(len, case.prompts)) + decoding.new, resolved.method.blocks)
        found = _verdict(case, resolved, baseline, observer, enumeration)
    return replace(
        found,
        options=resolved.spec.options,
        pair=name,
        tasks=tasks,
        device=str(on.device),
        dtype=", ".join(dict.fromkeys(model.dtype for model in needed.values())),
        engine=", ".join(dict.fromkeys(model.engine for model in needed.values())),
        temperature=options.temperature or 0.0,
        seed=options.seed,
    )


def _choice(request: VerifyRequest) -> Choice:
    """Return the presets of a request, with a default temperature.

    Raises ConfigError for an option that nothing reads, and for a pair with synthetic logits.
    """
    options = request.options
    if options.temperature is None:
        options = replace(options, temperature=0.0 if _is_greedy(request.method) else TEMPERATURE)
    require_presets([request.method], request.pair, request.tasks)  # a single method, not the word `all`
    methods, tasks = (request.method,), tuple(request.tasks)
    choice = Choice.of(Request(methods=methods, pair=request.pair, tasks=tasks, options=options, out=Path()))
    choice.require_used_options()
    if choice.pair.logits != "real":
        name = choice.preset.name
        raise ConfigError(f"pair {name}: synthetic logits are not the models'; verify with pair.logits = 'real'")
    return choice


def _load_twice(
    choice: Choice, models: Mapping[str, ResolvedModel], on: Execution, method: Method, decided_by: Method
) -> tuple[LoadedPair, LoadedPair]:
    """Return the models as the method runs them, with its heads, and as modules of transformers."""
    pair, base, roles = choice.pair, choice.preset.path.parent, tuple(models)
    loaded = load(models, base, on.device, resolve_heads(pair, method.heads, base))
    eager = resolve_models(pair, roles, base, replace(on, engine="eager"))
    reference = load(eager, base, on.device)
    tested = loaded.only(roles, decided_by=decided_by)
    tested.require_defined(choice.methods.names[0], method)
    return tested, reference.only(roles, decided_by=decided_by)


def _coarsest(models: Iterable[ResolvedModel]) -> torch.dtype:
    """Return the dtype of the models with the largest rounding error."""
    dtypes: list[torch.dtype] = [getattr(torch, model.dtype) for model in models]
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)


def _enumeration(method: str, pair: Pair, options: Options, resolved: ResolvedMethod) -> Enumeration:
    """Return the enumeration of a method that may need real models. Raises ConfigError and MissingAsset."""
    try:
        found = enumerated(method, pair, options)
    except (ConfigError, MissingAsset):
        raise
    except Exception as error:  # of any type, from a plugin
        return Enumeration(subject=resolved.label, error=f"{type(error).__name__}: {in_one_line(error)}")
    return replace(found, depth=max(found.depth, resolved.method.depth))


def _verdict(
    case: Case, resolved: ResolvedMethod, baseline: Method, observer: Observer, enumeration: Enumeration | None
) -> Verification:
    """Run the checks of a case. Raises ConfigError for prompts that cannot be decoded."""
    with observer.progress(f"verify {resolved.label}", output_count(case)) as advance:
        try:
            return verify(case, resolved.label, baseline, advance, enumeration)
        except ValueError as error:  # a prompt that does not fit, or a token that a model lacks
            raise ConfigError(f"{resolved.label} cannot decode: {error}") from None


def _is_greedy(method: str) -> bool:
    """Return whether a method is defined at T = 0 only."""
    cls = Method.members.get(preset("method", method).table.get("name", ""))
    return cls is not None and bool(cls.undefined_at(1.0))


def _prompts(chosen: Sequence[selection.SelectedTask], loaded: LoadedPair, options: Options) -> list[list[int]]:
    """Return the first prompts of each task as token ids. Raises ConfigError if prompts do not fit."""
    rows = [
        (task, task.data.samples[i]) for i in range(options.limit or 1) for task in chosen if i < len(task.data.samples)
    ]
    firsts = [(task, sample) for task, sample in rows if not sample.after][: options.limit]
    if not firsts:
        raise ConfigError(f"{', '.join(task.name for task in chosen)}: no prompt")
    encoded = {
        task.name: iter(
            encode_firsts(
                loaded.tokenizer,
                task.task,
                [row for of, row in firsts if of is task],
                loaded.window,
                loaded.encoder_decoder,
            )
        )
        for task in chosen
    }
    return [next(encoded[task.name]) for task, _ in firsts]
