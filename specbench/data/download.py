"""Repositories that pairs and tasks need from the hub: their files, the local cache, and downloads."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypedDict

from specbench.config.pair import BUNDLED, HeadSpec, ModelSpec, Pair, folder
from specbench.data.hub import MODEL_FILES, first_line, look_for_hub, offline_mode
from specbench.data.remote_rows import HubData, WebFile
from specbench.data.rows import HUB
from specbench.data.task import Task
from specbench.errors import ConfigError
from specbench.files import read_json

RepositoryKind = Literal["model", "dataset", "file"]
WEIGHTS = (".safetensors", ".bin")
# File names of transformers. Other weight files in a repository are the same weights in another format.
STANDARD = (re.compile(r"model(-\d+-of-\d+)?\.safetensors"), re.compile(r"pytorch_model(-\d+-of-\d+)?\.bin"))
INDEX = re.compile(r"(model\.safetensors|pytorch_model\.bin)\.index\.json")


@dataclass(frozen=True)
class Need:
    """A model, head or data set that a run reads. If it needs no download, `repo` is empty and `why` is the reason.

    For a file on the web, `repo` is its URL and `revision` its SHA-256. `data` is the split of a data set whose files the
    library `datasets` finds.
    """

    what: str
    repo: str = ""
    kind: RepositoryKind = "model"
    revision: str = ""  # as given; empty: the newest
    files: tuple[str, ...] = ()  # of a data set, or a GGUF file; of other models they are chosen by `weights_once`
    why: str = ""
    data: HubData | None = None

    @property
    def key(self) -> tuple[str, str, str, HubData | None]:
        """The key of the repository: needs with equal keys share one download."""
        return self.kind, self.repo, self.revision, self.data


@dataclass
class Repository:
    """The files needed from one repository at one revision, their purposes, and the cached files.

    `needs_weights` says that one of its users needs all weights of a model, besides files by name. `wrong` is the reason why
    it is unavailable. `sizes` are bytes by file, None if unknown. `here` are the cached files.
    """

    repo: str
    kind: RepositoryKind
    revision: str
    purposes: list[str]
    data: HubData | None = None
    commit: str = ""
    gated: bool = False
    sizes: dict[str, int | None] = field(default_factory=dict)
    here: set[str] = field(default_factory=set)
    needs_weights: bool = False
    wrong: str = ""

    @property
    def bytes(self) -> int:
        """The size of the needed files, as far as it is known."""
        return sum(size or 0 for size in self.sizes.values())

    @property
    def missing_bytes(self) -> int:
        """The size of the needed files that are not in the cache."""
        return sum(size or 0 for file, size in self.sizes.items() if file not in self.here)

    @property
    def complete(self) -> bool:
        """Whether all needed files are in the cache."""
        return not self.wrong and self.here >= set(self.sizes)


def needs_of_pair(name: str, pair: Pair, base: Path, roles: Iterable[str], heads: Iterable[str]) -> list[Need]:
    """Return the needs of models by role and of heads by name. Local folders are relative to `base`."""
    specs: list[tuple[str, ModelSpec | HeadSpec]] = [(f"model {role} of {name}", pair.models[role]) for role in roles]
    specs += [(f"head {head} of {name}", pair.heads[head]) for head in heads]
    if pair.weights == "dummy":
        return [Need(what, why="dummy weights") for what, _ in specs]
    needs = [(source(what, spec.path, spec.revision, base), spec) for what, spec in specs]
    return [
        replace(need, files=(spec.gguf_file,)) if need.repo and isinstance(spec, ModelSpec) and spec.gguf_file else need
        for need, spec in needs
    ]


def source(what: str, path: str, revision: str, base: Path) -> Need:
    """Return the need of a model or head."""
    if path.startswith(BUNDLED):
        return Need(what, why="bundled")
    if folder(path, base):
        return Need(what, why="a local folder")
    if Path(path).is_absolute() or path.count("/") != 1:
        return Need(what, why=f"neither a local folder nor a hub id: {path}")
    return Need(what, path, "model", revision)


def needs_of_task(name: str, task: Task, data: str) -> list[Need]:
    """Return what has to be downloaded for the rows of a task. `data` is `hub`, `synthetic`, an id of the hub or a file."""
    what = f"data of {name}"
    source = task.local if task.local and data in ("hub", "synthetic") else data
    of_hub = HubData.parse(source) if source.startswith(HUB) else task.hub if source == "hub" else None
    if isinstance(of_hub, HubData):
        splits = (task.data_of(of_hub, split) for split in task.splits)
        return [Need(what, split.repo, "dataset", split.revision, data=split) for split in splits]
    if source != "hub":
        return [Need(what, why="synthetic" if source == "synthetic" else "a local file")]
    if task.web:
        return [Need(what, task.web.url, "file", task.web.sha256, (task.web.name,))]
    if of_hub is None:
        return [Need(what, why="not on the hub; help: --data FILE.jsonl")]
    repo, file, revision = of_hub
    files = tuple(dict.fromkeys(file.format(split=split) for split in task.splits))
    return [Need(what, repo, "dataset", task.revision or revision, files)]


def weights_once(files: Iterable[str]) -> list[str]:
    """Return the files that loading a model reads: configs, tokenizer, and weights in one format, preferably safetensors.

    Files in subfolders are the same weights in other formats (original/, onnx/, fp16/).
    """
    top = sorted(file for file in files if "/" not in file and Path(file).suffix in MODEL_FILES)
    weights: list[str] = []
    for ending, standard in zip(WEIGHTS, STANDARD, strict=True):
        kind = [file for file in top if file.endswith(ending)]
        weights = weights or [file for file in kind if standard.fullmatch(file)] or kind
    return [file for file in top if file in weights or not file.endswith(WEIGHTS)]


def gathered(needs: Iterable[Need]) -> list[Repository]:
    """Group needs by repository. The files of models are not known yet."""
    repositories: dict[tuple[str, str, str, HubData | None], Repository] = {}
    for need in needs:
        if need.repo:
            new = Repository(need.repo, need.kind, need.revision, [], need.data)
            repository = repositories.setdefault(need.key, new)
            repository.purposes.append(need.what)
            repository.sizes |= dict.fromkeys(need.files)
            repository.needs_weights |= need.kind == "model" and not need.files
    return list(repositories.values())


def look(repository: Repository) -> None:
    """Fill in a repository's files, sizes and cached files, from the hub or, if offline, from the cache; or what is wrong."""
    look_for_hub()
    if repository.kind == "file":
        _read_file(repository)
        return
    try:
        if repository.data:
            _read_data(repository, repository.data)
        else:
            (_read_cache if offline_mode() else _read_hub)(repository)
    except ConfigError as error:
        repository.wrong = str(error)
    except Exception as error:  # of any type, from the hub's HTTP library; other repositories are still looked up
        repository.wrong = with_advice(repository, error)


