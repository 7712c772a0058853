"""Small trained modules that read a model's hidden states or distributions, one file per kind."""

from specbench.models.heads.block_head import BlockHead, DFlashHead, DSparkHead
from specbench.models.heads.block_session import BlockSession
from specbench.models.heads.classifiers import AcceptanceHead, LengthHead, Verifier
from specbench.models.heads.draft_head import DraftHead
from specbench.models.heads.eagle import EagleHead, EagleNetwork, EagleSession
from specbench.models.heads.eagle1 import Eagle1Head
from specbench.models.heads.eagle3 import Eagle3Head
from specbench.models.heads.head import Head, Provenance
from specbench.models.heads.mtp import MtpHead

__all__ = [
    "AcceptanceHead",
    "BlockHead",
    "BlockSession",
    "DFlashHead",
    "DSparkHead",
    "DraftHead",
    "Eagle1Head",
    "Eagle3Head",
    "EagleHead",
    "EagleNetwork",
    "EagleSession",
    "Head",
    "LengthHead",
    "MtpHead",
    "Provenance",
    "Verifier",
]
