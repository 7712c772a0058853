"""Graders on the answers that chat models give: other forms of a letter, fenced code, and scripts without blanks."""

import pytest
import sacrebleu

from specbench.data.task import Sample
from specbench.data.templates import fenced_blocks, without
from specbench.decoding.loop import GenerationLimits
from specbench.sandbox import Sandbox
from specbench.scoring import Scored, combiner, table
from specbench.tasks.custom import Custom
from specbench.tasks.humaneval import HumanEval
from specbench.tasks.mmlu import Mmlu

STOPS = ("\nclass", "\ndef", "\n#", "\n@", "\nif", "\nprint", "\n```", "<file_sep>")


@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{B}", "$\\boxed{\\text{B}}$", "\\fbox{B}", "\\boxed B", "\\boxed{\\textbf{(B)}}", "\\boxed{B. pear}",
        "\\boxed{B}, in a \\boxed{}", "The answer is option B.", 'The answer is "B".', "The answer is `B`.",
        "The answer is [B].", "The answer is B!", "The answer is B - pear", "The answer is therefore B.", "So, B is correct.",
        "The correct choice is B.", "<answer>B</answer>", "Option B", "(A) is wrong. (C) is wrong. So it is B.",
        "The correct choice is (B) since (D) fails", "**Answer:** B", "The answer is (B).", "Answer: B", "I choose B.",
        "A is not right and C is incorrect, so B is the correct option.", "We can rule out A and (C). The answer is B.",
        "B is correct. (A) cannot be.", "The best answer must be **B**.",
        "The answer is (B). Note that A is true only for x.", "B is not wrong. The answer is B.",
    ],
)  # fmt: skip
def test_a_letter_is_read_in_common_forms(text):
    scores = Mmlu().score(Sample("0", "", "B"), text)
    assert scores["accuracy"] == 1.0 and scores["no_answer"] == 0.0


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("The answer is A fruit", None), ("\\boxed{A fruit}", None),
        ("A pear is a fruit", None), ("It is A fruit", None), ("The answer is not B", None),
        ("It is A or B", None), ("(A) or (B)? The answer is (A).", "A"), ("The answer is B. No, the answer is C.", "C"),
        ("D", "D"), ("Maybe (C)", "C"),
    ],
)  # fmt: skip
def test_an_article_or_a_denied_letter_is_no_answer(text, letter):
    scores = Mmlu().score(Sample("0", "", letter or "A"), text)
    assert scores["no_answer"] == float(letter is None) and scores["accuracy"] == float(letter is not None)


ROW = {
    "prompt": 'import math\n\n\ndef add(a, b):\n    """Return a plus b."""\n',
    "test": "def check(candidate):\n    assert candidate(2, 3) == 5\n",
    "entry_point": "add",
}


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("    return a + b\n", 1.0),
        ("```python\ndef add(a, b):\n    return a + b\n```", 1.0),
        ("Here it is:\n```python\ndef add(a, b):\n    return a + b\n```\nIt adds.", 1.0),
        ("```\n    return a + b\n```", 1.0),
        ("```py\ndef helper(x):\n    return x\n\n\ndef add(a, b):\n    return helper(a) + b\n", 1.0),
        ("```python\nprint(1)\n```\nand\n```python\ndef add(a, b):\n    return math.floor(a + b)\n```", 1.0),
        ("    return a + b\n```\nThis is wrong: ```", 1.0),
        ("```python\ndef add(a, b):\n    return a - b\n```", 0.0),
        ("def add(a, b):\n    return a + b\n", 1.0),
        ("Here is the code:\n\n```\ndef add(a, b):\n    return a + b\n```", 1.0),
        ("    return a + b\n\n```python\nprint(add(2, 3))\n```", 1.0),
        ("~~~python\ndef add(a, b):\n    return a + b\n~~~\n", 1.0),
        ("1. Code:\n   ```python\n   def add(a, b):\n       return a + b\n   ```", 1.0),
        ("````python\ndef add(a, b):\n    '''\n```\n'''\n    return a + b\n````", 1.0),
    ],
)
def test_code_of_chat_models_is_run(text, right):
    sandbox = Sandbox.find("none")
    score = HumanEval(timeout=10.0).score(Sample("0", ROW["prompt"], ROW), without(STOPS, text), sandbox)
    assert score["pass@1"] == right


