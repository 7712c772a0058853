"""`make gpu-check`: is what runs on this GPU right? Exit code 0, or 5 where a check failed.

Logits of every engine against transformers' own, greedy tokens against autoregressive ones, sampled laws against exact ones,
logits that are no numbers, and deliberate mistakes that must be caught. Small random models, float32, nothing downloaded.
With `--device cpu` the same checks run without a GPU, on the static forwards that graphs would record.
"""

import argparse
import math
import random
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from scripts.gpu import common as gpu
from scripts.gpu.common import ENGINES, FAMILIES, SOURCE, VOCABULARY, Small, say
from scripts.gpu.exactness import LAWS, METHODS, Verdict, World, credulous_law_holds, law_holds, synthetic_laws_agree
from scripts.gpu.graphs import graph_checks
from specbench.decoding.loop import Limits, decode
from specbench.decoding.sampling import Sampler
from specbench.decoding.session import Session
from specbench.errors import ExitCode, MissingAsset
from specbench.machine.hardware import configure, fingerprint
from specbench.models.eager_session import EagerSession
from specbench.models.engine import GraphSession, LeanSession
from specbench.models.resolve import device_of

LIMIT = 2e-4  # float32 rounding of logits of size 10
BREAK = 248  # tokens that a walk grows by at once, past the first span of a graph
GREEDY = Sampler(temperature=0.0)
TITLE = "What decodes on a GPU, checked"
STATES = {True: "pass", False: "FAIL", None: "not run"}
RUNNING, FINISHED = {"complete": False}, {"complete": True}


class Check(NamedTuple):
    suite: str
    what: str
    measured: str
    limit: str
    seconds: float
    passed: bool | None  # None where it could not run


def check(suite: str, what: str, run: Callable[[], Verdict]) -> Check:
    """One line of the table; a check that breaks has failed."""
    begin = time.perf_counter()
    try:
        measured, limit, passed = run()
    except Exception as error:
        measured, limit, passed = f"{type(error).__name__}: {' '.join(str(error).split())[:80]}", "no error", False
    say(f"{STATES[passed]}  {suite}: {what}: {measured}")
    return Check(suite, what, measured, limit, time.perf_counter() - begin, passed)


def walk(small: Small, session: Session, steps: int) -> dict[str, float]:
    """The largest error of a session's logits, by what it had to do: prefill, decode, or read again after a rollback.

    It grows, shrinks and changes at random, then the same beyond the first span of a graph, then where it began. The truth
    is a fresh eager session's every time.
    """
    rng, device = random.Random(5), small.reference.device
    ids, before, worst = [0, 11, 12], list[int](), dict.fromkeys(("prefill", "decode", "rollback"), 0.0)
    for step in range(steps):
        if step == steps // 3:
            ids = ids + [rng.randrange(VOCABULARY) for _ in range(BREAK)]
        elif step == 2 * steps // 3:
            ids = ids[:5]
        elif before:
            ids = _changed(ids, rng)
        kind = "prefill" if not before else "decode" if before == ids[: len(before)] else "rollback"
        start = rng.randrange(max(0, len(ids) - 8), len(ids))
        found = session.score(ids, start)
        assert found.shape == (len(ids) - start, VOCABULARY) and found.device.type == device.type
        truth = EagerSession(small.reference, VOCABULARY, SOURCE if small.seq2seq else None).score(ids, start)
        error = float((found - truth).abs().nan_to_num(nan=math.inf).max())
        worst[kind], before = max(worst[kind], error), ids
    session.settle()
    return worst


def _changed(ids: list[int], rng: random.Random) -> list[int]:
    """The sequence longer by up to four tokens, shorter by as many, or with another token near its end."""
    kind = rng.random()
    if kind < 0.6 or len(ids) < 8:
        return ids + [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 4))]
    at = len(ids) - rng.randint(1, 4)
    return ids[:at] if kind < 0.8 else [*ids[:at], (ids[at] + 1) % VOCABULARY, *ids[at + 1 :]]


