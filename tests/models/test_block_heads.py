"""DFlash and DSpark heads: published layouts, drafts against an independent computation, and the context of the session.

The reference computes the whole block from the formulas, in float64. It shares no code with the head.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaForCausalLM

from specbench.decoding.sampling import Sampler
from specbench.errors import ConfigError, MissingAsset
from specbench.methods.block_drafts import BlockDraft
from specbench.methods.proposers import Eagle
from specbench.methods.tree_drafts import Eagle2
from specbench.models.heads import BlockHead, BlockSession, DFlashHead, DSparkHead
from specbench.models.heads.block_session import ConfidenceCut
from specbench.models.heads.block_settings import default_aux_layers
from tests.fixtures.worlds import open_session
from tests.models.test_eagle3 import DIM, HEADS, KV, LAYER, NO_EOS, ROPE, WIDE, H, V, base_model, rms, rotated
from tests.models.test_eagle3 import Layout as _Rope

MASK, RANK = 39, 5


@dataclass
class Layout:
    """A published layout: its config, and what the reference computes for it."""

    config: dict[str, Any]
    aux_layers: tuple[int, ...]
    from_anchor: bool
    length: int = 4
    tokens: tuple[int, ...] | None = None
    own_head: bool = False
    markov: str = ""
    confidence: bool = False
    norms_heads: bool = True
    layers: int = 2


DEEPSPEC = {
    "architectures": ["Qwen3DSparkModel"], "block_size": 4, "target_layer_ids": [1, 4, 6], "mask_token_id": MASK,
}  # fmt: skip
MARKOV = {"markov_rank": RANK, "enable_confidence_head": True, "confidence_head_with_markov": True}
LAYOUTS = {
    "z-lab": Layout(
        {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "block_size": 5,
         "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [0, 3, 7]}},
        aux_layers=(1, 4, 8), from_anchor=False,
    ),
    "z-lab, all keys nested": Layout(
        {"architectures": ["DFlashDraftModel"],
         "dflash_config": {"mask_token_id": MASK, "block_size": 5, "target_layer_ids": [1, 4, 6]}},
        aux_layers=(2, 5, 7), from_anchor=False, norms_heads=False,
    ),
    "speculators": Layout(
        {"speculators_model_type": "dflash", "aux_hidden_state_layer_ids": [1, 2, 8], "mask_token_id": MASK, "block_size": 5},
        aux_layers=(1, 2, 8), from_anchor=False, tokens=(0, 2, 3, 5, 8, 13, 21, 34, 38),
    ),
    "DeepSpec, DFlash": Layout(
        DEEPSPEC | {"markov_rank": 0},
        aux_layers=(2, 5, 7), from_anchor=True, own_head=True,
    ),
    "DeepSpec, DSpark": Layout(
        DEEPSPEC | MARKOV,
        aux_layers=(2, 5, 7), from_anchor=True, own_head=True, markov="vanilla", confidence=True,
    ),
    "DSpark, gated": Layout(
        DEEPSPEC | MARKOV,
        aux_layers=(2, 5, 7), from_anchor=True, markov="gated",
    ),
    "DSpark, rnn": Layout(
        DEEPSPEC | MARKOV,
        aux_layers=(2, 5, 7), from_anchor=True, markov="rnn",
    ),
}  # fmt: skip


def write(layout: Layout, folder: Path) -> dict[str, Tensor]:
    """Write a checkpoint with random weights, which are returned."""
    torch.manual_seed(7)
    known = V if layout.tokens is None else len(layout.tokens)
    shapes = {"fc": (H, len(layout.aux_layers) * H), "hidden_norm": (H,), "norm": (H,)}
    for i in range(layout.layers):
        at = f"layers.{i}."
        shapes |= {
            f"{at}self_attn.q_proj": (HEADS * DIM, H), f"{at}self_attn.k_proj": (KV * DIM, H),
            f"{at}self_attn.v_proj": (KV * DIM, H), f"{at}self_attn.o_proj": (H, HEADS * DIM),
            f"{at}mlp.gate_proj": (WIDE, H), f"{at}mlp.up_proj": (WIDE, H), f"{at}mlp.down_proj": (H, WIDE),
            f"{at}input_layernorm": (H,), f"{at}post_attention_layernorm": (H,),
        }  # fmt: skip
        if layout.norms_heads:
            shapes |= {f"{at}self_attn.q_norm": (DIM,), f"{at}self_attn.k_norm": (DIM,)}
    if layout.own_head or layout.tokens:
        shapes["lm_head"] = (known, H)
    if layout.own_head:
        shapes["embed_tokens"] = (V, H)
    if layout.markov:
        shapes |= {"markov_head.markov_w1": (V, RANK), "markov_head.markov_w2": (known, RANK)}
    if layout.markov == "gated":
        shapes["markov_head.gate_proj"] = (RANK, H + RANK)
    if layout.markov == "rnn":
        shapes["markov_head.joint_proj"] = (3 * RANK, 2 * RANK + H)
    if layout.confidence:
        shapes["confidence_head.proj"] = (1, H + RANK)
    weights = {
        f"{name}.weight": torch.randn(shape, dtype=torch.float64) * 0.3 + (len(shape) == 1)
        for name, shape in shapes.items()
    }
    if layout.confidence:
        weights["confidence_head.proj.bias"] = torch.zeros(1, dtype=torch.float64)
    stored = dict(weights)
    if layout.tokens is not None:
        stored["d2t"] = torch.tensor(layout.tokens) - torch.arange(known)
    folder.mkdir(exist_ok=True)
    layer = LAYER | ROPE
    is_nested = "speculators_model_type" in layout.config
    table = layout.config | ({"transformer_layer_config": layer} if is_nested else layer)
    (folder / "config.json").write_text(json.dumps(table))
    save_file(stored, folder / "model.safetensors")
    return weights


class Reference:
    """A block drafter's logits, from the formulas."""

    def __init__(self, layout: Layout, weights: dict[str, Tensor], model: LlamaForCausalLM) -> None:
        self.layout, self.w, self.model = layout, weights, model
        own = weights.get("embed_tokens.weight")
        self.embedding = model.get_input_embeddings().weight.detach() if own is None else own

    def heads(self, layer: int, name: str, x: Tensor, position: int) -> Tensor:
        at = f"layers.{layer}.self_attn."
        out = (self.w[f"{at}{name}_proj.weight"] @ x).view(-1, DIM)
        if name == "v":
            return out
        if self.layout.norms_heads:
            out = rms(out, self.w[f"{at}{name}_norm.weight"])
        return rotated(out, position, _Rope({}))

    def rows(self, ids: list[int], k: int) -> Tensor:
        """What the LM head reads for k tokens after ids, (k, H)."""
        w, context = self.w, ids[:-1]
        with torch.no_grad():
            every = self.model(input_ids=torch.tensor([context]), output_hidden_states=True).hidden_states
        states = torch.cat([every[layer][0] for layer in self.layout.aux_layers], -1)
        entries = rms(states @ w["fc.weight"].T, w["hidden_norm.weight"])
        block = [ids[-1]] + [MASK] * (k if not self.layout.from_anchor else k - 1)
        x, first = self.embedding[torch.tensor(block)], len(context)
        for i in range(self.layout.layers):
            at = f"layers.{i}."
            y = rms(x, w[f"{at}input_layernorm.weight"])
            read = [*((entry, t) for t, entry in enumerate(entries)), *((row, first + j) for j, row in enumerate(y))]
            keys = torch.stack([self.heads(i, "k", each, t) for each, t in read]).repeat_interleave(HEADS // KV, 1)
            values = torch.stack([self.heads(i, "v", each, t) for each, t in read]).repeat_interleave(HEADS // KV, 1)
            out = []
            for j, row in enumerate(y):
                q = self.heads(i, "q", row, first + j)
                weights = ((keys * q).sum(-1) / DIM**0.5).softmax(0)
                out.append(w[f"{at}self_attn.o_proj.weight"] @ (weights[..., None] * values).sum(0).flatten())
            x = x + torch.stack(out)
            y = rms(x, w[f"{at}post_attention_layernorm.weight"])
            gate = torch.nn.functional.silu(y @ w[f"{at}mlp.gate_proj.weight"].T)
            x = x + (gate * (y @ w[f"{at}mlp.up_proj.weight"].T)) @ w[f"{at}mlp.down_proj.weight"].T
        x = rms(x, w["norm.weight"])
        return x if self.layout.from_anchor else x[1:]

    def probs(self, ids: list[int], drafted: list[int]) -> Tensor:
        """The distribution (k, V) of each drafted token, given those before it."""
        rows, w = self.rows(ids, len(drafted)), self.w
        head = w.get("lm_head.weight", self.model.get_output_embeddings().weight.detach())
        state, out = torch.zeros(RANK, dtype=torch.float64), []
        for row, before in zip(rows, [ids[-1], *drafted], strict=False):
            logits = head @ row
            if self.layout.markov:
                w1 = w["markov_head.markov_w1.weight"][before]
                if self.layout.markov == "gated":
                    w1 = (w["markov_head.gate_proj.weight"] @ torch.cat([row, w1])).sigmoid() * w1
                if self.layout.markov == "rnn":
                    gate, new, o = (w["markov_head.joint_proj.weight"] @ torch.cat([state, w1, row])).chunk(3)
                    state = gate.sigmoid() * state + (1 - gate.sigmoid()) * new.tanh()
                    w1 = o.tanh()
                logits = logits + w["markov_head.markov_w2.weight"] @ w1
            if self.layout.tokens is not None:
                known = torch.tensor(self.layout.tokens)
                logits = torch.full((V,), -torch.inf, dtype=logits.dtype).index_copy_(0, known, logits)
            out.append(logits.softmax(-1))
        return torch.stack(out)


def read(layout: Layout, folder: Path) -> BlockHead:
    return (DSparkHead if layout.markov else DFlashHead).read(folder)


@pytest.fixture(scope="module", params=LAYOUTS)
def world(request, tmp_path_factory):
    layout, model = LAYOUTS[request.param], base_model()
    folder = tmp_path_factory.mktemp("head")
    reference = Reference(layout, write(layout, folder), model)
    head = read(layout, folder).double().goes_with(model.get_input_embeddings().weight, model.config)
    return head, model, reference


def drafted(
    session: BlockSession, ids: list[int], k: int, seed: int = 0, threshold: float = 0.0
) -> tuple[list[int], Tensor]:
    sampler = Sampler(1.0, generator=torch.Generator().manual_seed(seed))
    draft = session.draft(ids, k, sampler, NO_EOS, ConfidenceCut(threshold=threshold))
    return draft.tokens, draft.probs


def test_the_layout_is_read(world):
    head, _, reference = world
    layout = reference.layout
    assert (head.aux_layers, head.block.from_anchor, head.block.length) == (
        layout.aux_layers,
        layout.from_anchor,
        layout.length,
    )
    assert (head.markov is not None) == bool(layout.markov) and (head.confidence is not None) == layout.confidence


def test_drafts_follow_the_reference_after_a_prompt_and_after_rejections(world):
    head, model, reference = world
    for engine in ("lean", "eager"):
        session, ids = BlockSession(head, open_session(model, engine), V), [3, 8, 1, 22]
        for turn in range(4):
            tokens, probs = drafted(session, ids, 4, turn)
            torch.testing.assert_close(probs, reference.probs(ids, tokens), atol=1e-5, rtol=0)
            ids = [*ids, *tokens[:turn], (tokens[turn] + 1) % V]  # `turn` tokens accepted, and a replacement


def test_a_draft_is_one_forward_and_a_context_entry_is_computed_once(world):
    head, model, _ = world
    base = open_session(model)
    session = BlockSession(head, base, V)
    tokens, _ = drafted(session, [3, 8, 1, 22], 4)
    assert base.usage.forwards + session.usage.forwards <= 2
    before = session.usage.forwards
    base.score([3, 8, 1, 22, *tokens], 3)
    drafted(session, [3, 8, 1, 22, *tokens[:2], 30], 4)
    assert session.usage.forwards == before + 1


def test_equal_committed_tokens_give_equal_drafts_whatever_was_rejected(world):
    head, model, _ = world
    rows = []
    for other in (5, 17):
        session = BlockSession(head, open_session(model), V)
        drafted(session, [3, 8, other], 4)
        rows.append(drafted(session, [3, 8, 1, 22], 4)[1])
    assert torch.equal(*rows)


def test_a_draft_ends_before_a_token_of_low_confidence(tmp_path):
    layout, model = LAYOUTS["DeepSpec, DSpark"], base_model()
    weights = write(layout, tmp_path)
    head = DSparkHead.read(tmp_path).double().goes_with(model.get_input_embeddings().weight, model.config)
    ids = [3, 8, 1, 22]
    tokens, _ = drafted(BlockSession(head, open_session(model), V), ids, 4)
    rows = Reference(layout, weights, model).rows(ids, 4)
    w, w1 = weights["confidence_head.proj.weight"][0], weights["markov_head.markov_w1.weight"]
    confidence = [
        float((w @ torch.cat([row, w1[before]])).sigmoid())
        for row, before in zip(rows, [ids[-1], *tokens], strict=False)
    ]
    for threshold in (0.001, 0.3, 0.5, 0.7, 0.999):
        expected = next((i for i, each in enumerate(confidence) if each < threshold), 4)
        assert drafted(BlockSession(head, open_session(model), V), ids, 4, 0, threshold)[0] == tokens[:expected]


@pytest.mark.parametrize(
    ("layers", "count", "outputs"),
    [
        (36, 5, (1, 9, 17, 25, 33)), (32, 5, (1, 8, 15, 22, 29)), (40, 5, (1, 10, 19, 28, 37)),
        (64, 5, (1, 16, 31, 46, 61)), (28, 5, (1, 7, 13, 19, 25)), (30, 5, (1, 8, 14, 20, 27)), (36, 1, (18,)),
    ],
)  # fmt: skip
def test_default_layers(layers, count, outputs):
    assert default_aux_layers(layers, count) == tuple(layer + 1 for layer in outputs)


FIVE = {"mask_token_id": MASK, "block_size": 5, "target_layer_ids": [1, 4, 6]}


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        (FIVE | {"mask_token_id": 40}, ConfigError, "mask_token_id is 40, and the embedding has 40 rows"),
        ({"mask_token_id": MASK}, MissingAsset, r"dflash_config\.block_size is missing"),
        ({"block_size": 5}, MissingAsset, r"dflash_config\.mask_token_id is missing"),
        (FIVE | {"causal": True}, MissingAsset, r"dflash_config\.causal is True, which is not supported"),
        (
            FIVE | {"target_layer_ids": [1, 3, 8]}, ConfigError,
            "target_layer_ids names layer 8; heads read the outputs of layers 0 to 7 of a base with 9 layers",
        ),
    ],
)  # fmt: skip
def test_a_head_that_does_not_fit_is_an_error_that_names_the_key(config, error, message, tmp_path):
    architecture = {"architectures": ["DFlashDraftModel"]}
    write(Layout(architecture | {"dflash_config": config}, aux_layers=(2, 5, 7), from_anchor=False), tmp_path)
    model = base_model()
    with pytest.raises(error, match=message):
        DFlashHead.read(tmp_path).goes_with(model.get_input_embeddings().weight, model.config)


