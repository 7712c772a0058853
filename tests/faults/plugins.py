"""Plugins with one fault each: what a method yields, a proposer drafts, a target or grader returns, or a file raises."""

import json
import shutil
from pathlib import Path

from tests.faults.attack import Outcome, here
from tests.fixtures import plugin_faults as faults

FEW = ["-p", "tiny", "-n", 1, "--repeats", 1, "--max-new-tokens", 4, "--plugin", faults.PATH]
METHOD = ["run", "-m", "bad", "-t", "gsm8k"]
KINDS = (  # template, faults with their messages, command, exit code
    (faults.METHOD, faults.ROUNDS, METHOD, 3),
    (faults.PROPOSER, faults.DRAFTS, METHOD, 3),
    (faults.TARGET, faults.TARGETS, METHOD, 3),
    (faults.GRADER, faults.SCORES, ["run", "-m", "ar", "-t", "bad", "--data", "rows.jsonl"], 2),
    ("SOURCE\n", faults.LOADED, ["run", "-m", "ar", "-t", "gsm8k"], 2),
)
CASES = [
    (template, source, message, command, code)
    for template, sources, command, code in KINDS
    for source, message in sources.items()
]


def faulty(trials: int, seed: int, folder: Path) -> Outcome:
    """Run plugins with a fault: the error names it, no generation counts as complete, and those of `ar` are kept."""
    outcome = Outcome()
    for trial in range(trials):
        template, source, message, command, code = CASES[
            (seed * 17 + trial * max(1, len(CASES) // trials)) % len(CASES)
        ]
        where = folder / f"trial-{trial}"
        where.mkdir()
        (where / "rows.jsonl").write_text('{"prompt": "One two"}\n')
        (where / faults.PATH).write_text(template.replace("SOURCE", source))
        done = here([*command, *FEW], where)
        rows = [
            json.loads(line) for path in where.glob("results/*/samples.jsonl") for line in path.read_text().splitlines()
        ]
        errors = {row["method"]: row["error"] or "" for row in rows}
        problems = done.problems({code})
        if message not in done.err and message not in errors.get("bad", ""):
            problems.append(f"no message '{message}'")
        if errors.get("bad") == "":
            problems.append("a generation of the plugin counts as complete")
        if template in (faults.METHOD, faults.GRADER) and errors.get("ar") != "":
            problems.append("the generation of ar is lost")
        outcome.add(f"{source}, trial {trial}", problems)
        shutil.rmtree(where)
    return outcome
