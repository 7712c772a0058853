"""Benchmarks of speculative and collaborative decoding: speed, quality, and the certainty of both.

The functions below are imported when they are first used, so that `import specbench` imports neither torch nor transformers.
"""

TYPE_CHECKING = False  # typing's would be the slowest import of a command's start
if TYPE_CHECKING:
    from typing import Any

    from specbench.analysis.formula import formula
    from specbench.api import AdviceResult, Plan, RunResult, advise, load, plan, register, report, run, verify
    from specbench.errors import ConfigError, MissingAsset
    from specbench.features.verify.verification_run import Verification
    from specbench.observer import Observer

    __version__: str

__all__ = [
    "AdviceResult",
    "ConfigError",
    "MissingAsset",
    "Observer",
    "Plan",
    "RunResult",
    "Verification",
    "__version__",
    "advise",
    "formula",
    "load",
    "plan",
    "register",
    "report",
    "run",
    "verify",
]
_MODULES = {
    "ConfigError": "errors",
    "MissingAsset": "errors",
    "Observer": "observer",
    "Verification": "features.verify.verification_run",
    "formula": "analysis.formula",
}  # those of the API are the rest


def __getattr__(name: str) -> "Any":
    from importlib import import_module

    if name == "__version__":
        from importlib.metadata import version

        return version("specbench")
    if name not in __all__:
        raise AttributeError(f"module 'specbench' has no attribute '{name}'")
    from specbench._logging import quiet

    quiet()  # before the module imports transformers
    return getattr(import_module(f"specbench.{_MODULES.get(name, 'api')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
