"""`make gpu-bench --part peers` and `--part ensemble`: whole generations on this GPU, methods in turns.

Against transformers' own decoding, and Speculative Ensemble against the standard ensemble at given acceptance rates.
"""

import time
from typing import Any, NamedTuple

from scripts.gpu.common import generator, record, say, synchronise
from scripts.gpu.forward import Figure, Settings, dummy_pair, figure, named
from specbench.analysis import metrics, theory
from specbench.decoding.loop import Limits, decode
from specbench.decoding.method import Method
from specbench.decoding.sampling import Sampler
from specbench.decoding.targets import Last, Mixture
from specbench.methods.autoregressive import Autoregressive
from specbench.methods.hugging_face import Assisted, Generate
from specbench.methods.proposers import DraftModel
from specbench.methods.speculative import Speculative
from specbench.methods.speculative_ensemble import SpeculativeEnsemble
from specbench.models.loader import LoadedPair
from specbench.models.synthetic_logits import calibrate
from specbench.runs.record import Record

GAMMA = 5  # of speculative decoding, ours and theirs
ACCEPTANCE = 0.8  # that our speculative decoding is given, beside what random weights give it
NO_SLOWER = 1.0  # wanted of ours, as multiples of transformers
TABLE_2 = {"humaneval": 1.58, "gsm8k": 1.52, "mmlu": 1.41, "cnndm": 1.46}  # SE, Table 2: Llama-Vicuna, WE-SE, T = 1


class Arm(NamedTuple):
    """A method on a loaded pair, and how its rows are called."""

    name: str
    method: Method
    pair: LoadedPair
    engine: str
    simulated: str


def peers(settings: Settings) -> list[Figure]:
    """Whole calls, opened sessions and prefill included, greedy, at a fixed length, in turns.

    transformers cannot be given synthetic laws, so it is measured with dummy weights, and beside it ours with the same; the
    draft of such a pair is hardly ever right. What speculative decoding gives at a given acceptance stands below.
    """
    pair, found, loaded = dummy_pair("llama-2", settings)
    roles = tuple(pair.models)
    spread = calibrate(ACCEPTANCE, 0, [1], Last(), Sampler(temperature=0.0))
    real, synthetic = loaded.only(roles), loaded.only(roles, spread)
    loaded.prepare(settings.prompt + settings.tokens, GAMMA + 1)
    ar = Autoregressive(scorers=("target",), target=Last())
    sd = Speculative(proposer=DraftModel(model="draft", gamma=GAMMA), scorers=("target",), target=Last())
    ours, theirs = found["target"].engine, "transformers"
    arms = [
        Arm("ar", ar, real, ours, "dummy"),
        Arm("generate", Generate(model="target"), real, theirs, "dummy"),
        Arm("generate, static cache", Generate(model="target", cache="static"), real, theirs, "dummy"),
        Arm("sd", sd, real, ours, "dummy"),
        Arm("assisted", Assisted(draft="draft", model="target", gamma=GAMMA), real, theirs, "dummy"),
        Arm("ar, synthetic", ar, synthetic, ours, "dummy synthetic"),
        Arm("sd, synthetic", sd, synthetic, ours, "dummy synthetic"),
    ]
    rows, failed, warm_ups = _called(arms, settings)
    models, out = " and ".join(map(named(pair, settings), roles)), []
    for arm in arms:
        same: dict[str, Any] = {"models": models, "engine": arm.engine, "simulated": arm.simulated}
        if arm.name in failed or not rows[arm.name]:
            why = {"error": failed.get(arm.name, "no time was left")}
            out.append(Figure(what=f"{arm.name}, a token", value=None, unit="ms", beside=why, **same))
            continue
        beside: dict[str, Any] = {"first call s": warm_ups[arm.name]}
        if (rate := metrics.acceptance_rate(rows[arm.name])) is not None:
            beside |= {"acceptance": rate, "accepted length": metrics.accepted_length(rows[arm.name])}
        values = [1e3 * metrics.seconds(row) / len(row.tokens) for row in rows[arm.name]]
        out.append(figure(values, what=f"{arm.name}, a token", unit="ms", beside=beside, **same))
    for one, other, least in [
        ("ar", "generate", NO_SLOWER),
        ("ar", "generate, static cache", NO_SLOWER),
        ("sd", "assisted", NO_SLOWER),
        ("sd, synthetic", "ar, synthetic", None),
    ]:
        if rows[one] and rows[other]:
            ratio, simulated = metrics.speedup(rows[one], rows[other]), next(a.simulated for a in arms if a.name == one)
            out.append(
                Figure(what=f"{one} over {other}", models=models, engine=ours, simulated=simulated,
                       value=ratio.value, unit="x",
                       low=ratio.low, high=ratio.high, least=None if settings.small else least)
            )  # fmt: skip
    return out