def logits_agree(small: Small, session: Session, steps: int) -> Verdict:
    worst = walk(small, session, steps)
    told = ", ".join(f"{kind} {error:.0e}" for kind, error in worst.items())
    return told, f"error <= {LIMIT:.0e}", max(worst.values()) <= LIMIT


def greedy_agrees(worlds: dict[str, Small], engine: str, name: str, tokens: int) -> Verdict:
    """A method's greedy tokens on one engine against autoregressive decoding by transformers' modules, family by family."""
    method, plain = METHODS[name]
    limits, other, tested, accepted, families = Limits(frozenset(), tokens), [], 0, 0, 0
    for family, small in worlds.items():
        if engine in small.engines:
            out = decode(method, small.open(engine), GREEDY, limits)
            families += 1
            other += [family] * (out.tokens != decode(plain, small.open("eager"), GREEDY, limits).tokens)
            tested += sum(step.tested for step in out.rounds)
            accepted += sum(step.accepted for step in out.rounds)
    told = f"{families - len(other)} of {families} equal" + (f", not {', '.join(other)}" if other else "")
    return (
        told + (f", {accepted} of {tested} drafts accepted" if tested else ""),
        "all equal",
        bool(families) and not other,
    )


def nan_is_reported(small: Small, engine: str, name: str, temperature: float) -> Verdict:
    """Logits that are no numbers fail the generation, at the latest when it is settled."""
    sampler = Sampler(temperature, generator=gpu.generator(small.reference.device, 0))
    try:
        decode(METHODS[name][0], small.open(engine), sampler, Limits(frozenset(), 8))
    except FloatingPointError as error:
        return f"reported {str(error).removeprefix(': ')}", "an error", True
    return "tokens, and no error", "an error", False


class Forgetful(LeanSession):
    """The deliberate mistake: after a rejection one stale position stays in the cache."""

    def _forget(self, known: int) -> None:
        super()._forget(min(known + 1, len(self._ids)))


class GraphForgetful(GraphSession):
    def _forget(self, known: int) -> None:
        super()._forget(min(known + 1, len(self._ids)))


def caught(run: Callable[[], Verdict]) -> Verdict:
    """Of a deliberate mistake: the check that it goes through must fail."""
    measured, limit, passed = run()
    return measured, f"not: {limit}", not passed