def _read_file(repository: Repository) -> None:
    """Fill in a file on the web."""
    file = WebFile(repository.repo, repository.revision)
    repository.commit = repository.revision
    if file.is_here:
        repository.sizes, repository.here = {file.name: file.cached.stat().st_size}, {file.name}
    elif offline_mode():
        repository.wrong = f"{file.url}: it is not in the local cache; help: fetch it on a machine with network access"


def _read_data(repository: Repository, data: HubData) -> None:
    """Fill in a split of a data set: its rows if the cache has them, otherwise the files that they are read from."""
    repository.commit = data.commit()
    cached = data.cache_path(repository.commit)
    if cached.is_file():
        repository.sizes, repository.here = {cached.name: cached.stat().st_size}, {cached.name}
    elif offline_mode():
        raise FileNotFoundError("it is not in the local cache")
    else:
        _read_hub(repository)


def _read_hub(repository: Repository) -> None:
    from huggingface_hub import HfApi  # imported here to keep `list` and `--help` fast

    info_of = HfApi().model_info if repository.kind == "model" else HfApi().dataset_info
    info: Any = info_of(repository.repo, revision=repository.revision or None, files_metadata=True)
    sizes = {file.rfilename: file.size for file in info.siblings or []}
    chosen = weights_once(sizes) if repository.needs_weights else []
    names = list(dict.fromkeys([*chosen, *repository.sizes]))
    names = repository.data.files(info.sha) if repository.data else names
    absent = [name for name in names if name not in sizes]
    if absent or not names:
        raise FileNotFoundError(f"it has no {', '.join(absent) or 'file of a model'}")
    repository.commit, repository.gated = info.sha, bool(info.gated)
    repository.sizes = {name: sizes[name] for name in names}
    if not repository.data:
        repository.here = {name for name in names if (path := _cached(repository, name)) and info.sha in path.parts}


