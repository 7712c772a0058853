"""Floor 2: models that run beside one another: each in a process of its own, or on a GPU each on a stream of its own.

A worker loads its model itself, from the same source and with the same settings, keeps its cache, and is sent what is new of
a sequence: the tokens behind the longest known prefix. It answers with logits, as bytes.
"""

import pickle
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specbench.found import Found
from specbench.session import Calls, Session, common_prefix


class Worker:
    """A process with one model, asked by numbered messages. One sequence at a time: opening another closes the last."""

    def __init__(self, role: str, found: Found, base: Path, threads: int, vocabulary: int) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, role, found, base, threads, vocabulary), daemon=True, name=f"specbench {role}"
        )
        self._process.start()
        theirs.close()
        self._asked = 0

    def ask(self, *message: Any) -> int:
        """Returns the bytes sent."""
        self._asked += 1
        sent = pickle.dumps((self._asked, *message))
        self._pipe.send_bytes(sent)
        return len(sent)

    def answer(self) -> tuple[Any, int]:
        """What the worker says to what it was last asked, and its bytes; answers that nobody fetched are dropped.

        Raises what the worker raised, and RuntimeError where it is gone.
        """
        while True:
            try:
                received = self._pipe.recv_bytes()
            except EOFError:
                raise RuntimeError(f"the process '{self._process.name}' ended") from None
            number, answer = pickle.loads(received)
            if number == self._asked:
                if isinstance(answer, Exception):
                    raise answer
                return answer, len(received)


class RemoteSession:
    """A session in a worker. `busy` is what its last answer took there, `moved` the bytes that went either way so far."""

    def __init__(self, worker: Worker, source: list[int] | None) -> None:
        self._worker, self._source, self._ids, self._rows = worker, source, list[int](), 0
        self.calls, self.busy, self.moved = Calls(), 0.0, 0

    def ask(self, ids: list[int], start: int) -> None:
        known = common_prefix(ids, self._ids)
        opening = None if self._ids else [self._source]  # the first message of a sequence says what an encoder reads
        self.moved += self._worker.ask(opening, known, ids[known:], start)
        self._ids, self._rows = list(ids), len(ids) - start

    def answer(self) -> Tensor:
        (logits, calls, self.busy), moved = self._worker.answer()
        self.moved += moved
        own = Calls(**calls)
        own.beside, own.prefill_beside = self.calls.beside, self.calls.prefill_beside
        self.calls = own
        return torch.from_numpy(np.frombuffer(logits, dtype=np.float32).reshape(self._rows, -1).copy())

    def settle(self) -> None:
        pass


class StreamSession:
    """A session on a CUDA stream of its own. Nothing moves between processes, so nothing is counted as moved."""

    def __init__(self, session: Session, device: torch.device) -> None:
        cuda: Any = torch.cuda
        self._session, self._stream = session, cuda.Stream(device)
        self._device, self._logits = device, torch.empty(0)
        self.busy, self.moved = 0.0, 0

    @property
    def calls(self) -> Calls:
        return self._session.calls

    def ask(self, ids: list[int], start: int) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            self._logits = self._session.score(ids, start)

    def answer(self) -> Tensor:
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        return self._logits

    def settle(self) -> None:
        self._session.settle()


class Workers:
    """The workers of what was loaded, started when first asked for. The threads of this process are shared among them."""

    def __init__(self, found: dict[str, Found], base: Path) -> None:
        self._found, self._base = found, base
        self._started: dict[tuple[str, int, int], Worker] = {}

    def __call__(self, roles: Sequence[str], vocabulary: int) -> list[Worker]:
        threads = max(1, torch.get_num_threads() // len(roles))
        for role in roles:
            if (role, threads, vocabulary) not in self._started:
                worker = Worker(role, self._found[role], self._base, threads, vocabulary)
                self._started[role, threads, vocabulary] = worker
        return [self._started[role, threads, vocabulary] for role in roles]


def _serve(pipe: Connection, role: str, found: Found, base: Path, threads: int, vocabulary: int) -> None:
    """A worker's life: load, then answer until the pipe closes. An interrupt is for whoever asks, not for it."""
    from specbench.models import load

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
    pair: Any = None
    session: Any = None
    ids: list[int] = []
    while True:
        try:
            number, opening, known, new, start = pickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        begin = time.perf_counter()
        try:
            pair = pair or load({role: found}, base, torch.device("cpu"))
            if opening is not None:
                session, ids = pair.session(role, opening[0]), []
            ids = ids[:known] + new
            with torch.inference_mode():
                logits = session.score(ids, start)[:, :vocabulary].float().numpy().tobytes()
            answer: Any = (logits, asdict(session.calls), time.perf_counter() - begin)
        except Exception as error:  # told to whoever asked
            answer = error
        pipe.send_bytes(pickle.dumps((number, answer)))
