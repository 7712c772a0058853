"""Records of speculation by request, of vLLM and AIPerf."""

import json

import pytest

from specbench.errors import ConfigError
from specbench.features.exchange.profile_sources import is_profile, profiles_of
from specbench.features.exchange.request_records import read

VLLM = {"acceptance_histogram": [2, 0, 1], "num_spec_steps": 3, "num_accepted_draft_tokens": 2, "num_spec_tokens": 2}
AIPERF = {"acceptance_histogram": {"0": 1, "2": 2}, "num_spec_steps": 3, "engine": "vllm"}


def test_histograms_of_all_requests_are_added(tmp_path):
    path = tmp_path / "records.jsonl"
    rows = [{"id": 1, "metrics": {"spec_decode": VLLM}}, {"request": {"deep": [AIPERF]}}, {"id": 3}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert is_profile(path)
    (profile,) = profiles_of(path)
    assert (
        profile.rounds == 6
        and profile.survival == pytest.approx((0.5, 0.5))
        and profile.mean_length == pytest.approx(2.0)
    )
    assert profile.conditions == {"engine": "vllm"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_spec_steps": 4}, "record 1: num_spec_steps is 4, and its histogram has 3"),
        ({"num_accepted_draft_tokens": 3}, "num_accepted_draft_tokens is 3, and its histogram has 2"),
        ({"acceptance_histogram": ["many"]}, "line 1: "),
        ({"acceptance_histogram": [0, 0]}, "there are no rounds"),
    ],
)
def test_records_that_contradict_themselves_are_errors(change, message):
    record = {**VLLM, **change} if "acceptance_histogram" not in change else change
    with pytest.raises(ConfigError, match=message):
        read(json.dumps(record), "x")


def test_a_draft_length_that_no_request_reached_is_known_from_the_record():
    assert read(json.dumps(VLLM | {"num_spec_tokens": 4}), "x").survival == pytest.approx((1 / 3, 1 / 3, 0.0, 0.0))
