"""Floor 2: one file a method. Importing the package registers them all."""

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
