"""Whole generations on a GPU: the parts `transformers` and `ensemble` of `make gpu-bench`.

The first compares specbench with transformers, the second Speculative Ensemble with the sequential ensemble at given
acceptance rates. Methods alternate by generation.
"""

import time
from typing import Any, NamedTuple

from scripts.gpu.common import decode, generator, record, say, synchronise
from scripts.gpu.gpu_figures import Figure, Settings, dummy_pair, figure, named
from specbench.analysis.acceptance import acceptance_by_model, acceptance_rate, accepted_length
from specbench.analysis.costs import cost_of, forward_costs, run_sizes
from specbench.analysis.forwards import outside_forwards
from specbench.analysis.method_records import seconds
from specbench.analysis.speed import speedup
from specbench.decoding.loop import GenerationLimits
from specbench.decoding.method import Method
from specbench.decoding.sampling import Sampler
from specbench.decoding.targets import Last, Mixture
from specbench.methods.autoregressive import Autoregressive
from specbench.methods.hugging_face import Assisted, Generate
from specbench.methods.proposers import DraftModel
from specbench.methods.speculative import Speculative
from specbench.methods.speculative_ensemble import SpeculativeEnsemble
from specbench.methods.theories.ensemble_theory import speculative_ensemble
from specbench.models.loaded_pair import LoadedPair
from specbench.models.simulated import calibrate
from specbench.runs.record import Record

GAMMA = 5  # draft length of speculative decoding, in both
ACCEPTANCE = 0.8  # set with synthetic logits; random weights have a much lower one
NO_SLOWER = 1.0  # goal: speed relative to transformers
TABLE_2 = {"humaneval": 1.58, "gsm8k": 1.52, "mmlu": 1.41, "cnndm": 1.46}  # SE, Table 2: Llama-Vicuna, WE-SE, T = 1


class Candidate(NamedTuple):
    """A method on a loaded pair, with the name of its rows."""

    name: str
    method: Method
    pair: LoadedPair
    engine: str
    simulated: str


def against_transformers(settings: Settings) -> list[Figure]:
    """Time whole greedy calls of a fixed length, the opening of sessions and prefill included.

    transformers cannot use synthetic logits, so it is compared with specbench on the same dummy weights, whose drafts are
    rarely accepted. The last rows show speculative decoding at a given acceptance rate.
    """
    pair, found, loaded = dummy_pair("llama-2", settings)
    roles = tuple(pair.models)
    loaded.prepare(settings.prompt + settings.tokens, range(1, GAMMA + 2))
    ar = Autoregressive(scorers=("target",), target=Last())
    sd = Speculative(proposer=DraftModel(model="draft", gamma=GAMMA), scorers=("target",), target=Last())
    real = loaded.only(roles)
    synthetic = loaded.only(roles, _spreads(roles, sd, ACCEPTANCE, Sampler(temperature=0.0)))
    ours, theirs = found["target"].engine, "transformers"
    candidates = [
        Candidate("ar", ar, real, ours, "dummy"),
        Candidate("generate", Generate(model="target"), real, theirs, "dummy"),
        Candidate("generate, static cache", Generate(model="target", cache="static"), real, theirs, "dummy"),
        Candidate("sd", sd, real, ours, "dummy"),
        Candidate("assisted", Assisted(draft="draft", model="target", gamma=GAMMA), real, theirs, "dummy"),
        Candidate("ar, synthetic", ar, synthetic, ours, "dummy synthetic"),
        Candidate("sd, synthetic", sd, synthetic, ours, "dummy synthetic"),
    ]
    rows, failed, warm_ups = _called(candidates, settings)
    models, out = " and ".join(map(named(pair, settings), roles)), []
    for each in candidates:
        same: dict[str, Any] = {"models": models, "engine": each.engine, "simulated": each.simulated}
        if each.name in failed or not rows[each.name]:
            why = {"error": failed.get(each.name, "no time was left")}
            out.append(Figure(what=f"{each.name}, per token", value=None, unit="ms", beside=why, **same))
            continue
        beside: dict[str, Any] = {"first call s": warm_ups[each.name]}
        if (rate := acceptance_rate(rows[each.name])) is not None:
            beside |= {"acceptance": rate, "mean acceptance length": accepted_length(rows[each.name])}
        values = [1e3 * seconds(row) / len(row.tokens) for row in rows[each.name]]
        out.append(figure(values, what=f"{each.name}, per token", unit="ms", beside=beside, **same))
    for one, other, least in [
        ("ar", "generate", NO_SLOWER),
        ("ar", "generate, static cache", NO_SLOWER),
        ("sd", "assisted", NO_SLOWER),
        ("sd, synthetic", "ar, synthetic", None),
    ]:
        if rows[one] and rows[other]:
            ratio, simulated = (
                speedup(rows[one], rows[other]),
                next(a.simulated for a in candidates if a.name == one),
            )
            out.append(
                Figure(what=f"{one} over {other}", models=models, engine=ours, simulated=simulated,
                       value=ratio.value, unit="x",
                       low=ratio.low, high=ratio.high, least=None if settings.small else least)
            )  # fmt: skip
    return out


