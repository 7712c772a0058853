r"""Answers of mathematics problems: the boxes of a text, their values, and their comparison.

A box is compared as a whole, so that `\boxed{\frac{1}{70}}` is not 70. What does not change a value is left out of it: units,
degrees, `\pmod`, marks of money and thousands, fonts, and the base 10. `math_verify_score` asks Math-Verify instead.
"""

import re
import threading
from fractions import Fraction
from importlib.metadata import version
from typing import Any

from specbench.errors import MissingAsset
from specbench.scoring import last_number, plain_numbers

BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![a-zA-Z])\s*")
FONTS = (
    r"text|textbf|textit|textrm|textnormal|mathrm|mathbf|mathit|mathsf|boldsymbol|bm|operatorname|mbox|hbox|emph|mathbb"
)
FONT = re.compile(rf"\\(?:{FONTS})\s*\{{([^{{}}]*)\}}")
SPACES = re.compile(r"\\(?:quad|qquad|hspace\{[^{}]*\}|,|;|:|!| |~)|~")
SIZES = re.compile(r"\\(?:left|right|big|Big|bigg|Bigg|bigl|bigr|Bigl|Bigr|displaystyle|textstyle|limits)(?![a-zA-Z])")
MODULUS = re.compile(r"\\pmod\s*(?:\{[^{}]*\}|\d)|\(?\s*\\?(?:bmod|mod)(?![a-zA-Z])\s*\{?[\d\w]+\}?\s*\)?")
DEGREES = re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ)|\\degree|°")
POWER_OF_UNIT = re.compile(r"(?<=[a-zA-Z%])\s*\^\s*\{?-?\d+\}?\s*$")
UNIT = re.compile(r"(?<=[\d.})])(?:\s*(?:[a-zA-Z]{2,}\.?|\\?%)|\s+[a-zA-Z])(?:[\s/*\u00b7-]*[a-zA-Z.]+)*\s*$")
NAMED = re.compile(r"^\s*[a-zA-Z](?:_\{?\w+\}?)?(?:\s*[+*-]\s*[a-zA-Z])*\s*(?:=|\\equiv|\\in)\s*|^.*(?:=|\\equiv)\s*")
THOUSANDS = re.compile(r"(?<![\d,.])(\d{1,3}(?:,\d{3})+)(?![\d,])")
DECIMAL = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?")
WORDS = re.compile(r"^(?:[a-zA-Z]{2,}[:,]?\s+)+(?=[-+.\d\\])")
FRACTION_OF_DIGITS = re.compile(r"\\frac\s*(\d)\s*(\d)")
FRACTION = re.compile(r"([-+]?)\s*\\frac\s*(?:\{([^{}]*)\}|(\d))\s*(?:\{([^{}]*)\}|(\d))")
MIXED = re.compile(r"([-+]?\d+)\s*\\frac\s*\{(\d+)\}\s*\{(\d+)\}")
RATIO = re.compile(r"([-+]?[\d.]+)\s*/\s*([-+]?[\d.]+)")
BASE_TEN = re.compile(r"(?<=\d)\s*_\s*(?:10|\{\s*(?:10|ten)\s*\})(?!\d)")
RAISED = re.compile(r"([-+]?)\(?([\d.]+)\)?\s*\^\s*(?:\{\s*(-?\d{1,2})\s*\}|(-?\d))")
HELP = "the grader math-verify needs the package Math-Verify, which is not installed\n  help: pip install 'specbench[math]'"
SECONDS = 5  # that Math-Verify may take for an answer


def boxes(text: str) -> list[str]:
    r"""Return what is in the boxes of a text, in order, without empty ones. A box that is not closed is none.

    `\boxed`, `\fbox` and `\framebox` are boxes, also without braces: `\boxed 70`. Of nested boxes, the inner one counts.
    """
    found, at = list[str](), 0
    while match := BOX.search(text, at):
        content, at = _argument(text, match.end())
        inner = boxes(content or "")
        if inner:
            found.append(inner[-1])
        elif content is not None and SPACES.sub("", content).strip(" \n\t$"):
            found.append(content.strip())
    return found


def _argument(text: str, at: int) -> tuple[str | None, int]:
    """Return what a command at a place is applied to, and where that ends; None if a brace is not closed."""
    if at >= len(text):
        return None, at
    if text[at] != "{":
        match = re.compile(r"[-+\u2212]?\\?\$?\d[\d.,{}]*|\\?[a-zA-Z]+(?:\{[^{}]*\})*|\S").match(text, at)
        assert match is not None
        return match[0].rstrip(".,"), match.end()
    depth, i = 0, at
    while i < len(text):
        if text[i] == "\\":
            i += 2
            continue
        depth += (text[i] == "{") - (text[i] == "}")
        i += 1
        if not depth:
            return text[at + 1 : i - 1], i
    return None, at


def value_of(answer: str) -> Fraction | None:
    r"""Return the value of an answer as a whole, or None if it is no single number.

    It may be a decimal, a fraction, a mixed number or a power, after words or `x =` and before a unit.
    """
    text = _plain(answer)
    while len(text) > 1 and (text[0] + text[-1]) in ("{}", "()") and not re.search(r"[(){}]", text[1:-1]):
        text = text[1:-1].strip()
    text = THOUSANDS.sub(lambda match: match[1].replace(",", ""), text)
    for candidate in (text, NAMED.sub("", text, count=1), WORDS.sub("", text)):
        for each in (candidate, UNIT.sub("", POWER_OF_UNIT.sub("", candidate))):
            if (value := _value(each.strip(" .;:$"))) is not None:
                return value
    return None


