"""Options of other engines that draft as a proposer does. Imports no torch."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class EngineOptions(NamedTuple):
    """The name of an engine, and the options of its server."""

    engine: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Drafting:
    """What options need besides a proposer's own fields.

    Args:
        source: The folder or hub id of the model or head that drafts; empty if it is not known.
        head_kind: The kind of the head; empty for other proposers.
        rejection: The name of the rejection rule; empty if drafts are tested token by token.
    """

    source: str = ""
    head_kind: str = ""
    rejection: str = ""


def vllm(config: Mapping[str, object]) -> EngineOptions:
    """Return the options of vLLM for a `speculative_config`."""
    return EngineOptions("vLLM", f"--speculative-config {shlex.quote(json.dumps(config))}")


def sglang(algorithm: str, drafter: str, gamma: int) -> EngineOptions:
    """Return the options of SGLang for chains of `gamma` tokens."""
    return EngineOptions(
        "SGLang",
        f"--speculative-algorithm {algorithm} --speculative-draft-model-path {shlex.quote(drafter)}"
        f" --speculative-num-steps {gamma} --speculative-eagle-topk 1 --speculative-num-draft-tokens {gamma + 1}",
    )


def llama_server(kind: str, more: str = "") -> EngineOptions:
    """Return the options of llama.cpp's server for a kind of drafts. `more` is added after a space."""
    return EngineOptions("llama-server", " ".join(filter(None, (f"--spec-type {kind}", more))))
