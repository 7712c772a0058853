"""Write the reference of report columns into docs/reading-a-table.md: `python -m scripts.column_reference`."""

from pathlib import Path

from specbench.files import write
from specbench.reporting.reference import with_reference

PAGE = Path(__file__).parents[1] / "docs" / "reading-a-table.md"


def main() -> None:
    """Replace the text between the page's markers."""
    write(PAGE, with_reference(PAGE.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
