"""Autoregressive decoding with one or more models: the sequential ensemble (SE, Section 3.2) and the parallel ensemble.

In the parallel ensemble (WE-P and CD-P in CoS), every model reads every token, and their forwards run concurrently.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from specbench.decoding.method import Method, Round, Sessions, StopCriteria
from specbench.decoding.sampling import Sampler, read_tokens
from specbench.decoding.speculation import draw_token
from specbench.decoding.targets import Last, Target


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
