"""The values of options that are one of several words."""

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


CHOICES: dict[str, type[StrEnum]] = {  # by option
    "device": Device, "dtype": Dtype, "engine": Engine, "on_overflow": Overflow, "chat": Chat,
}  # fmt: skip
