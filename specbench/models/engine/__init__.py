"""Lean decode-time forwards, one short file per architecture. Importing the package registers all of them."""

from specbench.models.engine import gpt2, gpt_neo, llama, opt, t5
from specbench.models.engine.graphs import Graphs, GraphSession
from specbench.models.engine.network import Network, can_fuse, network_of, unsupported
from specbench.models.engine.session import LeanSession

__all__ = [
    "GraphSession",
    "Graphs",
    "LeanSession",
    "Network",
    "can_fuse",
    "gpt2",
    "gpt_neo",
    "llama",
    "network_of",
    "opt",
    "t5",
    "unsupported",
]
