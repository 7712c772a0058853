"""Notes: what a report says besides its numbers, as objects. Writers make lines of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Level(StrEnum):
    """How much a note limits what the numbers mean."""

    note = "note"
    warning = "warning"


@dataclass(frozen=True)
class Note:
    """A sentence of a report.

    Args:
        kind: What it is about. Notes of several runs with one kind, level and subject are alike, whatever their numbers.
        text: The sentence, without what the user can do.
        level: Whether it is a warning.
        help: What the user can do.
        subject: The model, head or metric that it is about, if there may be several.
        values: Its number for each method that it names.
    """

    kind: str
    text: str
    level: Level = Level.note
    help: str = ""
    subject: str = ""
    values: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.text}; help: {self.help}" if self.help else self.text

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that it names."""
        return tuple(self.values)

    @property
    def is_warning(self) -> bool:
        """Whether it is a warning."""
        return self.level is Level.warning

    @property
    def group(self) -> tuple[str, Level, str]:
        """What notes of several runs have in common if one line stands for all of them."""
        return self.kind, self.level, self.subject

    @property
    def line(self) -> str:
        """The note as a line of text, in which an exclamation mark precedes a warning."""
        return f"! {self}" if self.is_warning else str(self)


def warning(
    kind: str, text: str, *, help: str = "", subject: str = "", values: Mapping[str, float] | None = None
) -> Note:
    """Return a note that is a warning."""
    return Note(kind, text, Level.warning, help, subject, values or {})


def warnings_of(notes: Iterable[Note]) -> list[Note]:
    """Return the notes that are warnings."""
    return [note for note in notes if note.is_warning]


def without_warnings(notes: Iterable[Note]) -> list[Note]:
    """Return the notes that are no warnings."""
    return [note for note in notes if not note.is_warning]
