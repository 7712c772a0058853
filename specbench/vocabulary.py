"""Words of closed vocabularies, each spelled here alone: in options, pairs, tasks and on the command line."""

from enum import StrEnum


class Overflow(StrEnum):
    """How a prompt that is too long is treated."""

    error = "error"
    left = "truncate-left"
    right = "truncate-right"
    middle = "truncate-middle"


class Chat(StrEnum):
    """Whether the models' chat template is applied."""

    off = "off"
    auto = "auto"
    required = "required"


class Device(StrEnum):
    """The device of a run."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Engine(StrEnum):
    """What runs the models."""

    auto = "auto"
    eager = "eager"
    lean = "lean"
    graph = "graph"
    compiled = "compiled"


class Dtype(StrEnum):
    """The precision of weights and activations."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class Sampling(StrEnum):
    """Where a temperature, top-k and top-p come from that no option and no preset sets."""

    default = "default"  # 0, and no filters
    checkpoint = "checkpoint"  # the generation config of the target


class SandboxKind(StrEnum):
    """How generated code is isolated; `none` disables isolation."""

    auto = "auto"
    bwrap = "bwrap"
    unshare = "unshare"
    none = "none"
