"""`specbench server verify` against a server that decodes a small checkpoint: right, and with each fault."""

import asyncio
import json
import shutil
from dataclasses import replace

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from specbench.cli.params import SharedOptions
from specbench.errors import ConfigError
from specbench.features.exactness.outcome import Outcome
from specbench.features.servers.backends.vllm import Vllm
from specbench.features.servers.exactness.calibration import deviation_of
from specbench.features.servers.exactness.kinds import shared_causes
from specbench.features.servers.exactness.served_checks import GreedyTexts
from specbench.features.servers.exactness.server_verification import verify_server
from specbench.features.servers.exactness.stored_verdict import ServerVerification
from specbench.features.servers.exactness.verify_request import ServerVerifyRequest
from specbench.features.servers.prompts import served_prompts
from specbench.features.servers.request_key import PromptKind, RequestKind
from specbench.features.servers.served import ServedSampling
from specbench.http_client import Server
from specbench.observer import Observer
from tests.fixtures.console import specbench
from tests.fixtures.model_server import ModelServer, model_server

WARM, NUCLEUS = ServedSampling(temperature=1.0), ServedSampling(temperature=0.7, top_p=0.8)


def prompts(count: int = 4):
    return served_prompts(["gsm8k"], SharedOptions({"data": ["synthetic"]}).options(limit=count))


def verified(server: ModelServer, checkpoint, out, **changes) -> ServerVerification:
    settings = {
        "on": Server(server.url), "weights": str(checkpoint), "prompts": prompts(), "outputs": 16,
        "max_tokens": 12, "max_prompt_tokens": 16, "concurrencies": (1,), "kinds": (PromptKind.raw,), "seeds": False,
        "samplings": (ServedSampling(), WARM),
    }  # fmt: skip
    found, _ = asyncio.run(verify_server(ServerVerifyRequest(**{**settings, **changes}), out, Observer()))
    return found


@pytest.mark.parametrize("backend", ["vllm", "llama.cpp"])
def test_a_right_server_is_exact_and_the_control_is_rejected(checkpoint, tmp_path, backend):
    with model_server(checkpoint, backend=backend) as server:
        found = verified(server, checkpoint, tmp_path, outputs=48)
    assert found.outcome is Outcome.unfound and found.line.startswith("no departure found:")
    assert found.deviation.measured.largest < 1e-4 and found.smallest_request is None
    assert all(kind.sampled.control_p["later"] < 1e-3 for kind in found.kinds if kind.sampled)


def test_a_server_that_drafted_nothing_is_not_called_exact(checkpoint, tmp_path):
    with model_server(checkpoint, drafts_nothing=True) as server:
        found = verified(server, checkpoint, tmp_path, samplings=(ServedSampling(),))
    assert found.outcome is Outcome.inconclusive and "nothing was drafted" in found.line


@pytest.mark.parametrize(
    ("fault", "where", "changes"),
    [
        ("top-p ignored", "from the first token on", {"samplings": (NUCLEUS,), "outputs": 32}),
        (
            "greedy drafts", "from the second token on, where speculation begins, only at temperatures above 0",
            {"outputs": 80, "max_tokens": 6},
        ),
        pytest.param(
            "bonus from the draft", "too few first tokens", {"outputs": 32, "samplings": (NUCLEUS,)}, marks=pytest.mark.slow
        ),
        ("one token in 40", "too few first tokens", {"samplings": (ServedSampling(),), "prompts": prompts(24)}),
        ("rounded logits", "too few first tokens", {}),
    ],
)  # fmt: skip
def test_a_fault_is_found_with_where_it_begins(checkpoint, tmp_path, fault, where, changes):
    with model_server(checkpoint, fault=fault) as server:
        found = verified(server, checkpoint, tmp_path, **changes)
    assert found.outcome is Outcome.differs
    assert where in found.line


def test_weights_of_a_smaller_vocabulary_are_an_error_and_of_a_draft_are_padded(checkpoint, tmp_path):
    size = AutoConfig.from_pretrained(checkpoint).vocab_size
    smaller = resized(checkpoint, tmp_path / "smaller", 30)
    with model_server(checkpoint) as server:
        with pytest.raises(ConfigError, match="has 30 tokens: it is another model"):
            verified(server, smaller, tmp_path)
        found = verified(server, checkpoint, tmp_path, draft=str(resized(checkpoint, tmp_path / "draft", size + 8)))
    assert found.outcome is not Outcome.differs


