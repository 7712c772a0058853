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
from typing import Any, NamedTuple

import torch

from specbench.cli import gpu
from specbench.cli.gpu import ENGINES, FAMILIES, SOURCE, VOCABULARY, Small, say
from specbench.cli.gpu_graphs import graph_checks
from specbench.cli.gpu_laws import LAWS, METHODS, Verdict, World, credulous_law_holds, law_holds, synthetic_laws_agree
from specbench.decode import Limits, decode
from specbench.engine import GraphSession, LeanSession
from specbench.errors import MissingAsset
from specbench.found import device_of
from specbench.hardware import configure, fingerprint
from specbench.sampling import Sampler
from specbench.session import EagerSession, Session

LIMIT = 2e-4  # float32 rounding of logits of size 10
BREAK = 248  # tokens that a walk grows by at once, past the first span of a graph
GREEDY = Sampler(temperature=0.0)
TITLE = "What decodes on a GPU, checked"


class Check(NamedTuple):
    suite: str
    what: str
    measured: str
    limit: str
    seconds: float
    passed: bool


def check(suite: str, what: str, run: Callable[[], Verdict]) -> Check:
    """One line of the table; a check that breaks has failed."""
    begin = time.perf_counter()
    try:
        measured, limit, passed = run()
    except Exception as error:
        measured, limit, passed = f"{type(error).__name__}: {' '.join(str(error).split())[:80]}", "no error", False
    say(f"{'pass' if passed else 'FAIL'}  {suite}: {what}: {measured}")
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
    """Suite, name and check, in order: first what runs once a forward, last what could leave a GPU unusable."""
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
    parser = argparse.ArgumentParser(description="Check what decodes on a GPU.")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="cuda")
    parser.add_argument("--steps", type=int, default=90, help="of each random walk through a session")
    parser.add_argument("--tokens", type=int, default=24, help="decoded greedily")
    parser.add_argument("--draws", type=int, default=20_000, help="for each law, within its seconds")
    parser.add_argument("--seconds", type=float, default=330.0, help="after which no further check begins")
    parser.add_argument("--out", type=Path, help="a folder; the default is results/DEVICE, and nowhere on a CPU")
    args = parser.parse_args(argv)
    try:
        device = device_of(args.device)
    except MissingAsset as error:
        print(f"error[asset]: {error}", file=sys.stderr)
        return gpu.NO_GPU
    configure(device)
    environment, folder = fingerprint(), gpu.folder_of(device, args.out)  # first: a failed check may end the GPU's use
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
                _keep(done, device, environment, folder)  # at once: a kill loses nothing
    if folder is not None:
        _keep(done, device, environment, folder)
    print("\n".join(_page(done, device)), flush=True)
    return gpu.FAILED if any(not line.passed for line in done) else 0


def _keep(done: list[Check], device: torch.device, environment: dict[str, Any], folder: Path) -> None:
    gpu.keep("check", TITLE, _page(done, device), [line._asdict() for line in done], environment, folder)


def _page(done: list[Check], device: torch.device) -> list[str]:
    rows = [
        [line.suite, line.what, line.measured, line.limit, f"{line.seconds:.1f}", "pass" if line.passed else "FAIL"]
        for line in done
    ]
    return [
        "Small random models, float32 except for the bfloat16 and int4 checks. `listed` are synthetic laws without a model"
        " behind them, read from a list; `graph`"
        + (" is a CUDA graph." if device.type == "cuda" else " is the static forward that a graph would record."),
        "",
        *gpu.table(["suite", "what", "measured", "limit", "seconds", ""], rows),
        "",
        f"{sum(line.passed for line in done)} of {len(done)} checks passed in {sum(line.seconds for line in done):.0f} s.",
    ]


if __name__ == "__main__":
    sys.exit(main())
