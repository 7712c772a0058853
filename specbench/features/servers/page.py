"""Markdown pages of verifications and of measurements under load."""

from collections.abc import Sequence

from specbench.machine.hardware import fingerprint
from specbench.note import Note
from specbench.reporting import escaping
from specbench.reporting.formats.writers import markdown_list, markdown_notes, markdown_table
from specbench.reporting.tables import Table


def page_of(title: str, answer: str, tables: Sequence[Table], notes: Sequence[Note], facts: Sequence[str]) -> str:
    """Return a page: the answer, the warnings, what was measured, and the tables."""
    machine = fingerprint()
    facts = [*facts, f"client: {machine['cpu']}, {machine['cores']} cores"]
    parts = [
        f"# {escaping.markdown(title)}",
        escaping.markdown(f"{answer.rstrip('.')}."),
        markdown_notes(notes),
        markdown_list(facts),
        *map(markdown_table, tables),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"
