r"""Answers of mathematics problems: boxes, values, comparison, and the agreement of both graders on the same outputs."""

import tomllib
from fractions import Fraction
from importlib import resources

import pytest

from specbench.data.task import Sample
from specbench.errors import MissingAsset
from specbench.math_answers import are_same, boxes, value_of
from specbench.scoring import last_number
from specbench.tasks.custom import Custom
from specbench.tasks.mmlu import Mmlu


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"\boxed{70} and \fbox{7} and \framebox{8}", ["70", "7", "8"]),
        (r"\boxed 70. Then \boxed70, \boxed x", ["70", "70", "x"]),
        (r"\boxed{\frac{1}{\sqrt{2}}}", [r"\frac{1}{\sqrt{2}}"]),
        (r"\boxed{\{1,2\}}", [r"\{1,2\}"]),
        (r"\boxed{\boxed{7}}", ["7"]),
        (r"\boxed{70} in a \boxed{}, \boxed{ \, } and \boxed{$ $}", ["70"]),
        (r"\boxed{70} then \boxed{71", ["70"]),
        (r"\boxedx{3} boxed{4}", []),
        (r"\boxed\frac{1}{2}", [r"\frac{1}{2}"]),
        (r"\boxed", []),
    ],
)
def test_boxes_are_found_without_empty_and_unclosed_ones(text, found):
    assert boxes(text) == found


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("070", 70), (r"336^\circ", 336), (r"336^{\circ}\text{C}", 336), (r"610_{10}", 610), (r"588 \pmod{1000}", 588),
        (r"N \equiv 588 \pmod{1000}", 588), ("588 (mod 1000)", 588), (r"70\text{ cm}^2", 70), (r"70~\mathrm{km/h}", 70),
        ("70 dollars per day", 70), ("70 m", 70), (r"\$9{,}500", 9500), (r"9\,500\,000", 9_500_000), ("1,234", 1234),
        ("x = 70", 70), ("m+n = 70", 70), (r"\textbf{70}.", 70), (r"\text{The answer is }70", 70),
        (r"90\%", 90),
        (r"-\$5", -5), ("\u22125", -5), (r"\left(70\right)", 70), (r"\frac{1}{70}", Fraction(1, 70)),
        (r"-\frac12", Fraction(-1, 2)),
        (r"3\tfrac{1}{2}", Fraction(7, 2)), ("7/2", Fraction(7, 2)), ("2^{5}", 32), ("2.50", Fraction(5, 2)),
    ],
)  # fmt: skip
def test_the_value_of_an_answer_is_that_of_the_whole(answer, value):
    assert value_of(answer) == value


@pytest.mark.parametrize(
    "answer",
    [
        "70 or 71",
        "70, 71",
        "1010_2",
        r"70 \text{ and } 71",
        r"70\pi",
        "70x",
        "70!",
        r"\sqrt{70}",
        "x=3, y=4",
        "1/0",
        "(C)",
        "",
        "1,2",
    ],
)
def test_an_answer_that_is_no_single_number_has_no_value(answer):
    assert value_of(answer) is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("it costs $9{,}500", 9500),
        (r"it costs -\$5", -5),
        ("$5-$3", 3),
        ("18...", 18),
        ("18 ... ", 18),
        (r"9\,500 km", 9500),
    ],
)
def test_the_last_number_of_a_text_may_have_marks_of_latex_and_money(text, number):
    assert last_number(text) == number


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        (r"\dfrac{1}{2}", r"\frac12", True), ("0.5", r"\frac{1}{2}", True),
        (r"\text{odd}", "odd", True), ("1,-2", "-2, 1", True),
        ("(1,2)", "(2,1)", False), ("[0,1)", "(0,1)", False),
        (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\dfrac{\pi}{2})", True),
        (r"x \in [-2,7]", "[-2,7]", True), (r"2\sqrt{3}", r"2\sqrt3", True), ("y=2x+3", "2x + 3", True),
        ("10", "1010_2", False),
        ("3,5", "3,5,7", False), (r"\frac{1}{70}", "70", False), (r"11\frac12", "11.5", True), (r"90^\circ", "90", True),
    ],
)  # fmt: skip
def test_answers_are_compared_by_value_or_spelling(one, two, same):
    assert are_same(one, two) is same is are_same(two, one)


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        ("2ab", "2xy", False), ("12xy", "12", False), ("2 x", "2", False), ("3 i", "3", False), (r"3\mathrm{i}", "3", False),
        ("2m", "2", False), (r"2\text{ million}", "2", False), ("2 dozen", "2", False), (r"2\pi", "2", False),
        ("2ab", "2 ab", True), (r"18\text{ marbles}", "18", True), ("18 eggs", "18", True), ("18 kg.", "18", True),
        (r"9.8\,\text{m}/\text{s}^2", "9.8", True), (r"3\ \mathrm{m/s^{2}}", "3", True), (r"20^\circ C", "20", True),
        ("5 p.m.", "5", True), (r"12\text{ in.}^2", "12", True),
    ],
)  # fmt: skip
def test_units_do_not_count_and_variables_do(one, two, same):
    assert are_same(one, two) is same is are_same(two, one)


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        ("1/2, 0.3", "0.5, 3/10", True), ("0.5, 0.5, 1", "1, 1/2, 2/4", True), ("0.5, 0.5, 1", "1, 1, 1/2", False),
        ("(1/2, 0.3)", "(0.5, 3/10)", True), ("(1/2, 0.3)", "(3/10, 0.5)", False),
    ],
)  # fmt: skip
def test_parts_of_lists_are_compared_by_value_in_any_order_outside_brackets(one, two, same):
    assert are_same(one, two) is same is are_same(two, one)


