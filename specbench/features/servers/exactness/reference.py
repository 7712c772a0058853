"""Reference logits of served tokens: our own forward of the same checkpoint, or a server without speculation."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
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

MOST_ALTERNATIVES = 2**18  # requested from a server that does not say how large its vocabulary is
FEWER = 16  # the smallest number that is tried
UNCOVERED = 1e-3  # of a distribution, which may be missing
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
        if source.endswith(".gguf"):
            raise ConfigError(f"--weights {path}: a GGUF file; help: the checkpoint that it was made from")
        try:
            self.config: Any = AutoConfig.from_pretrained(source, trust_remote_code=False)
        except Exception as error:  # of any type, for damaged files
            raise unreadable("weights", source, error) from None
        self.name = f"{path} in {str(dtype).removeprefix('torch.')}"
        self._model = load_model(Checkpoint("weights", source, self.config), dtype).eval()
        self.tokenizer = load_tokenizer("weights", source)
        self._path, self._size = path, self._model.get_input_embeddings().weight.shape[0]

    async def logits(self, prompt: Sequence[int], output: Sequence[int]) -> Tensor:
        """Return the logits of each token of an output. Raises ConfigError for an id that the model does not have."""
        if (largest := max(*prompt, *output)) >= self._size:
            raise ConfigError(
                f"the server has token {largest}, and {self._path} has {self._size} tokens: it is another model; help: the"
                " weights that the server serves"
            )
        with torch.inference_mode():
            rows: Tensor = self._model(torch.tensor([[*prompt, *output]])).logits[0, len(prompt) - 1 : -1]
        return rows.double()


class Served(Reference):
    """Log-probabilities of given text by a server without speculation, which must return its whole vocabulary."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.name = endpoint.description.label
        self._endpoint = endpoint
        self._alternatives = endpoint.description.vocabulary or MOST_ALTERNATIVES

    async def logits(self, prompt: Sequence[int], output: Sequence[int]) -> Tensor:
        """Return log-probabilities up to the largest returned id.

        Raises:
            ConfigError: The server returns a part of the distribution.
            RequestFailed: It does not answer.
        """
        rows = await self._rows(prompt, output)
        logits = torch.full((len(output), 1 + max(map(max, rows))), MISSING, dtype=torch.float64)
        for i, row in enumerate(rows):
            logits[i, torch.tensor(list(row))] = torch.tensor(list(row.values()), dtype=torch.float64)
            covered = math.fsum(map(math.exp, row.values()))
            if covered < 1.0 - UNCOVERED:
                raise ConfigError(
                    f"{self._endpoint.description.url} returns {len(row)} log-probabilities per token, {covered:.1%} of the"
                    " distribution; help: start it with --max-logprobs VOCABULARY_SIZE, or --weights FOLDER of its model"
                )
        return logits

    async def _rows(self, prompt: Sequence[int], output: Sequence[int]) -> list[Mapping[int, float]]:
        try:
            return await self._endpoint.log_probabilities(prompt, output, self._alternatives)
        except RequestFailed as error:
            if error.status != 400 or self._alternatives <= FEWER:
                raise
            self._alternatives = max(self._alternatives // 2, FEWER)
            return await self._rows(prompt, output)
