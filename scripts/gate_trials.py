"""Does the gate hold what it promises? `make gate-trials`: writes results/gate-tiny.md.

A baseline with timing is recorded, and gated again and again by the same commit: no alarm may come. Then the engine's
forwards take a tenth longer, the method's rounds do, and half of all drafted tokens are spoilt: each has to be caught, by
its name.

Methods take turns generation by generation, and a shared machine's speed changes within seconds: many short generations
tell more than few long ones.
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
from specbench.cli.verdict_output import findings, outcome
from specbench.config.options import Options
from specbench.experiment.fresh_process import (
    Commands,
    Launch,
    end_with_parent,
    measure_apart,
    measure_here,
    request_in,
)
from specbench.experiment.gate import Recording, check, command_of, record
from specbench.files import write
from specbench.regression.checks import log_ratios
from specbench.regression.compare import ANCHOR
from specbench.regression.measurement import Session, of_run
from specbench.regression.snapshot import load
from specbench.regression.verdict import Limits, Status, Verdict, exit_code
from specbench.report.tables import Table, markdown_table
from specbench.runs.run_folder import SAMPLES

MODULE = "scripts.gate_trials"
SLOWER = 0.1
EXPECTED = {  # what is put in -> the method and the title that has to be said
    "engine": ("ar", "engine changed"),
    "overhead": ("sd", "overhead changed"),
    "acceptance": ("sd", "acceptance changed"),
}
RATIOS = (("sd", "ar"), ("ar", ANCHOR))


def slowed(function: Callable[..., Any], share: float = SLOWER) -> Callable[..., Any]:
    """The function, which then spins for that share of the time that it took."""

    def slow(*arguments: Any, **named: Any) -> Any:
        begin = time.perf_counter()
        out = function(*arguments, **named)
        end = time.perf_counter() + share * (time.perf_counter() - begin)
        while time.perf_counter() < end:
            pass
        return out

    return slow


def spoilt(roll: Callable[..., Any]) -> Callable[..., Any]:
    """`drafting.roll`, which replaces half of the drafted tokens by random ones, and says so in their laws: a token that
    was chosen without the draft follows the law that is all its own. So what is verified stays exact."""
    import torch

    def half(session: Any, ids: list[int], *arguments: Any, **named: Any) -> Any:
        draft = roll(session, ids, *arguments, **named)
        if len(draft.tokens) == 1:  # perhaps a token of `ar`, which is not verified
            return draft
        chance = random.Random(hashlib.sha256(repr(ids).encode()).digest())
        tokens, laws = list(draft.tokens), draft.probs.clone()  # (k,), (k, V)
        for i in range(len(tokens)):
            if chance.random() < 0.5:
                tokens[i] = chance.randrange(laws.shape[1])
                laws[i] = torch.nn.functional.one_hot(torch.tensor(tokens[i]), laws.shape[1])
        return replace(draft, tokens=tokens, probs=laws)

    return half


def inject(what: str) -> None:
    """Put one of EXPECTED into this process."""
    from specbench.methods import speculative
    from specbench.models import cached_session as session
    from specbench.models.engine.session import LeanSession

    places: dict[str, tuple[Any, str, Callable[..., Any]]] = {
        "engine": (LeanSession, "_forward", slowed),
        "overhead": (speculative, "speculate", slowed),
        "acceptance": (session, "roll", spoilt),
    }
    where, name, how = places[what]
    setattr(where, name, how(getattr(where, name)))


def main() -> None:
    parser = argparse.ArgumentParser(description="Gate one commit against itself, and against what is put into it.")
    parser.add_argument("--trials", type=int, default=10, help="gates of the unchanged commit")
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sessions", type=int, default=4, help="fresh processes that the baseline is from")
    parser.add_argument("--out", type=Path, default=Path("results/gate-tiny.md"))
    parser.add_argument("--inject", choices=EXPECTED, help=argparse.SUPPRESS)  # of a process that measures
    parser.add_argument("folder", nargs="?", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    quiet()
    if args.folder:
        end_with_parent()
        if args.inject:
            inject(args.inject)
        measure_here(request_in(args.folder), args.folder)
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
    path, nothing = folder / "snapshot.json", Commands(commands=[])
    command = command_of(["sd"], "tiny", ["gsm8k"], options)
    how = Recording(counters_only=False, sessions=args.sessions)
    record(path, folder / "base", Commands(commands=[command]), how)
    launches: list[tuple[str, Launch]] = [("nothing", measure_apart)] * args.trials
    launches += [(what, partial(_injected, what)) for what in EXPECTED]
    trials: list[tuple[str, list[Verdict]]] = []
    for number, (what, launch) in enumerate(launches):
        trials.append((what, check(path, folder / f"trial-{number}", nothing, Limits(), launch)))
        print(f"{what}: {outcome(trials[-1][1])}", flush=True)
    sessions = [each for cell in load(path).runs for each in cell.sessions]
    for number in range(args.trials):
        runs = sorted((folder / f"trial-{number}").glob(f"session-*/*/{SAMPLES}"))
        sessions += [each for run in runs for each in of_run(run.parent).sessions]
    environment = load(path).runs[0].environment
    write(args.out, _page(args, trials, sessions, environment, time.monotonic() - begin))
    print(args.out.read_text(encoding="utf-8"))


def _injected(what: str, request: Commands, out: Path) -> None:
    measure_apart(request, out, MODULE, "--inject", what)


def _page(
    args: argparse.Namespace,
    trials: list[tuple[str, list[Verdict]]],
    sessions: list[Session],
    environment: dict[str, Any],
    seconds: float,
) -> str:
    heads = ["put in", "exit code", "right", *(f"{method} over {over}" for method, over in RATIOS), "sd decodes"]
    rows = [
        [what, str(exit_code(found)), "yes" if _is_right(what, found) else "NO", *_shown(found)]
        for what, found in trials
    ]
    said = [f"- {what}: {line}" for what, found in trials for line in findings(found)]
    alarms = sum(exit_code(found) != 0 for what, found in trials if what == "nothing")
    caught = sum(_is_right(what, found) for what, found in trials if what != "nothing")
    better = sum(any(each.status is Status.improved for each in found) for what, found in trials if what == "nothing")
    machine = ", ".join(f"{key} {environment[key]}" for key in ("cpu", "cores", "threads", "torch", "transformers"))
    return f"""# The gate on trial

