"""Loading of heads, and checks that they match the pair's models."""

from collections.abc import Mapping
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from transformers import PreTrainedModel

from specbench.config.pair import folder
from specbench.data.hub import missing_model
from specbench.errors import ConfigError
from specbench.models.heads import EagleHead, Head, LengthHead, Verifier
from specbench.models.heads.head import described, kind_named, same_model
from specbench.models.heads.resolve import ResolvedHead
from specbench.models.resolve import ResolvedModel

FILES = ["config.json", "*.safetensors", "*.bin"]


def load_head(
    name: str, head: ResolvedHead, found: Mapping[str, ResolvedModel], base: Path, model: PreTrainedModel
) -> Head:
    """Return a head on its base's device, ready for use. `model` is the base.

    Raises ConfigError, with both names, if it was trained on other models or does not fit the base's width, and
    MissingAsset if it cannot be fetched or read.
    """
    kind, config = kind_named(head.spec.kind), found[head.spec.base].config
    if head.weights == "dummy":
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            loaded = _fresh(kind, model)
    else:
        loaded = kind.read(_here(name, head, base))
        _require_match(name, head, loaded, found)
    width, own = config.hidden_size, _width(loaded)
    if own not in (None, width):
        raise ConfigError(
            f"head '{name}' ({head.spec.path}) reads states of width {own}, and its base '{head.spec.base}'"
            f" ({found[head.spec.base].spec.path}) has {width}"
        )
    embedding = model.get_input_embeddings().weight
    if isinstance(loaded, EagleHead):
        return loaded.goes_with(embedding)
    if isinstance(loaded, Verifier):
        loaded.embedding = embedding.detach()
    return loaded.placed(model.device)


def _fresh(kind: type[Head], model: PreTrainedModel) -> Head:
    """Return an untrained head, for models with random weights."""
    if kind is EagleHead:
        return EagleHead.of(model.config)
    return kind(**({} if kind is LengthHead else {"hidden": model.config.hidden_size}))


def _here(name: str, head: ResolvedHead, base: Path) -> Path:
    """Return the folder of a head, fetched if it is on the hub."""
    local = folder(head.spec.path, base)
    if local:
        return local
    try:
        return Path(snapshot_download(head.spec.path, revision=head.revision or None, allow_patterns=FILES))
    except (OSError, ValueError) as error:
        raise missing_model(f"head {name}", head.spec.path, error) from None


def _require_match(name: str, head: ResolvedHead, loaded: Head, found: Mapping[str, ResolvedModel]) -> None:
    """Raise ConfigError if the head records other models. Heads published elsewhere record none."""
    for role, trained in ((head.spec.base, loaded.provenance.base), (head.spec.target, loaded.provenance.target)):
        if trained and role in found and not same_model(trained, found[role].identity):
            raise ConfigError(
                f"head '{name}' ({head.spec.path}) was trained with {described(trained)}, and this pair's '{role}' is"
                f" {described(found[role].identity)}"
            )


def _width(head: Head) -> int | None:
    """Return the width H of the states that the head reads, or None."""
    return int(head.config.hidden_size) if isinstance(head, EagleHead) else head.settings.get("hidden")
