"""EAGLE-3 and DFlash heads in speculators' layout against the forward of speculators' own draft models.

Skipped unless SPECBENCH_SPECULATORS names the python of an environment with scripts/speculators/requirements.txt. The package
computes in a process of its own (`speculators_reference.py`), from the same checkpoint and the same states of the base.
"""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaForCausalLM

from specbench.models.heads import BlockSession, DFlashHead, EagleHead, EagleSession
from tests.fixtures.worlds import open_session
from tests.models import test_block_heads as blocks
from tests.models import test_eagle3 as eagle3
from tests.models.test_eagle3 import LAYOUTS, V, base_model

PYTHON = os.environ.get("SPECBENCH_SPECULATORS")
pytestmark = pytest.mark.skipif(not PYTHON, reason="SPECBENCH_SPECULATORS names no python")
PROGRAM = Path(__file__).with_name("speculators_reference.py")

IDS, DEPTH, LENGTH = [3, 8, 1, 22, 9, 5], 4, 4
ATTENTION = ("eager", "sdpa", "flex")
DTYPES = {"float32": torch.float32, "float64": torch.float64}
# Largest differences of logits measured: EAGLE-3 1.9e-5 and 5.4e-6, DFlash 3.6e-6 and 1.0e-6, where logits reach 7. In
# float64 too, the package computes norms and rotary angles in float32
ATOL = {"float32": 1e-4, "float64": 2e-5}


def speculators(layout: eagle3.Layout, options: str = "", **keys: Any) -> eagle3.Layout:
    config = {"speculators_model_type": "eagle3"} | keys
    return replace(layout, config=config, layer="layers.0.", options=frozenset(options.split()))


PLAIN = eagle3.Layout({})
EAGLE3 = {
    "normed residual": speculators(PLAIN, norm_before_residual=True),
    "plain residual": speculators(PLAIN, norm_before_residual=False),
    "states normed together, normed features": speculators(
        LAYOUTS["speculators"], "input_norm", norm_before_residual=True, norm_before_fc=True, norm_output=True,
        eagle_aux_hidden_state_layer_ids=[1, 5, 8],
    ),
    "each state normed": speculators(PLAIN, "fc_norm", norm_before_residual=False, fc_norm=True),
    "Qwen3's layer, whole vocabulary, own embedding": speculators(
        replace(PLAIN, tokens=None), "head_norms embedding", norm_before_residual=True
    ),
}  # fmt: skip
DFLASH = {
    "part of the vocabulary": blocks.LAYOUTS["speculators"],
    "the base's LM head": replace(blocks.LAYOUTS["speculators"], tokens=None),
}


class World(NamedTuple):
    """A head with its base, in one dtype, and what the package computed from the same files."""

    head: Any
    model: LlamaForCausalLM
    tokens: list[int]  # that follow IDS
    package: dict[str, Tensor]


def complete(folder: Path, base: Path, kind: str, known: int, layer: dict[str, Any], keys: dict[str, Any]) -> None:
    """Add to a head's config what the package requires besides what specbench reads."""
    config = json.loads((folder / "config.json").read_text())
    config |= {"draft_vocab_size": known, "architectures": ["Speculator"]} | keys
    config["transformer_layer_config"] |= layer
    config["speculators_config"] = {
        "algorithm": kind, "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 4}],
        "default_proposal_method": "greedy",
        "verifier": {"name_or_path": str(base), "architectures": ["LlamaForCausalLM"]},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))


def write_eagle3(name: str, folder: Path, base: Path) -> None:
    layout = EAGLE3[name]
    eagle3.write(layout, folder)
    known = V if layout.tokens is None else len(layout.tokens)
    kind = "qwen3" if "head_norms" in layout.options else "llama"
    complete(folder, base, "eagle3", known, {"model_type": kind}, {})


def write_dflash(name: str, folder: Path, base: Path) -> None:
    layout = DFLASH[name]
    blocks.write(layout, folder)
    known = V if layout.tokens is None else len(layout.tokens)
    complete(folder, base, "dflash", known, {"model_type": "qwen3", "num_hidden_layers": layout.layers}, {})
    if layout.tokens is not None:  # the package needs it beside d2t
        path, known_tokens = folder / "model.safetensors", torch.tensor(layout.tokens)
        t2d = torch.zeros(V, dtype=torch.bool).index_fill_(0, known_tokens, True)
        save_file(load_file(path) | {"t2d": t2d}, path)


