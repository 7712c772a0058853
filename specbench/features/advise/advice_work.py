"""How much advice decodes: the parts of the prompts, and the reductions that keep it within the time limit."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from specbench.config.shard import Shard
from specbench.experiment.generation import Setting, generate
from specbench.models.loaded_pair import LoadedPair
from specbench.resolution.run_plan import PlannedRun
from specbench.runs.record import Record

# Parts of the prompts, as shards: costs, two eliminations, and the winner's gain, on half of the prompts
PARTS = (Shard(1, 4), Shard(3, 8), Shard(7, 8), Shard(2, 2))
FEWEST_TOKENS = 16  # per output
TIMED_FORWARDS = 1000  # of blocks next to the first part, in tokens of the target, if there is time
TIMED_SHARE = 0.1  # of the time limit, at most, for these
FEWEST_PROMPTS = 10  # for which the last part has an interval
FINALISTS = 4
PROCESSES = 2  # in which the winner is measured again, one after the other


@dataclass(frozen=True)
class AdviceWork:
    """What advice decodes: prompts, repeats of each, and new tokens of each output."""

    prompts: int
    repeats: int
    tokens: int

    def seconds(self, pilots: int, prefill: float, token: float, limit: float) -> float:
        """Return the seconds of all parts if every method is as slow as the baseline and all outputs have full length.

        `prefill` and `token` are the seconds of a prefill and of a token of the target. `limit` is the time limit of advice.
        """
        output = prefill + self.tokens * token
        methods = (1 + pilots, 1 + FINALISTS, 1 + FINALISTS // 2, 2 * (1 + PROCESSES))
        outputs = sum(part.share * count for part, count in zip(PARTS, methods, strict=True))
        return self.prompts * self.repeats * outputs * output + min(TIMED_FORWARDS * token, TIMED_SHARE * limit)

    def smaller(self) -> Iterator["AdviceWork"]:
        """Yield less and less work: one repeat, then fewer prompts, then fewer tokens."""
        work = replace(self, repeats=1)
        yield work
        while work.prompts > FEWEST_PROMPTS:
            work = replace(work, prompts=max(work.prompts // 2, FEWEST_PROMPTS))
            yield work
        while work.tokens > FEWEST_TOKENS:
            work = replace(work, tokens=max(work.tokens // 2, FEWEST_TOKENS))
            yield work


def timed_tokens(loaded: LoadedPair, run: PlannedRun) -> tuple[float, float]:
    """Return the seconds of the prefill of a run's first prompt, and of a token after it, by the baseline."""
    decoding = replace(run.spec.decoding, max_new_tokens=FEWEST_TOKENS, ignore_eos=True)
    setting = Setting(run.pair_of(loaded), run.task, decoding)
    sample, method = run.data.samples[0], run.methods[run.spec.baseline]
    record = Record(method=run.spec.baseline, sample=sample.id, repeat=0, seed=decoding.seed, order=0)
    out = generate(method, record, setting, sample, [])
    return out.prefill_seconds, out.decode_seconds / max(len(out.tokens) - 1, 1)
