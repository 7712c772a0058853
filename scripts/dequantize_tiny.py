"""`make tiny`: the 4-bit copy of the bundled target with its weights dequantized, for installations without torchao.

The copy has the rounded weights of `quantization = "int4"` in bfloat16, so it stores and reads as much as the target. The
EAGLE head is the one that was trained for the 4-bit copy, with the dequantized copy as its base.
"""

import json
import shutil
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from specbench.config.options import Options
from specbench.models.quantization import layers, quantized
from specbench.models.resolve_models import Execution, resolve_models
from specbench.resolution.selection import read_pair

TINY = Path(__file__).parents[1] / "specbench" / "tiny"
TARGET, COPY = TINY / "models" / "target", TINY / "models" / "target-dequantized"
HEAD, COPIED_HEAD = TINY / "heads" / "eagle-int4", TINY / "heads" / "eagle-dequantized"


def main() -> None:
    model = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)
    with torch.no_grad():
        for layer in layers(model, "int4").values():
            layer.weight.copy_(quantized(layer, "int4").product(torch.eye(layer.in_features)).t())
    model.to(torch.bfloat16).save_pretrained(COPY)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TARGET / name, COPY)
    _copy_head()


def _copy_head() -> None:
    """Copy the head, and name the dequantized copy as its base."""
    preset, pair = read_pair("tiny-dequantized", Options(heads=()))
    (base,) = resolve_models(pair, ("middle",), preset.path.parent, Execution(torch.device("cpu"), "auto")).values()
    shutil.copytree(HEAD, COPIED_HEAD, dirs_exist_ok=True)
    path = COPIED_HEAD / "model.safetensors"
    with safe_open(path, "pt") as file:
        metadata = dict(file.metadata() or {})
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (file is not a dict)
    provenance = json.loads(metadata["specbench"])
    inner = provenance.get("provenance", provenance)
    inner["base"] = base.identity
    save_file(weights, path, metadata={**metadata, "specbench": json.dumps(provenance, ensure_ascii=False)})


if __name__ == "__main__":
    main()
