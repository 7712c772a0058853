"""AIPerf's summary of a run, profile_export_aiperf.json."""

import json

import pytest

from specbench.errors import ConfigError
from specbench.features.exchange.profile_sources import is_profile, profiles_of
from tests.faults.exchanged import AIPERF


def written(folder, **changes: object):
    path = folder / "profile_export_aiperf.json"
    table = {key: value for key, value in {**AIPERF, **changes}.items() if value is not None}
    path.write_text(json.dumps(table))
    return path


def test_the_acceptance_of_all_requests_is_read(tmp_path):
    path = written(tmp_path)
    assert is_profile(path)
    (profile,) = profiles_of(path)
    assert profile.survival == pytest.approx((14 / 16, 12 / 16, 8 / 16, 2 / 16)) and profile.rounds == 16
    assert profile.mean_length == pytest.approx(3.25)
    assert (profile.target, profile.conditions) == ("m", {"concurrency": 4})


def test_positions_that_no_round_reached_are_known_from_the_drafted_tokens(tmp_path):
    histogram = {"pooled_spec_decode_acceptance_histogram": {"0": 12, "1": 4}}
    totals = {
        "total_accepted_draft_tokens": {"avg": 4.0},
        "spec_decode_token_weighted_acceptance_length": {"avg": 1.25},
    }
    (profile,) = profiles_of(written(tmp_path, **histogram, **totals))
    assert profile.survival == pytest.approx((0.25, 0.0, 0.0, 0.0))


@pytest.mark.parametrize("config", [None, {}, {"loadgen": {"concurrency": [1, 4]}}, {"endpoint": "m"}, []])
def test_settings_of_other_versions_are_left_out(tmp_path, config):
    (profile,) = profiles_of(written(tmp_path, input_config=config))
    assert profile.rounds == 16 and profile.conditions == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"pooled_spec_decode_acceptance_histogram": None},
            "has no pooled_spec_decode_acceptance_histogram; help: start vLLM",
        ),
        ({"pooled_spec_decode_acceptance_histogram": {}}, "has no pooled_spec_decode_acceptance_histogram"),
        ({"pooled_spec_decode_acceptance_histogram": {"0": 0}}, "total_spec_decode_steps is 16, and .* has 0"),
        ({"pooled_spec_decode_acceptance_histogram": {"-1": 2}}, "Expected `int` >= 0"),
        ({"pooled_spec_decode_acceptance_histogram": {"999999999": 2}}, "Expected `int` <= 1024"),
        ({"pooled_spec_decode_acceptance_histogram": {"a": 2}}, "Expected `int`"),
        ({"total_spec_decode_steps": {"avg": 15.0}}, "total_spec_decode_steps is 15, and .* has 16"),
        ({"total_accepted_draft_tokens": {"avg": 37.0}}, "total_accepted_draft_tokens is 37, and .* has 36"),
        ({"total_draft_tokens": {"avg": 30.0}}, "total_draft_tokens is 30, and 36 were accepted"),
        ({"total_draft_tokens": {"avg": 1e9}}, "more than 1024 per round"),
        ({"total_draft_tokens": {"avg": float("nan")}}, "Expected `float`"),
        ({"spec_decode_token_weighted_acceptance_length": {"avg": 3.5}}, "is 3.5, and .* implies 3.2500"),
    ],
)
def test_summaries_that_contradict_themselves_are_errors(tmp_path, changes, message):
    path = written(tmp_path, **changes)
    if changes == {"pooled_spec_decode_acceptance_histogram": None}:
        assert is_profile(path)
    with pytest.raises(ConfigError, match=rf"profile_export_aiperf.json: .*{message}"):
        profiles_of(path)
