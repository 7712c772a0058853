"""EAGLE-3 heads: published layouts, logits against an independent computation, and drafts of the session.

The reference computes one entry after the other, in float64, from the formulas of the paper. It shares no code with the head.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from specbench.decoding.sampling import Sampler
from specbench.decoding.targets.target import Last
from specbench.errors import ConfigError, MissingAsset
from specbench.methods.proposers import Eagle
from specbench.methods.speculative import Speculative
from specbench.models.heads import Eagle3Head, EagleHead, EagleSession
from specbench.models.heads.eagle3_settings import default_aux_layers
from tests.fixtures.worlds import decode, open_models, open_session

H, V, LAYERS, DIM, HEADS, KV, WIDE = 32, 40, 9, 8, 4, 2, 48
NO_EOS = frozenset[int]()
LAYER = {
    "hidden_size": H, "num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": DIM, "intermediate_size": WIDE,
    "rms_norm_eps": 1e-6, "max_position_embeddings": 64, "vocab_size": V, "hidden_act": "silu", "num_hidden_layers": 1,
}  # fmt: skip
ROPE = {"rope_theta": 10000.0}
YARN = {
    "rope_theta": 10000.0,
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
}


@dataclass
class Layout:
    """A published layout: its config, names and options, and what the reference computes for it."""

    config: dict[str, Any]
    aux_layers: tuple[int, ...] = (2, 4, 6)
    layer: str = "midlayer."
    tokens: tuple[int, ...] | None = (0, 2, 3, 5, 8, 13, 21, 34, 39)
    options: frozenset[str] = frozenset()  # extra weights
    adds_normed: bool = False
    returns_normed: bool = False
    files: str = "safetensors"
    window: int | None = None
    rope: dict[str, Any] = field(default_factory=lambda: ROPE)


LAYOUTS = {
    "SafeAILab": Layout({"draft_vocab_size": 9, "model_type": "llama"}, files="bin"),
    "SafeAILab, whole vocabulary": Layout({"draft_vocab_size": V, "architectures": ["LlamaForCausalLMEagle3"]}, tokens=None),
    "SpecForge": Layout(
        {"architectures": ["LlamaForCausalLMEagle3"], "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 7]}},
        aux_layers=(2, 4, 8),
    ),
    "SpecForge, several files": Layout({"architectures": ["LlamaForCausalLMEagle3"]}, files="sharded"),
    "speculators": Layout(
        {"speculators_model_type": "eagle3", "eagle_aux_hidden_state_layer_ids": [1, 5, 8], "norm_output": True,
         "speculators_config": {"verifier": {"name_or_path": "base"}}},
        aux_layers=(1, 5, 8), layer="layers.0.", adds_normed=True, returns_normed=True,
        options=frozenset({"input_norm"}),
    ),
    "speculators, each state normed": Layout(
        {"speculators_model_type": "eagle3", "norm_before_residual": False}, layer="layers.0.",
        options=frozenset({"fc_norm"}),
    ),
    "DeepSpec": Layout(
        {"architectures": ["Qwen3Eagle3Model"], "model_type": "qwen3", "target_layer_ids": [0, 1, 3, 5, 7]},
        aux_layers=(1, 2, 4, 6, 8), layer="layers.0.", tokens=None, options=frozenset({"head_norms", "embedding"}),
    ),
    "NVIDIA": Layout(
        {"architectures": ["LlamaForCausalLMEagle3"], "eagle_config": {"norm_before_fc": True}},
        options=frozenset({"input_norm"}),
    ),
    "NVIDIA, without aux_layers": Layout(
        {"architectures": ["LlamaForCausalLMEagle3"], "eagle_config": {"use_aux_hidden_state": False}}, aux_layers=(),
    ),
    "SpecForge, EAGLE-3.1": Layout(
        {"architectures": ["LlamaForCausalLMEagle3"], "fc_norm": True, "norm_output": True}, returns_normed=True,
        options=frozenset({"fc_norm"}),
    ),
    "SpecForge, norm_output off": Layout({"architectures": ["LlamaForCausalLMEagle3"], "norm_output": False}),
    "speculators, sliding window": Layout(
        {"speculators_model_type": "eagle3"}, layer="layers.0.", adds_normed=True, window=3,
    ),
    "nebius": Layout({"architectures": ["LlamaForCausalLM"], "truncated_vocab_size": 9, "draft_vocab_size": 9}, rope=YARN),
}  # fmt: skip


def base_model(seed: int = 1) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        **LAYER | {"num_hidden_layers": LAYERS},
        eos_token_id=None,
        bos_token_id=None,
        architectures=["LlamaForCausalLM"],
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(0.0, 0.25)
            else:
                weight += 0.25 * torch.randn(weight.shape)
    return model.double().eval()


def weights_of(layout: Layout) -> dict[str, Tensor]:
    """Random weights in float64, by SafeAILab's names."""
    torch.manual_seed(5)
    states = len(layout.aux_layers) * H
    shapes = {"fc": (H, states)} if states else {}
    shapes |= {
        "lm_head": (V if layout.tokens is None else len(layout.tokens), H), "norm": (H,),
        "midlayer.self_attn.q_proj": (HEADS * DIM, 2 * H), "midlayer.self_attn.k_proj": (KV * DIM, 2 * H),
        "midlayer.self_attn.v_proj": (KV * DIM, 2 * H), "midlayer.self_attn.o_proj": (H, HEADS * DIM),
        "midlayer.mlp.gate_proj": (WIDE, H), "midlayer.mlp.up_proj": (WIDE, H), "midlayer.mlp.down_proj": (H, WIDE),
        "midlayer.hidden_norm": (H,), "midlayer.input_layernorm": (H,), "midlayer.post_attention_layernorm": (H,),
    }  # fmt: skip
    if "input_norm" in layout.options:
        shapes["input_norm"] = (states,)
    if "fc_norm" in layout.options:
        shapes |= {f"fc_norm.{i}": (H,) for i in range(len(layout.aux_layers))}
    if "head_norms" in layout.options:
        shapes |= {"midlayer.self_attn.q_norm": (DIM,), "midlayer.self_attn.k_norm": (DIM,)}
    if "embedding" in layout.options:
        shapes["embed_tokens"] = (V, H)
    return {
        f"{name}.weight": torch.randn(shape, dtype=torch.float64) * 0.3 + (len(shape) == 1)
        for name, shape in shapes.items()
    }


