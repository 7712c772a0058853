"""Grade-school word problems in GSM8K's schema: `{"question": ..., "answer": ...}`.

An answer has GSM8K's format: one step per line, each with a calculator annotation `<<a+b=c>>`, and a last line `#### N`.
"""

import random
from collections.abc import Callable

from specbench.data.rows import Row, SyntheticTask

NAMES = (
    "Ada Ben Cara Dan Ella Finn Gina Hugo Iris Jack Kira Leo Maya Noah Olga Paul Quinn Rosa Sam Tara Umar Vera Will Zoe"
).split()
GOODS = (
    "apples books cards coins cookies eggs flowers marbles muffins pencils photos shells stamps stickers tickets toys"
).split()
HOLDERS = "bags baskets boxes crates jars packs trays".split()
GUESTS = "children classmates cousins friends neighbors players students".split()
JOBS = ("cleans houses", "drives a bus", "fixes bikes", "paints fences", "teaches piano", "walks dogs")

LARGEST = 200  # every number that a problem mentions or a step reaches


def make(rng: random.Random) -> Row:
    """Return a problem of one of five kinds."""
    return _STORIES[rng.randrange(len(_STORIES))](rng)


def prompt(row: Row) -> str:
    return f"Question: {row['question']}\nAnswer:"


def answer(row: Row) -> str:
    return f" {row['answer']}"