def _called(
    candidates: list[Candidate], settings: Settings
) -> tuple[dict[str, list[Record]], dict[str, str], dict[str, float]]:
    """Return records with the seconds of whole calls, errors of failed methods, and the seconds of first calls, by name."""
    rows, failed, warm_ups = {each.name: list[Record]() for each in candidates}, dict[str, str](), dict[str, float]()
    end = time.perf_counter() + settings.seconds
    for each in candidates:
        say(f"{each.name}: first calls")
        try:
            warm_ups[each.name] = _call(each, settings, 0, -1)[1]
            each.pair.prepare(1)  # capture the drafts that the first call requested
            _call(each, settings, 0, -1)
        except Exception as error:  # a failure is a row of the table
            failed[each.name] = f"{type(error).__name__}: {' '.join(str(error).split())[:80]}"
    for repeat in range(settings.repeats):
        for i in range(settings.prompts):
            for each in candidates[i % len(candidates) :] + candidates[: i % len(candidates)]:
                if each.name not in failed and time.perf_counter() < end:
                    row, seconds = _call(each, settings, i, repeat)
                    row.decode_seconds, row.prefill_seconds = seconds, 0.0
                    rows[each.name].append(row)
        for each in candidates:
            each.pair.prepare(1)  # capture the drafts that other prompts requested
        say(f"repeat {repeat + 1} of {settings.repeats}")
    return rows, failed, warm_ups


def _call(each: Candidate, settings: Settings, prompt: int, repeat: int) -> tuple[Record, float]:
    """Decode one prompt. Returns its record and the seconds of the whole call, without the seconds of synthetic logits."""
    ids = settings.ids(each.pair.vocabulary, prompt)
    synchronise(settings.device)
    begin = time.perf_counter()
    models = each.pair.open(ids)
    out = decode(each.method, models, Sampler(temperature=0.0), GenerationLimits(frozenset(), settings.tokens))
    synchronise(settings.device)
    seconds = time.perf_counter() - begin - sum(session.usage.excluded_seconds for session in models.sessions.values())
    return record(each.name, prompt, repeat, models, out, each.simulated), seconds


