"""Checkpoints that do not fit their config, are damaged, or hold pickled objects are rejected, each with the reason."""

import json
import pickle
import shutil

import pytest
import torch
from httpx2 import ConnectError  # of huggingface_hub's client
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from specbench.config.pair import PACKAGE
from specbench.errors import MissingAsset, is_out_of_memory
from specbench.models import checkpoints
from specbench.models.checkpoints import unreadable
from tests.fixtures.console import specbench

TARGET = PACKAGE / "tiny" / "models" / "target"
FEW = ["run", "-m", "ar", "-p", "pair.toml", "-t", "prompts", "--data", "own.jsonl", "--repeats", "1"]
LAYER = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture
def broken(tmp_path):
    """A copy of the bundled target model, a pair of it alone, and a prompt."""
    folder = tmp_path / "target"
    shutil.copytree(TARGET, folder)
    (tmp_path / "pair.toml").write_text('[models.target]\npath = "target"\n')
    (tmp_path / "own.jsonl").write_text('{"prompt": "One two"}\n')
    return folder


def weights(folder, change):
    tensors = load_file(folder / "model.safetensors")
    save_file(change(tensors), folder / "model.safetensors", metadata={"format": "pt"})


def config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def rejected(broken, *words):
    done = specbench(*FEW, "--max-new-tokens", 4, cwd=broken.parent, code=4)
    assert done.stderr.count("error[") == 1
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr, done.stderr
    assert not list(broken.parent.glob("results/*/samples.jsonl"))


def test_missing_weights_are_listed(broken):
    weights(broken, lambda found: {key: value for key, value in found.items() if key != LAYER})
    rejected(broken, "1 missing (they would be random)", LAYER)


def test_renamed_weights_are_listed(broken):
    weights(broken, lambda found: {f"other.{key}": value for key, value in found.items()})
    rejected(broken, "missing (they would be random)", "unexpected", "other.model.", "more")


@pytest.mark.parametrize(("layers", "words"), [(9, "missing (they would be random)"), (1, "unexpected")])
def test_a_config_of_more_or_fewer_layers_is_rejected(broken, layers, words):
    config(broken, num_hidden_layers=layers)
    rejected(broken, words, "model.layers.")


def test_another_model_type_is_rejected(broken):
    config(broken, model_type="bert", architectures=["BertLMHeadModel"])
    rejected(broken, "missing (they would be random)")


def test_a_pair_may_allow_named_weights(broken):
    weights(broken, lambda found: found | {"extra.bias": torch.zeros(2)})
    rejected(broken, "extra.bias", "allowed_keys")
    (broken.parent / "pair.toml").write_text('[models.target]\npath = "target"\nallowed_keys = ["extra.*"]\n')
    specbench(*FEW, "--max-new-tokens", 4, cwd=broken.parent)


def test_a_truncated_file_is_reported_with_the_cause(broken):
    path = broken / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    rejected(broken, "damaged or cut short", str(broken))


