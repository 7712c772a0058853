"""Check decoding on a GPU: `make gpu-check`. Exit code 0, or 5 if a check failed.

Compares the logits of every engine with the logits of transformers, greedy tokens with autoregressive ones, and sampled
distributions with exact ones. Logits of NaN and deliberate mistakes must be detected. Models are small and random, in
float32; nothing is downloaded. With `--device cpu` the same checks run on the static forwards that graphs would record.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from scripts.gpu import common as gpu
from scripts.gpu.common import ENGINES, FAMILIES, SOURCE, VOCABULARY, Small, decode, say
from scripts.gpu.devices import device_checks
from scripts.gpu.exactness import (
    METHODS,
    SAMPLED,
    Verdict,
    World,
    accepting_all_matches,
    distribution_matches,
    synthetic_logits_match_cpu,
)
from scripts.gpu.gpu_graphs import graph_checks
from scripts.gpu.logits import StaleGraph, StaleLean, logits_agree
from specbench.decoding.loop import GenerationLimits
from specbench.decoding.sampling import Sampler
from specbench.errors import ExitCode, MissingAsset
from specbench.machine.hardware import configure, fingerprint
from specbench.models.cached_session import CachedSession
from specbench.models.resolve_models import device_of
from specbench.models.transformers_session import reads_trees

GREEDY = Sampler(temperature=0.0)
TITLE = "Checks of decoding on a GPU"
STATES = {True: "pass", False: "FAIL", None: "not run"}
RUNNING, FINISHED = {"complete": False}, {"complete": True}


class Check(NamedTuple):
    suite: str
    what: str
    measured: str
    limit: str
    seconds: float
    passed: bool | None  # None if it could not run


def check(suite: str, what: str, run: Callable[[], Verdict]) -> Check:
    """Run a check and return its row of the table. An exception counts as a failure."""
    begin = time.perf_counter()
    try:
        measured, limit, passed = run()
    except Exception as error:
        measured, limit, passed = f"{type(error).__name__}: {' '.join(str(error).split())[:80]}", "no error", False
    say(f"{STATES[passed]}  {suite}: {what}: {measured}")
    return Check(suite, what, measured, limit, time.perf_counter() - begin, passed)


def greedy_agrees(worlds: dict[str, Small], engine: str, name: str, tokens: int) -> Verdict:
    """Compare a method's greedy tokens on one engine with autoregressive decoding by transformers, for every family.

    Families whose modules cannot score trees are left out where they run eagerly.
    """
    method, plain = METHODS[name]
    drafts_trees = any(test.tree for test in method.verifications())
    limits, other, tested, accepted, families = GenerationLimits(frozenset(), tokens), [], 0, 0, 0
    for family, small in worlds.items():
        if engine in small.engines and (engine != "eager" or not drafts_trees or reads_trees(small.reference)):
            out = decode(method, small.open(engine), GREEDY, limits)
            families += 1
            other += [family] * (out.tokens != decode(plain, small.open("eager"), GREEDY, limits).tokens)
            tested += sum(step.tested for step in out.rounds)
            accepted += sum(step.accepted for step in out.rounds)
    equal = f"{families - len(other)} of {families} equal" + (f", not {', '.join(other)}" if other else "")
    drafts = f", {accepted} of {tested} draft tokens accepted" if tested else ""
    return equal + drafts, "all equal", bool(families) and not other


def nan_is_reported(small: Small, engine: str, name: str, temperature: float) -> Verdict:
    """Check that logits of NaN raise an error, at the latest at the end of the generation."""
    sampler = Sampler(temperature, generator=gpu.generator(small.reference.device, 0))
    try:
        decode(METHODS[name][0], small.open(engine), sampler, GenerationLimits(frozenset(), 8))
    except FloatingPointError as error:
        return f"reported {str(error).removeprefix(': ')}", "an error", True
    return "tokens, and no error", "an error", False


def caught(run: Callable[[], Verdict]) -> Verdict:
    """Run a check on a deliberate mistake, which it must detect."""
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
        ("lean", CachedSession(StaleLean(each.network, VOCABULARY))),
        ("graph", CachedSession(StaleGraph(each.graphs, VOCABULARY))),
    ):
        run = partial(logits_agree, worlds["llama"], broken, steps)
        yield ("control", f"a stale position, {name}", partial(caught, run))
    for engine in ENGINES:
        for name in list(METHODS)[engine == "eager" :]:  # `ar` of transformers is the reference
            yield ("greedy", f"{name}, {engine}", partial(greedy_agrees, worlds, engine, name, tokens))
    yield ("sampling", "synthetic logits as on a CPU", partial(synthetic_logits_match_cpu, device))
    world = World(device)
    for engine in SAMPLED:
        for seed, name in enumerate(METHODS):
            if name != "ar":
                yield ("sampling", f"{name}, {engine}", partial(distribution_matches, world, engine, name, draws, seed))
    yield ("control", "every draft token accepted", partial(caught, partial(accepting_all_matches, world, draws)))
    yield from device_checks(device)
    nan = Small("llama", device, changed=with_nan)
    for temperature, name, engine in [
        *((0.0, "ar", engine) for engine in ENGINES),
        *((1.0, name, "graph") for name in ("ar", "we-se", "sd")),
    ]:
        yield (
            "NaN",
            f"{name}, {engine}, T = {temperature:g}",
            partial(nan_is_reported, nan, engine, name, temperature),
        )


def with_nan(model: PreTrainedModel) -> None:
    """Make a row of the LM head NaN."""
    head: Any = model.get_output_embeddings()
    with torch.no_grad():
        head.weight[3].fill_(math.nan)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Check decoding on a GPU.", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="cuda")
    parser.add_argument("--steps", type=int, default=90, help="steps of each random walk through a session")
    parser.add_argument("--tokens", type=int, default=24, help="tokens to decode greedily")
    parser.add_argument("--draws", type=int, default=20_000, help="samples per distribution; fewer if they take long")
    parser.add_argument(
        "--seconds", type=float, default=330.0, help="time limit; no check begins after it, and the result is a failure"
    )
    parser.add_argument(
        "--out", type=Path, help="output folder; the default is results/DEVICE on a GPU, and none on a CPU"
    )
    args = parser.parse_args(argv)
    try:
        device = device_of(args.device)
    except MissingAsset as error:
        print(f"error[asset]: {error}", file=sys.stderr)
        return ExitCode.MISSING
    configure(device)
    # A failed check may end its use
    environment, folder = (
        fingerprint(),
        gpu.folder_of(device, args.out),
    )
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
                page = _page(done, device, settings, complete=False)  # after every check, so that a kill loses nothing
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
        "Small random models, float32 except for the bfloat16 and int4 checks. `listed` sessions look up synthetic logits"
        " without a model; `graph`"
        + (" is a CUDA graph." if device.type == "cuda" else " is the static forward that a graph would record."),
        "",
        *gpu.table(["suite", "what", "measured", "limit", "seconds", ""], rows),
        "",
        total if complete else f"NOT COMPLETE. So far {total}",
    ]


if __name__ == "__main__":
    sys.exit(main())
