"""The CPU kernels: the same bits for every number of rows and threads and every set of instructions, and their absence."""

import copy
import os
import subprocess
import sys
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from transformers import MistralConfig, MistralForCausalLM

from specbench import kernels
from specbench.decoding.sampling import Tree
from specbench.errors import ConfigError
from specbench.kernels import SELECT, TORCH, Kernels, Missing, all_levels, find_kernels
from specbench.models import products
from specbench.models.cached_session import CachedSession
from specbench.models.lean import LeanModelRunner, network_of, whole
from specbench.models.products import Panels
from tests.fixtures import padded_engine
from tests.fixtures.worlds import random_model

needs_kernels = pytest.mark.skipif(kernels.kernels() is None, reason="no kernels on this machine: needs g++ and AVX2")
DTYPES = (torch.float32, torch.bfloat16)
WHOLE = ("llama", "qwen2", "llama-scaled", "mistral-window", "qwen3", "qwen3-window", "smollm3", "phi3")


@pytest.fixture
def threads():
    """Set another number of threads for the test only."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def matrix(outputs: int, inputs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    torch.manual_seed(outputs + inputs)
    return torch.randn(outputs, inputs).to(dtype), torch.randn(outputs).to(dtype)


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (5, 64), (32, 40), (33, 7), (200, 96)])
def test_a_product_is_close_to_that_of_float64(outputs, inputs, dtype):
    weight, bias = matrix(outputs, inputs, dtype)
    x, residual = torch.randn(19, inputs).to(dtype), torch.randn(19, outputs).to(dtype)
    exact = nn.functional.linear(x.double(), weight.double(), bias.double())
    bound = (
        1e-6 + 5e-7 * inputs if dtype == torch.float32 else 2**-8 * float((exact.abs() + residual.double().abs()).max())
    )
    for each in all_levels():
        product = Panels(each, weight, bias)
        assert torch.allclose(product(x).double(), exact, atol=bound, rtol=0)
        assert torch.allclose(product.added(residual, x).double(), residual.double() + exact, atol=bound, rtol=0)
        assert torch.equal(product.unpacked(), weight)


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_has_the_same_bits_in_every_block(dtype):
    weight, bias = matrix(70, 96, dtype)
    x = torch.randn(21, 96).to(dtype)
    for each in all_levels():
        product = Panels(each, weight, bias)
        alone = torch.cat([product(row[None]) for row in x])
        for n in range(1, len(x) + 1):
            assert torch.equal(product(x[:n]), alone[:n])


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_set_of_instructions_gives_the_same_bits(dtype):
    weight, bias = matrix(70, 96, dtype)
    x = torch.randn(5, 96).to(dtype)
    first, *others = (Panels(each, weight, bias)(x) for each in all_levels())
    assert all(torch.equal(first, other) for other in others)


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", WHOLE)
def test_logits_have_the_same_bits_in_a_block_and_with_other_threads(family, dtype, threads):
    """One token at a time, in blocks, in a tree, and with two and three threads, which split heads and panels unevenly."""
    network = network_of(random_model(family, 4).to(dtype))
    assert network.layers.whole is not None
    ids, start = [5, 11, 3, 8, 2, 9, 30, 1, 17, 4, 6], 4

    def session() -> CachedSession:
        opened = CachedSession(LeanModelRunner(network, 40))
        opened.score(ids[:start], start - 1)
        return opened

    single = session()
    expected = torch.cat([single.score(ids[: n + 1], n) for n in range(start, len(ids))])
    assert torch.equal(session().score(ids, start), expected)
    for count in (2, 3):
        threads(count)
        assert torch.equal(session().score(ids, start), expected)
    chain = Tree(ids[start + 1 :], tuple(range(-1, len(ids) - start - 2)))
    assert torch.equal(session().score(ids[: start + 1], start, chain), expected)


@needs_kernels
@pytest.mark.parametrize("family", WHOLE)
def test_whole_layers_compute_what_single_operators_do(family, monkeypatch):
    network, ids = network_of(random_model(family, 4)), [5, 11, 3, 8, 2, 9, 30, 1, 17, 4, 6]
    tree = Tree([3, 4, 7, 9], (-1, -1, 0, 2))
    at_once = CachedSession(LeanModelRunner(network, 40)).score(ids, 2, tree)
    monkeypatch.setattr(network.layers, "whole", None)
    assert torch.allclose(CachedSession(LeanModelRunner(network, 40)).score(ids, 2, tree), at_once, atol=1e-5)


@needs_kernels
@pytest.mark.parametrize("scale", [1e2, 1e4])
def test_large_gates_and_scores_are_computed_as_by_single_operators(scale, monkeypatch):
    """The exponentials of SiLU and of softmax neither overflow nor wrap around."""
    model = random_model("llama", 4)
    for layer in model.get_decoder().layers:
        layer.mlp.gate_proj.weight.data *= scale
        layer.self_attn.q_proj.weight.data *= scale
    network, ids = network_of(model), [5, 11, 3, 8, 2, 9, 30, 1]
    at_once = CachedSession(LeanModelRunner(network, 40)).score(ids, 2)
    monkeypatch.setattr(network.layers, "whole", None)
    expected = CachedSession(LeanModelRunner(network, 40)).score(ids, 2)
    assert torch.allclose(at_once, expected, rtol=1e-3, atol=1e-3)


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "window"), [((2, 2), None), ((4, 2), 100), ((20, 1), None)])
def test_attention_over_a_long_context_has_the_same_bits_on_every_set_of_instructions(
    heads, window, dtype, monkeypatch
):
    """Contexts longer than a block of positions, head sizes that are no multiple of the lanes, and shared keys."""
    ids = [(7 * i * i) % 40 for i in range(170)]
    found = []
    for each in all_levels():
        monkeypatch.setattr(products, "kernels", lambda each=each: each)
        network = network_of(wide_headed(heads, window).to(dtype))
        assert network.layers.whole is not None
        found.append(CachedSession(LeanModelRunner(network, 40)).score(ids, 100))
        single = CachedSession(LeanModelRunner(network, 40))
        single.score(ids[:100], 99)
        assert torch.equal(torch.cat([single.score(ids[: n + 1], n) for n in range(100, len(ids))]), found[-1])
    assert all(torch.equal(each, found[0]) for each in found)
    monkeypatch.setattr(products, "kernels", lambda: None)
    network = network_of(wide_headed(heads, window).to(dtype))
    expected = CachedSession(LeanModelRunner(network, 40)).score(ids, 100)
    assert torch.allclose(found[0], expected, atol=1e-5 if dtype == torch.float32 else 5e-2)


def wide_headed(heads: tuple[int, int], window: int | None) -> nn.Module:
    """Return a random model with this many heads of queries and of keys, whose size is 40."""
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=40, hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=heads[0],
        num_key_value_heads=heads[1], head_dim=40, sliding_window=window,
    )  # fmt: skip
    return MistralForCausalLM(config).eval().requires_grad_(False)


@needs_kernels
def test_a_long_prompt_is_fed_in_parts_with_the_same_bits(monkeypatch):
    network, ids = network_of(random_model("mistral-window", 4)), [i % 40 for i in range(30)]
    expected = CachedSession(LeanModelRunner(network, 40)).score(ids, 0)
    monkeypatch.setattr(whole, "ROWS", 7)
    assert torch.equal(CachedSession(LeanModelRunner(network, 40)).score(ids, 0), expected)


@needs_kernels
@pytest.mark.parametrize("family", ["granite", "olmo2", "gemma3", "mixtral"])
def test_layers_of_another_form_run_operator_by_operator(family):
    assert network_of(random_model(family, 4)).layers.whole is None


def rule_in_a_process(**environment: str) -> str:
    code = "from specbench import kernels; print(kernels.rule(), kernels.find_kernels())"
    variables = {**os.environ, **environment}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=variables, check=True)
    return done.stdout


def test_without_a_compiler_torch_multiplies(tmp_path):
    text = rule_in_a_process(
        PATH="/nonexistent", CXX="", XDG_CACHE_HOME=str(tmp_path), TMPDIR=str(tmp_path), **{SELECT: ""}
    )
    assert text.startswith(f"{TORCH} Missing(") and "no C++ compiler" in text


@needs_kernels
def test_a_failed_compilation_is_explained(tmp_path):
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho 'cpu.cpp:1: error: out of order' >&2\nexit 1\n")
    compiler.chmod(0o755)
    text = rule_in_a_process(CXX=str(compiler), XDG_CACHE_HOME=str(tmp_path), **{SELECT: ""})
    assert text.startswith(f"{TORCH} Missing(") and "error: out of order" in text


@needs_kernels
@pytest.mark.slow
def test_a_damaged_library_is_compiled_again(tmp_path):
    rule_in_a_process(XDG_CACHE_HOME=str(tmp_path))
    (library,) = (tmp_path / "specbench" / "kernels").glob("*.so")
    library.write_bytes(b"damaged")
    assert str(library) in rule_in_a_process(XDG_CACHE_HOME=str(tmp_path), **{SELECT: ""})
    assert library.read_bytes() != b"damaged"


def test_an_unknown_set_of_instructions_is_an_error(monkeypatch):
    monkeypatch.setenv(SELECT, "avx3")
    with pytest.raises(ConfigError, match=f"{SELECT} = avx3 is none of avx512, avx2, torch"):
        find_kernels.__wrapped__()


@needs_kernels
@pytest.mark.parametrize(
    "compiler", ["false", "/nonexistent/c++", " ", pytest.param("env c++", marks=pytest.mark.slow)]
)
def test_the_compiler_may_be_a_command_and_may_fail(compiler, tmp_path):
    text = rule_in_a_process(CXX=compiler, XDG_CACHE_HOME=str(tmp_path), **{SELECT: ""})
    assert text.startswith(f"{TORCH} Missing(") == (compiler != "env c++")


@needs_kernels
def test_a_variable_selects_a_set_of_instructions():
    assert rule_in_a_process(**{SELECT: "avx2"}).startswith("avx2 ")
    assert rule_in_a_process(**{SELECT: TORCH}).startswith(f"{TORCH} ")
    assert isinstance(find_kernels(), Kernels | Missing)


def test_the_padded_engine_of_earlier_revisions_still_multiplies():
    """It is kept to show what a slow baseline looks like (tests/fixtures/padded_engine.py)."""
    model = random_model("llama", 4)
    expected = CachedSession(LeanModelRunner(network_of(copy.deepcopy(model)), 40)).score([5, 11, 3, 8], 0)
    with patch.object(products, "kernels", lambda: None), patch.object(padded_engine, "LARGE", 1):
        loaded = padded_engine.PaddedEngine().made(model, None, network_of(model))
    assert isinstance(loaded.network.head, padded_engine.Padded)
    assert torch.allclose(
        CachedSession(LeanModelRunner(loaded.network, 40)).score([5, 11, 3, 8], 0), expected, atol=1e-5
    )
