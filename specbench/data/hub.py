"""Floor 0: what comes from outside the project: hub files, local files, their checksums, and what to say when they lack."""

import hashlib
import json
import os
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from specbench.errors import MissingAsset

MODEL_FILES = {".json", ".safetensors", ".bin", ".model", ".txt", ".jinja"}
REACHED_WITHIN = 5.0  # seconds
SMALL = 64 << 20  # bytes; larger weight files are identified by size and time instead of content


@dataclass(frozen=True)
class Rows:
    """Data rows with their provenance. `sha256` is over the rows as canonical JSON lines."""

    rows: list[dict[str, Any]]
    source: str
    revision: str | None

    @property
    def sha256(self) -> str:
        lines = "\n".join(json.dumps(row, sort_keys=True, ensure_ascii=False) for row in self.rows)
        return hashlib.sha256(lines.encode()).hexdigest()


def read_jsonl(path: Path) -> Rows:
    """A user's own file, one JSON object a line. Raises MissingAsset, naming the line, where it is none."""
    if not path.is_file():
        raise MissingAsset(f"no data file {path}")
    rows = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if line.strip():
            try:
                row = json.loads(line)
                json.dumps(row, ensure_ascii=False).encode()
            except UnicodeEncodeError:
                raise MissingAsset(f"{path}:{number}: half of a surrogate pair, which is no text") from None
            except (ValueError, RecursionError) as error:  # no JSON, or no UTF-8
                raise MissingAsset(f"{path}:{number}: not JSON: {first_line(error)}") from None
            if not isinstance(row, dict):
                raise MissingAsset(f"{path}:{number}: not a JSON object")
            rows.append(row)
    return Rows(rows, str(path), None)


def fetch_parquet(repo: str, file: str, revision: str | None) -> Rows:
    """A parquet file of a hub data set, at a commit. Raises MissingAsset, saying what to do, where it cannot be had."""
    import pandas
    from huggingface_hub import hf_hub_download

    look_for_hub()
    try:
        path = hf_hub_download(repo, file, repo_type="dataset", revision=revision)
    except (OSError, ValueError) as error:
        offline = " (offline)" if offline_mode() else ""
        raise MissingAsset(
            f"data set {repo} is not in the local cache and cannot be fetched{offline}: {first_line(error)}\n"
            "  help: pass --data FILE.jsonl with the same fields, or --data synthetic"
        ) from None
    rows = json.loads(pandas.read_parquet(path).to_json(orient="records"))
    return Rows(rows, f"{repo}/{file}", Path(path).parts[-1 - len(Path(file).parts)])


def commit_of(repo: str, revision: str | None, file: str = "config.json") -> str:
    """The commit that a revision stands for, an open one for the newest that the hub or the local cache knows.

    `file` is one that the repository must have.
    """
    from huggingface_hub import hf_hub_download

    look_for_hub()
    return Path(hf_hub_download(repo, file, revision=revision)).parent.name


def missing_model(role: str, path: str, error: Exception) -> MissingAsset:
    """What to tell a user whose model could not be had."""
    text = first_line(error)
    if "gated" in str(error).lower():
        help_ = f"accept its licence at huggingface.co/{path}, then run `hf auth login`"
    elif offline_mode():
        help_ = f"run `specbench fetch` or `hf download {path}` where there is a network, or name a local folder"
    else:
        help_ = "check the name, or name a local folder; `-p tiny` runs without any download"
    return MissingAsset(f"model '{role}': {path} is not here and cannot be fetched: {text}\n  help: {help_}")


def offline_mode() -> bool:
    """Whether the hub is not to be asked: the user said so, or it could not be reached."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


@cache
def look_for_hub() -> None:
    """Go offline for the rest of the command where the hub does not answer: its client would try half a minute a file."""
    from huggingface_hub import constants

    told = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
    if constants.HF_HUB_OFFLINE or any(os.environ.get(name) for name in told):  # a proxy may reach what we cannot
        return
    place = urlsplit(constants.ENDPOINT)
    try:
        port = place.port or (443 if place.scheme == "https" else 80)
        socket.create_connection((place.hostname or "", port), timeout=REACHED_WITHIN).close()
    except OSError:
        constants.HF_HUB_OFFLINE = True


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def local_checksum(folder: Path) -> str:
    """Sixteen hex digits that change when a model folder's files change."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.iterdir() if p.suffix in MODEL_FILES):
        size, time = path.stat().st_size, path.stat().st_mtime_ns
        digest.update(path.name.encode())
        digest.update(path.read_bytes() if size <= SMALL else f"{size}:{time}".encode())
    return digest.hexdigest()[:16]