def test_stop_strings_within_a_block_do_not_end_a_text():
    text = "Sure:\n```python\ndef f():\n    return 1\n\ndef g():\n    return 2\n```\nDone.\ndef more"
    assert without(STOPS, text) == text[: text.index("\ndef more")]
    assert [content for _, _, content in fenced_blocks(text)] == ["def f():\n    return 1\n\ndef g():\n    return 2\n"]
    assert without(STOPS, "    return 1\n```\nmore") == "    return 1", "it ends the block that the prompt began"
    limits = GenerationLimits(
        eos=frozenset(), max_new_tokens=999, stop=STOPS, detokenize=lambda ids: "".join(map(chr, ids)),
        ends=lambda part: without(STOPS, part) != part,
    )  # fmt: skip
    ids = list(map(ord, text))
    assert not any(limits.stopped(ids[:n]) for n in range(text.index("```python"), text.index("Done.")))
    assert limits.stopped(ids[: text.index("\ndef more") + 4])


@pytest.mark.parametrize(
    ("metric", "text"),
    [
        ("bleu", "今天天气很好。"), ("bleu", "我喜欢喝茶。"), ("bleu", "今日はとても良い天気です"), ("bleu", "วันนี้อากาศดีมาก"),
        ("bleu", "The house is very old."), ("bleu", "Oui."), ("rouge", "今天天气很好。"),
        ("rouge", "Мост открыт снова."), ("rouge", "안녕하세요 여러분"),
        ("rouge", "Der Turm ist höher."), ("rouge", "été"),
    ],
)  # fmt: skip
def test_identical_texts_score_one_in_any_script(metric, text):
    task = Custom(prompt="{q}", reference="a", metric=metric)
    scores = task.score(Sample("0", "", text), text)
    if metric == "rouge":
        assert scores["rouge1"] == scores["rougeL"] == 1.0
    else:
        assert combiner("bleu").whole(table("bleu", [Scored(scores["bleu"], "0")])) == pytest.approx(1.0)


def test_bleu_of_chinese_is_sacrebleus():
    pairs = [("今天天气很好。", "今天天气不好。"), ("我喜欢喝茶。", "我很喜欢喝绿茶。")]
    task = Custom(prompt="{q}", reference="a", metric="bleu")
    values = [
        Scored(task.score(Sample(str(i), "", ours), theirs)["bleu"], str(i)) for i, (ours, theirs) in enumerate(pairs)
    ]
    references, texts = zip(*pairs, strict=True)
    expected = sacrebleu.corpus_bleu(list(texts), [list(references)], tokenize="zh").score
    assert 100 * combiner("bleu").whole(table("bleu", values)) == pytest.approx(expected)
    fixed = Custom(prompt="{q}", reference="a", metric="bleu", tokenize="13a")
    assert "tok:13a|" in fixed.metrics[0].signature and "by script" in task.metrics[0].signature


@pytest.mark.parametrize(
    ("words", "text", "holds"),
    [
        ("东京", "答案是东京。", 1.0), ("Москва", "это Москва", 1.0), ("Москва", "Москвание", 0.0), ("cat", "concat", 0.0),
        ("東京", "東京都", 1.0), ("cat", "a cat.", 1.0), ("42", "答案是42。", 1.0), ("Paris", "在Paris市", 1.0),
        ("4", "答案是42。", 0.0),
    ],
)  # fmt: skip
def test_words_are_found_in_scripts_without_blanks(words, text, holds):
    task = Custom(prompt="{q}", reference="a", metric="contains")
    assert task.score(Sample("0", "", words), text)["contains"] == holds
