"""Short news stories in the schemas of CNN/DailyMail (`article`, `highlights`, `id`) and XSum (`document`, `summary`, `id`).

A story has a few facts among filler sentences, and the summary repeats those facts. Highlights are three lines, as in CNN's.
An XSum summary is one sentence that joins facts from several sentences.
"""

import random
from typing import NamedTuple

from specbench.data.rows import Row, SyntheticTask

TOWNS = (
    "Arlow Bexford Corwell Dunstow Elmham Farleigh Grantley Hadlow Ilmore Kelby Langport Marfield Norham Oakley".split()
)
FIRST = (
    "Ada Bruno Clara Derek Edith Frank Grace Henry Ivy Jonas Karen Lewis Mary Nigel Orla Peter Ruth Simon Tess Victor"
).split()
LAST = (
    "Adams Baker Carter Dixon Ellis Foster Gibson Harris Irving Jordan Keller Lawson Mason Norris Owens Porter Reed Shaw"
).split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
ROLES = ("mayor", "fire chief", "police chief", "council leader", "head teacher", "hospital director")
PLACES = ("market", "station", "harbor", "school", "museum", "library", "stadium", "factory", "hotel", "town hall")
FILLERS = (
    "Roads around the {place} were closed for hours.",
    "The weather was {weather} at the time.",
    "Many people in {town} still talk about it.",
    "A similar thing happened {years} years ago.",
    "Visitors came from far away.",
    "The {place} is one of the oldest buildings in the town.",
    "Local shops stayed open late.",
    "Neighbors brought tea and blankets.",
    "Photographs were shown on television.",
    "It was the talk of the morning.",
)
WEATHER = ("cold", "dry", "foggy", "mild", "rainy", "sunny", "windy")

# What happened: (noun, what it did, in a highlight)
EVENTS = (
    ("fire", "destroyed part of", "destroys part of"),
    ("flood", "damaged", "damages"),
    ("storm", "tore the roof off", "tears roof off"),
    ("gas leak", "emptied", "empties"),
    ("power cut", "closed", "closes"),
    ("strike", "shut down", "shuts down"),
    ("burst pipe", "flooded", "floods"),
)
STATEMENTS = (
    ("everyone was safe", "everyone is safe"),
    ("the damage was worse than feared", "damage is worse than feared"),
    ("the cause was not yet known", "cause is not yet known"),
    ("help was on its way", "help is on its way"),
    ("repairs would begin at once", "repairs will begin at once"),
    ("nobody was to blame", "nobody is to blame"),
    ("the town would recover", "town will recover"),
)
OUTCOMES = (
    ("were hurt", "hurt"),
    ("were rescued", "rescued"),
    ("lost their homes", "homeless"),
    ("were evacuated", "evacuated"),
)


def make_highlights(rng: random.Random) -> Row:
    """Return a story about damage: what and where, who was harmed, what an official said, what it cost."""
    town, place, (noun, did, does) = rng.choice(TOWNS), rng.choice(PLACES), rng.choice(EVENTS)
    role, who, (said, says) = rng.choice(ROLES), f"{rng.choice(FIRST)} {rng.choice(LAST)}", rng.choice(STATEMENTS)
    count, cost, (fate, short) = rng.randint(2, 99), rng.randint(2, 60), rng.choice(OUTCOMES)
    lead = f"A {noun} {did} the {place} in {town} on {rng.choice(DAYS)}."
    facts = [
        f"Officials said {count} people {fate}.",
        f"The {role}, {who}, told reporters that {said}.",
        f"The cost is put at {cost} million dollars.",
    ]
    rng.shuffle(facts)
    highlights = [
        f"{noun.capitalize()} {does} {place} in {town}; {count} {short}",
        f"{who.split()[1]}, the {role}, says {says}",
        f"Cost put at ${cost} million",
    ]
    article = _story_text(rng, [lead, *facts], rng.randint(2, 4), town=town, place=place)
    return {"article": article, "highlights": "\n".join(highlights), "id": _id(rng)}


def make_summary(rng: random.Random) -> Row:
    """Return a story of one of four kinds, and a sentence that summarizes it."""
    story = rng.choice((_trial, _match, _plan, _find))(rng)
    fillers = rng.randint(1, 3)
    return {
        "document": _story_text(rng, story.sentences, fillers, town=story.town, place=rng.choice(PLACES)),
        "summary": story.summary,
        "id": _id(rng),
    }


