"""Advice: recordings of a target's outputs, predictions from them, and measurements of the best candidates."""

PROMPTS, MINUTES = 48, 10.0  # defaults
REPEATS, SAMPLED_REPEATS = 2, 4  # of a prompt, at temperature 0 and above it, where two outputs differ


def default_repeats(temperature: float | None) -> int:
    """Return how often each prompt is decoded by default at a temperature."""
    return SAMPLED_REPEATS if temperature else REPEATS
