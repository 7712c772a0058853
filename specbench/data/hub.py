"""Files of the hub and local files: their rows, revisions and checksums, and the errors if they are missing."""

import hashlib
import json
import os
import socket
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from specbench.data.hashes import LARGE, hash_of
from specbench.errors import MissingAsset

MODEL_FILES = {".json", ".safetensors", ".bin", ".model", ".txt", ".jinja"}
REACHED_WITHIN = 5.0  # seconds


@dataclass(frozen=True)
class Rows:
    """Data rows with their source. `sha256` is the hash of the rows as canonical JSON lines."""

    rows: list[dict[str, Any]]
    source: str
    revision: str | None

    @property
    def sha256(self) -> str:
        lines = "\n".join(json.dumps(row, sort_keys=True, ensure_ascii=False) for row in self.rows)
        return hashlib.sha256(lines.encode()).hexdigest()


def _beside(path: Path) -> list[str]:
    """Return the file in the same folder whose name is the most similar to a missing one's, if there is one."""
    names = [each.name for each in path.parent.iterdir() if each.is_file()] if path.parent.is_dir() else []
    return [str(path.parent / name) for name in get_close_matches(path.name, names, n=1)]


def read_jsonl(path: Path) -> Rows:
    """Read a file with one JSON object per line, or a `.json` file with an array of objects.

    Raises MissingAsset, naming the line or the row, if it is missing or invalid.
    """
    if not path.is_file():
        near = get_close_matches(str(path).lower(), ("synthetic", "hub"), n=1) or _beside(path)
        raise MissingAsset(f"no data file {path}" + (f" (did you mean '{near[0]}'?)" if near else ""))
    if path.suffix == ".json":
        return Rows(_array(path), str(path), None)
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
    return Rows(rows, str(path), None)


def _array(path: Path) -> list[dict[str, Any]]:
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


def fetch_parquet(repo: str, file: str, revision: str | None) -> Rows:
    """Read a parquet file of a data set at a commit. Raises MissingAsset if it cannot be downloaded."""
    # imported here to keep `list` and `--help` fast
    import pandas
    from huggingface_hub import hf_hub_download

    look_for_hub()
    try:
        path = hf_hub_download(repo, file, repo_type="dataset", revision=revision)
    except (OSError, ValueError) as error:
        stay_offline(error)
        raise MissingAsset(
            f"data set {repo} is not in the local cache and cannot be downloaded{_cause(error)};"
            " help: --data FILE.jsonl with the same fields, or --data synthetic"
        ) from None
    rows = json.loads(pandas.read_parquet(path).to_json(orient="records"))
    return Rows(rows, f"{repo}/{file}", Path(path).parts[-1 - len(Path(file).parts)])


def commit_of(repo: str, revision: str | None, file: str = "config.json") -> str:
    """Return the commit of a revision. None is the newest commit on the hub, or in the local cache if offline.

    `file` is a file that the repository must have.
    """
    from huggingface_hub import hf_hub_download  # imported here to keep `list` and `--help` fast

    look_for_hub()
    return Path(hf_hub_download(repo, file, revision=revision)).parent.name


def missing_model(role: str, path: str, error: Exception) -> MissingAsset:
    """Return the error for a model that cannot be downloaded, with advice."""
    stay_offline(error)
    if "gated" in str(error).lower():
        help_ = f"accept its license at huggingface.co/{path}, then run `hf auth login`"
    elif offline_mode():
        help_ = (
            f"run `specbench fetch` or `hf download {path}` on a machine with network access, or give a local folder"
        )
    else:
        help_ = "check the name, or give a local folder; `-p tiny` needs no download"
    if path.startswith(("/", "./", "../", "~")):
        return MissingAsset(f"model '{role}': no folder {path}; help: check the path")
    why = f"is not in the local cache and cannot be fetched{_cause(error)}"
    return MissingAsset(f"model '{role}': {path} {why}; help: {help_}")


def _cause(error: Exception) -> str:
    """Return the hub's reason for a failed download; if the hub is not used, only that, since it holds for every file."""
    return " (offline)" if offline_mode() else f": {first_line(error)}"


def offline_mode() -> bool:
    """Return whether the hub is not used: by the user's choice, or since it could not be reached."""
    from huggingface_hub import constants  # imported here to keep `list` and `--help` fast

    return bool(constants.HF_HUB_OFFLINE)


@cache
def look_for_hub() -> None:
    """Switch to offline mode if the hub does not answer, since its client would try half a minute per file."""
    from huggingface_hub import constants  # imported here to keep `list` and `--help` fast

    proxies = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
    if constants.HF_HUB_OFFLINE or any(os.environ.get(name) for name in proxies):  # a proxy may reach the hub
        return
    place = urlsplit(constants.ENDPOINT)
    try:
        port = place.port or (443 if place.scheme == "https" else 80)
        socket.create_connection((place.hostname or "", port), timeout=REACHED_WITHIN).close()
    except OSError:
        constants.HF_HUB_OFFLINE = True


def stay_offline(error: Exception) -> None:
    """Switch to offline mode after an error of an unreachable hub, so that its client does not wait for every other file."""
    from huggingface_hub import constants  # imported here to keep `list` and `--help` fast
    from huggingface_hub.errors import LocalEntryNotFoundError

    if isinstance(error, LocalEntryNotFoundError):
        constants.HF_HUB_OFFLINE = True


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, or its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def local_checksum(folder: Path) -> str:
    """Return a checksum of 16 hex digits of the files in a model folder, by their content."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.iterdir() if p.suffix in MODEL_FILES):
        digest.update(path.name.encode())
        if path.stat().st_size < LARGE:
            digest.update(path.read_bytes())
        else:
            digest.update(hash_of(path).encode())
    return digest.hexdigest()[:16]
