"""Models on devices of their own: config, sessions between devices, layers over two memories, split tensors, memory."""

import json
import socket
from functools import partial
from threading import Event
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from transformers import AutoConfig, AutoModelForCausalLM

from specbench.config.options import Options
from specbench.config.pair import ModelSpec, place_overrides
from specbench.config.presets import bundled_architecture
from specbench.decoding.drafting import roll
from specbench.decoding.sampling import Sampler
from specbench.errors import ConfigError, ExitCode, MissingAsset
from specbench.experiment import tensor_parallel
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
from specbench.runs.record import Record
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
TENSOR = ["--place", "target=tensor:cpu,cpu"]
PROMPT, OUTPUT = 40, 24


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"device": "gpu"}, "device = 'gpu' must be cpu, cuda or cuda:N"),
        ({"devices": [0, 1]}, 'need parallel = "layers" or "tensor"'),
        ({"parallel": "layers", "devices": [0]}, "at least two"),
        ({"parallel": "layers", "devices": [0, 0]}, "names a device twice"),
        ({"parallel": "tensor", "devices": [0, "disk"]}, "must be numbers of GPUs"),
        ({"parallel": "layers", "devices": ["cpu", "disk"]}, "need memory_gib"),
        ({"parallel": "layers", "devices": [0, 1], "memory_gib": [1.0]}, "one limit per device"),
        ({"parallel": "tensor", "devices": [0, 1], "device": "cuda:0"}, "conflict"),
        ({"parallel": "tensor", "devices": [0, 1], "quantization": "int4"}, "a quantized model"),
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
    for wrong in ("target", "target=gpu", "=cpu", "target=layers", "target=rows:0,1"):
        with pytest.raises(ConfigError, match="such as target=cuda:1"):
            place_overrides([wrong])


def test_a_device_that_is_not_here_is_missing(tmp_path):
    done = console.specbench(*RUN, "--place", "target=cuda:7", cwd=tmp_path, code=4)
    assert "model 'target': no device cuda:7 here" in done.stderr


def test_only_eager_splits_a_model(tmp_path):
    llama = Architecture(AutoConfig.for_model("llama"))
    in_layers, split = (ModelSpec(path="x", devices=(0, 1), parallel=kind) for kind in ("layers", "tensor"))
    assert engine_of("auto", in_layers, llama, CPU) == "eager"
    with pytest.raises(ValueError, match="help: --engine eager"):
        engine_of("lean", split, llama, CPU)


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


def test_split_tensors_decode_the_same_tokens(tmp_path):
    """Two processes hold half of the target each, and decode together."""
    for temperature in (0, 1):
        sampling = ("--temperature", temperature)
        console.specbench(*RUN, *sampling, "--out", f"whole{temperature}", cwd=tmp_path)
        console.specbench(*RUN, *sampling, *TENSOR, "--out", f"tensor{temperature}", cwd=tmp_path)
        assert tokens(tmp_path / f"tensor{temperature}") == tokens(tmp_path / f"whole{temperature}")
    assert not dist.is_initialized()


def tokens(results):
    """The ids of all generations of the only run in a folder, which is complete."""
    (folder,) = (path.parent for path in results.glob("*/run.toml"))
    found = load_run(folder)
    assert found.complete and not any(record.error for record in found.records)
    return {record.key: record.tokens for record in found.records}


def test_ranks_that_disagree_end_the_run(monkeypatch):
    record = Record(method="sd", sample="0", repeat=0, seed=0, order=0, tokens=[1, 2])
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "get_backend", lambda: "gloo")

    def gathered(found, own, other):
        found[0].copy_(own)
        found[1].copy_(own + other)

    monkeypatch.setattr(dist, "all_gather", partial(gathered, other=0))
    tensor_parallel.agree(record)
    monkeypatch.setattr(dist, "all_gather", partial(gathered, other=1))
    with pytest.raises(tensor_parallel.TokensDiffer, match="decoded different tokens: sd, sample 0"):
        tensor_parallel.agree(record)


def test_a_rank_that_ends_while_it_decodes_ends_the_run(tmp_path, monkeypatch):
    check = tensor_parallel.TensorParallel._check

    def killing(self, record):
        for process in self._processes:
            process.kill()
        check(self, record)

    with monkeypatch.context() as patch:
        patch.setattr(tensor_parallel.TensorParallel, "_check", killing)
        done = console.specbench(*RUN, *TENSOR, cwd=tmp_path, code=4)
    assert "rank 1: its process ended" in done.stderr and not dist.is_initialized()


