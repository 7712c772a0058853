r"""Answers of mathematics problems: the boxes of a text, their values, and their comparison.

A box is compared as a whole, so that `\boxed{\frac{1}{70}}` is not 70. What does not change a value is left out of it: units,
degrees, `\pmod`, marks of money and thousands, fonts, and the base 10. `math_verify_score` asks Math-Verify instead.
"""

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from importlib.metadata import version
from string import ascii_letters, digits, whitespace
from typing import Any

from specbench.errors import MissingAsset
from specbench.scoring import last_number, plain_numbers

BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![a-zA-Z])\s*")
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
BARE_ARGUMENT = re.compile(r"[-+\u2212]?\\?\$?\d[\d.,{}]*|\\?[a-zA-Z]+(?:\{[^{}]*\})*|\S")
FONTS = (
    r"text|textbf|textit|textrm|textnormal|mathrm|mathbf|mathit|mathsf|boldsymbol|bm|operatorname|mbox|hbox|emph|mathbb"
)
FONT = re.compile(rf"\\({FONTS})\s*\{{([^{{}}]*)\}}")
SPACES = re.compile(r"\\(?:quad|qquad|hspace\{[^{}]*\}|,|;|:|!| |~)|~")
SIZES = re.compile(r"\\(?:left|right|big|Big|bigg|Bigg|bigl|bigr|Bigl|Bigr|displaystyle|textstyle|limits)(?![a-zA-Z])")
MODULUS = re.compile(r"\\pmod\s*(?:\{[^{}]*\}|\d)|\(?\s*\\?(?:bmod|mod)(?![a-zA-Z])\s*\{?[\d\w]+\}?\s*\)?")
DEGREES = re.compile(
    r"(?:\^\s*(?:\{\s*\\circ\s*\}|\\circ)|\\degree|°)(?:\s*(?:[CF](?![a-zA-Z])|\\(?:text|textrm|mathrm)\s*\{\s*[CF]\s*\}))?"
)
NAMED = re.compile(r"^\s*[a-zA-Z](?:_\{?\w+\}?)?(?:\s*[+*-]\s*[a-zA-Z])*\s*(?:=|\\equiv|\\in)\s*|^.*(?:=|\\equiv)\s*")
THOUSANDS = re.compile(r"(?<![\d,.])(\d{1,3}(?:,\d{3})+)(?![\d,])")
DECIMAL = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?")
WORDS = re.compile(r"^(?:[a-zA-Z]{2,}[:,]?\s+)+(?=[-+.\d\\])")
OF_TEXT = "\ue000"  # in place of a word that a font for text marks after a number
TEXT_FONTS = ("text", "textrm", "textnormal", "textit", "textbf", "mbox", "hbox", "emph")
POWER_OF_UNIT = re.compile(rf"(?<=[a-zA-Z{OF_TEXT}])\s{{0,9}}\^\s{{0,9}}(?:-?\d|\{{\s{{0,9}}-?\d{{1,2}}\s{{0,9}}\}})")
BETWEEN = re.compile(r"[\s/*\u00b7-]+")  # the words of a unit
UNITS = frozenset(
    # single letters only where they are written as units: 2 x is no number of x
    "m g s L"
    " nm mm cm dm km in ft yd mi inch inches foot feet yard yards mile miles meter meters metre metres centimeter centimeters"
    " centimetre centimetres millimeter millimeters kilometer kilometers kilometre kilometres"
    " mg kg lb lbs oz gram grams kilogram kilograms ounce ounces pound pounds ton tons tonne tonnes"
    " ml mL cl dl dL kL cc liter liters litre litres gallon gallons quart quarts pint pints cup cups teaspoon teaspoons"
    " tablespoon tablespoons"
    " ms sec secs second seconds min mins minute minutes hr hrs hour hours day days week weeks month months year years yr yrs"
    " decade decades century centuries am pm"
    " mph kph kmh bps Hz kHz MHz GHz hertz Pa kPa bar atm psi kJ kW kWh MW Wh joule joules watt watts volt volts"
    " newton newtons ohm ohms amp amps calorie calories cal kcal kelvin celsius fahrenheit mol moles"
    " byte bytes bit bits KB MB GB TB degree degrees deg radian radians rad revolution revolutions rpm percent"
    " dollar dollars cent cents euro euros USD EUR penny pennies nickel nickels dime dimes"
    " unit units sq square squared cubic cubed per each"
    " people person students children boys girls men women players friends teams games points times ways steps items pieces"
    " apples oranges eggs books pages pencils pens balls marbles cookies coins cards boxes bags cars trees flowers dogs cats"
    " birds chickens fish tickets shirts toys stamps stickers bottles cans slices pizzas cakes candies letters words numbers"
    " digits integers solutions values triangles squares rectangles cubes sides edges faces vertices".split()
)
NOT_UNITS = frozenset(  # words that change a value, or join two of them
    "and or to plus minus times over hundred thousand million billion trillion dozen half halves third thirds fourth fourths"
    " fifth fifths root pi infinity".split()
)  # fmt: skip
NUMBER_ENDS = (*digits, "}", ")")
LONGEST = 1000  # characters of an answer that is read; a longer one is compared as it is
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
    closing, found, around = _closing(text), list[str](), list[_Box]()

    def close(before: int) -> None:
        while around and around[-1].end <= before:
            box = around.pop()
            content = box.inner or text[box.begin : box.end].strip()
            if not SPACES.sub("", content).strip(" \n\t$"):
                continue
            if around:
                around[-1].inner = content
            else:
                found.append(content)

    for match in BOX.finditer(text):
        close(match.start())
        limit = around[-1].end if around else len(text)
        if (span := _argument(text, match.end(), limit, closing)) is not None:
            around.append(_Box(*span))
    close(len(text))
    return found


