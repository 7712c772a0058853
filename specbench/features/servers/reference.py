"""Reference logits of served tokens: our own forward of the same checkpoint, or a server without speculation."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig

from specbench.config.pair import folder
from specbench.errors import ConfigError
from specbench.features.servers.endpoint import Endpoint
from specbench.http_client import RequestFailed
from specbench.models.checkpoints import Checkpoint, load_model, load_tokenizer, unreadable

ALTERNATIVES = (20, 5)  # numbers of alternatives to try, if the whole vocabulary is refused
MISSING = -1e4  # log-probability of tokens that are not among the alternatives


class Reference(ABC):
    """Logits of the model that a server should follow."""

    name: str

    @abstractmethod
    async def logits(self, prompt: Sequence[int], output: Sequence[int]) -> Tensor:
        """Return the logits of each token of an output given all before it, (m, V), up to a constant per row."""


class Weights(Reference):
    """Our own forward of a checkpoint, in one pass over prompt and output.

    Args:
        path: A folder or a hub id.
        dtype: float32 or float64.

    Raises:
        MissingAsset: The model is not here or cannot be read.
    """

    def __init__(self, path: str, dtype: torch.dtype = torch.float32) -> None:
        source = str(folder(path, Path()) or path)
        try:
            self.config: Any = AutoConfig.from_pretrained(source, trust_remote_code=False)
        except Exception as error:  # of any type, for damaged files
            raise unreadable("weights", source, error) from None
        self.name = f"{path} in {str(dtype).removeprefix('torch.')}"
        self._model = load_model(Checkpoint("weights", source, self.config), dtype).eval()
        self.tokenizer = load_tokenizer("weights", source)

    @property
    def eos(self) -> frozenset[int]:
        """The ids that end a text."""
        found = getattr(self._model.generation_config, "eos_token_id", None)
        found = self.config.eos_token_id if found is None else found
        return frozenset([found] if isinstance(found, int) else found or ())

    async def logits(self, prompt: Sequence[int], output: Sequence[int]) -> Tensor:
        with torch.inference_mode():
            rows: Tensor = self._model(torch.tensor([[*prompt, *output]])).logits[0, len(prompt) - 1 : -1]
        return rows.double()


class Served(Reference):
    """Log-probabilities of given text by a server without speculation.

    Only a server that returns the whole vocabulary gives a reference for temperatures other than 1. `covered` is the smallest
    total probability of the returned tokens so far.

    Raises:
        ConfigError: The server does not say how large its vocabulary is.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        vocabulary = endpoint.description.vocabulary
        if vocabulary is None:
            raise ConfigError(
                f"{endpoint.description.url} does not say how large its vocabulary is; help: --weights FOLDER of its model"
            )
        self.name = endpoint.description.label
        self._endpoint, self._vocabulary = endpoint, vocabulary
        self._alternatives = vocabulary
        self.covered = 1.0

    async def logits(self, prompt: Sequence[int], output: Sequence[int]) -> Tensor:
        rows = await self._rows(prompt, output)
        logits = torch.full((len(output), self._vocabulary), MISSING, dtype=torch.float64)
        for i, row in enumerate(rows):
            logits[i, torch.tensor(list(row))] = torch.tensor(list(row.values()), dtype=torch.float64)
            self.covered = min(self.covered, math.fsum(math.exp(value) for value in row.values()))
        return logits

    async def _rows(self, prompt: Sequence[int], output: Sequence[int]) -> list[Any]:
        try:
            return await self._endpoint.log_probabilities(prompt, output, self._alternatives)
        except RequestFailed as error:
            fewer = next((count for count in ALTERNATIVES if count < self._alternatives), None)
            if error.status != 400 or fewer is None:
                raise
            self._alternatives = fewer
            return await self._rows(prompt, output)

    @property
    def is_complete(self) -> bool:
        """Whether the log-probabilities of the whole vocabulary are returned."""
        return self._alternatives == self._vocabulary
