"""Checkpoints that are quantized already: the logits, sizes and engines of each format, and damaged files."""

import copy
import json
import shutil
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import pytest
import tomli_w
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, LlamaConfig

import specbench
from specbench.config.construct import construct
from specbench.config.pair import ModelSpec, Pair
from specbench.errors import ConfigError, MissingAsset
from specbench.kernels import kernels
from specbench.models import products
from specbench.models.checkpoints import Checkpoint as Source
from specbench.models.checkpoints import load_model, read_config
from specbench.models.panel_codes import Codes, PanelCodes, QuantizedLinear
from specbench.models.quantization import Rebuilt, rounded_rows
from specbench.models.quantized_files.gptq import Gptq
from specbench.models.quantized_files.registry import unread
from specbench.models.resolve_models import Execution, resolve_models
from tests.fixtures.quantized_checkpoints import (
    CPU,
    IDS,
    SIZES,
    TARGET,
    Checkpoint,
    awq,
    brought,
    compressed,
    exact,
    gptq,
    gptq_config,
    logits_of,
    write,
    write_gguf,
)  # fmt: skip

needs_gguf = pytest.mark.skipif(find_spec("gguf") is None, reason="needs gguf: specbench[gguf]")


def ct_config(bits, group, form="pack-quantized", symmetric=True, **more):
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": "group" if group else "channel"}
    scheme = {"targets": ["Linear"], "weights": weights | {"group_size": group or None}, "input_activations": None}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": scheme | more}}


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
FORMATS = {
    "gptq-4": lambda f: write(f, gptq_config(), partial(gptq, bits=4, group=32)),
    "gptq-4-symmetric": lambda f: write(f, gptq_config(sym=True), partial(gptq, bits=4, group=32, asymmetric=False)),
    "gptq-8": lambda f: write(f, gptq_config(8), partial(gptq, bits=8, group=32), tie_word_embeddings=True),
    "gptq-channel": lambda f: write(f, gptq_config(4, 0), partial(gptq, bits=4, group=0)),
    "gptq-by-activation": lambda f: write(f, gptq_config(), partial(gptq, bits=4, group=32, by_activation=True)),
    "awq": lambda f: write(f, AWQ, partial(awq, group=32)),
    "pack-4": lambda f: write(f, ct_config(4, 32), partial(compressed, bits=4, group=32)),
    "pack-4-asymmetric": lambda f: write(
        f, ct_config(4, 32, symmetric=False), partial(compressed, bits=4, group=32, asymmetric=True)
    ),
    "pack-8-channel": lambda f: write(f, ct_config(8, 0), partial(compressed, bits=8, group=0)),
    "int-8-channel": lambda f: write(
        f, ct_config(8, 0, "int-quantized"), partial(compressed, bits=8, group=0, packs=False)
    ),
    "int-8-asymmetric": lambda f: write(
        f,
        ct_config(8, 32, "int-quantized", False),
        partial(compressed, bits=8, group=32, asymmetric=True, packs=False),
    ),
    "Q8_0": lambda f: write_gguf(f, "Q8_0"),
    "Q4_0": lambda f: write_gguf(f, "Q4_0", tie_word_embeddings=True),
    "Q4_1": lambda f: write_gguf(f, "Q4_1"),
    "F16": lambda f: write_gguf(f, "F16"),
}
NAMES = [pytest.param(name, marks=needs_gguf if name[0] in "QF" else ()) for name in FORMATS]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> dict[str, Checkpoint]:
    """Checkpoints by format, written when they are first used."""

    class Written(dict):
        def __missing__(self, name):
            self[name] = FORMATS[name](tmp_path_factory.mktemp(name))
            return self[name]

    return Written()