@pytest.mark.parametrize(
    "end",
    ["a" * 40 + " (", "a " * 400 + "(", "5" * 900 + "(", " " * 900 + "(", "{" * 900, r"\text{" * 180, "m/" * 450 + "("],
)
def test_long_answers_that_are_no_numbers_are_read(end):
    assert value_of(f"5 {end}") is None
    assert not are_same(f"5 {end}", "5")
    assert are_same(f"5 {end}", f"5 {end}")


def test_boxes_of_long_degenerate_outputs_are_read():
    assert boxes(r"\boxed{" * 20_000 + "7" + "}" * 20_000) == ["7"]
    assert boxes(r"\boxed{" * 20_000) == []
    assert boxes(r"\boxed{1 \boxed{2} \boxed{3 \boxed{ }}} \boxed{a\}b}") == [r"3 \boxed{ }", r"a\}b"]


@pytest.mark.parametrize(
    "text", ["answer is" + " " * 20_000, "it is " * 2000 + " " * 20_000, r"\boxed{" + " " * 20_000, "\n" * 20_000]
)
def test_long_degenerate_outputs_of_mmlu_are_read(text):
    sample = Sample("0", "", reference="B")
    assert Mmlu().score(sample, f"{text}!")["accuracy"] == 0.0
    assert Mmlu().score(sample, f"{text}B.")["accuracy"] == 1.0


OUTPUTS = {  # an output and a reference: whether our grader and Math-Verify call it right
    (r"\boxed{70}", "70"): (1, 1), (r"\boxed{711}", "11"): (0, 0), (r"\boxed{\frac{1}{70}}", "70"): (0, 0),
    (r"\boxed{336^\circ}", "336"): (1, 1), (r"\boxed{610_{10}}", "610"): (1, 1), (r"\boxed{70\text{ cm}^2}", "70"): (1, 1),
    (r"\boxed 70", "70"): (1, 1), (r"\boxed{\$9{,}500}", "9500"): (1, 1), (r"\boxed{(2,1)}", "(1,2)"): (0, 0),
    (r"\boxed{0.5}", r"\frac{1}{2}"): (1, 1), (r"\boxed{-2,1}", "1,-2"): (1, 1), (r"\boxed{x=5}", "5"): (1, 1),
    (r"\boxed{[0,1)}", "[0,1)"): (1, 1), (r"\boxed{70", "70"): (0, 0), (r"\boxed{\text{odd}}", "odd"): (1, 1),
    # a modulus, and boxes that Math-Verify does not take
    (r"\boxed{588 \pmod{1000}}", "588"): (1, 0), (r"\fbox{70}", "70"): (1, 0), (r"\boxed{70}. In a \boxed{}.", "70"): (1, 0),
    # algebra, and answers without a box
    (r"\boxed{\sqrt{8}}", r"2\sqrt{2}"): (0, 1), (r"\boxed{4i+3}", "3+4i"): (0, 1), (r"\boxed{x^2+2x+1}", "(x+1)^2"): (0, 1),
    ("the answer is 70", "70"): (0, 1),
}  # fmt: skip


def task(name: str) -> Custom:
    table = tomllib.loads(resources.files("specbench.configs").joinpath(f"tasks/{name}.toml").read_text())
    return Custom(
        **{key: value for key, value in table.items() if key in Custom.__dataclass_fields__ and key != "name"}
    )


def test_both_graders_on_the_same_outputs():
    pytest.importorskip("math_verify")
    standard, other = task("math500"), task("math500/math-verify")
    for (text, reference), expected in OUTPUTS.items():
        sample = Sample("0", "", reference=reference)
        assert (standard.score(sample, text)["math"], other.score(sample, text)["math"]) == expected, text
    assert other.metrics[0].signature.startswith("math|pkg:math-verify-")


def test_a_task_says_how_to_install_the_optional_grader(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "math_verify", None)
    with pytest.raises(MissingAsset, match=r"help: pip install 'specbench\[math\]'"):
        _ = task("aime25/math-verify").metrics


@pytest.mark.parametrize(
    ("text", "reference", "right"),
    [
        (r"\boxed{711}", "11", 0), (r"\boxed{\frac{1}{70}}", "70", 0), (r"\boxed{2^{70}}", "70", 0),
        (r"\boxed{070}", "70", 1),
        (r"\boxed{70}, as a \boxed{}", "70", 1), (r"\boxed{71} no, \boxed{70}", "70", 1), (r"\boxed{336}", r"336^\circ", 1),
        ("70", "70", 0),
    ],
)  # fmt: skip
def test_aime_compares_the_whole_box(text, reference, right):
    assert task("aime25").score(Sample("0", "", reference=reference), text)["number"] == right


def test_gsm8k_as_a_chat_takes_the_reference_from_a_solution():
    sample = Sample("0", "", reference="She has 3*4=<<3*4=12>>12 shells, and 9,488 more.\n#### 9,500")
    assert task("gsm8k/boxed").score(sample, r"So \boxed{\$9{,}500}.")["number"] == 1


@pytest.mark.parametrize(
    "change", [{"extract": "a"}, {"grader": "math-verify"}, {"metric": "bleu", "grader": "math-verify", "boxed": False}]
)
def test_settings_that_conflict_are_an_error(change):
    with pytest.raises(ValueError, match=r"conflict|finds the answer itself"):
        Custom(**{"prompt": "{q}", "reference": "a", "metric": "number", "boxed": True} | change)
