"""Rows of data sets, read from local files: JSON lines, JSON, CSV, Parquet and Arrow."""

import glob
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from specbench.data.hub import first_line
from specbench.errors import MissingAsset
from specbench.files import in_one_line

Row = dict[str, Any]

TABLES = {".arrow": "Arrow", ".csv": "CSV", ".parquet": "Parquet"}  # files that the library `datasets` reads


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
    """Read a CSV, Parquet or Arrow file, a `.json` file with an array of objects, or else one JSON object per line.

    Raises MissingAsset, naming the line or the row, if it is missing or invalid.
    """
    if not path.is_file():
        near = get_close_matches(str(path).lower(), ("synthetic", "hub"), n=1) or _beside(path)
        raise MissingAsset(f"no data file {path}" + (f" (did you mean '{near[0]}'?)" if near else ""))
    if path.suffix in TABLES:
        return Rows(_table(path), str(path), None)
    return Rows(_array(path) if path.suffix == ".json" else read_lines(path), str(path), None)


def split_file(path: Path, split: str) -> Path:
    """Return the file of another split next to a file: a table of the same type, otherwise JSON lines."""
    return path.with_name(f"{split}{path.suffix if path.suffix in TABLES else '.jsonl'}")


def _beside(path: Path) -> list[str]:
    """Return the file in the same folder whose name is the most similar to a missing one's, if there is one."""
    names = [each.name for each in path.parent.iterdir() if each.is_file()] if path.parent.is_dir() else []
    return [str(path.parent / name) for name in get_close_matches(path.name, names, n=1)]


def read_lines(path: Path) -> list[Row]:
    """Return the rows of a file with JSON lines.

    The library `datasets` would add missing keys, give all values of a key one type, and lose the numbers of the lines.
    """
    rows = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
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


def _array(path: Path) -> list[Row]:
    """Return the rows of a file with a JSON array."""
    try:
        rows = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:  # not JSON, or not UTF-8
        raise MissingAsset(f"{path}: not JSON: {first_line(error)}") from None
    if not isinstance(rows, list):
        raise MissingAsset(f"{path}: not a JSON array of objects")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise MissingAsset(f"{path}: row {number} is not a JSON object")
    return rows


def _table(path: Path) -> list[Row]:
    """Return the rows of a CSV, Parquet or Arrow file."""
    # imported here to keep `list` and `--help` fast; `load_dataset` would also report the download of a local file
    from datasets.packaged_modules.arrow.arrow import Arrow
    from datasets.packaged_modules.csv.csv import Csv
    from datasets.packaged_modules.parquet.parquet import Parquet

    csv = partial(Csv, keep_default_na=False)  # the words None and NA are texts
    builder = {".arrow": Arrow, ".csv": csv, ".parquet": Parquet}[path.suffix]
    with TemporaryDirectory() as cache:
        try:
            return plain_rows(builder(data_files=glob.escape(str(path)), cache_dir=cache).as_streaming_dataset("train"))
        except Exception as error:  # of any type, from the parsers
            raise MissingAsset(f"{path}: not {TABLES[path.suffix]}: {in_one_line(error)}") from None


def plain_rows(dataset: Any) -> list[Row]:
    """Return the rows of a data set of the library as JSON has them, without columns of images, sounds and films."""
    from datasets import Audio, Image, Video

    features = dict(dataset.features or {})
    kept = [
        name for name, each in features.items() if not isinstance(getattr(each, "feature", each), Audio | Image | Video)
    ]
    rows: Iterable[Row] = dataset.select_columns(kept) if len(kept) < len(features) else dataset
    texts = (json.dumps(row, default=_plain) for row in rows)
    return [json.loads(text, parse_constant=lambda _: None) for text in texts]


def _plain(value: Any) -> str | None:
    """Return what stands for a value that JSON does not have: the text of a date or a decimal number, None for bytes."""
    if isinstance(value, bytes):
        return None
    return str(value.isoformat() if hasattr(value, "isoformat") else value)
