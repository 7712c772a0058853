"""The memory of a run on each of its devices, from the sizes and the placements of its models."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from specbench.machine.accelerator import GIB
from specbench.models.engines import engine_named
from specbench.models.heads.head_size import HeadSize
from specbench.models.resolved_model import ResolvedModel

FIRST = "cuda:0"  # the run's device on a machine with GPUs
CONTEXT = 1 * GIB  # assumed: CUDA's context, the libraries' workspaces and activations
GRAPHS = GIB // 2  # assumed: the graphs and buffers of a model on an engine with CUDA graphs
BUFFER = 1.25  # layers by which accelerate lets a device exceed an equal share


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The memory of one device in bytes, and the models that it holds."""

    device: str = FIRST
    models: tuple[str, ...] = ()
    weights: int
    cache: int
    graphs: int

    @property
    def total(self) -> int:
        """The sum of all parts, in bytes."""
        return self.weights + self.cache + self.graphs


@dataclass(frozen=True)
class _Part:
    """The part of a model that is on one device."""

    device: str
    role: str
    weights: int
    cache: int
    graphs: int = 0


def memory_by_device(
    models: Mapping[str, ResolvedModel], heads: Mapping[str, HeadSize], positions: int, first: str = FIRST
) -> list[Memory]:
    """Return the memory of each device. Weights that several roles read count once.

    `heads` are heads by name, which are on the first device of their base. `positions` is the length of the caches, and
    `first` is the device of models without a placement.
    """
    first_roles = {model.copy_of(role): role for role, model in reversed([*models.items()])}
    parts: dict[str, list[_Part]] = defaultdict(list)
    for role, model in models.items():
        is_shared = first_roles[model.copy_of(role)] != role
        for part in _parts(role, model, model.size.cache_bytes(positions), first):
            parts[part.device].append(replace(part, weights=0) if is_shared else part)
        for name, head in heads.items():
            if head.base == role:
                device = _devices(model, first)[0]
                parts[device].append(_Part(device, f"head {name}", head.weights, head.position_bytes * positions))
    return [
        Memory(
            device=device,
            models=tuple(part.role for part in on_device),
            weights=sum(part.weights for part in on_device),
            cache=sum(part.cache for part in on_device),
            graphs=(CONTEXT if device.startswith("cuda") else 0) + sum(part.graphs for part in on_device),
        )
        for device, on_device in sorted(parts.items())
    ]


def _parts(role: str, model: ResolvedModel, cache: int, first: str) -> Iterator[_Part]:
    """Yield the parts of a model. One without a placement is on the device `first`."""
    placement, devices = model.spec.placement, _devices(model, first)
    if placement.parallel == "none":
        graphs = GRAPHS if engine_named(model.engine).has_graphs else 0
        yield _Part(devices[0], role, model.size.resident_bytes + _copies(model, devices[0]), cache, graphs)
    else:
        limits = [int(limit * 2**30) for limit in placement.memory_gib]
        for device, share, layers in zip(devices, *layer_split(model, limits), strict=True):
            yield _Part(device, role, share, cache * layers // model.size.layers)


def _devices(model: ResolvedModel, first: str) -> tuple[str, ...]:
    """Return the devices of a model, `first` for one without a placement."""
    return tuple(FIRST if device == "cuda" else device for device in model.spec.placement.devices or (first,))


def _copies(model: ResolvedModel, device: str) -> int:
    """Return the bytes of second copies of weights, which only a CPU holds."""
    return model.size.packed_head_bytes if device == "cpu" and model.engine == "lean" else 0


def layer_split(model: ResolvedModel, limits: Sequence[int] = ()) -> tuple[list[int], list[int]]:
    """Return the bytes and the number of layers on each device of a model in layers, as accelerate divides it.

    Blocks are the embedding, the layers in order and the LM head, which is with the embedding if they are one matrix. Every
    device but the last holds at most an equal share plus BUFFER layers, or at most its limit in bytes if `limits` are given.
    The last device holds the rest.
    """
    size, count = model.size, len(model.spec.placement.devices)
    layer = (size.resident_bytes - size.embedding_bytes) // size.layers
    embedding = size.lm_head_bytes
    blocks = [(embedding, 0), *[(layer, 1)] * size.layers]
    if size.embedding_bytes > embedding:
        blocks.append((size.embedding_bytes - embedding, 0))
    share = int(size.resident_bytes / count + BUFFER * layer)
    bounds = list(limits) or [share] * (count - 1) + [size.resident_bytes]
    sizes, layers, device = [0] * count, [0] * count, 0
    for block, number in blocks:
        while sizes[device] + block > bounds[device] and device < count - 1:
            device += 1
        sizes[device] += block
        layers[device] += number
    return sizes, layers
