"""A request: methods, a pair, tasks and options, made alike from the command line, Python and suites."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Required, TypedDict, Unpack

from specbench.config.options import DEFAULT_PAIR, RESULTS, Options
from specbench.vocabulary import SandboxKind


@dataclass(frozen=True, kw_only=True)
class Access:
    """How a command accesses the folders that it writes to.

    `fresh` discards their content, `wait` waits for another process to finish, and `break_lock` removes the lock of a process
    that is not on this host. `restart` keeps records of other conditions, such as another machine's, as an earlier attempt
    and measures again, instead of failing. `untimed` marks a run whose device other runs share, so that its times are
    not valid.
    """

    fresh: bool = False
    wait: bool = False
    break_lock: bool = False
    restart: bool = False
    untimed: bool = False


class RequestParts(TypedDict, total=False):
    """The parts of a request besides its names."""

    options: Required[Options]
    out: Path
    access: Access
    sandbox: SandboxKind | None


@dataclass(frozen=True, kw_only=True)
class Request:
    """Methods to measure on a pair and tasks.

    Names are presets or paths to TOML files; `all` selects every method that the pair allows, `lossless` only the lossless
    ones. Without methods, the pair's default method is used. Without tasks, the pair's default tasks are used, or all tasks
    if it has none. `sandbox` is how generated code is isolated when it is executed; None: it is not executed.
    """

    methods: tuple[str, ...]
    pair: str
    tasks: tuple[str, ...] = ()
    options: Options
    out: Path = RESULTS
    access: Access = field(default_factory=Access)
    sandbox: SandboxKind | None = None


def request_of(
    methods: Iterable[str] = (), pair: str = "", tasks: Iterable[str] = (), **more: Unpack[RequestParts]
) -> Request:
    """Return a request by names, as the command line and Python give them. An empty pair is the bundled one."""
    return Request(methods=tuple(methods), pair=pair or DEFAULT_PAIR, tasks=tuple(tasks), **more)
