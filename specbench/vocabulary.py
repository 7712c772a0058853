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


class Advised(StrEnum):
    """How `advise` tries a preset, which is the value of its key `advise`."""

    model = "model"  # with each draft model of the pair, at several draft lengths
    stopped = "stopped"  # with the first draft model, at one longest draft
    block = "block"  # with the first draft model, at temperatures above 0
    head = "head"  # with each head of the target that its proposer drafts with
    chain = "chain"  # as it is; the first one that the pair has the models of
    lookup = "lookup"  # its proposer, as it is
    other_lookup = "other lookup"  # its proposer, for a target without a draft model and a head
    lossless = "lossless"  # as it is, if the pair has its models and heads, and the output follows the target
    lossy = "lossy"  # as it is, if the score may drop


class DefaultFor(StrEnum):
    """The pairs whose default method a preset is, which is the value of its key `default_for`."""

    draft = "draft and target"
    ensemble = "ensemble"
    target = "target"  # alone
