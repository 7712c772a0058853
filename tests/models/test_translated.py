"""A draft model with another tokenizer: which tokens are mapped, rows in the target's vocabulary, and exact outputs."""

import json
import math

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from specbench.decoding.sampling import Draft, Sampler
from specbench.decoding.session import Usage
from specbench.decoding.targets import Last
from specbench.features.verify.enumeration import TableModels, TableSession, distance, joint_distribution
from specbench.methods.autoregressive import Autoregressive
from specbench.methods.proposers import Chain, DraftModel, TextDraft
from specbench.methods.speculative import Speculative
from specbench.models.text_session import TextSession
from specbench.models.translated_session import TranslatedSession
from specbench.models.vocabulary_map import VocabularyMap
from tests.fixtures import console
from tests.models.test_models import WORDS, model_folder


def tokenizer(*words: str, **special: str) -> PreTrainedTokenizerFast:
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, **special)


def test_tokens_are_mapped_by_the_bytes_that_they_stand_for():
    target = tokenizer("<u>", "▁the", "the", "<0x41>", "é", "x", "</s>", unk_token="<u>", eos_token="</s>")
    drafter = tokenizer("<e>", "Ġthe", "the", "A", "Ã©", "y", "<e2>", unk_token="<e>", eos_token="<e2>")
    assert VocabularyMap(target, drafter).target_ids == [-1, 1, 2, 3, 4, -1, 6]
    assert VocabularyMap(target, drafter).words.startswith("5 of its 7 tokens map to 5 of the target's 7 tokens, ")


class Mapping(VocabularyMap):
    """A map that is given instead of two tokenizers."""

    start = property(lambda self: [0])

    def __init__(self, *target_ids: int) -> None:
        self.target_ids = list(target_ids)

    def read(self, token: int, before: list[int], pending: bytes) -> tuple[list[int], bytes]:
        return [self.target_ids.index(token)] if token in self.target_ids else [], b""


def test_rows_are_renormalized_over_the_shared_tokens_and_masses_are_added():
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    rows, outside = Mapping(7, 5, 9, -1).rows(logits, 10)
    row = rows.softmax(-1)[0]
    assert {i: float(row[i]) for i in (5, 7, 9)} == pytest.approx({7: 4 / 9, 5: 3 / 9, 9: 2 / 9})
    assert float(row.sum()) == pytest.approx(1.0) and float(outside[0]) == pytest.approx(0.1)
    rows, _ = Mapping(7, 5, 7, -1).rows(logits, 10)
    assert float(rows.softmax(-1)[0, 7]) == pytest.approx(6 / 9)
    assert math.isinf(float(rows[0, 0]))


@pytest.mark.parametrize("mapping", [(0, 1, 1), (0, -1, 1), (1, 0, -1), (-1, -1, 1)])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.7, "top_p": 0.75}, {"temperature": 0.0}])
@pytest.mark.parametrize("is_chain", [False, True])
def test_outputs_follow_the_target_whatever_is_mapped(mapping, sampling, is_chain):
    drafter = DraftModel(model="a", gamma=2)
    proposer = Chain(proposer=drafter, model="b", threshold=2) if is_chain else drafter
    method = Speculative(proposer=proposer, scorers=("c",), target=Last())

    def world() -> TableModels:
        translated = {
            role: TranslatedSession(TableSession(3, seed), Mapping(*mapping), 2) for seed, role in enumerate("ab")
        }
        return TableModels({**translated, "c": TableSession(2, 5)})

    plain = joint_distribution(Autoregressive(scorers=("c",), target=Last()), world(), 3, **sampling)
    assert distance(joint_distribution(method, world(), 3, **sampling), plain) < 1e-12


def test_a_dropped_token_is_read_again_and_a_part_of_a_character_is_not_read():
    target = tokenizer("<u>", "a", "b", "ab", unk_token="<u>")
    drafter = tokenizer("<u>", "b", "a", unk_token="<u>", bos_token="<u>")
    mapping = VocabularyMap(target, drafter)
    table = TableSession(3, 0)
    session = TranslatedSession(table, mapping, 4)
    first = session.score([1, 2], 0)
    assert table.last_scored == [0, 2, 1]
    session.score([1, 1], 0)
    assert table.last_scored == [0, 2, 2]
    assert torch.equal(session.score([1, 2], 0), first)


def run_on_two_tokenizers(method: str, folder) -> tuple[str, list[dict]]:
    """Run a method with a draft whose tokenizer has the target's words in another order. Returns stderr and the records."""
    model_folder(folder / "one")
    model_folder(folder / "two", words=WORDS[::-1])
    prompts = [{"prompt": "".join(WORDS[i : i + 4])} for i in (5, 9, 13, 17)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in prompts))
    words = (
        "-p",
        "draft=one,target=two",
        "-t",
        "prompts",
        "--data",
        "rows.jsonl",
        "--repeats",
        1,
        "--max-new-tokens",
        8,
    )
    done = console.specbench("run", "-m", method, *words, cwd=folder)
    (path,) = folder.glob("results/*/samples.jsonl")
    return done.stderr, [json.loads(line) for line in path.read_text().splitlines()]


