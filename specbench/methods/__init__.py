"""Decoding methods, one file per method. Importing the package registers all of them."""

from specbench.methods import (
    autoregressive,
    bild,
    hugging_face,
    parallel,
    sequence_cascade,
    speculative,
    speculative_ensemble,
    sprinter,
    token_cascade,
)

__all__ = [
    "autoregressive",
    "bild",
    "hugging_face",
    "parallel",
    "sequence_cascade",
    "speculative",
    "speculative_ensemble",
    "sprinter",
    "token_cascade",
]
