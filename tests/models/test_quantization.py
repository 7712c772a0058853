"""QuantizedLinear weights: what a layer computes, what a model says and costs, and who may not be quantized."""

import copy
import json
import resource
import shutil
import sys
import weakref
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import nn

from specbench.config.construct import construct
from specbench.config.pair import PACKAGE, ModelSpec, Pair
from specbench.config.presets import preset
from specbench.config.quantization_kind import QuantizationKind
from specbench.data.synthetic import word_problems as gsm8k
from specbench.decoding.rejection import tv
from specbench.errors import ConfigError, MissingAsset
from specbench.kernels import kernels
from specbench.machine.memory import return_freed_memory
from specbench.models import engines, products, quantization, simulated
from specbench.models.cached_session import CachedSession
from specbench.models.engines import LeanModel, engine_of
from specbench.models.lean import GraphModelRunner, Graphs, LeanModelRunner
from specbench.models.loaded_pair import LoadedPair
from specbench.models.loader import load
from specbench.models.panel_codes import CodesProduct, PanelCodes, QuantizedLinear
from specbench.models.products import Separate, product_of
from specbench.models.quantization import ByteRows, Rebuilt, Tiles, codes_of, layers, quantize, quantized, sizes
from specbench.models.resolve_models import Execution, resolve_models
from specbench.models.resolved_model import Architecture
from tests.fixtures.worlds import ENGINES, open_session, random_model

CPU = torch.device("cpu")
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
KINDS = ("int4", "int8", "nf4")
TARGET = "specbench:tiny/models/target"
LINEAR = {(192, 192): 4, (192, 512): 2, (512, 192): 1}  # its layers' (in, out), 7 times
of = QuantizationKind.parse
needs_kernels = pytest.mark.skipif(kernels() is None, reason="no kernels on this machine: needs g++ and AVX2")
needs_torchao = pytest.mark.skipif(find_spec("torchao") is None, reason="needs torchao: specbench[quantization]")


def tiny(*kinds: str, **more: object) -> Pair:
    """The bundled target, quantized or not, in a role of the kind's name."""
    models = {kind or "full": {"path": TARGET, "quantization": kind, **more} for kind in kinds}
    return construct(Pair, {"models": models}, "pair.toml")


def brought(pair: Pair, engine: str = "auto", roles: tuple[str, ...] = ()) -> LoadedPair:
    return load(resolve_models(pair, roles or tuple(pair.models), Path(), Execution(CPU, "auto", engine)), Path(), CPU)


@pytest.fixture
def without_kernels(monkeypatch):
    """Multiply with torch's kernels."""
    monkeypatch.setattr(products, "kernels", lambda: None)


def rounded(double: QuantizedLinear, weight: torch.Tensor) -> torch.Tensor:
    """(out, in): what a layer's double multiplies with."""
    return double.product(torch.eye(weight.shape[1], dtype=weight.dtype, device=weight.device)).t()


@needs_torchao
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_quantized_layer_multiplies_with_the_rounded_matrix(kind, device):
    """Within a step of what it was.

    A 15th of what a group spans, a 127th of a row's greatest, or NF4's widest half gap.
    """
    torch.manual_seed(0)
    layer = nn.Linear(192, 48, device=device).requires_grad_(False)
    double, group = quantized(layer, of(kind)), of(kind).group_of(192)
    weight, matrix = (each.unflatten(1, (-1, group)) for each in (layer.weight, rounded(double, layer.weight)))
    span, greatest = weight.amax(-1, keepdim=True) - weight.amin(-1, keepdim=True), weight.abs().amax(-1, keepdim=True)
    step = {"int4": span / 15, "int8": greatest / 127, "nf4": 0.17 * greatest}[kind]
    assert ((matrix - weight).abs() <= step).all()
    levels = max(len(torch.unique((one * 1e4).round())) for one in matrix.flatten(0, 1))
    assert 8 < levels <= (192 if kind == "int8" else 16)
    x = torch.randn(2, 3, 192, device=device)
    within = 0.02 if isinstance(double, Tiles | ByteRows) else 1e-5  # torch's kernels round the input to bfloat16
    assert torch.allclose(double(x), x @ matrix.flatten(1).t() + layer.bias, atol=within)