def _called(arms: list[Arm], settings: Settings) -> tuple[dict[str, list[Record]], dict[str, str], dict[str, float]]:
    """Whole-call seconds of every arm, as records; the errors of those that broke; and the seconds of the first call."""
    rows, failed, warm_ups = {arm.name: list[Record]() for arm in arms}, dict[str, str](), dict[str, float]()
    end = time.perf_counter() + settings.seconds
    for arm in arms:
        say(f"{arm.name}: first calls")
        try:
            warm_ups[arm.name] = _call(arm, settings, 0, -1)[1]
            arm.pair.prepare(1)  # the drafts that the first call wanted
            _call(arm, settings, 0, -1)
        except Exception as error:  # a peer's failure is a line of the table
            failed[arm.name] = f"{type(error).__name__}: {' '.join(str(error).split())[:80]}"
    for repeat in range(settings.repeats):
        for i in range(settings.prompts):
            for arm in arms[i % len(arms) :] + arms[: i % len(arms)]:
                if arm.name not in failed and time.perf_counter() < end:
                    row, seconds = _call(arm, settings, i, repeat)
                    row.decode_seconds, row.prefill_seconds = seconds, 0.0
                    rows[arm.name].append(row)
        for arm in arms:
            arm.pair.prepare(1)  # the drafts that other prompts wanted
        say(f"repeat {repeat + 1} of {settings.repeats}")
    return rows, failed, warm_ups


def _call(arm: Arm, settings: Settings, prompt: int, repeat: int) -> tuple[Record, float]:
    """One generation and its whole seconds, but for those that went into synthetic laws."""
    ids = settings.ids(arm.pair.vocabulary, prompt)
    synchronise(settings.device)
    begin = time.perf_counter()
    models = arm.pair.open(ids)
    out = decode(arm.method, models, Sampler(temperature=0.0), Limits(frozenset(), settings.tokens))
    synchronise(settings.device)
    seconds = time.perf_counter() - begin - sum(session.usage.off_clock for session in models.sessions.values())
    return record(arm.name, prompt, repeat, models, out, arm.simulated), seconds


def ensemble(settings: Settings) -> list[Figure]:
    """`we` and `we-se` with draft lengths of 1 on llama-vicuna's shapes, T = 1, at each acceptance rate."""
    pair, found, loaded = dummy_pair("llama-vicuna", settings, "synthetic")
    roles = pair.ensemble
    loaded.prepare(settings.prompt + settings.tokens, 1 + len(roles))
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
        spread = calibrate(rate, 0, list(range(len(roles))), Mixture(), Sampler())
        rows = _sampled(methods, loaded.only(roles, spread), settings)
        at = f"at {name}" + ("" if name == f"{rate:g}" else f" ({rate:g})")
        for method, side in rows.items():
            values = [1e3 * metrics.seconds(row) / (len(row.tokens) - 1) for row in side]
            out.append(figure(values, what=f"{method} {at}, a token", unit="ms", **same))
            # Less decoding time than the models took would mean that the clock lost some of it.
            share = metrics.outside_forwards(side)
            out.append(Figure(what=f"{method} {at}, outside forwards", value=share, unit="", least=0.0, **same))
        out.append(_speedup(rows["we-se"], rows["we"], roles, f"we-se over we {at}", TABLE_2.get(name), same))
    return out


def _sampled(methods: dict[str, Method], pair: LoadedPair, settings: Settings) -> dict[str, list[Record]]:
    """Every prompt by both methods, in turns, on the driver's clock."""
    rows, names, limits = (
        {name: list[Record]() for name in methods},
        list(methods),
        Limits(frozenset(), settings.tokens),
    )
    for repeat in range(-1, settings.repeats):  # the first is a warm-up
        for i in range(settings.prompts if repeat >= 0 else 1):
            for name in names[i % 2 :] + names[: i % 2]:
                models = pair.open(settings.ids(pair.vocabulary, i))
                chance = generator(settings.device, 1000 * (repeat + 1) + i)
                out = decode(methods[name], models, Sampler(generator=chance), limits)
                if repeat >= 0:
                    rows[name].append(record(name, i, repeat, models, out, "dummy synthetic"))
        pair.prepare(1)  # the drafts that the warm-up wanted
        say(f"repeat {repeat + 1} of {settings.repeats}")
    return rows


def _speedup(
    rows: list[Record], base: list[Record], roles: tuple[str, ...], what: str, paper: float | None, same: dict[str, Any]
) -> Figure:
    """The speedup, and beside it the theory's at the measured acceptance: at the papers' prices, and at a block's own."""
    overall, by_model = metrics.acceptance_rate(rows), metrics.acceptance_by_model(rows)
    assert overall is not None
    prices = metrics.forward_seconds(rows)
    single = {
        role: sizes[1] for side in (prices, metrics.forward_seconds(base)) for role, sizes in side.items() if 1 in sizes
    }
    a = [by_model.get(role, overall) for role in roles]
    predicted, corrected = (
        theory.speculative_ensemble(a, (1,) * len(roles), metrics.cost_of(roles, known, single))
        for known in ({}, prices)
    )
    ratio = metrics.speedup(rows, base)
    beside = {"acceptance": overall, "theory": predicted, "corrected": corrected}
    beside |= {"SE's Table 2": paper} if paper else {}
    return Figure(what=what, value=ratio.value, unit="x", low=ratio.low, high=ratio.high, beside=beside, **same)
