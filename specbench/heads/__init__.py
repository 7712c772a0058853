"""Floor 1: small trained modules that read a model's hidden states or its laws, one file each."""

from specbench.heads.dsl import LengthHead
from specbench.heads.eagle import EagleHead, EagleNetwork, EagleSession
from specbench.heads.head import Head, Provenance
from specbench.heads.specdec import AcceptanceHead
from specbench.heads.sprinter import Verifier

__all__ = [
    "AcceptanceHead",
    "EagleHead",
    "EagleNetwork",
    "EagleSession",
    "Head",
    "LengthHead",
    "Provenance",
    "Verifier",
]
