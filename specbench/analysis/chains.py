"""Names of what a chain's profile measures besides the chain."""

NONE = "–"  # in place of a value that there is not


def alone(level: str) -> str:
    """Return the name of plain decoding by one level; that of the target is the baseline."""
    return f"{level}-alone"


def under(low: str, high: str) -> str:
    """Return the name of speculation with one level's drafts, verified by another level."""
    return f"{low}-under-{high}"