class _Story(NamedTuple):
    town: str
    sentences: list[str]
    summary: str


def _person(rng: random.Random) -> str:
    return f"{rng.choice(FIRST)} {rng.choice(LAST)}"


def _trial(rng: random.Random) -> _Story:
    town, who, age, years = rng.choice(TOWNS), _person(rng), rng.randint(18, 79), rng.randint(2, 15)
    what, crime = rng.choice(
        [
            ("a painting", "theft"),
            ("a car", "theft"),
            ("a warehouse", "arson"),
            ("a barn", "arson"),
            ("an old man", "fraud"),
        ]
    )
    verb = {"theft": "stole", "arson": "set fire to", "fraud": "cheated"}[crime]
    doing = {"theft": "stealing", "arson": "setting fire to", "fraud": "cheating"}[crime]
    sentences = [
        f"{who}, {age}, {verb} {what} in {town} last winter.",
        f"The judge said that the {crime} had been planned for months.",
        f"The sentence is {years} years.",
    ]
    return _Story(town, sentences, f"{who}, {age}, has been jailed for {years} years for {doing} {what} in {town}.")


def _match(rng: random.Random) -> _Story:
    (home, away), who = rng.sample(TOWNS, 2), _person(rng)
    goals, low = rng.randint(2, 3), rng.randint(0, 1)
    times = {2: "twice", 3: "three times"}[goals]
    sentences = [
        f"{home} met {away} in the {rng.choice(['cup', 'league'])} on {rng.choice(DAYS)}.",
        f"{who} scored {times} before half time.",
        f"It ended {goals}-{low}.",
    ]
    return _Story(home, sentences, f"{who} scored {times} as {home} beat {away} {goals}-{low}.")


def _plan(rng: random.Random) -> _Story:
    town, place, cost, homes = rng.choice(TOWNS), rng.choice(PLACES), rng.randint(2, 90), rng.randint(20, 400)
    verdict, word = rng.choice(
        [("voted for it", "approved"), ("voted against it", "rejected"), ("put it off", "delayed")]
    )
    sentences = [
        f"A builder wants to put {homes} homes next to the {place} in {town}.",
        f"The plan would cost {cost} million pounds.",
        f"After a long debate the council {verdict}.",
    ]
    return _Story(
        town, sentences, f"Plans for {homes} homes beside the {place} in {town} have been {word} by the council."
    )


def _find(rng: random.Random) -> _Story:
    town, who, years = rng.choice(TOWNS), _person(rng), rng.randint(3, 60)
    thing = rng.choice(["ring", "dog", "letter", "watch", "cat", "medal", "violin"])
    where = rng.choice(["on a beach", "in a field", "under a floor", "in a river", "at a market", "behind a wall"])
    sentences = [
        f"{who} lost a {thing} in {town} {years} years ago.",
        f"This week a walker came upon it {where}.",
        rng.choice(["The two have met since.", "It was a surprise for both.", "There were tears."]),
    ]
    return _Story(town, sentences, f"A {thing} lost by {who} {years} years ago has been found {where}.")


def _story_text(rng: random.Random, facts: list[str], fillers: int, town: str, place: str) -> str:
    """Return the facts in order, with fillers between and after them."""
    chosen = iter(rng.sample(FILLERS, fillers))
    places = sorted(rng.sample(range(1, len(facts) + fillers), fillers))
    rest, out = iter(facts), []
    for i in range(len(facts) + fillers):
        text = next(chosen) if i in places else next(rest)
        out.append(text.format(town=town, place=place, weather=rng.choice(WEATHER), years=rng.randint(2, 40)))
    return " ".join(out)


def _id(rng: random.Random) -> str:
    return f"{rng.getrandbits(32):08x}"


def prompt_highlights(row: Row) -> str:
    return f"Summarize the following article:\n\n{row['article']}\n\nSummary:"


def prompt_summary(row: Row) -> str:
    return f"Document: {row['document']}\n\nA one-sentence summary of the above document is:"


CNNDM = SyntheticTask(make_highlights, prompt_highlights, lambda row: f" {row['highlights']}")
XSUM = SyntheticTask(make_summary, prompt_summary, lambda row: f" {row['summary']}")
