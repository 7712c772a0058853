"""What explains methods that draft unlike plain speculation: runs, levels of a chain, and the work by the papers' count."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specbench.analysis import theory
from specbench.analysis.metrics import seconds
from specbench.decoding.traits import Traits
from specbench.runs.record import Record, Round

Rows = Sequence[Record]


def average_tokens(rows: Rows) -> float | None:
    """SPRINTER's "Avg tokens": drafted tokens that came through a run, untested or accepted, without the target's own.

    None where nothing was drafted.
    """
    rounds = [x for r in rows for x in r.rounds if x["drafted"]]
    return sum(x.get("untested", 0) + x["accepted"] for x in rounds) / len(rounds) if rounds else None


def generation_milliseconds(rows: Rows) -> tuple[float, float]:
    """Mean and standard deviation over generations of the milliseconds from the prompt to the last token."""
    spent = [1e3 * seconds(r, end_to_end=True) for r in rows]
    return float(np.mean(spent)), float(np.std(spent))


def verifier_rate(rows: Rows) -> float | None:
    """How often SPRINTER's verifier accepted what it was asked about; None without one."""
    noted = [x["noted"] for r in rows for x in r.rounds if "verifier_calls" in x.get("noted", {})]
    calls = sum(x["verifier_calls"] for x in noted)
    return sum(x["verifier_accepts"] for x in noted) / calls if calls else None


def gigaflops(rows: Rows, shapes: dict[str, dict[str, int]]) -> float:
    """10^9 floating-point operations a generation by SPRINTER's formula for one position, over all tokens that were fed.

    Prompts included, by the formula for as many positions. Heads are left out.
    """
    total = 0.0
    for r in rows:
        for role, calls in r.models.items():
            if role in shapes:
                total += calls["fed"] * theory.forward_flops(s=1, **shapes[role])
                total += theory.forward_flops(s=calls["prefill_fed"], **shapes[role])
    return total / len(rows) / 1e9


def papers_gigaflops(rows: Rows, method: Traits, shapes: dict[str, dict[str, int]]) -> float | None:
    """The same as the paper counts it, without prompts: n (F_q + F_v) + F_p a run of SPRINTER, n F_q + n F_p of speculation.

    SPRINTER's target is charged for one position a run, though it has to read the whole run: with that, nothing is saved
    (docs/papers/sprinter.md, Floating-point operations). F_v is left out. None of other methods.
    """
    if not method.flops:
        return None
    draft, target = method.roles[0], method.roles[-1]
    rounds = [x for r in rows for x in r.rounds]
    f_q, f_p = (theory.forward_flops(s=1, **shapes[role]) for role in (draft, target))
    total: float
    if method.flops == "sprinter":
        total = sum(x["drafted"] * f_q + x["tested"] * f_p for x in rounds)
    else:
        total = sum(theory.speculative_flops(x["drafted"], f_q, f_p) for x in rounds)
    return total / len(rows) / 1e9


@dataclass(frozen=True)
class Level:
    """One level of a chain: whose drafts were tested there, and how they fared."""

    by: str
    rounds: float  # of the level, a round of the target's
    acceptance: float | None
    length: float  # tokens a round, replacement or bonus included
    lengths_sd: float  # their standard deviation
    drafted: float  # tokens of a block that was tested


def levels(rows: Rows) -> list[Level]:
    """The levels of a chain, the innermost first, the target's last; empty where nothing was nested."""
    outer = [x for r in rows for x in r.rounds]
    found: list[Level] = []
    here = outer
    while here:
        found.insert(0, _level(here, len(outer)))
        here = [inner for x in here for inner in x.get("inner", [])]
    return found if len(found) > 1 else []


def _level(rounds: list[Round], outer: int) -> Level:
    tested, lengths = sum(x["tested"] for x in rounds), [x["tokens"] for x in rounds]
    by = next((x["by"][0] for x in rounds if x["by"]), "")
    accepted = sum(x["accepted"] for x in rounds) / tested if tested else None
    drafted = sum(x["drafted"] for x in rounds) / len(rounds)
    return Level(by, len(rounds) / outer, accepted, float(np.mean(lengths)), float(np.std(lengths)), drafted)


def length_counts(rows: Rows) -> dict[int, int]:
    """How many rounds committed how many tokens."""
    lengths, counts = np.unique([x["tokens"] for r in rows for x in r.rounds] or [0], return_counts=True)
    return dict(zip(lengths.tolist(), counts.tolist(), strict=True))


def discarded(rows: Rows) -> float | None:
    """Tokens that a chain's middle had verified and the target refused or never looked at, a committed token."""
    rounds = [x for r in rows for x in r.rounds if x.get("inner")]
    if not rounds:
        return None
    lost: int = sum(x["drafted"] - x["accepted"] for x in rounds)
    return lost / sum(len(r.tokens) for r in rows)
