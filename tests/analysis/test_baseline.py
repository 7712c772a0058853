"""Slow baselines: by how much at most they overstate speedups, and what remains of a speedup at the limit of memory."""

from pathlib import Path

import pytest
import torch

from specbench.analysis.baseline import BaselineSpeed, slow_baseline
from specbench.analysis.forwards import Traffic, speedup_at_limit
from specbench.analysis.metric import METRICS, Context
from specbench.config.construct import construct
from specbench.config.pair import Pair
from specbench.decoding.traits import Traits
from specbench.machine.hardware import Bandwidth, ForwardCheck, bandwidth_of
from specbench.models.resolve_models import Execution, resolve_models
from specbench.runs.run_spec import MethodSpec
from tests.fixtures.records import record, usage_of
from tests.fixtures.summaries import ENVIRONMENT

READ = Bandwidth(13.7e9, "read")


def speed(share=None, parameters=86_000_000, checks=(None,), bits=32) -> BaselineSpeed:
    return BaselineSpeed(
        method="ar",
        parameters=parameters,
        forward_bytes=parameters * bits / 8,
        share=share,
        bandwidth=READ,
        checks=checks,
    )


def test_a_large_baseline_at_44_percent_of_the_bandwidth_overstates_by_its_inverse():
    found = slow_baseline(speed(0.44))
    assert found is not None
    assert found.reasons == ("bandwidth",)
    assert found.factor == pytest.approx(1 / 0.44)
    assert found.reference_ratio is None


@pytest.mark.parametrize(("gigabytes_per_second", "is_slow"), [(6.5, True), (8.5, False), (11.6, False), (13.7, False)])
def test_the_padded_rule_of_earlier_revisions_is_slow_on_avx2(gigabytes_per_second, is_slow):
    """Its speed at one row, and those of faster products, of 13.7 GB/s that one processor with AVX2 reads."""
    assert (slow_baseline(speed(1e9 * gigabytes_per_second / READ.bytes_per_second)) is not None) == is_slow


@pytest.mark.parametrize(
    ("share", "parameters"), [(0.9, 86_000_000), (0.6, 86_000_000), (0.44, 2_000_000), (None, 86_000_000)]
)
def test_fast_small_and_unknown_baselines_are_not_slow(share, parameters):
    assert slow_baseline(speed(share, parameters)) is None


@pytest.mark.parametrize(("bits", "is_slow"), [(32, True), (16, True), (8, True), (4, False)])
def test_a_baseline_is_large_by_the_bytes_that_its_forwards_read(bits, is_slow):
    """86M weights of 4 bits are 43 MB, which a cache may hold."""
    assert (slow_baseline(speed(0.44, bits=bits)) is not None) == is_slow
    assert slow_baseline(speed(0.44, 200_000_000, bits=4)) is not None


def test_a_forward_slower_than_the_reference_overstates_at_any_size():
    found = slow_baseline(speed(0.9, 2_000_000, [ForwardCheck(64, 0.004, 0.006)]))
    assert found is not None
    assert found.reasons == ("reference",)
    assert found.factor == found.reference_ratio == pytest.approx(1.5)


def test_a_forward_within_the_noise_of_the_reference_is_not_slow():
    assert slow_baseline(speed(0.9, checks=[ForwardCheck(64, 0.100, 0.104)])) is None
    assert slow_baseline(speed(0.9, checks=[ForwardCheck(64, 0.100, 0.050)])) is None


def test_the_larger_of_two_factors_is_stated():
    found = slow_baseline(speed(0.5, checks=[ForwardCheck(64, 0.010, 0.012)]))
    assert found is not None
    assert found.reasons == ("bandwidth", "reference")
    assert (found.factor, found.reference_ratio) == (pytest.approx(2.0), pytest.approx(1.2))


def test_the_reference_of_several_models_is_the_sum_of_their_forwards():
    one, two = ForwardCheck(64, 0.010, 0.012), ForwardCheck(64, 0.030, 0.048)
    assert speed(checks=[one, two]).reference_ratio == pytest.approx(60 / 40)
    assert speed(checks=[one, None]).reference_ratio is None, "one of the models is not checked"


