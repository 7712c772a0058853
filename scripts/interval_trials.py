"""Coverage of intervals and error rates of tests on simulated runs with known truth; writes results/intervals.md.

Every run consists of specbench's own records: outputs of unequal length, prompts with their own acceptance and speed,
noise of every forward, spikes, and slow drift of the machine. The intervals are computed by the functions that reports
use.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from scripts.sections import environment
from specbench.analysis.length_predictions import predict
from specbench.analysis.significance import paired_test
from specbench.analysis.speed import speedup
from specbench.decoding.traits import Theory
from specbench.runs.record import Record, RoundRecord, UsageRecord

OUT = Path("results/intervals.md")
SPEEDS = 40  # runs with one speedup, and comparisons, per run with predicted gains
GAIN = 1.2  # true speedup of the runs whose intervals are tested
THEORY = {
    gamma: Theory(formula="speculation", models=("draft", "target"), gamma=(gamma,), bonus="exact")
    for gamma in range(1, 9)
}
SHAPES = {  # seconds of a target forward of n tokens over one token's
    "stepped": lambda n: 1.0 if n == 1 else 1.22 + 0.04 * (n - 2),
    "flat": lambda n: 1.0 + 0.01 * (n - 1),
    "steep": lambda n: float(np.interp(n, [1, 2, 5, 8, 9], [1.0, 2.4, 4.8, 5.2, 5.4])),
}
OUTPUT = {"long": 96, "short": 20}  # tokens


class Noise(NamedTuple):
    """Noise of one forward: its relative standard deviation, the share of spikes, their mean height, and the drift's step."""

    deviation: float
    spikes: float
    height: float
    step: float


NOISE = {"quiet": Noise(0.05, 0.0, 0.0, 0.0), "busy": Noise(0.15, 0.03, 2.0, 0.1)}


class Clock:
    """Seconds of forwards of a machine whose speed drifts from generation to generation."""

    def __init__(self, noise: Noise, rng: np.random.Generator) -> None:
        self._noise, self._rng, self._level = noise, rng, 0.0

    def drift(self) -> None:
        """Move the machine's speed, which all methods share."""
        self._level = 0.9 * self._level + self._rng.normal(0.0, self._noise.step)

    def time(self, seconds: float, count: int) -> float:
        """Return the measured time of `count` forwards of the same kind."""
        noise = np.exp(self._rng.normal(0.0, self._noise.deviation, count))
        noise += self._rng.exponential(self._noise.height, count) * (self._rng.random(count) < self._noise.spikes)
        return float(seconds * noise.sum() * np.exp(self._level))


@dataclass(frozen=True)
class World:
    """Costs of a pair, in forwards of one token of the target, and how often the models agree."""

    shape: Callable[[int], float]
    draft: float
    host: float
    host_share: float  # of the baseline's host time per token, for each draft token
    rate: float

    def agreeing(self, tokens: int, rng: np.random.Generator) -> list[bool]:
        """Return for each token of one prompt's output whether the draft model agrees; neighbors are correlated."""
        mean = rng.beta(12.0 * self.rate, 12.0 * (1.0 - self.rate))
        out: list[bool] = []
        for _ in range(tokens):
            again = 0.2 if out else 0.0
            out.append(out[-1] if rng.random() < again else bool(rng.random() < mean))
        return out

    def seconds(self, agrees: list[bool], gamma: int) -> float:
        """Return the expected decoding seconds of an output."""
        return sum(
            count * each
            for kind, count, each in self.forwards(*rounds(agrees, gamma))
            if kind not in ("first", "skipped")
        )

    def forwards(self, drafted: list[int], accepted: list[int]) -> Iterator[tuple[str, int, float]]:
        """Yield the kind, number and cost of the parts of an output; the first forward of each model is prefill."""
        for i, k in enumerate(drafted):
            doubled = i > 0 and accepted[i - 1] == drafted[i - 1]
            if i:
                yield "double" if doubled else "single", 1, self.draft * (2.0 if doubled else 1.0)
                yield f"block {k + 1}", 1, self.shape(k + 1)
            if k > 1:
                yield "single", k - 1, self.draft
        yield "host", 1, len(drafted) * self.host + sum(drafted) * self.host_share * self.host

    def record(self, agrees: list[bool], gamma: int, sample: str, repeat: int, clock: Clock) -> Record:
        """Return the record of one output decoded with drafts of `gamma` tokens."""
        drafted, accepted = rounds(agrees, gamma)
        times: dict[str, tuple[int, float]] = {}
        for kind, count, cost in self.forwards(drafted, accepted):
            n, spent = times.get(kind, (0, 0.0))
            times[kind] = n + count, spent + clock.time(cost, count)
        host = times.pop("host")[1]
        blocks = {int(kind.split()[1]): each for kind, each in times.items() if kind.startswith("block")}
        drafts = {size: times[kind] for size, kind in ((1, "single"), (2, "double")) if kind in times}
        tokens = [accepted[i] + 1 for i in range(len(drafted))]
        tokens[-1] -= sum(tokens) - len(agrees)
        return Record(
            method="sd", sample=sample, repeat=repeat, seed=0, order=0, tokens=[0] * len(agrees), prefill_seconds=1.0,
            decode_seconds=host + sum(spent for part in (blocks, drafts) for _, spent in part.values()),
            rounds=[
                RoundRecord(tokens=t, drafted=k, tested=min(a + 1, k), accepted=a, proposers=["draft"] * min(a + 1, k))
                for t, k, a in zip(tokens, drafted, accepted, strict=True)
            ],
            models={"draft": usage(drafts), "target": usage(blocks)},
        )  # fmt: skip

    def plain(self, tokens: int, sample: str, repeat: int, clock: Clock) -> Record:
        """Return the record of one output of the baseline."""
        forwards = clock.time(self.shape(1), tokens - 1)
        return Record(
            method="ar", sample=sample, repeat=repeat, seed=0, order=0, tokens=[0] * tokens, prefill_seconds=1.0,
            decode_seconds=forwards + clock.time(self.host * tokens, 1),
            models={"target": usage({1: (tokens - 1, forwards)})},
        )  # fmt: skip


