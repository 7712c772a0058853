"""Small functions in HumanEval's schema: `{"task_id", "prompt", "canonical_solution", "test", "entry_point"}`.

A docstring describes what the function returns and shows one call. The tests call it with other arguments. Expected values
come from running the solution.
"""

import random
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

from specbench.data.rows import Row, SyntheticTask, capital

TRIES = 20
LISTS = "xs nums values items data".split()
WORDS = (
    "apple",
    "book",
    "cloud",
    "door",
    "eagle",
    "fish",
    "garden",
    "house",
    "island",
    "jump",
    "kite",
    "lemon",
    "moon",
)

TEXTS = (*WORDS, "ant", "sun", "mountain", "elephant")  # of as many lengths as functions ask for


class _Function(NamedTuple):
    """A function of one family: its name, parameters, docstring's sentence, body, and a maker of arguments."""

    name: str
    parameters: str
    sentence: str
    body: str
    arguments: Callable[[random.Random], tuple[Any, ...]]


def make(rng: random.Random) -> Row:
    """Return a function, the example in its docstring, and four tests with the values that the solution returns."""
    made = rng.choice(_FAMILIES)(rng)
    space: dict[str, Any] = {}
    exec(f"def {made.name}({made.parameters}):\n{made.body}", space)
    function = space[made.name]
    for _ in range(TRIES):  # tests that all expect the same value could be passed by a constant
        calls = [made.arguments(rng) for _ in range(5)]
        if len({repr(function(*call)) for call in calls[1:]}) > 1:
            break
    shown = f"    >>> {made.name}({_written(calls[0])})\n    {function(*calls[0])!r}\n"
    tests = "".join(f"    assert candidate({_written(call)}) == {function(*call)!r}\n" for call in calls[1:])
    stub = f'def {made.name}({made.parameters}):\n    """{capital(made.sentence)}\n{shown}    """\n'
    return {
        "task_id": f"Twin/{zlib.crc32(stub.encode()):08x}",
        "prompt": stub,
        "canonical_solution": made.body,
        "test": f"def check(candidate):\n{tests}",
        "entry_point": made.name,
    }


def prompt(row: Row) -> str:
    return str(row["prompt"])


def answer(row: Row) -> str:
    return str(row["canonical_solution"])


def _written(arguments: tuple[Any, ...]) -> str:
    return ", ".join(map(repr, arguments))


def _numbers(rng: random.Random) -> tuple[list[int]]:
    return ([rng.randint(-9, 20) for _ in range(rng.randint(3, 6))],)


def _two_numbers(rng: random.Random) -> tuple[int, int]:
    return rng.randint(1, 20), rng.randint(1, 20)


def _condition(rng: random.Random) -> tuple[str, str, str]:
    """Return a condition on a number x, as (words, code, part of a function name)."""
    n = rng.randint(2, 12)
    return rng.choice(
        [
            ("even", "x % 2 == 0", "even"),
            ("odd", "x % 2 == 1", "odd"),
            ("positive", "x > 0", "positive"),
            ("negative", "x < 0", "negative"),
            (f"greater than {n}", f"x > {n}", "above"),
            (f"less than {n}", f"x < {n}", "below"),
            (f"at least {n}", f"x >= {n}", "from"),
            (f"divisible by {n}", f"x % {n} == 0", "multiples"),
            (f"not equal to {n}", f"x != {n}", "without"),
        ]
    )


def _image(rng: random.Random) -> tuple[str, str, str]:
    """Return (in words before `the numbers`, in code, in a name) for a number x."""
    n = rng.randint(2, 9)
    return rng.choice(
        [
            ("", "x", "numbers"),
            ("the squares of ", "x * x", "squares"),
            ("the doubles of ", "2 * x", "doubles"),
            ("the absolute values of ", "abs(x)", "sizes"),
            (f"{n} times ", f"{n} * x", "multiples"),
        ]
    )


def _filtered_aggregate(rng: random.Random) -> _Function:
    """Return an aggregate of an image of the numbers that meet one or two conditions."""
    xs, (words, code, name), (image, mapped, kind) = rng.choice(LISTS), _condition(rng), _image(rng)
    if rng.random() < 0.5:
        second = _condition(rng)
        link = rng.choice(["and", "or"])
        words, code = f"{words} {link} {second[0]}", f"{code} {link} {second[1]}"
    what, opening, closing, short = rng.choice(
        [
            ("the sum of ", "sum(", ")", "sum"),
            ("a list of ", "[", "]", "list"),
            ("a sorted list of ", "sorted(", ")", "sorted"),
            ("the set of ", "{", "}", "set"),
            ("the largest of ", "max((", "), default=0)", "largest"),
            ("the smallest of ", "min((", "), default=0)", "smallest"),
        ]
    )
    body = f"    return {opening}{mapped} for x in {xs} if {code}{closing}\n"
    sentence = f"return {what}{image}the numbers in {xs} that are {words}."
    return _Function(f"{short}_{name}_{kind}", xs, sentence, body, _numbers)