@pytest.mark.parametrize("engine", ["lean", "eager"])
@pytest.mark.parametrize("with_kernels", [True, False], ids=["kernels", "torch"])
@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_the_dequantized_weights(name, with_kernels, engine, checkpoints, monkeypatch):
    """Up to the rounding of sums in float32: 1e-5 of the largest logit."""
    if not with_kernels:
        monkeypatch.setattr(products, "kernels", lambda: None)
    pair, expected = brought(checkpoints[name], engine), exact(checkpoints[name])
    assert (logits_of(pair).double() - expected).abs().max() <= 1e-5 * expected.abs().max()
    layers = [each for each in pair.models["target"].model.modules() if isinstance(each, QuantizedLinear)]
    if name != "F16":
        kind = PanelCodes if with_kernels and kernels() else Rebuilt
        assert sum(isinstance(layer, kind) for layer in layers) >= 14


@pytest.mark.parametrize("name", NAMES)
def test_auto_runs_them_on_the_lean_engine(name, checkpoints):
    assert brought(checkpoints[name]).models["target"].__class__.__name__ == "LeanModel"


@pytest.mark.parametrize("name", [name for name in NAMES if "F16" not in str(name)])
def test_sizes_are_the_bytes_of_codes_scales_and_zeros(name, checkpoints):
    pair = construct(
        Pair, {"models": {"target": {"path": str(checkpoints[name].folder), **checkpoints[name].keys}}}, "p"
    )
    size = resolve_models(pair, ("target",), Path(), Execution(CPU, "float32", "eager"))["target"].size
    model = brought(checkpoints[name], "eager").models["target"].model
    padded = padding(model)
    tensors = {id(each): each for each in (*model.parameters(), *model.buffers()) if each.numel()}
    stored = sum(each.nbytes for key, each in tensors.items() if key not in unsaved(model))
    assert size.resident_bytes == stored - padded
    assert size.forward_bytes <= size.resident_bytes


