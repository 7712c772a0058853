"""`specbench export` and `specbench import`: run folders as one file."""

from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.console import printable, say, terminal
from specbench.experiment import archive as archives
from specbench.report.notes import counted
from specbench.runs.run_folder import load

GIB = 2**30


def export(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The archive to write, such as runs.zip.")],
    texts: Annotated[
        bool, typer.Option("--texts", help="Include prompts, references and generated text, not only token ids.")
    ] = False,
) -> None:
    """Write runs to one archive with checksums, to share them."""
    console = terminal()
    listing = archives.pack(runs, out, texts)
    kept = "with texts" if texts else "without texts"
    size = archives.size_text(out.stat().st_size)
    say(f"{printable(out)}: {counted(len(runs), 'run')} {kept}, {size}", console, "bold")
    say(f"{counted(len(listing.files), 'file')}, {archives.size_text(listing.bytes)} unpacked", console)
    say(f"help: specbench import {printable(out)}", console)


def import_(
    archive: Annotated[Path, typer.Argument(help="An archive of `specbench export`.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the run folders.")] = Path("imported"),
    max_gib: Annotated[float, typer.Option(help="Largest size of the unpacked files.")] = archives.MOST_BYTES / GIB,
) -> None:
    """Read an archive of runs, after checking its names, sizes, checksums and records."""
    console = terminal()
    folders = archives.unpack(archive, out, int(max_gib * GIB))
    for folder in folders:
        recorded = load(folder)
        total = recorded.expected.generations if recorded.expected else 0
        say(f"{printable(folder)}: {len(recorded.records)} of {total} generations", console, "bold")
    say(f"help: specbench report {printable(folders[0])}", console)
