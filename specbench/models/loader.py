"""Loading of resolved models, tokenizers and heads."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specbench.config.pair import folder
from specbench.decoding.session import Session
from specbench.errors import ConfigError
from specbench.machine import hardware
from specbench.machine.memory import return_freed_memory, use_huge_pages
from specbench.models import simulated
from specbench.models.checkpoints import Checkpoint, load_model, load_tokenizer
from specbench.models.engine import Graphs, Network, network_of
from specbench.models.heads import EagleHead, EagleNetwork
from specbench.models.heads.resolve import ResolvedHead, load_head
from specbench.models.loaded_pair import LoadedPair
from specbench.models.parallel import Workers
from specbench.models.placed import loading_settings, remove_with
from specbench.models.quantization import quantize, stored_by
from specbench.models.resolve import ResolvedModel, device_of_model
from specbench.models.transformers_session import new_cache


def load(
    resolved: Mapping[str, ResolvedModel],
    base: Path,
    device: torch.device,
    heads: Mapping[str, ResolvedHead] | None = None,
) -> LoadedPair:
    """Load weights and tokenizers, each source once on each device, and heads.

    `device` is the run's: of all models without a placement, and of random numbers and distributions. Raises MissingAsset if
    something cannot be fetched from the hub.
    """
    hardware.configure(device)
    devices = {role: device_of_model(role, model.spec, device) for role, model in resolved.items()}
    models: dict[str, PreTrainedModel] = {}
    tokenizers: dict[str, PreTrainedTokenizerBase] = {}
    networks: dict[str, Network] = {}
    packing = 0.0
    first_roles: dict[str, str] = {}  # a copy of weights -> the first role that reads it
    for role, each in resolved.items():
        same = first_roles.setdefault(each.copy_of(role), role)
        if same != role:
            models[role], tokenizers[role] = models[same], tokenizers[same]
        else:
            models[role], tokenizers[role] = _load_model(role, each, base, devices[role])
        if each.engine != "eager":
            begin = time.perf_counter()
            networks[role] = (
                networks[same] if models[role] is models[same] and same in networks else network_of(models[role])
            )
            packing += time.perf_counter() - begin
    return_freed_memory()  # of weights that were packed
    for model in {id(model): model for model in models.values()}.values():
        use_huge_pages_for(model)
    graphs = {
        role: Graphs(networks[role], devices[role], fused=model.engine == "compiled")
        for role, model in resolved.items()
        if model.engine in ("graph", "compiled")
    }
    pair = LoadedPair(
        models, tokenizers, networks, graphs, simulated=any(f.weights != "real" for f in resolved.values())
    )
    pair.set_devices(device, devices)
    pair.workers, pair.packing_seconds = Workers(partial(open_alone, resolved, base)), packing
    for name, head in (heads or {}).items():
        pair.heads[name] = loaded = load_head(name, head, resolved, base, models[head.spec.base])
        if isinstance(loaded, EagleHead) and head.spec.base in graphs:
            loaded.graphs = Graphs(EagleNetwork(loaded, networks[head.spec.base]), devices[head.spec.base])
    return pair


def open_alone(resolved: Mapping[str, ResolvedModel], base: Path, role: str) -> Callable[[list[int] | None], Session]:
    """Load one model on the CPU, in a process of its own, and return a function that opens its session."""
    return partial(load({role: resolved[role]}, base, torch.device("cpu")).session, role)


def use_huge_pages_for(model: PreTrainedModel) -> None:
    """Move a model's weights on the CPU to huge pages, whichever engine reads them. Split tensors stay where they are."""
    tensors = (tensor.data for tensor in chain(model.parameters(), model.buffers()))
    whole = (tensor for tensor in tensors if tensor.device.type == "cpu" and type(tensor) is torch.Tensor)
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in whole}
    for address, size in storages.items():
        use_huge_pages(address, size)


def _load_model(
    role: str, each: ResolvedModel, base: Path, device: torch.device
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load one model and its tokenizer, quantized if the pair says so."""
    source = str(folder(each.spec.path, base) or each.spec.path)
    if each.weights == "dummy":
        tokenizer = load_tokenizer(role, str(simulated.TOKENIZERS[each.config.is_encoder_decoder]))
        if each.spec.placement.parallel != "none":
            raise ConfigError(
                f"model '{role}': dummy weights cannot be split over devices; help: --place {role}=cuda:0"
            )
        model = simulated.random_model(each.config, each.dtype, device, role)
    else:
        tokenizer = load_tokenizer(role, source, each.revision or None)
        dtype = getattr(torch, each.dtype)
        checkpoint = Checkpoint(role, source, each.config, each.revision or None, each.spec.allowed_keys)
        settings = loading_settings(each.spec.placement)
        model = load_model(checkpoint, dtype, device, settings)
        remove_with(model, settings)
    if each.chat_template:
        tokenizer.chat_template = each.chat_template.text
    try:
        new_cache(model)
    except ValueError as error:
        raise ConfigError(f"model '{role}': {error}") from None
    if not stored_by(each.config) and each.spec.placement.parallel == "none":  # others are where they must stay
        model = model.to(device)
    model.eval().requires_grad_(False)
    if each.spec.quantization:
        quantize(model, each.spec.quantization)
    return model, tokenizer
