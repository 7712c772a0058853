"""Which presets are candidates, how the key `advise` varies them, and what their proposers say of costs and other engines."""

import json
from pathlib import Path

import pytest

from specbench.config.options import Options
from specbench.config.pair import HeadKind, HeadSpec, ModelSpec, Pair
from specbench.config.presets import Preset, add, preset
from specbench.features.advise.answer import other_engines
from specbench.features.advise.candidate_set import candidate_of, pilots_of, register_candidates
from specbench.features.advise.candidates import Candidate, CandidateResult
from specbench.resolution.selection import read_pair

TARGET = ModelSpec(path="target")


def preset_like(name: str, source: str, advise: str, **proposer: object) -> None:
    """Register a preset that is another one with a key `advise` and other values of its proposer."""
    table = preset("method", source).table
    changed = {**table, "advise": advise, "proposer": {**table["proposer"], **proposer}}
    add("method", Preset(name, Path("own.toml"), changed))


def candidates(temperature: float = 0.0) -> dict[str, Candidate]:
    pair = read_pair("tiny", Options())[1]
    return {candidate.name: candidate for candidate in register_candidates(pair, temperature)}


def test_a_preset_becomes_a_candidate_by_its_key_alone():
    before = candidates(1.0)
    preset_like("own-stop", "adaedl", "stopped")
    preset_like("own-lookup", "pld", "lookup", ngram=5)
    preset_like("own-drafts", "sd", "lossless")
    preset_like("own-tree", "sd-tree", "lossless")
    preset_like("own-tests", "sd-block", "block")
    found = candidates(1.0)
    new = {name: found[name].kind for name in found if name not in before}
    assert new == {
        "own-stop-8": "stopped", "own-lookup": "lookup", "own-drafts-4": "model", "own-tree": "tree",
        "own-tests-4": "model", "own-tests-7": "model",
    }  # fmt: skip
    assert found["own-stop-8"].proposer == {"name": "model", "model": "draft", "gamma": 8, "stop": {"name": "adaedl"}}
    assert found["own-drafts-4"].gamma == 4
    pilots, first = (
        sorted(
            (str(each.kind), each.drafter, each.gamma * (each.kind == "model")) for each in pilots_of([*some.values()])
        )
        for some in (found, before)
    )
    assert pilots == first, "one of each kind gives the costs"


@pytest.mark.parametrize(
    ("kind", "names", "proposer"),
    [
        (HeadKind.mtp, ["own-3", "own-5"], {"name": "eagle", "head": "own", "base": "target", "gamma": 3}),
        (HeadKind.dspark, ["own-5"], {"name": "dflash", "head": "own", "base": "target", "gamma": 5}),
        (HeadKind.dsl, [], None),
    ],
)
def test_a_head_is_tried_with_the_proposer_that_drafts_with_its_kind(kind, names, proposer):
    pair = Pair(models={"target": TARGET}, heads={"own": HeadSpec(path="own", base="target", kind=kind)})
    found = [each for each in register_candidates(pair, 0.0) if each.drafter == "own"]
    assert [each.name for each in found] == names and (not found or found[0].proposer == proposer)


def options(proposer: dict[str, object], kinds: dict[str, str] | None = None, **more: object) -> dict[str, str]:
    """The options of other engines for speculative decoding with a proposer, by engine."""
    result = CandidateResult(candidate=candidate_of("own", proposer, **more))
    lines = list(other_engines(result, {"draft": "models/small", "own": "heads/own"}, kinds))
    return dict(line.split(", not measured there: ") for line in lines)


@pytest.mark.parametrize(
    ("proposer", "config"),
    [
        ({"name": "pld", "gamma": 6}, {"method": "ngram", "num_speculative_tokens": 6, "prompt_lookup_max": 3}),
        ({"name": "suffix"}, {"method": "suffix", "num_speculative_tokens": 16}),
        (
            {"name": "model", "model": "draft", "gamma": 2},
            {"method": "draft_model", "model": "models/small", "num_speculative_tokens": 2},
        ),
        (
            {"name": "dflash", "head": "own", "base": "target", "gamma": 5},
            {"method": "dflash", "model": "heads/own", "num_speculative_tokens": 5},
        ),
    ],
)
def test_each_proposer_has_its_own_options_of_vllm(proposer, config):
    shown = options(proposer, {"own": "dflash"})["vLLM"]
    assert json.loads(shown.removeprefix("--speculative-config ").strip("'")) == config


def test_options_follow_the_kind_of_the_head_and_the_rejection_rule():
    head = {"name": "eagle", "head": "own", "base": "target", "gamma": 3}
    assert "--speculative-algorithm EAGLE3 " in options(head, {"own": "eagle3"})["SGLang"]
    mtp = options(head, {"own": "mtp"})
    assert mtp.keys() == {"vLLM"} and '"model"' not in mtp["vLLM"]
    drafts = {"name": "model", "model": "draft", "gamma": 2}
    block = options(drafts, rejection={"name": "block"})
    assert block.keys() == {"vLLM"} and '"rejection_sample_method": "block"' in block["vLLM"]
    assert options({**drafts, "stop": {"name": "confidence"}}) == {}
    assert options({"name": "ngram-mod"}) == {"llama-server": "--spec-type ngram-mod"}


def test_a_lossy_candidate_has_no_options_of_other_engines():
    lossy = Candidate("own", {"proposer": {"name": "suffix"}}, lossless=False)
    assert list(other_engines(CandidateResult(candidate=lossy), {})) == []
