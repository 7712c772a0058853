"""Data files that are published on the web and not on the hub, kept in a cache with their checksum verified."""

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

from specbench.data.hub import Rows, first_line, offline_mode, read_jsonl
from specbench.errors import MissingAsset

TIMEOUT = 30.0  # seconds
CACHE = "SPECBENCH_CACHE"  # the variable of the environment that replaces the folder


class WebFile(NamedTuple):
    """A JSONL file at a URL of a fixed revision, with the SHA-256 of its bytes."""

    url: str
    sha256: str

    @property
    def name(self) -> str:
        """The file's name."""
        return self.url.rpartition("/")[2]

    @property
    def cached(self) -> Path:
        """The file's place in the cache."""
        base = os.environ.get(CACHE) or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        return Path(base).expanduser() / "specbench" / self.sha256[:16] / self.name

    @property
    def is_here(self) -> bool:
        """Whether the cache has the file, complete and unchanged."""
        return self.cached.is_file() and hashlib.sha256(self.cached.read_bytes()).hexdigest() == self.sha256


def download(file: WebFile) -> None:
    """Download a file into the cache. Raises OSError if it cannot be reached, ValueError if its content is another one."""
    import requests  # slow to import

    answer = requests.get(file.url, timeout=TIMEOUT)
    answer.raise_for_status()
    if hashlib.sha256(answer.content).hexdigest() != file.sha256:
        raise ValueError(f"{file.url} is not the expected file: its checksum differs")
    file.cached.parent.mkdir(parents=True, exist_ok=True)
    part = file.cached.with_name(f"{file.name}.part")  # renamed when complete
    part.write_bytes(answer.content)
    part.replace(file.cached)


def read(file: WebFile, task: str) -> Rows:
    """Return the rows of a file, from the cache or the web. Raises MissingAsset if it is in neither."""
    if not file.is_here:
        try:
            if offline_mode():
                raise OSError("offline")
            download(file)
        except (OSError, ValueError) as error:
            raise MissingAsset(
                f"{file.url} is not in the local cache and cannot be downloaded ({first_line(error)}); help: run"
                f" `specbench fetch -t {task}` on a machine with network access, or --data {task}=FILE.jsonl"
            ) from None
    rows = read_jsonl(file.cached)
    return Rows(rows.rows, file.url, file.sha256[:16])