@needs_torchao
@pytest.mark.parametrize("kind", ["int4", "int8"])
def test_torch_multiplies_where_there_are_no_kernels(kind, without_kernels):
    torch.manual_seed(0)
    layer = nn.Linear(192, 48).requires_grad_(False)
    double, x = quantized(layer, of(kind)), torch.randn(5, 192)
    assert isinstance(double, Tiles if kind == "int4" else ByteRows)
    assert torch.allclose(double(x), x @ rounded(double, layer.weight).t() + layer.bias, atol=0.02)


@needs_torchao
@pytest.mark.parametrize("width", [20, 24, 48])
def test_int8_of_any_width_does_not_use_the_kernel_of_torch(width, without_kernels):
    """The kernel reads past the end of rows whose length no multiple of its step is."""
    layer = nn.Linear(width, 16).requires_grad_(False)
    double, x = quantized(layer, of("int8")), torch.randn(6, width)
    assert isinstance(double, Rebuilt)
    assert torch.allclose(double(x), layer(x), atol=0.05)


@needs_torchao
@needs_kernels
@pytest.mark.parametrize("kind", ["int4", "int8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("outputs", [48, 33])
def test_a_block_is_multiplied_as_its_rows_are(kind, dtype, outputs):
    """Also by a copy of the layer, and by a product that joins several layers."""
    torch.manual_seed(0)
    layer = quantized(nn.Linear(192, outputs, dtype=dtype).requires_grad_(False), of(kind))
    assert isinstance(layer, PanelCodes)
    x = torch.randn(9, 192, dtype=dtype)
    by_row = torch.cat([layer(row[None]) for row in x])
    assert torch.equal(layer(x), by_row)
    assert torch.equal(copy.deepcopy(layer)(x), by_row)


@needs_torchao
@needs_kernels
@pytest.mark.parametrize("outputs", [(64, 32), (32, 33), (33, 32)])
def test_quantized_layers_of_one_input_are_joined(outputs):
    torch.manual_seed(0)
    layers = [quantized(nn.Linear(64, size).requires_grad_(False), of("int4")) for size in outputs]
    x, residual = torch.randn(3, 64), torch.randn(3, sum(outputs))
    expected = torch.cat([layer(x) for layer in layers], -1)
    product = product_of(layers)
    assert isinstance(product, Separate if outputs == (33, 32) else CodesProduct)
    assert torch.allclose(product(x), expected, atol=1e-6)
    assert torch.allclose(product.added(residual.clone(), x), residual + expected, atol=1e-6)
    assert torch.allclose(torch.cat([layer(x) for layer in layers], -1), expected, atol=1e-6), (
        "whose codes are views now"
    )


@needs_torchao
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("width", [256, 192, 96])
@pytest.mark.parametrize("form", [PanelCodes, Tiles])
def test_int4_stores_four_bits_per_weight(width, form, device, request):
    """The kernels' layouts of codes, scales and zeros, at every group size: a tenth of a step from what bytes say."""
    torch.manual_seed(0)
    if form is PanelCodes and (device != "cpu" or kernels() is None):
        pytest.skip("no kernels for this device")
    if form is Tiles:
        request.getfixturevalue("without_kernels")
    layer = nn.Linear(width, 64, device=device, dtype=torch.bfloat16).requires_grad_(False)
    four = quantized(layer, of("int4"))
    request.getfixturevalue("without_kernels")
    plain = Rebuilt(layer, codes_of(layer.weight, of("int4")))
    assert isinstance(four, form)
    apart = rounded(four, layer.weight).float() - rounded(plain, layer.weight).float()
    assert apart.abs().max() < 0.1 * plain.scale.float().min()
    groups = width // of("int4").group_of(width)
    held = sum(tensor.nbytes for tensor in four.buffers())
    assert held == width * 64 // 2 + groups * 64 * 2 * 2, "as `sizes` counts"


@needs_torchao
@pytest.mark.parametrize("kind", ["int4", "int8"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "llama-scaled", "gpt-neo", "opt", "t5", "t5-v1.1", "mt5"])
def test_every_engine_computes_the_same_logits_with_quantized_weights_after_truncation(family, kind):
    """In float32, grown, cut back and changed. Layers of 48 inputs, which no group of int4 divides, stay as they are."""
    model = random_model(family, 3)
    before = set(layers(model, of("int8")))
    quantize(model, of(kind))
    plain = {name for name, module in model.named_modules() if isinstance(module, nn.Linear)} & before
    assert bool(plain) == (kind == "int4" and family != "gpt-neo")
    source = [4, 9, 1] if "t5" in family else None
    sessions = [open_session(copy.deepcopy(model), engine, source) for engine in ENGINES[: 2 if source else 3]]
    ids = [0, 11, 3, 8, 5]
    for each in (ids, [*ids, 7, 2], [*ids[:3], 9], [*ids[:3], 9, 1, 6, 4]):
        eager, *others = (session.score(each, len(each) - 1) for session in sessions)
        within = 2e-4 if kernels() or kind == "int4" else 0.1  # torch's kernel for int8 rounds inputs to bfloat16
        assert all(torch.allclose(eager, other, atol=within) for other in others)


@needs_torchao
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_of_a_bfloat16_copy_equals_its_lean_forward(kind, device):
    """On a GPU the kernels are recorded and replayed; on a CPU the static forward runs without capture."""
    place = torch.device(device)
    network = (
        load(resolve_models(tiny(kind), (kind,), Path(), Execution(place, "bfloat16", "lean")), Path(), place)
        .models[kind]
        .network
    )
    fast = Tiles if device == "cuda" or kernels() is None else PanelCodes
    assert any(isinstance(module, fast) for module in network.model.modules()) == (
        (kind != "nf4" and fast is PanelCodes) or kind == "int4"
    )
    graphs = Graphs(network, place)
    graphs.prepare(64, range(1, 4))
    lean, graph = CachedSession(LeanModelRunner(network, 1024)), CachedSession(GraphModelRunner(graphs, 1024))
    ids = list(range(5, 30))
    for each in (ids, [*ids, 7], [*ids, 7, 2, 9], [*ids[:20], 4]):
        one, two = (session.score(each, len(each) - 1).softmax(-1) for session in (lean, graph))
        assert float(tv(one, two)) < 0.1, "more than bfloat16 rounds"


@needs_torchao
def test_quantized_copies_of_the_bundled_target_are_close_to_it_on_every_engine():
    """Mean TV to its distributions over prompts and answers.

    Int4 .006, int8 .0004, nf4 .005 on 40 of them, where this was written.
    """
    lean, eager = brought(tiny("", *KINDS)), brought(tiny("", *KINDS), "eager")
    assert all(isinstance(model, LeanModel) for model in lean.models.values())
    assert not any(isinstance(model, LeanModel) for model in eager.models.values())
    apart: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for ids in prompts(lean):
        full = lean.session("full", None).score(ids, 0).softmax(-1)
        for kind, found in apart.items():
            one, two = (pair.session(kind, None).score(ids, 0) for pair in (lean, eager))
            assert torch.allclose(one, two, atol=1e-3 if kind == "nf4" else 0.1)
            found.append(float(tv(one.softmax(-1), full).mean()))
    for kind, most in (("int4", 0.03), ("int8", 0.003), ("nf4", 0.03)):
        assert most / 60 < sum(apart[kind]) / len(apart[kind]) < most


def prompts(pair: LoadedPair) -> list[list[int]]:
    """Synthetic GSM8K problems with their worked answers, of the test split."""
    rows = islice(gsm8k.GSM8K.rows("test"), 5)
    return [pair.tokenizer.encode(gsm8k.prompt(row) + gsm8k.answer(row)) for row in rows]


@needs_torchao
def test_a_quantized_copy_of_a_source_is_another_model_of_as_many_parameters():
    pair = construct(Pair, {"models": {
        "full": {"path": TARGET}, "int4": {"path": TARGET, "quantization": "int4"},
        "same": {"path": TARGET, "quantization": "int4"}, "int8": {"path": TARGET, "quantization": "int8"},
    }}, "pair.toml")  # fmt: skip
    found = resolve_models(pair, tuple(pair.models), Path(), Execution(CPU))
    identities = [str(each.identity) for each in found.values()]
    assert len(set(identities)) == 3 and identities[1] == identities[2]
    assert len({each.size.parameters for each in found.values()}) == 1
    loaded = load(found, Path(), CPU)
    assert loaded.models["int4"] is loaded.models["same"]
    assert len({id(model) for model in loaded.models.values()}) == 3
    plain = [m for m in loaded.models["full"].model.modules() if isinstance(m, nn.Linear)]
    assert len(plain) == 7 * 7 + 1, "the original keeps its matrices"
    kept = [m for m in loaded.models["int4"].model.modules() if isinstance(m, nn.Linear)]
    assert kept == [loaded.models["int4"].model.get_output_embeddings()], "the head is not quantized"


@needs_torchao
def test_a_forward_reads_the_bits_and_the_scales():
    """The scales and zeros of int4 have two bytes each, the scales of int8 four; nf4 has a byte for 64 weights and a
    float for 64 of these bytes.
    """
    found = resolve_models(tiny("", *KINDS), ("full", *KINDS), Path(), Execution(CPU))
    least = {kind: each.source.forward_bytes for kind, each in found.items()}
    whole = 7 * sum(count * i * o for (i, o), count in LINEAR.items())
    int4 = 7 * sum(count * (i * o // 2 + 4 * o * i // (128 if i == 512 else 64)) for (i, o), count in LINEAR.items())
    int8 = 7 * sum(count * (i * o + 4 * o) for (i, o), count in LINEAR.items())
    assert least["full"] - least["int4"] == 4 * whole - int4
    assert least["full"] - least["int8"] == 4 * whole - int8
    assert least["nf4"] < least["int4"] < least["int8"] < least["full"] / 3
    assert len({each.source.position_bytes for each in found.values()}) == 1


@needs_torchao
@pytest.mark.parametrize("name", ["vicuna-7b-polybasic", "llama2-chat-7b-polybasic", "llama3-8b-polybasic"])
def test_a_polybasic_pair_runs_on_dummy_weights(name):
    """Shrunken: the middle model is quantized random weights."""
    table = preset("pair", name).table
    small = {"num_hidden_layers": 1, "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4}
    models = {role: spec | {"config": small | {"num_key_value_heads": 2}} for role, spec in table["models"].items()}
    pair = construct(Pair, table | {"weights": "dummy", "models": models}, name)
    loaded = brought(pair, roles=("middle", "target"))
    assert not any(isinstance(m, QuantizedLinear) for m in loaded.models["target"].model.modules())
    assert sum(isinstance(m, PanelCodes | Tiles) for m in loaded.models["middle"].model.modules()) == 7
    assert loaded.session("middle", None).score([1, 2, 3], 2).isfinite().all()


@pytest.mark.parametrize("name", ["gpt-neo", "gpt2"])
def test_the_architectures_of_sprinters_pairs_are_known(name):
    pair = construct(Pair, preset("pair", name).table, name)
    sizes_of = [simulated.architecture(spec.path, {}).hidden_size for spec in pair.models.values()]
    assert sizes_of == ([768, 2048] if name == "gpt-neo" else [768, 1600])


def test_an_unknown_kind_is_named_with_its_file_its_key_and_the_nearest():
    with pytest.raises(ConfigError, match=r"pair.toml: models.int5: quantization = 'int5' \(did you mean 'int"):
        tiny("int5")


@needs_torchao
@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("text", ["int4-channel", "int4-g32-sym", "int4-g128", "int8", "int8-g64-asym", "int8-g32-a8"])
def test_the_bytes_of_a_kind_are_those_that_its_layers_hold(text, dtype, request):
    """Of 33 outputs, which no panel holds without padding, by torch's form; and of 64 by the kernels'."""
    kind, forms = of(text), [torch.nn.Linear(256, 64, dtype=dtype), torch.nn.Linear(256, 33, dtype=dtype)]
    for layer in forms:
        if layer.out_features == 33:
            request.getfixturevalue("without_kernels")
        model = nn.Sequential(layer.requires_grad_(False))
        model.get_output_embeddings = lambda: None
        (counted,) = sizes(model, kind, dtype).values()
        held = sum(tensor.nbytes for name, tensor in quantized(layer, kind).named_buffers() if "ones" not in name)
        assert counted.read == held


@needs_torchao
def test_an_explicit_group_leaves_the_layers_that_it_does_not_divide():
    """The layers of the bundled target have 192 or 512 inputs; by default, those of 192 have groups of 64."""
    names = {
        kind: set(layers(brought(tiny("")).models["full"].model, of(kind))) for kind in ("int4", "int4-g128", "int8")
    }
    assert len(names["int4"]) == len(names["int8"]) == 7 * 7
    assert len(names["int4-g128"]) == 7 and all(name.endswith("down_proj") for name in names["int4-g128"])
    loaded = brought(tiny("int4-g128")).models["int4-g128"].model
    assert sum(isinstance(module, QuantizedLinear) for module in loaded.modules()) == 7


@needs_torchao
def test_a_group_that_divides_no_layer_is_an_error_with_a_kind_that_fits():
    config = {"num_hidden_layers": 1, "hidden_size": 96, "intermediate_size": 160, "num_attention_heads": 4}
    model = {
        "path": "meta-llama/Llama-2-7b-hf",
        "quantization": "int4-g64-a8",
        "config": config | {"num_key_value_heads": 2},
    }
    pair = construct(Pair, {"weights": "dummy", "models": {"target": model}}, "pair.toml")
    message = (
        r"model 'target': quantization = 'int4-g64-a8': its groups divide the inputs of no linear layer of llama, which have"
        r" 96, 160 inputs; help: quantization = 'int4-g32-a8'$"
    )
    with pytest.raises(ConfigError, match=message):
        resolve_models(pair, ("target",), Path(), Execution(CPU))


@needs_torchao
@pytest.mark.parametrize(("text", "layers_"), [("int4", 12), ("int8", 12), ("nf4", 2)])
def test_a_matrix_is_freed_before_the_next_one_is_quantized(text, layers_, monkeypatch):
    """So a model in full precision and one layer's codes are the most that memory holds."""
    model, alive = random_model("gpt-neo", 3), list[int]()
    matrices = [weakref.ref(layer.weight) for layer in layers(model, of(text)).values()]
    found = quantization.quantized

    def counted(layer, kind):
        alive.append(sum(matrix() is not None for matrix in matrices))
        return found(layer, kind)

    monkeypatch.setattr(quantization, "quantized", counted)
    quantize(model, of(text))
    assert alive == list(range(layers_, 0, -1))


@needs_torchao
@pytest.mark.parametrize("kind", ["int4", "int8-a8"])
def test_memory_that_is_exhausted_while_a_model_is_quantized_is_one_line(kind):
    """The limit on memory allows the model, but not the copies of a layer that quantization makes."""
    config = {"num_hidden_layers": 1, "hidden_size": 1024, "intermediate_size": 20480, "num_attention_heads": 8}
    model = {"path": "meta-llama/Llama-2-7b-hf", "quantization": kind, "config": config | {"num_key_value_heads": 8}}
    pair = construct(
        Pair,
        {"weights": "dummy", "models": {"target": model | {"config": model["config"] | {"vocab_size": 64}}}},
        "pair.toml",
    )
    found = resolve_models(pair, ("target",), Path(), Execution(CPU))

    def limited(*arguments):
        return_freed_memory()
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (8 << 20), limits[1]))
        quantize(*arguments)

    limits = resource.getrlimit(resource.RLIMIT_AS)
    try:
        with patch.object(engines, "quantize", limited), pytest.raises(MissingAsset) as raised:
            load(found, Path(), CPU)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert str(raised.value).startswith("model 'target': meta-llama/Llama-2-7b-hf does not fit into the memory of cpu")
    assert "\n" not in str(raised.value)


def test_missing_torchao_is_one_line_with_installation_help(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(MissingAsset, match=r"needs torchao.*\n  help: pip install 'specbench\[quantization\]'"):
        resolve_models(tiny("int4"), ("int4",), Path(), Execution(CPU))
    assert resolve_models(tiny(""), ("full",), Path(), Execution(CPU))


@needs_torchao
def test_a_model_without_linear_layers_is_rejected():
    table = {"weights": "dummy", "models": {"target": {"path": "openai-community/gpt2", "quantization": "int4"}}}
    with pytest.raises(ConfigError, match="model 'target': quantization = 'int4': gpt2 has no linear layer"):
        resolve_models(construct(Pair, table, "pair.toml"), ("target",), Path(), Execution(CPU))


@pytest.mark.parametrize(("stored", "library"), [
    ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "optimum"),
    ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "gptqmodel"),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
])  # fmt: skip
def test_a_quantized_checkpoint_of_another_form_is_left_to_transformers(stored, library, tmp_path):
    """It runs eagerly, is not quantized again, and one line names the library that it needs."""
    folder = shutil.copytree(PACKAGE / "tiny/models/target", tmp_path / "stored")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": stored}))
    pair = construct(Pair, {"models": {"target": {"path": str(folder)}}}, "pair.toml")
    found = resolve_models(pair, ("target",), tmp_path, Execution(CPU))
    assert found["target"].engine == "eager"
    assert found["target"].source.forward_bytes < 4 * found["target"].size.parameters / 3
    if find_spec(library) is None:
        with pytest.raises(MissingAsset, match=rf"(?i)^model 'target': .* is quantized by .*{library}[^\n]*$"):
            load(found, tmp_path, CPU)
    again = construct(Pair, {"models": {"target": {"path": str(folder), "quantization": "int4"}}}, "pair.toml")
    with pytest.raises(ConfigError, match=rf"model 'target': .* is quantized already, by {stored['quant_method']}"):
        resolve_models(again, ("target",), tmp_path, Execution(CPU))


def test_graphs_are_chosen_only_for_models_that_can_be_captured():
    """int4 and int8 are plain launches.

    Whether torchao's NF4 can be recorded is not known, so it is requested explicitly.
    """
    vicuna, cuda = Architecture(simulated.architecture("lmsys/vicuna-7b-v1.3", {})), torch.device("cuda")
    plain, *copies = (ModelSpec(path="x", quantization=of(kind)) for kind in ("", *KINDS))
    assert [engine_of("auto", spec, vicuna, cuda) for spec in (plain, *copies)] == ["graph", "graph", "graph", "lean"]
    assert engine_of("graph", ModelSpec(path="x", quantization=of("nf4")), vicuna, cuda) == "graph"
    assert engine_of("auto", ModelSpec(path="x", quantization=of("int4")), vicuna, CPU) == "lean"
