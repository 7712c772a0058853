"""Locks that allow one process at a time to write to a folder.

The lock is `flock` on `.lock`, which the kernel releases when the process ends. `.lock.json` names the process that holds it.
On a network file system the lock of an unavailable host can remain: `--break-lock` removes it. A process whose lock was
removed stops writing records.
"""

import os
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

import msgspec
from filelock import FileLock, Timeout

from specbench.config.request import Access
from specbench.errors import ConfigError, FolderInUse
from specbench.files import read_json, write

LOCK, HOLDER = ".lock", ".lock.json"
POLL_SECONDS = 0.2
ABANDONED_SECONDS = 10.0  # after which an unfinished breaking of a lock counts as killed


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock. `token` differs between any two acquisitions."""

    pid: int
    host: str
    token: str

    @property
    def here(self) -> bool:
        """Whether the process is on this host."""
        return self.host == socket.gethostname()

    @property
    def alive(self) -> bool:
        """Whether the process exists; True for a process on another host, which cannot be checked."""
        if not self.here:
            return True
        if self.pid < 1:  # a process group, to os.kill
            return False
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):
            return False
        except PermissionError:  # it exists, and belongs to another user
            return True
        return True

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class FolderLock:
    """A lock on one folder, held until `release`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = FileLock(folder / LOCK)
        self._holder = Holder(os.getpid(), socket.gethostname(), uuid4().hex)

    def acquire(self, access: Access) -> None:
        """Create the folder and acquire the lock. Raises FolderInUse, naming the holder, if another process holds it."""
        has_announced_wait = False
        while not self._try_acquire():
            holder = holder_of(self.folder)
            if holder and not holder.alive:  # the new holder has not written its file yet
                holder = None
            if holder and access.break_lock and not holder.here:
                self._break(holder)
                continue
            if holder is None and access.break_lock and self._finish_breaking():
                continue
            if not access.wait:
                raise FolderInUse(self._explained(holder, access))
            if not has_announced_wait:
                print(
                    f"waiting for {holder or 'another process'}, which uses {self.folder}", file=sys.stderr, flush=True
                )
                has_announced_wait = True
            time.sleep(POLL_SECONDS)
        write(self.folder / HOLDER, msgspec.json.encode(asdict(self._holder)).decode() + "\n")

    def _break(self, holder: Holder) -> None:
        """Remove the lock of a holder. Of several processes, only the one that renames the holder's file does."""
        claimed = self.folder / f"{HOLDER}.{self._holder.token}"
        try:
            (self.folder / HOLDER).rename(claimed)
        except FileNotFoundError:
            return
        if holder_in(claimed) == holder:
            (self.folder / LOCK).unlink(missing_ok=True)
        else:  # a new holder has taken the lock since it was read
            claimed.rename(self.folder / HOLDER)
            return
        claimed.unlink()

    def _finish_breaking(self) -> bool:
        """Remove a lock if a process was killed while breaking it. Returns whether there was one."""
        for claimed in self.folder.glob(f"{HOLDER}.*"):
            with suppress(FileNotFoundError):
                if time.time() - claimed.stat().st_ctime > ABANDONED_SECONDS:
                    (self.folder / LOCK).unlink(missing_ok=True)
                    claimed.unlink()
                    return True
        return False

    def require(self) -> None:
        """Raise FolderInUse if another process has broken the lock since it was acquired."""
        holder = holder_of(self.folder)
        if holder != self._holder:
            raise FolderInUse(
                f"the lock on {self.folder} was taken over by {holder or 'another process'}; nothing was written"
            )

    def release(self) -> None:
        """Release the lock if this process still holds it, and remove a folder that nothing was written to."""
        with suppress(OSError):  # the folder may be gone, or read-only by now
            if holder_of(self.folder) == self._holder:
                (self.folder / HOLDER).unlink(missing_ok=True)
                if [path.name for path in self.folder.iterdir()] == [LOCK]:
                    (self.folder / LOCK).unlink()
                    self.folder.rmdir()
        self._lock.release()

    def _try_acquire(self) -> bool:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            return False
        return True

    def _explained(self, holder: Holder | None, access: Access) -> str:
        used = f"{self.folder} is in use by {holder or 'another process'}"
        if holder and holder.here and access.break_lock:
            return f"{used}, which is running; help: stop it with kill {holder.pid}"
        broken = "" if holder is None or holder.here else "; --break-lock if that process no longer runs"
        return f"{used}; help: --wait waits for it{broken}"


@contextmanager
def locked(folders: Iterable[Path], access: Access) -> Iterator[dict[Path, FolderLock]]:
    """Hold locks on folders for the length of a block. Raises FolderInUse if another process holds one of them.

    Acquires locks in path order, so that waiting processes cannot deadlock.
    """
    with ExitStack() as stack:
        locks: dict[Path, FolderLock] = {}
        locks_by_path: dict[Path, FolderLock] = {}
        for path, folder in sorted((folder.resolve(), folder) for folder in folders):
            if path not in locks_by_path:
                locks_by_path[path] = lock = FolderLock(folder)
                lock.acquire(access)
                stack.callback(lock.release)
            locks[folder] = locks_by_path[path]
        yield locks


def holder_of(folder: Path) -> Holder | None:
    """Return the current or last holder of a folder's lock; None if unknown."""
    return holder_in(folder / HOLDER)


def holder_in(path: Path) -> Holder | None:
    """Return the holder in a file; None for a missing or damaged file."""
    try:
        return read_json(path, Holder)
    except (ConfigError, OSError):
        return None
