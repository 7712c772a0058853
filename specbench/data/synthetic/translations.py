"""A small English-German grammar in WMT's schema: `{"translation": {"de": ..., "en": ...}}`.

Case, gender and adjective endings agree. The verb is in second position, last in a subordinate clause, and split with modals
and in the perfect tense. Every sentence has one translation in each direction.
"""

import random
from typing import NamedTuple

from specbench.data.rows import Row, SyntheticTask, capital

# English, German, gender
PEOPLE = (
    ("man", "Mann", "m"), ("woman", "Frau", "f"), ("child", "Kind", "n"), ("teacher", "Lehrer", "m"),
    ("doctor", "Arzt", "m"), ("girl", "Mädchen", "n"), ("baker", "Bäcker", "m"), ("queen", "Königin", "f"),
    ("cook", "Koch", "m"), ("daughter", "Tochter", "f"), ("aunt", "Tante", "f"), ("guest", "Gast", "m"),
)  # fmt: skip
THINGS = (
    ("house", "Haus", "n"), ("letter", "Brief", "m"), ("lamp", "Lampe", "f"), ("book", "Buch", "n"),
    ("table", "Tisch", "m"), ("bridge", "Brücke", "f"), ("picture", "Bild", "n"), ("key", "Schlüssel", "m"),
    ("clock", "Uhr", "f"), ("boat", "Boot", "n"), ("coat", "Mantel", "m"), ("bag", "Tasche", "f"),
    ("car", "Auto", "n"), ("apple", "Apfel", "m"), ("flower", "Blume", "f"), ("dog", "Hund", "m"),
)  # fmt: skip
ADJECTIVES = (
    ("old", "alt"), ("new", "neu"), ("small", "klein"), ("big", "groß"), ("red", "rot"), ("beautiful", "schön"),
    ("good", "gut"), ("young", "jung"), ("heavy", "schwer"), ("strange", "seltsam"),
)  # fmt: skip


class _Verb(NamedTuple):
    """English base, third person, participle; German infinitive, third person, participle (all with `haben`)."""

    base: str
    third: str
    done: str
    infinitive: str
    er: str
    partizip: str


VERBS = tuple(
    _Verb(*line.split())
    for line in (
        "see sees seen sehen sieht gesehen",
        "buy buys bought kaufen kauft gekauft",
        "find finds found finden findet gefunden",
        "sell sells sold verkaufen verkauft verkauft",
        "love loves loved lieben liebt geliebt",
        "look_for looks_for looked_for suchen sucht gesucht",
        "take takes taken nehmen nimmt genommen",
        "paint paints painted malen malt gemalt",
        "forget forgets forgotten vergessen vergisst vergessen",
        "bring brings brought bringen bringt gebracht",
        "need needs needed brauchen braucht gebraucht",
        "show shows shown zeigen zeigt gezeigt",
    )
)
TIMES = (
    ("today", "heute"), ("every day", "jeden Tag"), ("in the morning", "am Morgen"), ("in the evening", "am Abend"),
    ("now", "jetzt"), ("often", "oft"), ("on Sunday", "am Sonntag"),
)  # fmt: skip
PLACES = (
    ("in the garden", "im Garten"),
    ("in the city", "in der Stadt"),
    ("at school", "in der Schule"),
    ("here", "hier"),
)
MODALS = (("can", "kann"), ("must", "muss"), ("wants to", "will"), ("should", "soll"))
SAYING = (("says that", "sagt, dass"), ("knows that", "weiß, dass"), ("believes that", "glaubt, dass"))


class _Phrase(NamedTuple):
    en: str
    de: str


class _Clause(NamedTuple):
    """A clause in English, and the German for its places: subject, finite verb, the middle, and what closes it."""

    en: str
    subject: str
    finite: str
    middle: str
    close: str

    def main(self) -> str:
        return " ".join(filter(None, [self.subject, self.finite, self.middle, self.close]))

    def inverted(self, first: str) -> str:
        return " ".join(filter(None, [first, self.finite, self.subject, self.middle, self.close]))

    def subordinate(self) -> str:
        return " ".join(filter(None, [self.subject, self.middle, self.close, self.finite]))


