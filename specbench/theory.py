"""Floor 0: what the papers' theory predicts. Plain numbers, no torch.

Throughout: acceptance events are independent with a rate per proposing model, and drawing and combining cost nothing.
`cost(i, k)` is what a forward of model i costs that feeds k tokens. The papers assume cost(i, k) = cost(i, 1): a block for
the price of one. Giving the measured price instead yields the corrected prediction.
"""

from collections.abc import Callable, Sequence

Cost = Callable[[int, int], float]
NEGLIGIBLE = 1e-12
MOST_TOKENS = 20_000  # a run without rejections is followed so far


def expected_accepted(a: float, k: int) -> float:
    """Expected accepted tokens of k drafted ones, a (1 - a^k) / (1 - a); k at a = 1."""
    return sum(a**j for j in range(1, k + 1))


def speculative(
    a: float,
    gamma: int,
    cost: Cost,
    baseline: float,
    *,
    bonus: str,
    scorers: int,
    drafter_scores: bool = False,
    pending: float = 1.0,
) -> float:
    """Long-run speedup of speculation over a baseline that costs `baseline` a token.

    Model 0 drafts gamma tokens; models 1 .. scorers verify them in one forward each. `bonus` is the method's. With one that
    is committed (exact, paper): Leviathan et al. 2023, Theorem 3.8, tokens a round (1 - a^(gamma + 1)) / (1 - a). Without,
    SE's Theorem 3.1, (1 - a^gamma) / (1 - a). The drafter reads two tokens in a round's first forward where the last round
    was accepted whole and followed by a bonus. Where it is a scorer too, it reads its last drafted token for an exact bonus
    at once, in a forward more; a deferred one is accepted at the rate `pending`, and costs a forward where it is refused.
    """
    whole, blocks = a**gamma, expected_accepted(a, gamma)
    if drafter_scores and bonus == "deferred":
        # Rounds that begin without a pending token, and with one, in this proportion:
        fresh, opened = 1.0 - pending * whole, whole
        block = blocks + 1.0 - whole
        verifying = sum(cost(i, gamma + 1) for i in range(1, scorers + 1))
        spent = fresh * (gamma * cost(0, 1) + verifying)
        spent += opened * (cost(0, 2) + pending * ((gamma - 1) * cost(0, 1) + verifying))
        return (fresh * block + opened * (1.0 + pending * block)) * baseline / spent
    more = bonus != "none"
    tokens = blocks + (1.0 if more else 1.0 - whole)
    drafting = gamma * cost(0, 1)
    if more:
        exact = drafter_scores and bonus == "exact"
        drafting += whole * (cost(0, 1) if exact else cost(0, 2) - cost(0, 1))
    verifying = sum(cost(i, gamma + 1 if more else gamma) for i in range(1, scorers + 1))
    return tokens * baseline / (drafting + verifying)


def speculative_ensemble(a: Sequence[float], gamma: Sequence[int], cost: Cost) -> float:
    """Exact long-run speedup of Speculative Ensemble over the sequential ensemble, n models (methods 3.5 to 3.7).

    a[i] is the acceptance rate of model i's proposals. After every rejection all models lack the same one token and model 0
    starts afresh, so runs between rejections are independent and alike; and as long as nothing is rejected, the algorithm
    takes one fixed course. Following that course, each forward weighted by the odds that the run gets so far, gives the
    expected tokens and the expected cost of a run. For n = 2 it equals the closed form of three cycle types.
    """
    n = len(a)
    pending: list[int] = []  # owners of B
    scored = [0] * n  # |C_i|
    alive, tokens, spent = 1.0, 0.0, 0.0

    def draw(i: int) -> None:
        nonlocal spent
        spent += alive * cost(i, len(pending) - scored[i] + 1)  # what it has not read of B, and one token before
        pending.append(i)
        scored[i] = len(pending)

    while alive > NEGLIGIBLE and tokens < MOST_TOKENS:
        i = min(range(n), key=lambda j: scored[j])
        draw(i)
        ready = min(scored)
        for _ in range(ready):
            tokens += alive
            alive *= a[pending.pop(0)]
        scored = [have - ready for have in scored]
        for _ in range(gamma[i] - 1):
            draw(i)
    return sum(cost(i, 1) for i in range(n)) * tokens / spent


