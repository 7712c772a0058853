"""Rows of local files (JSON lines, JSON, CSV, TSV, Parquet, Arrow), and synthetic rows. `remote_rows.py` has the others.

Synthetic tasks are endless, seeded
generators of rows in the schema of a real data set.
"""

import csv
import glob
import gzip
import hashlib
import io
import json
import math
import os
import random
import re
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from specbench.data.hub import first_line
from specbench.errors import MissingAsset
from specbench.files import in_one_line

Row = dict[str, Any]

TABLES = {".arrow": "Arrow", ".parquet": "Parquet"}  # files that the library `datasets` reads
DELIMITERS = {".csv": ",", ".tsv": "\t"}
GZIP = ".gz"
ENDINGS = (".jsonl", ".ndjson", ".json", *DELIMITERS, *TABLES)
LONGEST_CELL = 2**31 - 1  # characters; the default limit of the module csv is 131,072
TIMEOUT = 30.0  # seconds
CACHE = "SPECBENCH_CACHE"  # the variable of the environment that replaces the folder
HUB = "hf:"  # the beginning of an id of a data set on the hub
HUB_FORM = f"{HUB}REPO[:CONFIG][#SPLIT][@REVISION]"
HUB_ID = re.compile(
    rf"{HUB}(?P<repo>[\w.-]+(/[\w.-]+)?)(:(?P<config>[^#@]+))?(#(?P<split>[\w.-]+))?(@(?P<revision>[\w./-]+))?"
)
Split = Literal["train", "test"]
_TEST_BUCKETS = 16  # one row in sixteen is in the test split


@dataclass(frozen=True)
class Rows:
    """Data rows with their source. `sha256` is the hash of the rows as canonical JSON lines."""

    rows: list[Row]
    source: str
    revision: str | None

    @property
    def sha256(self) -> str:
        lines = "\n".join(json.dumps(row, sort_keys=True, ensure_ascii=False) for row in self.rows)
        return hashlib.sha256(lines.encode()).hexdigest()


def read_file(path: Path) -> Rows:
    """Read a file of rows: JSON lines, a JSON array of objects, CSV, TSV, Parquet or Arrow; all but the last two also as .gz.

    Cells of CSV and TSV are texts. Raises MissingAsset, naming the line or the row, if the file is missing or invalid.
    """
    if not os.path.isfile(path):
        near = get_close_matches(str(path).lower(), ("synthetic", "hub"), n=1) or _similar_files(path)
        raise MissingAsset(f"no data file {path}" + (f" (did you mean '{near[0]}'?)" if near else ""))
    ending = ending_of(path)
    if ending in TABLES:
        return Rows(_table(path, ending), str(path), None)
    content = _content(path)
    rows = _cells(path, content, DELIMITERS[ending]) if ending in DELIMITERS else _json_rows(path, content)
    return Rows(rows, str(path), None)


def ending_of(path: Path) -> str:
    """Return the ending of a data file in lower case, without `.gz`. Raises MissingAsset for one that is not read."""
    name = path.name.lower()
    ending = Path(name.removesuffix(GZIP)).suffix
    if ending not in ENDINGS or (ending in TABLES and name.endswith(GZIP)):
        raise MissingAsset(
            f"{path}: no reader for files {f'ending in {path.suffix}' if path.suffix else 'without an ending'}; help:"
            f" {', '.join(ENDINGS)}, and {GZIP} after one of text"
        )
    return ending


def split_file(path: Path, split: str) -> Path:
    """Return the file of another split next to a file: a table of the same type, otherwise JSON lines."""
    ending = ending_of(path)
    return path.with_name(f"{split}{ending if ending in (*TABLES, *DELIMITERS) else '.jsonl'}")


def _similar_files(path: Path) -> list[str]:
    """Return the file in the same folder whose name is the most similar to a missing one's, if there is one."""
    names = [file.name for file in path.parent.iterdir() if file.is_file()] if path.parent.is_dir() else []
    return [str(path.parent / name) for name in get_close_matches(path.name, names, n=1)]


def _content(path: Path) -> bytes:
    """Return the bytes of a file, unpacked if it ends in .gz."""
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix.lower() == GZIP else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise MissingAsset(f"{path}: cannot be read: {first_line(error)}") from None


def read_lines(path: Path) -> list[Row]:
    """Return the rows of a file with JSON lines."""
    return _lines(path, path.read_bytes())


def _lines(path: Path, content: bytes) -> list[Row]:
    """Return the rows of JSON lines.

    The library `datasets` would add missing keys, give all values of a key one type, and lose the numbers of the lines.
    """
    rows = []
    for number, line in enumerate(content.splitlines(), 1):
        if line.strip():
            try:
                row = json.loads(line)
                json.dumps(row, ensure_ascii=False).encode()
            except UnicodeEncodeError:
                raise MissingAsset(f"{path}:{number}: half of a surrogate pair, which is not valid text") from None
            except (ValueError, RecursionError) as error:  # not JSON, or not UTF-8
                raise MissingAsset(f"{path}:{number}: not JSON: {first_line(error)}") from None
            if not isinstance(row, dict):
                raise MissingAsset(f"{path}:{number}: not a JSON object")
            rows.append(row)
    return rows