def test_the_bandwidth_of_an_earlier_folder_is_that_of_a_copy():
    assert bandwidth_of(ENVIRONMENT) == Bandwidth(1e9, "copy")
    assert bandwidth_of({**ENVIRONMENT, "read_bytes_per_second": 2e9}) == Bandwidth(2e9, "read")


# The target has 800 bytes of weights and 2 bytes per cached position, the draft 80 and 1. Memory reads 100 bytes a second,
# so 85 at the limit. Forwards attend to 25 positions on average: 10 s for a token of the target, 1.235 s for the draft.
TRAFFIC = {"target": Traffic(800.0, 2.0), "draft": Traffic(80.0, 1.0)}


def usage(by_fed):
    forwards = sum(count for count, _ in by_fed.values())
    return usage_of(by_fed, read=25 * forwards)


def ar(seconds=84.0, one=20.0):
    """Four tokens in forwards of `one` seconds each, and the rest outside of them."""
    return record("ar", tokens=4, seconds=seconds, models={"target": usage({1: (4, 4 * one)})})


def sd(draft=2.0, head=None):
    """Eight tokens: two blocks of 22 s, one single token of 20 s, four draft tokens, and 2 s outside forwards."""
    models = {"target": usage({5: (2, 44.0), 1: (1, 20.0)}), "draft": usage({1: (4, 4 * draft)})}
    extra = {"head": usage({1: (2, 6.0)})} if head else {}
    return record("sd", tokens=8, seconds=66.0 + 4 * draft + (6.0 if head else 0.0), models=models | extra)


def test_a_speedup_at_the_limit_replaces_forwards_of_one_token_and_keeps_blocks():
    draft = (80 + 25) / 85
    expected = (8 / (2 + 44 + 10 + 4 * draft)) / (4 / (4 + 40))
    assert speedup_at_limit([sd()], [ar()], TRAFFIC, 100.0).value == pytest.approx(expected)


def test_a_forward_faster_than_the_limit_stays_as_measured():
    faster = ar(seconds=24.0, one=5.0)
    expected = (8 / (2 + 44 + 10 + 4 * 1.0)) / (4 / 24)
    assert speedup_at_limit([sd(draft=1.0)], [faster], TRAFFIC, 100.0).value == pytest.approx(expected)


def test_a_head_of_unknown_size_stays_as_measured():
    expected = (8 / (2 + 44 + 10 + 4 + 6)) / (4 / (4 + 40))
    assert speedup_at_limit([sd(draft=1.0, head=True)], [ar()], TRAFFIC, 100.0).value == pytest.approx(expected)


def context(**changes) -> Context:
    method = MethodSpec(preset="sd", options={}, traits=Traits(roles=("target",)))
    return Context(**{"baseline": [ar()], "method": method, "models": {}, "bandwidth": READ, **changes})


def test_the_share_of_the_bandwidth_counts_the_codes_of_a_quantized_baseline():
    shares, read = {}, {}
    for kind in ("", "int8-g32-asym", "int4-channel"):
        models = {"target": {"path": "specbench:tiny/models/target", "quantization": kind}}
        pair = construct(Pair, {"models": models}, "pair.toml")
        found = resolve_models(pair, ("target",), Path(), Execution(torch.device("cpu"), elsewhere=True))
        sources = {role: model.source for role, model in found.items()}
        read[kind] = 4 * sources["target"].forward_bytes + 4 * 25 * sources["target"].position_bytes
        shares[kind] = METRICS["bound_share"].compute([ar()], context(models=sources))
    assert read["int4-channel"] < read["int8-g32-asym"] < 0.5 * read[""]
    assert shares == {kind: pytest.approx(size / READ.bytes_per_second / 84.0) for kind, size in read.items()}


def test_the_baseline_itself_and_runs_without_read_bandwidth_have_no_speedup_at_the_limit():
    metric = METRICS["speedup_at_limit"]
    assert metric.applies([sd()], context())
    assert not metric.applies([ar()], context())
    assert not metric.applies([sd()], context(bandwidth=Bandwidth(1e9, "copy")))
    assert metric.is_timed, "untimed runs leave it out"


def test_models_that_run_at_the_same_time_have_no_speedup_at_the_limit():
    overlapping = sd()
    overlapping.models["draft"].overlapped_seconds = 3.0
    assert not METRICS["speedup_at_limit"].applies([overlapping], context())
