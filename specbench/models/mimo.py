"""MiMo-7B (Xiaomi 2025), of which transformers has no class: Qwen2, with an MTP layer in its checkpoints."""

from typing import ClassVar

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen2Model


class MiMoConfig(Qwen2Config):  # type: ignore[misc]  # its type is Any
    """A config whose model type is `mimo`."""

    model_type = "mimo"


class MiMoModel(Qwen2Model):  # type: ignore[misc]  # untyped base
    """The decoder."""

    config_class = MiMoConfig


class MiMoForCausalLM(Qwen2ForCausalLM):  # type: ignore[misc]  # untyped base
    """The model without its MTP layers, which are a head (`specbench/models/heads/mtp.py`)."""

    config_class = MiMoConfig
    _keys_to_ignore_on_load_unexpected: ClassVar[list[str]] = [r"model\.mtp_layers\..*"]


def register() -> None:
    """Make transformers' Auto classes know MiMo."""
    AutoConfig.register(MiMoConfig.model_type, MiMoConfig, exist_ok=True)
    AutoModel.register(MiMoConfig, MiMoModel, exist_ok=True)
    AutoModelForCausalLM.register(MiMoConfig, MiMoForCausalLM, exist_ok=True)