def _json_rows(path: Path, content: bytes) -> list[Row]:
    """Return the rows of a JSON array of objects, if the content begins as one, or of JSON lines."""
    if not content.removeprefix(BOM_UTF8).lstrip().startswith(b"["):
        return _lines(path, content)
    try:
        rows = json.loads(content)
    except (ValueError, RecursionError) as error:  # not JSON, or not UTF-8
        raise MissingAsset(f"{path}: not JSON: {first_line(error)}") from None
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise MissingAsset(f"{path}: row {number} is not a JSON object")
    return list(rows)


def _cells(path: Path, content: bytes, delimiter: str) -> list[Row]:
    """Return the rows of a CSV or TSV file, whose first line is the header. Every cell is a text."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise MissingAsset(f"{path}: not UTF-8: {first_line(error)}") from None
    csv.field_size_limit(LONGEST_CELL)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows, header = list[Row](), list[str]()
    try:
        for cells in reader:
            if not cells:  # an empty line
                continue
            if not header:
                header = _header(path, cells, delimiter)
            elif len(cells) != len(header):
                raise MissingAsset(
                    f"{path}:{reader.line_num}: {len(cells)} field{'' if len(cells) == 1 else 's'}, and the header has"
                    f" {len(header)};"
                    f' help: put a field that contains "{delimiter}" into quotes'
                )
            else:
                rows.append(dict(zip(header, cells, strict=True)))
    except csv.Error as error:
        kind = "TSV" if delimiter == "\t" else "CSV"
        raise MissingAsset(f"{path}:{reader.line_num}: not {kind}: {error}") from None
    return rows


def _header(path: Path, names: list[str], delimiter: str) -> list[str]:
    """Return the names of columns. Raises MissingAsset for two equal ones, and for another delimiter."""
    if (twice := next((name for name in names if names.count(name) > 1), None)) is not None:
        raise MissingAsset(f"{path}: two columns are called '{twice}'")
    other = next((mark for mark in (";", "\t", ",") if mark != delimiter and mark in names[0]), "")
    if len(names) == 1 and other:
        raise MissingAsset(
            f"{path}: the header has one field, with {other!r} in it; help: separate fields by {delimiter!r}, or name a"
            " file with tabs .tsv"
        )
    return names


def _table(path: Path, ending: str) -> list[Row]:
    """Return the rows of a Parquet or Arrow file."""
    # imported here to keep `list` and `--help` fast; `load_dataset` would also report the download of a local file
    from datasets.packaged_modules.arrow.arrow import Arrow
    from datasets.packaged_modules.parquet.parquet import Parquet

    builder = {".arrow": Arrow, ".parquet": Parquet}[ending]
    with TemporaryDirectory() as cache:
        try:
            return plain_rows(builder(data_files=glob.escape(str(path)), cache_dir=cache).as_streaming_dataset("train"))
        except Exception as error:  # of any type, from the parsers
            raise MissingAsset(f"{path}: not {TABLES[ending]}: {in_one_line(error)}") from None


def text_of(value: str | float | bool) -> str:
    """Return a value of a row as text: whole numbers as integers, other numbers without an exponent, `true` and `false`.

    The text of a JSON number is not kept, so 1.50 is 1.5; a cell of a CSV file is its own text.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and math.isfinite(value):
        return format(Decimal(repr(value)), "f").removesuffix(".0")
    return str(value)


def plain_rows(dataset: Any) -> list[Row]:
    """Return the rows of a data set of the library as JSON has them, without columns of images, sounds and films."""
    from datasets import Audio, Image, Video

    features = dict(dataset.features or {})
    columns = [
        name
        for name, feature in features.items()
        if not isinstance(getattr(feature, "feature", feature), Audio | Image | Video)
    ]
    rows: Iterable[Row] = dataset.select_columns(columns) if len(columns) < len(features) else dataset
    texts = (json.dumps(row, default=_plain) for row in rows)
    return [json.loads(text, parse_constant=lambda _: None) for text in texts]


def _plain(value: Any) -> str | None:
    """Return a substitute for a value that JSON does not have: the text of a date or a decimal number, None for bytes."""
    if isinstance(value, bytes):
        return None
    return str(value.isoformat() if hasattr(value, "isoformat") else value)


# Synthetic rows


@dataclass(frozen=True)
class SyntheticTask:
    """A generator of rows, with the 0-shot prompt and the answer that a model is trained on.

    Train and test never share a prompt: a checksum of its prompt assigns each row to one split, for all seeds.
    """

    make: Callable[[random.Random], Row]
    prompt: Callable[[Row], str]
    answer: Callable[[Row], str]  # what follows the prompt, with its leading space

    def rows(self, split: Split, seed: int = 0) -> Iterator[Row]:
        """Yield rows of one split without end; the same (split, seed) gives the same rows. No test row is repeated."""
        rng, seen = random.Random(f"{split}:{seed}"), set[str]()
        while True:
            row = self.make(rng)
            prompt = self.prompt(row)
            if (zlib.crc32(prompt.encode()) % _TEST_BUCKETS == 0) == (split == "test") and prompt not in seen:
                if split == "test":
                    seen.add(prompt)
                yield row


def capital(text: str) -> str:
    """Return `text` with its first letter in upper case and the rest unchanged."""
    return text[:1].upper() + text[1:]
