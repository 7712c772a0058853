"""Broken checkpoints: weights, configs and tokenizers that are missing, cut, renamed or resized."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from tests.faults.attack import Outcome, here

WAYS = (
    "drop a tensor", "rename all", "rename one", "more layers", "fewer layers", "another type", "cut weights",
    "empty weights", "noise in the header", "resize a tensor", "config value", "tokenizer", "no weights",
)  # fmt: skip
SIZES = (
    "hidden_size",
    "num_attention_heads",
    "num_hidden_layers",
    "vocab_size",
    "intermediate_size",
    "num_key_value_heads",
)
RUN = [
    "run",
    "-m",
    "ar",
    "-p",
    "pair.toml",
    "-t",
    "prompts",
    "--data",
    "rows.jsonl",
    "--repeats",
    1,
    "--max-new-tokens",
    4,
]


def broken(trials: int, seed: int, folder: Path) -> Outcome:
    """Break a copy of the bundled target model: it is rejected in one line, or what it decodes is marked as failed."""
    from specbench.config.pair import PACKAGE

    outcome = Outcome()
    for trial in range(trials):
        rng, where = random.Random(f"{seed}:{trial}"), folder / f"trial-{trial}"
        shutil.copytree(PACKAGE / "tiny" / "models" / "target", where / "target")
        (where / "pair.toml").write_text('[models.target]\npath = "target"\n')
        (where / "rows.jsonl").write_text('{"prompt": "One two"}\n')
        way = WAYS[trial % len(WAYS)]
        harmless = _break(where / "target", way, rng)
        outcome.add(f"{way}, trial {trial}", here(RUN, where).problems({0, 2, 3, 4} if harmless else {2, 4}))
        shutil.rmtree(where)
    return outcome


def _break(model: Path, way: str, rng: random.Random) -> bool:
    """Break a model. Returns whether it may still decode."""
    weights = model / "model.safetensors"
    data, tensors = weights.read_bytes(), load_file(weights)
    name = rng.choice(sorted(tensors))
    if way in ("drop a tensor", "rename all", "rename one", "resize a tensor"):
        kept: dict[str, Any] = dict(tensors)
        if way == "rename all":
            kept = {f"x.{key}": value for key, value in tensors.items()}
        else:
            tensor = kept.pop(name)
        if way == "rename one":
            kept[f"{name}.x"] = tensor
        if way == "resize a tensor":
            kept[name] = tensor[: len(tensor) // 2].contiguous()
        save_file(kept, weights, metadata={"format": "pt"})
        return False
    if way in ("cut weights", "empty weights", "noise in the header"):
        cut = {"cut weights": data[: rng.randrange(len(data))], "empty weights": b""}
        weights.write_bytes(cut.get(way, data[:20] + rng.randbytes(20) + data[40:]))
        return False
    if way == "no weights":
        weights.unlink()
        return False
    if way == "tokenizer":
        (model / "tokenizer.json").write_text(rng.choice(["{}", "[]", "", '{"version": 1}', "\x00"]))
        return False
    config = json.loads((model / "config.json").read_text())
    changes = {
        "more layers": {"num_hidden_layers": 9},
        "fewer layers": {"num_hidden_layers": 1},
        "another type": {"model_type": "bert"},
    }
    value = {rng.choice(SIZES): rng.choice([0, -5, 7, "x", None, 1.5, 10**6])}
    (model / "config.json").write_text(json.dumps(config | changes.get(way, value)))
    return way == "config value"