def make(rng: random.Random) -> Row:
    """Return a main clause, one that starts with its time, a reported one, or two that a reason joins."""
    kind = rng.choice(["main", "main", "front", "that", "because"])
    clause = _clause(rng)
    if kind == "front":
        time = rng.choice(TIMES)
        en, de = f"{time[0]} {clause.en}", clause.inverted(time[1])
    elif kind == "that":
        who, (says, sagt) = _noun(rng, PEOPLE, "nominative"), rng.choice(SAYING)
        en, de = f"{who.en} {says} {clause.en}", f"{who.de} {sagt} {clause.subordinate()}"
    elif kind == "because":
        reason = _clause(rng, adverbs=False)
        en, de = f"{clause.en} because {reason.en}", f"{clause.main()}, weil {reason.subordinate()}"
    else:
        en, de = clause.en, clause.main()
    return {"translation": {"de": f"{capital(de)}.", "en": f"{capital(en)}."}}


def _clause(rng: random.Random, adverbs: bool = True) -> _Clause:
    subject, object_ = _noun(rng, PEOPLE, "nominative"), _noun(rng, THINGS, "accusative")
    verb = rng.choice(VERBS)
    base, third, done = (form.replace("_", " ") for form in (verb.base, verb.third, verb.done))
    place = rng.choice(PLACES) if adverbs and rng.random() < 0.4 else ("", "")
    negated = rng.random() < 0.2
    middle = " ".join(filter(None, [object_.de, "nicht" if negated else "", place[1]]))
    tense = rng.choice(["present", "present", "perfect", "modal"])
    if tense == "perfect":
        english, finite, close = f"has {'not ' * negated}{done}", "hat", verb.partizip
    elif tense == "modal":
        may, kann = rng.choice(MODALS if not negated else MODALS[:2])
        english, finite, close = f"{may} {'not ' * negated}{base}", kann, verb.infinitive
    else:
        english, finite, close = f"does not {base}" if negated else third, verb.er, ""
    en = " ".join(filter(None, [subject.en, english, object_.en, place[0]]))
    return _Clause(en, subject.de, finite, middle, close)


def _noun(rng: random.Random, nouns: tuple[tuple[str, str, str], ...], case: str) -> _Phrase:
    """Return an article, an optional adjective and a noun."""
    en, de, gender = rng.choice(nouns)
    definite, adjective = rng.random() < 0.6, rng.choice(ADJECTIVES) if rng.random() < 0.5 else None
    masculine = gender + ("a" if case == "accusative" and gender == "m" else "")
    if definite:
        article = {"m": "der", "ma": "den", "f": "die", "n": "das"}[masculine]
        ending = "en" if masculine == "ma" else "e"
    else:
        article = {"m": "ein", "ma": "einen", "f": "eine", "n": "ein"}[masculine]
        ending = {"m": "er", "ma": "en", "f": "e", "n": "es"}[masculine]
    first = adjective[0] if adjective else en
    determiner = "the" if definite else "an" if first[0] in "aeiou" else "a"
    english = [determiner, *([adjective[0]] if adjective else []), en]
    german = [article, *([adjective[1] + ending] if adjective else []), de]
    return _Phrase(" ".join(english), " ".join(german))


def prompt(row: Row) -> str:
    return f"English phrase: {row['translation']['en']}\n\nGerman phrase:"


def prompt_back(row: Row) -> str:
    return f"German phrase: {row['translation']['de']}\n\nEnglish phrase:"


WMT = SyntheticTask(make, prompt, lambda row: f" {row['translation']['de']}")
WMT_BACK = SyntheticTask(make, prompt_back, lambda row: f" {row['translation']['en']}")
