"""Untrained heads of each kind, for models with random weights and for sizes."""

from transformers import PreTrainedConfig

from specbench.config.pair import drafts
from specbench.models.heads import (
    BlockHead,
    DFlashHead,
    DSparkHead,
    Eagle1Head,
    Eagle3Head,
    Head,
    LengthHead,
    MtpHead,
)


def fresh_head(kind: type[Head], config: PreTrainedConfig) -> Head:
    """Return an untrained head, for models with random weights."""
    if drafts(kind.kind):
        of_kind: dict[str, type[Eagle3Head | MtpHead | BlockHead]] = {
            "eagle3": Eagle3Head, "dflash": DFlashHead, "dspark": DSparkHead, "mtp": MtpHead,
        }  # fmt: skip
        return of_kind.get(kind.kind, Eagle1Head).of(config)
    return kind(**({} if kind is LengthHead else {"hidden": config.hidden_size}))
