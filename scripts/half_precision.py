"""Store the weights of safetensors files in half precision: `python -m scripts.half_precision FILE...`."""

import sys
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file


def main(paths: list[str]) -> None:
    """Rewrite each file. Integers stay as they are."""
    for path in map(Path, paths):
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (file is not a dict)
        halves = {name: w.to(torch.float16) if w.is_floating_point() else w for name, w in weights.items()}
        save_file(halves, path, metadata=metadata)


if __name__ == "__main__":
    main(sys.argv[1:])
