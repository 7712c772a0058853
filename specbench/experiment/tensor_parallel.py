"""Tensor parallelism: processes that decode together, each with a part of the split models on a device of its own.

Every process, a rank, runs the same methods on the same prompts with the same seeds, so that all make the same calls to the
split models. Other models are loaded by every rank. Rank 0 is the process that measures and writes, and the others follow it.
After each generation the ranks compare a checksum of its tokens.

A rank whose forward fails leaves the others waiting for it, so a failed rank ends the run, with its error.
"""

import datetime
import hashlib
import os
import pickle
import socket
import sys
import threading
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, replace
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path

import torch
import torch.distributed as dist

from specbench._logging import quietly
from specbench.config.pair import Placement
from specbench.errors import ConfigError, ExitCode, MissingAsset
from specbench.experiment import runner
from specbench.models import loader
from specbench.models.heads.resolve_heads import ResolvedHead
from specbench.models.loaded_pair import LoadedPair
from specbench.models.parallel import interrupts_ignored
from specbench.models.placed import tensor_placement
from specbench.models.resolved_model import ResolvedModel
from specbench.resolution.run_plan import PairPlan, PlannedRun
from specbench.runs.record import Record

TIMEOUT = datetime.timedelta(minutes=10)  # of one exchange between ranks
STARTED, LOADED = "started", "loaded"
GRACE = 5.0  # seconds to wait for a rank to exit, and for rank 0 to notice that another rank has exited
POLL = 0.5  # seconds between checks of the ranks
VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # which transformers and torch read


@dataclass(frozen=True)
class _Loading:
    """What a rank loads."""

    models: Mapping[str, ResolvedModel]
    heads: Mapping[str, ResolvedHead]
    base: Path
    devices: tuple[str, ...]
    port: int
    threads: int


@dataclass
class Replica:
    """An in-memory recorder for ranks other than 0, which write no files. `done` are the keys of existing records."""

    folder: Path
    done: set[Hashable]

    def append(self, record: Record) -> Record:
        """Count a record as done, and return it."""
        self.done.add(record.key)
        return record


class TokensDiffer(RuntimeError):
    """The ranks decoded different tokens, which is a bug."""


