"""Small trained modules that read a model's hidden states or distributions, one file per kind."""

from specbench.models.heads.dsl import LengthHead
from specbench.models.heads.eagle import EagleHead, EagleNetwork
from specbench.models.heads.eagle_session import EagleSession
from specbench.models.heads.head import Head, Provenance
from specbench.models.heads.specdec import AcceptanceHead
from specbench.models.heads.sprinter import Verifier

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
