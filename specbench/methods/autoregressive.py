"""Autoregressive decoding with one or more models: the sequential, the parallel and the mixture-model-like ensemble.

In the sequential ensemble (SE, Section 3.2) and the parallel ensemble (WE-P and CD-P in CoS), every model reads every token
before the next one. In the mixture-model-like ensemble (ME, arXiv 2605.00419), one model does.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from specbench.decoding.method import Method, Round, Sessions, StopCriteria
from specbench.decoding.sampling import Sampler, read_tokens
from specbench.decoding.speculation import draw_token
from specbench.decoding.targets import Last, Mixture, Target
from specbench.decoding.traits import Theory

PRESET = "ar"  # of plain decoding with the target, the baseline of most methods


@dataclass(frozen=True, kw_only=True)
class Autoregressive(Method, name="autoregressive"):
    """x ~ E(p_1, ..., p_n), with one forward of every scorer per token. With one scorer and target `last`: plain decoding.

    With a deferral rule as target: the oracle of the cascades paper (Oracle [Diff], its Figure 1).
    """

    scorers: tuple[str, ...]
    target: Target

    def __post_init__(self) -> None:
        self.target.check(len(self.scorers))

    def roles(self) -> tuple[str, ...]:
        return self.scorers

    def declared_distribution(self) -> tuple[tuple[str, ...], Target]:
        return self.scorers, self.target

    def rounds(self, models: Sessions, sampler: Sampler, stop: StopCriteria) -> Iterator[Round]:
        sessions, ids = [models[role] for role in self.scorers], list(models.ids)
        while stop.room(ids) > 0:
            if isinstance(self.target, Last):
                for session in sessions[:-1]:
                    session.score(ids, len(ids) - 1)
                current = Round(sessions[-1].roll(ids, 1, sampler, frozenset()).tokens)
            else:
                logits = [session.score(ids, len(ids) - 1) for session in sessions]  # n x (1, V)
                tokens, counters = draw_token(*self.target.distributions(logits, sampler), sampler)
                current = Round(tokens, counters=counters)
            ids += current.tokens
            yield current


@dataclass(frozen=True, kw_only=True)
class MixtureLike(Method, name="mixture-like"):
    """i ~ w, x ~ p_i: the weighted ensemble with one forward of one model per token (ME, arXiv 2605.00419).

    A token that is drawn from model i with probability w_i follows the mixture of all models, whatever the other models
    would have said. So they need no forward: a model reads the tokens of the others when it is drawn next. Sampling follows
    the mixture exactly. At T = 0 there is nothing to draw, and the arg max of a drawn model is not that of the mixture.
    """

    scorers: tuple[str, ...]
    target: Mixture

    def __post_init__(self) -> None:
        self.target.check(len(self.scorers))
        if len(set(self.scorers)) < len(self.scorers):
            raise ValueError(f"scorers = {list(self.scorers)}: list each role once, with the sum of its weights")

    @classmethod
    def undefined_at(cls, temperature: float) -> str:
        return "" if temperature > 0.0 else "the arg max of a drawn model is not that of the ensemble"

    def roles(self) -> tuple[str, ...]:
        return self.scorers

    def declared_distribution(self) -> tuple[tuple[str, ...], Target]:
        return self.scorers, self.target

    def theory(self) -> Theory:
        weights = dict(zip(self.scorers, self.target.weights_of(len(self.scorers)), strict=True))
        return Theory(formula="drawn model", models=self.scorers, parameters=weights)

    def rounds(self, models: Sessions, sampler: Sampler, stop: StopCriteria) -> Iterator[Round]:
        sessions, ids = [models[role] for role in self.scorers], list(models.ids)
        weights = torch.tensor(self.target.weights_of(len(sessions)), dtype=torch.float64, device=models.device)
        while stop.room(ids) > 0:
            (i,) = read_tokens(sampler.choose(weights[None]))
            tokens = sessions[i].roll(ids, 1, sampler, frozenset()).tokens
            ids += tokens
            yield Round(tokens, counters={f"drawn.{self.scorers[i]}": 1})


@dataclass(frozen=True, kw_only=True)
class Parallel(Method, name="parallel"):
    """x ~ E(p_1, ..., p_n), as in the sequential ensemble, with the n forwards of a token running concurrently.

    On a CPU every model runs in its own process with an equal share of the threads; on a GPU, in its own stream. Ideally a
    token takes as long as the slowest model. `communication_seconds` counts the time beyond that, and `moved_bytes` the data
    sent between processes. Streams send no data, and their overlap is recorded when the sessions finish.
    """

    scorers: tuple[str, ...]
    target: Target

    concurrent = True

    def __post_init__(self) -> None:
        self.target.check(len(self.scorers))
        if len(set(self.scorers)) < len(self.scorers):
            raise ValueError(
                f"scorers = {list(self.scorers)}: a model cannot run twice at the same time; list each role once"
            )

    def roles(self) -> tuple[str, ...]:
        return self.scorers

    def declared_distribution(self) -> tuple[tuple[str, ...], Target]:
        return self.scorers, self.target

    def rounds(self, models: Sessions, sampler: Sampler, stop: StopCriteria) -> Iterator[Round]:
        sessions, ids, moved = models.concurrent(self.scorers), list(models.ids), 0
        while stop.room(ids) > 0:
            before, begin = [session.usage for session in sessions], time.perf_counter()
            for session in sessions:
                session.submit(ids, len(ids) - 1)
            logits = [session.result() for session in sessions]  # n x (1, V)
            waited, busy = time.perf_counter() - begin, [session.busy for session in sessions]
            slowest = busy.index(max(busy))
            for i, session in enumerate(sessions):
                if i != slowest:
                    session.usage.add_overlap(before[i])
            tokens = read_tokens(sampler.choose(self.target(logits, sampler)))
            ids += tokens
            sent, moved = sum(session.moved for session in sessions) - moved, sum(session.moved for session in sessions)
            counters = {"communication_seconds": waited - max(busy), "moved_bytes": sent} if any(busy) else {}
            yield Round(tokens, counters=counters)