def _read_cache(repository: Repository) -> None:
    """Fill in a repository from the snapshot in the cache. Raises FileNotFoundError if it is incomplete."""
    # imported here to keep `list` and `--help` fast
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    options = {"repo_type": repository.kind, "revision": repository.revision or None}
    try:
        # The client would otherwise require every file of a repository whose list of files it has kept.
        snapshot = Path(snapshot_download(repository.repo, local_files_only=True, allow_patterns=[], **options))
    except LocalEntryNotFoundError:  # its message is long
        raise FileNotFoundError("it is not in the local cache") from None
    cached = [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file()]
    needed = set(repository.sizes) | set(weights_once(cached) if repository.needs_weights else ())
    if repository.kind == "model":
        indices = [snapshot / name for name in needed if INDEX.fullmatch(name)]
        needed |= {shard for index in indices for shard in _shards(index, needed)}
    if needed - set(cached) or (repository.kind == "model" and not any(file.endswith(WEIGHTS) for file in needed)):
        raise FileNotFoundError("it is incomplete in the local cache")
    repository.commit = snapshot.name
    repository.sizes = {name: (snapshot / name).stat().st_size for name in sorted(needed)}
    repository.here = needed


class _Index(TypedDict):
    """The part of a sharded checkpoint's index that is read."""

    weight_map: dict[str, str]


def _shards(index: Path, cached: Iterable[str]) -> set[str]:
    """Return the shards that an index lists, restricted to the weight format that is cached."""
    ending = ".safetensors" if any(file.endswith(".safetensors") for file in cached) else ".bin"
    named = set(read_json(index, _Index)["weight_map"].values())
    return {file for file in named if file.endswith(ending)}


def _cached(repository: Repository, name: str) -> Path | None:
    """Return the cached path of a file; None if it is not cached."""
    from huggingface_hub import try_to_load_from_cache  # imported here to keep `list` and `--help` fast

    revision = repository.revision or None
    path = try_to_load_from_cache(repository.repo, name, revision=revision, repo_type=repository.kind)
    return Path(path) if isinstance(path, str) else None


def download(repository: Repository) -> None:
    """Download missing files, by the revision as given, so that the cache resolves it offline."""
    if repository.kind == "file":
        try:
            WebFile(repository.repo, repository.revision).download()
        except (OSError, ValueError) as error:
            repository.wrong = f"{repository.repo}: {first_line(error)}; help: check the network access"
        else:
            repository.here = set(repository.sizes)
        return
    from huggingface_hub import snapshot_download  # imported here to keep `list` and `--help` fast

    try:
        if repository.data:
            repository.data.download(repository.commit)
        else:
            snapshot_download(
                repository.repo,
                repo_type=repository.kind,
                revision=repository.revision or None,
                allow_patterns=list(repository.sizes),
            )
    except Exception as error:  # of any type, from the hub's HTTP library; other repositories are still downloaded
        repository.wrong = with_advice(repository, error)
    else:
        repository.here = set(repository.sizes)


def with_advice(repository: Repository, error: Exception) -> str:
    """Return the error message for a failed download, with a hint."""
    if repository.gated or "gated" in f"{type(error).__name__} {error}".lower():
        prefix = "datasets/" if repository.kind == "dataset" else ""
        help_ = f"accept its licence at huggingface.co/{prefix}{repository.repo}, then run `hf auth login`"
    elif offline_mode():
        help_ = "the hub does not answer, or HF_HUB_OFFLINE is set: download on a machine with network access"
    else:
        help_ = "check the name and the revision, and whether your token may read it (`hf auth whoami`)"
    return f"{repository.repo}: {first_line(error)}; help: {help_}"
