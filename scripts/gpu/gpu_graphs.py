"""Checks of `make gpu-check` on CUDA graphs: bfloat16, int4, concurrent models, and reuse after NaN, growth and release."""

import gc
import math
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from transformers import LlamaConfig, PreTrainedModel

from scripts.gpu import common as gpu
from scripts.gpu.common import Small, decode, generator
from scripts.gpu.exactness import METHODS, Verdict
from specbench.config.quantization_kind import QuantizationKind
from specbench.decoding import rejection as rejection_module
from specbench.decoding import sampling
from specbench.decoding.loop import GenerationLimits
from specbench.decoding.rejection import verify_at_once
from specbench.decoding.sampling import Draft, Sampler
from specbench.decoding.session import Session
from specbench.errors import MissingAsset
from specbench.features.verify.enumeration import TableModels
from specbench.models import simulated
from specbench.models.cached_session import CachedSession
from specbench.models.lean import GraphModelRunner, Graphs, LeanModelRunner, network_of
from specbench.models.quantization import quantize
from specbench.models.transformers_session import EagerModelRunner

HEADS = {  # heads, key-value heads, width
    "head size 64": (4, 4, 256), "head size 128": (2, 2, 256), "grouped queries": (4, 2, 256),
}  # fmt: skip
SPANS = (256, 512, 1024, 2048)
BLOCKS = range(1, 7)  # tokens of a forward
FEW = range(1, 3)  # tokens of a compiled forward; each number takes some seconds to compile
VOCABULARY, POSITIONS = 512, 2304
# Allowed error: multiple of the bfloat16 error of transformers, share of the largest logit
TIMES_EAGER, LEAST = (
    2.0,
    0.02,
)
INT4_ERROR = (
    0.02  # allowed difference of a graph from the lean forward of the same weights, relative to the largest logit
)
REPLAYS = 100  # of two models on two streams
OVERFLOWING = 39  # a token whose embedding is NaN
GOOD, BAD = [5, 1, 2, 0], [5, 1, 2, 0, 7, 8, 9, OVERFLOWING]  # prompts without and with it


def graph_checks(device: torch.device) -> Iterator[tuple[str, str, Callable[[], Verdict]]]:
    """Yield suite, name and function of each check, in order."""
    for name, shape in HEADS.items():
        for span in SPANS:
            yield "bfloat16", f"{name}, span {span}", partial(bfloat16_is_close, device, shape, span)
    if gpu.FUSED and device.type == "cuda":
        for name, shape in HEADS.items():
            yield "bfloat16", f"{name}, compiled", partial(bfloat16_is_close, device, shape, SPANS[-1], FEW, fused=True)
    yield "int4", "graph and lean forward", partial(int4_agrees, device)
    yield "streams", f"two models, {REPLAYS} replays", partial(streams_agree, device)
    for temperature in (0.0, 1.0):
        yield "reuse", f"after NaN, T = {temperature:g}", partial(nan_leaves_no_trace, device, temperature)
    yield "reuse", "after growth", partial(growth_is_captured_again, device)
    yield "reuse", "memory is released", partial(release_frees, device)
    yield "synchronization", "verification", partial(verification_does_not_wait, device)


def model(shape: tuple[int, int, int], dtype: str, device: torch.device) -> PreTrainedModel:
    """Return a random Llama of two layers with confident predictions; every call returns the same weights."""
    heads, shared, width = shape
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=2,
        num_attention_heads=heads, num_key_value_heads=shared, max_position_embeddings=POSITIONS,
    )  # fmt: skip
    made = simulated.random_model(config, "float32", torch.device("cpu"))
    chance = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in made.parameters():
            if weight.ndim == 2:
                weight.normal_(0.0, weight.shape[1] ** -0.5, generator=chance)
    return made.to(device=device, dtype=getattr(torch, dtype)).eval().requires_grad_(False)


def bfloat16_is_close(
    device: torch.device, shape: tuple[int, int, int], span: int, blocks: range = BLOCKS, fused: bool = False
) -> Verdict:
    """Compare bfloat16 graphs with float32, for forwards of 1 to 6 tokens at the end of a span.

    The limit depends on the bfloat16 error of transformers.
    """
    whole, half = model(shape, "float32", device), model(shape, "bfloat16", device)
    graphs = Graphs(network_of(half), device, fused)
    graphs.prepare(span, range(1, max(blocks) + 1))
    prompt = [(7 * i) % VOCABULARY for i in range(span - max(blocks))]
    worst, eager, size = 0.0, 0.0, 1.0
    for n in blocks:
        truth, plain, ours = (
            _after(CachedSession(model_runner), prompt, n)
            for model_runner in (
                EagerModelRunner(whole, VOCABULARY),
                EagerModelRunner(half, VOCABULARY),
                GraphModelRunner(graphs, VOCABULARY),
            )
        )
        size = max(size, float(truth.abs().max()))
        worst, eager = max(worst, _error(ours, truth)), max(eager, _error(plain, truth))
    limit = max(TIMES_EAGER * eager, LEAST * size)
    return f"error {worst:.2e}, of transformers {eager:.2e}", f"error <= {limit:.2e}", worst <= limit


