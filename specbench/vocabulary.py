"""Words of closed vocabularies, each spelled here alone: in options, pairs, tasks and on the command line."""

from collections.abc import Iterable
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


class Simulation(StrEnum):
    """What is not real about a pair's models: random weights, synthetic logits, both or nothing."""

    none = ""
    dummy = "dummy"
    synthetic = "synthetic"
    both = "dummy synthetic"

    @classmethod
    def of(cls, weights: str, logits: str) -> "Simulation":
        """Return what is simulated, from the pair's `weights` and `logits`."""
        return cls(" ".join(word for word in (weights, logits) if word != "real"))

    @property
    def has_dummy_weights(self) -> bool:
        """Whether weights are random."""
        return self in (Simulation.dummy, Simulation.both)

    @property
    def has_synthetic_logits(self) -> bool:
        """Whether logits are synthetic."""
        return self in (Simulation.synthetic, Simulation.both)

    @property
    def label(self) -> str:
        """What is added to a name, such as ` (dummy) (synthetic)`."""
        words = (("dummy", self.has_dummy_weights), ("synthetic", self.has_synthetic_logits))
        return "".join(f" ({word})" for word, is_so in words if is_so)

    @classmethod
    def label_of(cls, simulations: "Iterable[Simulation]") -> str:
        """Return the label of several runs together."""
        found = list(simulations)
        dummy, synthetic = any(s.has_dummy_weights for s in found), any(s.has_synthetic_logits for s in found)
        return cls.of("dummy" if dummy else "real", "synthetic" if synthetic else "real").label


class Advised(StrEnum):
    """How `advise` tries a preset, which is the value of its key `advise`."""

    model = "model"  # with each draft model of the pair, at several draft lengths
    stopped = "stopped"  # with the first draft model, at one longest draft
    block = "block"  # with the first draft model, at temperatures above 0
    head = "head"  # with each head of the target that its proposer drafts with
    chain = "chain"  # as it is; the first one whose models the pair has
    lookup = "lookup"  # its proposer, as it is
    other_lookup = "other lookup"  # its proposer, for a target without a draft model and a head
    lossless = "lossless"  # as it is, if the pair has its models and heads, and the output follows the target
    lossy = "lossy"  # as it is, if the score may drop


class DefaultFor(StrEnum):
    """The pairs whose default method a preset is, which is the value of its key `default_for`."""

    draft = "draft and target"
    ensemble = "ensemble"
    target = "target"  # alone
