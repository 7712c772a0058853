"""Archives of run folders: a zip file with a manifest of SHA-256 checksums. `unpack` treats an archive as untrusted."""

import hashlib
import io
import json
import lzma
import os
import re
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, cast
from zipfile import ZIP_STORED

from specbench.errors import ConfigError
from specbench.features.archive.archive_columns import columns_of, lines_of
from specbench.features.suites.papers.verifiers import report_files
from specbench.features.suites.suite import Suite
from specbench.features.suites.suite_report import measured_runs
from specbench.files import json_with_checksum, parse_json, read_with_checksum, write_with_checksum
from specbench.machine.hardware import Environment
from specbench.runs.record import Record, RoundRecord, line_of
from specbench.runs.run_folder import (
    BLOCKS,
    CONFIG,
    ENVIRONMENT,
    IMPORTED,
    JUDGED,
    MANIFEST,
    SAMPLES,
    SCORES,
    ImportOrigin,
    Judged,
    Scores,
    listed,
    load,
    read,
    spec_of,
)  # fmt: skip

FORMAT = 1  # of archives
LISTING = "archive.json"  # the manifest, the first member of an archive
FILES = (CONFIG, MANIFEST, ENVIRONMENT, SAMPLES, SCORES, JUDGED, BLOCKS)  # of a run; the summary is computed again
WORD = r"[A-Za-z0-9][A-Za-z0-9._,=+@-]{0,199}"
FOLDER_NAME = re.compile(WORD)
SUITE_FILE = re.compile(rf"suites/{WORD}/(index|changed)\.json|heads/({WORD}/){{3}}report\.json")  # below the results
SUITE_FOLDERS = ("suites", "heads")
MOST_FILES = 7_000  # in an archive: 1,000 runs
MOST_LISTING_BYTES = 4 * 2**20
MOST_DIRECTORY_BYTES = 4 * 2**20  # the list of members at the end of a zip file, which zipfile reads at once
MOST_BYTES = 4 * 2**30  # of all files together
CHUNK = 2**20
COMPRESSION = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # of these, zipfile reads a chunk without unpacking the rest
NO_FILES: Mapping[str, Path] = {}
STAMP = (1980, 1, 1, 0, 0, 0)  # of every member, so that equal runs give equal archives


@dataclass(frozen=True)
class ListedFile:
    """A file of an archive: its checksum and its size."""

    sha256: str
    bytes: int


@dataclass(frozen=True)
class Listing:
    """The manifest of an archive. Without `texts`, it has no prompts, references or generated text."""

    format: int
    texts: bool
    files: dict[str, ListedFile]

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.bytes for file in self.files.values())


