"""Draft lengths to sweep, around the length that a short run predicts to be the fastest."""

from dataclasses import replace

from specbench.config.options import Request
from specbench.config.presets import preset
from specbench.errors import ConfigError
from specbench.experiment.pipeline import run
from specbench.observer import Observer
from specbench.resolution.resolve import Choice

PILOT_LENGTH = 5  # draft length of the short run, at which acceptance is known for five positions
PILOT_PROMPTS = 8
REACH = 2  # lengths on each side of the predicted one


def lengths_around(request: Request, observer: Observer) -> dict[str, list[int]]:
    """Return for each method the draft lengths around the predicted one, from a run of a few prompts at length 5.

    The run is stored in the request's output folder, and later calls reuse it. Raises ConfigError for a method without a
    prediction, such as one that does not draft a fixed length.
    """
    request = replace(request, methods=Choice.of(request).methods.names)
    options = request.options
    limit = min(PILOT_PROMPTS, options.limit or PILOT_PROMPTS)
    pilot = replace(options, gamma=(("", (PILOT_LENGTH,)),), over=(), repeats=1, limit=limit, sample=0)
    results = run(replace(request, options=pilot, sandbox=None), observer)
    predicted: dict[str, list[int]] = {}
    for summary in results.summaries:
        for row in summary.measured:
            if row.predicted_lengths:
                best = max(row.predicted_lengths, key=lambda each: each.speedup.value).gamma
                predicted.setdefault(summary.spec.methods[row.method].preset, []).append(best)
    if missing := [name for name in request.methods if preset("method", name).name not in predicted]:
        why = (
            f"its short run has {limit} of at most {PILOT_PROMPTS} prompts, too few to know the cost of blocks; help:"
            f" -n {PILOT_PROMPTS}, or"
            if limit < PILOT_PROMPTS
            else "it drafts no fixed length, or its outputs are too short to know the cost of blocks; help:"
        )
        raise ConfigError(
            f"--over gamma=auto: no draft length can be predicted for {', '.join(missing)}: {why} --over gamma=[1, 3, 5]"
        )
    return {name: list(range(max(min(best) - REACH, 1), max(best) + REACH + 1)) for name, best in predicted.items()}
