"""Sizes by closed forms: equal to those of the model that transformers builds, and to published parameter counts."""

import pytest
import torch
from transformers import AutoConfig

from specbench.config.architectures import known_architecture
from specbench.errors import ConfigError, MissingAsset
from specbench.models import sizes
from specbench.models.architecture_sizes import architecture_size
from specbench.models.engine import network_of
from specbench.models.products import Packed, can_pack
from specbench.models.quantization import KernelLinear, quantize
from specbench.models.random_weights import architecture, random_model

PUBLISHED = {
    "meta-llama/Llama-2-70b-hf": 68_976_648_192,
    "meta-llama/Llama-3.1-70B-Instruct": 70_553_706_496,
    "meta-llama/Meta-Llama-3-70B": 70_553_706_496,
    "meta-llama/Llama-3.1-8B-Instruct": 8_030_261_248,
    "google/t5-v1_1-small": 76_961_152,  # its LM head is not the embedding
}
SMALL = [
    "openai-community/gpt2", "EleutherAI/gpt-neo-125m", "facebook/opt-125m", "JackFram/llama-68m",
    "Qwen/Qwen2.5-1.5B-Instruct", "google-t5/t5-small",
]  # fmt: skip


@pytest.mark.parametrize(("path", "parameters"), PUBLISHED.items())
def test_parameters_equal_the_published_count(path, parameters):
    assert architecture_size(known_architecture(path), "bfloat16").parameters == parameters


@pytest.mark.parametrize("quantization", ["", "int4", "int8", "nf4"])
@pytest.mark.parametrize("path", SMALL)
def test_sizes_equal_those_of_the_model(path, quantization):
    found, config = architecture_size(known_architecture(path), "bfloat16", quantization), architecture(path, {})
    assert found.parameters == sizes.parameters_of(config, quantization, "bfloat16")
    assert found.forward_bytes == sizes.forward_bytes(config, quantization, "bfloat16")
    assert found.position_bytes == sizes.position_bytes(config, "bfloat16")
    assert found.layers == sizes.shape_of(config).layers


def test_an_architecture_without_a_formula_is_an_error_with_the_nearest_name():
    with pytest.raises(ConfigError, match="did you mean 'llama'"):
        architecture_size({"model_type": "llama4"}, "bfloat16")
    with pytest.raises(ConfigError, match="'hidden_size' is missing"):
        architecture_size({"model_type": "llama"}, "bfloat16")
    with pytest.raises(MissingAsset, match=r"no architecture for example/unknown .*help: add a file"):
        known_architecture("example/unknown")


@pytest.mark.skipif(not can_pack(torch.device("cpu"), torch.bfloat16), reason="no packed products on this processor")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("quantization", "tied"), [("int4", False), ("int8", False), ("", True), ("", False)])
def test_copies_on_a_cpu_equal_those_of_the_loaded_model(quantization, tied, dtype):
    config = {
        "model_type": "llama", "hidden_size": 512, "intermediate_size": 640, "num_hidden_layers": 2,
        "num_attention_heads": 4, "vocab_size": 600, "tie_word_embeddings": tied,
    }  # fmt: skip
    made = AutoConfig.for_model(**config)
    model = random_model(made, dtype, torch.device("cpu")).requires_grad_(False)
    if quantization:
        pytest.importorskip("torchao")
        quantize(model, quantization)
    head = network_of(model).head
    copies = [each.block_product for each in model.modules() if isinstance(each, KernelLinear) and each.block_product]
    copies += [head] if tied and isinstance(head, Packed) else []
    held = sum(each.matrix.numel() * each.dtype.itemsize for each in copies)
    assert held > 0 or not (quantization or tied)
    size = architecture_size(config, dtype, quantization)
    assert size.block_copy_bytes + size.packed_head_bytes == held
