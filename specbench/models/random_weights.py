"""Floor 0: dummy weights, random ones in a real architecture: its kernels cost what they cost, and nothing is downloaded.

What such a model says is noise, so nothing about quality can be measured with it.
"""

import tomllib
import zlib
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedConfig, PreTrainedModel

from specbench.config.pair import PACKAGE
from specbench.errors import ConfigError, MissingAsset, hint
from specbench.files import in_one_line, read_json

TOKENIZERS = {False: PACKAGE / "tiny/models/target", True: PACKAGE / "tiny/models/t5-large"}  # by is_encoder_decoder


def architecture(path: str, changes: dict[str, Any]) -> PreTrainedConfig:
    """The configuration of the model that `path` names, a hub id of configs/architectures/, with changed keys.

    Raises MissingAsset for a model whose architecture is not there, and ConfigError for a key that it has not.
    """
    table = _tables().get(path)
    if table is None:
        raise MissingAsset(f"no architecture is known for {path}; help: configs/architectures/, or a local folder")
    return _built(table, changes)


def architecture_in(folder: Path, changes: dict[str, Any]) -> PreTrainedConfig:
    """A local folder's configuration with changed keys. Raises ConfigError for a key that it has not."""
    path = folder / "config.json"
    if not path.is_file():
        raise MissingAsset(f"{folder} holds no model (no config.json)")
    return _built(read_json(path, dict[str, Any]), changes)


def _built(table: dict[str, Any], changes: dict[str, Any]) -> PreTrainedConfig:
    """The configuration, made with the changes, so that what is derived from them fits."""
    plain = _config(table)
    for key in changes:
        if not hasattr(plain, key):
            near = hint(key, plain.to_dict())
            raise ConfigError(f"config.{key}: the architecture {plain.model_type} has no such key{near}")
    merged = {
        key: table[key] | value if isinstance(value, dict) and key in table else value for key, value in changes.items()
    }
    return _config(table | merged)


def _config(table: dict[str, Any]) -> PreTrainedConfig:
    """transformers' configuration of these keys. Raises ConfigError for values that describe no model."""
    try:
        return AutoConfig.for_model(**table)
    except Exception as error:  # whatever a library makes of a number that cannot be
        raise ConfigError(f"config describes no {table.get('model_type', 'model')}: {in_one_line(error)}") from None


def random_model(config: PreTrainedConfig, dtype: str, device: torch.device, role: str = "") -> PreTrainedModel:
    """The architecture with random weights of a role's own, made on the device: the same every time."""
    kind: Any = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.device(device):
        torch.manual_seed(zlib.crc32(role.encode()))
        model: PreTrainedModel = kind.from_config(config, dtype=getattr(torch, dtype))
    return model


@cache
def _tables() -> dict[str, dict[str, Any]]:
    """Hub id -> its configuration's keys."""
    folder = Path(str(resources.files("specbench.configs"))) / "architectures"
    tables = (tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.toml")))
    return {name: table["config"] for table in tables for name in table["ids"]}
