"""Floor 2: one file a method. Importing the package registers them all."""

from specbench.methods import autoregressive, speculative, speculative_ensemble

__all__ = ["autoregressive", "speculative", "speculative_ensemble"]
