"""Sizes of models from their configs: published parameter counts, and the bytes that a loaded model holds."""

import pytest
import torch
from transformers import AutoConfig

from specbench.config.presets import bundled_architecture
from specbench.errors import MissingAsset
from specbench.kernels import kernels
from specbench.models.lean import network_of
from specbench.models.products import Panels
from specbench.models.resolved_model import size_of
from specbench.models.simulated import architecture, random_model

PUBLISHED = {
    "meta-llama/Llama-2-70b-hf": 68_976_648_192,
    "meta-llama/Llama-3.1-70B-Instruct": 70_553_706_496,
    "meta-llama/Meta-Llama-3-70B": 70_553_706_496,
    "meta-llama/Llama-3.1-8B-Instruct": 8_030_261_248,
    "EleutherAI/pythia-1.4b": 1_414_647_808,
    "HuggingFaceTB/SmolLM3-3B": 3_075_098_624,
    "Qwen/Qwen2.5-0.5B-Instruct": 494_032_768,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "google/gemma-3-1b-it": 999_885_952,
    "microsoft/Phi-3-mini-4k-instruct": 3_821_079_552,
    "mistralai/Mixtral-8x7B-v0.1": 46_702_792_704,
    "google/mt5-large": 1_229_581_312,
    "google/mt5-small": 300_176_768,
    "google/t5-v1_1-small": 76_961_152,  # its LM head is not the embedding
}


@pytest.mark.parametrize(("path", "parameters"), PUBLISHED.items())
def test_parameters_equal_the_published_count(path, parameters):
    assert size_of(architecture(path, {}), "bfloat16").parameters == parameters


def test_an_unknown_architecture_is_an_error():
    with pytest.raises(MissingAsset, match=r"no architecture for example/unknown .*help: add a file"):
        bundled_architecture("example/unknown")


def llama(tied):
    return AutoConfig.for_model(
        "llama", hidden_size=512, intermediate_size=640, num_hidden_layers=2, num_attention_heads=4, vocab_size=600,
        tie_word_embeddings=tied, max_position_embeddings=64,
    )  # fmt: skip


def test_layers_heads_and_caches_of_a_llama():
    size = size_of(llama(tied=False), "bfloat16")
    assert size.lm_head_bytes == 2 * 512 * 600
    assert size.embedding_bytes == 2 * size.lm_head_bytes and size.packed_head_bytes == 0
    assert size.resident_bytes == 2 * size.parameters
    assert size.forward_bytes == size.resident_bytes - size.lm_head_bytes  # the embedding is looked up
    assert size.cache_bytes(10) == 10 * 2 * 2 * 512 * 2 and size.cache_bytes(100) == size.cache_bytes(64)


@pytest.mark.skipif(kernels() is None, reason="no kernels on this machine: needs g++ and AVX2")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_copy_of_a_tied_head_equals_that_of_the_loaded_model(tied, dtype):
    config = llama(tied)
    head = network_of(random_model(config, dtype, torch.device("cpu")).requires_grad_(False)).head
    assert isinstance(head, Panels)
    rows, size = head.outputs, size_of(config, dtype)
    assert size.packed_head_bytes == (rows * head.inputs * head.panels.element_size() if tied else 0)
    assert head.panels.numel() < (rows + head.panels.shape[2]) * head.inputs, "less than one panel of zeros"
