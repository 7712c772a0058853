"""Run the fault campaign: `python -m tests.faults`, or `make faults`. Exit code 1 where a trial failed.

Every attack has a process of its own, two at a time, longest first.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.faults.attack import ENVIRONMENT, ROOT, Attack, Outcome

JOBS = 2
MOST_MINUTES = 60


def main() -> None:
    parser = argparse.ArgumentParser(description="Attack specbench by seed and write what came of it.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=1.0, help="of the trials of a long campaign")
    parser.add_argument(
        "--only", action="append", help="an attack's name; repeat for several. Other rows of the page stay"
    )
    parser.add_argument("--out", type=Path, help="write the page to this file")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)  # one attack, its outcome as JSON
    args = parser.parse_args()
    os.environ.update(ENVIRONMENT)  # before torch is imported
    from tests.faults.campaign import ATTACKS, page

    names = args.only or [attack.name for attack in ATTACKS]
    if unknown := set(names) - {attack.name for attack in ATTACKS}:
        parser.error(f"no attack {', '.join(unknown)}; there are {', '.join(attack.name for attack in ATTACKS)}")
    attacks = [attack for attack in ATTACKS if attack.name in names]
    if args.alone:
        print(json.dumps(vars(_attacked(attacks[0], args.seed, args.share))))
        return
    begin = time.monotonic()
    outcomes = _all(attacks, args.seed, args.share)
    if args.out:
        minutes = (time.monotonic() - begin) / 60
        earlier = args.out.read_text(encoding="utf-8") if args.only and args.out.exists() else ""
        done = dict(zip(attacks, outcomes, strict=True))
        args.out.write_text(page(done, args.seed, minutes, earlier), encoding="utf-8")
    sys.exit(any(outcome.failures for outcome in outcomes))


def _attacked(attack: Attack, seed: int, share: float) -> Outcome:
    with TemporaryDirectory(prefix="faults-") as folder:
        return attack.run(max(1, round(share * attack.trials)), seed, Path(folder))


def _all(attacks: Sequence[Attack], seed: int, share: float) -> list[Outcome]:
    """The outcomes of attacks, in their order, each shown as it ends."""

    def apart(attack: Attack) -> Outcome:
        begin = time.monotonic()
        line = [sys.executable, "-m", "tests.faults", "--alone", "--only", attack.name]
        line += ["--seed", str(seed), "--share", str(share)]
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=60 * MOST_MINUTES)
        try:
            outcome = Outcome(**json.loads(done.stdout.splitlines()[-1]))
        except (ValueError, IndexError, TypeError):
            outcome = Outcome(failures=[f"the attack itself ended with code {done.returncode}: {done.stderr[-2000:]}"])
        verdict = outcome.skipped or f"{outcome.trials} trials, {len(outcome.failures)} failures"
        print(f"{attack.name}: {verdict}, {(time.monotonic() - begin) / 60:.1f} min", flush=True)
        for failure in outcome.failures:
            print(f"  {failure}", flush=True)
        return outcome

    with ThreadPoolExecutor(JOBS) as pool:
        return list(pool.map(apart, attacks))


if __name__ == "__main__":
    main()
