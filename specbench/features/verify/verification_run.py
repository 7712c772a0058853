"""Verification of a method on a pair: loads models and prompts, runs the checks, and combines them in a verdict."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from specbench.config.options import Options
from specbench.config.pair import Pair
from specbench.config.presets import preset, require_presets
from specbench.config.request import Request
from specbench.data.prompting import encode_firsts
from specbench.decoding.method import Method
from specbench.errors import ConfigError, MissingAsset
from specbench.features.exactness.outcome import Outcome
from specbench.features.exactness.power import Power
from specbench.features.verify import CUTS
from specbench.features.verify.case import Case, CheckKind, CheckResult, Decoding
from specbench.features.verify.enumerated import Enumeration, enumerated
from specbench.features.verify.greedy import greedy
from specbench.features.verify.sampled import sampled
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
from specbench.resolution.methods import ResolvedMethod, is_lossless
from specbench.resolution.resolve import Choice, sizes_of
from specbench.runs.run_spec import MethodSpec

TEMPERATURE = 2.0  # small models are confident, and near-deterministic distributions are hard to distinguish
TASK = "gsm8k"  # for a pair that does not name a suitable one


@dataclass(frozen=True)
class Verdict:
    """The outcome, a one-line explanation, and what led to it.

    Args:
        outcome: The outcome.
        line: The explanation.
        checks: The checks.
        power: What the sampled checks would have missed; None without sampled checks.
        is_lossless: Whether an exact method's distribution is its baseline's.
    """

    outcome: Outcome
    line: str
    checks: list[CheckResult]
    power: Power | None = None
    is_lossless: bool = False


def verify(
    case: Case,
    name: str,
    baseline: Method,
    advance: Callable[[], None] = lambda: None,
    enumeration: Enumeration | None = None,
) -> Verdict:
    """Check a method against the distribution that it must declare.

    The greedy checks are made at any temperature, the sampled checks if the case's temperature is above 0. A method that
    passes is lossless if `baseline` declares the same distribution, and if its enumeration or the power of the sampled checks
    supports that. `advance` is called once per output, `output_count` times in total.
    """
    checks, power = greedy(case, advance), None
    if case.temperature:
        more, power = sampled(case, advance)
        checks += more
    greedy_tokens = checks[0]
    if enumeration is not None:
        checks.append(_enumeration_check(enumeration))
    declared = _declared(case)
    failed = [check for check in checks if check.passed is False and check.kind is not CheckKind.control]
    if failed:
        line = _fault(case, name, declared, greedy_tokens, failed)
        return Verdict(Outcome.differs, line, checks, power)
    if any(check.passed is False for check in checks):
        line = f"inconclusive: {name} passed, but the control was not rejected; help: larger -n, --repeats or --temperature"
        return Verdict(Outcome.inconclusive, line, checks, power)
    is_same = is_lossless(case.method, baseline, case.temperature)
    how = f"greedy and at T = {case.temperature:g}" if case.temperature else "greedy; not sampled"
    missed = f" (would have missed {'; '.join(power.missed)})" if power and power.missed else ""
    is_enumerated = enumeration is not None and enumeration.is_exact
    if not (is_enumerated or (power and power.meets_limits)):
        lossy = "" if is_same else ", which is lossy"
        why = f"; {enumeration.undecided}" if enumeration and enumeration.undecided else ""
        line = f"no departure found: {name} against {declared}{lossy}, {how}{missed}{why}{_help(case, power)}"
        return Verdict(Outcome.unfound, line, checks, power)
    beyond = (
        f" up to drafts of {enumeration.longest}" if enumeration and enumeration.longest < enumeration.depth else ""
    )
    shown = f"enumerated exactly{beyond}, and " if is_enumerated else ""
    if is_same:
        line = f"lossless: {name} follows {declared}: {shown}no departure found on this pair, {how}{missed}"
        return Verdict(Outcome.exact, line, checks, power, is_lossless=True)
    follows = f"follows its declared distribution, which is lossy: {name}, {declared}"
    line = f"exact: {follows}: {shown}no departure found, {how}{missed}"
    return Verdict(Outcome.exact, line, checks, power)


def _declared(case: Case) -> str:
    """Return the declared distribution in words."""
    scorers, target = case.declared
    name_of_rule = "" if target.name == "last" else f"'{target.name}' "
    return f"the distribution {name_of_rule}of {' and '.join(scorers if name_of_rule else scorers[-1:])}"


def _fault(case: Case, name: str, declared: str, greedy_tokens: CheckResult, failed: Sequence[CheckResult]) -> str:
    """Return what is wrong, in one line."""
    numbers = greedy_tokens.numbers
    if greedy_tokens.passed is False and numbers["equal"] == numbers["outputs"]:
        return (
            f"NOT as Transformers: {name} decodes as the autoregressive method does, but the engine's logits differ from"
            " those of Transformers' modules"
        )
    kinds, names = {check.kind for check in failed}, ", ".join(check.name for check in failed)
    if CheckKind.tokens in kinds:
        if case.method != case.plain and greedy(replace(case, method=case.plain), lambda: None)[0].passed is False:
            return (
                "NOT as Transformers: the autoregressive method itself departs from the logits of Transformers' modules, so"
                f" nothing follows about {name}"
            )
        return f"NOT lossless: {name} departs from {declared}: {names}"
    if CheckKind.enumeration in kinds:
        return f"NOT lossless: {name} departs from {declared} on lookup tables: {names}; help: specbench enumerate"
    return (
        f"NOT as expected: no departure of {name} from {declared} was found, but its drafts are not accepted as often as they"
        " should be; help: specbench enumerate"
    )


def _enumeration_check(found: Enumeration) -> CheckResult:
    """Return the check of the exact distribution on lookup tables."""
    largest = max((each.distance for each in found.findings.values()), default=0.0)
    passed = False if found.differs else None if found.undecided else True
    words = found.undecided or "; ".join(filter(None, ["whole outputs of lookup tables", found.scope]))
    numbers = {
        "distance": largest, "longest_draft": found.longest, "depth": found.depth,
        "settings": {name: each.distance for name, each in found.findings.items()},
    }  # fmt: skip
    return CheckResult(
        CheckKind.enumeration,
        "enumeration",
        words,
        f"distance {largest:.1e}" if found.findings else "",
        passed,
        numbers,
    )


MOST_TIMES = 100.0  # of the outputs of a verification; more are no help


def _help(case: Case, power: Power | None) -> str:
    """Return how to reach a stronger verdict, in words; empty if no number of outputs in reach would."""
    if power is None:
        return "; help: --temperature 1"
    if power.times is None or not 1.0 < power.times <= MOST_TIMES:
        return ""
    return f"; help: --repeats {math.ceil(case.cuts * power.times)} would find departures above the limits"


def output_count(case: Case) -> int:
    """Return how many outputs a verdict needs, including the controls'."""
    return len(case.prompts) * (2 + (2 * case.cuts if case.temperature else 0))


