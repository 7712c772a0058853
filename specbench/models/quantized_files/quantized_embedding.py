"""An embedding whose table is quantized: rows are dequantized when they are looked up."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specbench.models.panel_codes import QuantizedLinear


class QuantizedEmbedding(nn.Module):
    """A lookup of rows in a quantized matrix, which may also be the LM head.

    Args:
        table: The matrix (tokens, width).
        shape: The numbers of tokens and of columns.
        dtype: The type of the rows.
    """

    like: Tensor  # (0, width), of the type and on the device of rows

    def __init__(self, table: QuantizedLinear, shape: tuple[int, int], dtype: torch.dtype) -> None:
        super().__init__()
        self.table = table
        self.num_embeddings, self.embedding_dim = shape
        device = next(table.buffers()).device
        self.register_buffer("like", torch.empty(0, shape[1], dtype=dtype, device=device), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        rows = self.table.rows(tokens.reshape(-1)).to(self.like.dtype)  # (n, width)
        return rows.view(*tokens.shape, self.embedding_dim)

    @property
    def weight(self) -> Tensor:
        """The dequantized table (tokens, width), a new tensor; for heads that read it."""
        return self.forward(torch.arange(self.num_embeddings, device=self.like.device))


class Lookup:
    """The lookup of an embedding module without the module's own scaling.

    `like` (any number of rows, width) has the type, the device and the width of rows.
    """

    def __init__(self, module: Any) -> None:
        self.module = module if isinstance(module, QuantizedEmbedding) else None
        self.like: Tensor = module.like if self.module is not None else module.weight

    def __call__(self, tokens: Tensor) -> Tensor:
        """Return the rows (n, width) of tokens (n,)."""
        if self.module is None:
            return F.embedding(tokens, self.like)
        rows: Tensor = self.module(tokens)
        return rows
