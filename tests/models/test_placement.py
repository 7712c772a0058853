"""Models on devices of their own: config, sessions between devices, layers over two memories, memory."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from specbench.config.options import Options
from specbench.config.pair import ModelSpec, place_overrides
from specbench.config.presets import bundled_architecture
from specbench.decoding.drafting import roll
from specbench.decoding.sampling import Sampler
from specbench.errors import ConfigError, MissingAsset
from specbench.models.engines import engine_of
from specbench.models.loader import load
from specbench.models.placed import MovedSession, loading_settings, numbered
from specbench.models.resolve_models import (
    Execution,
    assuming,
    device_of,
    device_of_model,
    resolve_models,
)  # fmt: skip
from specbench.models.resolved_model import Architecture
from specbench.resolution import selection
from specbench.resolution.memory_estimate import layer_split, memory_by_device
from specbench.runs.run_folder import load as load_run
from specbench.runs.run_folder import spec_of
from tests.fixtures import console

CPU = torch.device("cpu")
RUN = [
    "run",
    "-m",
    "sd",
    "-p",
    "tiny",
    "-t",
    "gsm8k",
    "-n",
    2,
    "--repeats",
    1,
    "--max-new-tokens",
    12,
    "--engine",
    "eager",
]
LAYERS = ["--place", "target=layers:cpu,disk", "--set", "pair.models.target.memory_gib=[0.004, 1]"]
PROMPT, OUTPUT = 40, 24


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"device": "gpu"}, "device = 'gpu' must be cpu, cuda or cuda:N"),
        ({"devices": [0, 1]}, 'need parallel = "layers"'),
        ({"parallel": "layers", "devices": [0]}, "at least two"),
        ({"parallel": "layers", "devices": [0, 0]}, "names a device twice"),
        ({"parallel": "layers", "devices": ["cpu", "cpu"]}, "names a device twice"),
        ({"parallel": "layers", "devices": [0, "tpu"]}, "must be numbers of GPUs"),
        ({"parallel": "layers", "devices": ["cpu", "disk"]}, "need memory_gib"),
        ({"parallel": "layers", "devices": [0, 1], "memory_gib": [1.0]}, "one limit per device"),
        ({"parallel": "layers", "devices": [0, 1], "device": "cuda:0"}, "conflict"),
        (
            {"parallel": "layers", "devices": [0, "disk"], "memory_gib": [1.0, 9.0], "quantization": "int4"},
            "a quantized model",
        ),
    ],
)
def test_keys_that_conflict_are_named(keys, message):
    with pytest.raises(ValueError, match=message):
        ModelSpec(path="x", **{key: tuple(value) if isinstance(value, list) else value for key, value in keys.items()})


def test_the_option_sets_the_keys_of_a_model():
    assert place_overrides(["draft=cuda:1", "target=layers:0,1"]) == [
        ("pair.models.draft.device", "cuda:1"),
        ("pair.models.draft.parallel", "none"),
        ("pair.models.draft.devices", []),
        ("pair.models.target.device", ""),
        ("pair.models.target.parallel", "layers"),
        ("pair.models.target.devices", [0, 1]),
    ]
    for wrong in ("target", "target=gpu", "=cpu", "target=layers", "target=tensor:0,1"):
        with pytest.raises(ConfigError, match="such as target=cuda:1"):
            place_overrides([wrong])


def test_an_unknown_kind_of_parallel_is_an_error(tmp_path):
    done = console.specbench(*RUN, "--set", "pair.models.target.parallel=tensor", cwd=tmp_path, code=2)
    assert "parallel = 'tensor'; known: layers, none" in done.stderr


def test_a_device_that_is_not_here_is_missing(tmp_path):
    done = console.specbench(*RUN, "--place", "target=cuda:7", cwd=tmp_path, code=4)
    assert "model 'target': no device cuda:7 here" in done.stderr


def test_only_eager_splits_a_model(tmp_path):
    llama = Architecture(AutoConfig.for_model("llama"))
    in_layers = ModelSpec(path="x", devices=(0, 1), parallel="layers")
    assert engine_of("auto", in_layers, llama, CPU) == "eager"
    with pytest.raises(ValueError, match="help: --engine eager"):
        engine_of("lean", in_layers, llama, CPU)


def test_a_model_in_layers_over_two_memories_decodes_the_same_tokens(tmp_path):
    """A part of the target is in memory and the rest on disk. The record names the placement."""
    for temperature in (0, 1):
        sampling = ("--temperature", temperature)
        console.specbench(*RUN, *sampling, "--out", f"whole{temperature}", cwd=tmp_path)
        console.specbench(*RUN, *sampling, *LAYERS, "--out", f"layers{temperature}", cwd=tmp_path)
        assert tokens(tmp_path / f"layers{temperature}") == tokens(tmp_path / f"whole{temperature}")
    (folder,) = (path.parent for path in (tmp_path / "layers0").glob("*/run.toml"))
    assert spec_of(folder).pair.models["target"].placement == "layers on cpu, disk"
    shown = console.specbench("report", folder, cwd=tmp_path).stdout
    assert "cpu float32 (target: layers on cpu, disk)" in " ".join(shown.split())


def test_the_layers_are_where_the_placement_says():
    overrides = (*place_overrides(["target=layers:cpu,disk"]), ("pair.models.target.memory_gib", [0.004, 1.0]))
    preset, pair = selection.read_pair("tiny", Options(overrides=overrides))
    found = resolve_models(pair, ("draft", "target"), preset.path.parent, Execution(CPU))
    loaded = load(found, preset.path.parent, CPU)
    assert set(loaded.models["target"].model.hf_device_map.values()) == {"cpu", "disk"}
    assert found["draft"].engine == "lean" and found["target"].engine == "eager"
    assert loaded.all_devices == {CPU}


def tokens(results):
    """The ids of all generations of the only run in a folder, which is complete."""
    (folder,) = (path.parent for path in results.glob("*/run.toml"))
    found = load_run(folder)
    assert found.complete and not any(record.error for record in found.records)
    return {record.key: record.tokens for record in found.records}


def test_without_accelerate_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "accelerate.utils", None)
    spec = ModelSpec(path="x", parallel="layers", devices=(0, 1))
    with pytest.raises(MissingAsset, match=r"specbench\[placement\]"):
        loading_settings(spec.placement)


def test_the_current_gpu_is_the_runs_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert numbered(torch.device("cuda")) == numbered(torch.device("cuda:1")) != numbered(torch.device("cuda:0"))
    assert numbered(CPU) == CPU


def test_a_model_in_layers_reads_its_input_on_its_first_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    layers = ModelSpec(path="x", parallel="layers", devices=(0, 1))
    assert device_of_model("target", layers, torch.device("cuda:1")) == torch.device("cuda:0")


def test_a_login_node_resolves_for_the_gpus_of_its_cluster(monkeypatch):
    """The names of run folders depend on the device, and driver and jobs must agree on them."""
    preset, pair = selection.read_pair("tiny", Options())

    def sources():
        found = resolve_models(pair, ("draft", "target"), preset.path.parent, Execution(device_of("auto")))
        return {role: each.source for role, each in found.items()}

    with assuming("cuda"):
        here = sources()
    assert device_of("auto") == CPU and here != sources()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert here == sources()


class Rows:
    """A session whose logits favor the number of tokens that it has read."""

    def score(self, ids, start, tree=None):
        return torch.nn.functional.one_hot(torch.arange(start + 1, len(ids) + 1), 16).float() * 9


def test_a_moved_session_gives_the_same_logits_and_drafts():
    sampler = Sampler(0.0, 0, 1.0, torch.Generator())
    moved = MovedSession(Rows(), CPU, CPU)
    assert moved.score([1, 2, 3], 1).equal(Rows().score([1, 2, 3], 1)) and moved.moved == 2 * 16 * 4
    draft = moved.roll([1, 2], 3, sampler, frozenset())
    assert draft.tokens == roll(Rows(), [1, 2], 3, sampler, frozenset()).tokens == [2, 3, 4]


# Memory: the estimate against the storages of a model of the 70B architecture at toy width.


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """A folder with random weights in the architecture of Llama-3.1-70B, narrow and with few layers."""
    folder = tmp_path_factory.mktemp("toy")
    table = bundled_architecture("meta-llama/Llama-3.1-70B-Instruct") | {
        "hidden_size": 256, "intermediate_size": 896, "num_hidden_layers": 8, "num_attention_heads": 8,
        "num_key_value_heads": 2, "vocab_size": 1024, "head_dim": 32,
    }  # fmt: skip
    AutoModelForCausalLM.from_config(AutoConfig.for_model(**table)).save_pretrained(folder / "toy")
    (folder / "toy.toml").write_text('[models.target]\npath = "toy"\n')
    return folder


def planned(toy, **changes):
    """The model as a plan sees it."""
    overrides = tuple((f"pair.models.target.{key}", value) for key, value in changes.items())
    options = Options(overrides=overrides, engine="eager", dtype="float32")
    preset, pair = selection.read_pair(str(toy / "toy.toml"), options)
    on = Execution(torch.device("cpu"), options.dtype, options.engine, elsewhere=True)
    return resolve_models(pair, ("target",), preset.path.parent, on)["target"]


def storages(tensors):
    """The bytes of all different storages."""
    return sum({each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}.values())


def parts(model):
    return [*model.parameters(), *model.buffers()]


def cached(model, sequence):
    """The tensors of the cache after a sequence was read."""
    with torch.inference_mode():
        cache = model(input_ids=torch.arange(sequence)[None], use_cache=True).past_key_values
    return [each for layer in cache.layers for each in (layer.keys, layer.values)]


def test_the_memory_of_one_device_is_that_of_its_storages(toy):
    model = AutoModelForCausalLM.from_pretrained(toy / "toy", dtype=torch.float32)
    (found,) = memory_by_device({"target": planned(toy)}, {}, PROMPT + OUTPUT, "cpu")
    assert found.weights == pytest.approx(storages(parts(model)), rel=0.05)
    assert found.cache == pytest.approx(storages(cached(model, PROMPT + OUTPUT)), rel=0.05)
    assert found.graphs == 0 and found.models == ("target",)


def test_the_memory_of_layers_is_that_of_accelerates_map(toy):
    """Accelerate keeps room for its largest block, so each device may hold one layer less than its limit allows."""
    from accelerate import infer_auto_device_map

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(toy / "toy"), dtype=torch.float32)
    size = planned(toy).size
    limits = [int(0.5 * size.resident_bytes), size.resident_bytes]
    names = ["cpu", "disk"]
    blocks = infer_auto_device_map(model, dict(zip(names, limits, strict=True)), model._no_split_modules)
    theirs = [0, 0]
    for name, device in blocks.items():
        theirs[names.index(device)] += sum(each.nbytes for each in model.get_submodule(name).parameters())
    spec = planned(toy, parallel="layers", devices=names, memory_gib=[each / 2**30 for each in limits])
    ours, layers = layer_split(spec, limits)
    assert sum(ours) == pytest.approx(size.resident_bytes, rel=0.01) and sum(layers) == size.layers
    layer = (size.resident_bytes - size.embedding_bytes) / size.layers
    assert all(abs(a - b) <= 1.05 * layer for a, b in zip(ours, theirs, strict=True)), (ours, theirs, layer)


def test_equal_shares_without_limits(toy):
    spec = planned(toy, parallel="layers", devices=[0, 1, 2, 3])
    found = memory_by_device({"target": spec}, {}, PROMPT + OUTPUT)
    assert [each.device for each in found] == [f"cuda:{i}" for i in range(4)]
    weights = [each.weights for each in found]
    assert sum(weights) == pytest.approx(spec.size.resident_bytes, rel=0.01)
    assert max(weights) < 0.5 * spec.size.resident_bytes
