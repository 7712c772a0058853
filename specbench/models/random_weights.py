"""Dummy weights: random weights in a real architecture, for timing without downloads.

The output of such a model is noise, so nothing about quality can be measured with it.
"""

import zlib
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedConfig, PreTrainedModel

from specbench.config.construct import Table
from specbench.config.model_files import known_architecture
from specbench.config.pair import PACKAGE
from specbench.errors import ConfigError, MissingAsset, hint
from specbench.files import in_one_line, read_json
from specbench.models.checkpoints import CONSTRUCTION

TOKENIZERS = {False: PACKAGE / "tiny/models/target", True: PACKAGE / "tiny/models/t5-large"}  # by is_encoder_decoder


def architecture(path: str, changes: Table) -> PreTrainedConfig:
    """Return the configuration of a hub id of configs/architectures/, with changed keys.

    Raises MissingAsset for a model whose architecture is not there, and ConfigError for an unknown key.
    """
    return _built(known_architecture(path), changes)


def architecture_in(folder: Path, changes: Table) -> PreTrainedConfig:
    """Return a local folder's configuration with changed keys. Raises ConfigError for an unknown key."""
    path = folder / "config.json"
    if not path.is_file():
        raise MissingAsset(f"{folder} holds no model (no config.json)")
    return _built(read_json(path, Table), changes)


def _built(table: Table, changes: Table) -> PreTrainedConfig:
    """Return the configuration, constructed with the changes, so that derived values fit."""
    plain = _config(table)
    for key in changes:
        if not hasattr(plain, key):
            near = hint(key, plain.to_dict())
            raise ConfigError(f"config.{key}: the architecture {plain.model_type} has no such key{near}")
    merged = {
        key: {**own, **value} if isinstance(value, dict) and isinstance(own := table.get(key), dict) else value
        for key, value in changes.items()
    }
    return _config(table | merged)


def _config(table: Table) -> PreTrainedConfig:
    """Return transformers' configuration of these keys. Raises ConfigError for values that describe no model."""
    try:
        return AutoConfig.for_model(**table)
    except Exception as error:  # any error that transformers raises for an impossible value
        raise ConfigError(f"config describes no {table.get('model_type', 'model')}: {in_one_line(error)}") from None


def random_model(config: PreTrainedConfig, dtype: str, device: torch.device, role: str = "") -> PreTrainedModel:
    """Return the architecture with random weights seeded by the role, created on the device; reproducible."""
    kind: Any = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    devices = [device] if device.type == "cuda" else []
    with CONSTRUCTION, torch.random.fork_rng(devices), torch.device(device):
        torch.manual_seed(zlib.crc32(role.encode()))
        model: PreTrainedModel = kind.from_config(config, dtype=getattr(torch, dtype))
    return model
