"""Write the draft logits of the draft models of the package speculators, for `test_speculators_reference`.

Runs in the environment of scripts/speculators/requirements.txt and imports nothing of specbench:
`python speculators_reference.py FOLDER INPUT OUTPUT [FOLDER INPUT OUTPUT ...]`.

FOLDER has config.json and model.safetensors in the layout of speculators; `speculators_config.verifier.name_or_path` names a
local folder with the base. INPUT is a safetensors file, whose dtype is the one computed in:

    input_ids           (N,)      the sequence
    hidden_states       (N, m H)  the inputs of the m layers that the head reads, at every token
    last_hidden_states  (N, H)    the base's last states; the package computes its targets from them, but no draft logits
    anchors             (A,)      DFlash: the positions of the first rows of blocks
    steps               (1,)      EAGLE-3: the number of tokens of a draft

OUTPUT has the logits, for each implementation of attention that runs on a CPU, over the draft vocabulary V':

    eager, sdpa, flex   EAGLE-3 (steps, N - 1, V'); DFlash (A, rows of a block, V')
    tokens              (V',)     the ids of the draft vocabulary
    layers              (m,)      the numbers of the layers that the head reads, as the package resolves them

The package's `forward` returns tokens and a loss. The logits are those that its own LM head returned within it. The steps of
EAGLE-3 are those of training (`ttt_steps`): row i of step s > 0 reads token i + 1 + s with the head's own feature.
"""

import os
import sys
from pathlib import Path

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # else the package compiles DFlash's masks for flex attention, which takes 20 s

import torch
from safetensors.torch import load_file, save_file
from speculators import SpeculatorModel, SpeculatorModelConfig
from speculators.losses import resolve_loss_config
from speculators.models.dflash import DFlashDraftModel
from speculators.models.eagle3 import Eagle3DraftModel
from speculators.models.eagle3.data import shift_batch
from torch import Tensor

IMPLEMENTATIONS = {"eager": "eager", "sdpa": "sdpa", "flex": "simple_flex_attention"}
FLEX_BLOCK = 128  # the package extends the masks of flex attention by whole blocks
OF_BASE = ("embed_tokens.weight", "lm_head.weight", "verifier_norm.weight", "verifier_lm_head.weight")


def main() -> None:
    jobs = [Path(argument) for argument in sys.argv[1:]]
    for folder, given, out in zip(jobs[::3], jobs[1::3], jobs[2::3], strict=True):
        inputs = load_file(given)
        results = dict[str, Tensor]()
        for name, attention in IMPLEMENTATIONS.items():
            model = load(folder, attention, inputs["hidden_states"].dtype)
            if isinstance(model, Eagle3DraftModel):
                results[name] = eagle3_logits(model, inputs, padded=name == "flex")
            else:
                results[name] = dflash_logits(model, inputs)
            known = model.lm_head.out_features
            results["tokens"] = torch.arange(known) if model.t2d is None else model.t2d.nonzero().squeeze(1)
            results["layers"] = torch.tensor(model.target_layer_ids)
        save_file({key: value.contiguous() for key, value in results.items()}, out)


def load(folder: Path, attention: str, dtype: torch.dtype) -> SpeculatorModel:
    """Return the draft model that the package loads, with its base's weights. Raises ValueError if it left a weight out."""
    config = SpeculatorModelConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = attention
    model = SpeculatorModel.from_pretrained(folder, config=config, dtype=dtype).eval()
    stored, loaded = load_file(folder / "model.safetensors"), model.state_dict()
    # Without this weight in the checkpoint, version 0.9.0 has uninitialized memory, and takes the base's only in place of NaN
    if "embed_tokens.weight" not in stored:
        torch.nn.init.constant_(model.embed_tokens.weight, torch.nan)
        model.load_verifier_weights()
    differing = [name for name, weight in stored.items() if name not in loaded or not is_loaded(weight, loaded[name])]
    random = [name for name in loaded if name not in stored and name not in OF_BASE]
    if differing or random or any(weight.isnan().any() for weight in loaded.values()):
        raise ValueError(f"{folder}: not loaded {differing}; not in the checkpoint {random}; or NaN")
    return model


def is_loaded(stored: Tensor, loaded: Tensor) -> bool:
    return torch.equal(stored.to(loaded.dtype), loaded)


@torch.no_grad()
def eagle3_logits(model: Eagle3DraftModel, inputs: dict[str, Tensor], padded: bool) -> Tensor:
    """Return logits (steps, N - 1, V') of the package's forward, on a batch that its own `shift_batch` aligns.

    `padded` adds positions of no document up to a whole block of flex attention.
    """
    n, steps = len(inputs["input_ids"]), int(inputs["steps"])
    batch = shift_batch({
        "input_ids": inputs["input_ids"], "hidden_states": inputs["hidden_states"],
        "verifier_last_hidden_states": inputs["last_hidden_states"], "loss_mask": torch.ones(n, dtype=torch.bool),
        "lengths": torch.tensor([n]), "position_ids": torch.arange(n),
    })  # fmt: skip
    pads = -(n - 1) % FLEX_BLOCK if padded else 0
    rows = {name: torch.nn.functional.pad(batch[name], (0, pads)) for name in ("input_ids", "position_ids")}
    states = torch.nn.functional.pad(batch["hidden_states"], (0, 0, 0, pads))
    document = torch.nn.functional.pad(torch.zeros(n - 1, dtype=torch.long), (0, pads), value=-1)
    seen = observed(model)
    model(
        hidden_states=states[None], input_ids=rows["input_ids"][None], document_ids=document[None],
        position_ids=rows["position_ids"][None], ttt_steps=steps,
    )  # fmt: skip
    return torch.cat(seen)[:, : n - 1]


@torch.no_grad()
def dflash_logits(model: DFlashDraftModel, inputs: dict[str, Tensor]) -> Tensor:
    """Return logits (A, rows of a block, V') of the package's forward, whose loss mask leaves it these anchors only."""
    n, anchors = len(inputs["input_ids"]), inputs["anchors"]
    seen = observed(model)
    model(
        hidden_states=inputs["hidden_states"][None], input_ids=inputs["input_ids"][None],
        loss_mask=torch.zeros(1, n).index_fill_(1, anchors, 1.0),
        verifier_last_hidden_states=inputs["last_hidden_states"][None],
        document_ids=torch.zeros(1, n, dtype=torch.long), max_anchors=len(anchors),
        loss_config=resolve_loss_config("kl_div", "eager"),  # the default is a kernel of Triton
    )  # fmt: skip
    return seen[0].view(len(anchors), model.block_size, -1)


def observed(model: SpeculatorModel) -> list[Tensor]:
    """Return a list that takes up what the LM head returns from now on."""
    seen = list[Tensor]()
    model.lm_head.register_forward_hook(lambda _module, _inputs, output: seen.append(output.clone()))
    return seen


if __name__ == "__main__":
    main()
