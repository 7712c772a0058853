"""The bundled target with dequantized 4-bit weights, and its EAGLE head: made on first use, in the user's cache folder.

The model has the weights of `quantization = "int4"`, with scales and zeros in float32, in bfloat16. It needs no torchao. The
head is that of the 4-bit model, with the dequantized one as its base. The files are the same bytes on every machine, so that
their checksums can be part of run specs.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.errors import MissingAsset

if TYPE_CHECKING:
    from torch import Tensor

TINY = Path(__file__).parent
TARGET, HEAD = TINY / "models/target", TINY / "heads/eagle-int4"
COPY, COPIED_HEAD = "tiny/models/target-dequantized", "tiny/heads/eagle-dequantized"  # paths inside the package
FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")  # equal in both models
HEAD_FILES = ("config.json", "report.json")
WEIGHTS = "model.safetensors"
GROUPS = (128, 64, 32)  # inputs that share a scale: the first size that divides a layer's width


def made(path: str) -> Path | None:
    """Return the local folder of a path inside the package whose files are made on first use; None for all other paths.

    Raises MissingAsset if no cache folder can be written.
    """
    if path not in (COPY, COPIED_HEAD):
        return None
    return folder_of_files() / path


@cache
def folder_of_files() -> Path:
    """Return the folder of the model and its head. Both are made first unless they are there."""
    digest = hashlib.sha256()
    for source in (Path(__file__), TARGET / WEIGHTS, HEAD / WEIGHTS):
        digest.update(source.read_bytes())
    for cache_folder in _cache_folders():
        folder = cache_folder / f"tiny-{digest.hexdigest()[:16]}"
        try:
            cache_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if cache_folder.stat().st_uid != os.getuid():  # another user could place a model there
                continue
            if not folder.is_dir():
                _make(folder)
        except OSError:
            continue
        return folder
    raise MissingAsset(
        "no folder for the dequantized copy of the bundled target can be written; help: set XDG_CACHE_HOME"
    )


def _cache_folders() -> Iterator[Path]:
    """Yield the folders to try: the user's cache, and a temporary one of this user."""
    base = os.environ.get("XDG_CACHE_HOME")
    yield Path(base or Path("~/.cache").expanduser()) / "specbench"
    yield Path(tempfile.gettempdir()) / f"specbench-{os.getuid()}"


def _make(folder: Path) -> None:
    """Write the model and its head to a new folder. Another process may do the same: the first one's folder is kept."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as text:
        own = Path(text) / "tiny"
        _copy_model(own / COPY)
        _copy_head(own / COPIED_HEAD, own / COPY)
        try:
            own.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise


def _copy_model(to: Path) -> None:
    from safetensors.torch import load_file, save_file  # imported here to keep `list` and `--help` fast

    to.mkdir(parents=True)
    for name in FILES:
        shutil.copyfile(TARGET / name, to / name)
    weights = load_file(TARGET / WEIGHTS)
    for name, matrix in weights.items():
        if matrix.ndim == 2 and "embed_tokens" not in name:
            weights[name] = dequantized(matrix)
    save_file(weights, to / WEIGHTS, metadata={"format": "pt"})


def dequantized(matrix: "Tensor") -> "Tensor":
    """Return a matrix (out, in) rounded to 16 levels per group of inputs, as torchao rounds it, in the same precision."""
    size = next(size for size in GROUPS if matrix.shape[1] % size == 0)
    groups = matrix.float().view(len(matrix), -1, size)  # (out, groups, size)
    low, high = groups.amin(-1, keepdim=True).clamp(max=0), groups.amax(-1, keepdim=True).clamp(min=0)
    scale = ((high - low) / 15).clamp(min=1e-6)  # (out, groups, 1)
    at_zero = (-(low / scale).round()).clamp(0, 15)  # the code of 0: (out, groups, 1)
    codes = ((groups * (1 / scale)).round() + at_zero).clamp(0, 15)
    # Not (codes - at_zero) * scale, which rounds differently: a weight as the kernels compute it
    return ((codes - 8) * scale + (8 - at_zero) * scale).view(matrix.shape).to(matrix.dtype)


def _copy_head(to: Path, base: Path) -> None:
    """Copy the head, and name the dequantized model as its base."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    to.mkdir(parents=True)
    for name in HEAD_FILES:
        shutil.copyfile(HEAD / name, to / name)
    with safe_open(HEAD / WEIGHTS, "pt") as file:
        provenance = json.loads(file.metadata()["specbench"])
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (file is not a dict)
    digest = hashlib.sha256()  # as `local_checksum` computes it
    for path in sorted(base.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    provenance["base"] = {
        "source": f"specbench:{COPY}", "dtype": "float32", "revision": "", "checksum": digest.hexdigest()[:16],
        "quantization": "", "allowed_keys": [], "weights": "real", "changes": {},
    }  # fmt: skip
    save_file(weights, to / WEIGHTS, metadata={"specbench": json.dumps(provenance, ensure_ascii=False)})
