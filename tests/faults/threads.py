"""Threads that call the Python API at the same time, some with models that cannot be loaded or arguments that are wrong."""

import json
import random
import subprocess
import sys
from pathlib import Path

from tests.faults.attack import MOST_SECONDS, Outcome, last_line

KINDS = ("sd on tiny", "ar on tiny", "sd on tiny-t5", "we-se on tiny-3", "broken weights", "no such method", "bfloat16")
PROGRAM = """
import json, sys, threading
import specbench

kinds = json.loads(sys.argv[1])
few = {"task": "gsm8k", "limit": 1, "repeats": 1, "max_new_tokens": 2, "data": "synthetic"}
calls = {
    "sd on tiny": {"method": "sd"},
    "ar on tiny": {"method": "ar"},
    "sd on tiny-t5": {"method": "sd", "pair": "tiny-t5", "task": "xsum"},
    "we-se on tiny-3": {"method": "we-se", "pair": "tiny-3"},
    "broken weights": {"method": "ar", "pair": "broken.toml"},
    "no such method": {"method": "sdd"},
    "bfloat16": {"method": "sd", "dtype": "bfloat16"},
}
start, ends = threading.Barrier(len(kinds)), {}

def call(number, kind):
    start.wait()
    try:
        result = specbench.run(**few | calls[kind], out=f"out/{number}")
        ends[number] = "complete" if result.complete else "incomplete"
    except (specbench.ConfigError, specbench.MissingAsset) as error:
        ends[number] = type(error).__name__
    except BaseException as error:
        ends[number] = f"{type(error).__name__}: {error}"

threads = [threading.Thread(target=call, args=each) for each in enumerate(kinds)]
for each in threads:
    each.start()
for each in threads:
    each.join()
last = specbench.run(**few | calls["sd on tiny"], out="out/last")
rows = {kind: [r.tokens for r in specbench.run(**few | calls[kind], out="out/alone").records()]
        for number, kind in enumerate(kinds) if ends[number] == "complete"}
same = all([r.tokens for r in specbench.load(f"out/{number}").records()] == rows[kind]
           for number, kind in enumerate(kinds) if ends[number] == "complete")
print(json.dumps([[ends[i] for i in range(len(kinds))], last.complete, same]))
"""
ENDS = {"broken weights": "MissingAsset", "no such method": "ConfigError"}


def together(trials: int, seed: int, folder: Path) -> Outcome:
    """Call `run` from several threads: each call ends as it would alone, with the same tokens, and so do later calls."""
    from specbench.config.pair import PACKAGE

    outcome = Outcome()
    for trial in range(trials):
        rng, where = random.Random(f"{seed}:{trial}"), folder / f"trial-{trial}"
        (where / "broken").mkdir(parents=True)
        for file in (PACKAGE / "tiny" / "models" / "target").iterdir():
            (where / "broken" / file.name).write_bytes(
                file.read_bytes()[: 10 if file.suffix == ".safetensors" else None]
            )
        (where / "broken.toml").write_text('[models.target]\npath = "broken"\n')
        kinds = [rng.choice(KINDS) for _ in range(rng.randint(2, 4))]
        line = [sys.executable, "-c", PROGRAM, json.dumps(kinds)]
        done = subprocess.run(line, cwd=where, capture_output=True, text=True, timeout=2 * MOST_SECONDS, check=False)
        problems = [] if done.returncode == 0 else [f"exit code {done.returncode}: {last_line(done.stderr)}"]
        if not problems:
            ends, complete, same = json.loads(done.stdout.splitlines()[-1])
            expected = [ENDS.get(kind, "complete") for kind in kinds]
            problems += [f"ended as {ends}"] if ends != expected else []
            problems += ["a later call is incomplete"] if not complete else []
            problems += ["tokens differ from those of a call alone"] if not same else []
        outcome.add(f"{', '.join(kinds)}, trial {trial}", problems)
    return outcome
