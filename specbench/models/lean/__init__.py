"""Lean decode-time forwards, one short file per architecture. Importing the package registers all of them."""

from specbench.config.construct import import_modules
from specbench.models.lean.graphs import Graphs
from specbench.models.lean.lean_model_runner import GraphModelRunner, LeanModelRunner
from specbench.models.lean.network import Network, can_fuse, network_of, small_config, unsupported

__all__ = [
    "GraphModelRunner",
    "Graphs",
    "LeanModelRunner",
    "Network",
    "can_fuse",
    "network_of",
    "small_config",
    "unsupported",
]

import_modules(__name__, __path__)
