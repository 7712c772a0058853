"""Any metric of Hugging Face `evaluate`, with the interface of the built-in scorers.

The hub's metric scripts are not part of that package: offline, name a local script or folder of one, such as a copy of
huggingface/evaluate's metrics/rouge.
"""

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any

from specbench.errors import MissingAsset
from specbench.scoring.metric import Metric, Score


class Evaluate:
    """`evaluate.load(module)`, called for one text at a time; the corpus score is the mean.

    `keys` are those of its result to keep. A bare word is looked up on the hub, never in the working directory.
    """

    def __init__(self, module: str, keys: tuple[str, ...], **options: Any) -> None:
        self.module, self.keys, self.options = module, keys, options

    @property
    def metrics(self) -> tuple[Metric, ...]:
        from importlib.metadata import version

        options = "".join(f"|{k}:{v}" for k, v in sorted(self.options.items()))
        form = f"pkg:evaluate-{version('evaluate')}|module:{Path(self.module).name}{self._checksum}{options}|agg:mean"
        return tuple(Metric(key, f"{key}|{form}") for key in self.keys)

    @property
    def _checksum(self) -> str:
        """The checksum of a local script with an @ before it, or an empty string."""
        path = Path(self.module)
        files = sorted(path.glob("*.py")) if path.is_dir() else [path] if path.is_file() else []
        content = b"".join(file.read_bytes() for file in files)
        return f"@{hashlib.sha256(content).hexdigest()[:8]}" if files else ""

    @cached_property
    def _loaded(self) -> Any:
        """Load the metric. Raises MissingAsset if the script is missing."""
        if Path(self.module).name == self.module and Path(self.module).exists():
            raise MissingAsset(f"evaluate would run ./{self.module} in the working directory; help: give its full path")
        import evaluate

        try:
            return evaluate.load(self.module)
        except (OSError, ValueError, ImportError) as error:
            raise MissingAsset(
                f"evaluate has no metric script '{self.module}' here: {str(error).splitlines()[0]}\n"
                "  help: name a local script, or use the direct library, which is the default"
            ) from None

    def score(self, text: str, reference: str) -> Score:
        found = self._loaded.compute(predictions=[text], references=[reference], **self.options)
        return {key: float(found[key]) for key in self.keys}
