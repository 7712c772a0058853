"""From samples to ids and back: templates, special tokens, cuts, indentation, and what was said before."""

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from specbench.data.prompting import continuation, cut, encode
from specbench.data.task import Sample
from specbench.tasks.custom import Prompts

TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
WORDS = "<s> </s> hello world user: assistant: one two again".split()


def words(**more) -> PreTrainedTokenizerFast:
    """One token a word, BOS in front."""
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="</s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", **more)


def said(prompt: str, tokenizer=None, history=(), window=None, **task) -> str:
    tokenizer = tokenizer or words()
    ids, _ = encode(tokenizer, Prompts(**task), Sample("0", prompt), list(history), window)
    return " ".join(WORDS[i] for i in ids)


def test_a_plain_prompt_gets_the_tokenizers_own_bos():
    assert said("hello world") == "<s> hello world"
    assert said("hello", words(chat_template=TEMPLATE), chat="off") == "<s> hello"


def test_a_template_is_used_where_there_is_one_and_adds_no_second_bos():
    assert said("hello", words(chat_template=TEMPLATE), chat="auto") == "<s> user: hello assistant:"
    assert said("hello", chat="auto") == "<s> hello"
    with pytest.raises(ValueError, match="no chat template"):
        said("hello", chat="required")


def test_two_bos_tokens_are_an_error():
    with pytest.raises(ValueError, match="two BOS"):
        said("<s> hello")
    assert said("<s> hello", words(chat_template="{{ messages[0]['content'] }}"), chat="auto") == "<s> hello"


def test_earlier_turns_come_first():
    history = [(Sample("a", "hello"), "one"), (Sample("b", "again"), " two ")]
    assert said("world", history=history) == "<s> hello one again two world"
    shown = said("world", words(chat_template=TEMPLATE), history, chat="required")
    assert shown == "<s> user: hello <s> assistant: one <s> user: again <s> assistant: two <s> user: world assistant:"


def test_a_prompt_that_is_too_long_is_an_error_or_a_counted_cut():
    ids = list(range(10))
    with pytest.raises(ValueError, match=r"10 tokens, 4 are allowed; help: --on-overflow"):
        cut(ids, 4, 4, "error")
    assert cut(ids, 10, 4, "error") == (ids, 0)
    assert cut(ids, 4, 4, "truncate-left") == ([6, 7, 8, 9], 6)
    assert cut(ids, 4, 4, "truncate-right") == ([0, 1, 2, 3], 6)
    assert cut(ids, 5, 5, "truncate-middle") == ([0, 1, 2, 8, 9], 5)


def test_truncation_keeps_special_tokens():
    ids = list(range(10))
    assert cut(ids, 4, 4, "truncate-left", (True, False)) == ([0, 7, 8, 9], 6)
    assert cut(ids, 4, 4, "truncate-right", (False, True)) == ([0, 1, 2, 9], 6)
    assert cut(ids, 4, 4, "truncate-middle", (True, True)) == ([0, 1, 8, 9], 6)
    assert said("hello world one two", max_prompt_tokens=3, overflow="truncate-left") == "<s> one two"


def test_the_window_keeps_room_for_new_tokens():
    task = {"max_new_tokens": 3, "overflow": "truncate-left"}
    assert said("hello world one two again", window=6, **task) == "<s> two again"
    assert said("hello world one two", window=6, **task) == "<s> one two", "a cut leaves room"
    assert said("hello world one two", window=6, max_new_tokens=3) == "<s> hello world one two", "it fits: no error"
    assert said("hello world one two", window=6, max_prompt_tokens=5, **task) == "<s> one two"
    with pytest.raises(ValueError, match="6 tokens, 5 are allowed"):
        said("hello world one two again", window=6, max_new_tokens=3)


def test_a_completion_keeps_leading_spaces():
    """As with Llama's: decoding the new tokens alone would lose the first indentation, and the program with it."""
    tokenizer = Tokenizer(models.BPE(vocab={"▁": 0, "f": 1, "x": 2, ":": 3}, merges=[]))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)
    asked, answered = fast.encode("f:"), fast.encode("  x")
    assert fast.decode(answered) == " x"
    assert continuation(fast, asked, answered, encoder_decoder=False) == "  x"
    assert continuation(fast, asked, answered, encoder_decoder=True) == " x", "a text of its own"


def test_a_chat_template_gets_the_turn_without_the_prompt():
    sample = Sample("0", "USER: hello ASSISTANT:", messages=({"role": "user", "content": "hello"},))
    ids, _ = encode(words(chat_template=TEMPLATE), Prompts(chat="auto"), sample, [], None)
    assert " ".join(WORDS[i] for i in ids) == "<s> user: hello assistant:"


CUTS = [("truncate-left", "one two"), ("truncate-right", "hello world"), ("truncate-middle", "hello two")]


@pytest.mark.parametrize(("how", "left"), CUTS)
def test_truncation_keeps_the_template(how, left):
    tokenizer = words(chat_template=TEMPLATE)
    task = Prompts(chat="required", max_prompt_tokens=5, overflow=how)
    ids, gone = encode(tokenizer, task, Sample("0", "hello world one two"), [], None)
    assert " ".join(WORDS[i] for i in ids) == f"<s> user: {left} assistant:"
    assert gone == 2
    with pytest.raises(ValueError, match="template and earlier turns alone have 3 tokens, 3 are allowed"):
        encode(tokenizer, Prompts(chat="auto", max_prompt_tokens=3, overflow=how), Sample("0", "hello world"), [], None)
    with pytest.raises(ValueError, match="7 tokens, 5 are allowed"):
        encode(tokenizer, Prompts(chat="auto", max_prompt_tokens=5), Sample("0", "hello world one two"), [], None)


def test_an_encoder_decoders_prompt_keeps_its_eos():
    tokenizer = words()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    assert said("hello world one two", tokenizer, max_prompt_tokens=3, overflow="truncate-right") == "hello world </s>"
