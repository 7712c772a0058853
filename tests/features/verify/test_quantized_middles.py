"""Chains with a quantized copy of the target as the middle model: exact by enumeration, and verified on the bundled pair."""

from importlib.util import find_spec

import pytest
import torch

from specbench.config.quantization_kind import QuantizationKind
from specbench.decoding.targets import Last
from specbench.features.exactness.outcome import Outcome
from specbench.features.verify.enumeration import TableModels, distance, joint_distribution
from specbench.kernels import kernels
from specbench.methods.autoregressive import Autoregressive
from specbench.methods.proposers import Chain, DraftModel
from specbench.methods.speculative import Speculative
from specbench.models.cached_session import CachedSession
from specbench.models.lean import LeanModelRunner, network_of
from specbench.models.quantization import quantize
from tests.features.verify.test_verify import World
from tests.fixtures.worlds import random_model

pytestmark = [
    pytest.mark.skipif(find_spec("torchao") is None, reason="needs torchao: specbench[quantization]"),
    pytest.mark.skipif(kernels() is None, reason="no kernels on this machine: needs g++ and AVX2"),
]
VOCABULARY, LENGTH = 2, 4
SAMPLING = {"temperature": 1.0}


def session(seed: int, kind: str = "") -> CachedSession:
    """A session of a random Llama, quantized or not, whose logits are those of its first tokens."""
    model = random_model("llama", seed).requires_grad_(False)
    if kind:
        quantize(model, QuantizationKind.parse(kind))
    return CachedSession(LeanModelRunner(network_of(model), VOCABULARY))


def models(kind: str) -> TableModels:
    """A draft, a quantized copy of the target, and the target, with the draft and the copy far apart."""
    return TableModels({"a": session(3), "b": session(5, kind), "c": session(5)}, vocabulary=VOCABULARY)


@pytest.mark.parametrize("threshold", [1, 2])
@pytest.mark.parametrize("kind", ["int4-channel", "int4-g32-sym-a8", "int8", "int8-a8"])
@torch.inference_mode()
def test_a_chain_with_a_quantized_middle_follows_the_target_by_enumeration(kind, threshold):
    """In float32: the sums of a block and of single tokens have the same bits, so only probabilities are rounded."""
    world = models(kind)
    chain = Chain(proposer=DraftModel(model="a", gamma=1), model="b", threshold=threshold)
    method = Speculative(proposer=chain, scorers=("c",), target=Last())
    found = joint_distribution(method, world, LENGTH, **SAMPLING)
    plain = [
        joint_distribution(Autoregressive(scorers=(role,), target=Last()), world, LENGTH, **SAMPLING) for role in "bc"
    ]
    assert distance(found, plain[1]) < 1e-6
    assert distance(*plain) > 1e-4, "the copy has another distribution"


@pytest.mark.parametrize(
    ("kind", "name"), [("int4", "polybasic-model"), ("int4-g32-sym-a8", "polybasic-model"), ("int8-a8", "polybasic")]
)
def test_verify_passes_a_chain_with_a_quantized_middle(kind, name):
    world = World("tiny-polybasic", "gsm8k", overrides=(("pair.models.middle.quantization", kind),))
    assert str(world.found["middle"].spec.quantization) == kind
    verdict = world.verdict(name)
    assert verdict.outcome == Outcome.unfound, verdict
    assert all(check.numbers["rounds"] for check in verdict.checks if "acceptance" in check.name)