def ensemble(settings: Settings) -> list[Figure]:
    """Time `we` and `we-se` with draft lengths of 1 on the shapes of llama-vicuna, T = 1, at each acceptance rate."""
    pair, found, loaded = dummy_pair("llama-vicuna", settings, "synthetic")
    roles = pair.ensemble
    loaded.prepare(settings.prompt + settings.tokens, range(1, 2 + len(roles)))
    methods: dict[str, Method] = {
        "we": Autoregressive(scorers=roles, target=Mixture()),
        "we-se": SpeculativeEnsemble(models=roles, gamma=(1,) * len(roles), target=Mixture()),
    }
    rates = {f"{rate:g}": rate for rate in settings.rates}
    if isinstance(pair.acceptance, dict):
        rates |= pair.acceptance  # by task
    models, out = " and ".join(map(named(pair, settings), roles)), []
    same: dict[str, Any] = {"models": models, "engine": found[roles[0]].engine, "simulated": "dummy synthetic"}
    end = time.perf_counter() + settings.seconds
    for name, rate in rates.items():
        if time.perf_counter() > end:
            out.append(
                Figure(what=f"we-se over we at {name}", value=None, unit="x", beside={"error": "no time"}, **same)
            )
            continue
        say(f"acceptance {name}")
        rows = _sampled(methods, loaded.only(roles, _spreads(roles, methods["we-se"], rate, Sampler())), settings)
        at = f"at {name}" + ("" if name == f"{rate:g}" else f" ({rate:g})")
        for method, side in rows.items():
            values = [1e3 * seconds(row) / (len(row.tokens) - 1) for row in side]
            out.append(figure(values, what=f"{method} {at}, per token", unit="ms", **same))
            # A negative share would mean that the clock missed some time of the models.
            share = outside_forwards(side)
            out.append(Figure(what=f"{method} {at}, outside forwards", value=share, unit="", least=0.0, **same))
        out.append(_speedup(rows["we-se"], rows["we"], roles, f"we-se over we {at}", TABLE_2.get(name), same))
    return out


def _spreads(roles: tuple[str, ...], method: Method, acceptance: float, sampler: Sampler) -> dict[str, float]:
    """Return one spread for all models, at which the method accepts drafts at this rate."""
    (test,) = method.verifications()
    return dict.fromkeys(roles, calibrate(acceptance, test, lambda spread: dict.fromkeys(roles, spread), sampler))


def _sampled(methods: dict[str, Method], pair: LoadedPair, settings: Settings) -> dict[str, list[Record]]:
    """Decode every prompt with both methods, alternating. Returns records with decoding seconds by method."""
    rows, names, limits = (
        {name: list[Record]() for name in methods},
        list(methods),
        GenerationLimits(frozenset(), settings.tokens),
    )
    for repeat in range(-1, settings.repeats):  # the first is a warm-up
        for i in range(settings.prompts if repeat >= 0 else 1):
            for name in names[i % 2 :] + names[: i % 2]:
                models = pair.open(settings.ids(pair.vocabulary, i))
                chance = generator(settings.device, 1000 * (repeat + 1) + i)
                out = decode(methods[name], models, Sampler(generator=chance), limits)
                if repeat >= 0:
                    rows[name].append(record(name, i, repeat, models, out, "dummy synthetic"))
        pair.prepare(1)  # capture the drafts that the warm-up requested
        say(f"repeat {repeat + 1} of {settings.repeats}")
    return rows


def _speedup(
    rows: list[Record], base: list[Record], roles: tuple[str, ...], what: str, paper: float | None, same: dict[str, Any]
) -> Figure:
    """Return the speedup, and its predictions with the paper's block cost and with the measured one."""
    overall, by_model = acceptance_rate(rows), acceptance_by_model(rows)
    assert overall is not None
    found = {role: forward_costs(run_sizes(rows, base, role)) for role in roles}
    costs = {role: each for role, each in found.items() if each}
    a = [by_model.get(role, overall) for role in roles]
    counts, in_turn = speculative_ensemble(a, (1,) * len(roles)), sum(costs[role].of(1) for role in roles)
    predicted = counts.speedup(cost_of(roles, costs, as_in_papers=True), in_turn)
    corrected = counts.speedup(cost_of(roles, costs), in_turn)
    ratio = speedup(rows, base)
    beside = {"acceptance": overall, "theory": predicted, "corrected": corrected}
    beside |= {"SE, Table 2": paper} if paper else {}
    return Figure(what=what, value=ratio.value, unit="x", low=ratio.low, high=ratio.high, beside=beside, **same)
