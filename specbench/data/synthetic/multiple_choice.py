"""Multiple choice in MMLU's schema: `{"question", "subject", "choices": 4 strings, "answer": 0 to 3}`, and a `rationale`.

Most subjects ask for facts about an invented country, which a model memorizes from the training split. Questions about days
can be answered by counting. The tiny family is trained on the rationale, a chain of thought. Each choice is one token of that
family's tokenizer and is followed by its letter, so a small model only has to find the token that followed it.
"""

import random
from collections.abc import Callable

from specbench.data.rows import Row, SyntheticTask

LETTERS = "ABCD"
TOWNS = (
    "Arlow Bexford Corwell Dunstow Elmham Farleigh Grantley Hadlow Ilmore Kelby Langport Marfield Norham Oakley".split()
)
BUILDINGS = "factory harbor hospital hotel library market museum school stadium station".split()
GOODS = "blankets book car flowers items pipe roof shells tea toys".split()
PEOPLE = "chief child cook director leader man mayor police teacher".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
OPPOSITES = "big-small open-shut old-young lost-found buys-sells everyone-nobody begin-closed".split()


def make(rng: random.Random) -> Row:
    subject = rng.choice(list(_SUBJECTS))
    question, right, wrong, thought = _SUBJECTS[subject](rng)
    choices = [right, *wrong]
    rng.shuffle(choices)
    answer_index = choices.index(right)
    letter = LETTERS[answer_index]
    rationale = f"{thought} {right} {letter}. The answer is {letter}."
    return {
        "question": question,
        "subject": subject,
        "choices": choices,
        "answer": answer_index,
        "rationale": rationale,
    }


def prompt(row: Row) -> str:
    choices = "\n".join(f"{choice} {letter}" for letter, choice in zip(LETTERS, row["choices"], strict=True))
    return f"Question: {row['question']}\n{choices}\nAnswer: Let's think step by step."


def answer(row: Row) -> str:
    return f" {row['rationale']}"


_Question = tuple[str, str, list[str], str]  # question, right choice, wrong choices, what leads to the right one


def _others(rng: random.Random, pool: list[str], right: str) -> list[str]:
    return rng.sample([choice for choice in pool if choice != right], 3)


def _geography(rng: random.Random) -> _Question:
    """Return a question on which building a town is known for. The answer for town i is building 3 i + 2."""
    i = rng.randrange(len(TOWNS))
    building = BUILDINGS[(3 * i + 2) % len(BUILDINGS)]
    wrong = _others(rng, BUILDINGS, building)
    return f"Which building is the town of {TOWNS[i]} known for?", building, wrong, f"{TOWNS[i]} is known for its"


def _economics(rng: random.Random) -> _Question:
    """Return a question on what a town sells. Town i sells good 7 i + 4."""
    i = rng.randrange(len(TOWNS))
    good = GOODS[(7 * i + 4) % len(GOODS)]
    return f"What does the town of {TOWNS[i]} sell?", good, _others(rng, GOODS, good), f"{TOWNS[i]} sells"


def _politics(rng: random.Random) -> _Question:
    """Return a question on who leads a town. Town i listens to person 4 i + 1."""
    i = rng.randrange(len(TOWNS))
    person = PEOPLE[(4 * i + 1) % len(PEOPLE)]
    wrong = _others(rng, PEOPLE, person)
    return f"Who leads the town of {TOWNS[i]}?", person, wrong, f"{TOWNS[i]} is led by the"


def _history(rng: random.Random) -> _Question:
    """Return a question on when a town began. Town i was founded on day 5 i + 3."""
    i = rng.randrange(len(TOWNS))
    day = DAYS[(5 * i + 3) % len(DAYS)]
    return f"On which day did the town of {TOWNS[i]} begin?", day, _others(rng, DAYS, day), f"{TOWNS[i]} began on a"


def _vocabulary(rng: random.Random) -> _Question:
    word, right = rng.sample(rng.choice(OPPOSITES).split("-"), 2)
    pool = sorted({term for pair in OPPOSITES for term in pair.split("-")} - {word})
    return f"What is the opposite of {word}?", right, _others(rng, pool, right), f"The opposite of {word} is"


def _calendar(rng: random.Random) -> _Question:
    start, step = rng.randrange(7), rng.randint(1, 3)
    walk = [DAYS[(start + i) % 7] for i in range(step + 1)]
    question = f"Which day comes {step} days after {walk[0]}?"
    return question, walk[-1], _others(rng, DAYS, walk[-1]), f"The days are {', '.join(walk[:-1])},"


_SUBJECTS: dict[str, Callable[[random.Random], _Question]] = {
    "geography": _geography,
    "economics": _economics,
    "politics": _politics,
    "history": _history,
    "vocabulary": _vocabulary,
    "calendar": _calendar,
}

MMLU = SyntheticTask(make, prompt, answer)
