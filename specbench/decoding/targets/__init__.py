"""Target distributions: what the output must follow. Importing the package registers all of them."""

from specbench.config.construct import import_modules
from specbench.decoding.targets.deferral import (
    Bild,
    Chow,
    ChowLog,
    Deferral,
    Diff,
    DiffLog,
    Opt,
    OptLog,
    TokenSpecific,
    Unaided,
)
from specbench.decoding.targets.ensembles import Contrastive, Mixture, Realigned
from specbench.decoding.targets.lossy import Lossy, LossyStar
from specbench.decoding.targets.target import Last, Target, TwoModels

__all__ = [
    "Bild",
    "Chow",
    "ChowLog",
    "Contrastive",
    "Deferral",
    "Diff",
    "DiffLog",
    "Last",
    "Lossy",
    "LossyStar",
    "Mixture",
    "Opt",
    "OptLog",
    "Realigned",
    "Target",
    "TokenSpecific",
    "TwoModels",
    "Unaided",
]

import_modules(__name__, __path__)
