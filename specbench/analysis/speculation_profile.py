"""NVIDIA's speculation_profile.json, schema 1.0 (Model-Optimizer, specdec_bench): written and read."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

import msgspec

from specbench.analysis.acceptance_profile import (
    TOLERANCE,
    AcceptanceProfile,
    Drafts,
    lengths_of,
    of_lengths,
    require_consistent,
)
from specbench.errors import ConfigError, short_repr
from specbench.files import parse_json

SCHEMA = "1.0"
DIGITS = 6
CHAIN = "chain_analytic"  # a shorter draft is the beginning of a longer one
CHAIN_METHODS = ("eagle", "eagle1", "eagle2", "eagle3", "draft_model")  # of which the schema says so


class MeanConsistency(msgspec.Struct, kw_only=True):
    """Whether the mean length follows from the rates."""

    implied_mean_accept_length: float
    reported_mean_accept_length: float
    abs_delta: float
    tolerance: float = TOLERANCE
    passed: bool = True


class Monotonicity(msgspec.Struct, kw_only=True):
    """Whether the marginal rates never rise. `violations` are positions."""

    passed: bool = True
    violations: list[int] = []


class Validation(msgspec.Struct, kw_only=True):
    """The checks of a profile."""

    mean_consistency: MeanConsistency
    marginal_monotonicity: Monotonicity


class SpeculationProfile(msgspec.Struct, kw_only=True):
    """The content of a file. Rates are by position; lengths count the target's own token."""

    schema_version: str
    measured: bool = True
    method: str | None = None
    draft_checkpoint: str | None = None
    target_model: str | None = None
    num_speculative_tokens: int
    block_size: int | None = None
    max_supported_k: int | None = None
    verification_method: str = "longest_prefix"
    conditional_accept_rates: list[float] = []
    marginal_accept_rates: list[float] = []
    mean_accept_length: float | None = None
    mean_accept_length_per_request: float | None = None
    accept_length_model: str | None = None
    accept_length_by_k: dict[str, float] = {}
    acceptance_length_histogram: dict[str, int] | None = None
    per_category: dict[str, object] | None = None
    measurement_conditions: dict[str, object] = {}
    validation: Validation | None = None


def written(profile: AcceptanceProfile, by_request: float | None = None) -> str:
    """Return a profile as a file. `by_request` is the mean over outputs of their mean lengths.

    If rounds draft different numbers of tokens, the file has the histogram and no rates, since the schema's rates are
    conditional on a token having been drafted.
    """
    length, mean = len(profile.survival), profile.mean_length
    has_rates, is_chain = profile.drafts != Drafts.adaptive, profile.drafts == Drafts.chain
    means = {f"{k}": round(1.0 + math.fsum(profile.survival[:k]), DIGITS) for k in range(1, length + 1)}
    table = SpeculationProfile(
        schema_version=SCHEMA,
        method=profile.method or None,
        draft_checkpoint=_short(profile.draft),
        target_model=_short(profile.target),
        num_speculative_tokens=length,
        max_supported_k=length,
        verification_method=profile.verification,
        conditional_accept_rates=[round(rate, DIGITS) for rate in profile.conditional if has_rates],
        marginal_accept_rates=[round(rate, DIGITS) for rate in profile.survival if has_rates],
        mean_accept_length=round(mean, DIGITS),
        mean_accept_length_per_request=None if by_request is None else round(by_request, DIGITS),
        accept_length_model=CHAIN if is_chain else "measured_per_k",
        accept_length_by_k=means if is_chain else {f"{length}": means[f"{length}"]} if length and has_rates else {},
        acceptance_length_histogram={f"{k}": count for k, count in sorted(lengths_of(profile).items())} or None,
        measurement_conditions=dict(profile.conditions),
        validation=Validation(
            mean_consistency=MeanConsistency(
                implied_mean_accept_length=round(mean, DIGITS), reported_mean_accept_length=round(mean, DIGITS), abs_delta=0.0
            ),
            marginal_monotonicity=Monotonicity(),
        ),
    )  # fmt: skip
    return json.dumps(msgspec.to_builtins(table), indent=2, allow_nan=False) + "\n"


def read(text: str, where: str) -> AcceptanceProfile:
    """Return the profile in a file. Raises ConfigError if it contradicts itself, or was not measured."""
    table = parse_json(text, SpeculationProfile, where)
    if table.schema_version != SCHEMA:
        raise ConfigError(f"{where}: schema_version {short_repr(table.schema_version)}; {SCHEMA!r} is known")
    if not table.measured:
        raise ConfigError(f"{where}: measured is false: it holds no rates")
    k, rates = table.num_speculative_tokens, table.marginal_accept_rates
    for name, values in (("marginal", rates), ("conditional", table.conditional_accept_rates)):
        if len(values) != k and (values or not table.acceptance_length_histogram):
            raise ConfigError(f"{where}: num_speculative_tokens is {k}, and there are {len(values)} {name} rates")
    identity = {
        "method": table.method or "",
        "target": table.target_model or "",
        "draft": table.draft_checkpoint or "",
        "drafts": Drafts.chain if table.accept_length_model == CHAIN else Drafts.unknown if rates else Drafts.adaptive,
        "verification": table.verification_method,
        "conditions": table.measurement_conditions,
    }
    if not rates and table.acceptance_length_histogram:
        counted = of_lengths(_lengths(table.acceptance_length_histogram, where), k, where, **identity)
        require_consistent(counted, table.mean_accept_length, counted.conditional)
        return counted
    profile = AcceptanceProfile(source=where, survival=tuple(rates), **identity)  # type: ignore[arg-type]  # values by name
    require_consistent(profile, table.mean_accept_length, table.conditional_accept_rates)
    if table.acceptance_length_histogram:
        counted = of_lengths(_lengths(table.acceptance_length_histogram, where), k, where, **identity)
        require_consistent(counted, profile.mean_length, profile.conditional)
        return counted
    return profile


def is_speculation_profile(table: object) -> bool:
    """Return whether a JSON value is such a file."""
    return isinstance(table, dict) and "schema_version" in table and "conditional_accept_rates" in table


def _lengths(histogram: Mapping[str, int], where: str) -> dict[int, int]:
    try:
        return {int(length): count for length, count in histogram.items()}
    except ValueError as error:
        raise ConfigError(f"{where}: acceptance_length_histogram: {error}") from None


def _short(path: str) -> str | None:
    """Return the last two parts of a path, as the schema asks; None for an empty one."""
    return "/".join(Path(path).parts[-2:]) or None


def parsed(text: str) -> object:
    """Return the JSON value of a text; None for texts that are not JSON, or are nested too deeply."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
