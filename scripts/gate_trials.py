"""Measure the false alarms and detected regressions of `gate`: `make gate-trials`, which writes results/gate-tiny.md.

A snapshot with timing is recorded and checked several times at the same commit, which should raise no alarm. Then three
changes are injected in turn: slower forwards of the engine, slower rounds of the method, and random draft tokens. Each should
be detected and named.

Methods alternate by generation, and the speed of a shared machine changes within seconds, so many short generations give
narrower intervals than few long ones.
"""

import argparse
import hashlib
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from specbench._logging import quiet
from specbench.cli.compare import findings, outcome
from specbench.config.options import Options
from specbench.config.request import Request
from specbench.experiment.batch import (
    ARGUMENT,
    Launch,
    RequestBatch,
    batch_in,
    measure_here,
    measure_in_new_process,
)
from specbench.experiment.child_process import end_with_parent
from specbench.features.gate.comparison import ANCHOR
from specbench.features.gate.decoding_checks import log_ratios
from specbench.features.gate.gating import SnapshotOptions, check, record
from specbench.features.gate.snapshot import Timings, load, measured_run
from specbench.features.gate.verdict import GateLimits, GateVerdict, Status, exit_code
from specbench.files import write
from specbench.reporting.formats.writers import markdown_table
from specbench.reporting.tables import Table
from specbench.runs.run_folder import SAMPLES

MODULE = "scripts.gate_trials"
SLOWER = 0.1
EXPECTED = {  # injected change -> the method and title of the regression that should be reported
    "engine": ("ar", "engine changed"),
    "overhead": ("sd", "overhead changed"),
    "acceptance": ("sd", "acceptance changed"),
}
RATIOS = (("sd", "ar"), ("ar", ANCHOR))


def slowed(function: Callable[..., Any], share: float = SLOWER) -> Callable[..., Any]:
    """Wrap a function so that it takes longer by `share`, by spinning afterwards."""

    def slow(*arguments: Any, **named: Any) -> Any:
        begin = time.perf_counter()
        out = function(*arguments, **named)
        end = time.perf_counter() + share * (time.perf_counter() - begin)
        while time.perf_counter() < end:
            pass
        return out

    return slow