class _Steps:
    """The lines of a worked answer; `step` returns the value it wrote down."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.value = 0

    def step(self, left: int, op: str, right: int, text: str) -> int:
        """Append `text`, whose `@` stands for the worked sum; returns left op right."""
        self.value = {"+": left + right, "-": left - right, "*": left * right, "/": left // right}[op]
        worked = f"{left}{op}{right}=<<{left}{op}{right}={self.value}>>{self.value}"
        self.lines.append(text.replace("@", worked))
        return self.value

    def problem(self, *sentences: str) -> Row:
        return {"question": " ".join(sentences), "answer": "\n".join([*self.lines, f"#### {self.value}"])}


def _running_total(rng: random.Random) -> Row:
    """Return a problem in which someone starts with some goods; two or three things happen to them."""
    (name, other), goods = rng.sample(NAMES, 2), rng.choice(GOODS)
    have, steps = rng.randint(5, 90), _Steps()
    sentences = [rng.choice([f"{name} has {have} {goods}.", f"{name} starts the day with {have} {goods}."])]
    for _ in range(rng.choice((2, 2, 3))):
        moves = ["gain", "packs"] * (have <= 100) + ["lose"] * (have >= 10) + ["double"] * (have <= 60)
        moves += ["half"] * (have % 2 == 0 and have >= 8)
        match rng.choice(moves):
            case "gain":
                more = rng.randint(2, 60)
                sentences.append(rng.choice([f"{other} gives {name} {more} more.", f"Then {name} finds {more} more."]))
                have = steps.step(have, "+", more, f"Now {name} has @ {goods}.")
            case "packs":
                packs, count, holder = rng.randint(2, 9), rng.randint(2, 11), rng.choice(HOLDERS)
                sentences.append(f"{name} buys {packs} {holder} with {count} {goods} each.")
                more = steps.step(packs, "*", count, f"The {holder} hold @ {goods}.")
                have = steps.step(have, "+", more, f"Now {name} has @ {goods}.")
            case "lose":
                less = rng.randint(2, have - 3)
                sentences.append(rng.choice([f"{name} gives {less} to {other}.", f"Then {name} loses {less} of them."]))
                have = steps.step(have, "-", less, f"Now {name} has @ {goods}.")
            case "double":
                sentences.append(f"Then {name} doubles the number of {goods}.")
                have = steps.step(have, "*", 2, f"Now {name} has @ {goods}.")
            case "half":
                sentences.append(f"{name} sells half of the {goods}.")
                have = steps.step(have, "/", 2, f"Now {name} has @ {goods}.")
    return steps.problem(*sentences, f"How many {goods} does {name} have now?")


def _shopping(rng: random.Random) -> Row:
    """Return a problem with two kinds of goods at two prices. It asks for the sum, or for the change of an amount."""
    name, (first, second), steps = rng.choice(NAMES), rng.sample(GOODS, 2), _Steps()
    n, m, price, cost = rng.randint(2, 9), rng.randint(2, 9), rng.randint(2, 10), rng.randint(2, 10)
    one = steps.step(n, "*", price, f"The {first} cost $@.")
    two = steps.step(m, "*", cost, f"The {second} cost $@.")
    total = steps.step(one, "+", two, "Together that is $@.")
    purchase = f"{name} buys {n} {first} for ${price} each and {m} {second} for ${cost} each."
    if rng.random() < 0.5:
        return steps.problem(purchase, f"How many dollars does {name} spend?")
    paid = rng.randint(total, LARGEST)
    steps.step(paid, "-", total, f"{name} gets back $@.")
    return steps.problem(purchase, f"{name} pays with ${paid}.", f"How many dollars does {name} get back?")


def _wages(rng: random.Random) -> Row:
    """Return a problem with hours a day for some days. It asks for the hours or for the pay."""
    name, job, steps = rng.choice(NAMES), rng.choice(JOBS), _Steps()
    hours, days, extra = rng.randint(2, 9), rng.randint(2, 7), rng.randint(2, 9)
    worked = steps.step(hours, "*", days, f"That makes @ hours for {name}.")
    hours_text = f"{name} {job} {hours} hours a day for {days} days and {extra} hours on the last day."
    total = steps.step(worked, "+", extra, f"In all {name} works @ hours.")
    if total * 2 > LARGEST or rng.random() < 0.3:
        return steps.problem(hours_text, f"How many hours does {name} work?")
    pay = rng.randint(2, LARGEST // total)
    steps.step(total, "*", pay, f"{name} earns $@.")
    return steps.problem(hours_text, f"The pay is ${pay} an hour.", f"How many dollars does {name} earn?")


def _comparison(rng: random.Random) -> Row:
    """Return a problem with three people. The second has more or fewer goods than the first. The third has a multiple."""
    (one, two, three), goods, steps = rng.sample(NAMES, 3), rng.choice(GOODS), _Steps()
    base, more, times = rng.randint(4, 30), rng.randint(2, 10), rng.randint(2, 3)
    sentences = [f"{one} has {base} {goods}."]
    if rng.random() < 0.5 and base > more:
        sentences.append(f"{two} has {more} fewer than {one}.")
        second = steps.step(base, "-", more, f"{two} has @ {goods}.")
    else:
        sentences.append(f"{two} has {more} more than {one}.")
        second = steps.step(base, "+", more, f"{two} has @ {goods}.")
    sentences.append(f"{three} has {times} times as many as {two}.")
    third = steps.step(second, "*", times, f"{three} has @ {goods}.")
    if rng.random() < 0.5:
        return steps.problem(*sentences, f"How many {goods} does {three} have?")
    steps.step(second, "+", third, f"Together they have @ {goods}.")
    return steps.problem(*sentences, f"How many {goods} do {two} and {three} have together?")


def _sharing(rng: random.Random) -> Row:
    """Return a problem with goods in holders: some kept or added, the rest shared equally."""
    name, goods, holder, guests, steps = *map(rng.choice, (NAMES, GOODS, HOLDERS, GUESTS)), _Steps()
    heads, share = rng.randint(2, 9), rng.randint(2, 15)
    rest = heads * share
    count, boxes = rng.randint(2, 12), rng.randint(2, 12)
    total = steps.step(boxes, "*", count, f"There are @ {goods}.")
    sentences = [f"{name} has {boxes} {holder} with {count} {goods} each."]
    if total > rest:
        sentences.append(f"{name} keeps {total - rest} of them.")
        steps.step(total, "-", total - rest, f"There are @ {goods} left.")
    elif total < rest:
        sentences.append(f"{name} adds {rest - total} more.")
        steps.step(total, "+", rest - total, f"Now there are @ {goods}.")
    steps.step(rest, "/", heads, f"Each gets @ {goods}.")
    sentences.append(f"The {goods} are shared equally by {heads} {guests}.")
    return steps.problem(*sentences, f"How many {goods} does each of the {guests} get?")


_STORIES: tuple[Callable[[random.Random], Row], ...] = (
    _running_total,
    _shopping,
    _wages,
    _comparison,
    _sharing,
)

GSM8K = SyntheticTask(make, prompt, answer)