def resized(checkpoint, folder, size: int):
    """Save a checkpoint with another size of the vocabulary, and return its folder."""
    shutil.copytree(checkpoint, folder)
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    model.resize_token_embeddings(size)
    model.save_pretrained(folder)
    return folder


def test_a_dropped_seed_is_found_and_the_request_to_send_twice_is_named(checkpoint, tmp_path):
    with model_server(checkpoint, fault="dropped seed") as server:
        found = verified(server, checkpoint, tmp_path, seeds=True, samplings=(WARM,))
    assert found.outcome is Outcome.differs and "equal seeds do not repeat outputs" in found.line
    assert found.smallest_request.times == 2 and found.smallest_request.body["seed"] == 1000


def test_a_prefix_of_another_prompt_is_found_and_does_not_widen_the_tolerance(checkpoint, tmp_path):
    with model_server(checkpoint, fault="other prefix") as server:
        found = verified(
            server, checkpoint, tmp_path, kinds=(PromptKind.cached,), samplings=(ServedSampling(),), prompts=prompts(8)
        )
    assert found.outcome is Outcome.differs
    assert found.deviation.measured.outliers or found.deviation.measured.largest > 1.0


def test_the_smallest_request_is_sent_again_and_shows_the_fault(checkpoint, tmp_path):
    with model_server(checkpoint, fault="rounded logits") as server:
        found = verified(server, checkpoint, tmp_path, samplings=(ServedSampling(),))
    smallest = found.smallest_request
    assert smallest.times == 1 and smallest.found != smallest.expected
    assert smallest.body["max_tokens"] == smallest.request.max_tokens <= 12


def test_a_server_without_speculation_is_a_reference_if_it_returns_its_vocabulary(checkpoint, tmp_path):
    with (
        model_server(checkpoint, backend="llama.cpp") as on,
        model_server(checkpoint, backend="llama.cpp", speculates=False) as off,
    ):
        changes = {"weights": "", "off": Server(off.url), "outputs": 8, "max_tokens": 6}
        assert verified(on, checkpoint, tmp_path, **changes).outcome is not Outcome.differs
        on.fault = "rounded logits"
        changes |= {"seed": 1, "samplings": (ServedSampling(),), "max_tokens": 12}
        assert verified(on, checkpoint, tmp_path, **changes).outcome is Outcome.differs


@pytest.mark.parametrize(
    ("fault", "sampling", "outcome"),
    [
        ("", ServedSampling(temperature=0.5), Outcome.unfound),
        ("top-p ignored", ServedSampling(temperature=0.7, top_p=0.5), Outcome.differs),
    ],
)
def test_servers_of_text_are_compared_by_samples(checkpoint, tmp_path, fault, sampling, outcome):
    """Without speculation, which takes several forwards per token."""
    with (
        model_server(checkpoint, backend="openai", speculates=False, fault=fault) as on,
        model_server(checkpoint, backend="openai", speculates=False) as off,
    ):
        found = verified(
            on, checkpoint, tmp_path, weights="", off=Server(off.url), outputs=120, max_tokens=5, prompts=prompts(2),
            samplings=(ServedSampling(), sampling),
        )  # fmt: skip
    assert found.outcome is outcome, found.line
    assert "two samples" in {note.kind for note in found.notes}
    greedy = next(result for result in found.kinds if result.texts)
    assert (greedy.texts.outputs, greedy.texts.differing, greedy.texts.off_differing) == (2, 0, 0)


def test_greedy_texts_that_differ_are_faults_only_if_more_than_those_of_one_server():
    assert GreedyTexts(16, 14, 0).p < 1e-3
    assert GreedyTexts(16, 3, 1).p > 0.05
    assert GreedyTexts(16, 0, 0).p == 1.0


def test_the_same_command_resumes_and_gives_the_same_verdict(checkpoint, tmp_path):
    with model_server(checkpoint) as server:
        first = verified(server, checkpoint, tmp_path)
        sent = len(server.requests)
        again = verified(server, checkpoint, tmp_path)
        assert again.line == first.line
        outputs = sum(result.outputs for result in first.kinds)
        assert len(server.requests) - sent < sent - outputs + 1  # the comparison of logits alone is repeated


