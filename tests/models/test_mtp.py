"""MTP heads in the layouts of four families: logits against an independent computation, and greedy outputs of targets.

The reference computes the whole sequence of entries for every drafted token, in float64, from the formulas. MiMo's decoder
layer is computed by hand, those of other families by transformers' own layers with a causal mask.
"""

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    Glm4MoeConfig,
    LlamaConfig,
    PreTrainedModel,
    Qwen3NextConfig,
)
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek_v3
from transformers.models.glm4_moe import modeling_glm4_moe as glm4_moe
from transformers.models.qwen3_next import modeling_qwen3_next as qwen3_next

from specbench.decoding.sampling import Sampler
from specbench.decoding.targets.target import Last
from specbench.errors import ConfigError, MissingAsset
from specbench.methods.proposers import Eagle
from specbench.methods.speculative import Speculative
from specbench.models import mimo
from specbench.models.heads import EagleHead, EagleSession, MtpHead
from tests.fixtures.worlds import decode, open_models
from tests.models.test_eagle3 import NO_EOS, H, V, limits_of, rms

mimo.register()
HEADS, KV, DIM, WIDE = 4, 2, 8, 48
SHAPE = {
    "vocab_size": V, "hidden_size": H, "num_attention_heads": HEADS, "intermediate_size": WIDE, "rms_norm_eps": 1e-6,
    "max_position_embeddings": 64, "tie_word_embeddings": False,
}  # fmt: skip
EXPERTS = {
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_shared_experts": 1, "n_group": 2,
    "topk_group": 1, "num_nextn_predict_layers": 1, "first_k_dense_replace": 1,
}  # fmt: skip


@dataclass
class Family:
    """A family's config, how names of its MTP weights begin, and what the reference computes for it."""

    config: Any
    at: str
    names: tuple[str, str, str, str]
    classes: tuple[Any, str] | None = None  # a module of transformers, and how names of its classes begin
    layer: str = ""
    state_first: bool = False
    feeds_normed: bool = True
    zero_centered: bool = False


OF_DEEPSEEK = ("enorm", "hnorm", "eh_proj", "shared_head.norm")
FAMILIES = {
    "mimo": Family(
        mimo.MiMoConfig(**SHAPE, num_hidden_layers=3, num_key_value_heads=KV, num_nextn_predict_layers=1),
        at="model.mtp_layers.0.", names=("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm"),
        state_first=True,
    ),
    "deepseek_v3": Family(
        DeepseekV3Config(
            **SHAPE, **EXPERTS, num_hidden_layers=3, num_key_value_heads=HEADS, q_lora_rank=16, kv_lora_rank=16,
            qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=12,
        ),
        at="model.layers.3.", names=OF_DEEPSEEK, classes=(deepseek_v3, "DeepseekV3"),
    ),
    "glm4_moe": Family(
        Glm4MoeConfig(
            **SHAPE, **EXPERTS, num_hidden_layers=2, num_key_value_heads=KV, head_dim=DIM, use_qk_norm=True,
            attention_bias=True,
        ),
        at="model.layers.2.", names=OF_DEEPSEEK, classes=(glm4_moe, "Glm4Moe"), feeds_normed=False,
    ),
    "qwen3_next": Family(
        Qwen3NextConfig(
            **SHAPE, num_hidden_layers=2, layer_types=["linear_attention", "full_attention"], num_key_value_heads=KV,
            head_dim=DIM, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, shared_expert_intermediate_size=24,
            linear_key_head_dim=8, linear_value_head_dim=8, linear_num_key_heads=2, linear_num_value_heads=2,
        ),
        at="mtp.", names=("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm"), classes=(qwen3_next, "Qwen3Next"),
        layer="layers.0.", zero_centered=True,
    ),
}  # fmt: skip
RUNNING = ("mimo", "deepseek_v3", "glm4_moe")  # targets; Qwen3-Next has recurrent layers