def states_of(model: LlamaForCausalLM, ids: list[int], aux_layers: tuple[int, ...]) -> dict[str, Tensor]:
    """Return the states of a base as the package numbers and joins them."""
    with torch.no_grad():
        every = model(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states
    states = torch.cat([every[layer][0] for layer in aux_layers], -1)
    return {"input_ids": torch.tensor(ids), "hidden_states": states, "last_hidden_states": every[-1][0].clone()}


@pytest.fixture(scope="module")
def worlds(tmp_path_factory) -> dict[tuple[str, str], World]:
    """Every layout in every dtype, by (layout, dtype), for one run of the package."""
    place, base = tmp_path_factory.mktemp("speculators"), tmp_path_factory.mktemp("base")
    base_model().save_pretrained(base)
    jobs, made = [], dict[tuple[str, str], tuple[Any, LlamaForCausalLM, list[int], Path]]()
    for name in (*EAGLE3, *DFLASH):
        folder = place / name
        (write_eagle3 if name in EAGLE3 else write_dflash)(name, folder, base)
        for dtype, of_torch in DTYPES.items():
            model = base_model().to(of_torch)
            read = EagleHead if name in EAGLE3 else DFlashHead
            head = read.read(folder).to(of_torch).goes_with(model.get_input_embeddings().weight, model.config)
            given, out = folder / f"{dtype}.input", folder / f"{dtype}.output"
            if name in EAGLE3:
                session = EagleSession(head, open_session(model), vocabulary=V)
                tokens, _ = eagle3.drafted(session, IDS, DEPTH)
                more: dict[str, Tensor] = {"steps": torch.tensor([DEPTH])}
            else:
                tokens = [7, 30, 2, 19, 4, 11, 26, 35, 1, 6]  # the package has no anchors in the last block
                more = {"anchors": torch.arange(1, len(IDS) + 2)}
            save_file(states_of(model, [*IDS, *tokens], head.aux_layers) | more, given)
            jobs += [folder, given, out]
            made[name, dtype] = head, model, tokens, out
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([PYTHON, PROGRAM, *jobs], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return {key: World(*world, load_file(out)) for key, (*world, out) in made.items()}


def assert_agree(record, ours: Tensor, package: Tensor, dtype: str, what: str) -> None:
    assert ours.shape == package.shape and ours.dtype == package.dtype == DTYPES[dtype]
    difference = (ours - package).abs().max().item()
    record(what, difference)
    assert difference <= ATOL[dtype], what


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", EAGLE3)
@pytest.mark.parametrize("attention", ATTENTION)
def test_eagle3_drafts_follow_the_package(worlds, name, dtype, attention, record_property):
    head, model, tokens, package = worlds[name, dtype]
    assert head.aux_layers == tuple(package["layers"].tolist())
    known, expected = package["tokens"], package[attention]
    if EAGLE3[name].tokens is not None:
        assert head.tokens is not None and torch.equal(head.tokens, known)
    for engine in ("lean", "eager"):
        session, n = EagleSession(head, open_session(model, engine), vocabulary=V), len(IDS)
        drawn, probs = eagle3.drafted(session, IDS, DEPTH)
        assert drawn == tokens
        rows = expected[:, n - 2]  # of the draft that begins after IDS
        assert_agree(record_property, probs[:, known], rows.softmax(-1), dtype, f"{engine}, probabilities")
        assert probs[:, known].sum(-1).allclose(torch.ones(DEPTH, dtype=probs.dtype))
        session = EagleSession(head, open_session(model, engine), vocabulary=V)
        for depth, ours in enumerate(session.score_drafts(IDS, tokens, DEPTH)):
            theirs = expected[depth, n - 2 : n - 2 + len(tokens) - depth]  # the draft begins `depth` tokens earlier
            assert_agree(record_property, ours[depth:, known], theirs, dtype, f"{engine}, drafted token {depth + 1}")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", DFLASH)
@pytest.mark.parametrize("attention", ATTENTION)
def test_dflash_blocks_follow_the_package(worlds, name, dtype, attention, record_property):
    head, model, tokens, package = worlds[name, dtype]
    assert head.aux_layers == tuple(package["layers"].tolist()) and head.block.length == LENGTH
    known, expected, ids = package["tokens"], package[attention], [*IDS, *tokens]
    for engine in ("lean", "eager"):
        session = BlockSession(head, open_session(model, engine), V)
        for block, anchor in zip(expected, range(1, len(IDS) + 2), strict=True):
            ours = session.block(ids[: anchor + 1], LENGTH).logits
            assert_agree(record_property, ours[:, known], block[1:], dtype, f"{engine}, anchor {anchor}")
