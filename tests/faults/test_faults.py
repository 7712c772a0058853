"""The fault campaign with a few trials of each attack, in `make test-slow`; `make faults` runs it long."""

import pytest

from tests.faults.campaign import ATTACKS


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS, ids=[each.name for each in ATTACKS])
def test_no_trial_of_the_attack_fails(attack, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    outcome = attack.run(attack.few, 1, tmp_path)
    if outcome.skipped:
        pytest.skip(outcome.skipped)
    assert outcome.trials
    assert not outcome.failures