def rounds(agrees: list[bool], gamma: int) -> tuple[list[int], list[int]]:
    """Return the drafted and accepted tokens of each round."""
    drafted, accepted, position = [], [], 0
    while position < len(agrees):
        window = agrees[position : position + gamma]
        taken = next((i for i, agreed in enumerate(window) if not agreed), len(window))
        drafted.append(len(window) if taken == len(window) else gamma)
        accepted.append(taken)
        position += taken + 1
    return drafted, accepted


def usage(sizes: dict[int, tuple[int, float]]) -> UsageRecord:
    """Return the usage of a model from (forwards, seconds) by tokens read."""
    return UsageRecord(
        prefill_fed=1, prefill_seconds=0.5, encodes=0, forwards=sum(n for n, _ in sizes.values()),
        fed=sum(k * n for k, (n, _) in sizes.items()), seconds=sum(s for _, s in sizes.values()),
        by_fed={k: [n, s] for k, (n, s) in sizes.items()}, read=0, excluded_seconds=0.0,
        overlapped_seconds=0.0, prefill_overlapped_seconds=0.0,
    )  # fmt: skip


def gain_coverage(noise: str, length: str, gamma: int, trials: int, seed: int) -> tuple[int, int, int, int]:
    """Return how many gains are in their intervals, of how many, and how many runs have predictions, of how many."""
    held = predicted = shown = 0
    rng = np.random.default_rng([seed, gamma, len(noise), len(length)])
    for trial in range(trials):
        world = World(
            list(SHAPES.values())[trial % 3], rng.uniform(0.05, 0.3), rng.uniform(0.05, 0.2), rng.uniform(0.5, 0.7),
            rng.uniform(0.5, 0.9),
        )  # fmt: skip
        clock = Clock(NOISE[noise], rng)
        texts = [world.agreeing(max(6, int(rng.normal(OUTPUT[length], OUTPUT[length] / 4))), rng) for _ in range(20)]
        rows, base = [], []
        for repeat in range(3):
            for i, agrees in enumerate(texts):
                clock.drift()
                rows.append(world.record(agrees, gamma, str(i), repeat, clock))
                base.append(world.plain(len(agrees), str(i), repeat, clock))
        found = predict(THEORY[gamma], rows, base)
        shown += bool(found)
        many = [world.agreeing(OUTPUT[length], rng) for _ in range(600)] if found else []
        spent = {each.gamma: sum(world.seconds(agrees, each.gamma) for agrees in many) for each in found}
        for each in found:
            if each.gamma != gamma and each.gain.low is not None and each.gain.high is not None:
                predicted += 1
                held += each.gain.low <= spent[gamma] / spent[each.gamma] <= each.gain.high
    return held, predicted, shown, trials


