"""Sequential cascades, of tokens and of whole answers. See docs/papers/speccascade.md."""

from specbench.analysis.formula import Rates, formula
from specbench.analysis.theory import RoundCounts, forwards_of_mean
from specbench.decoding.traits import Theory


def sequential_cascade(rate: float, tokens: float = 1.0) -> RoundCounts:
    """Return the counts of a token of a sequential cascade, whose speedup over its large model is 1 / (c + rate).

    `rate` is the share of positions, or of whole sequences, that are deferred. `tokens` is the mean number of tokens that
    a forward of the large model reads: all tokens since the last deferral.

    See docs/papers/speccascade.md, Speedup.
    """
    large = {size: rate * share for size, share in forwards_of_mean(tokens).items()}
    return RoundCounts(1.0, [{1: 1.0}, large])


@formula("token cascade")
def token_cascade(method: Theory, rates: Rates) -> RoundCounts:
    """Return the counts of a cascade that defers single tokens."""
    return sequential_cascade(rates.deferral(), rates.block(method.models[-1]))


@formula("sequence cascade")
def sequence_cascade(method: Theory, rates: Rates) -> RoundCounts:
    """Return the counts of a cascade that defers whole answers."""
    return sequential_cascade(rates.deferral())
