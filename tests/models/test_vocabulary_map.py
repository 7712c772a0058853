"""Tokens of two tokenizers: of several with equal bytes the produced one, and texts that the drafter has no token for."""

import random

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from specbench.features.verify.enumeration import TableSession
from specbench.models.text_session import TextSession, TokenizerCodec
from specbench.models.translated_session import TranslatedSession
from specbench.models.vocabulary_map import TokenBytes, VocabularyMap
from tests.models.test_translated import Scripted

TEXTS = (
    "She paid 2.50 for twelve muffins.", "def total(values):\n    return sum(values)  # größer", "Zwölf — 中文 text, café.",
    "  two blanks before", "ungewöhnliche Zeichen: 🙂 und 🙃!",
)  # fmt: skip
BYTES = [f"<0x{i:02X}>" for i in range(256)]


def byte_level(size: int = 380) -> PreTrainedTokenizerFast:
    """A tokenizer of GPT-2's form."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator(TEXTS * 3, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|end|>")


def sentencepiece(scheme: str, size: int = 330) -> PreTrainedTokenizerFast:
    """A tokenizer of Llama's form, with byte tokens, which adds a blank before every text that it encodes."""
    inner = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    if scheme == "prepend":
        inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", "<s>", "</s>", *BYTES]
    words = [word for text in TEXTS[:2] for word in text.split()]
    inner.train_from_iterator(
        words * 3, trainers.BpeTrainer(vocab_size=size, special_tokens=special, limit_alphabet=40, show_progress=False)
    )
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def lettered(*names: str, added: tuple[str, ...] = ()) -> PreTrainedTokenizerFast:
    """A tokenizer of Llama's form whose pieces are single characters."""
    inner = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, [], unk_token=names[0], byte_fallback=True))
    inner.normalizer = normalizers.Replace(" ", "▁")
    inner.add_tokens([AddedToken(name, normalized=False) for name in added])
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token=names[0])


@pytest.mark.parametrize(
    ("tokenizer", "data", "name"),
    [
        (lettered("<u>", *BYTES, "2", "a"), b"2", "2"),
        (lettered("<u>", "2", "a", *BYTES), b"2", "2"),
        (lettered("<u>", *BYTES, "\n"), b"\n", "\n"),
        (lettered("<u>", *BYTES), b"\n", "<0x0A>"),
        (lettered("<u>", " ", "▁", "a"), b" ", "▁"),
        (lettered("<u>", " a", "a", "▁a", "▁"), b" a", " a"),  # neither is produced: the lower one
    ],
)
def test_of_tokens_with_equal_bytes_the_one_that_the_tokenizer_gives_is_taken(tokenizer, data, name):
    assert tokenizer.convert_ids_to_tokens(TokenBytes(tokenizer).by_bytes[data]) == name


@pytest.mark.parametrize("order", [1, -1])
def test_twins_are_mapped_to_the_produced_token_in_both_roles(order):
    plain, twins = lettered("<u>", "1", "2", "▁"), lettered("<u>", *[*BYTES, "1", "2", "▁"][::order])
    two, ours = plain.convert_tokens_to_ids("2"), twins.convert_tokens_to_ids("2")
    byte = twins.convert_tokens_to_ids("<0x32>")
    as_drafter = VocabularyMap(plain, twins)
    assert as_drafter.own(two) == [ours] and as_drafter.target_ids[byte] == as_drafter.target_ids[ours] == two
    as_target = VocabularyMap(twins, plain)
    assert as_target.target_ids[two] == ours and as_target.own(byte) == as_target.own(ours) == [two]
    assert byte not in as_target.draftable


class Reading(TranslatedSession):
    """A session of a drafter of lookup tables that says what the drafter has read."""

    def __init__(self, drafter: PreTrainedTokenizerFast, mapping: VocabularyMap, vocabulary: int) -> None:
        self.table = TableSession(len(drafter), 0)
        super().__init__(self.table, mapping, vocabulary)

    def read(self, ids: list[int]) -> list[int]:
        """Return the drafter's tokens for the target's ids."""
        self.score(ids, len(ids) - 1)
        return self.table.last_scored


@pytest.mark.parametrize("scheme", ["prepend", "first", "always"])
@pytest.mark.parametrize("text", TEXTS)
def test_what_the_drafter_has_read_is_the_committed_text(scheme, text):
    target, drafter = byte_level(), sentencepiece(scheme)
    mapping = VocabularyMap(target, drafter)
    session = Reading(drafter, mapping, len(target))
    ids = target.encode(text)
    assert TokenBytes(drafter).joined(session.read(ids)) == text.encode()
    assert any(token not in mapping.draftable for token in ids)


def test_a_character_is_read_when_it_is_complete():
    target = byte_level(300)
    drafter = lettered("<u>", "▁", "中", "a", "é")
    session = Reading(drafter, VocabularyMap(target, drafter), len(target))
    ids = target.encode("a中é")
    parts = [drafter.convert_ids_to_tokens(session.read(ids[:end])[1:]) for end in range(1, len(ids) + 1)]
    assert parts[0] == ["a"] and parts[2] == ["a"] and parts[3] == ["a", "中"] and parts[-1] == ["a", "中", "é"]


@pytest.mark.parametrize("scheme", ["prepend", "first"])
def test_the_drafters_tokens_depend_on_the_sequence_alone(scheme):
    """After any history of dropped and added tokens, they are those of a new session."""
    target, drafter = byte_level(), sentencepiece(scheme)
    mapping, rng = VocabularyMap(target, drafter), random.Random(1)

    def session() -> Reading:
        return Reading(drafter, mapping, len(target))

    walking = session()
    ids: list[int] = []
    before: list[int] = []
    for _ in range(60):
        ids = ids[: len(ids) - rng.randrange(0, 4)] + [rng.randrange(1, len(target)) for _ in range(rng.randrange(4))]
        if not ids:
            continue
        common = walking.cached_length(ids)
        own = walking.read(ids)
        assert own == session().read(ids)
        kept = len(session().read(ids[:common])) if common else 0
        assert own[:kept] == before[:kept]
        before = own


@pytest.mark.parametrize("scheme", ["prepend", "first", "always"])
def test_a_draft_through_text_goes_on_within_a_word_of_a_target_that_adds_blanks(scheme):
    target, own = sentencepiece(scheme), byte_level()
    codec = TokenizerCodec(target)
    ids = codec.continued([], "She paid 2.50 for tw")
    written = own.encode("elve muffins")
    draft = TextSession(Scripted(written), TokenizerCodec(own), codec, [0], frozenset()).draft(ids, 9, frozenset())
    text = target.decode([*ids, *draft])
    assert draft and "She paid 2.50 for twelve muffins".startswith(text) and text.startswith("She paid 2.50 for twel")


def test_a_character_that_the_drafter_lacks_is_read_as_its_unknown_token():
    target, drafter = byte_level(), lettered("<u>", "a", "▁")
    session = Reading(drafter, VocabularyMap(target, drafter), len(target))
    assert drafter.convert_ids_to_tokens(session.read(target.encode("a 中a"))[1:]) == ["a", "▁", "<u>", "a"]