def speed_coverage(noise: str, prompts: int, repeats: int, trials: int, seed: int) -> tuple[int, int]:
    """Return how many 95 % intervals of the speedup contain its true value, of how many."""
    held = 0
    rng = np.random.default_rng([seed, prompts, repeats, len(noise)])
    for _ in range(trials):
        clock = Clock(NOISE[noise], rng)
        rows: list[Record] = []
        base: list[Record] = []
        tokens = np.maximum(np.exp(rng.normal(4.0, 0.6, prompts)), 4.0).astype(int)
        ratios = GAIN * np.exp(rng.normal(0.0, 0.15, prompts))
        for repeat in range(repeats):
            for i in range(prompts):
                clock.drift()
                for out, factor in ((rows, ratios[i]), (base, 1.0)):
                    spent = clock.time(1.0 / factor, int(tokens[i]))
                    out.append(
                        Record(
                            method="ar" if out is base else "sd", sample=str(i), repeat=repeat, seed=0, order=0,
                            tokens=[0] * int(tokens[i]), prefill_seconds=0.0, decode_seconds=spent,
                        )
                    )  # fmt: skip
        found = speedup(rows, base)
        true = GAIN * np.exp(-(0.15**2) / 2)  # of tokens / seconds over all prompts
        assert found.low is not None and found.high is not None
        held += found.low <= true <= found.high
    return held, trials


def false_positives(prompts: int, trials: int, seed: int) -> tuple[int, int]:
    """Return how often a paired test at alpha .01 finds a change between equal sides, of how many."""
    found, rng = 0, np.random.default_rng([seed, prompts])
    for _ in range(trials):
        tokens = np.maximum(np.exp(rng.normal(4.0, 0.6, prompts)), 4.0)
        one, two = (np.stack([tokens / np.exp(rng.normal(1.0, 0.1, prompts)), tokens], axis=1) for _ in range(2))
        found += paired_test(one, two, lambda rows: float(rows[:, 0].sum() / rows[:, 1].sum()))[1] < 0.01
    return found, trials


def page(trials: int, seed: int) -> Iterator[str]:
    """Yield the lines of the report."""
    yield "# Intervals and tests on simulated runs\n"
    yield (
        "Simulated runs with known truth, not measurements; `make intervals` writes this page"
        f" ({trials} runs per row of gains, {SPEEDS * trials} per row of speedups, seed {seed}). A busy machine has 15 %"
        " noise per forward, spikes of three times a forward's time in 3 % of forwards, and drift between generations.\n"
    )
    yield "## Speedup over the baseline: 95 % intervals\n"
    yield "| machine | prompts | repeats | contain the truth | coverage |\n| :-- | --: | --: | --: | --: |"
    for noise in NOISE:
        for prompts in (5, 8, 10, 20, 40):
            for repeats in (1, 3):
                held, of = speed_coverage(noise, prompts, repeats, SPEEDS * trials, seed)
                yield f"| {noise} | {prompts} | {repeats} | {held} of {of} | {100 * held / of:.1f} % |"
    yield "\n## Comparison of two equal sides at alpha = .01\n"
    yield "| prompts | false positives | share |\n| --: | --: | --: |"
    for prompts in (5, 8, 20):
        count, of = false_positives(prompts, SPEEDS * trials, seed)
        yield f"| {prompts} | {count} of {of} | {100 * count / of:.2f} % |"
    yield "\n## Predicted gain of other draft lengths: 95 % intervals\n"
    yield (
        "Twenty prompts, three repeats; outputs of about 96 tokens (long) or 20 (short). A prediction is left out"
        " where too few blocks of different sizes were read.\n"
    )
    yield "| machine | outputs | measured length | predicted in | contain the truth | coverage |"
    yield "| :-- | :-- | --: | --: | --: | --: |"
    for noise in NOISE:
        for length in OUTPUT:
            for gamma in (1, 2, 3, 5, 8):
                held, predicted, shown, of = gain_coverage(noise, length, gamma, trials, seed)
                coverage = f"{100 * held / predicted:.1f} %" if predicted else "–"
                yield f"| {noise} | {length} | {gamma} | {shown} of {of} runs | {held} of {predicted} | {coverage} |"


def main() -> None:
    """Write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    lines = []
    for line in page(given.trials, given.seed):
        print(line, flush=True)
        lines.append(line)
    lines += ["", environment(is_timed=False)]
    OUT.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
