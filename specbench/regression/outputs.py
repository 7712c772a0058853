"""Outputs with other tokens on another processor."""

from specbench.regression.checks import Finding, Rows, shared
from specbench.regression.verdict import Status


def other_tokens(base: Rows, new: Rows, found: Finding) -> Finding:
    """Return the finding on decoding on another processor: inconclusive if it had no loss and any output has other tokens.

    The counters do not decide whether the processor's arithmetic or a change of the code is the cause.
    """
    a, b = shared(base, new)
    ids = sum(x.ids != y.ids for x, y in zip(a, b, strict=True))
    if not ids or found.status not in (Status.same, Status.improved):
        return found
    cause = "another processor's arithmetic may be the cause; help: compare on the recorded machine"
    return Finding(
        Status.inconclusive, "other tokens", f"{found.detail}; {cause}", f"{ids} of {len(a)} outputs have other tokens"
    )