def _plain(answer: str) -> str:
    """Return an answer without what does not change its value. Text in fonts stays, with blanks around it."""
    text = plain_numbers(answer)
    text = SIZES.sub(" ", SPACES.sub(" ", text))
    while FONT.search(text):
        text = FONT.sub(r" \1 ", text)
    text = DEGREES.sub(" ", MODULUS.sub(" ", text))
    text = re.sub(r"\\?[$%]|[€£¥]|\\[()\[\]]", "", BASE_TEN.sub("", text))
    return FRACTION_OF_DIGITS.sub(r"\\frac{\1}{\2}", re.sub(r"\\[dt]frac", r"\\frac", text)).strip()


def _value(text: str) -> Fraction | None:
    """Return the value of a plain number, fraction or power; None for anything else."""
    try:
        if DECIMAL.fullmatch(text):
            return Fraction(text)
        if match := MIXED.fullmatch(text):
            whole, part = int(match[1]), Fraction(int(match[2]), int(match[3]))
            return whole - part if match[1].startswith("-") else whole + part
        if match := FRACTION.fullmatch(text):
            above, below = _value((match[2] or match[3]).strip()), _value((match[4] or match[5]).strip())
            return None if above is None or not below else (-above if match[1] == "-" else above) / below
        if match := RATIO.fullmatch(text):
            return Fraction(match[1]) / Fraction(match[2])
        if match := RAISED.fullmatch(text):
            value = Fraction(match[2]) ** int(match[3] or match[4])
            return -value if match[1] == "-" else value
    except (ValueError, ZeroDivisionError):
        return None
    return None


def reference_value(reference: str) -> Fraction | None:
    """Return the value of a reference: of the whole, or of its last number, as in the solutions of GSM8K."""
    value = value_of(reference)
    if value is None and (number := last_number(reference)) is not None:
        value = Fraction(number)
    return value


def are_same(answer: str, reference: str) -> bool:
    """Return whether two answers are the same: by their values, or as texts without fonts, spaces and other spellings.

    The parts of lists are compared one by one, in any order outside brackets.
    """
    one, two = value_of(answer), value_of(reference)
    if one is not None or two is not None:
        return one == two
    left, right = _parts(answer), _parts(reference)
    if len(left) > 1 and len(left) == len(right):
        one_ends, two_ends = _ends(answer), _ends(reference)
        ordered = bool(two_ends)
        if one_ends != two_ends:
            return False
        pairs = zip(left, right, strict=True) if ordered else zip(sorted(left), sorted(right), strict=True)
        return all(are_same(a, b) for a, b in pairs)
    return _spelled(answer) == _spelled(reference)


def _ends(answer: str) -> str:
    """Return the brackets around a list; empty if it has none."""
    text = _spelled(answer)
    return text[0] + text[-1] if len(text) > 1 and text[0] in "([" and text[-1] in ")]" else ""


def _parts(answer: str) -> list[str]:
    """Return the parts of a list, between commas outside braces and brackets."""
    text = _spelled(answer)
    if _ends(answer):
        text = text[1:-1]
    parts, depth = [""], 0
    for character in text:
        depth += (character in "({[") - (character in ")}]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _spelled(answer: str) -> str:
    """Return an answer in one spelling."""
    text = _plain(answer)
    text = re.sub(r"\\sqrt\s*(\d|[a-zA-Z](?![a-zA-Z]))", r"\\sqrt{\1}", text)
    text = re.sub(r"(?<![\d}])(-?\d+)/(\d+)(?![\d{])", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\(?:cdot|times)(?![a-zA-Z])", "*", text)
    text = re.sub(r"\\(le|ge|ne)q?(?![a-zA-Z])", r"\\\1", text)
    text = re.sub(r"([_^])\{(\w)\}", r"\1\2", text)
    if re.match(r"^\s*[a-zA-Z]\s*(?:=|\\in(?![a-zA-Z]))", text):
        text = re.split(r"=|\\in(?![a-zA-Z])", text, maxsplit=1)[1]
    return re.sub(r"\s+", "", text).rstrip(".")


def grader_signature() -> str:
    """Return Math-Verify's name and version. Raises MissingAsset if it is not installed."""
    _math_verify()
    return f"pkg:math-verify-{version('math-verify')}"


def math_verify_score(text: str, references: list[str]) -> tuple[bool, bool]:
    """Return whether Math-Verify finds the last answer of a text equal to one of the references, and whether it finds any.

    Raises MissingAsset if the package is not installed.
    """
    package = _math_verify()
    seconds = SECONDS if threading.current_thread() is threading.main_thread() else None  # it uses an alarm signal

    def parsed(answer: str) -> Any:
        return package.parse(answer, parsing_timeout=seconds)

    found = parsed(text)
    boxed = (f"\\boxed{{{reference}}}" for reference in references)
    return any(package.verify(parsed(each), found, timeout_seconds=seconds) for each in boxed), bool(found)


def _math_verify() -> Any:
    try:
        import math_verify  # optional, and slow to import
    except ImportError:
        raise MissingAsset(HELP) from None
    return math_verify
