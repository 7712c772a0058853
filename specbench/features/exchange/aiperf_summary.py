"""AIPerf's summary of a run, `profile_export_aiperf.json`: the acceptance of all its requests.

`pooled_spec_decode_acceptance_histogram` has the number of rounds by accepted tokens, without the target's own one. Metrics
are tables with a mean, `avg`, which for a total is the total. Summaries without a histogram have no acceptance by position.
"""

import math
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from specbench.analysis.acceptance_profile import MOST_POSITIONS, MOST_ROUNDS, TOLERANCE, AcceptanceProfile, of_lengths
from specbench.errors import ConfigError

HISTOGRAM = "pooled_spec_decode_acceptance_histogram"
Accepted = Annotated[int, Meta(ge=0, le=MOST_POSITIONS)]
Rounds = Annotated[int, Meta(ge=0, le=MOST_ROUNDS)]


class Metric(Struct):
    """A metric of a run."""

    avg: Annotated[float, Meta(ge=0.0, le=2.0**53)] | None = None


class LoadSettings(Struct):
    """The load of a run."""

    concurrency: int | None = None


class EndpointSettings(Struct):
    """The server of a run."""

    model_names: list[str] | None = None


class InputConfig(Struct):
    """The settings of a run, of which some versions have others."""

    loadgen: LoadSettings | None = None
    endpoint: EndpointSettings | None = None


class AiperfSummary(Struct):
    """The part of a summary that is read."""

    aiperf_version: str | None = None
    was_cancelled: bool | None = None
    pooled_spec_decode_acceptance_histogram: dict[Accepted, Rounds] | None = None
    total_spec_decode_steps: Metric | None = None
    total_accepted_draft_tokens: Metric | None = None
    total_draft_tokens: Metric | None = None
    spec_decode_token_weighted_acceptance_length: Metric | None = None

    def total(self, name: str) -> float | None:
        """Return the value of a metric; None if it is missing."""
        metric = getattr(self, name)
        return None if metric is None else metric.avg


def is_summary(table: object) -> bool:
    """Return whether a JSON value is such a file."""
    return isinstance(table, dict) and "aiperf_version" in table and ("request_count" in table or HISTOGRAM in table)


def read(table: object, source: str) -> AcceptanceProfile:
    """Return the profile in a summary. Raises ConfigError if it has no acceptance by position, or contradicts itself."""
    try:
        summary = msgspec.convert(table, AiperfSummary, strict=False)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise ConfigError(f"{source}: {error}") from None
    histogram = summary.pooled_spec_decode_acceptance_histogram
    if not histogram:
        raise ConfigError(
            f"{source}: AIPerf's summary has no {HISTOGRAM}; help: start vLLM with --enable-per-request-metrics"
            " --per-request-spec-decode-metrics detailed, and measure again"
        )
    rounds, accepted = sum(histogram.values()), sum(length * count for length, count in histogram.items())
    drafted, mean = summary.total("total_draft_tokens"), summary.total("spec_decode_token_weighted_acceptance_length")
    for name, counted in (("total_spec_decode_steps", rounds), ("total_accepted_draft_tokens", accepted)):
        if (stated := summary.total(name)) not in (None, counted):
            raise ConfigError(f"{source}: {name} is {stated:g}, and {HISTOGRAM} has {counted}")
    if drafted is not None and drafted < accepted:
        raise ConfigError(f"{source}: total_draft_tokens is {drafted:g}, and {accepted} were accepted")
    length = max(histogram) if drafted is None or not rounds else max(max(histogram), math.ceil(drafted / rounds))
    if length > MOST_POSITIONS:
        raise ConfigError(
            f"{source}: total_draft_tokens is {drafted:g} in {rounds} rounds, more than {MOST_POSITIONS} per round"
        )
    profile = of_lengths(
        {accepted_ + 1: count for accepted_, count in histogram.items() if count}, length, source, **_identity(table)
    )
    if mean is not None and abs(mean - profile.mean_length) > TOLERANCE:
        raise ConfigError(
            f"{source}: spec_decode_token_weighted_acceptance_length is {mean:g}, and {HISTOGRAM} implies"
            f" {profile.mean_length:.4f}"
        )
    return profile


def _identity(table: object) -> dict[str, Any]:
    """Return the model and the concurrency of a run, if its version states them here."""
    try:
        config = msgspec.convert(table, _WithConfig).input_config
    except (msgspec.ValidationError, UnicodeEncodeError):
        return {}
    models = (config.endpoint.model_names if config and config.endpoint else None) or [""]
    concurrency = config.loadgen.concurrency if config and config.loadgen else None
    return {"target": models[0], "conditions": {} if concurrency is None else {"concurrency": concurrency}}


class _WithConfig(Struct):
    input_config: InputConfig | None = None
