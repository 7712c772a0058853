"""Floor 2: one file a method. Importing the package registers them all."""

from specbench.methods import autoregressive, hugging_face, speculative, speculative_ensemble

__all__ = ["autoregressive", "hugging_face", "speculative", "speculative_ensemble"]
