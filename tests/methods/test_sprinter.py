"""SPRINTER's distributions by enumeration, over gates that are known: the gate's verdicts are branches like any other
choice.

q is the draft's distribution, p the target's. Nothing is sampled where a distribution is claimed, so no check passes by
chance.
"""

from collections.abc import Callable

import pytest
import torch

from specbench.decoding.method import StopCriteria
from specbench.decoding.sampling import Sampler, exact_distribution
from specbench.decoding.targets import Last
from specbench.features.verify.enumeration import (
    WIDTH,
    Distribution,
    TableModels,
    TableSession,
    distance,
    joint_distribution,
)
from specbench.methods.autoregressive import Autoregressive
from specbench.methods.sprinter import Sprinter
from specbench.methods.theories.sprinter_theory import expected_drafts, expected_run
from specbench.models.heads import Verifier
from tests.fixtures.formulas import run_odds, sprinter_distribution
from tests.fixtures.worlds import until_eos

ROUNDING = 1e-9
Q, P = (0.5, 0.3, 0.15, 0.05), (0.2, 0.2, 0.5, 0.1)  # docs/papers/README.md, Test position
SAMPLING = {
    "T=1": {"temperature": 1.0},
    "T=0.7": {"temperature": 0.7},
    "top-k": {"temperature": 1.0, "top_k": 2},
    "T=0": {"temperature": 0.0},
}
Rate = Callable[[float, float], float]  # (q(x), p(x)) -> P(the gate accepts x)


class Fixed(TableSession):
    """A model that says the same whatever it reads."""

    def __init__(self, law_: tuple[float, ...]) -> None:
        super().__init__(len(law_), 0)
        self._said = torch.tensor(law_, dtype=torch.float64).log()

    def score(self, ids, start, tree=None):
        return self._said.expand_as(super().score(ids, start, tree))


class Gate(Verifier):
    """Accepts x at a rate that it knows from q(x) and p(x) where x was drawn; the sampler chooses its verdict."""

    kind = "gate-stub"

    def __init__(self, rate: Rate, models: TableModels, sampler: Sampler) -> None:
        super().__init__(WIDTH)
        self.rate, self.models, self.sampler = rate, models, sampler

    def accepts(self, state, x, q):
        read = self.models["draft"].last_scored
        rows = [session.score(read, len(read) - 1)[0] for session in self.models.sessions.values()]
        rate = self.rate(*(float(self.sampler.probs(row)[int(x)]) for row in rows))
        return self.sampler.choose(torch.tensor([[1.0 - rate, rate]], dtype=torch.float64)).double()


def always(q: float, p: float) -> float:
    return 1.0


def never(q: float, p: float) -> float:
    return 0.0


def perfect(q: float, p: float) -> float:
    return float(q <= p)


def at_rates(tp: float, fp: float) -> Rate:
    return lambda q, p: tp if q <= p else fp


def world(seed: int = 8, vocabulary: int = 3) -> TableModels:
    return TableModels(
        {"draft": TableSession(vocabulary, seed), "target": TableSession(vocabulary, seed + 50)}, vocabulary=vocabulary
    )


def sprinter(**settings) -> Sprinter:
    return Sprinter(draft="draft", target="target", head="gate", **settings)


def gated(
    rate: Rate, models: TableModels, length: int, eos: int = -1, sampling=SAMPLING["T=1"], **settings
) -> Distribution:
    """The exact distribution of the first `length` tokens, to the first EOS where there is one."""

    def run(sampler: Sampler) -> tuple[int, ...]:
        models.heads = {"gate": Gate(rate, models, sampler)}
        return until_eos(sprinter(**settings), models, eos, sampler, length)

    return exact_distribution(run, **sampling)


def plain(models: TableModels, role: str, length: int, **sampling) -> Distribution:
    return joint_distribution(Autoregressive(scorers=(role,), target=Last()), models, length, **sampling)


@pytest.mark.parametrize("sampling", [SAMPLING[name] for name in ("T=0.7", "top-k", "T=0")], ids=str)
@pytest.mark.parametrize(
    "settings", [{}, {"bonus": False}, {"max_run": 2}, {"max_run": 2, "test_on_cap": False}], ids=str
)
@pytest.mark.parametrize("rate", [never, perfect])
def test_a_verifier_that_accepts_only_acceptable_tokens_follows_the_target(rate, settings, sampling):
    """SPRINTER, Algorithm 1.

    A verifier that always rejects, and one that accepts iff q(x) <= p(x) (eta_FP = 0 in Theorem 1)."""
    models = world()
    found = gated(rate, models, 3, sampling=sampling, **settings)
    assert sum(found.values()) == pytest.approx(1.0)
    assert distance(found, plain(models, "target", 3, **sampling)) < ROUNDING


@pytest.mark.parametrize("sampling", SAMPLING.values(), ids=SAMPLING)
def test_a_verifier_that_always_accepts_follows_the_draft(sampling):
    """Without a test at the cap the output is the draft's; with one after every token, the target's.

    Control: with one after every second token it is neither's.
    """
    models = world()
    q, p = (plain(models, role, 3, **sampling) for role in ("draft", "target"))
    assert distance(gated(always, models, 3, sampling=sampling, test_on_cap=False, max_run=2), q) < ROUNDING
    assert distance(gated(always, models, 3, sampling=sampling, max_run=1), p) < ROUNDING
    mixed = gated(always, models, 3, sampling=sampling, max_run=2)
    assert min(distance(mixed, q), distance(mixed, p)) > 0.05


