"""A new snapshot names the known faults that it could not see."""

from specbench.decoding import rejection
from specbench.features.gate.unseen_faults import Fault, injected
from tests.fixtures.console import specbench

FEW = ("-p", "tiny", "-t", "wmt", "--max-new-tokens", "24", "--counters-only")


def test_a_greedy_snapshot_says_that_it_cannot_see_a_wrong_rejection_rule(tmp_path):
    done = specbench(
        "gate", "record", "a.json", "-m", "sd,sd-tree", "-n", "2", "--temperature", "0", *FEW, cwd=tmp_path
    )
    for fault in Fault:
        assert f"sd on tiny, wmt, T = 0: {fault} (greedy decoding does not depend on it)" in done.stderr
    assert "sd-tree on" not in done.stderr and "faults were not tried on sd-tree, which test drafts" in done.stderr


def test_a_sampled_snapshot_of_uncertain_models_sees_the_faults(tmp_path):
    done = specbench("gate", "record", "a.json", "-m", "sd", "-n", "5", "--temperature", "2", *FEW, cwd=tmp_path)
    assert "wrote a.json" in done.stderr and "could not see" not in done.stderr


def test_an_injected_fault_is_removed_after_an_error():
    right = rejection.accepted_count_distribution, rejection.residual
    for fault in Fault:
        try:
            with injected(fault):
                assert (rejection.accepted_count_distribution, rejection.residual) != right
                raise ValueError
        except ValueError:
            pass
    assert (rejection.accepted_count_distribution, rejection.residual) == right