@dataclass
class _Box:
    """Where the content of a box begins and ends, and the last content of a box within it."""

    begin: int
    end: int
    inner: str = ""


def _closing(text: str) -> dict[int, int]:
    """Return where each brace is closed, by where it opens, in one pass."""
    found, opened = dict[int, int](), list[int]()
    for match in BRACE.finditer(text):
        if match[0] == "{":
            opened.append(match.start())
        elif match[0] == "}" and opened:
            found[opened.pop()] = match.start()
    return found


def _argument(text: str, at: int, limit: int, closing: Mapping[int, int]) -> tuple[int, int] | None:
    """Return where the argument of a command begins and ends; None if there is none, or if its brace is not closed."""
    if at >= limit:
        return None
    if text[at] == "{":
        return (at + 1, closing[at]) if at in closing else None
    match = BARE_ARGUMENT.match(text, at, limit)
    assert match is not None
    return at, at + len(match[0].rstrip(".,"))


def value_of(answer: str) -> Fraction | None:
    r"""Return the value of an answer as a whole, or None if it is no single number.

    It may be a decimal, a fraction, a mixed number or a power, after words or `x =` and before a unit. Units are the words of
    `UNITS`, and those in `\text{}`; a variable is none. An answer of more than LONGEST characters has no value.
    """
    if len(answer) > LONGEST:
        return None
    text = _plain(answer, marks_units=True)
    while len(text) > 1 and (text[0] + text[-1]) in ("{}", "()") and not re.search(r"[(){}]", text[1:-1]):
        text = text[1:-1].strip()
    text = THOUSANDS.sub(lambda match: match[1].replace(",", ""), text)
    for candidate in (text, NAMED.sub("", text, count=1), WORDS.sub("", text)):
        for each in (candidate, _without_unit(candidate)):
            if (value := _value(each.strip(" .;:$"))) is not None:
                return value
    return None


def _plain(answer: str, marks_units: bool = False) -> str:
    """Return an answer without what does not change its value. Text in fonts stays, with blanks around it.

    `marks_units` replaces words in fonts for text that follow a number by OF_TEXT.
    """
    text = plain_numbers(answer)
    text = DEGREES.sub(" ", SIZES.sub(" ", SPACES.sub(" ", text)))
    text = re.sub(r"\^\{(-?\d)\}", r"^\1", text)
    while FONT.search(text):
        text = FONT.sub(_unit_in_font if marks_units else r" \2 ", text)
    text = MODULUS.sub(" ", text)
    text = re.sub(r"\\?[$%]|[€£¥]|\\[()\[\]]", "", BASE_TEN.sub("", text))
    return FRACTION_OF_DIGITS.sub(r"\\frac{\1}{\2}", re.sub(r"\\[dt]frac", r"\\frac", text)).strip()


def _unit_in_font(match: re.Match[str]) -> str:
    """Return what a font contains, with OF_TEXT in place of each word if it is a unit after a number.

    A single letter is one in `\\text` and `\\mathrm` only if it is no i or e, which are numbers.
    """
    font, content = match[1], match[2]
    before = match.string[: match.start()].rstrip()[-1:]
    words = _words_of(re.sub(r"\^-?\d", "", content))
    is_upright = font in TEXT_FONTS or font == "mathrm"
    is_unit = all(
        word in UNITS
        or (is_upright and word.isalpha() and word.lower() not in NOT_UNITS and word not in ("i", "j", "e", "d"))
        for word in words
    )
    if not (words and is_unit and (before.isdigit() or before in (*".})/*", OF_TEXT))):
        return f" {content} "
    return f" {'/'.join(OF_TEXT for _ in words)} "


def _words_of(unit: str) -> list[str]:
    """Return the words of a unit, without dots: p.m. is pm."""
    return [word for each in BETWEEN.split(unit) if (word := each.replace(".", ""))]


def _without_unit(text: str) -> str:
    """Return a number without the unit after it. A text that ends in other words stays as it is."""
    text = POWER_OF_UNIT.sub("", text).rstrip()
    number = text.rstrip(f"{ascii_letters}{OF_TEXT}{whitespace}/*.\u00b7-")
    tail = text[len(number) :]
    words = _words_of(tail)
    if not words or not number.endswith(NUMBER_ENDS):
        return text
    is_glued = tail[0] in ascii_letters and len(words[0]) == 1
    return number if not is_glued and all(word in UNITS or not word.strip(OF_TEXT) for word in words) else text


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
    if max(len(answer), len(reference)) > LONGEST:
        return answer.strip() == reference.strip()
    one, two = value_of(answer), value_of(reference)
    if one is not None or two is not None:
        return one == two
    left, right = _parts(answer), _parts(reference)
    if len(left) > 1 and len(left) == len(right):
        ends = _ends(answer)
        if ends != _ends(reference):
            return False
        if ends:
            return all(are_same(a, b) for a, b in zip(left, right, strict=True))
        for part in left:  # being the same is transitive, so the first match is as good as another
            found = next((at for at, other in enumerate(right) if are_same(part, other)), None)
            if found is None:
                return False
            del right[found]
        return True
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