def size_text(size: int) -> str:
    """Return a size in the unit that suits it, such as `1.4 MiB`."""
    power = min(max(size.bit_length() - 1, 0) // 10, 3)
    return f"{size / 1024**power:.{1 if power else 0}f} {('bytes', 'KiB', 'MiB', 'GiB')[power]}"


def pack(
    folders: Sequence[Path],
    archive: Path,
    texts: bool = False,
    suite_files: Mapping[str, Path] = NO_FILES,
    compression: int = zipfile.ZIP_DEFLATED,
) -> Listing:
    """Write complete and incomplete runs to an archive: specs, fingerprints, records and scores.

    `suite_files` are files of a suite by their paths below the results (SUITE_FILE).

    Raises ConfigError if a folder contains no run or damaged records, if two folders have the same name, or if `archive` is
    there and is not a file. A symbolic link is written through.
    """
    names = [folder.resolve().name for folder in folders]
    for name in names:
        if not FOLDER_NAME.fullmatch(name):
            raise ConfigError(f"{name}: a folder of this name cannot be exported; help: rename it")
        if names.count(name) > 1:
            raise ConfigError(f"{name}: two folders have this name; help: export them separately")
    members = {path: file.read_bytes() for path, file in suite_files.items()}
    for name, folder in zip(names, folders, strict=True):
        spec_of(folder)  # raises if there is no run
        _require_run(folder)
        for file in FILES:
            if (folder / file).exists():
                members[f"{name}/{file}"] = _content(folder, file, texts)
    files = {path: ListedFile(_sha256(data), len(data)) for path, data in members.items()}
    listing = Listing(FORMAT, texts, files)
    with writing(archive) as part, zipfile.ZipFile(part, "w", compression) as out:
        for path, data in {LISTING: json.dumps(asdict(listing), indent=1).encode(), **members}.items():
            out.writestr(zipfile.ZipInfo(path, STAMP), data, compression)
    return listing


@contextmanager
def writing(archive: Path) -> Iterator[Path]:
    """Yield a file next to an archive, which replaces it at the end of the block, through symbolic links.

    Raises ConfigError if the archive is there and is not a regular file.
    """
    path = Path(os.path.realpath(archive))
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise ConfigError(f"{archive} is not a regular file; help: -o ANOTHER")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


class _BoundedFile(io.FileIO):
    """An archive of which no read is larger than the list of members may be."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > MOST_DIRECTORY_BYTES:
            raise zipfile.BadZipFile("its list of members is too large")
        return super().read(MOST_DIRECTORY_BYTES if size is None or size < 0 else size) or b""


def unpack(archive: Path, out: Path, most_bytes: int = MOST_BYTES, mark: bool = True) -> list[Path]:
    """Write the runs of an archive to new folders in `out`, and return these. With `mark`, they are marked as imported.

    Only files with the names of a run folder or of a suite are written, after their checksums, their sizes and the content of
    runs were checked. Nothing in an archive is executed. Raises ConfigError, and leaves no folder, if the archive is damaged,
    too large or not an archive of runs, or if a folder exists.
    """
    if archive.exists() and not archive.is_file():
        raise ConfigError(f"{archive} is not a regular file; help: copy the archive to a file first")
    try:
        with _BoundedFile(archive) as opened, zipfile.ZipFile(opened) as file:
            listing = _listing_of(file, archive, most_bytes)
            folders = sorted({str(PurePosixPath(path).parent) for path in listing.files})
            names = [name for name in folders if "/" not in name]
            for name in folders:
                if (out / name).exists():
                    raise ConfigError(f"{out / name} exists; help: --out ANOTHER_FOLDER")
            out.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".import-", dir=out) as text:
                folder = Path(text)
                for path, expected in listing.files.items():
                    _write(file, path, expected, folder / path, archive)
                origin = ImportOrigin(archive.name, _sha256_of_file(archive), listing.texts)
                for name in names:
                    _require_run(folder / name)
                    if mark:
                        write_with_checksum(folder / name / IMPORTED, asdict(origin), indent=1)
                for name in folders:
                    (out / name).parent.mkdir(parents=True, exist_ok=True)
                    (folder / name).rename(out / name)
    except (zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, RuntimeError, EOFError) as error:
        raise ConfigError(f"{archive}: not an archive of specbench archive export: {error}") from None
    return [out / name for name in names]


def _content(folder: Path, file: str, texts: bool) -> bytes:
    """Return a file of a run folder, without texts unless they are wanted."""
    path = folder / file
    if texts or file not in WITHOUT_TEXTS:
        return path.read_bytes()
    return WITHOUT_TEXTS[file](path)


def _records_without_texts(path: Path) -> bytes:
    return b"".join(line_of(_without_texts(record)) for record in read(path.parent))


def _without_texts(record: Record) -> Record:
    """Return a record without the generated text and the ids of the prompt's ends. Token ids are kept: results need them."""
    return replace(record, text="", pieces=[], prompt_ends=[], rounds=[_round(round_) for round_ in record.rounds])


def _round(record: RoundRecord) -> RoundRecord:
    return replace(record, rejected="", inner=[_round(round_) for round_ in record.inner])


def _scores_without_texts(path: Path) -> bytes:
    scores = read_with_checksum(path, Scores)
    scores.pop("samples", None)
    return json_with_checksum(cast(dict[str, Any], scores)).encode()


def _judged_without_texts(path: Path) -> bytes:
    judged = read_with_checksum(path, Judged)
    for judgments in (judged, *judged.get("earlier", [])):
        for row in judgments["rows"]:
            row["exchanges"] = []
    return json_with_checksum(cast(dict[str, Any], judged)).encode()


WITHOUT_TEXTS: dict[str, Callable[[Path], bytes]] = {
    SAMPLES: _records_without_texts,
    SCORES: _scores_without_texts,
    JUDGED: _judged_without_texts,
}


def _listing_of(file: zipfile.ZipFile, archive: Path, most_bytes: int) -> Listing:
    """Return an archive's manifest. Raises ConfigError unless it lists exactly the members, with safe names and sizes."""
    members = file.namelist()
    if any(member.compress_type not in COMPRESSION for member in file.infolist()):
        raise ConfigError(f"{archive}: compressed in another way than by deflate, which is not imported")
    if len(members) > MOST_FILES:
        raise ConfigError(f"{archive}: {len(members)} files; at most {MOST_FILES} are imported")
    if members[:1] != [LISTING]:
        raise ConfigError(f"{archive}: not an archive of specbench archive export: it does not begin with {LISTING}")
    text = b"".join(_chunks(file, LISTING, MOST_LISTING_BYTES, archive))
    listing = parse_json(text, Listing, f"{archive}: {LISTING}")
    if listing.format != FORMAT:
        raise ConfigError(f"{archive}: format {listing.format}; this version reads format {FORMAT}")
    if not listing.files or sorted(members[1:]) != sorted(listing.files):
        raise ConfigError(f"{archive}: its contents do not match {LISTING}")
    for path in listing.files:
        name, _, inside = path.partition("/")
        is_of_run = FOLDER_NAME.fullmatch(name) and name not in SUITE_FOLDERS and inside in FILES
        if not is_of_run and not SUITE_FILE.fullmatch(path):
            raise ConfigError(f"{archive}: {path!r} is not a file of a run folder")
    if listing.bytes > most_bytes or any(entry.bytes < 0 for entry in listing.files.values()):
        raise ConfigError(
            f"{archive}: {size_text(listing.bytes)} when unpacked; help: --max-gib N imports larger archives"
        )
    return listing


def _write(file: zipfile.ZipFile, path: str, expected: ListedFile, to: Path, archive: Path) -> None:
    """Write a member to a file. Raises ConfigError if it is larger than listed, or if its checksum differs."""
    to.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with to.open("xb") as out:
        for chunk in _chunks(file, path, expected.bytes, archive):
            digest.update(chunk)
            out.write(chunk)
    if digest.hexdigest() != expected.sha256:
        raise ConfigError(f"{archive}: {path} is damaged: its checksum differs from that in {LISTING}")


def _chunks(file: zipfile.ZipFile, path: str, most: int, archive: Path) -> Iterator[bytes]:
    """Yield a member's content. Raises ConfigError once it exceeds `most` bytes, without unpacking the rest."""
    read_bytes = 0
    with file.open(path) as member:
        while chunk := member.read(CHUNK):
            read_bytes += len(chunk)
            if read_bytes > most:
                raise ConfigError(f"{archive}: {path} is larger than {most} bytes")
            yield chunk


def _require_run(folder: Path) -> None:
    """Raise ConfigError unless a folder contains a run whose files are valid."""
    for file in (CONFIG, MANIFEST, ENVIRONMENT, SAMPLES):
        if not (folder / file).exists():
            raise ConfigError(f"{folder.name} has no {file}")
    read_with_checksum(folder / ENVIRONMENT, Environment)
    if (folder / SCORES).exists():
        read_with_checksum(folder / SCORES, Scores)
    if (folder / JUDGED).exists():
        read_with_checksum(folder / JUDGED, Judged)
    if problems := load(folder).problems:
        raise ConfigError(f"{folder.name}: {listed(problems)}")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _sha256_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


COLUMNS = "samples.columns.json"  # in an archive of a suite, instead of SAMPLES
XZ = b"\xfd7zXZ\0"  # the first bytes of an xz file
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "pb": 0}]  # for text
MOST_MEMORY = 256 << 20  # bytes to decompress with; FILTERS need 65 MiB