def _counted(rng: random.Random) -> _Function:
    xs, (words, code, name) = rng.choice(LISTS), _condition(rng)
    share, what, end = rng.choice(
        [
            ("sum(1 for x in", "how many", ")"),
            ("any({} for x in", "whether any", ")"),
            ("all({} for x in", "whether all", ")"),
        ]
    )
    if what == "how many":
        body = f"    return {share} {xs} if {code}{end}\n"
    else:
        body = f"    return {share.format(code)} {xs}{end}\n"
    short = what.split()[-1]
    return _Function(f"{short}_{name}", xs, f"return {what} of the numbers in {xs} are {words}.", body, _numbers)


def _arithmetic(rng: random.Random) -> _Function:
    """Return two operations on one or two numbers."""
    a, b = rng.sample("abmnpqxy", 2)
    n, m = rng.randint(2, 12), rng.randint(2, 12)
    words, code = rng.choice(
        [
            (f"{a} times {n} plus {b}", f"{a} * {n} + {b}"),
            (f"{a} plus {b} times {n}", f"{a} + {b} * {n}"),
            (f"the sum of {a} and {b}, times {n}", f"({a} + {b}) * {n}"),
            (f"the difference of {a} and {b}, times {n}", f"({a} - {b}) * {n}"),
            (f"the product of {a} and {b}, plus {n}", f"{a} * {b} + {n}"),
            (f"the larger of {a} and {b}, minus {n}", f"max({a}, {b}) - {n}"),
            (f"the smaller of {a} and {b}, plus {n}", f"min({a}, {b}) + {n}"),
            (f"{a} times {n} minus {b} times {m}", f"{a} * {n} - {b} * {m}"),
            (f"the remainder of {a} plus {b} divided by {n}", f"({a} + {b}) % {n}"),
        ]
    )
    name = rng.choice(["compute", "combine", "mix", "result", "score", "value"])
    return _Function(name, f"{a}, {b}", f"return {words}.", f"    return {code}\n", _two_numbers)


def _choice(rng: random.Random) -> _Function:
    """Return one of two words, by a condition."""
    words, code, name = _condition(rng)
    yes, no = rng.sample(WORDS, 2)
    body = f"    if {code}:\n        return '{yes}'\n    return '{no}'\n"
    sentence = f"return '{yes}' if x is {words} and '{no}' otherwise."
    return _Function(
        f"{rng.choice(['label', 'name', 'pick'])}_{name}", "x", sentence, body, lambda r: (r.randint(-9, 20),)
    )


def _strings(rng: random.Random) -> _Function:
    """Return a function that filters a list of words and changes those that are left."""
    letter, n = rng.choice("aeimlokn"), rng.randint(3, 6)
    words, code, name = rng.choice(
        [
            (f"start with '{letter}'", f"w.startswith('{letter}')", "start"),
            (f"end with '{letter}'", f"w.endswith('{letter}')", "end"),
            (f"contain '{letter}'", f"'{letter}' in w", "with"),
            (f"have {n} letters", f"len(w) == {n}", "letters"),
            (f"have more than {n} letters", f"len(w) > {n}", "long"),
            (f"have fewer than {n} letters", f"len(w) < {n}", "short"),
        ]
    )
    image, mapped, kind = rng.choice(
        [
            ("", "w", "words"),
            ("the lengths of ", "len(w)", "lengths"),
            ("the first letters of ", "w[0]", "initials"),
            ("the upper case of ", "w.upper()", "upper"),
            ("the reverse of ", "w[::-1]", "reverse"),
        ]
    )
    body = f"    return [{mapped} for w in words if {code}]\n"
    sentence = f"return a list of {image}the words that {words}."
    return _Function(f"{kind}_{name}", "words", sentence, body, lambda r: (r.sample(TEXTS, r.randint(3, 5)),))


def _loop(rng: random.Random) -> _Function:
    """Return a running value over a list."""
    xs, (words, code, name), n = rng.choice(LISTS), _condition(rng), rng.randint(0, 9)
    step, step_words, short = rng.choice(
        [
            ("total += x", "add x", "add"),
            ("total -= x", "subtract x", "subtract"),
            ("total += 1", "add 1", "count"),
            ("total = max(total, x)", "take the larger of the total and x", "raise"),
            ("total = 2 * total", "double the total", "double"),
        ]
    )
    keep = rng.random() < 0.4
    body = (
        f"    total = {n}\n"
        + ("    out = []\n" if keep else "")
        + f"    for x in {xs}:\n        if {code}:\n            {step}\n"
    )
    body += "        out.append(total)\n    return out\n" if keep else "    return total\n"
    end = "Return the total after each x." if keep else "Return the total."
    sentence = f"start with a total of {n}. For each x in {xs} that is {words}, {step_words}. {end}"
    return _Function(f"{short}_{name}", xs, sentence, body, _numbers)


_FAMILIES = (
    _filtered_aggregate,
    _filtered_aggregate,
    _filtered_aggregate,
    _counted,
    _arithmetic,
    _choice,
    _strings,
    _loop,
    _loop,
)

HUMANEVAL = SyntheticTask(make, prompt, answer)
