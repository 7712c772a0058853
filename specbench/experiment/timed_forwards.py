"""Forwards of blocks, timed apart from a run: the costs of sizes that the run seldom has."""

import math
import time
from collections.abc import Iterable, Iterator, Sequence

from specbench.analysis.costs import LEAST
from specbench.data.prompting import encode_firsts
from specbench.files import write_with_checksum
from specbench.models.loaded_pair import LoadedPair
from specbench.resolution.run_plan import PlannedRun
from specbench.runs.run_folder import (
    BLOCKS,
)

LARGEST_BLOCK = 25  # tokens: a draft of 8 on a block of 16, and the token before them
FORWARDS_OF_EACH_SIZE = 20
FEW_SIZES = (1, 2, 3, 5, 8)  # of blocks, where there is no time for all
TEXTS = 8  # prompts that timed blocks are taken from


def has_timed_blocks(run: PlannedRun) -> bool:
    """Return whether forwards of blocks were timed for a run."""
    return (run.folder / BLOCKS).exists()


def time_blocks(loaded: LoadedPair, run: PlannedRun, seconds: float = math.inf) -> None:
    """Time forwards of 1 to LARGEST_BLOCK tokens of every model, after the first prompt, and write the times to the folder.

    The tokens are from the prompts, since the time of a mixture of experts depends on the experts that the text selects. Each
    model gets an equal share of `seconds`, and at least LEAST forwards of FEW_SIZES.
    """
    pair, share = run.pair_of(loaded), seconds / len(run.spec.roles)
    times = {role: _times(pair, run, role, share) for role in run.spec.roles}
    write_with_checksum(run.folder / BLOCKS, {"models": times})


def _times(pair: LoadedPair, run: PlannedRun, role: str, seconds: float) -> dict[int, list[float]]:
    """Return the number of forwards of a model and their total seconds, by tokens read.

    Each turn has a forward of every size, so that a slow change of the machine affects all sizes alike. The first turn is the
    warm-up: its sums are subtracted.
    """
    begin = time.monotonic()
    firsts = [sample for sample in run.data.samples if not sample.after][:TEXTS]
    prompts = encode_firsts(pair.tokenizer, run.task, firsts, pair.window, pair.encoder_decoder)
    window, readable = pair.window_of((role,)).length, pair.models[role].embedded
    models = pair.open(prompts[0])
    ids = [token for token in models.ids if token < readable]
    if window is not None:
        ids = ids[: max(window - LARGEST_BLOCK, 1)]
    largest = LARGEST_BLOCK if window is None else min(LARGEST_BLOCK, window - len(ids))
    pair.prepare(len(ids) + largest, range(1, largest + 1))
    session = models[role]
    session.score(ids, len(ids) - 1)
    warm_up: dict[int, list[float]] = {}

    def sizes() -> Iterator[int]:
        """Yield the sizes of each turn: all of them, or only FEW_SIZES if LEAST turns of all would take too long.

        The estimate of a turn's time is the time until the end of the warm-up. After LEAST timed turns, no turn begins once
        the time is up.
        """
        turn: Sequence[int] = range(1, largest + 1)
        for number in range(FORWARDS_OF_EACH_SIZE + 1):
            spent = time.monotonic() - begin
            if number > LEAST and spent > seconds:
                return
            if number:
                session.finish()
            if number == 1:
                warm_up.update({size: list(sums) for size, sums in session.usage.by_fed.items()})
                turn = turn if LEAST * spent < seconds else [size for size in FEW_SIZES if size <= largest]
            yield from turn

    text = [token for prompt in prompts for token in prompt if token < readable]
    for block in _blocks_of(text, sizes()):
        session.score(ids + block, len(ids))
    session.finish()
    # A draft with another tokenizer may not have read a size in the first turn, since it skips tokens that it lacks
    before = {size: warm_up.get(size, [0, 0.0]) for size in session.usage.by_fed}
    return {
        size: [count - before[size][0], spent - before[size][1]]
        for size, (count, spent) in session.usage.by_fed.items()
        if count > before[size][0]
    }


def _blocks_of(text: list[int], sizes: Iterable[int]) -> Iterator[list[int]]:
    """Yield consecutive blocks of a text, repeated as needed. No two neighbors begin with the same token.

    A session keeps the cache of the tokens that two calls have in common. After the block [7, 2], the block [7, 5] would be a
    forward of one token, not of two.
    """
    start, last, varies = 0, -1, len(set(text)) > 1
    for size in sizes:
        while varies and text[start % len(text)] == last:
            start += 1
        block = [text[(start + i) % len(text)] for i in range(size)]
        yield block
        start, last = start + size, block[0]
