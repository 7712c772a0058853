"""Lines that are wrapped at the width of the terminal or at the number in COLUMNS, without an import of rich."""

import os
import shutil
import sys
from textwrap import fill


def wrapped(text: str, indent: int = 0) -> str:
    """Return a line wrapped between words, with an indent from its second line on; in a file or a pipe, as one line."""
    columns = os.environ.get("COLUMNS", "")
    if not columns.isdecimal() and not sys.stdout.isatty():
        return text
    width = max(shutil.get_terminal_size().columns, indent + 20)
    return fill(text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