def test_another_drafter_is_named(tmp_path):
    write(Layout({"architectures": ["LlamaForCausalLMEagle3"]}, aux_layers=(2, 5, 7), from_anchor=False), tmp_path)
    with pytest.raises(MissingAsset, match="holds an EAGLE-3 head; the kind 'dflash' reads a DFlash drafter"):
        DFlashHead.read(tmp_path)


def test_a_dspark_drafter_is_not_read_as_dflash(tmp_path):
    write(LAYOUTS["DeepSpec, DSpark"], tmp_path)
    with pytest.raises(MissingAsset, match="holds a DSpark drafter; the kind 'dflash' reads a DFlash drafter"):
        DFlashHead.read(tmp_path)


def test_a_draft_that_is_longer_than_the_head_s_blocks_is_an_error_before_decoding(tmp_path):
    write(LAYOUTS["DeepSpec, DSpark"], tmp_path)
    head = DSparkHead.read(tmp_path)
    BlockDraft(head="dspark", base="target", gamma=head.block.length).require_heads({"dspark": head})
    with pytest.raises(
        ConfigError, match=r"gamma = 9, and the head 'dspark' drafts blocks of \d tokens .*; help: --gamma \d"
    ):
        BlockDraft(head="dspark", base="target", gamma=9).require_heads({"dspark": head})


def test_a_head_of_another_kind_is_an_error_before_decoding(tmp_path):
    write(LAYOUTS["DeepSpec, DSpark"], tmp_path)
    heads = {"dspark": DSparkHead.read(tmp_path)}
    for proposer in (Eagle(head="dspark", base="target"), Eagle2(head="dspark", base="target")):
        with pytest.raises(ConfigError, match="is a dspark head; this proposer needs one of eagle, eagle3, mtp"):
            proposer.require_heads(heads)


def test_an_unknown_weight_is_an_error(tmp_path):
    write(LAYOUTS["z-lab"], tmp_path)
    weights = load_file(tmp_path / "model.safetensors") | {"encoder.fc.weight": torch.zeros(2, 2)}
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(MissingAsset, match=r"unexpected encoder\.fc\.weight"):
        DFlashHead.read(tmp_path)
