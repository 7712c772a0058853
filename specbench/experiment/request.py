"""What a user asks for, before anything is resolved."""

from dataclasses import dataclass, field
from pathlib import Path

from specbench.config.options import Access, Options, SandboxKind


@dataclass(frozen=True, kw_only=True)
class Request:
    """Methods to measure on a pair and tasks.

    Names are presets or paths to TOML files. Without tasks, those that suit the pair are taken. `sandbox` is how generated
    code is isolated when it is executed to score it; None does not execute it.
    """

    methods: tuple[str, ...]
    pair: str
    tasks: tuple[str, ...] = ()
    options: Options
    out: Path
    access: Access = field(default_factory=Access)
    sandbox: SandboxKind | None = None
