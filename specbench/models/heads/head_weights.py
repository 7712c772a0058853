"""Weights of heads: read from a folder, dequantized from FP8, and checked for their values, types and shapes."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from specbench.errors import MissingAsset

WEIGHTS, TORCH = "model.safetensors", "pytorch_model.bin"
LFS = b"version https://git-lfs"  # the beginning of a pointer that stands for a file
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
BLOCK_SCALE, SCALE = (
    "_scale_inv",
    "_scale",
)  # endings of names: scales of blocks (DeepSeek), of any kind (compressed-tensors)
OF_INPUTS = (
    "input_scale",
    "k_scale",
    "v_scale",
    "output_scale",
)  # endings of scales of activations, which are not rounded here
BLOCK = (128, 128)  # rows and columns that share a scale, where the config does not say
LARGEST = 1e9  # absolute value of a weight, far beyond those of trained ones
MAX_LISTED = 4  # names in a message


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return all weights of a folder: one file, or the files that an index lists. Raises MissingAsset if there is none."""
    for name in (WEIGHTS, TORCH):
        index = folder / f"{name}.index.json"
        if (folder / name).is_file():
            return _file(folder / name)
        if index.is_file():
            parts = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
            return {key: weight for part in parts for key, weight in _file(folder / part).items()}
    single = sorted(folder.glob("*.safetensors"))
    if len(single) == 1:
        return _file(single[0])
    raise MissingAsset(f"no draft head in {folder} (no {WEIGHTS} or {TORCH})")


def read_weights_at(folder: Path, start: str) -> dict[str, Tensor]:
    """Return the weights of a checkpoint whose names begin so, without the beginning. No others are read."""
    index = folder / f"{WEIGHTS}.index.json"
    if index.is_file():
        files = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        paths = sorted({folder / file for name, file in files.items() if name.startswith(start)})
    else:
        paths = sorted(folder.glob("*.safetensors"))
    if not paths and not index.is_file():
        raise MissingAsset(f"no MTP head in {folder} (no {WEIGHTS}); its config.json alone is not enough")
    weights = {}
    for path in paths:
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118  (file is not a dict)
                if name.startswith(start):
                    weights[name.removeprefix(start)] = file.get_tensor(name)
    return weights


def _file(path: Path) -> dict[str, Tensor]:
    with path.open("rb") as file:
        if file.read(len(LFS)) == LFS:
            raise MissingAsset(f"{path} is a pointer of Git LFS, without the weights; help: git lfs pull")
    if path.suffix == ".safetensors":
        return load_file(path)
    weights: object = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(weights, dict) or not all(
        isinstance(name, str) and isinstance(weight, Tensor) for name, weight in weights.items()
    ):
        raise MissingAsset(f"{path} is not a table of tensors by name")
    return weights


def block_size(config: Mapping[str, Any]) -> tuple[int, int]:
    """Return the rows and columns of a weight that share a scale, as a config's `quantization_config` says."""
    stored = config.get("quantization_config") or config.get("compression_config") or {}
    if not isinstance(stored, dict):
        return BLOCK
    groups = stored.get("config_groups") or {}
    structures = [
        (group.get("weights") or {}).get("block_structure")
        for group in (groups.values() if isinstance(groups, dict) else ())
        if isinstance(group, dict) and isinstance(group.get("weights") or {}, dict)
    ]
    for size in (stored.get("weight_block_size"), *structures):
        if isinstance(size, list) and len(size) == 2 and all(type(each) is int and each > 0 for each in size):
            return size[0], size[1]
    return BLOCK


