"""Seeds of a server: a false alarm needs an unlikely event, and what is not promised is no fault."""

import pytest
import torch

from scripts import exactness_trials
from specbench.features.exactness.outcome import Outcome
from specbench.features.servers.exactness.seeds import SeedCheck, SeededOutputs, least_repeated, p_of_exchanges
from specbench.features.servers.exactness.two_samples import PromptOutputs


def sampled(chances: list[float], count: int, seed: int) -> list[tuple[int, ...]]:
    """Return independent outputs of one token."""
    generator = torch.Generator().manual_seed(seed)
    return [(int(x),) for x in torch.multinomial(torch.tensor(chances), count, replacement=True, generator=generator)]


@pytest.mark.parametrize("chances", [[0.97, 0.03], [0.999, 0.001], [0.5, 0.5]])
def test_independent_outputs_are_rarely_called_equal_however_sure_the_prompt_is(chances):
    alarms = 0
    for seed in range(300):
        outputs = sampled(chances, 8, seed)
        p_first = chances[outputs[0][0]]
        alarms += SeededOutputs({0: outputs}).check([p_first] * 7, None, 0.9).are_ignored(1)
    assert alarms <= 2


def test_one_output_for_all_seeds_is_found_and_counted():
    check = SeededOutputs({0: [(1, 2)] * 8, 1: [(3, 4)] * 8}).check([0.1] * 14, None, 0.9)
    assert check.are_ignored(tests=50)
    assert (check.others, check.others_equal, check.others_expected) == (14, 14, pytest.approx(1.4))


def test_a_few_outputs_that_a_batch_changes_are_no_fault_and_most_are():
    assert not SeedCheck(pairs=96, equal=91).do_not_repeat(100)
    assert SeedCheck(pairs=8, equal=0).do_not_repeat(100)
    assert not SeedCheck(pairs=8, equal=6).do_not_repeat(1)


def test_a_server_with_much_rounding_may_repeat_fewer_outputs():
    exact, coarse = (least_repeated(tolerance, 1.0, 32) for tolerance in (1e-5, 0.1))
    assert exact > 0.89 and coarse < 0.01
    assert not SeedCheck(pairs=8, equal=0, repeating=coarse).do_not_repeat(1)


def test_a_server_that_does_not_promise_to_repeat_seeds_is_not_tested_for_it():
    check = SeedCheck(pairs=8, equal=0, is_promised=False)
    assert not check.do_not_repeat(1) and check.number_of_tests == 0


def test_text_servers_are_compared_by_exchanges_of_outputs():
    other = [sampled([0.2] * 5, 8, seed) for seed in range(4)]
    honest = [PromptOutputs(tuple(sampled([0.2] * 5, 8, 50 + i)), tuple(each)) for i, each in enumerate(other)]
    equal = [PromptOutputs(((i,),) * 8, tuple(each)) for i, each in enumerate(other)]
    assert p_of_exchanges(honest, 2000) > 0.01 and p_of_exchanges(equal, 2000) <= 1e-3


@pytest.mark.slow
def test_simulated_honest_servers_are_not_called_inexact():
    outcomes = {exactness_trials.honest_verdict(1000 + seed)[1] for seed in range(3)}
    assert Outcome.differs not in outcomes and outcomes


@pytest.mark.slow
def test_a_simulated_server_that_ignores_seeds_is_found(monkeypatch):
    monkeypatch.setattr(exactness_trials, "seed_of", lambda request, number: 3 if request.seed else 10**9 + number)
    assert exactness_trials.honest_verdict(1001)[1] is Outcome.differs
