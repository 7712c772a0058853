"""Small trained modules that read a model's hidden states or distributions, one file per kind."""

from specbench.models.heads.classifiers import AcceptanceHead, LengthHead, Verifier
from specbench.models.heads.eagle import EagleHead, EagleNetwork, EagleSession
from specbench.models.heads.head import Head, Provenance

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
