"""Rows of data sets on the hub and of files on the web, kept in a cache with their commit or checksum."""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from specbench.data.hub import first_line, look_for_hub, missing_data, offline_mode
from specbench.data.rows import CACHE, HUB_FORM, HUB_ID, TIMEOUT, Rows, plain_rows, read_file, read_lines
from specbench.errors import ConfigError, MissingAsset, hint
from specbench.files import in_one_line, write


def cache_folder() -> Path:
    """Return the folder of downloaded rows."""
    base = os.environ.get(CACHE) or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "specbench"


@dataclass(frozen=True)
class HubData:
    """A split of a data set on the hub. An empty `config` is its only or default one; an empty `revision`, the newest."""

    repo: str
    config: str = ""
    split: str = "test"
    revision: str = ""

    @classmethod
    def parse(cls, text: str) -> "HubData":
        """Parse `hf:REPO[:CONFIG][#SPLIT][@REVISION]`. Raises ConfigError for another text."""
        match = HUB_ID.fullmatch(text)
        if not match:
            raise ConfigError(f"{text}: expected {HUB_FORM}; help: --data hf:openai/gsm8k:main#test")
        return cls(**{key: value for key, value in match.groupdict().items() if value})

    def __str__(self) -> str:
        """Return the id without its revision."""
        return f"hf:{self.repo}{f':{self.config}' if self.config else ''}#{self.split}"

    def cache_path(self, commit: str) -> Path:
        """Return the path of the rows of a commit in the cache."""
        parts = (quote(part, safe="") for part in (self.repo, self.config, self.split, f"{commit}.jsonl") if part)
        return cache_folder().joinpath("datasets", *parts)

    def commit(self) -> str:
        """Return the commit of the revision: on the hub, or if offline, when it was last looked up."""
        # imported here to keep `list` and `--help` fast
        from huggingface_hub import HfApi
        from huggingface_hub.errors import RevisionResolutionError

        look_for_hub()
        try:
            revision = HfApi().resolve_revision(
                self.repo, repo_type="dataset", revision=self.revision or None, local_files_only=offline_mode()
            )
        except RevisionResolutionError:  # its message is long
            raise FileNotFoundError("it is not in the local cache") from None
        return str(revision.resolved)

    def files(self, commit: str) -> list[str]:
        """Return the files of the split in the repository. Raises ConfigError for a wrong name."""
        return [file.partition(f"@{commit}/")[2] for file in self._builder(commit).config.data_files[self.split]]

    def download(self, commit: str) -> None:
        """Read the split on the hub, and keep its rows in the cache. Raises ConfigError for a wrong name."""
        rows = plain_rows(self._builder(commit).as_streaming_dataset(self.split))
        path = self.cache_path(commit)
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, "".join(f"{json.dumps(row)}\n" for row in rows))

    def _builder(self, commit: str) -> Any:
        """Return the library's builder, which lists the files of each split."""
        from datasets import load_dataset_builder  # imported here to keep `list` and `--help` fast

        try:
            builder = load_dataset_builder(self.repo, self.config or None, revision=commit)
        except ValueError as error:  # an unknown configuration, or several to choose from
            raise ConfigError(f"hf:{self.repo}: {in_one_line(error)}; help: {HUB_FORM}") from None
        if self.split not in builder.config.data_files:
            suggestion = hint(self.split, builder.config.data_files, "it has")
            raise ConfigError(f"{self}: there is no split '{self.split}'{suggestion}")
        return builder


def read_hub(data: HubData) -> Rows:
    """Return the rows of a split, from the cache or the hub. Raises MissingAsset if it is in neither, and ConfigError."""
    try:
        commit = data.commit()
        path = data.cache_path(commit)
        if not path.is_file():
            if offline_mode():
                raise OSError("offline")
            data.download(commit)
    except ConfigError:
        raise
    except Exception as error:  # of any type, from the hub's HTTP library and the parsers
        raise missing_data(data.repo, error) from None
    return Rows(read_lines(path), str(data), commit)


def read_hub_file(repo: str, file: str, revision: str | None) -> Rows:
    """Read a file of a data set at a commit. Raises MissingAsset if it cannot be downloaded."""
    from huggingface_hub import hf_hub_download  # imported here to keep `list` and `--help` fast

    look_for_hub()
    try:
        path = Path(hf_hub_download(repo, file, repo_type="dataset", revision=revision))
    except (OSError, ValueError) as error:
        raise missing_data(repo, error) from None
    return Rows(read_file(path).rows, f"{repo}/{file}", path.parts[-1 - len(Path(file).parts)])


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
        """The file's path in the cache."""
        return cache_folder() / self.sha256[:16] / self.name

    @property
    def is_here(self) -> bool:
        """Whether the cache has the file, complete and unchanged."""
        return self.cached.is_file() and hashlib.sha256(self.cached.read_bytes()).hexdigest() == self.sha256

    def download(self) -> None:
        """Download the file into the cache. Raises OSError if it cannot be reached, ValueError if its content is another."""
        content = _body(self.url)
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise ValueError(f"{self.url} is not the expected file: its checksum differs")
        self.cached.parent.mkdir(parents=True, exist_ok=True)
        part = self.cached.with_name(f"{self.name}.part")  # renamed when complete
        part.write_bytes(content)
        part.replace(self.cached)


def _body(url: str) -> bytes:
    """Return the body of an answer, after redirections. Raises OSError."""
    from http.client import HTTPException  # imported here to keep `list` and `--help` fast
    from urllib.request import urlopen

    try:
        with urlopen(url, timeout=TIMEOUT) as answer:
            return bytes(answer.read())
    except HTTPException as error:  # such as an answer that ends early
        raise OSError(f"{url}: {type(error).__name__}: {error}") from None


def read_web(file: WebFile, task: str) -> Rows:
    """Return the rows of a file, from the cache or the web. Raises MissingAsset if it is in neither."""
    if not file.is_here:
        try:
            if offline_mode():
                raise OSError("offline")
            file.download()
        except (OSError, ValueError) as error:
            raise MissingAsset(
                f"{file.url} is not in the local cache and cannot be downloaded ({first_line(error)}); help: run"
                f" `specbench fetch -t {task}` on a machine with network access, or --data {task}=FILE.jsonl"
            ) from None
    return Rows(read_lines(file.cached), file.url, file.sha256[:16])