def pack_suite(suite: Suite, results: Path, archive: Path) -> Listing:
    """Write what `specbench report --suite` reads to an archive, without texts.

    Raises ConfigError if nothing was measured, or if a run is damaged.
    """
    index, runs = measured_runs(suite, results)
    files = [index.path, *(file for *_, file in report_files(suite, results))]
    by_name = {file.relative_to(results).as_posix(): file for file in files}
    with TemporaryDirectory(prefix="specbench-") as folder:
        rows, columns = Path(folder) / "rows.zip", Path(folder) / "columns.zip"
        listing = pack([results / run.folder for run in runs], rows, suite_files=by_name, compression=ZIP_STORED)
        _convert(rows, columns, SAMPLES, COLUMNS, columns_of)
        with writing(archive) as part:
            part.write_bytes(lzma.compress(columns.read_bytes(), filters=FILTERS))
    return listing


@contextmanager
def unpacked_results(results: Path) -> Iterator[Path]:
    """Yield a folder of results. An archive of `pack_suite` is unpacked into a temporary one, which is deleted at the end.

    Its content is checked as in `unpack`. Raises ConfigError if the file is not an archive, or is damaged.
    """
    if not results.is_file():
        yield results
        return
    with TemporaryDirectory(prefix="specbench-") as folder:
        unpack(_plain(results, Path(folder), MOST_BYTES), Path(folder) / "results", mark=False)
        yield Path(folder) / "results"


