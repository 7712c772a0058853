"""Exit codes, and exceptions for mistakes that the user can correct."""

import difflib
import enum
import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

CPU_ALLOCATOR = "DefaultCPUAllocator: "  # in every error of torch about memory of the host


class ExitCode(enum.IntEnum):
    """Exit codes of every command."""

    OK = 0
    BUG = 1
    USAGE = 2  # a wrong option, config or file
    SOME_FAILED = 3  # some samples failed
    MISSING = 4  # a model, data set or device is missing, a folder is in use, or a disk is full
    REGRESSION = 5  # a check failed: a distribution differs, or a measurement is worse
    INCONCLUSIVE = 6  # not comparable, or not decided
    INTERRUPTED = 130  # SIGINT; the same command resumes
    TERMINATED = 143  # SIGTERM; the same command resumes


class ConfigError(ValueError):
    """A wrong name, key or value in a command line or a TOML file; exit code 2."""


class PluginError(ConfigError):
    """Raised when a plugin violates its interface by what it raises or returns. The message names the plugin; exit code 2."""


class Terminated(SystemExit):
    """Raised on SIGTERM; exit code 143."""

    def __init__(self) -> None:
        super().__init__(ExitCode.TERMINATED)


class MissingAsset(Exception):
    """A missing model, data set or device. The message says what to do; exit code 4."""


class NotCached(MissingAsset):
    """A model or data set that is not in the local cache and cannot be fetched; exit code 4.

    Args:
        asset: what is missing, such as `model 'draft': `.
        name: its name on the hub, which follows in the message. `help` has it as `{name}`.
        why: why it cannot be fetched.
        help: what the user can do.
    """

    def __init__(self, asset: str, name: str, why: str, help: str) -> None:
        super().__init__(asset, name, why, help)  # the arguments, with which copy and pickle make it again
        self.asset, self.name, self.why, self.help = asset, name, why, help

    def __str__(self) -> str:
        return f"{self.asset}{self.name} is not in the local cache and {self.advice(self.name)}"

    def advice(self, name: str) -> str:
        """Return the rest of the message, which several assets may share, for an asset of this name."""
        return f"{self.why}; help: {self.help.format(name=name)}"


class NotComparable(Exception):
    """Measurements that cannot be combined or compared, such as times of different machines; exit code 6."""


class NotOnHub(MissingAsset):
    """A task whose data is not on the hub, so that the user has to name a file; exit code 4."""


class FolderInUse(MissingAsset):
    """A folder that another process writes to. The message names the process; exit code 4."""


def nearest(word: str, candidates: Iterable[str]) -> str:
    """Return the known word that is the most similar to another; empty if none is. Upper and lower case are alike."""
    lower = {name.lower(): name for name in candidates}
    near = difflib.get_close_matches(word.lower(), lower, n=1, cutoff=0.5)
    return lower[near[0]] if near else ""


def hint(word: str, candidates: Iterable[str], listed: str = "known") -> str:
    """Return ` (did you mean 'x'?)` with the nearest known word, and the list of known words; empty if there are none.

    `listed` introduces the list.
    """
    names = sorted(filter(None, candidates))
    return suggestion(word, names) + (f"; {listed}: {', '.join(names)}" if names else "")


def suggestion(word: str, candidates: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` with the nearest known word; empty if none is near."""
    near = nearest(word, sorted(filter(None, candidates)))
    return f" (did you mean '{near}'?)" if near else ""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of torch or Python means that memory is exhausted. Imports no torch."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    name = type(error).__name__
    return name in ("OutOfMemoryError", "MemoryError") or (name == "RuntimeError" and CPU_ALLOCATOR in str(error))


@contextmanager
def exits_as_errors(what: str) -> Iterator[None]:
    """Raise PluginError if a plugin's code raises SystemExit or another exception that is no Exception.

    Interrupts and SIGTERM end the block as they are. `what` names the code.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt, Terminated):
        raise
    except BaseException as error:
        raised = PluginError(f"{what} raised {type(error).__name__}: {error}")
        raise raised.with_traceback(error.__traceback__) from None


def short_repr(value: object) -> str:
    """Return a value as Python shows it, on one line of at most 60 characters."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # a class of a plugin
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."