def test_oddities_are_warnings_with_their_numbers(checkpoint, tmp_path):
    with model_server(checkpoint, backend="llama.cpp") as server:
        found = verified(server, checkpoint, tmp_path)
    assert not [note for note in found.notes if note.is_warning and note.kind != "tokenizers differ"]


def test_outlying_prefixes_are_faults_and_do_not_widen_the_tolerance():
    usual = [[0.01, 0.02], [0.015, 0.03], [0.02, 0.01]] * 4
    found = deviation_of("server", [*usual, [3.0, 0.1]], 20.0)
    assert (found.largest, found.outliers, found.prefixes) == (0.03, (3.0,), 13)
    assert "1 of 13 prefixes deviate by up to 3" in found.fault
    assert deviation_of("server", usual, 20.0).fault == ""
    assert "more than rounding" in deviation_of("server", [[2.0], [3.0]], 20.0).fault
    assert deviation_of("server", [], 20.0) is None


@pytest.mark.parametrize(
    ("failed", "passed", "cause"),
    [
        ([{"is_seeded": True}], [{}], "only with a seed"),
        ([{"concurrency": 8}, {"concurrency": 4}], [{}], "only above concurrency 1"),
        ([{}], [{"sampling": ServedSampling()}], "only at temperatures above 0"),
        ([{"prompt": PromptKind.cached}], [{}], "only after a prefix-cache hit"),
        ([{}, {"is_seeded": True}], [{"concurrency": 8}], ""),
        ([{"is_seeded": True}], [], ""),
    ],
)
def test_the_cause_is_what_all_failed_kinds_have_and_no_passed_kind(failed, passed, cause):
    kinds = [[RequestKind(**{"sampling": WARM, **each}) for each in group] for group in (failed, passed)]
    assert ", ".join(shared_causes(*kinds)) == cause


def test_the_command_prints_the_verdict_and_writes_it(checkpoint, tmp_path):
    with model_server(checkpoint, fault="greedy drafts") as server:
        done = specbench(
            "server", "verify", "--on", server.url, "--weights", checkpoint, "--data", "synthetic", "-n", "3", "--outputs",
            "12", "--max-new-tokens", "10", "--max-prompt-tokens", "16", "-c", "1", "--no-seeds", "--prompts", "raw", "-T",
            "0,1", "-o", tmp_path, cwd=tmp_path, code=5,
        )  # fmt: skip
    assert all(words in done.stdout for words in ("NOT exact", "smallest request that shows it", "curl -s"))
    verdict = json.loads(next(tmp_path.glob("*/verdict.json")).read_text())
    assert verdict["outcome"] == "differs" and verdict["smallest_request"]["path"] == "/v1/completions"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["verify", "--on", "http://127.0.0.1:9"], 2, "a reference is missing"),
        (["verify", "--on", "127.0.0.1:9", "--off", "http://127.0.0.1:9"], 2, "is no URL of a server"),
        (["verify", "--on", "http://h", "--weights", "x", "--prompts", "rwa"], 2, "did you mean 'raw'"),
        (["verify", "--on", "http://h", "--weights", "x", "-T", "-1"], 2, "--temperature -1"),
        (["verify", "--on", "http://h", "--weights", "x", "-c", "0"], 2, "--concurrency 0"),
        (["describe", "http://127.0.0.1:9"], 4, "start the server"),
    ],
)
def test_mistakes_are_named(tmp_path, words, code, message):
    done = specbench("server", *words, cwd=tmp_path, code=code)
    assert message in done.stderr


def test_a_server_that_does_not_promise_to_repeat_seeds_is_not_called_inexact(checkpoint, tmp_path, monkeypatch):
    honest = Vllm.describe

    async def describe(self, client, model):
        found = await honest(self, client, model)
        return found and replace(found, repeats_seeds=False)

    monkeypatch.setattr(Vllm, "describe", describe)
    with model_server(checkpoint, fault="dropped seed") as server:
        found = verified(server, checkpoint, tmp_path, seeds=True, samplings=(WARM,))
    assert found.outcome is not Outcome.differs
    (note,) = [note for note in found.notes if note.kind == "seeds not promised"]
    assert "equal seeds repeat" in note.text and "does not promise" in note.text
