"""Loading of resolved models, tokenizers and heads."""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path

import torch
from torch import nn

from specbench.config.construct import OURS, PLUGIN, import_file
from specbench.decoding.session import Session
from specbench.machine import hardware
from specbench.machine.memory import return_freed_memory, use_huge_pages
from specbench.models.engines import Lean, LoadedModel, TransformersModel, engine_named, load_model_on
from specbench.models.heads.resolve_heads import ResolvedHead, load_head
from specbench.models.loaded_pair import LoadedPair
from specbench.models.parallel import Workers
from specbench.models.resolve_models import device_of_model
from specbench.models.resolved_model import ResolvedModel


def load(
    resolved: Mapping[str, ResolvedModel],
    base: Path,
    device: torch.device,
    heads: Mapping[str, ResolvedHead] | None = None,
) -> LoadedPair:
    """Load weights and tokenizers, each source once on each device, and heads.

    `device` is the run's default device. It holds the models without a placement, random numbers and distributions. Raises
    MissingAsset if something cannot be fetched from the hub.
    """
    hardware.configure(device)
    devices = {role: device_of_model(role, model.spec, device) for role, model in resolved.items()}
    models: dict[str, LoadedModel] = {}
    first_roles: dict[str, str] = {}  # a copy of weights -> the first role that reads it
    for role, resolved_model in resolved.items():
        same = first_roles.setdefault(resolved_model.copy_of(role), role)
        models[role] = (
            load_model_on(resolved_model.engine, role, resolved_model, base, devices[role])
            if same == role
            else models[same].shared()
        )
        models[role].rules = resolved_model.rules
    return_freed_memory()  # of weights that were packed
    for model in (models[role] for role in first_roles.values()):
        if isinstance(model, TransformersModel):
            use_huge_pages_for(model.model)
    pair = LoadedPair(
        models, device, simulated=any(resolved_model.weights != "real" for resolved_model in resolved.values())
    )
    pair.workers = Workers(partial(open_alone, resolved, base, plugins_of_engines(resolved)))
    for name, head in (heads or {}).items():
        pair.heads[name] = load_head(name, head, resolved, base, models[head.spec.base])
    return pair


def plugins_of_engines(resolved: Mapping[str, ResolvedModel]) -> list[str]:
    """Return the plugins whose engines run these models, as .py files or module names that another process can import."""
    names = sorted({type(engine_named(model.engine)).__module__ for model in resolved.values()})
    return [
        str(sys.modules[name].__file__) if name.startswith(PLUGIN) else name
        for name in names
        if not name.startswith(OURS) and name != "__main__"
    ]


def open_alone(
    resolved: Mapping[str, ResolvedModel], base: Path, plugins: Sequence[str], role: str
) -> Callable[[list[int] | None], Session]:
    """Load one model on the CPU, in a process of its own, and return a function that opens its session."""
    for name in plugins:
        if name.endswith(".py"):
            import_file(Path(name))
        else:
            import_module(name)
    Lean.is_checked = False  # in this process, whose forwards other workers slow down
    return partial(load({role: resolved[role]}, base, torch.device("cpu")).session, role)


def use_huge_pages_for(model: nn.Module) -> None:
    """Move weights on the CPU to huge pages, whichever engine reads them.

    Tensors of quantized checkpoints stay where they are, since torchao's classes have no storage of their own.
    """
    tensors = (tensor.data for tensor in chain(model.parameters(), model.buffers()))
    whole = (tensor for tensor in tensors if tensor.device.type == "cpu" and type(tensor) is torch.Tensor)
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in whole}
    for address, size in storages.items():
        use_huge_pages(address, size)
