"""Mixtures of experts, by their configs."""

from transformers import PreTrainedConfig

KEYS = ("num_experts", "num_local_experts", "n_routed_experts")  # of the number of experts


def experts_in(config: PreTrainedConfig) -> int:
    """Return the number of experts of a layer; 0 for a model without a mixture."""
    inner = config.get_text_config(decoder=True)
    return next((count for key in KEYS if (count := getattr(inner, key, None))), 0)


def share_of_experts(config: PreTrainedConfig) -> float:
    """Return the share of its experts that a mixture reads for one token; 1 without experts."""
    count = experts_in(config)
    used = getattr(config.get_text_config(decoder=True), "num_experts_per_tok", None)
    return used / count if count and used else 1.0
