"""Floor 2: models that run beside one another: each in a process of its own, or on a GPU each on a stream of its own.

A worker loads its model itself, from the same source and with the same settings, keeps its cache, and is sent what is new of
a sequence: the tokens behind the longest known prefix. It answers with logits, as bytes.
"""

import pickle
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from specbench._logging import quietly
from specbench.decoding.drafting import common_prefix
from specbench.decoding.session import Session
from specbench.decoding.usage import Usage
from specbench.models.resolve import ResolvedModel


class Opening(NamedTuple):
    """What a worker is told of a new sequence: what an encoder reads, how many threads it has, and the shared V."""

    source: list[int] | None
    threads: int
    vocabulary: int


class Worker:
    """A process with one model, asked by numbered messages. One sequence at a time: opening another closes the last."""

    def __init__(self, role: str, found: ResolvedModel, base: Path) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        life = pickle.dumps((_serve, (role, found, base)))  # opened there, once libraries are quiet
        self._process = context.Process(target=quietly, args=(life, theirs), daemon=True, name=f"specbench {role}")
        with _interrupts_ignored():
            self._process.start()
        theirs.close()
        self._asked = 0

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def _gone(self) -> RuntimeError:
        return RuntimeError(f"the process '{self._process.name}' ended")

    def submit(self, *message: Any) -> int:
        """Returns the bytes sent. Raises RuntimeError where the process is gone."""
        self._asked += 1
        sent = pickle.dumps((self._asked, *message))
        try:
            self._pipe.send_bytes(sent)
        except OSError:
            raise self._gone() from None
        return len(sent)

    def result(self) -> tuple[Any, int]:
        """What the worker says to what it was last asked, and its bytes; answers that nobody fetched are dropped.

        Raises what the worker raised, and RuntimeError where it is gone.
        """
        while True:
            try:
                received = self._pipe.recv_bytes()
            except (EOFError, OSError):
                raise self._gone() from None
            number, answer = pickle.loads(received)
            if number == self._asked:
                if isinstance(answer, Exception):
                    raise answer
                return answer, len(received)


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """A process that starts in here inherits it for life: an interrupt is for whoever asks, not for who answers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class RemoteSession:
    """A session in a worker. `busy` is what its last answer took there, `moved` the bytes that went either way so far."""

    def __init__(self, worker: Worker, opening: Opening) -> None:
        self._worker, self._opening, self._ids, self._rows = worker, opening, list[int](), 0
        self.usage, self.busy, self.moved = Usage(), 0.0, 0

    def submit(self, ids: list[int], start: int) -> None:
        known = common_prefix(ids, self._ids)
        opening = None if self._ids else self._opening
        self.moved += self._worker.submit(opening, known, ids[known:], start)
        self._ids, self._rows = list(ids), len(ids) - start

    def result(self) -> Tensor:
        (logits, usage, self.busy), moved = self._worker.result()
        self.moved += moved
        own = Usage(**usage)
        own.beside, own.prefill_beside = self.usage.beside, self.usage.prefill_beside
        self.usage = own
        return torch.from_numpy(np.frombuffer(logits, dtype=np.float32).reshape(self._rows, -1).copy())

    def settle(self) -> None:
        pass


class StreamSession:
    """A session on a CUDA stream, beside its `peers`, itself included.

    Nothing moves between processes, so nothing is counted as moved; what each took is known when all have settled.
    """

    def __init__(self, session: Session, stream: Any, peers: list["StreamSession"]) -> None:
        self._session, self._stream = session, stream
        self._logits, self._settled = torch.empty(0), False
        self._peers = peers
        peers.append(self)
        self.busy, self.moved = 0.0, 0

    @property
    def usage(self) -> Usage:
        return self._session.usage

    def submit(self, ids: list[int], start: int) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            self._logits = self._session.score(ids, start)

    def result(self) -> Tensor:
        torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
        return self._logits

    def settle(self) -> None:
        self._session.settle()
        self._settled = True
        if all(peer._settled for peer in self._peers):
            overlapping([peer.usage for peer in self._peers])


def overlapping(usage: Sequence[Usage]) -> None:
    """Book what models that ran side by side took beside the slowest of them, over a whole sequence."""
    slowest, slowest_prefill = max(each.seconds for each in usage), max(each.prefill_seconds for each in usage)
    over, over_prefill = False, False
    for each in usage:
        if each.seconds == slowest and not over:
            over = True
        else:
            each.beside = each.seconds
        if each.prefill_seconds == slowest_prefill and not over_prefill:
            over_prefill = True
        else:
            each.prefill_beside = each.prefill_seconds


class Workers:
    """The workers of what was loaded, started when first asked for, a role each."""

    def __init__(self, found: Mapping[str, ResolvedModel], base: Path) -> None:
        self._found, self._base = found, base
        self._started: dict[str, Worker] = {}

    def open(self, roles: Sequence[str], vocabulary: int, source: list[int] | None) -> list[RemoteSession]:
        """Sessions of one prompt, which share the threads of this process. A worker that is gone is replaced."""
        for role in roles:
            if role not in self._started or not self._started[role].alive:
                self._started[role] = Worker(role, self._found[role], self._base)
        opening = Opening(source, max(1, torch.get_num_threads() // len(roles)), vocabulary)
        return [RemoteSession(self._started[role], opening) for role in roles]


def _serve(role: str, found: ResolvedModel, base: Path, pipe: Connection) -> None:
    """A worker's life: load, then answer until the pipe closes."""
    from specbench.models.loader import load

    pair: Any = None
    session: Any = None
    vocabulary, ids = 0, list[int]()
    while True:
        try:
            number, opening, known, new, start = pickle.loads(pipe.recv_bytes())
        except (EOFError, OSError):  # the main process is gone
            return
        begin = time.perf_counter()
        try:
            pair = pair or load({role: found}, base, torch.device("cpu"))
            if opening is not None:
                torch.set_num_threads(opening.threads)
                session, vocabulary, ids = pair.session(role, opening.source), opening.vocabulary, []
            ids = ids[:known] + new
            with torch.inference_mode():
                logits = session.score(ids, start)[:, :vocabulary].float().numpy().tobytes()
            answer: Any = (logits, asdict(session.usage), time.perf_counter() - begin)
        except Exception as error:  # told to whoever asked
            answer = error
        try:
            pipe.send_bytes(pickle.dumps((number, answer)))
        except OSError:  # the main process is gone
            return