def test_rank_0_ends_while_it_waits_for_a_rank_that_has_ended(monkeypatch, capsys):
    """NCCL reports no error for a lost rank until its time limit."""
    ranks = object.__new__(tensor_parallel.TensorParallel)
    ranks._pipes, ranks._closed = [], Event()
    ranks._processes = [SimpleNamespace(is_alive=lambda: False)]
    codes = []
    monkeypatch.setattr(tensor_parallel, "POLL", 0.01)
    monkeypatch.setattr(tensor_parallel, "GRACE", 0.01)
    monkeypatch.setattr(tensor_parallel.os, "_exit", codes.append)
    ranks._watch()
    assert codes == [ExitCode.MISSING] and "a rank ended" in capsys.readouterr().err
    ranks._closed.set()
    ranks._watch()
    assert len(codes) == 1


def test_a_generation_that_failed_on_one_rank_ends_the_run():
    record = Record(method="sd", sample="0", repeat=0, seed=0, order=0, error="OutOfMemoryError: 3 GiB")
    with pytest.raises(MissingAsset, match="OutOfMemoryError: 3 GiB"):
        tensor_parallel.agree(record)


def test_other_commands_reject_split_tensors(tmp_path):
    done = console.specbench("trace", "-m", "sd", "-p", "tiny", "-t", "gsm8k", "--set", "pair.models.target.parallel=tensor",
        "--set", 'pair.models.target.devices=["cpu", "cpu"]', cwd=tmp_path, code=2)  # fmt: skip
    assert "only `specbench run`" in done.stderr


def test_without_accelerate_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "accelerate.utils", None)
    spec = ModelSpec(path="x", parallel="layers", devices=(0, 1))
    with pytest.raises(MissingAsset, match=r"specbench\[placement\]"):
        loading_settings(spec.placement)


def test_the_current_gpu_is_the_runs_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert numbered(torch.device("cuda")) == numbered(torch.device("cuda:1")) != numbered(torch.device("cuda:0"))
    assert numbered(CPU) == CPU


def test_every_process_of_split_tensors_reads_on_its_own_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    spec, second = ModelSpec(path="x", parallel="tensor", devices=(0, 1)), torch.device("cuda:1")
    assert device_of_model("target", spec, second) == second
    layers = ModelSpec(path="x", parallel="layers", devices=(0, 1))
    assert device_of_model("target", layers, second) == torch.device("cuda:0")


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

    keeps_hidden = False

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
    (found,) = memory_by_device({"target": planned(toy)}, [], PROMPT + OUTPUT, "cpu")
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
    found = memory_by_device({"target": spec}, [], PROMPT + OUTPUT)
    assert [each.device for each in found] == [f"cuda:{i}" for i in range(4)]
    weights = [each.weights for each in found]
    assert sum(weights) == pytest.approx(spec.size.resident_bytes, rel=0.01)
    assert max(weights) < 0.5 * spec.size.resident_bytes


def test_the_memory_of_split_tensors_is_that_of_each_process(toy, tmp_path):
    spec = planned(toy, parallel="tensor", devices=["cpu", "cpu"])
    found = memory_by_device({"target": spec}, [], PROMPT + OUTPUT, "cpu")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(measure_rank, (port, toy / "toy", tmp_path), nprocs=2)
    for rank in range(2):
        weights, cache = json.loads((tmp_path / f"{rank}.json").read_text())
        assert sum(each.weights for each in found) / 2 == pytest.approx(weights, rel=0.05)
        assert sum(each.cache for each in found) / 2 == pytest.approx(cache, rel=0.05)


def measure_rank(rank, port, path, out):
    """Write the bytes of weights and cache that one of two processes holds."""
    devices = ("cpu", "cpu")
    tensor_parallel._join(rank, tensor_parallel._Loading({}, {}, path, devices, port, 1))
    settings = loading_settings(ModelSpec(path="x", parallel="tensor", devices=devices).placement)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, **settings)
    local = [each.to_local() if hasattr(each, "to_local") else each for each in parts(model)]
    found = [sum(each.nbytes for each in local), storages(cached(model, PROMPT + OUTPUT))]
    (out / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()
