"""Hashes of large files, each computed once: they are kept in the user's cache directory."""

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path

from specbench import files

LARGE = 64 << 20  # bytes from which on the hash of a file is kept


def hash_of(path: Path) -> str:
    """Return the SHA-256 of a file as hex digits.

    The hash is read again only if the file's device, inode, size, time of modification or time of change differ from when it
    was computed.
    """
    found = path.stat()
    key = ":".join(map(str, (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)))
    kept = _kept()
    if key not in kept:
        with path.open("rb") as file:
            kept[key] = hashlib.file_digest(file, "sha256").hexdigest()
        with suppress(OSError):  # a home directory that cannot be written costs time only
            _place().parent.mkdir(parents=True, exist_ok=True)
            files.write(_place(), json.dumps({**_kept(), key: kept[key]}))
    return kept[key]


def _place() -> Path:
    """Return the file of the hashes."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "specbench" / "hashes.json"


def _kept() -> dict[str, str]:
    """Return the hashes that are kept; none if the file is missing or damaged."""
    try:
        found = json.loads(_place().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and all(isinstance(each, str) for each in found.values()) else {}
