"""The rounds of one generation as lines: the drafting model, the counts, and every token with its provenance."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from specbench.analysis.acceptance import acceptance_rate, accepted_length
from specbench.analysis.token_origin import TracedRound
from specbench.report.columns import column_of
from specbench.runs.record import Record

INDENT = "    "
Span = tuple[str, list[str]]  # a letter of token_origin.MEANING, and neighboring tokens with that provenance


class Line(NamedTuple):
    """One round: its number and counts, and its tokens. Nested rounds are indented."""

    label: str
    spans: list[Span]


def lines(rounds: Sequence[TracedRound], depth: int = 0, above: str = "") -> Iterator[Line]:
    """Yield a line for each round, followed by the lines of the rounds that made its draft."""
    width = len(str(len(rounds)))
    for number, each in enumerate(rounds, 1):
        place = f"{above}{number:>{0 if above else width}}"
        yield Line(f"{INDENT * depth}{place}  {counts(each)}", spans(each))
        yield from lines(each.get("inner", []), depth + 1, f"{place.strip()}.")


def counts(found: TracedRound) -> str:
    """Return the models that drafted, and the numbers of drafted, tested, accepted and untested tokens."""
    tally = Counter[str](found["proposers"])
    drafters = ", ".join(f"{name} {count}" if len(tally) > 1 else name for name, count in tally.items())
    words = f"{found['drafted']} drafted, {found['tested']} tested, {found['accepted']} accepted"
    untested = f", {found['untested']} untested" if found.get("untested") else ""
    return f"{drafters}: {words}{untested}" if drafters else f"{words}{untested}"


def spans(found: TracedRound) -> list[Span]:
    """Return the tokens of a round, grouped by provenance. Rejected drafts precede the tokens that replaced them."""
    out: list[Span] = []
    own = found.get("untested", 0) + found["accepted"]
    rejected = [("x", visible(found["rejected"]))] if found.get("rejected") else []
    shown = [
        (origin, visible(piece) or f"<{id_}>")  # of special tokens and parts of characters
        for origin, piece, id_ in zip(found["origins"], found["pieces"], found["ids"], strict=True)
    ]
    for origin, text in shown[:own] + rejected + shown[own:]:
        if out and out[-1][0] == origin:
            out[-1][1].append(text)
        else:
            out.append((origin, [text]))
    return out


def plain(line: Line) -> str:
    """Return a line without colors, with a letter before the tokens of each provenance: `a[ the| cat] x[ sat] r[ ran]`."""
    parts = [f"{origin}[{'|'.join(tokens)}]" for origin, tokens in line.spans]
    return f"{line.label}  {' '.join(parts)}"


def closing(record: Record) -> list[str]:
    """Return the totals of a generation: tokens, rounds, accepted length, acceptance rate, and forwards by model."""
    rounds = len(record.rounds) or len(record.tokens)
    rate = acceptance_rate([record])
    acceptance = "" if rate is None else f", acceptance rate {column_of('acceptance_rate').format.text(rate)}"
    forwards = ", ".join(f"{name} {usage['forwards']}" for name, usage in record.models.items())
    ended = f"{record.finish} of '{record.window_of}'" if record.window_of else record.finish
    length = f"accepted length {column_of('accepted_length').format.text(accepted_length([record]))}"
    return [
        f"{len(record.tokens)} tokens, {rounds} rounds, {length}{acceptance}, ended by {ended}",
        f"forwards: {forwards}",
    ]


def visible(text: str, kept: str = "") -> str:
    """Return the text on one line with control characters escaped, except those in `kept`."""
    return "".join(c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text)