def test_a_pair_of_two_tokenizers_runs_and_says_what_was_mapped(tmp_path):
    stderr, rows = run_on_two_tokenizers("sd", tmp_path)
    stands = "the model draft has another tokenizer than the target: 91 of its 94 tokens map to"
    assert stands in " ".join(stderr.split())
    tokens = {(row["method"].partition("(")[0], row["sample"]): row["tokens"] for row in rows}
    assert all(tokens["sd", sample] == tokens["ar", sample] for _, sample in tokens) and not any(
        row["error"] for row in rows
    )
    draftable = VocabularyMap(*(AutoTokenizer.from_pretrained(tmp_path / name) for name in ("two", "one"))).draftable
    for row in rows:
        if row["method"].startswith("sd"):
            counters = row["rounds"][-1]["counters"]
            assert counters["translated_tokens"] == len(row["tokens"])
            assert counters["undraftable"] == sum(token not in draftable for token in row["tokens"])
    shown = " ".join(console.specbench("report", cwd=tmp_path).stdout.split())
    assert "The model draft has another tokenizer than the target" in shown
    assert "of the tokens of sd can never be drafted" in shown


def test_an_ensemble_of_two_tokenizers_is_an_error_with_both_names(tmp_path):
    model_folder(tmp_path / "one")
    model_folder(tmp_path / "two", words=WORDS[::-1])
    words = ("-p", "draft=one,target=two", "-t", "gsm8k", "--data", "synthetic", "-n", 1)
    done = console.specbench("run", "-m", "cascade-opt", *words, cwd=tmp_path, code=2)
    assert "tokenizers differ" in done.stderr and "/one" in done.stderr and "/two" in done.stderr
    done = console.specbench("run", "-m", "sd-tree", *words, cwd=tmp_path, code=2)
    assert "it can only draft chains of tokens" in " ".join(done.stderr.split())
    assert "help: -m sd, or -m sd-text" in " ".join(done.stderr.split())


def test_the_word_lossless_leaves_out_methods_that_need_one_tokenizer(tmp_path):
    _, rows = run_on_two_tokenizers("lossless", tmp_path)
    methods = {row["method"] for row in rows}
    assert {"sd", "sd-text", "pld"} <= methods and not {"sd-tree", "hf-assisted"} & methods


class Letters:
    """A codec of tokens that are letters or groups of letters; of a text, the longest token comes first."""

    def __init__(self, *tokens: str) -> None:
        self.tokens = tokens

    def decode(self, ids: list[int]) -> str:
        return "".join(self.tokens[token] for token in ids)

    def encode(self, text: str) -> list[int]:
        ids = []
        while text:
            (token, *_) = sorted((t for t in self.tokens if t and text.startswith(t)), key=len, reverse=True)
            ids.append(self.tokens.index(token))
            text = text[len(token) :]
        return ids

    def continued(self, before: list[int], text: str) -> list[int]:
        return self.encode(text)


def test_a_draft_through_text_is_the_text_in_the_targets_tokens():
    """Of the drafter's tokens `ab`, `c`, the target's tokens `a`, `bc`; after `a` the drafter may write `b` alone."""
    own, target = Letters("", "ab", "c", "b", "a"), Letters("a", "bc", "b", "c")
    session = TextSession(Scripted([1, 2]), own, target, [0], frozenset())
    assert session.draft([], 2, frozenset()) == [0, 1]
    assert TextSession(Scripted([3, 2]), own, target, [0], frozenset()).draft([0], 2, frozenset()) == [1]
    # `b` `c` together would be `bc`: the text after the committed `b` is encoded alone
    assert TextSession(Scripted([2]), own, target, [0], frozenset()).draft([0, 2], 1, frozenset()) == [3]
    assert TextSession(Scripted([1, 2]), own, target, [0], frozenset({2})).draft([], 2, frozenset({3})) == [0, 2, 3]


class Scripted:
    """A session that drafts given tokens."""

    usage = Usage()

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens

    def roll(self, ids: list[int], k: int, sampler: Sampler, eos: frozenset[int]) -> Draft:
        return Draft(self.tokens[:k], torch.zeros(min(k, len(self.tokens)), 5))

    def room(self, ids: list[int]) -> int:
        return 9


@pytest.mark.parametrize("own", [("", "a", "b"), ("", "ab", "b", "a"), ("", "aa", "b", "a", "ba")])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.7, "top_p": 0.75}, {"temperature": 0.0}])
@pytest.mark.parametrize("is_chain", [False, True])
def test_outputs_of_drafts_through_text_follow_the_target(own, sampling, is_chain):
    drafter = TextDraft(model="a", gamma=2)
    proposer = Chain(proposer=drafter, model="b", threshold=2) if is_chain else drafter
    method = Speculative(proposer=proposer, scorers=("c",), target=Last())

    def world() -> TableModels:
        text = TextSession(TableSession(len(own), 0), Letters(*own), Letters("a", "b"), [0], frozenset())
        return TableModels({"a": text, "b": TableSession(2, 3), "c": TableSession(2, 5)})

    plain = joint_distribution(Autoregressive(scorers=("c",), target=Last()), world(), 3, **sampling)
    assert distance(joint_distribution(method, world(), 3, **sampling), plain) < 1e-12


def test_a_draft_model_with_another_tokenizer_drafts_through_text(tmp_path):
    _, rows = run_on_two_tokenizers("sd-text", tmp_path)
    tokens = {(row["method"].partition("(")[0], row["sample"]): row["tokens"] for row in rows}
    assert all(tokens["sd-text", sample] == tokens["ar", sample] for _, sample in tokens)
    assert sum(round_.get("drafted", 0) for row in rows for round_ in row["rounds"]) > 0