def dequantized(folder: Path, weights: Mapping[str, Tensor], block: tuple[int, int]) -> dict[str, Tensor]:
    """Return weights without FP8: matrices (out, in) times their scales, in the precision of the other weights.

    A scale is one number, one per row (out, 1), or one per block of rows and columns. Raises MissingAsset, naming the weight,
    for FP8 without a scale, and for a scale of another shape.
    """
    if not any(_is_fp8(weight) for weight in weights.values()):
        return dict(weights)
    plain = [weight.dtype for name, weight in weights.items() if weight.dtype in FLOATS and "_scale" not in name]
    dtype, found = (plain[0] if plain else torch.bfloat16), dict[str, Tensor]()
    for name, weight in weights.items():
        of = weights.get(name.rsplit("_scale", 1)[0]) if name.endswith((BLOCK_SCALE, SCALE)) else None
        if name.endswith(OF_INPUTS) or (of is not None and _is_fp8(of)):
            continue
        if not _is_fp8(weight):
            found[name] = weight
            continue
        scale = next((weights[name + end] for end in (BLOCK_SCALE, SCALE) if name + end in weights), None)
        if scale is None:
            raise MissingAsset(f"{folder}: {name} is of type {_short(weight.dtype)}, and has no {name}{SCALE}")
        if not bool(scale.float().isfinite().all()):  # before it makes the product so
            raise MissingAsset(f"{folder}: the scale of {name} has NaN or infinite values")
        found[name] = (weight.float() * _spread(folder, name, scale.float(), weight.shape, block)).to(dtype)
    return found


def _spread(folder: Path, name: str, scale: Tensor, shape: torch.Size, block: tuple[int, int]) -> Tensor:
    """Return scales that a weight of this shape is multiplied by."""
    if scale.numel() == 1:
        return scale.reshape(())
    rows, columns = shape if len(shape) == 2 else (shape[0], 1)
    if scale.numel() == rows and scale.shape[0] == rows:
        return scale.reshape(rows, *(1 for _ in shape[1:]))
    if tuple(scale.shape) != (-(-rows // block[0]), -(-columns // block[1])) or len(shape) != 2:
        raise MissingAsset(
            f"{folder}: the scale of {name} has shape {tuple(scale.shape)}, and the weight {tuple(shape)} in blocks of"
            f" {block[0]} x {block[1]}"
        )
    return scale.repeat_interleave(block[0], 0)[:rows].repeat_interleave(block[1], 1)[:, :columns]


def _is_fp8(weight: Tensor) -> bool:
    return weight.is_floating_point() and weight.element_size() == 1


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def require_finite(where: Path, weights: Mapping[str, Tensor]) -> None:
    """Raise MissingAsset, naming the weight, for NaN and infinite values, and for values with which products overflow."""
    for name, weight in weights.items():
        if not weight.is_floating_point() or not weight.numel():
            continue
        largest = float((weight.float() if _is_fp8(weight) else weight).abs().max())  # NaN if one is
        if not math.isfinite(largest):
            raise MissingAsset(f"{where}: {name} has NaN or infinite values")
        if largest > LARGEST:
            raise MissingAsset(f"{where}: {name} has the value {largest:.0e}; weights are at most {LARGEST:.0e}")


def require_fit(where: str, module: nn.Module, weights: Mapping[str, Tensor], optional: str = "") -> None:
    """Raise MissingAsset, naming them, for weights that are missing, unexpected, of another shape or no floating point.

    `module`, which may be on the meta device, has the shapes. It may have names with `optional` that the files lack.
    """
    shapes = {name: tuple(weight.shape) for name, weight in module.state_dict().items()}
    missing = [name for name in shapes if name not in weights and not (optional and optional in name)]
    unexpected = [name for name in weights if name not in shapes]
    if missing or unexpected:
        parts = [
            f"{kind} {', '.join(names[:MAX_LISTED])}"
            + (f" and {len(names) - MAX_LISTED} more" if names[MAX_LISTED:] else "")
            for kind, names in (("missing", sorted(missing)), ("unexpected", sorted(unexpected)))
            if names
        ]
        raise MissingAsset(f"{where}: {'; '.join(parts)}")
    for name, weight in weights.items():
        if tuple(weight.shape) != shapes[name]:
            raise MissingAsset(f"{where}: {name} has shape {tuple(weight.shape)}, and its config gives {shapes[name]}")
        if weight.dtype not in FLOATS:
            raise MissingAsset(
                f"{where}: {name} is of type {_short(weight.dtype)}, and a floating-point type is needed"
            )
