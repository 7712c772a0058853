"""Times of forwards by the number of tokens that they read, for the plans of `specbench profile`."""

from specbench.data.prompting import encode
from specbench.files import write_sealed
from specbench.models.loaded_pair import LoadedPair
from specbench.resolution.plan import Plan, PlannedRun
from specbench.runs.run_folder import BLOCKS

LARGEST = 25  # tokens: a draft of 8 on a block of 16, and the token before them
TIMES = 20  # forwards of each size


def time_blocks(plan: Plan, run: PlannedRun) -> None:
    """Time forwards of 1 to LARGEST tokens of every model, after the first prompt, and write the times to the run folder.

    A folder that has times already is skipped.
    """
    if not (run.folder / BLOCKS).exists():
        pair = run.pair_of(plan.load())
        write_sealed(run.folder / BLOCKS, {"models": {role: _times(pair, run, role) for role in run.spec.roles}})


def _times(pair: LoadedPair, run: PlannedRun, role: str) -> dict[int, list[float]]:
    """Return the number of forwards of a model and their seconds, by tokens read. Sizes alternate."""
    window = pair.window_of((role,)).length
    prompt, _ = encode(pair.tokenizer, run.task, run.data.samples[0], [], window)
    models = pair.open(prompt)
    largest = LARGEST if window is None else min(LARGEST, window - len(models.ids))
    pair.prepare(len(models.ids) + largest, largest)
    session = models[role]
    session.score(models.ids, len(models.ids) - 1)
    for time in range(TIMES + 1):
        for size in range(1, largest + 1):
            tokens = [(7 * time + 13 * size + 3 * i) % min(pair.vocabulary, 200) for i in range(size)]
            session.score(models.ids + tokens, len(models.ids))
        session.settle()
        if not time:
            first = {size: list(sums) for size, sums in session.usage.by_fed.items()}  # warm-up
    return {
        size: [count - first[size][0], spent - first[size][1]] for size, (count, spent) in session.usage.by_fed.items()
    }