def int4_agrees(device: torch.device) -> Verdict:
    """Compare graphs over int4 weights with lean forwards over the same weights."""
    quantized = model(HEADS["head size 64"], "bfloat16", device)
    try:
        quantize(quantized, QuantizationKind("int4"))
    except MissingAsset as error:
        return f"not run: {' '.join(str(error).split())}", "", None
    network = network_of(quantized)
    graphs = Graphs(network, device)
    graphs.prepare(SPANS[0], range(1, max(BLOCKS) + 1))
    prompt = [(7 * i) % VOCABULARY for i in range(40)]
    errors = []
    for n in BLOCKS:
        lean = _after(CachedSession(LeanModelRunner(network, VOCABULARY)), prompt, n)
        ours = _after(CachedSession(GraphModelRunner(graphs, VOCABULARY)), prompt, n)
        errors.append(_error(ours, lean) / max(1.0, float(lean.abs().max())))
    return f"error {max(errors):.0e}", f"error <= {INT4_ERROR:.0e}", max(errors) <= INT4_ERROR


def streams_agree(device: torch.device) -> Verdict:
    """Compare graphs of two models that replay concurrently on two streams with sequential replays."""
    both = [Graphs(network_of(model(HEADS[name], "float32", device)), device) for name in list(HEADS)[:2]]
    for graphs in both:
        graphs.prepare(SPANS[0], (1,))
    prompt = [(7 * i) % VOCABULARY for i in range(40)]
    alone = [_after(CachedSession(GraphModelRunner(graphs, VOCABULARY)), prompt, 1) for graphs in both]
    sessions = [CachedSession(GraphModelRunner(graphs, VOCABULARY)) for graphs in both]
    for session in sessions:
        session.score(prompt, len(prompt) - 1)
    worst = 0.0
    cuda: Any = torch.cuda
    streams = [cuda.Stream(device) if device.type == "cuda" else None for _ in both]
    for i in range(REPLAYS):
        together = []
        for session, stream in zip(sessions, streams, strict=True):
            if stream is not None:
                stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(stream):
                session.score([*prompt, (i + 1) % VOCABULARY], len(prompt))
                together.append(session.score([*prompt, 3], len(prompt)))
        for stream in streams:
            if stream is not None:
                torch.cuda.current_stream(device).wait_stream(stream)
        worst = max(worst, *(_error(a, b) for a, b in zip(together, alone, strict=True)))
    return f"error {worst:.0e}", "error <= 1e-04", worst <= 1e-4


def nan_leaves_no_trace(device: torch.device, temperature: float) -> Verdict:
    """Check that a prompt gives the same tokens before and after one whose logits are NaN, which fails."""
    small = Small("llama", device)
    for each in small.roles.values():
        each.model.get_input_embeddings().weight[OVERFLOWING].fill_(math.nan)
    before, failed, after = (_decoded(small, prompt, temperature) for prompt in (GOOD, BAD, GOOD))
    passed = before == after and isinstance(failed, str) and not isinstance(before, str)
    return f"{before}, {failed}, {after}"[:120], "tokens, an error, the same tokens", passed


def growth_is_captured_again(device: torch.device) -> Verdict:
    """Check that a sequence beyond the cache drops its graphs, and that graphs captured again agree with lean forwards."""
    each = Small("llama", device).roles["b"]
    graphs = each.graphs
    assert graphs is not None
    longer = graphs.cache.capacity + 1
    each.session("graph").score([1] * longer, longer - 1)
    lost = graphs.find(1, 5) is None
    made = graphs.prepare(longer)
    prompt = [i % 38 for i in range(30)]
    error = _error(_after(each.session("graph"), prompt, 2), _after(each.session("lean"), prompt, 2))
    passed = lost and made > 0 and graphs.find(1, 5) is not None and error <= 1e-4
    return f"{made} graphs captured again, error {error:.0e}", "error <= 1e-04", passed


def release_frees(device: torch.device) -> Verdict:
    """Check that a model and its graphs are freed when nothing refers to them."""
    small = Small("llama", device)
    _decoded(small, GOOD, 0.0)
    left = [weakref.ref(each) for one in small.roles.values() for each in (one.model, one.network, one.graphs)]
    del small
    gc.collect()
    alive = sum(each() is not None for each in left)
    return f"{alive} of {len(left)} alive", "0 alive", alive == 0


def verification_does_not_wait(device: torch.device) -> Verdict:
    """Check that verification launches all its work before its only read."""
    q, pi = (torch.rand(5 + i, 100, device=device, generator=generator(device, i)).softmax(-1) for i in (0, 1))
    draft, sampler = Draft([1, 2, 3, 4, 5], q), Sampler(generator=generator(device, 2))
    reads, read = [], sampling.read_tokens

    def allowed(picked: Tensor) -> list[int]:
        torch.cuda.set_sync_debug_mode("default")
        reads.append(read(picked))
        torch.cuda.set_sync_debug_mode("error")
        return reads[-1]

    try:
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("error")
        with patch.object(rejection_module, "read_tokens", allowed if device.type == "cuda" else read):
            out = verify_at_once(draft, pi, sampler)
    finally:
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("default")
    return f"{len(reads)} reads, {len(out.tokens)} tokens", "one synchronization", True


def _after(session: Session, prompt: list[int], n: int) -> Tensor:
    """Return logits (n, V) of a block of n tokens after a prompt."""
    session.score(prompt, len(prompt) - 1)
    return session.score([*prompt, *((3 + i) % VOCABULARY % 38 for i in range(n))], len(prompt))


def _error(found: Tensor, truth: Tensor) -> float:
    return float((found.float() - truth.float()).abs().nan_to_num(nan=math.inf).max())


def _decoded(small: Small, prompt: list[int], temperature: float) -> list[int] | str:
    sessions = {role: each.session("graph") for role, each in small.roles.items()}
    sampler = Sampler(temperature, generator=generator(small.reference.device, 0))
    try:
        return decode(METHODS["sd"][0], TableModels(sessions, prompt), sampler, GenerationLimits(frozenset(), 8)).tokens
    except FloatingPointError as error:
        return str(error)