def padding(model: torch.nn.Module) -> int:
    """Return the bytes that fill the last panels."""
    found = 0
    for layer in {id(each): each for each in model.modules() if isinstance(each, PanelCodes)}.values():
        rows = layer.scale.shape[0] * layer.scale.shape[2]
        tensors = [each for each in (layer.codes, layer.scale, layer.zero) if each is not None]
        found += sum(each.nbytes * (rows - layer.outputs) // rows for each in tensors)
    return found


def unsaved(model: torch.nn.Module) -> set[int]:
    """Return the ids of the order of inputs and of buffers that no checkpoint has."""
    return {id(each) for name, each in model.named_buffers() if name.endswith(("inv_freq", "order", "like"))}


@pytest.mark.parametrize("name", ["gptq-4", "pack-8-channel", pytest.param("Q4_0", marks=needs_gguf)])
@pytest.mark.parametrize("with_kernels", [True, False], ids=["kernels", "torch"])
def test_a8_rounds_the_inputs_of_products(name, with_kernels, checkpoints, monkeypatch):
    if not with_kernels:
        monkeypatch.setattr(products, "kernels", lambda: None)
    plain, rounded = brought(checkpoints[name], "eager"), brought(checkpoints[name], "eager", quantization="a8")
    layers = [pair.models["target"].model.model.layers[1].mlp.down_proj for pair in (plain, rounded)]
    x = torch.randn(3, 96)
    expected = layers[0](rounded_rows(x, 32).double() if not with_kernels else rounded_rows(x, 32)).float()
    assert torch.allclose(layers[1](x), expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(layers[1](x), layers[0](x), rtol=1e-5, atol=1e-5)
    found, expected = logits_of(brought(checkpoints[name], "lean", quantization="a8")), logits_of(rounded)
    assert (found - expected).abs().max() <= 0.05 * expected.abs().max(), (
        "other sums round some inputs to the next step"
    )


@pytest.mark.parametrize("scales", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("bits", "block"), [(4, 0), (4, 32), (8, 0), (8, 32)])
@pytest.mark.parametrize("outputs", [70, 200])
@pytest.mark.skipif(kernels() is None, reason="no kernels on this machine: needs g++ and AVX2")
def test_rows_of_panels_are_those_of_the_matrix(bits, block, scales, outputs):
    low, high, dtype = (-128, 128, torch.int8) if bits == 8 else (0, 16, torch.uint8)
    codes = torch.randint(low, high, (outputs, 64), dtype=dtype)
    scale, zero = torch.rand(outputs, 2).to(scales), torch.randn(outputs, 2).to(scales)
    layer = torch.nn.Linear(64, outputs).requires_grad_(False)
    weights = Codes(bits, codes, scale, zero)
    panels = PanelCodes(layer, kernels().width, weights, block)
    stored = codes if bits == 8 else codes.view(torch.int8) - 8
    ids = torch.tensor([0, 5, outputs - 1, 33, 16, 5])
    matrix = stored.float().unflatten(1, (2, 32)) * scale.float()[..., None] + zero.float()[..., None]
    assert torch.equal(panels.rows(ids), matrix.flatten(1)[ids])
    assert torch.equal(Rebuilt(layer, weights).rows(ids), matrix.flatten(1)[ids])


@pytest.mark.parametrize(("name", "kind", "message"), [
    ("gptq-4", "int4", "is quantized already, by gptq; leave the key out, or write 'a8'"),
    ("gptq-4", "int8-a8", "is quantized already, by gptq"),
    ("", "a8", "is not quantized, and a8 only rounds inputs; write 'int8-a8' or 'int4-a8'"),
])  # fmt: skip
def test_kinds_that_do_not_fit_the_checkpoint_are_rejected(name, kind, message, checkpoints):
    plain = Checkpoint(TARGET, None)
    with pytest.raises(ConfigError, match=f"model 'target': quantization = '{kind}': .*{message}"):
        brought(checkpoints[name] if name else plain, quantization=kind)


def test_a_model_without_a_chosen_type_is_loaded_in_float32(checkpoints):
    """Such as a judge."""
    folder = str(checkpoints["awq"].folder)
    model = load_model(Source("judge", folder, read_config(folder)))
    assert model.model.norm.weight.dtype == torch.float32
    with torch.inference_mode():
        found, expected = model(torch.tensor([IDS])).logits[0].double(), exact(checkpoints["awq"])
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_a8_needs_groups_of_whole_blocks(tmp_path):
    checkpoint = write(tmp_path, gptq_config(4, 16), partial(gptq, bits=4, group=16))
    assert logits_of(brought(checkpoint)).isfinite().all()
    with pytest.raises(ConfigError, match=r"in blocks of 32, and the layer model\.layers\.0\..* has groups of 16"):
        brought(checkpoint, quantization="a8")


LAYER = "model.layers.1.mlp.up_proj"
DAMAGE = {
    "no scales": (lambda w: w.pop(f"{LAYER}.scales"), "up_proj is damaged: no scales beside g_idx, qweight, qzeros"),
    "no layer": (lambda w: [w.pop(key) for key in list(w) if LAYER in key], f"1 missing .*: {LAYER}.weight"),
    "cut weights": (lambda w: cut(w, "qweight"), "up_proj is damaged: .* words for 64 inputs do not have 4 or 8 bits"),
    "cut zero points": (lambda w: cut(w, "qzeros"), r"qzeros has the shape \[1, 12\], not \[2, 12\]"),
    "uneven groups": (lambda w: w[f"{LAYER}.g_idx"].zero_(), "g_idx does not assign 32 inputs to each of 2 groups"),
    "float weights": (lambda w: change(w, "qweight", torch.float32), "packed integers have the type torch.float32"),
    "integer scales": (lambda w: change(w, "scales", torch.int32), "scales have the type torch.int32"),
    "infinite scales": (lambda w: w[f"{LAYER}.scales"].fill_(torch.inf), "a scale is not finite"),
    "no quantized layer": (
        lambda w: [w.pop(key) for key in list(w) if "proj" in key], "is quantized by gptq: no layer .* has the tensor qweight"
    ),
}  # fmt: skip


def cut(weights, name):
    weights[f"{LAYER}.{name}"] = weights[f"{LAYER}.{name}"][:-1].clone()


def change(weights, name, dtype):
    weights[f"{LAYER}.{name}"] = weights[f"{LAYER}.{name}"].to(dtype)


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_are_one_line_with_the_layer(damage, tmp_path, checkpoints):
    folder = shutil.copytree(checkpoints["gptq-4"].folder, tmp_path / "damaged")
    weights = load_file(folder / "model.safetensors")
    DAMAGE[damage][0](weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(MissingAsset, match=f"^model 'target': .*{DAMAGE[damage][1]}") as raised:
        brought(Checkpoint(folder, None))
    assert len(str(raised.value).split("\n  help")[0].splitlines()) == 1


def test_an_unknown_form_runs_on_the_eager_engine_only(tmp_path, checkpoints):
    folder = shutil.copytree(checkpoints["gptq-4"].folder, tmp_path / "three")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["bits"] = 3
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="quantized by GPTQ with 3 bits; only 4 and 8 are read; help: --engine eager"):
        brought(Checkpoint(folder, None), "lean")


@pytest.mark.parametrize("config", [
    ct_config(4, 32, "nvfp4-pack-quantized"), ct_config(3, 32), {"quant_method": "compressed-tensors"}, AWQ | {"bits": 8},
    {"quant_method": "gptq", "bits": 4, "group_size": "x"}, {"quant_method": "fp8"}, gptq_config(checkpoint_format="marlin"),
    {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": [1]},
])  # fmt: skip
def test_other_forms_are_a_reason_and_no_traceback(config):
    found = LlamaConfig()
    found.quantization_config = config
    assert unread(found, CPU).startswith("the lean engine cannot run this checkpoint, which is quantized by ")


def test_a_quantized_head_and_biases_of_zeros_are_read(tmp_path, checkpoints):
    """AutoGPTQ may quantize the LM head, and earlier versions wrote a bias for every layer."""
    one, head = checkpoints["gptq-4"], gptq((1024, 64), 4, 32)
    folder = shutil.copytree(one.folder, tmp_path / "head")
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    weights |= {f"lm_head.{name}": tensor.contiguous() for name, tensor in head.tensors.items()}
    names = [name.removesuffix("qweight") for name in weights if name.endswith("qweight")]
    weights |= {f"{name}bias": torch.zeros(weights[f"{name}scales"].shape[1]).half() for name in names}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    other = Checkpoint(folder, copy.deepcopy(one.reference))
    other.reference.lm_head.weight.data = head.matrix
    expected = exact(other)
    assert (logits_of(brought(other)).double() - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("name", ["gptq-4", pytest.param("Q4_0", marks=needs_gguf)])
def test_runs_write_the_ids_of_the_dequantized_model(name, checkpoints, tmp_path):
    checkpoint = checkpoints[name]
    stored, plain = {"path": str(checkpoint.folder), **checkpoint.keys}, {"path": str(tmp_path / "plain")}
    copy.deepcopy(checkpoint.reference).float().save_pretrained(plain["path"])
    AutoTokenizer.from_pretrained(checkpoint.folder, **checkpoint.keys).save_pretrained(plain["path"])
    found = {}
    for label, model in (("stored", stored), ("plain", plain)):
        (tmp_path / f"{label}.toml").write_text(tomli_w.dumps({"models": {"target": model, "draft": model}}))
        found[label] = specbench.run(
            "sd", str(tmp_path / f"{label}.toml"), "gsm8k", limit=2, repeats=1, max_new_tokens=8, data="synthetic",
            out=tmp_path / "runs", ignore_eos=True,
        )  # fmt: skip
    ids = {label: [record.tokens for record in result.records()] for label, result in found.items()}
    assert len(ids["stored"]) == 4 and all(map(len, ids["stored"])) and ids["stored"] == ids["plain"]
    kind = "GPTQ, 4 bits, groups of 32" if name == "gptq-4" else "GGUF, Q4_0"
    assert f"target: weights are stored as {kind}" in specbench.report(found["stored"], full=True)


PEAK = """
import sys, threading
from pathlib import Path
import torch
from specbench.config.construct import construct
from specbench.config.pair import Pair
from specbench.kernels import kernels
from specbench.models.engines import Lean
from specbench.models.loader import load
from specbench.models.resolve_models import Execution, resolve_models

def private():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) << 10

def watch():
    while not done.wait(0.001):
        samples.append(private())

Lean.is_checked = False
kernels()
pair = construct(Pair, {"models": {"target": {"path": sys.argv[1]}}}, "pair.toml")
models = resolve_models(pair, ("target",), Path(), Execution(torch.device("cpu"), "float32", "lean"))
done, samples, before = threading.Event(), [], private()
thread = threading.Thread(target=watch)
thread.start()
loaded = load(models, Path(), torch.device("cpu"))
done.set()
thread.join()
print((max(samples) - before) / models["target"].size.resident_bytes)
"""


@pytest.mark.skipif(kernels() is None or sys.platform != "linux", reason="needs the kernels and /proc/self/status")
def test_loading_takes_at_most_1_3_times_the_bytes_of_the_quantized_model(tmp_path):
    """Private memory (RssAnon), which leaves out the mapped file, sampled every millisecond in a process of its own."""
    layers, width = 12, 1024
    config = LlamaConfig(
        **SIZES
        | {"hidden_size": width, "intermediate_size": width, "num_hidden_layers": layers, "num_key_value_heads": 4}
    )
    one = gptq((width, width), 4, 128).tensors
    weights = {f"{name}.weight": torch.zeros(1024, width).half() for name in ("model.embed_tokens", "lm_head")}
    weights["model.norm.weight"] = torch.ones(width).half()
    for layer in range(layers):
        at = f"model.layers.{layer}"
        weights |= {f"{at}.{name}_layernorm.weight": torch.ones(width).half() for name in ("input", "post_attention")}
        for part, names in (("self_attn", "qkvo"), ("mlp", ("gate", "up", "down"))):
            for name, (key, tensor) in product(names, one.items()):
                weights[f"{at}.{part}.{name}_proj.{key}"] = tensor.clone(memory_format=torch.contiguous_format)
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict() | {"quantization_config": gptq_config(4, 128)}))
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TARGET / file, tmp_path)
    done = subprocess.run([sys.executable, "-c", PEAK, str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert 0.9 < float(done.stdout.split()[-1]) <= 1.3


@pytest.mark.parametrize("bits", [4, 8])
def test_a_gptq_zero_point_of_zero_borrows_from_its_neighbor(bits):
    outputs, inputs = 32, 32
    points = torch.arange(outputs).remainder(5)[None]  # (1, out), with zeros
    whole = torch.zeros(1, outputs * bits // 32, dtype=torch.int64)
    for at in range(outputs):
        whole[0, at * bits // 32] += points[0, at] << (at * bits % 32)
    stored = whole - (0x11111111 if bits == 4 else 0x01010101)  # as GPTQModel writes the form `gptq`
    tensors = {
        "qweight": torch.zeros(inputs * bits // 32, outputs, dtype=torch.int32),
        "scales": torch.ones(1, outputs, dtype=torch.float16),
        "qzeros": ((stored + 2**31) % 2**32 - 2**31).int(),
    }
    codes = Gptq(bits, inputs, False, 1).decoded("layer", tensors, (outputs, inputs)).codes
    assert codes.matrix().equal(-points.t().double().expand(-1, inputs))


@pytest.mark.parametrize(
    "keys",
    [
        {"gguf_file": "a.gguf"}, {"quantization": "a8"}, {"cost": {"parameters": "80M"}},
    ],
)  # fmt: skip
def test_what_needs_one_device_is_not_split(keys):
    table = {"path": "x", "parallel": "layers", "devices": ["cuda:0", "cuda:1"], **keys}
    with pytest.raises(ConfigError, match="need a model on one device"):
        construct(ModelSpec, table, "pair")
