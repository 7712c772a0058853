"""Provenance of tokens: which step of a round each token of a generation came from."""

from specbench.runs.record import Record, RoundRecord

MEANING = {
    "a": "drafted and accepted",
    "d": "drafted, committed untested",
    "r": "replaces a rejected token",
    "b": "bonus token after an accepted draft",
    "m": "sampled by a model without a draft",
    "x": "drafted and rejected, or drafted after a rejected token",
}  # letters of provenance; rejected tokens are not part of the output


def provenance(record: Record) -> str:
    """A letter of MEANING for each token of a generation."""
    letters = "".join(map(of_round, record.rounds))
    return letters[: len(record.tokens)] + "m" * (len(record.tokens) - len(letters))


def of_round(found: RoundRecord) -> str:
    """A letter for each token that a round committed: untested tokens first, then accepted ones, then the model's own."""
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
