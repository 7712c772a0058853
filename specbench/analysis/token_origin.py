"""Provenance of tokens: drafted, accepted, replaced, bonus, or sampled without a draft."""

from typing import NotRequired, TypedDict

from specbench.runs.record import Record, RoundRecord

MEANING = {
    "a": "drafted and accepted",
    "d": "drafted, committed untested",
    "r": "replaces a rejected token",
    "b": "bonus token after an accepted draft",
    "m": "sampled by a model without a draft",
    "x": "drafted and rejected, or drafted after a rejected token",
}  # letters of provenance; rejected tokens are not part of the output


class TracedRound(TypedDict):
    """A recorded round with the ids, texts and origins of its tokens. `rejected` is text; `inner` made the draft."""

    tokens: int
    drafted: int
    tested: int
    accepted: int
    proposers: list[str]
    counters: NotRequired[dict[str, float]]
    untested: NotRequired[int]
    rejected: str
    ids: list[int]
    pieces: list[str]
    origins: str
    inner: "list[TracedRound]"


def provenance(record: Record) -> str:
    """Return a letter of MEANING for each token of a generation."""
    letters = "".join(map(of_round, record.rounds))
    return letters[: len(record.tokens)] + "m" * (len(record.tokens) - len(letters))


def of_round(found: RoundRecord) -> str:
    """Return a letter for each committed token of a round: first untested, then accepted ones, then the model's own."""
    untested, accepted = int(found.get("untested", 0)), int(found["accepted"])
    rest = int(found["tokens"]) - untested - accepted
    own = "r" if found["tested"] > accepted else "b" if found["drafted"] or accepted else "m"
    return "d" * untested + "a" * accepted + own * rest


def rejected(record: Record) -> list[tuple[int, str]]:
    """Rejected drafts as (position of the rejected token in the output, text of the draft from there)."""
    found, position = [], 0
    for each in record.rounds:
        if each.get("rejected"):
            found.append((position + each.get("untested", 0) + each["accepted"], each["rejected"]))
        position += each["tokens"]
    return found
