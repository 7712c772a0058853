"""Simulated models: random weights in a real architecture, and synthetic logits at the real cost of a model.

Dummy weights allow timing without downloads. With synthetic logits the model runs as usual, and its logits are replaced by
a deterministic random function of the context. All models of a pair share logits for each context, and every model adds
noise of its own. The sizes of the noise, the models' `spreads`, determine how often one model accepts another's drafts;
`calibrate` finds the spread for a given acceptance rate. Nothing about quality can be measured with either.
"""

import time
import zlib
from collections.abc import Callable, Mapping
from functools import cache, reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedConfig, PreTrainedModel

from specbench.config.construct import Table
from specbench.config.pair import PACKAGE
from specbench.config.presets import bundled_architecture
from specbench.decoding.drafting import common_prefix, roll
from specbench.decoding.method import Verification
from specbench.decoding.sampling import Draft, Sampler, Tree
from specbench.decoding.session import AuxLayers, Session, Usage
from specbench.decoding.trees import Growth, growth
from specbench.errors import ConfigError, MissingAsset, hint
from specbench.files import in_one_line, read_json
from specbench.models.checkpoints import CONSTRUCTION, register_for

TOKENIZERS = {False: PACKAGE / "tiny/models/target", True: PACKAGE / "tiny/models/t5-large"}  # by is_encoder_decoder
SUPPORT = 96  # tokens with a non-negligible probability after a context; two independent tokens are equal at 1 / 96
SHARED_SPREAD = 2.0  # standard deviation of the shared logits
NEVER = -1e4  # the logit of every other token
MAX_SPREAD = 40.0
CONTEXTS = 8_192  # contexts that calibration averages over
_MASK = (1 << 64) - 1
_GOLDEN, _MIX1, _MIX2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def architecture(path: str, changes: Table) -> PreTrainedConfig:
    """Return the configuration of a hub id of configs/architectures/, with changed keys.

    Raises MissingAsset for a model whose architecture is not there, and ConfigError for an unknown key.
    """
    return _built(bundled_architecture(path), changes)


def architecture_in(folder: Path, changes: Table) -> PreTrainedConfig:
    """Return a local folder's configuration with changed keys. Raises ConfigError for an unknown key."""
    path = folder / "config.json"
    if not path.is_file():
        raise MissingAsset(f"{folder} holds no model (no config.json)")
    return _built(read_json(path, Table), changes)


def _built(table: Table, changes: Table) -> PreTrainedConfig:
    """Return the configuration, constructed with the changes, so that derived values fit."""
    plain = configuration(table)
    for key in changes:
        if not hasattr(plain, key):
            near = hint(key, plain.to_dict())
            raise ConfigError(f"config.{key}: the architecture {plain.model_type} has no such key{near}")
    merged = {
        key: {**current, **value} if isinstance(value, dict) and isinstance(current := table.get(key), dict) else value
        for key, value in changes.items()
    }
    return configuration(table | merged)


def configuration(table: Table) -> PreTrainedConfig:
    """Return transformers' configuration of these keys. Raises ConfigError for values that describe no model."""
    try:
        register_for(table.get("model_type"))
        return AutoConfig.for_model(**table)
    except Exception as error:  # any error that transformers raises for an impossible value
        raise ConfigError(f"config describes no {table.get('model_type', 'model')}: {in_one_line(error)}") from None


def random_model(config: PreTrainedConfig, dtype: str, device: torch.device, role: str = "") -> PreTrainedModel:
    """Return the architecture with random weights seeded by the role, created on the device; reproducible."""
    kind: Any = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    devices = [device] if device.type == "cuda" else []
    with CONSTRUCTION, torch.random.fork_rng(devices), torch.device(device):
        torch.manual_seed(zlib.crc32(role.encode()))
        model: PreTrainedModel = kind.from_config(config, dtype=getattr(torch, dtype))
    return model


