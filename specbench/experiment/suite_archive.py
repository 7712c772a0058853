"""The raw numbers of a suite's page as one file, without texts: an archive of its runs, its index and its heads' reports.

The archive is a zip file without compression inside an xz file, since records of one run repeat those of others.
"""

import lzma
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZIP_STORED

from specbench.config.suite import Suite
from specbench.errors import ConfigError
from specbench.experiment.archive import CHUNK, MOST_BYTES, Listing, pack, size_text, unpack, writing
from specbench.reporting.suites import measured_runs
from specbench.reporting.verifiers import report_files

PRESET = 9 | lzma.PRESET_EXTREME
MOST_MEMORY = 256 << 20  # bytes to decompress with; PRESET needs 65 MiB


def pack_suite(suite: Suite, results: Path, archive: Path) -> Listing:
    """Write what `specbench report --suite` reads to an archive, without texts.

    Raises ConfigError if nothing was measured, or if a run is damaged.
    """
    index, runs = measured_runs(suite, results)
    files = [index.path, *(file for *_, file in report_files(suite, results))]
    found = {file.relative_to(results).as_posix(): file for file in files}
    with TemporaryDirectory(prefix="specbench-") as folder:
        inner = Path(folder) / "runs.zip"
        listing = pack([results / run.folder for run in runs], inner, suite_files=found, compression=ZIP_STORED)
        with writing(archive) as part:
            part.write_bytes(lzma.compress(inner.read_bytes(), preset=PRESET))
    return listing


@contextmanager
def unpacked_results(results: Path) -> Iterator[Path]:
    """Yield a folder of results. An archive of `pack_suite` is unpacked into a temporary one, which is deleted at the end.

    Its content is checked like that of any archive. Raises ConfigError if the file is not an archive, or is damaged.
    """
    if not results.is_file():
        yield results
        return
    with TemporaryDirectory(prefix="specbench-") as folder:
        inner = Path(folder) / results.name
        decompress(results, inner)
        unpack(inner, Path(folder) / "results", mark=False)
        yield Path(folder) / "results"


def decompress(archive: Path, to: Path, most_bytes: int = MOST_BYTES) -> None:
    """Decompress an xz file, chunk by chunk, in at most MOST_MEMORY.

    Raises ConfigError if it is not an xz file, is damaged or exceeds `most_bytes`.
    """
    written, unpacker = 0, lzma.LZMADecompressor(memlimit=MOST_MEMORY)
    try:
        with archive.open("rb") as packed, to.open("xb") as out:
            while not unpacker.eof:
                data = packed.read(CHUNK) if unpacker.needs_input else b""
                if unpacker.needs_input and not data:
                    raise EOFError("it is cut")
                chunk = unpacker.decompress(data, CHUNK)
                written += len(chunk)
                if written > most_bytes:
                    raise ConfigError(f"{archive}: more than {size_text(most_bytes)} when unpacked")
                out.write(chunk)
    except (lzma.LZMAError, EOFError) as error:
        raise ConfigError(f"{archive}: not an archive of specbench export --suite: {error}") from None