@contextmanager
def plain_archive(archive: Path, most_bytes: int = MOST_BYTES) -> Iterator[Path]:
    """Yield a file that `unpack` reads: the archive, or for one of `pack_suite` a temporary file, deleted at the end.

    Raises ConfigError if the content of an archive of `pack_suite` is damaged or exceeds `most_bytes`.
    """
    if not archive.is_file() or not _is_xz(archive):
        yield archive
        return
    with TemporaryDirectory(prefix="specbench-") as folder:
        yield _plain(archive, Path(folder), most_bytes)


def _is_xz(archive: Path) -> bool:
    with archive.open("rb") as file:
        return file.read(len(XZ)) == XZ


def _plain(archive: Path, folder: Path, most_bytes: int) -> Path:
    """Write an archive of `pack_suite` as one of `pack` to a folder, and return the file."""
    columns, rows = folder / "columns.zip", folder / archive.name
    decompress(archive, columns, most_bytes)
    try:
        _convert(columns, rows, COLUMNS, SAMPLES, lines_of)
    except (zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, RuntimeError, EOFError) as error:
        raise ConfigError(f"{archive}: not an archive of specbench archive export --suite: {error}") from None
    columns.unlink()
    return rows


def _convert(source: Path, to: Path, old: str, new: str, change: Callable[[bytes], bytes]) -> None:
    """Copy an archive, with the content of all members named `old` changed and these renamed to `new`.

    The manifest is kept: it has the checksums of lines. Raises ConfigError if the copy exceeds MOST_BYTES.
    """
    left = MOST_BYTES
    with _BoundedFile(source) as opened, zipfile.ZipFile(opened) as file, zipfile.ZipFile(to, "w") as out:
        for name in file.namelist():
            data = b"".join(_chunks(file, name, left, source))
            if PurePosixPath(name).name == old:
                name, data = f"{name.removesuffix(old)}{new}", change(data)
            left -= len(data)
            if left < 0:
                raise ConfigError(f"{source.name}: more than {size_text(MOST_BYTES)} when unpacked")
            out.writestr(zipfile.ZipInfo(name, STAMP), data)


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
        raise ConfigError(f"{archive}: not an archive of specbench archive export --suite: {error}") from None
