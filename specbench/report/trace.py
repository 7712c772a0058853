"""The rounds of one generation as lines: who drafted, how the draft fared, and every token by its origin."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from specbench.analysis.metrics import acceptance_rate, accepted_length
from specbench.runs.record import Record

INDENT = "    "
Span = tuple[str, list[str]]  # a letter of origins.MEANING, and the tokens that follow one another with that origin


class Line(NamedTuple):
    """One round: its place, who drafted and how many, and its tokens. Rounds within it are indented."""

    label: str
    spans: list[Span]


def lines(rounds: Sequence[dict[str, Any]], depth: int = 0, above: str = "") -> Iterator[Line]:
    """Each round, followed by those that made its draft.

    A round is as records have it, with the `ids`, `pieces` and `origins` of its tokens.
    """
    width = len(str(len(rounds)))
    for number, told in enumerate(rounds, 1):
        place = f"{above}{number:>{0 if above else width}}"
        yield Line(f"{INDENT * depth}{place}  {counts(told)}", spans(told))
        yield from lines(told.get("inner", []), depth + 1, f"{place.strip()}.")


def counts(told: dict[str, Any]) -> str:
    """Who had drafted what was tested, and how much was drafted, tested, accepted, and kept untested."""
    tally = Counter(told["by"])
    drafters = ", ".join(f"{name} {count}" if len(tally) > 1 else name for name, count in tally.items())
    words = f"{told['drafted']} drafted, {told['tested']} tested, {told['accepted']} accepted"
    untested = f", {told['untested']} untested" if told.get("untested") else ""
    return f"{drafters}: {words}{untested}" if drafters else f"{words}{untested}"


def spans(told: dict[str, Any]) -> list[Span]:
    """The tokens of a round, neighbours of one origin together; what was refused stands before what replaced it."""
    found: list[Span] = []
    own = told.get("untested", 0) + told["accepted"]
    lost = [("x", visible(told["refused"]))] if told.get("refused") else []
    shown = [
        (origin, visible(piece) or f"<{id_}>")  # a special token, or a part of a character
        for origin, piece, id_ in zip(told["origins"], told["pieces"], told["ids"], strict=True)
    ]
    for origin, text in shown[:own] + lost + shown[own:]:
        if found and found[-1][0] == origin:
            found[-1][1].append(text)
        else:
            found.append((origin, [text]))
    return found


def plain(line: Line) -> str:
    """A line without colours: `a[ the| cat] x[ sat] r[ ran]`, a letter before the tokens of each origin."""
    told = [f"{origin}[{'|'.join(tokens)}]" for origin, tokens in line.spans]
    return f"{line.label}  {' '.join(told)}"


def closing(record: Record) -> list[str]:
    """What the rounds came to: tokens, rounds, accepted length, acceptance rate, and forwards by model."""
    rounds = len(record.rounds) or len(record.tokens)
    rate = acceptance_rate([record])
    told = "" if rate is None else f", acceptance rate {rate:.3f}"
    forwards = ", ".join(f"{name} {calls['forwards']}" for name, calls in record.models.items())
    length = f"accepted length {accepted_length([record]):.2f}"
    return [
        f"{len(record.tokens)} tokens, {rounds} rounds, {length}{told}, ended by {record.finish}",
        f"forwards: {forwards}",
    ]


def visible(text: str, kept: str = "") -> str:
    """The text on one line, with what a terminal would act upon escaped; `kept` stays."""
    return "".join(c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text)
