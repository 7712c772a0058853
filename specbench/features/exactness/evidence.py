"""How much evidence a mixture of likelihood ratios needs, and the limits that the strongest verdicts depend on."""

import math

QUANTILE_95 = 1.645  # of the normal distribution, for 19 of 20 cases
LARGEST_VARIATION = 0.02  # total variation of a token: a sampler is called exact if larger departures would be found
LARGEST_FACTOR = 1.05  # of the acceptance probability, in the same sense


def information_needed(alarm: float, alternatives: int) -> float:
    """Return the mean m of one log-likelihood ratio at which p falls to `alarm` in 19 of 20 cases.

    The mean over n alternatives reaches 1 / alarm if one of their ratios reaches n / alarm. The ratio's logarithm is nearly
    normal, with a variance of twice its mean. So m solves m - QUANTILE_95 sqrt(2 m) = log(n / alarm).
    """
    least = math.log(alternatives / alarm)
    return (QUANTILE_95 / math.sqrt(2.0) + math.sqrt(QUANTILE_95**2 / 2.0 + least)) ** 2
