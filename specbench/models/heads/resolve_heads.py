"""Resolution and loading of a pair's heads: revisions, checksums, provenance, and checks that they match the models."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from huggingface_hub import snapshot_download

from specbench.config.construct import Table
from specbench.config.pair import HeadSpec, Pair, folder
from specbench.data.hub import commit_of, local_checksum, missing_model
from specbench.errors import ConfigError, MissingAsset, hint
from specbench.models.engines import GraphModel, LoadedModel
from specbench.models.heads import (
    BlockHead,
    DraftHead,
    EagleHead,
    EagleNetwork,
    Head,
    Provenance,
    Verifier,
)
from specbench.models.heads.fresh_head import fresh_head
from specbench.models.heads.head import (
    FILE,
    UNREADABLE,
    described,
    in_one_line,
    kind_named,
    provenance_in,
    same_model,
)
from specbench.models.heads.widened_head import widen_head
from specbench.models.lean import Graphs
from specbench.models.resolved_model import ResolvedModel
from specbench.runs.run_spec import HeadSource

HUB_FILES = ["config.json", "*.safetensors", "*.bin"]


@dataclass(frozen=True)
class ResolvedHead:
    """A head's source: path, commit or checksum, and provenance."""

    spec: HeadSpec
    revision: str = ""
    checksum: str = ""
    weights: str = "real"
    report: Table = field(default_factory=dict)  # measured on texts that it was not trained on
    data: Table = field(default_factory=dict)  # the training data

    @property
    def source(self) -> HeadSource:
        """The head as run.toml holds it."""
        tasks, rows, skipped = (self.data.get(key) for key in ("tasks", "sha256", "skipped"))
        distance = self.report.get("predicted_tv")
        return HeadSource(
            source=self.spec.path,
            kind=self.spec.kind,
            base=self.spec.base,
            revision=self.revision,
            checksum=self.checksum,
            weights="real" if self.weights == "real" else "dummy",
            tasks=tuple(map(str, tasks)) if isinstance(tasks, list) else (),
            trained_on=tuple(map(str, rows)) if isinstance(rows, list) else (),
            skipped=skipped if isinstance(skipped, int) else 0,
            predicted_distance=distance if isinstance(distance, float) else None,
        )


def resolve_heads(pair: Pair, names: tuple[str, ...], base: Path) -> dict[str, ResolvedHead]:
    """Return the heads of these names. Raises MissingAsset if one is not here and cannot be fetched."""
    heads = {}
    for name in names:
        if name not in pair.heads:
            raise ConfigError(f"this pair has no head '{name}'{hint(name, pair.heads)}")
        spec = pair.heads[name]
        if pair.weights == "dummy":
            heads[name] = ResolvedHead(spec, weights="dummy")
            continue
        local, commit = folder(spec.path, base), ""
        is_hub_id = not Path(spec.path).is_absolute() and spec.path.count("/") == 1
        if (local and not local.is_dir()) or not (local or is_hub_id):
            raise MissingAsset(
                f"head '{name}': no folder {spec.path}; help: check the path, or give a hub id, ORG/NAME"
            )
        if not local:
            try:
                commit = commit_of(spec.path, spec.revision or None, "config.json" if spec.drafts else FILE) or ""
            except (OSError, ValueError) as error:
                raise missing_model(f"head {name}", spec.path, error) from None
        checksum = local_checksum(local) or "" if local else ""
        provenance = provenance_in(local) if local else Provenance()
        heads[name] = ResolvedHead(spec, commit, checksum, "real", provenance.report, provenance.data)
    return heads


def load_head(
    name: str, head: ResolvedHead, models: Mapping[str, ResolvedModel], base: Path, model: LoadedModel
) -> Head:
    """Return a head on its base's device, ready for use. `model` is the base.

    Raises ConfigError, with both names, if it was trained on other models or does not fit the base's width, and
    MissingAsset if it cannot be fetched or read.
    """
    kind, resolved = kind_named(head.spec.kind), models[head.spec.base]
    config = resolved.narrow or resolved.config
    if head.weights == "dummy":
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            loaded = fresh_head(kind, config)
    else:
        loaded = kind.read(fetched(name, head.spec.path, base, head.revision))
        _require_match(name, head, loaded, models)
    width, head_width = config.hidden_size, _width(loaded)
    if head_width not in (None, width):
        raise ConfigError(
            f"head '{name}' ({head.spec.path}) reads states of width {head_width}, and its base '{head.spec.base}'"
            f" ({models[head.spec.base].spec.path}) has {width}"
        )
    if isinstance(loaded, DraftHead):
        if resolved.narrow is not None:
            widen_head(loaded, resolved)
        try:
            loaded.goes_with(model.transformers().get_input_embeddings().weight, config)
        except ConfigError as error:
            raise ConfigError(f"head '{name}' ({head.spec.path}) and its base '{head.spec.base}': {error}") from None
        if isinstance(loaded, BlockHead):
            _ = loaded.packed  # before decoding, which is in inference mode
        _require_output(name, head, loaded)
        if isinstance(model, GraphModel):
            model.graphs.require_aux_layers(loaded.aux_layers)
        if isinstance(model, GraphModel) and isinstance(loaded, EagleHead) and loaded.captures:
            loaded.graphs = Graphs(EagleNetwork(loaded, model.network), model.device)
        return loaded
    if isinstance(loaded, Verifier):
        loaded.embedding = model.transformers().get_input_embeddings().weight.detach()
    placed = loaded.placed(model.device)
    _require_output(name, head, placed)
    return placed


def _require_output(name: str, head: ResolvedHead, loaded: Head) -> None:
    """Raise MissingAsset if the head cannot decode, or gives NaN: nothing is measured then."""
    try:
        loaded.require_finite_output()
    except torch.OutOfMemoryError:
        raise
    except (MissingAsset, ConfigError, IndexError, *UNREADABLE) as error:
        raise MissingAsset(f"head '{name}' ({head.spec.path}) cannot draft: {in_one_line(error)}") from None


def fetched(name: str, path: str, base: Path, revision: str = "") -> Path:
    """Return the folder of a head, fetched if `path` is a hub id. Raises MissingAsset if it cannot be fetched."""
    local = folder(path, base)
    if local:
        return local
    try:
        return Path(snapshot_download(path, revision=revision or None, allow_patterns=HUB_FILES))
    except (OSError, ValueError) as error:
        raise missing_model(f"head {name}", path, error) from None


def _require_match(name: str, head: ResolvedHead, loaded: Head, models: Mapping[str, ResolvedModel]) -> None:
    """Raise ConfigError if the head records other models. Heads published elsewhere record none."""
    for role, trained in ((head.spec.base, loaded.provenance.base), (head.spec.target, loaded.provenance.target)):
        if trained and role in models and not same_model(trained, models[role].identity):
            raise ConfigError(
                f"head '{name}' ({head.spec.path}) was trained with {described(trained)}, and this pair's '{role}' is"
                f" {described(models[role].identity)}"
            )


def _width(head: Head) -> int | None:
    """Return the width H of the states that the head reads, or None."""
    return head.state_width if isinstance(head, DraftHead) else head.settings.get("hidden")
