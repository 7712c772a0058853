"""A head comes from its folder where it is whole, of its kind, and trained with this pair; else one line says why not."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from specbench.config.construct import construct
from specbench.config.pair import Pair
from specbench.errors import ConfigError, MissingAsset
from specbench.models.heads import AcceptanceHead, Eagle1Head, Head, LengthHead, Provenance, Verifier
from specbench.models.heads.resolve_heads import load_head, resolve_heads
from specbench.models.loaded_pair import LoadedPair
from specbench.models.loader import load
from specbench.models.resolve_models import Execution, resolve_models
from tests.fixtures.worlds import FAMILIES
from tests.models.test_models import CPU, model_folder

KINDS = ("eagle", "sprinter", "specdec++", "dsl")
STATED = ("eagle", "sprinter", "specdec++")  # whose width is that of states


def made(kind: str, width: int = 32) -> Head:
    if kind == "eagle":
        config = FAMILIES["llama"]()
        config.hidden_size, config.vocab_size = width, 94
        return Eagle1Head.of(config)
    return LengthHead() if kind == "dsl" else {"sprinter": Verifier, "specdec++": AcceptanceHead}[kind](width)


class Place:
    """A folder with two models of 32 dimensions, `one` and `two`, and the head that a test puts into `head`."""

    def __init__(self, base: Path) -> None:
        self.base, self.head = base, base / "head"
        model_folder(base / "one", rows=94)
        model_folder(base / "two", rows=96)
        self.models = {"draft": {"path": "one"}, "target": {"path": "two"}}
        pair = construct(Pair, {"models": self.models}, "pair.toml")
        self.found = resolve_models(pair, ("draft", "target"), base, Execution(CPU))
        self.model = load(self.found, base, CPU).models["draft"]

    def heads(self, kind: str):
        heads = {"mine": {"path": "head", "base": "draft", "kind": kind}}
        return resolve_heads(
            construct(Pair, {"models": self.models, "heads": heads}, "pair.toml"), ("mine",), self.base
        )

    def bring(self, kind: str = "eagle") -> Head:
        return load_head("mine", self.heads(kind)["mine"], self.found, self.base, self.model)

    def pair(self, kind: str = "eagle") -> LoadedPair:
        return load(self.found, self.base, CPU, self.heads(kind))

    def trained(self, kind: str, **other: dict[str, str]) -> Head:
        """A head that says that it was trained with the models that are here, but for what `other` says."""
        head, own = made(kind), {"base": self.found["draft"].identity, "target": self.found["target"].identity}
        head.provenance = Provenance(**own | other)
        head.save(self.head)
        return head

    def file(self, kind: str) -> Path:
        return self.head / ("model.safetensors" if kind == "eagle" else "head.safetensors")


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Place:
    return Place(tmp_path_factory.mktemp("models"))


@pytest.fixture
def place(models) -> Place:
    """The models, and no head yet."""
    shutil.rmtree(models.head, ignore_errors=True)
    return models


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_head_is_loaded_unchanged_by_kind(kind, place):
    """Weights, settings and provenance survive, in float32 and without gradients; a request for another kind is rejected."""
    saved = place.trained(kind, data={"sha256": "abc"}, report={"auc": 0.75})
    head = place.pair(kind).open([1, 2]).head("mine", type(saved))
    assert head.provenance == saved.provenance and head.settings == saved.settings
    skip = "embed_tokens"  # the base's
    weights = {name: weight for name, weight in saved.state_dict().items() if skip not in name}
    found = {name: weight for name, weight in head.state_dict().items() if skip not in name}
    assert found.keys() == weights.keys() and all(torch.equal(found[name], weights[name]) for name in weights)
    assert not any(weight.requires_grad for weight in head.parameters()) and not head.training
    wrong = LengthHead if kind != "dsl" else Verifier
    with pytest.raises(ValueError, match=f"head 'mine' is a {kind.replace('+', '.')} head, not a {wrong.kind} one"):
        place.pair(kind).open([1, 2]).head("mine", wrong)


def test_a_head_uses_the_embedding_of_its_base(place):
    """EAGLE heads and the verifier's token features read the base's own, and no copy is held."""
    place.trained("eagle")
    pair = place.pair()
    assert pair.heads["mine"].inner.embed_tokens.weight.data_ptr() == embedding(pair).data_ptr()
    verifier = Verifier(32, "state+token")
    shutil.rmtree(place.head)
    verifier.save(place.head)
    pair = place.pair("sprinter")
    assert pair.heads["mine"].embedding.data_ptr() == embedding(pair).data_ptr()
    assert pair.heads["mine"].settings == {"hidden": 32, "features": "state+token", "threshold": 1.0}
    inputs = pair.heads["mine"].inputs(torch.zeros(2, 32), torch.tensor([3, 5]), torch.full((2, 94), 1 / 94))
    assert torch.equal(inputs[:, 32:], embedding(pair)[[3, 5]])


def embedding(pair: LoadedPair) -> torch.Tensor:
    return pair.models["draft"].transformers().get_input_embeddings().weight


@pytest.mark.parametrize("kind", STATED)
def test_a_head_of_another_pair_is_rejected_with_both_names(kind, place):
    """By checksum, whatever the sources are called; where none is known, by source. Precision may differ."""
    found = place.found
    other = found["draft"].identity | {"source": "another/model", "checksum": "0123456789abcdef"}
    place.trained(kind, base=other)
    with pytest.raises(ConfigError, match=r"head 'mine' .*was trained with another/model \(0123.*'draft' is one \("):
        place.bring(kind)
    place.trained(kind, target=found["draft"].identity)
    with pytest.raises(ConfigError, match=r"was trained with one \(.*\), and this pair's 'target' is two \("):
        place.bring(kind)
    place.trained(kind, base={"source": "another/model"})
    with pytest.raises(ConfigError, match=r"was trained with another/model, and this pair's 'draft' is one \("):
        place.bring(kind)
    place.trained(kind, base=found["draft"].identity | {"dtype": "bfloat16", "source": "moved/elsewhere"})
    assert place.bring(kind).kind == kind
    place.trained(kind, base={}, target={})
    assert place.bring(kind).kind == kind, "the head of another pair is loaded without a check"


@pytest.mark.parametrize("kind", STATED)
def test_a_head_of_another_width_is_rejected_with_both_names(kind, place):
    made(kind, 64).save(place.head)
    with pytest.raises(ConfigError, match=r"head 'mine' \(head\) reads states of width 64.*'draft' \(one\) has 32"):
        place.bring(kind)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:200])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def without_a_weight(path: Path) -> None:
    rewritten(path, lambda weights, metadata: weights.pop(max(weights)))


def of_a_wrong_shape(path: Path) -> None:
    rewritten(path, lambda weights, metadata: weights.update({max(weights): torch.zeros(3, 3)}))


def with_a_list_metadata(path: Path) -> None:
    rewritten(path, lambda weights, metadata: metadata.update(specbench="[]"))


def with_unknown_metadata(path: Path) -> None:
    def change(weights, metadata):
        metadata["specbench"] = json.dumps({"author": "x", "kind": json.loads(metadata["specbench"]).get("kind")})

    rewritten(path, change)


def with_no_json_metadata(path: Path) -> None:
    rewritten(path, lambda weights, metadata: metadata.update(specbench="{kind"))


def missing(path: Path) -> None:
    path.unlink()


def rewritten(path: Path, change) -> None:
    with safe_open(path, "pt") as file:
        metadata = dict(file.metadata())
    weights = load_file(path)
    change(weights, metadata)
    save_file(weights, path, metadata=metadata)


BREAKS = [
    truncated, empty, without_a_weight, of_a_wrong_shape, with_a_list_metadata, with_unknown_metadata, with_no_json_metadata,
    missing,
]  # fmt: skip


@pytest.mark.parametrize("break_it", BREAKS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_a_broken_head_is_one_line(kind, break_it, place):
    """Which names the folder, and ends the command with exit code 4 and no traceback."""
    place.trained(kind)
    break_it(place.file(kind))
    with pytest.raises(MissingAsset) as caught:
        place.bring(kind)
    text = str(caught.value)
    assert "\n" not in text and "head" in text and str(place.base) in text
    if break_it in (without_a_weight, of_a_wrong_shape):
        assert any(name in text for name in ("bias", "weight", "spread")), "it says which"


@pytest.mark.parametrize("text", ["{", "[1]", "{}", '{"model_type": "no-such-model"}', '{"model_type": "gpt2"}'])
def test_a_broken_eagle_config_is_one_line(text, place):
    place.trained("eagle")
    (place.head / "config.json").write_text(text)
    with pytest.raises(MissingAsset) as caught:
        place.bring()
    message = str(caught.value)
    assert "\n" not in message and ("EAGLE" in message or "cannot be read as a draft head" in message)


@pytest.mark.parametrize("content", [b"", b"\x80\x02garbage", b"PK\x03\x04 truncated"])
def test_a_broken_published_eagle_head_is_one_line(content, place):
    """pytorch_model.bin: no pickle, or half of one."""
    place.trained("eagle")
    place.file("eagle").unlink()
    (place.head / "pytorch_model.bin").write_bytes(content)
    with pytest.raises(MissingAsset) as caught:
        place.bring()
    assert "\n" not in str(caught.value)


def test_a_head_of_another_kind_is_rejected_by_name(place):
    place.trained("specdec++")
    with pytest.raises(ConfigError, match=r"is a head of kind 'specdec\+\+', not 'sprinter'"):
        place.bring("sprinter")
    with pytest.raises(ConfigError, match=r"unknown kind of head 'sprint' \(did you mean 'sprinter'"):
        place.bring("sprint")


def test_a_missing_head_folder_is_reported_with_help(place):
    with pytest.raises(MissingAsset, match=r"head 'mine': no folder head; help: check the path"):
        place.bring()


def test_dummy_models_have_dummy_heads_of_their_width(place):
    """No file is read, and the random state stays what it was."""
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    LlamaForCausalLM(LlamaConfig(vocab_size=1200, **shape)).save_pretrained(place.base / "small")
    for kind in KINDS:
        heads = {"mine": {"path": "nowhere", "base": "draft", "kind": kind}}
        table = {"models": {"draft": {"path": "small"}}, "heads": heads, "weights": "dummy"}
        pair, base = construct(Pair, table, "pair.toml"), place.base
        state = torch.random.get_rng_state()
        loaded = load(
            resolve_models(pair, ("draft",), base, Execution(CPU)), base, CPU, resolve_heads(pair, ("mine",), base)
        )
        assert torch.equal(state, torch.random.get_rng_state())
        assert loaded.heads["mine"].kind == kind