class Planted:
    """Touches a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_pickled_objects_in_a_bin_file_are_not_loaded(broken, tmp_path):
    (broken / "model.safetensors").unlink()
    torch.save({LAYER: Planted(tmp_path / "planted")}, broken / "pytorch_model.bin", pickle_module=pickle)
    rejected(broken, ".bin file holds pickled objects", "safetensors")
    assert not (tmp_path / "planted").exists()


def test_a_bin_file_of_tensors_alone_is_loaded(broken):
    tensors = load_file(broken / "model.safetensors")
    (broken / "model.safetensors").unlink()
    torch.save(tensors, broken / "pytorch_model.bin")
    specbench(*FEW, "--max-new-tokens", 4, cwd=broken.parent)


def test_remote_code_is_never_run(broken, tmp_path):
    (broken / "modeling_own.py").write_text(
        f"open({str(tmp_path / 'planted')!r}, 'w')\nclass Own: pass\nclass OwnConfig: pass\n"
    )
    auto = {"AutoConfig": "modeling_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.Own"}
    config(broken, auto_map=auto, model_type="own")
    rejected(broken, "target")
    assert not (tmp_path / "planted").exists()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_attention_heads", 0), ("num_hidden_layers", 0), ("vocab_size", 7), ("vocab_size", -5), ("hidden_size", 64),
        ("hidden_size", "wide"), ("intermediate_size", 1),
    ],
)  # fmt: skip
def test_impossible_sizes_are_an_error_of_one_line(broken, key, value):
    config(broken, **{key: value})
    done = specbench(*FEW, "--max-new-tokens", 4, cwd=broken.parent, code={2, 4})
    assert "Traceback" not in done.stderr
    assert "model 'target'" in done.stderr


@pytest.mark.parametrize("file", ["tokenizer.json", "config.json", "generation_config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("text", ["{}", "[1]", "", "\x00\xff", '{"a": '])
def test_damaged_files_next_to_the_weights_are_an_error_of_one_line(broken, file, text):
    (broken / file).write_bytes(text.encode("latin-1"))
    done = specbench(*FEW, "--max-new-tokens", 4, cwd=broken.parent, code={0, 2, 3, 4})
    assert "Traceback" not in done.stderr
    if file in ("tokenizer.json", "config.json"):
        assert "model 'target'" in done.stderr


@pytest.mark.parametrize("size", [-5, 0, 7])
@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
def test_impossible_sizes_of_dummy_models_are_config_errors(broken, key, size):
    (broken.parent / "pair.toml").write_text(
        f'weights = "dummy"\n[models.target]\npath = "target"\nconfig = {{ {key} = {size} }}\n'
    )
    if (key, size) == ("num_hidden_layers", 7):
        specbench(*FEW, "--max-new-tokens", 4, cwd=broken.parent)
        return
    done = specbench(*FEW, "--max-new-tokens", 4, cwd=broken.parent, code=2)
    assert "Traceback" not in done.stderr


def hub_error(kind):
    """An error as transformers raises it: from one of the hub's client."""
    try:
        raise kind
    except Exception as cause:
        error = OSError("We couldn't connect to the hub to load this file")
        error.__cause__ = cause
        return error


@pytest.mark.parametrize(
    "cause", [LocalEntryNotFoundError("no file"), HFValidationError("bad name"), ConnectError("no route")]
)
def test_a_hub_that_cannot_be_reached_is_distinguished_from_a_damaged_file(cause):
    assert "cannot be fetched" in str(unreadable("target", "org/name", hub_error(cause)))


@pytest.mark.parametrize(
    "error", [ValueError("Unrecognized model"), OSError("not a valid JSON file"), json.JSONDecodeError("bad", "", 0)]
)
def test_a_damaged_file_in_the_hub_cache_is_reported_as_damaged(error):
    message = str(unreadable("target", "org/name", error))
    assert "cannot be loaded" in message and "cannot be fetched" not in message


def test_a_model_that_does_not_fit_into_memory_is_an_error_of_one_line(broken, monkeypatch):
    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")

    config = AutoConfig.from_pretrained(broken)
    monkeypatch.setattr(checkpoints.class_of(config), "from_pretrained", full)
    with pytest.raises(MissingAsset, match="does not fit into the memory of cuda"):
        checkpoints.load_model(checkpoints.Checkpoint("target", str(broken), config), device=torch.device("cuda"))


def test_memory_of_the_host_that_is_exhausted_is_recognized():
    with pytest.raises(RuntimeError) as raised:
        torch.empty(1 << 58, dtype=torch.uint8)
    assert is_out_of_memory(raised.value)
    message = r"^model 'target': org/name does not fit into the memory of cpu"
    with pytest.raises(MissingAsset, match=message), checkpoints.in_memory("target", "org/name", None):
        raise raised.value
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
