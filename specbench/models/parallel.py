"""Models that run concurrently: each in its own process, or on a GPU each on its own stream.

A worker process loads its own copy of a model with a given function, and keeps its own cache. It receives the tokens after
the longest cached prefix, and replies with logits as bytes.
"""

import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specbench._logging import quietly
from specbench.decoding.drafting import common_prefix
from specbench.decoding.session import Session, Usage
from specbench.models.limited_session import Reach
from specbench.models.placed import MovedSession

# Loads the model of a role, and returns a function that opens its session from the input of an encoder. Can be pickled.
LoadModel = Callable[[str], Callable[[list[int] | None], Session]]


class Opening(NamedTuple):
    """Settings of a new sequence in a worker: the encoder's input, the number of threads, and V."""

    source: list[int] | None
    threads: int
    vocabulary: int


class Worker:
    """A process with one model, which answers numbered requests.

    One sequence at a time: opening another closes the previous one.
    """

    def __init__(self, role: str, load_model: LoadModel) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        life = pickle.dumps((_serve, (role, load_model)))  # unpickled in the worker, after its libraries are silenced
        self._process = context.Process(target=quietly, args=(life, theirs), daemon=True, name=f"specbench {role}")
        with _interrupts_ignored():
            self._process.start()
        theirs.close()
        self._requests = 0

    @property
    def alive(self) -> bool:
        """Whether the process is running."""
        return self._process.is_alive()

    def _gone(self) -> RuntimeError:
        """Return the error for a process that has ended."""
        return RuntimeError(f"the process '{self._process.name}' ended")

    def submit(self, *message: Any) -> int:
        """Send a request. Returns the bytes sent. Raises RuntimeError if the process has ended."""
        self._requests += 1
        sent = pickle.dumps((self._requests, *message))
        try:
            self._pipe.send_bytes(sent)
        except OSError:
            raise self._gone() from None
        return len(sent)

    def result(self) -> tuple[Any, int]:
        """Return the worker's reply to the last request, and its bytes. Replies to earlier requests are dropped.

        Raises the worker's exception, or RuntimeError if the process has ended.
        """
        while True:
            try:
                received = self._pipe.recv_bytes()
            except (EOFError, OSError):
                raise self._gone() from None
            number, answer = pickle.loads(received)
            if number == self._requests:
                if isinstance(answer, Exception):
                    raise answer
                return answer, len(received)


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Ignore SIGINT in processes started within this context, since only the main process handles interrupts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class RemoteSession:
    """A session in a worker. `busy` is how long its last result took there, `moved` the bytes sent both ways so far."""

    def __init__(self, worker: Worker, opening: Opening, reach: Reach) -> None:
        reach.require(opening.source or [])
        self._worker, self._opening, self._ids, self._rows = worker, opening, list[int](), 0
        self._reach = reach
        self.usage, self.busy, self.moved = Usage(), 0.0, 0

    def submit(self, ids: list[int], start: int) -> None:
        self._reach.require(ids)
        cached = common_prefix(ids, self._ids)
        opening = None if self._ids else self._opening
        self.moved += self._worker.submit(opening, cached, ids[cached:], start)
        self._ids, self._rows = list(ids), len(ids) - start

    def result(self) -> Tensor:
        (logits, usage, self.busy), moved = self._worker.result()
        self.moved += moved
        received = Usage(**usage)
        received.overlapped_seconds, received.prefill_overlapped_seconds = (
            self.usage.overlapped_seconds,
            self.usage.prefill_overlapped_seconds,
        )
        self.usage = received
        rows = torch.from_numpy(np.frombuffer(logits, dtype=np.float32).reshape(self._rows, -1).copy())
        missing = self._opening.vocabulary - rows.shape[-1]
        return F.pad(rows, (0, missing), value=-torch.inf) if missing > 0 else rows

    def finish(self) -> None:
        pass


class StreamSession:
    """A session on a CUDA stream, concurrent with the other sessions of its `group`, which includes itself.

    The bytes that move between two GPUs are counted. Times are known once all sessions of the group have finished.
    """

    def __init__(self, session: Session, stream: Any, group: list["StreamSession"]) -> None:
        self._session, self._stream = session, stream
        self._logits, self._is_finished = torch.empty(0), False
        self._peers = group
        group.append(self)
        self.busy = 0.0

    @property
    def usage(self) -> Usage:
        return self._session.usage

    @property
    def moved(self) -> int:
        """Bytes of logits that were copied from another GPU."""
        return self._session.moved if isinstance(self._session, MovedSession) else 0

    def submit(self, ids: list[int], start: int) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            self._logits = self._session.score(ids, start)

    def result(self) -> Tensor:
        torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
        return self._logits

    def finish(self) -> None:
        self._session.finish()
        self._is_finished = True
        if all(other._is_finished for other in self._peers):
            overlapping([other.usage for other in self._peers])


def overlapping(usages: Sequence[Usage]) -> None:
    """Count the time of all but the slowest model, over a whole sequence, as overlapped."""
    slowest, slowest_prefill = max(usage.seconds for usage in usages), max(usage.prefill_seconds for usage in usages)
    is_counted, is_prefill_counted = False, False
    for usage in usages:
        if usage.seconds == slowest and not is_counted:
            is_counted = True
        else:
            usage.overlapped_seconds = usage.seconds
        if usage.prefill_seconds == slowest_prefill and not is_prefill_counted:
            is_prefill_counted = True
        else:
            usage.prefill_overlapped_seconds = usage.prefill_seconds


class Workers:
    """The worker processes of a loaded pair, one per role, started on first use."""

    def __init__(self, load_model: LoadModel) -> None:
        self._load_model = load_model
        self._started: dict[str, Worker] = {}

    def open(self, roles: Mapping[str, Reach], vocabulary: int, source: list[int] | None) -> list[RemoteSession]:
        """Return sessions of one prompt, which share the threads of this process. A worker that has ended is replaced."""
        for role in roles:
            if role not in self._started or not self._started[role].alive:
                self._started[role] = Worker(role, self._load_model)
        opening = Opening(source, max(1, torch.get_num_threads() // len(roles)), vocabulary)
        return [RemoteSession(self._started[role], opening, reach) for role, reach in roles.items()]


def _serve(role: str, load_model: LoadModel, pipe: Connection) -> None:
    """Load the model, then answer requests until the pipe closes (the main function of a worker)."""
    new_session: Callable[[list[int] | None], Session] | None = None
    session: Any = None
    vocabulary, ids = 0, list[int]()
    while True:
        try:
            number, opening, cached, new, start = pickle.loads(pipe.recv_bytes())
        except (EOFError, OSError):  # the main process is gone
            return
        begin = time.perf_counter()
        try:
            new_session = new_session or load_model(role)
            if opening is not None:
                torch.set_num_threads(opening.threads)
                session, vocabulary, ids = new_session(opening.source), opening.vocabulary, []
            ids = ids[:cached] + new
            with torch.inference_mode():
                logits = session.score(ids, start)[:, :vocabulary].float().numpy().tobytes()
            answer: Any = (logits, asdict(session.usage), time.perf_counter() - begin)
        except Exception as error:  # re-raised in the main process
            answer = error
        try:
            pipe.send_bytes(pickle.dumps((number, answer)))
        except OSError:  # the main process is gone
            return