def undeclared(method: Method, name: str) -> Verdict:
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
    return Verdict(
        Outcome.undeclared, f"cannot be verified: {name} declares no distribution that its output follows{why}", []
    )


@dataclass(frozen=True, kw_only=True)
class VerifyRequest:
    """A method to verify on a pair, with prompts from tasks. `cuts` outputs are sampled per prompt."""

    method: str
    pair: str = "tiny"
    tasks: tuple[str, ...] = ()
    options: Options
    cuts: int = CUTS


@dataclass(frozen=True)
class Verification:
    """What was verified, where, and the verdict."""

    method: str
    spec: MethodSpec
    pair: str
    tasks: tuple[str, ...]
    device: str
    dtype: str
    engine: str
    temperature: float
    seed: int
    verdict: Verdict

    def __repr__(self) -> str:
        where = f"{self.pair}, {', '.join(self.tasks)}, {self.device} {self.dtype}, T = {self.temperature:g}"
        return f"<Verification of {self.method} on {where}: {self.verdict.line}>"


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
        verdict = undeclared(resolved.method, resolved.label)
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
        verdict = _verdict(case, resolved, baseline, observer, enumeration)
    return Verification(
        method=resolved.label,
        spec=resolved.spec,
        pair=name,
        tasks=tasks,
        device=str(on.device),
        dtype=", ".join(dict.fromkeys(model.dtype for model in needed.values())),
        engine=", ".join(dict.fromkeys(model.engine for model in needed.values())),
        temperature=options.temperature or 0.0,
        seed=options.seed,
        verdict=verdict,
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
        return Enumeration(label=resolved.label, error=f"{type(error).__name__}: {in_one_line(error)}")
    return replace(found, depth=max(found.depth, resolved.method.depth))


def _verdict(
    case: Case, resolved: ResolvedMethod, baseline: Method, observer: Observer, enumeration: Enumeration | None
) -> Verdict:
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