@pytest.mark.parametrize(
    ("rate", "expected", "fp"),
    [
        (at_rates(0.6, 0.3), (0.29, 0.23, 0.395, 0.085), 0.3),
        (at_rates(0.1, 0.3), (0.29, 0.23, 0.395, 0.085), 0.3),
        (lambda q, p: float(q <= 1.5 * p), (0.2, 0.3, 0.4125, 0.0875), (0.0, 1.0, 1.0, 1.0)),
        (lambda q, p: {0.5: 0.9, 0.3: 0.1}.get(round(q, 6), 0.6), (0.47, 0.21, 0.255, 0.065), (0.9, 0.1, 0.6, 0.6)),
        (perfect, P, 0.0),
    ],
    ids=["eta_FP .3", "eta_TP does not matter", "tau 1.5", "token-dependent", "perfect"],
)
def test_the_first_token_has_the_distribution_of_the_vectors(rate, expected, fp):
    """SPRINTER, Algorithm 2: one complete sampling step.

    docs/papers/sprinter.md, Test vectors, and the theory function;

    rates (.9, .1) on the unacceptable tokens give TV .28.

    See erratum SP-2, docs/papers/sprinter.md, Errata.
    """
    models = TableModels({"draft": Fixed(Q), "target": Fixed(P)}, vocabulary=4)
    for settings in ({}, {"max_run": 1, "test_on_cap": False}):
        found = gated(rate, models, 1, **settings)
        assert [found[(x,)] for x in range(4)] == pytest.approx(expected)
    assert sprinter_distribution(Q, P, fp) == pytest.approx(expected)
    away = distance(found, {(x,): odds for x, odds in enumerate(P)})
    if isinstance(fp, tuple) and fp[0] == 0.9:
        assert away == pytest.approx(0.28)


@pytest.mark.parametrize("sampling", [SAMPLING["T=1"], SAMPLING["T=0.7"]], ids=["T=1", "T=0.7"])
def test_without_bonus_every_token_follows_theorem_1s_mixture(sampling):
    """Given all before it, whatever it was that brought it there.

    Control: a bonus follows p, and so the mixture no more.
    """
    models, sampler = world(2, 2), Sampler(**sampling)
    mixtures: Distribution = {(): 1.0}
    for _ in range(3):
        grown: Distribution = {}
        for prefix, odds in mixtures.items():
            rows = [models[role].score([0, *prefix], len(prefix))[0] for role in ("draft", "target")]
            each = sprinter_distribution(*(sampler.probs(row).tolist() for row in rows), 0.3)
            grown |= {(*prefix, x): odds * mass for x, mass in enumerate(each)}
        mixtures = grown
    assert distance(gated(at_rates(0.6, 0.3), models, 3, sampling=sampling, bonus=False), mixtures) < ROUNDING
    assert distance(gated(at_rates(0.6, 0.3), models, 3, sampling=sampling), mixtures) > 0.01


@pytest.mark.parametrize(
    ("n", "tp", "fp", "mean"), [(5, 0.9, 0.2, 3.8332), (10, 0.95, 0.5, 8.2227), (20, 0.8, 0.3, 3.9588)]
)
def test_run_lengths_follow_theorem_2(n, tp, fp, mean):
    """SPRINTER, Theorem 2.

    The first n drafted tokens are acceptable and no later one: the distribution of how many the gate accepts in a
    row, exactly.

    At T = 0 the verdicts are the only choices. The cap, far off, holds what is left.
    """
    cap = 40
    models = TableModels({"draft": Fixed(Q), "target": Fixed(P)}, vocabulary=4)

    def run(sampler: Sampler) -> int:
        def rate(q: float, p: float) -> float:
            return tp if len(models["draft"].last_scored) <= n else fp  # the prompt is one token

        models.heads = {"gate": Gate(rate, models, sampler)}
        round_ = next(sprinter(max_run=cap).rounds(models, sampler, StopCriteria(frozenset(), 1 + 2 * cap)))
        assert (
            round_.drafted
            == round_.counters["verifier_calls"]
            == min(int(round_.counters["verifier_accepts"]) + 1, cap)
        )
        return int(round_.counters["verifier_accepts"])

    found = exact_distribution(run, temperature=0.0)
    assert all(found[k] == pytest.approx(run_odds(k, n, tp, fp), abs=ROUNDING) for k in range(cap))
    assert sum(k * odds for k, odds in found.items()) == pytest.approx(mean, abs=1e-4)
    assert expected_run(n, tp, fp) == pytest.approx(mean, abs=1e-4)
    drafted = sum(min(k + 1, cap) * odds for k, odds in found.items())
    assert drafted == pytest.approx(expected_drafts(n, tp, fp, cap))


@pytest.mark.parametrize("settings", [{}, {"bonus": False}, {"max_run": 2}, {"test_on_cap": False}], ids=str)
def test_an_eos_in_a_run_ends_it_and_does_not_bias_the_output(settings):
    """It is committed where the gate accepts it, tested where not.

    A rejected one goes on. With a perfect gate: p's distribution.
    """
    models, eos = world(4), 1
    expected: Distribution = exact_distribution(
        lambda sampler: until_eos(Autoregressive(scorers=("target",), target=Last()), models, eos, sampler, 4)
    )
    assert len({len(tokens) for tokens in expected}) == 4
    assert distance(gated(perfect, models, 4, eos=eos, **settings), expected) < ROUNDING