A baseline of speculative decoding on the tiny pair (gsm8k's synthetic twin, {args.prompts} prompts, {args.tokens}
tokens each, T = 0, {args.rounds} rounds in each of {args.sessions} processes), and gates against it in fresh processes:
of the same commit, and of it with the lean engine's forwards {SLOWER:.0%} slower (*engine*), with the method's
rounds {SLOWER:.0%} slower (*overhead*), and with half of the drafted tokens replaced by random ones (*acceptance*).
Made by `make gate-trials`.

**{alarms} false alarms in {args.trials} gates; {caught} of {len(EXPECTED)} changes caught and named right.**
Gates of the unchanged commit that called something improved, which fails nothing: {better}.

{markdown_table(Table("", heads, rows))}

{markdown_table(_spread(sessions))}

What the gates said:

{chr(10).join(said) or "- nothing"}

Measured in {seconds / 60:.1f} minutes on: {machine}; revision {environment["revision"] or "unknown"}.
"""


def _is_right(what: str, found: list[Verdict]) -> bool:
    """No regression where nothing was put in; else the one that was, of the method that it concerns, and no other."""
    regressed = {(each.method, each.title) for each in found if each.status is Status.regression}
    return regressed == ({EXPECTED[what]} if what in EXPECTED else set())


def _shown(found: list[Verdict]) -> list[str]:
    places = (("sd", "speed"), ("ar", "engine"), ("sd", "decoding"))
    said = {(each.method, each.aspect): each.short for each in found}
    return [said.get(place, "told with the decoding") for place in places]


def _spread(sessions: list[Session]) -> Table:
    """Standard deviations of log-ratios, in percent: of rounds within a session, and of sessions' means."""
    rows = []
    for method, over in RATIOS:
        ratios = [np.array(log_ratios(each, method, over)) for each in sessions]
        within = float(np.sqrt(np.mean([each.var(ddof=1) for each in ratios])))
        between = float(np.std([each.mean() for each in ratios], ddof=1))
        mean = float(np.exp(np.mean([each.mean() for each in ratios])))
        rows.append([f"{method} over {over}", f"{mean:.3f}x", f"{100 * within:.2f} %", f"{100 * between:.2f} %"])
    title = f"Spread of the ratios over {len(sessions)} sessions of the unchanged commit, standard deviations"
    return Table(title, ["ratio", "mean", "rounds of a session", "means of sessions"], rows)


if __name__ == "__main__":
    main()