def write(layout: Layout, folder: Path) -> dict[str, Tensor]:
    """Write a checkpoint in its producer's layout. Returns the weights by SafeAILab's names."""
    folder.mkdir(exist_ok=True)
    weights = weights_of(layout)
    stored = {name.replace("midlayer.", layout.layer): weight for name, weight in weights.items()}
    if layout.tokens is not None:
        known = torch.tensor(layout.tokens)
        stored["d2t"] = known - torch.arange(len(known))
        stored["t2d"] = torch.zeros(V, dtype=torch.bool).index_fill_(0, known, True)
    layer = LAYER | layout.rope
    if layout.window:
        layer |= {"layer_types": ["sliding_attention"], "sliding_window": layout.window}
    is_nested = "speculators_model_type" in layout.config
    table = layout.config | ({"transformer_layer_config": layer} if is_nested else layer)
    (folder / "config.json").write_text(json.dumps(table))
    if layout.files == "bin":
        torch.save(stored, folder / "pytorch_model.bin")
    elif layout.files == "sharded":
        names = sorted(stored)
        parts = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
        for part, within in parts.items():
            save_file({name: stored[name] for name in within}, folder / part)
        index = {name: part for part, within in parts.items() for name in within}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    else:
        save_file(stored, folder / "model.safetensors")
    return weights


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def rotated(x: Tensor, position: int, layout: Layout) -> Tensor:
    """Rotate heads (heads, d): dimension j with dimension j + d / 2, by position * theta^(-2 j / d)."""
    frequencies, factor = 10000.0 ** (-torch.arange(0, DIM, 2, dtype=torch.float64) / DIM), 1.0
    if layout.rope is YARN:
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        frequencies, factor = ROPE_INIT_FUNCTIONS["yarn"](LlamaConfig(**LAYER | YARN), torch.device("cpu"))
    angle = position * frequencies.double()
    one, two = x.chunk(2, -1)
    return factor * torch.cat([one * angle.cos() - two * angle.sin(), two * angle.cos() + one * angle.sin()], -1)