class Reference:
    """The MTP layer of a family with random weights: its logits, and its weights under the names of a checkpoint."""

    def __init__(self, family: Family, model: PreTrainedModel) -> None:
        self.family, self.model = family, model
        torch.manual_seed(11)
        self.norms = [torch.randn(H, dtype=torch.float64) * 0.3 + (not family.zero_centered) for _ in range(3)]
        self.projection = torch.randn(H, 2 * H, dtype=torch.float64) * 0.2
        self.layer, self.weights = None, dict[str, Tensor]()
        if family.classes is None:
            shapes = {
                "self_attn.q_proj.weight": (HEADS * DIM, H), "self_attn.q_proj.bias": (HEADS * DIM,),
                "self_attn.k_proj.weight": (KV * DIM, H), "self_attn.k_proj.bias": (KV * DIM,),
                "self_attn.v_proj.weight": (KV * DIM, H), "self_attn.v_proj.bias": (KV * DIM,),
                "self_attn.o_proj.weight": (H, HEADS * DIM), "mlp.gate_proj.weight": (WIDE, H),
                "mlp.up_proj.weight": (WIDE, H), "mlp.down_proj.weight": (H, WIDE), "input_layernorm.weight": (H,),
                "post_attention_layernorm.weight": (H,),
            }  # fmt: skip
            self.weights = {name: torch.randn(shape, dtype=torch.float64) * 0.3 for name, shape in shapes.items()}
            return
        module, start = family.classes
        config = copy.deepcopy(family.config)
        if getattr(config, "num_mtp_layers", None):
            config = config.get_mtp_config()
        else:
            config.num_hidden_layers, config.layer_types = 1, ["full_attention"]
        config._attn_implementation = config._experts_implementation = "eager"  # grouped products have no float64
        self.layer = getattr(module, f"{start}DecoderLayer")(config, 0).double().eval()
        self.rotary = getattr(module, f"{start}RotaryEmbedding")(config).double()
        with torch.no_grad():
            for parameter in self.layer.parameters():
                parameter.normal_(0.0, 0.3)
        for name, weight in self.layer.state_dict().items():
            if name == "mlp.experts.gate_up_proj":
                for i, both in enumerate(weight):
                    gate, up = both.chunk(2)
                    self.weights |= {f"mlp.experts.{i}.gate_proj.weight": gate, f"mlp.experts.{i}.up_proj.weight": up}
            elif name == "mlp.experts.down_proj":
                self.weights |= {f"mlp.experts.{i}.down_proj.weight": each for i, each in enumerate(weight)}
            else:
                self.weights[name] = weight

    def write(self, folder: Path) -> None:
        """Write the base's checkpoint with the MTP layer in it."""
        self.model.save_pretrained(folder)
        path, family = folder / "model.safetensors", self.family
        parts = [self.norms[0], self.norms[1], self.projection, self.norms[2]]
        named = {f"{name}.weight": part for name, part in zip(family.names, parts, strict=True)}
        named |= {f"{family.layer}{name}": weight for name, weight in self.weights.items()}
        if family.names == OF_DEEPSEEK:  # repeated in published checkpoints
            named |= {"embed_tokens.weight": torch.zeros(V, H), "shared_head.head.weight": torch.zeros(V, H)}
        stored = load_file(path) | {f"{family.at}{name}": weight.contiguous() for name, weight in named.items()}
        save_file(stored, path, metadata={"format": "pt"})

    def norm(self, x: Tensor, which: int) -> Tensor:
        weight = self.norms[which]
        return rms(x, weight + 1.0 if self.family.zero_centered else weight)

    def logits(self, ids: list[int], drafted: list[int]) -> Tensor:
        """The logits (V,) of the token after some drafted ones, which follow ids."""
        with torch.no_grad():
            out = self.model(input_ids=torch.tensor([ids[:-1]]), output_hidden_states=True)
            states = list(out.hidden_states[-1][0])
            embed = self.model.get_input_embeddings().weight
            entries, read = list[Tensor](), torch.empty(0)
            for i, token in enumerate([*ids[1:], *drafted]):
                parts = [self.norm(embed[token], 0), self.norm(states[i], 1)]
                entries.append(self.projection @ torch.cat(parts[::-1] if self.family.state_first else parts))
                if i < len(ids) - 2:
                    continue
                h = self.last_row(torch.stack(entries))
                read = self.norm(h, 2)
                states.append(read if self.family.feeds_normed else h)
            return self.model.get_output_embeddings().weight @ read

    def last_row(self, x: Tensor) -> Tensor:
        """The decoder layer's output (H,) for the last of the entries x (n, H)."""
        if self.layer is not None:
            n = len(x)
            mask = torch.full((n, n), -torch.inf, dtype=x.dtype).triu(1)[None, None]
            positions = torch.arange(n)[None]
            out = self.layer(
                x[None],
                position_embeddings=self.rotary(x[None], positions),
                position_ids=positions,
                attention_mask=mask,
            )
            return (out[0] if isinstance(out, tuple) else out)[0, -1]
        w = self.weights
        y = rms(x, w["input_layernorm.weight"])
        q, k, v = (
            (y @ w[f"self_attn.{name}_proj.weight"].T + w[f"self_attn.{name}_proj.bias"]).view(len(x), -1, DIM)
            for name in "qkv"
        )
        angles = torch.arange(len(x))[:, None] * 10000.0 ** (-torch.arange(0, DIM, 2, dtype=torch.float64) / DIM)
        cos, sin = angles.cos().repeat(1, 2)[:, None], angles.sin().repeat(1, 2)[:, None]

        def rotated(heads: Tensor) -> Tensor:
            half = torch.cat([-heads[..., DIM // 2 :], heads[..., : DIM // 2]], -1)
            return heads * cos + half * sin

        k, v = rotated(k).repeat_interleave(HEADS // KV, 1), v.repeat_interleave(HEADS // KV, 1)
        weights = (torch.einsum("hd,nhd->hn", rotated(q)[-1], k) / DIM**0.5).softmax(-1)
        h = x[-1] + w["self_attn.o_proj.weight"] @ torch.einsum("hn,nhd->hd", weights, v).flatten()
        y = rms(h, w["post_attention_layernorm.weight"])
        gate = torch.nn.functional.silu(w["mlp.gate_proj.weight"] @ y)
        return h + w["mlp.down_proj.weight"] @ (gate * (w["mlp.up_proj.weight"] @ y))


class Recomputed:
    """A base whose states are computed from the whole sequence by transformers."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model

    def keep_states(self, aux_layers: tuple[int, ...]) -> None:
        assert not aux_layers

    def cached_length(self, ids: list[int]) -> int:
        return len(ids)

    def hidden(self, ids: list[int], start: int, aux_layers: tuple[int, ...]) -> Tensor:
        with torch.no_grad():
            return self.model(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0, start:]

    def logits_of(self, states: Tensor) -> Tensor:
        return self.model.get_output_embeddings()(states)


@pytest.fixture(scope="module", params=FAMILIES)
def world(request, tmp_path_factory):
    """A family's head, its base, the reference, and the checkpoint."""
    family, folder = FAMILIES[request.param], tmp_path_factory.mktemp("base")
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(copy.deepcopy(family.config)).double().eval()
    model.config._experts_implementation = "eager"
    reference = Reference(family, model)
    reference.write(folder)
    head = MtpHead.read(folder).double()
    head.config._experts_implementation = "eager"
    return head.goes_with(model.get_input_embeddings().weight, model.config), model, reference, folder


def test_chains_follow_the_reference_after_a_prompt_and_after_rejections(world):
    head, model, reference, _ = world
    session, ids = EagleSession(head, Recomputed(model), vocabulary=V), [3, 8, 1, 22]
    for turn in range(4):
        draft = session.draft(ids, 4, Sampler(1.0, generator=torch.Generator().manual_seed(turn)), NO_EOS)
        for k, row in enumerate(draft.probs):
            torch.testing.assert_close(row, reference.logits(ids, draft.tokens[:k]).softmax(-1), atol=1e-5, rtol=0)
        ids = [*ids, *draft.tokens[:turn], (draft.tokens[turn] + 1) % V]  # `turn` tokens accepted, and a replacement


def test_trees_follow_the_reference(world):
    head, model, reference, _ = world
    session, ids = EagleSession(head, Recomputed(model), vocabulary=V), [3, 8, 1, 22, 9]
    growth = session.growth(ids, 3, NO_EOS)
    rows = [growth.first, growth.score(torch.tensor([2, 5, 0]), (-1, -1, -1))]
    rows.append(growth.score(torch.tensor([3, 8, 2]), (-1, -1, -1, 0, 0, 2)))
    paths = ([[]], [[2], [5], [0]], [[2, 3], [2, 8], [0, 2]])
    for made, expected in zip(rows, paths, strict=True):
        for row, path in zip(made, expected, strict=True):
            torch.testing.assert_close(row.double(), reference.logits(ids, path), atol=1e-5, rtol=1e-5)


def test_greedy_outputs_equal_those_of_the_base(world):
    head, model, reference, _ = world
    if reference.family.config.model_type not in RUNNING:
        pytest.skip("recurrent layers")
    method = Speculative(proposer=Eagle(head="mtp", base="target", gamma=3), scorers=("target",), target=Last())
    for engine in ("eager", "lean") if reference.family.config.model_type == "mimo" else ("eager",):
        models = open_models({"target": model}, [3, 8, 1, 22], engine)
        models.heads = {"mtp": head}
        plain = open_models({"target": model}, [3, 8, 1, 22], engine)["target"].roll(
            [3, 8, 1, 22], 24, Sampler(0.0), NO_EOS
        )
        assert decode(method, models, Sampler(0.0), limits_of(24)).tokens == plain.tokens


def test_the_order_of_the_concatenation_and_of_mimo_is_not_that_of_others(world):
    """With a projection that reads one half only, logits depend on the state alone, or on the embedding alone."""
    head, model, reference, _ = world
    changed = copy.deepcopy(head)
    changed.eh_proj.weight[:, :H] = 0.0
    rows = []
    for token in (5, 17):
        session = EagleSession(changed, Recomputed(model), vocabulary=V)
        rows.append(session.draft([3, 8, token], 1, Sampler(1.0), NO_EOS).probs)
    only_states = not reference.family.state_first
    assert torch.allclose(rows[0], rows[1], atol=1e-9) == only_states


def test_only_the_weights_of_the_layer_are_read_from_a_sharded_checkpoint(world, tmp_path):
    _, _, reference, folder = world
    weights = load_file(folder / "model.safetensors")
    at = reference.family.at
    parts = {"a": {}, "b": {}, "c": {}}
    for i, (name, weight) in enumerate(sorted(weights.items())):
        parts["c" if not name.startswith(at) else "ab"[i % 2]][name] = weight
    for part in "ab":
        save_file(parts[part], tmp_path / f"{part}.safetensors")
    files = {name: f"{part}.safetensors" for part, names in parts.items() for name in names}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    assert torch.equal(MtpHead.read(tmp_path).eh_proj.weight.double(), reference.projection.float().double())


def test_a_checkpoint_without_the_layer_or_of_another_family_is_an_error(world, tmp_path):
    head, model, reference, folder = world
    with pytest.raises(ConfigError, match=rf"model_type is {head.config.model_type}, and the base's is llama"):
        head.goes_with(model.get_input_embeddings().weight, LlamaConfig())
    weights = load_file(folder / "model.safetensors")
    at = reference.family.at
    save_file({k: v for k, v in weights.items() if not k.startswith(at)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(MissingAsset, match="has no MTP layer"):
        MtpHead.read(tmp_path)
    name = f"{at}{reference.family.names[3]}.weight"
    save_file({k: v for k, v in weights.items() if k != name}, tmp_path / "model.safetensors")
    with pytest.raises(MissingAsset, match=r"has another MTP layer: missing norm\.weight"):
        MtpHead.read(tmp_path)


def test_the_eagle_kind_does_not_read_an_mtp_head(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"speculators_model_type": "mtp"}))
    save_file({"fc.weight": torch.zeros(2, 2)}, tmp_path / "model.safetensors")
    with pytest.raises(
        MissingAsset, match="holds an MTP head; the kind 'eagle' reads an EAGLE-1 head and an EAGLE-3 head"
    ):
        EagleHead.read(tmp_path)
