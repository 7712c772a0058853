"""Floor 0: one process at a time in a folder.

The lock is `flock` on `.lock`, which the kernel releases however its process ends; `.lock.json` beside it says who holds it.
On a network file system the lock of a host that is gone can stay: `--break-lock` removes it. A process whose lock was
removed writes no further record.
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

from specbench.config.options import Access
from specbench.errors import ConfigError, FolderInUse
from specbench.files import read_json, write

LOCK, HOLDER = ".lock", ".lock.json"
POLL_SECONDS = 0.2
ABANDONED_SECONDS = 10.0  # after which breaking a lock, which takes a moment, is taken to have been killed


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock. `token` differs between any two acquisitions."""

    pid: int
    host: str
    token: str

    @property
    def here(self) -> bool:
        return self.host == socket.gethostname()

    @property
    def alive(self) -> bool:
        """Whether the process exists, as far as this host can know: True for one of another host."""
        if not self.here:
            return True
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # it exists, and is another user's
            return True
        return True

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class FolderLock:
    """A lock on one folder, held until `release`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = FileLock(folder / LOCK)
        self._own = Holder(os.getpid(), socket.gethostname(), uuid4().hex)

    def acquire(self, access: Access) -> None:
        """Take the lock, making the folder. Raises FolderInUse, naming the holder, where another process has it."""
        waiting = False
        while not self._taken():
            holder = holder_of(self.folder)
            if holder and not holder.alive:  # the lock's new owner has not written its name yet
                holder = None
            if holder and access.break_lock and not holder.here:
                self._break(holder)
                continue
            if holder is None and access.break_lock and self._finish_breaking():
                continue
            if not access.wait:
                raise FolderInUse(self._explained(holder, access))
            if not waiting:
                print(
                    f"waiting for {holder or 'another process'}, which uses {self.folder}", file=sys.stderr, flush=True
                )
                waiting = True
            time.sleep(POLL_SECONDS)
        write(self.folder / HOLDER, msgspec.json.encode(asdict(self._own)).decode() + "\n")

    def _break(self, holder: Holder) -> None:
        """Remove the lock of a holder. Of several processes that try, one does: the one that can rename the holder's file."""
        claimed = self.folder / f"{HOLDER}.{self._own.token}"
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
        """Remove a lock whose holder's file another process renamed and then died. Returns whether there was one."""
        for claimed in self.folder.glob(f"{HOLDER}.*"):
            with suppress(FileNotFoundError):
                if time.time() - claimed.stat().st_ctime > ABANDONED_SECONDS:
                    (self.folder / LOCK).unlink(missing_ok=True)
                    claimed.unlink()
                    return True
        return False

    def require(self) -> None:
        """Raise FolderInUse where another process has broken the lock since it was taken."""
        holder = holder_of(self.folder)
        if holder != self._own:
            raise FolderInUse(
                f"the lock on {self.folder} was taken over by {holder or 'another process'}; nothing was written"
            )

    def release(self) -> None:
        """Release the lock if this process still holds it, and remove a folder that nothing was written to."""
        with suppress(OSError):  # the folder may be gone, or read-only by now
            if holder_of(self.folder) == self._own:
                (self.folder / HOLDER).unlink(missing_ok=True)
                if [path.name for path in self.folder.iterdir()] == [LOCK]:
                    (self.folder / LOCK).unlink()
                    self.folder.rmdir()
        self._lock.release()

    def _taken(self) -> bool:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            return False
        return True

    def _explained(self, holder: Holder | None, access: Access) -> str:
        used = f"{self.folder} is in use by {holder or 'another process'}"
        if holder and holder.here and access.break_lock:
            return f"{used}, which is running: stop it (kill {holder.pid}) instead of breaking its lock"
        broken = "" if holder is None or holder.here else "; --break-lock where that process is gone"
        return f"{used}; help: --wait waits for it{broken}"


@contextmanager
def locked(folders: Iterable[Path], access: Access) -> Iterator[dict[Path, FolderLock]]:
    """Locks on folders, by folder, for the length of a block. Raises FolderInUse if one is held by another process.

    Acquires locks in path order, so that waiting processes cannot deadlock.
    """
    with ExitStack() as stack:
        locks: dict[Path, FolderLock] = {}
        taken: dict[Path, FolderLock] = {}
        for place, folder in sorted((folder.resolve(), folder) for folder in folders):
            if place not in taken:
                taken[place] = lock = FolderLock(folder)
                lock.acquire(access)
                stack.callback(lock.release)
            locks[folder] = taken[place]
        yield locks


def holder_of(folder: Path) -> Holder | None:
    """Who holds, or held, a folder's lock; None where that is not known."""
    return holder_in(folder / HOLDER)


def holder_in(path: Path) -> Holder | None:
    """The holder that a file names; None for a missing or damaged file."""
    try:
        return read_json(path, Holder)
    except (ConfigError, OSError):
        return None