def corrupted(roll: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `drafting.roll` so that it replaces half of the draft tokens by random ones.

    The distribution of a replaced token becomes one-hot at that token, so that verification stays exact.
    """
    import torch

    def half(session: Any, ids: list[int], *arguments: Any, **named: Any) -> Any:
        draft = roll(session, ids, *arguments, **named)
        if len(draft.tokens) == 1:  # it may be a token of `ar`, which is not verified
            return draft
        chance = random.Random(hashlib.sha256(repr(ids).encode()).digest())
        tokens, probs = list(draft.tokens), draft.probs.clone()  # (k,), (k, V)
        for i in range(len(tokens)):
            if chance.random() < 0.5:
                tokens[i] = chance.randrange(probs.shape[1])
                probs[i] = torch.nn.functional.one_hot(torch.tensor(tokens[i]), probs.shape[1])
        return replace(draft, tokens=tokens, probs=probs)

    return half


def inject(what: str) -> None:
    """Inject one of the changes of EXPECTED into this process."""
    from specbench.methods import speculative
    from specbench.models import cached_session as session
    from specbench.models.lean import LeanFeeder

    places: dict[str, tuple[Any, str, Callable[..., Any]]] = {
        "engine": (LeanFeeder, "feed", slowed),
        "overhead": (speculative, "speculate", slowed),
        "acceptance": (session, "roll", corrupted),
    }
    where, name, how = places[what]
    setattr(where, name, how(getattr(where, name)))


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure false alarms and detected regressions.")
    parser.add_argument("--trials", type=int, default=10, help="checks of the unchanged commit")
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sessions", type=int, default=4, help="fresh processes that the snapshot is measured in")
    parser.add_argument("--out", type=Path, default=Path("results/gate-tiny.md"))
    parser.add_argument("--inject", choices=EXPECTED, help=argparse.SUPPRESS)  # for the measuring processes
    parser.add_argument(ARGUMENT, dest="folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    quiet()
    if args.folder:
        end_with_parent()
        if args.inject:
            inject(args.inject)
        measure_here(batch_in(args.folder), args.folder)
        return
    with tempfile.TemporaryDirectory(prefix="specbench-") as folder:
        _trials(args, Path(folder))


def _trials(args: argparse.Namespace, folder: Path) -> None:
    begin = time.monotonic()
    options = Options(
        limit=args.prompts,
        repeats=args.rounds,
        max_new_tokens=args.tokens,
        ignore_eos=True,
        temperature=0.0,
        device="cpu",
    )
    path, nothing = folder / "snapshot.json", RequestBatch()
    request = Request(methods=("sd",), pair="tiny", tasks=("gsm8k",), options=options)
    how = SnapshotOptions(counters_only=False, sessions=args.sessions)
    record(path, folder / "base", RequestBatch(requests=[request]), how)
    launches: list[tuple[str, Launch]] = [("nothing", measure_in_new_process)] * args.trials
    launches += [(what, partial(_injected, what)) for what in EXPECTED]
    trials: list[tuple[str, list[GateVerdict]]] = []
    for number, (what, launch) in enumerate(launches):
        trials.append((what, check(path, folder / f"trial-{number}", nothing, GateLimits(), launch)))
        print(f"{what}: {outcome(trials[-1][1])}", flush=True)
    sessions = [each for cell in load(path).runs for each in cell.sessions]
    for number in range(args.trials):
        runs = sorted((folder / f"trial-{number}").glob(f"session-*/*/{SAMPLES}"))
        sessions += [each for run in runs for each in measured_run(run.parent).sessions]
    environment = load(path).runs[0].environment
    write(args.out, _page(args, trials, sessions, environment, time.monotonic() - begin))
    print(args.out.read_text(encoding="utf-8"))


def _injected(what: str, batch: RequestBatch, out: Path) -> None:
    measure_in_new_process(batch, out, MODULE, "--inject", what)


def _page(
    args: argparse.Namespace,
    trials: list[tuple[str, list[GateVerdict]]],
    sessions: list[Timings],
    environment: dict[str, Any],
    seconds: float,
) -> str:
    heads = [
        "injected",
        "exit code",
        "as expected",
        *(f"{method} over {over}" for method, over in RATIOS),
        "decoding of sd",
    ]
    rows = [
        [what, str(exit_code(found)), "yes" if is_right(what, found) else "NO", *_shown(found)]
        for what, found in trials
    ]
    said = [f"- {what}: {line}" for what, found in trials for line in findings(found)]
    alarms = sum(exit_code(found) != 0 for what, found in trials if what == "nothing")
    caught = sum(is_right(what, found) for what, found in trials if what != "nothing")
    better = sum(any(each.status is Status.improved for each in found) for what, found in trials if what == "nothing")
    machine = ", ".join(f"{key} {environment[key]}" for key in ("cpu", "cores", "threads", "torch", "transformers"))
    return f"""# False alarms and detected regressions of the gate

The snapshot records speculative decoding on the tiny pair (synthetic gsm8k, {args.prompts} prompts, {args.tokens} tokens
each, T = 0, {args.rounds} repeats in each of {args.sessions} processes). It is checked in fresh processes: at the same
commit, with the lean engine's forwards {SLOWER:.0%} slower (*engine*), with the method's rounds {SLOWER:.0%} slower
(*overhead*), and with half of the draft tokens replaced by random ones (*acceptance*). Made by `make gate-trials`.

**{alarms} false alarms in {args.trials} checks; {caught} of {len(EXPECTED)} changes detected and named correctly.**
Checks of the unchanged commit that reported an improvement (not a failure): {better}.

{markdown_table(Table("", heads, rows))}

{markdown_table(_spread(sessions))}

Reports of the checks:

{chr(10).join(said) or "- nothing"}

Measured in {seconds / 60:.1f} minutes on: {machine}; revision {environment["revision"] or "unknown"}.
"""


def is_right(what: str, found: list[GateVerdict]) -> bool:
    """Return whether the reported regressions are exactly the injected ones."""
    regressed = {(each.method, each.title) for each in found if each.status is Status.regression}
    return regressed == ({EXPECTED[what]} if what in EXPECTED else set())


def _shown(found: list[GateVerdict]) -> list[str]:
    places = (("sd", "speed"), ("ar", "engine"), ("sd", "decoding"))
    said = {(each.method, each.aspect): each.short for each in found}
    return [said.get(place, "see last column") for place in places]


def _spread(sessions: list[Timings]) -> Table:
    """Return the standard deviations of log-ratios, in percent, of repeats within a session and of sessions' means."""
    rows = []
    for method, over in RATIOS:
        ratios = [np.array(log_ratios(each, method, over)) for each in sessions]
        within = float(np.sqrt(np.mean([each.var(ddof=1) for each in ratios])))
        between = float(np.std([each.mean() for each in ratios], ddof=1))
        mean = float(np.exp(np.mean([each.mean() for each in ratios])))
        rows.append([f"{method} over {over}", f"{mean:.3f}x", f"{100 * within:.2f} %", f"{100 * between:.2f} %"])
    title = f"Spread of the ratios over {len(sessions)} sessions of the unchanged commit, standard deviations"
    return Table(title, ["ratio", "mean", "repeats of a session", "means of sessions"], rows)


if __name__ == "__main__":
    main()