def checks(
    device: torch.device, steps: int, tokens: int, draws: int
) -> Iterator[tuple[str, str, Callable[[], Verdict]]]:
    """Yield suite, name and function of each check.

    Checks of single forwards come first; checks that could leave a GPU unusable come last.
    """
    yield from graph_checks(device)
    say(f"small random models of {len(FAMILIES)} architectures")
    worlds: dict[str, Small] = {}

    def made(family: str) -> Verdict:
        worlds[family] = Small(family, device)
        return "made, its graphs captured", "no error", True

    for family in FAMILIES:
        yield "models", family, partial(made, family)
    if "llama" not in worlds:
        return  # every check below needs it
    for family, small in worlds.items():
        for engine in small.engines:
            session = small.roles["b"].session(engine, SOURCE if small.seq2seq else None)
            yield ("logits", f"{family}, {engine}", partial(logits_agree, small, session, steps))
    each = worlds["llama"].roles["b"]
    assert each.graphs is not None
    for name, broken in (
        ("lean", Forgetful(each.network, VOCABULARY)),
        ("graph", GraphForgetful(each.graphs, VOCABULARY)),
    ):
        run = partial(logits_agree, worlds["llama"], broken, steps)
        yield ("control", f"a stale position, {name}", partial(caught, run))
    for engine in ENGINES:
        for name in list(METHODS)[engine == "eager" :]:  # transformers' own `ar` is what the others are compared with
            yield ("greedy", f"{name}, {engine}", partial(greedy_agrees, worlds, engine, name, tokens))
    yield ("laws", "synthetic laws as on a CPU", partial(synthetic_laws_agree, device))
    world = World(device)
    for engine in LAWS:
        for seed, name in enumerate(METHODS):
            if name != "ar":
                yield ("laws", f"{name}, {engine}", partial(law_holds, world, engine, name, draws, seed))
    yield ("control", "every draft accepted", partial(caught, partial(credulous_law_holds, world, draws)))
    nan = Small("llama", device)
    for one in nan.roles.values():
        one.model.get_output_embeddings().weight[3].fill_(math.nan)
    for temperature, name, engine in [
        *((0.0, "ar", engine) for engine in ENGINES),
        *((1.0, name, "graph") for name in ("ar", "we-se", "sd")),
    ]:
        told = f"{name}, {engine}, T = {temperature:g}"
        yield ("NaN", told, partial(nan_is_reported, nan, engine, name, temperature))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Check what decodes on a GPU.", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="cuda")
    parser.add_argument("--steps", type=int, default=90, help="of each random walk through a session")
    parser.add_argument("--tokens", type=int, default=24, help="decoded greedily")
    parser.add_argument(
        "--draws", type=int, default=20_000, help="samples per distribution, fewer where they take long"
    )
    parser.add_argument(
        "--seconds", type=float, default=330.0, help="after which no further check begins, and the result is a failure"
    )
    parser.add_argument("--out", type=Path, help="a folder; the default is results/DEVICE, and nowhere on a CPU")
    args = parser.parse_args(argv)
    try:
        device = device_of(args.device)
    except MissingAsset as error:
        print(f"error[asset]: {error}", file=sys.stderr)
        return ExitCode.MISSING
    configure(device)
    environment, folder = fingerprint(), gpu.folder_of(device, args.out)  # first: a failed check may end the GPU's use
    settings = f"{args.steps} steps, {args.tokens} tokens, {args.draws} draws"
    done: list[Check] = []
    begin = time.monotonic()
    with gpu.heartbeat():
        for suite, what, run in checks(device, args.steps, args.tokens, args.draws):
            if time.monotonic() - begin > args.seconds:
                out_of_time = f"the time limit of {args.seconds:g} s was reached after {len(done)} checks"
                done.append(Check("time", out_of_time, "not run", "all run", 0.0, False))
                break
            done.append(check(suite, what, run))
            if folder is not None:
                page = _page(done, device, settings, complete=False)  # at once: a kill loses nothing
                gpu.keep("check", TITLE, page, [line._asdict() for line in done], environment | RUNNING, folder)
    page = _page(done, device, settings, complete=True)
    if folder is not None:
        gpu.keep("check", TITLE, page, [line._asdict() for line in done], environment | FINISHED, folder)
    print("\n".join(page), flush=True)
    return ExitCode.REGRESSION if any(line.passed is False for line in done) else ExitCode.OK


def _page(done: list[Check], device: torch.device, settings: str, complete: bool) -> list[str]:
    rows = [
        [line.suite, line.what, line.measured, line.limit, f"{line.seconds:.1f}", STATES[line.passed]] for line in done
    ]
    passed, skipped = (sum(line.passed is state for line in done) for state in (True, None))
    seconds = sum(line.seconds for line in done)
    total = f"{passed} of {len(done) - skipped} checks passed in {seconds:.0f} s, {skipped} could not run; {settings}."
    return [
        "Small random models, float32 except for the bfloat16 and int4 checks. `listed` are synthetic laws without a model"
        " behind them, read from a list; `graph`"
        + (" is a CUDA graph." if device.type == "cuda" else " is the static forward that a graph would record."),
        "",
        *gpu.table(["suite", "what", "measured", "limit", "seconds", ""], rows),
        "",
        total if complete else f"NOT COMPLETE. So far {total}",
    ]


if __name__ == "__main__":
    sys.exit(main())
