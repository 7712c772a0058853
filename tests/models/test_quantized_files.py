"""Checkpoints that are quantized already: the logits, sizes and engines of each format, and damaged files."""

import json
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from specbench.config.construct import construct
from specbench.config.pair import Pair
from specbench.errors import ConfigError, MissingAsset
from specbench.kernels import kernels
from specbench.models import products
from specbench.models.feeder import Feed
from specbench.models.loaded_pair import LoadedPair
from specbench.models.loader import load
from specbench.models.panel_codes import PanelCodes, QuantizedLinear
from specbench.models.quantization import Bytes
from specbench.models.resolve_models import Execution, resolve_models
from tests.fixtures.quantized_checkpoints import Checkpoint, awq, compressed, gptq, write, write_gguf

CPU = torch.device("cpu")
needs_gguf = pytest.mark.skipif(find_spec("gguf") is None, reason="needs gguf: specbench[gguf]")


def gptq_config(bits=4, group=32, **more):
    return {"quant_method": "gptq", "bits": bits, "group_size": group or -1, "desc_act": False, "sym": False, **more}


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


def brought(checkpoint: Checkpoint, engine: str = "auto", dtype: str = "float32", **keys: object) -> LoadedPair:
    model = {"path": str(checkpoint.folder), **checkpoint.keys, **keys}
    pair = construct(Pair, {"models": {"target": model}}, "pair.toml")
    return load(resolve_models(pair, ("target",), Path(), Execution(CPU, dtype, engine)), Path(), CPU)


IDS = [5, 900, 17, 3, 64, 64, 1000, 2, 8, 31]


def logits_of(pair: LoadedPair, ids: list[int] = IDS) -> torch.Tensor:
    """Return the logits (tokens, vocabulary) after each token."""
    model = pair.models["target"]
    feeder = model.feeder(model.vocabulary, None)
    with torch.inference_mode():
        return feeder.feed(Feed(torch.tensor(ids), 0), len(ids)).logits


def exact(checkpoint: Checkpoint, ids: list[int] = IDS) -> torch.Tensor:
    """Return the logits of the dequantized weights in float64."""
    with torch.inference_mode():
        return checkpoint.reference(torch.tensor([ids])).logits[0]


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
        kind = PanelCodes if with_kernels and kernels() else Bytes
        assert sum(isinstance(layer, kind) for layer in layers) >= 14


@pytest.mark.parametrize("name", NAMES)
def test_auto_runs_them_on_the_lean_engine(name, checkpoints):
    assert brought(checkpoints[name]).models["target"].__class__.__name__ == "LeanModel"
