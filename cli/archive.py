"""`specbench archive export` and `specbench archive import`: run folders as one file."""

from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.app import STYLE
from specbench.cli.console import output_console, printable, say
from specbench.cli.params import preset_option
from specbench.errors import ConfigError
from specbench.features.archive import run_archive as archives
from specbench.features.archive.run_archive import pack_suite
from specbench.features.suites.suite import read_suite
from specbench.machine.accelerator import GIB
from specbench.reporting.setup_lines import counted
from specbench.runs.run_folder import CONFIG, load

archive = typer.Typer(
    name="archive", no_args_is_help=True, help="Write runs to one archive with checksums, or read one.", **STYLE
)


@archive.command()
def export(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The archive to write, such as runs.zip, or runs.zip.xz of a suite.")
    ],
    runs: Annotated[list[Path] | None, typer.Argument(help="Run folders.")] = None,
    suite: Annotated[
        str | None,
        preset_option(
            "suite",
            "Export the runs of a suite and what its page needs, for `report --suite NAME --from ARCHIVE`.",
            None,
        ),
    ] = None,
    results: Annotated[Path, typer.Option("--from", help="Folder that contains the runs of the suite.")] = Path(
        "results"
    ),
    texts: Annotated[
        bool, typer.Option("--texts", help="Include prompts, references and generated text, not only token ids.")
    ] = False,
) -> None:
    """Write runs to one archive with checksums, to share them."""
    console = output_console()
    if bool(suite) == bool(runs):
        raise ConfigError("give either run folders or --suite NAME")
    if suite:
        if texts:
            raise ConfigError("--texts applies to run folders; a suite is exported without texts")
        listing = pack_suite(read_suite(suite), results, out)
    else:
        listing = archives.pack(runs or [], out, texts)
    count = sum(path.endswith(f"/{CONFIG}") for path in listing.files)
    content = "with texts" if texts else "without texts"
    size = archives.size_text(out.stat().st_size)
    say(f"{printable(out)}: {counted(count, 'run')} {content}, {size}", console, "bold")
    say(f"{counted(len(listing.files), 'file')}, {archives.size_text(listing.bytes)} unpacked", console)
    help_ = f"report --suite {suite} --from" if suite else "archive import"
    say(f"help: specbench {help_} {printable(out)}", console)


@archive.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="An archive of `specbench archive export`.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the run folders.")] = Path("imported"),
    max_gib: Annotated[float, typer.Option(help="Largest size of the unpacked files.")] = archives.MOST_BYTES / GIB,
) -> None:
    """Read an archive of runs, after checking its names, sizes, checksums and records."""
    console = output_console()
    with archives.plain_archive(file, int(max_gib * GIB)) as plain:
        folders = archives.unpack(plain, out, int(max_gib * GIB))
    for folder in folders:
        recorded = load(folder)
        total = recorded.expected.generations if recorded.expected else 0
        say(f"{printable(folder)}: {len(recorded.records)} of {total} generations", console, "bold")
    say(f"help: specbench report {printable(folders[0])}", console)
