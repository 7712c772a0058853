"""Checks of `make gpu-check` on sampled output: its distribution on the device against the exact one of the target.

Each check samples the first FEW tokens over a vocabulary of FEW in thousands of generations. Sessions read synthetic logits
from a list, or are lean and graph sessions that draft and verify with one read of the device, as on a GPU.
"""

import math
import sys
import time
from contextlib import ExitStack
from unittest.mock import patch

import torch
from torch import Tensor

from scripts.gpu.common import Engines, Small, decode, generator
from specbench.decoding.drafting import roll
from specbench.decoding.loop import GenerationLimits
from specbench.decoding.method import Method
from specbench.decoding.rejection import Verified, verify_at_once
from specbench.decoding.sampling import Draft, Sampler, Tree, exact_distribution, path_to
from specbench.decoding.session import AuxLayers, Session, Usage
from specbench.decoding.targets import Contrastive, Last, Mixture
from specbench.decoding.trees import Growth, growth
from specbench.features.verify.enumeration import TableModels
from specbench.methods.autoregressive import Autoregressive
from specbench.methods.proposers import DraftModel
from specbench.methods.speculative import Speculative
from specbench.methods.speculative_ensemble import SpeculativeEnsemble
from specbench.methods.tree_drafts import ModelTree
from specbench.models.cached_session import CachedSession
from specbench.models.lean import GraphModelRunner, LeanModelRunner
from specbench.models.simulated import SyntheticDistribution, SyntheticSession

FEW = 3
ODDS = 1e-9  # probability that a correct method exceeds the limit
SECONDS = 10.0  # per check; the limit depends on the number of draws in this time
SPREAD = 1.0  # of the synthetic logits
NOISE = 0.1  # between the two models
SAMPLED = ("listed", "lean", "graph")
BOTH = ("a", "b")
ALONE = Autoregressive(scorers=("b",), target=Last())
WEIGHTED, CONTRASTED = (Autoregressive(scorers=BOTH, target=target) for target in (Mixture(), Contrastive()))
METHODS: dict[str, tuple[Method, Autoregressive]] = {  # with the method whose distribution each must match
    "ar": (ALONE, ALONE),
    "sd": (Speculative(proposer=DraftModel(model="a", gamma=3), scorers=("b",), target=Last()), ALONE),
    "sd-tree": (
        Speculative(proposer=ModelTree(model="a", widths=(2, 2)), scorers=("b",), target=Last()),
        ALONE,
    ),
    "we-sd": (
        Speculative(proposer=DraftModel(model="a", gamma=2), scorers=BOTH, target=Mixture(), bonus="none"),
        WEIGHTED,
    ),
    "we-se": (SpeculativeEnsemble(models=BOTH, gamma=(2, 1), target=Mixture()), WEIGHTED),
    "cd-se": (SpeculativeEnsemble(models=BOTH, gamma=(1, 1), target=Contrastive()), CONTRASTED),
}
Verdict = tuple[str, str, bool | None]  # measured, limit, and whether it passed; None if it could not run


class Listed:
    """A session that looks up its logits by prefix on the device; without a model, many draws are cheap."""

    def __init__(self, distribution: SyntheticDistribution | None, device: torch.device) -> None:
        self.usage, self._rows = Usage(), dict[tuple[int, ...], Tensor]()
        if distribution is None:
            return
        source, prefixes = SyntheticSession(_Silent(None, device), distribution, device), [[0]]
        for prefix in prefixes:
            self._rows[tuple(prefix)] = source.score(prefix, len(prefix) - 1)[0]
            if len(prefix) < FEW:
                prefixes += [[*prefix, token] for token in range(FEW)]

    def score(self, ids: list[int], start: int, tree: Tree | None = None) -> Tensor:
        prefixes = [tuple(ids[: i + 1]) for i in range(start, len(ids))]
        if tree is not None:
            prefixes += [(*ids, *(tree.tokens[j] for j in path_to(tree.parents, i))) for i in range(len(tree.tokens))]
        return torch.stack([self._rows[prefix] for prefix in prefixes])

    def roll(self, ids: list[int], k: int, sampler: Sampler, eos: frozenset[int]) -> Draft:
        return roll(self, ids, k, sampler, eos)

    def growth(self, ids: list[int], room: int, eos: frozenset[int]) -> Growth:
        return growth(self, ids, room, eos)

    def room(self, ids: list[int]) -> int:
        return sys.maxsize

    def keep_states(self, aux_layers: AuxLayers = ()) -> None:
        raise ValueError("a list of logits has no hidden states")

    def hidden(self, ids: list[int], start: int, aux_layers: AuxLayers = ()) -> Tensor:
        raise AssertionError("states were not kept")

    def cached_length(self, ids: list[int]) -> int:
        return 0

    def logits_of(self, states: Tensor) -> Tensor:
        raise ValueError("a list of logits has no LM head")

    def finish(self) -> None:
        pass


