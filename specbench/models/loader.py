"""Loading of resolved models, tokenizers and heads."""

from collections.abc import Mapping
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specbench.config.pair import folder
from specbench.errors import ConfigError
from specbench.machine import hardware
from specbench.models import random_weights as dummy
from specbench.models.checkpoints import Checkpoint, load_model, load_tokenizer
from specbench.models.eager_session import new_cache
from specbench.models.engine import Graphs, Network, network_of
from specbench.models.heads import EagleHead, EagleNetwork
from specbench.models.heads.loader import load_head
from specbench.models.heads.resolve import ResolvedHead
from specbench.models.loaded_pair import LoadedPair as LoadedPair
from specbench.models.loaded_pair import Models as Models
from specbench.models.parallel import Workers
from specbench.models.quantization import quantize, stored_by
from specbench.models.resolve import ResolvedModel


def load(
    found: Mapping[str, ResolvedModel],
    base: Path,
    device: torch.device,
    heads: Mapping[str, ResolvedHead] | None = None,
) -> LoadedPair:
    """Load weights and tokenizers, each source once, and heads.

    Raises MissingAsset if something cannot be fetched from the hub.
    """
    hardware.configure(device)
    models: dict[str, PreTrainedModel] = {}
    tokenizers: dict[str, PreTrainedTokenizerBase] = {}
    networks: dict[str, Network] = {}
    first_roles: dict[str, str] = {}  # source and engine -> the first role with them
    for role, each in found.items():
        same = first_roles.setdefault(f"{each.identity} {each.engine}", role)
        if same != role and each.weights == "real":
            models[role], tokenizers[role] = models[same], tokenizers[same]
        else:
            models[role], tokenizers[role] = _loaded_model(role, each, base, device)
        if each.engine != "eager":
            networks[role] = (
                networks[same] if models[role] is models[same] and same in networks else network_of(models[role])
            )
    graphs = {
        role: Graphs(networks[role], device, fused=each.engine == "compiled")
        for role, each in found.items()
        if each.engine in ("graph", "compiled")
    }
    pair = LoadedPair(models, tokenizers, networks, graphs, simulated=any(f.weights != "real" for f in found.values()))
    pair.workers = Workers(found, base)
    for name, head in (heads or {}).items():
        pair.heads[name] = loaded = load_head(name, head, found, base, models[head.spec.base])
        if isinstance(loaded, EagleHead) and head.spec.base in graphs:
            loaded.graphs = Graphs(EagleNetwork(loaded, networks[head.spec.base]), device)
    return pair


def _loaded_model(
    role: str, each: ResolvedModel, base: Path, device: torch.device
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load one model and its tokenizer, quantized if the pair says so."""
    source = str(folder(each.spec.path, base) or each.spec.path)
    if each.weights == "dummy":
        tokenizer = load_tokenizer(role, str(dummy.TOKENIZERS[each.config.is_encoder_decoder]))
        model = dummy.random_model(each.config, each.dtype, device, role)
    else:
        tokenizer = load_tokenizer(role, source, each.revision or None)
        dtype = getattr(torch, each.dtype)
        checkpoint = Checkpoint(role, source, each.config, each.revision or None, each.spec.allowed_keys)
        model = load_model(checkpoint, dtype, device)
    if each.chat_template:
        tokenizer.chat_template = each.chat_template.text
    try:
        new_cache(model)
    except ValueError as error:
        raise ConfigError(f"model '{role}': {error}") from None
    if not stored_by(each.config):  # such a model is on its device already and must not be moved
        model = model.to(device)
    model.eval().requires_grad_(False)
    if each.spec.quantization:
        quantize(model, each.spec.quantization)
    return model, tokenizer
