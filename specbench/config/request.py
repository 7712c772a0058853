"""Requests to measure methods or a suite, before they are resolved."""

from dataclasses import dataclass, field
from pathlib import Path

from specbench.config.options import Access, Options, SandboxKind
from specbench.config.suite import Suite


@dataclass(frozen=True, kw_only=True)
class Request:
    """Methods to measure on a pair and tasks.

    Names are presets or paths to TOML files; `all` and `lossless` are all methods that the pair allows. Without methods, the
    pair's default is used, without tasks the pair's default tasks. `sandbox` is the backend for executing generated code,
    which is not executed if it is None.
    """

    methods: tuple[str, ...]
    pair: str
    tasks: tuple[str, ...] = ()
    options: Options
    out: Path = Path("results")
    access: Access = field(default_factory=Access)
    sandbox: SandboxKind | None = None


@dataclass(frozen=True, kw_only=True)
class SuiteRequest:
    """A suite to measure. `changes` are the options of the suite that the user replaced, as text."""

    suite: Suite
    out: Path
    access: Access
    sandbox: SandboxKind | None = None
    changes: tuple[str, ...] = ()