class _Silent(Listed):
    """The inner session of synthetic logits, without a model."""

    def score(self, ids: list[int], start: int, tree: Tree | None = None) -> Tensor:
        return torch.empty(0)


class AtOnce(CachedSession):
    """A session that drafts on any device as on a GPU: each token is fed to the next forward before it is read."""

    roll = CachedSession.roll_at_once
    growth = CachedSession.growth_at_once


class World:
    """Two models over FEW tokens, with `listed`, `eager`, `lean` or `graph` sessions; the last two draft as on a GPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._small = Small("llama", device, FEW, NOISE)
        self._listed = {role: Listed(SyntheticDistribution(FEW, i, SPREAD), device) for i, role in enumerate(BOTH)}

    def open(self, engine: str) -> TableModels:
        if engine == "listed":
            return TableModels(dict(self._listed), [0])
        return TableModels({role: _session(engine, each) for role, each in self._small.roles.items()}, [0])


def _session(engine: str, each: Engines) -> Session:
    if engine == "lean":
        return AtOnce(LeanModelRunner(each.network, FEW))
    if engine == "graph":
        assert each.graphs is not None
        return AtOnce(GraphModelRunner(each.graphs, FEW))
    return each.session(engine)


def distribution_matches(world: World, engine: str, name: str, draws: int, seed: int) -> Verdict:
    """Compare the sampled joint distribution of a method's first FEW tokens with the exact one of its target.

    For n draws over m outcomes, the total variation distance to the true distribution exceeds sqrt(m / (2 pi n)) +
    sqrt(ln(1 / ODDS) / (2 n)) with a probability below ODDS (McDiarmid's inequality).
    """
    (method, plain), limits = METHODS[name], GenerationLimits(frozenset(), FEW)
    truth = "listed" if engine == "listed" else "eager"
    exact = exact_distribution(lambda sampler: tuple(decode(plain, world.open(truth), sampler, limits).tokens))
    sampler, counts, n = Sampler(generator=generator(world.device, seed)), dict.fromkeys(exact, 0), 0
    begin = time.perf_counter()
    with ExitStack() as stack:
        if engine != "listed":
            stack.enter_context(patch("specbench.decoding.rejection.verify", verify_at_once))
        while n < draws and time.perf_counter() - begin < SECONDS:
            counts[tuple(decode(method, world.open(engine), sampler, limits).tokens)] += 1
            n += 1
    variation = sum(abs(counts[key] / n - mass) for key, mass in exact.items()) / 2
    limit = math.sqrt(len(exact) / (2 * math.pi * n)) + math.sqrt(math.log(1 / ODDS) / (2 * n))
    return f"TV {variation:.4f}, {n} draws", f"TV <= {limit:.4f}", variation <= limit


def accepting_all_matches(world: World, draws: int) -> Verdict:
    """Run the same check on a deliberate mistake: every draft token is accepted."""
    with patch("specbench.decoding.rejection.verify", _accept_all):
        return distribution_matches(world, "listed", "sd", draws, seed=9)


def _accept_all(draft: Draft, pi: Tensor, sampler: Sampler, unread: Tensor | None = None) -> Verified:
    k = len(draft.tokens)
    return Verified([*draft.tokens, *(int(sampler.choose(row)) for row in pi[k:])], k)


def synthetic_logits_match_cpu(device: torch.device) -> Verdict:
    """Compare synthetic logits over a large vocabulary on the device and on a CPU; a seed must give the same on both."""
    contexts = torch.arange(256) * 0x9E3779B97F4A7C1
    here, there = (
        SyntheticDistribution(32_000, 1, SPREAD)(contexts.to(place)).cpu() for place in (torch.device("cpu"), device)
    )
    error = float((here - there).abs().nan_to_num(nan=math.inf).max())
    return f"error {error:.0e}", "error <= 1e-05", error <= 1e-5
