"""Where each token of a generation came from, by what its rounds recorded."""

from specbench.runs.record import Record, Round

MEANING = {
    "a": "drafted and accepted",
    "d": "drafted and kept untested",
    "r": "replaced a refused one",
    "b": "bonus behind an accepted draft",
    "m": "a model's own, without a draft",
    "x": "drafted and refused, or behind that",
}  # letters; what was refused is no token of the output


def origins(record: Record) -> str:
    """A letter of MEANING for each token."""
    told = "".join(map(of_round, record.rounds))
    return told[: len(record.tokens)] + "m" * (len(record.tokens) - len(told))


def of_round(told: Round) -> str:
    """A letter for each token that a round committed: untested ones, then accepted ones, then its own."""
    untested, accepted = int(told.get("untested", 0)), int(told["accepted"])
    rest = int(told["tokens"]) - untested - accepted
    own = "r" if told["tested"] > accepted else "b" if told["drafted"] or accepted else "m"
    return "d" * untested + "a" * accepted + own * rest


def lost(record: Record) -> list[tuple[int, str]]:
    """What was drafted and refused, and behind which token the refused one would have stood."""
    found, at = [], 0
    for each in record.rounds:
        if each.get("refused"):
            found.append((at + each.get("untested", 0) + each["accepted"], each["refused"]))
        at += each["tokens"]
    return found
