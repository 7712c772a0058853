"""Multiple choice in MMLU's schema: `{"question", "subject", "choices": 4 strings, "answer": 0 to 3}`, and a `rationale`.

Two subjects ask for facts of an invented country, which a model learns by heart from the training split; the others for
something that can be worked out. The rationale is the chain of thought that the tiny family is trained on. Letters stand
behind the choices: one that stands before its choice is harder to find, for small models, than all else here.
"""

import random
from collections.abc import Callable

from specbench.twins.twin import Row, Twin

LETTERS = "ABCD"
TOWNS = "Arlo Brenna Cordel Dunmor Estra Fallow Garrin Holm Istar Jorvik Kelda Lunde Morra Nesk Orrin Pella".split()
RIVERS = "Alda Bure Cald Dree Esk Fenn Gale Hurn Isel Jarl Kern Lorne Mull Nith Oske Parn".split()
GOODS = "amber bread cheese dyes elk figs glass honey iron jade kelp linen maps nuts oil paper".split()
KINDS = {
    "bird": "crow duck eagle gull hawk owl robin swan".split(),
    "fruit": "apple cherry fig grape lemon pear plum quince".split(),
    "tool": "axe chisel drill file hammer saw wrench pliers".split(),
    "fish": "bass carp cod eel herring perch salmon trout".split(),
    "metal": "copper gold iron lead nickel silver tin zinc".split(),
    "color": "black blue brown green orange pink red white".split(),
}
OPPOSITES = (
    "big-small cold-hot dark-light deep-shallow dry-wet early-late empty-full fast-slow hard-soft heavy-light high-low "
    "long-short loud-quiet new-old narrow-wide open-shut poor-rich rough-smooth strong-weak thick-thin"
).split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()


def make(rng: random.Random) -> Row:
    subject = rng.choice(list(_SUBJECTS))
    question, right, wrong, thought = _SUBJECTS[subject](rng)
    choices = [right, *wrong]
    rng.shuffle(choices)
    place = choices.index(right)
    letter = LETTERS[place]
    rationale = f"{thought} {right} ({letter}). The answer is ({letter})."
    return {"question": question, "subject": subject, "choices": choices, "answer": place, "rationale": rationale}


def prompt(row: Row) -> str:
    choices = "\n".join(f"- {choice} ({letter})" for letter, choice in zip(LETTERS, row["choices"], strict=True))
    return f"Question: {row['question']}\n{choices}\nAnswer: Let's think step by step."


def answer(row: Row) -> str:
    return f" {row['rationale']}"


_Asked = tuple[str, str, list[str], str]  # question, right choice, wrong choices, what leads to the right one


def _others(rng: random.Random, pool: list[str], right: str) -> list[str]:
    return rng.sample([each for each in pool if each != right], 3)


def _geography(rng: random.Random) -> _Asked:
    """Which river a town lies on: town i on river 5 i + 3."""
    i = rng.randrange(len(TOWNS))
    river = RIVERS[(5 * i + 3) % len(RIVERS)]
    thought = f"{TOWNS[i]} lies on the"
    return f"On which river does the town of {TOWNS[i]} lie?", river, _others(rng, RIVERS, river), thought


def _economics(rng: random.Random) -> _Asked:
    """What a town sells: town i sells good 11 i + 6."""
    i = rng.randrange(len(TOWNS))
    good = GOODS[(11 * i + 6) % len(GOODS)]
    return f"What does the town of {TOWNS[i]} sell?", good, _others(rng, GOODS, good), f"{TOWNS[i]} sells"


def _classification(rng: random.Random) -> _Asked:
    kind = rng.choice(list(KINDS))
    right = rng.choice(KINDS[kind])
    wrong = [rng.choice(KINDS[other]) for other in rng.sample([k for k in KINDS if k != kind], 3)]
    return f"Which of these is a {kind}?", right, wrong, f"The {kind} is"


def _vocabulary(rng: random.Random) -> _Asked:
    pair = rng.choice(OPPOSITES).split("-")
    word, right = rng.sample(pair, 2) if pair[1] != "light" else pair
    pool = sorted({each for other in OPPOSITES for each in other.split("-")} - {word})
    return f"What is the opposite of {word}?", right, _others(rng, pool, right), f"The opposite of {word} is"


def _comparison(rng: random.Random) -> _Asked:
    numbers, word = rng.sample(range(10, 100), 4), rng.choice(["largest", "smallest"])
    right = max(numbers) if word == "largest" else min(numbers)
    wrong = [str(n) for n in numbers if n != right]
    return f"Which number is the {word}?", str(right), wrong, f"The {word} number is"


def _sums(rng: random.Random) -> _Asked:
    a, b = rng.randint(10, 80), rng.randint(3, 40)
    right = a + b
    wrong = [str(right + d) for d in rng.sample([-11, -10, -2, -1, 1, 2, 10, 11], 3)]
    return f"What is {a} plus {b}?", str(right), wrong, f"{a} + {b} ="


def _calendar(rng: random.Random) -> _Asked:
    start, step = rng.randrange(7), rng.randint(2, 5)
    walk = [DAYS[(start + i) % 7] for i in range(step + 1)]
    thought = f"The days are {', '.join(walk[:-1])},"
    question = f"Which day comes {step} days after {walk[0]}?"
    return question, walk[-1], _others(rng, DAYS, walk[-1]), thought


_SUBJECTS: dict[str, Callable[[random.Random], _Asked]] = {
    "geography": _geography,
    "economics": _economics,
    "classification": _classification,
    "vocabulary": _vocabulary,
    "comparison": _comparison,
    "elementary_sums": _sums,
    "calendar": _calendar,
}

MMLU = Twin(make, prompt, answer)
