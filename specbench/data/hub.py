"""The hub: whether it is used, commits of its models, errors for what is missing, and checksums of model files."""

import hashlib
import json
import os
import socket
from contextlib import suppress
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from specbench import files
from specbench.errors import MissingAsset, NotCached

MODEL_FILES = {".json", ".safetensors", ".bin", ".model", ".txt", ".jinja"}
REACHED_WITHIN = 5.0  # seconds
LARGE = 64 << 20  # bytes at which the hash of a file is kept in the user's cache directory


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
        help_ = "accept its license at huggingface.co/{name}, then run `hf auth login`"
    elif offline_mode():
        help_ = "run `specbench fetch` or `hf download {name}` on a machine with network access, or give a local folder"
    else:
        help_ = "check the name, or give a local folder; `-p tiny` needs no download"
    if path.startswith(("/", "./", "../", "~")):
        return MissingAsset(f"model '{role}': no folder {path}; help: check the path")
    return NotCached(f"model '{role}': ", path, f"cannot be fetched{_cause(error)}", help_)


def missing_data(repo: str, error: Exception) -> MissingAsset:
    """Return the error for a data set that cannot be downloaded, with advice."""
    stay_offline(error)
    fetch = "`specbench fetch` with the same options on a machine with network access, " if offline_mode() else ""
    help_ = f"{fetch}--data FILE.jsonl with the same fields, or --data synthetic for a bundled task"
    return NotCached("data set ", repo, f"cannot be downloaded{_cause(error)}", help_)


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
    endpoint = urlsplit(constants.ENDPOINT)
    try:
        port = endpoint.port or (443 if endpoint.scheme == "https" else 80)
        socket.create_connection((endpoint.hostname or "", port), timeout=REACHED_WITHIN).close()
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


def local_checksum(folder: Path, gguf_file: str = "") -> str:
    """Return a checksum of 16 hex digits of the files in a model folder, by their content.

    Of a GGUF model, these are the GGUF file and the generation config; the folder may hold other models.
    """
    digest = hashlib.sha256()
    of_gguf = [folder / gguf_file, folder / "generation_config.json"]
    paths = (
        [p for p in of_gguf if p.is_file()] if gguf_file else [p for p in folder.iterdir() if p.suffix in MODEL_FILES]
    )
    for path in sorted(paths):
        digest.update(path.name.encode())
        if path.stat().st_size < LARGE:
            digest.update(path.read_bytes())
        else:
            digest.update(hash_of(path).encode())
    return digest.hexdigest()[:16]


def hash_of(path: Path) -> str:
    """Return the SHA-256 of a file as hex digits.

    The hash is read again only if the file's device, inode, size, time of modification or time of change differ from when it
    was computed.
    """
    info = path.stat()
    key = ":".join(map(str, (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)))
    hashes = _cached_hashes()
    if key not in hashes:
        with path.open("rb") as file:
            hashes[key] = hashlib.file_digest(file, "sha256").hexdigest()
        with suppress(OSError):  # a home directory that cannot be written costs time only
            _hashes_file().parent.mkdir(parents=True, exist_ok=True)
            files.write(_hashes_file(), json.dumps({**_cached_hashes(), key: hashes[key]}))
    return hashes[key]


def _hashes_file() -> Path:
    """Return the file of the hashes."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "specbench" / "hashes.json"


def _cached_hashes() -> dict[str, str]:
    """Return the hashes that are kept; none if the file is missing or damaged."""
    try:
        hashes = json.loads(_hashes_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return hashes if isinstance(hashes, dict) and all(isinstance(text, str) for text in hashes.values()) else {}