class SyntheticDistribution:
    """Logits (m, V) of m contexts, each identified by a hash. `member` numbers the models of a pair.

    SUPPORT tokens, evenly spaced from a hashed offset, have normally distributed logits: SHARED_SPREAD times a part that all
    members share, plus `spread` times a part of the member's own. All other tokens have a negligible probability.
    """

    def __init__(self, vocabulary: int, member: int, spread: float) -> None:
        self.vocabulary, self.member, self.spread = vocabulary, member, spread
        self.support = min(SUPPORT, vocabulary)

    def __call__(self, contexts: Tensor) -> Tensor:
        """Return logits (m, V), float32, of contexts (m,), int64."""
        places = torch.arange(self.support, device=contexts.device)
        offset = (_mixed(contexts) >> 1).remainder(self.vocabulary)  # (m,)
        # (m, support)
        tokens = (offset[:, None] + places * (self.vocabulary // self.support)).remainder(self.vocabulary)
        logits = torch.full((len(contexts), self.vocabulary), NEVER, device=contexts.device)
        return logits.scatter_(1, tokens, self.values(contexts))

    def values(self, contexts: Tensor) -> Tensor:
        """Return the logits of the supported tokens only, (m, support)."""
        shared = normal_numbers(contexts, 0, self.support)
        return _logits(shared, normal_numbers(contexts, 1 + self.member, self.support), self.spread)


class SyntheticSession:
    """A session whose model runs as usual, and whose logits are then replaced. The replacement is excluded from all timings.

    It reads every token, so on a GPU its drafts wait for the device; drafts of a real model do not.
    """

    def __init__(
        self, inner: Session, distribution: SyntheticDistribution, device: torch.device, source: list[int] | None = None
    ) -> None:
        """`source` is what an encoder reads: part of the context."""
        self._inner, self._distribution, self._device = inner, distribution, device
        self._first = reduce(context_hash, source or [], 0)
        self._ids: list[int] = []
        self._hashes: list[int] = []  # of every prefix of _ids, as signed 64-bit integers

    @property
    def usage(self) -> Usage:
        return self._inner.usage

    def score(self, ids: list[int], start: int, tree: Tree | None = None) -> Tensor:
        self._inner.score(ids, start, tree)
        begin = self._now()
        cached = common_prefix(ids, self._ids)
        hashes = self._hashes[:cached]
        for token in ids[cached:]:
            hashes.append(context_hash(hashes[-1] if hashes else self._first, token))
        self._ids, self._hashes = list(ids), hashes
        branches: list[int] = []
        for token, parent in zip(*tree, strict=True) if tree is not None else ():
            branches.append(context_hash(hashes[-1] if parent < 0 else branches[parent], token))
        logits = self._distribution(torch.tensor(hashes[start:] + branches, device=self._device))
        self.usage.excluded_seconds += self._now() - begin
        return logits

    def _now(self) -> float:
        """Return the time once the device is idle, so that only the replacement itself is excluded."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def roll(self, ids: list[int], k: int, sampler: Sampler, eos: frozenset[int]) -> Draft:
        return roll(self, ids, k, sampler, eos)

    def growth(self, ids: list[int], room: int, eos: frozenset[int]) -> Growth:
        return growth(self, ids, room, eos)

    def room(self, ids: list[int]) -> int:
        return self._inner.room(ids)

    def keep_states(self, aux_layers: AuxLayers = ()) -> None:
        raise ValueError("a model whose logits are synthetic has no hidden states that match them")

    def hidden(self, ids: list[int], start: int, aux_layers: AuxLayers = ()) -> Tensor:
        return self._inner.hidden(ids, start, aux_layers)

    def cached_length(self, ids: list[int]) -> int:
        return self._inner.cached_length(ids)

    def logits_of(self, states: Tensor) -> Tensor:
        return self._inner.logits_of(states)

    def finish(self) -> None:
        self._inner.finish()


def calibrate(
    acceptance: float, test: Verification, spreads: Callable[[float], Mapping[str, float]], sampler: Sampler
) -> float:
    """Return the spread at which drafts are accepted at this rate, the sum of min(pi, q), averaged over contexts.

    `spreads` maps one number to the spreads of all models; its order numbers the models. The rate is simulated over random
    contexts, and falls as the spread grows. Raises ConfigError, with the possible range, if no spread gives the rate. For
    example, the acceptance rate of an ensemble is at least the drafter's weight in the mixture.
    """

    def rate(spread: float) -> float:
        """Return the acceptance rate at this spread."""
        return acceptance_at(spreads(spread), test, sampler)

    highest, lowest = rate(0.0), rate(MAX_SPREAD)
    if not lowest <= acceptance <= highest:
        raise ConfigError(
            f"acceptance = {acceptance}: drafts of {test.proposer} can be given rates from {lowest:.2f} to {highest:.2f}"
            " under this method and these models"
        )
    low, high = 0.0, MAX_SPREAD
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if rate(middle) > acceptance else (low, middle)
    return (low + high) / 2


def acceptance_at(spreads: Mapping[str, float], test: Verification, sampler: Sampler) -> float:
    """Return how often drafts pass a test if the models have these spreads."""
    numbers = {role: i for i, role in enumerate(spreads)}
    values = {  # (contexts, SUPPORT) each
        role: _logits(_numbers(0), _numbers(1 + numbers[role]), spreads[role])
        for role in {test.proposer, *test.scorers}
    }
    pi = test.target([values[role] for role in test.scorers], sampler)
    accepted = test.expected(sampler.probs(values[test.proposer]), pi)  # (contexts,)
    if accepted is None:
        raise ConfigError(f"{test.why_no_rate}, so none can be calibrated; help: run sd too, before the others")
    return float(accepted.mean())


def context_hash(before: int, token: int) -> int:
    """Return the hash of a prefix extended by one token, as a signed 64-bit integer.

    It is splitmix64's finaliser over a running sum.
    """
    z = ((before & _MASK) * _MIX2 + token + _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * _MIX1) & _MASK
    z = ((z ^ (z >> 27)) * _MIX2) & _MASK
    z ^= z >> 31
    return z - (1 << 64) if z >> 63 else z


@cache
def calibration_contexts() -> Tensor:
    """Return hashed contexts (CONTEXTS,)."""
    return _mixed(torch.arange(CONTEXTS))


@cache
def _numbers(stream: int) -> Tensor:
    """Return a stream of numbers in the contexts of calibration, (CONTEXTS, SUPPORT), at any spread."""
    return normal_numbers(calibration_contexts(), stream, SUPPORT)


def _logits(shared: Tensor, individual: Tensor, spread: float) -> Tensor:
    """Combine the numbers that all members share with a member's own ones, float32."""
    return (SHARED_SPREAD * shared + spread * individual).float()


def _mixed(x: Tensor) -> Tensor:
    """Apply splitmix64's finaliser to int64, whose products wrap around like unsigned ones."""
    x = x + _signed(_GOLDEN)
    x = (x ^ _shifted(x, 30)) * _signed(_MIX1)
    x = (x ^ _shifted(x, 27)) * _signed(_MIX2)
    return x ^ _shifted(x, 31)


def normal_numbers(contexts: Tensor, stream: int, places: int) -> Tensor:
    """Return independent standard normal numbers (m, places), float64, for each context and stream.

    They are hashed uniforms, inverted.
    """
    at = torch.arange(places, device=contexts.device) + (stream + 1) * 4096
    bits = _mixed(_mixed(contexts)[:, None] + at * _signed(_MIX1))
    uniform = (_shifted(bits, 11).double() + 0.5) / float(1 << 53)  # (m, places), inside (0, 1)
    normal: Tensor = torch.special.ndtri(uniform)
    return normal


def _shifted(x: Tensor, by: int) -> Tensor:
    """Shift right logically."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def _signed(x: int) -> int:
    """Return the signed 64-bit integer with the bits of x."""
    return x - (1 << 64) if x >> 63 else x