class Reference:
    """A head's logits after a path of tokens, entry by entry."""

    def __init__(self, layout: Layout, weights: dict[str, Tensor], model: LlamaForCausalLM) -> None:
        self.layout, self.w, self.model = layout, weights, model
        own = weights.get("embed_tokens.weight")
        self.embedding = model.get_input_embeddings().weight.detach() if own is None else own

    def fused(self, ids: list[int]) -> Tensor:
        with torch.no_grad():
            every = self.model(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states
        if not self.layout.aux_layers:
            return every[-1][0]  # after the final norm
        states = torch.cat([every[layer][0] for layer in self.layout.aux_layers], -1)
        if "input_norm" in self.layout.options:
            states = rms(states, self.w["input_norm.weight"])
        if "fc_norm" in self.layout.options:
            parts = states.chunk(len(self.layout.aux_layers), -1)
            states = torch.cat([rms(part, self.w[f"fc_norm.{i}.weight"]) for i, part in enumerate(parts)], -1)
        return states @ self.w["fc.weight"].T

    def logits(self, ids: list[int], drafted: list[int] | tuple[int, ...] = ()) -> Tensor:
        """The logits (V,) after ids and drafted tokens, where the base has read all of ids but the last."""
        w, keys, values = self.w, [], []
        features = [*self.fused(ids[:-1])]
        for i, token in enumerate([*ids[1:], *drafted]):
            g = features[i]
            u = rms(g, w["midlayer.hidden_norm.weight"])
            z = torch.cat([rms(self.embedding[token], w["midlayer.input_layernorm.weight"]), u])
            q, k, v = ((w[f"midlayer.self_attn.{name}_proj.weight"] @ z).view(-1, DIM) for name in "qkv")
            if "head_norms" in self.layout.options:
                q = rms(q, w["midlayer.self_attn.q_norm.weight"])
                k = rms(k, w["midlayer.self_attn.k_norm.weight"])
            q, k = rotated(q, i, self.layout), rotated(k, i, self.layout)
            keys.append(k.repeat_interleave(HEADS // KV, 0))
            values.append(v.repeat_interleave(HEADS // KV, 0))
            first = max(0, i + 1 - self.layout.window) if self.layout.window else 0
            scores = torch.stack([(q * key).sum(-1) for key in keys[first:]]) / DIM**0.5  # (entries, heads)
            seen = (scores.softmax(0)[..., None] * torch.stack(values[first:])).sum(0).flatten()
            h = (u if self.layout.adds_normed else g) + w["midlayer.self_attn.o_proj.weight"] @ seen
            read = rms(h, w["midlayer.post_attention_layernorm.weight"])
            gate = torch.nn.functional.silu(w["midlayer.mlp.gate_proj.weight"] @ read)
            h = h + w["midlayer.mlp.down_proj.weight"] @ (gate * (w["midlayer.mlp.up_proj.weight"] @ read))
            if i + 1 >= len(features):
                features.append(rms(h, w["norm.weight"]) if self.layout.returns_normed else h)
        known = w["lm_head.weight"] @ rms(h, w["norm.weight"])
        if self.layout.tokens is None:
            return known
        return torch.full((V,), -torch.inf, dtype=known.dtype).index_copy_(0, torch.tensor(self.layout.tokens), known)


@pytest.fixture(scope="module", params=LAYOUTS)
def world(request, tmp_path_factory):
    """A layout's name, its head, its base, and the reference."""
    layout, model = LAYOUTS[request.param], base_model()
    folder = tmp_path_factory.mktemp("head")
    reference = Reference(layout, write(layout, folder), model)
    head = EagleHead.read(folder).double()
    assert isinstance(head, Eagle3Head)
    return head.goes_with(model.get_input_embeddings().weight, model.config), model, reference


def drafted(session: EagleSession, ids: list[int], k: int, seed: int = 0) -> tuple[list[int], Tensor]:
    sampler = Sampler(1.0, generator=torch.Generator().manual_seed(seed))
    draft = session.draft(ids, k, sampler, NO_EOS)
    return draft.tokens, draft.probs


def test_chains_follow_the_reference_after_a_prompt_and_after_rejections(world):
    head, model, reference = world
    for engine in ("lean", "eager"):
        session = EagleSession(head, open_session(model, engine), vocabulary=V)
        ids = [3, 8, 1, 22]
        for turn in range(4):
            tokens, probs = drafted(session, ids, 4, turn)
            for k, row in enumerate(probs):
                expected = reference.logits(ids, tokens[:k]).softmax(-1)
                torch.testing.assert_close(row, expected, atol=1e-5, rtol=0)
            ids = [*ids, *tokens[:turn], (tokens[turn] + 1) % V]  # `turn` tokens accepted, and a replacement


def test_trees_follow_the_reference(world):
    head, model, reference = world
    session, ids = EagleSession(head, open_session(model), vocabulary=V), [3, 8, 1, 22, 9]
    growth = session.growth(ids, 3, NO_EOS)
    assert growth is not None
    first, parents = (2, 5, 0), (-1, -1, -1, 0, 0, 2)
    torch.testing.assert_close(growth.first[0].double(), reference.logits(ids), atol=1e-5, rtol=0)
    rows = growth.score(torch.tensor(first), parents[:3])
    for token, row in zip(first, rows, strict=True):
        torch.testing.assert_close(row.double(), reference.logits(ids, [token]), atol=1e-5, rtol=0)
    below = growth.score(torch.tensor([3, 8, 2]), parents)
    for path, row in zip(([2, 3], [2, 8], [0, 2]), below, strict=True):
        torch.testing.assert_close(row.double(), reference.logits(ids, path), atol=1e-5, rtol=0)


def test_drafts_that_begin_at_every_token_follow_the_reference(world):
    head, model, reference = world
    session, ids, tokens = EagleSession(head, open_session(model), vocabulary=V), [3, 8, 1], [22, 9, 5, 30]
    for depth, rows in enumerate(session.score_drafts(ids, tokens, 3)):
        for i in range(depth, len(tokens)):
            begin = [*ids, *tokens[: i - depth]]
            expected = reference.logits(begin, tokens[i - depth : i])
            torch.testing.assert_close(rows[i].double(), expected, atol=1e-5, rtol=0)


def test_the_unrolled_drafts_of_training_follow_the_reference(world):
    """Of heads without norms of queries and keys, which training does not make."""
    head, model, reference = world
    if head.eagle3.norms_heads or head.eagle3.window:
        pytest.skip("no new head has norms of queries and keys, or a window")
    ids = [3, 8, 1, 22, 9, 5, 30]
    session = open_session(model)
    session.keep_states(head.aux_layers)
    states = session.hidden(ids[:-1], 0, head.aux_layers)
    tokens = torch.tensor([ids[1:], ids[:-1]])  # another row in the batch changes nothing
    with torch.no_grad():
        steps = head.unrolled(tokens, torch.stack([states, states.flip(0)]), 3)
        for step, read in enumerate(steps):
            rows = head.trained_logits(read[0], session.logits_of)
            for i in range(len(ids) - 1 - step):
                expected = reference.logits(ids[: i + 2], ids[i + 2 : i + 2 + step])
                torch.testing.assert_close(rows[i].double(), expected, atol=1e-5, rtol=0)


def test_greedy_outputs_equal_those_of_the_base(world):
    head, model, _ = world
    method = Speculative(proposer=Eagle(head="eagle", base="target", gamma=4), scorers=("target",), target=Last())
    outputs = []
    for proposer in (True, False):
        models = open_models({"target": model}, [3, 8, 1, 22], "lean")
        models.heads = {"eagle": head}
        if proposer:
            outputs.append(decode(method, models, Sampler(0.0), limits_of(24)).tokens)
        else:
            outputs.append(models["target"].roll([3, 8, 1, 22], 24, Sampler(0.0), NO_EOS).tokens)
    assert outputs[0] == outputs[1]


def limits_of(length: int) -> Any:
    from specbench.decoding.loop import GenerationLimits

    return GenerationLimits(NO_EOS, length, vocabulary=V)


def test_a_head_survives_saving_and_loading(world, tmp_path):
    head, model, _ = world
    layout = world[2].layout
    if layout.options or layout.adds_normed or layout.rope is YARN or not layout.aux_layers:
        pytest.skip("specbench writes SafeAILab's layout")
    head.save(tmp_path)
    again = EagleHead.read(tmp_path).double().goes_with(model.get_input_embeddings().weight, model.config)
    assert again.aux_layers == head.aux_layers
    one, two = (drafted(EagleSession(each, open_session(model), vocabulary=V), [3, 8, 1], 4) for each in (head, again))
    assert one[0] == two[0]
    torch.testing.assert_close(one[1], two[1], atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("layers", "aux_layers"), [(36, (2, 18, 33)), (32, (2, 16, 29)), (24, (2, 12, 21)), (28, (2, 14, 25))]
)
def test_default_aux_layers(layers, aux_layers):
    assert default_aux_layers(layers) == aux_layers


def test_d2t_holds_offsets(tmp_path):
    write(Layout({"model_type": "llama"}, tokens=(0, 2, 3, 6)), tmp_path)
    head = EagleHead.read(tmp_path)
    assert isinstance(head, Eagle3Head) and head.tokens.tolist() == [0, 2, 3, 6]


QWEN = {"verifier": {"architectures": ["Qwen3ForCausalLM"]}}


def broken(config: dict[str, Any] | None = None, **changes: Any) -> Layout:
    return Layout({"architectures": ["LlamaForCausalLMEagle3"]} | (config or {}), **changes)


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (broken({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 8]}}),
         r"eagle_config\.eagle_aux_hidden_state_layer_ids names layer 8; heads read the outputs of layers 0 to 7 of a base"),
        (broken({"target_layer_ids": [1, 3]}), r"fc\.weight reads 3 layers, and target_layer_ids names 2"),
        (broken({"speculators_model_type": "eagle3", "speculators_config": QWEN}, layer="layers.0."),
         r"speculators_config\.verifier\.architectures names Qwen3ForCausalLM, and the base is a LlamaForCausalLM"),
        (broken(tokens=(0, 2, 50)), "d2t names token 50, and the base has 40 tokens"),
    ],
)  # fmt: skip
def test_a_head_of_another_base_is_an_error_that_names_the_key(layout, message, tmp_path):
    if layout.tokens and max(layout.tokens) >= V:
        write(broken(tokens=(0, 2, 3)), tmp_path)
        weights = dict(EagleHead.read(tmp_path).state_dict())
        weights["d2t"] = torch.tensor(layout.tokens) - torch.arange(3)
        save_file(weights, tmp_path / "model.safetensors")
    else:
        write(layout, tmp_path)
    head, model = EagleHead.read(tmp_path), base_model()
    with pytest.raises(ConfigError, match=message):
        head.goes_with(model.get_input_embeddings().weight, model.config)


@pytest.mark.parametrize(
    ("config", "extra", "message"),
    [
        ({"model_type": "gemma4"}, (), "with Gemma's layers"),
        (
            {"target_hidden_size": 60},
            (),
            "target_hidden_size is 60, and fc.weight has 96 columns, which is not a multiple of it",
        ),
        (
            {},
            ("layers.1.mlp.up_proj.weight",),
            r"of several layers are not supported \(layers\.1\.mlp\.up_proj\.weight\)",
        ),
        ({}, ("lm_heed.weight",), r"unexpected lm_heed\.weight"),
        ({"architectures": ["DFlashDraftModel"]}, (), "holds a DFlash drafter"),
        ({"speculators_model_type": "peagle"}, (), "holds a P-EAGLE head"),
        ({"speculators_model_type": "unheard"}, (), "of the unknown type 'unheard'"),
    ],
)
def test_a_layout_that_is_not_read_is_an_error_that_names_it(config, extra, message, tmp_path):
    layout = broken(config)
    write(layout, tmp_path)
    if extra:
        from safetensors.torch import load_file

        weights = load_file(tmp_path / "model.safetensors") | {name: torch.zeros(2, 2) for name in extra}
        save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(MissingAsset, match=message):
        EagleHead.read(tmp_path)


def test_another_width_is_an_error_that_names_the_key(tmp_path):
    write(broken(), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"hidden_size": 2 * H}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(MissingAsset, match=r"hidden_size is 64, and fc\.weight has 32 rows"):
        EagleHead.read(tmp_path)


def test_a_folder_without_weights_is_an_error_that_says_why(tmp_path):
    with pytest.raises(MissingAsset, match=r"no draft head in .* \(no config\.json\)"):
        EagleHead.read(tmp_path)
    write(broken(), tmp_path)
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(MissingAsset, match="is a pointer of Git LFS, without the weights; help: git lfs pull"):
        EagleHead.read(tmp_path)


def test_a_token_outside_the_head_is_never_drafted_and_the_order_of_the_concatenation(tmp_path):
    layout, model = LAYOUTS["SafeAILab"], base_model()
    weights = write(layout, tmp_path)
    head = EagleHead.read(tmp_path).double().goes_with(model.get_input_embeddings().weight, model.config)
    _, probs = drafted(EagleSession(head, open_session(model), vocabulary=V), [3, 8, 1], 3)
    outside = [token for token in range(V) if token not in layout.tokens]
    assert not probs[:, outside].any()
    for name in "qkv":  # the first half of the columns reads the embedding
        weights[f"midlayer.self_attn.{name}_proj.weight"][:, :H] = 0
    stored = dict(weights) | {"d2t": torch.tensor(layout.tokens) - torch.arange(9)}
    torch.save(stored, tmp_path / "pytorch_model.bin")
    head = EagleHead.read(tmp_path).double().goes_with(model.get_input_embeddings().weight, model.config)
    rows = [drafted(EagleSession(head, open_session(model), vocabulary=V), [3, 8, last], 1)[1] for last in (1, 30)]
    torch.testing.assert_close(*rows)