def acceptance_of(speedup: float, gamma: Sequence[int], cost: Cost) -> float:
    """The acceptance rate, the same for all models, at which `speculative_ensemble` predicts a speedup.

    What a paper that prints speedups alone must have had, by its own model. Raises ValueError where no rate gives it.
    """
    low, high = 0.0, 1.0

    def predicted(a: float) -> float:
        return speculative_ensemble([a] * len(gamma), gamma, cost)

    if not predicted(low) <= speedup <= predicted(high):
        raise ValueError(f"a speedup of {speedup} is not between {predicted(low):.2f} and {predicted(high):.2f}")
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if predicted(middle) > speedup else (middle, high)
    return (low + high) / 2


def alternate_proposal(a: float, gamma_q: int, gamma_p: int, c: float) -> float:
    """SE's Theorem 3.6 as printed: one q-cycle that follows a p-cycle. Not the long-run speedup (erratum SE-4)."""
    tokens = sum(a**j for j in range(gamma_q))  # (1 - a^gamma_q) / (1 - a)
    return tokens * (1 + c) / (1 + c * gamma_q - a**gamma_p * c)


def never_slower(a_q: float, a_p: float, c: float) -> float:
    """SE's Corollary 3.7, the long-run speedup at draft lengths of 1: (1 + c) / (1 + c - P - Q c), at least 1."""
    p, q = (
        a_q / (1 + a_q),
        a_q * a_p / (1 + a_q),
    )  # shares of the cycles in which p, and q, proposes with a token pending
    return (1 + c) / (1 + c - p - q * c)


def least_acceptance(weight: float) -> float:
    """SE's Theorem 3.2: proposals of a model of this weight in a mixture are accepted at least as often. Equal iff supports
    are disjoint."""
    return weight


def mixture_acceptance(weight: float, distance: float) -> float:
    """How often a two-model mixture accepts the proposals of the model of this weight, 1 - (1 - w) TV(q, p) (methods 3.7)."""
    return 1.0 - (1.0 - weight) * distance


def better_proposer(weight_q: float) -> str:
    """SE's Corollary 3.3, for models that cost alike: `q` or `p`, the heavier, whose acceptance is at least 1/2."""
    return "q" if weight_q >= 0.5 else "p"


def useful_proposer(weight_q: float, c: float) -> str:
    """SE's Corollary 3.5: the model, `q` or `p`, whose weight alone makes naive speculation by two tokens no slower.

    Swapping the models turns c into 1/c and the weight into the rest, so one of them always is; at weight_q = c / (1 + c)
    both are.
    """
    return "q" if weight_q >= least_useful_acceptance(c) else "p"


def least_useful_acceptance(c: float) -> float:
    """SE's Corollary 3.4: with two drafted tokens naive speculation is faster iff a > c / (1 + c).

    By Theorem 3.2 a weight above it will do.
    """
    return c / (1 + c)


def rejection(defers: Sequence[bool], distances: Sequence[float]) -> float:
    """SpecCascade's Lemma 3: how often a cascade rejects a drafted token, the mean over positions of delta TV(q, p)."""
    return sum(d * tv for d, tv in zip(defers, distances, strict=True)) / len(distances)


def regret_bound(truth: Sequence[float], q: Sequence[float], p: Sequence[float]) -> float:
    """SpecCascade's Lemma 5: the OPT plug-in's regret against the best rule that knows the truth, at a position:
    max |P - q| + max |P - p|."""
    return max(abs(t - x) for t, x in zip(truth, q, strict=True)) + max(
        abs(t - x) for t, x in zip(truth, p, strict=True)
    )


def sequential_cascade(rate: float, cost: Cost, tokens: int = 1) -> float:
    """Speedup over the large model of a sequential cascade that defers at this rate, 1 / (c + rate) (methods 4.8).

    The rate is of positions, or of whole sequences. `tokens` is what the large model reads in a forward: all that were kept
    since it was last asked.
    """
    return cost(1, 1) / (cost(0, 1) + rate * cost(1, tokens))
