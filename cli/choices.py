"""What a few options may be, as Typer wants to know it."""

from enum import StrEnum


class SandboxKind(StrEnum):
    auto = "auto"
    bwrap = "bwrap"
    unshare = "unshare"
    none = "none"


class Overflow(StrEnum):
    error = "error"
    left = "truncate-left"
    right = "truncate-right"
    middle = "truncate-middle"


class Chat(StrEnum):
    off = "off"
    auto = "auto"
    required = "required"


class Device(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Engine(StrEnum):
    auto = "auto"
    eager = "eager"
    lean = "lean"
    graph = "graph"


class Dtype(StrEnum):
    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"