class TensorParallel:
    """The processes of a plan with split models. Opening it starts them, and loads the models in all of them."""

    def __init__(self, plan: PairPlan) -> None:
        """Raise MissingAsset if a rank cannot load its models."""
        placement = tensor_placement(plan.models)
        assert placement is not None
        loading = _Loading(
            plan.models, plan.pair.heads, plan.pair.base, placement.devices, _free_port(), torch.get_num_threads()
        )
        context = get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes: list[SpawnProcess] = []
        self._before = {name: os.environ.get(name) for name in VARIABLES}
        self._closed = threading.Event()
        try:
            self._start(context, placement, loading)
            self.pair = self._load_parts(placement, loading, plan.device)
            threading.Thread(target=self._watch, daemon=True, name="specbench ranks").start()
        except BaseException:
            self.close()
            raise

    def _start(self, context: SpawnContext, placement: Placement, loading: _Loading) -> None:
        """Start the other ranks."""
        with interrupts_ignored():
            for rank in range(1, len(placement.devices)):
                pipe, theirs = context.Pipe()
                life = pickle.dumps((_follow, (rank, loading)))
                process = context.Process(
                    target=quietly, args=(life, theirs), daemon=True, name=f"specbench rank {rank}"
                )
                process.start()
                theirs.close()
                self._pipes.append(pipe)
                self._processes.append(process)

    def _load_parts(self, placement: Placement, loading: _Loading, device: torch.device) -> LoadedPair:
        """Load the models together with the other ranks. Raises MissingAsset if one of them cannot."""
        for rank, pipe in enumerate(self._pipes, 1):  # rank 0 would wait for a process that has ended
            _received(pipe, rank)
        _join(0, loading)
        pair = _load(loading, device)
        for rank, pipe in enumerate(self._pipes, 1):
            answer = _received(pipe, rank)
            if isinstance(answer, Exception):
                raise MissingAsset(f"rank {rank} on {placement.devices[rank]}: {answer}") from None
        return pair

    def follow(self, run: PlannedRun, done: Collection[Hashable]) -> Callable[[Record], None]:
        """Start decoding a run's missing generations on the other ranks. Returns the check of each generation.

        Raises ConfigError for a run with plugins, whose classes another process does not know.
        """
        if run.spec.plugins:
            raise ConfigError('parallel = "tensor" cannot be combined with --plugin')
        for pipe in self._pipes:
            pipe.send((replace(run), frozenset(done), torch.get_num_threads()))  # a copy without cached properties
        return self._check

    def _check(self, record: Record) -> None:
        """Compare a generation with the other ranks. Raises TokensDiffer, and MissingAsset if it failed on any rank."""
        try:
            agree(record)
        except TokensDiffer:
            raise
        except Exception as error:  # of this rank, or of an exchange with one that has ended
            raise MissingAsset(self._failure() or str(error)) from None

    def _failure(self) -> str:
        """Return the error of a rank that has ended; empty if all are running."""
        for pipe in connection.wait(self._pipes, timeout=POLL):
            assert isinstance(pipe, Connection)
            rank = self._pipes.index(pipe) + 1
            try:
                return f"rank {rank}: {pipe.recv()}"
            except (EOFError, OSError):
                return f"rank {rank}: its process ended"
        return ""

    def _watch(self) -> None:
        """End this process if another rank has ended and this one still waits for it, which NCCL does without an error."""
        while not self._closed.wait(POLL):
            if not all(process.is_alive() for process in self._processes):
                if not self._closed.wait(GRACE):
                    print(f"error[missing]: {self._failure() or 'a rank ended'}", file=sys.stderr, flush=True)
                    os._exit(ExitCode.MISSING)
                return

    def close(self) -> None:
        """End the other ranks."""
        self._closed.set()
        for pipe in self._pipes:
            pipe.close()
        if dist.is_initialized():
            dist.destroy_process_group()
        for process in self._processes:
            process.join(GRACE)
            if process.is_alive():  # in an exchange that will not end
                process.kill()
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def agree(record: Record) -> None:
    """Compare a generation with those of the other ranks.

    Raises TokensDiffer, and MissingAsset for a generation that failed on this rank and perhaps on no other.
    """
    if record.error and not record.error.startswith(ValueError.__name__):  # the prompt's: equal on all ranks
        raise MissingAsset(record.error)
    text = f"{record.method} {record.sample} {record.repeat} {record.tokens} {record.error is None}"
    digest = torch.tensor([int.from_bytes(hashlib.sha256(text.encode()).digest()[:7])])  # (1,)
    device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
    digests = [torch.empty_like(digest, device=device) for _ in range(dist.get_world_size())]
    dist.all_gather(digests, digest.to(device))
    if len({int(digest) for digest in digests}) > 1:
        raise TokensDiffer(f"the ranks decoded different tokens: {record.method}, sample {record.sample}")


def _follow(rank: int, loading: _Loading, pipe: Connection) -> None:
    """Load the models, then decode with rank 0 until its pipe closes (the main function of a rank)."""
    torch.set_num_threads(loading.threads)
    pipe.send(STARTED)
    try:
        _join(rank, loading)
        pair = _load(loading, torch.device(loading.devices[rank]))
    except Exception as error:  # rank 0 raises it
        pipe.send(RuntimeError(f"{type(error).__name__}: {error}"))
        return
    pipe.send(LOADED)
    while True:
        try:
            run, done, threads = pipe.recv()
        except (EOFError, OSError):  # rank 0 has ended
            return
        try:
            torch.set_num_threads(threads)
            for _ in runner.decode_missing(run, pair, Replica(run.folder, set(done)), check=agree):
                pass
        except Exception as error:
            pipe.send(RuntimeError(str(error)))
            return


def _join(rank: int, loading: _Loading) -> None:
    """Join the process group of all ranks."""
    device = torch.device(loading.devices[rank])
    values = (rank, device.index or 0, len(loading.devices), "127.0.0.1", loading.port)
    os.environ |= {name: str(value) for name, value in zip(VARIABLES, values, strict=True)}
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, rank=rank, world_size=len(loading.devices), timeout=TIMEOUT)


def _load(loading: _Loading, device: torch.device) -> LoadedPair:
    return loader.load(loading.models, loading.base, device, loading.heads)


def _received(pipe: Connection, rank: int) -> object:
    """Return what a rank has sent. Raises MissingAsset if its process has ended."""
    try:
        return pipe.recv()
    except (EOFError, OSError):
        raise MissingAsset(f"the process of rank {rank} ended while it loaded the models") from None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
