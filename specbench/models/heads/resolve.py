"""Resolution of a pair's heads: revisions, checksums, and their provenance."""

from dataclasses import dataclass, field
from pathlib import Path

from specbench.config.construct import Table
from specbench.config.pair import HeadSpec, Pair, folder
from specbench.data.hub import commit_of, local_checksum, missing_model
from specbench.errors import ConfigError, MissingAsset, hint
from specbench.models.heads import Provenance
from specbench.models.heads.head import FILE, provenance_in
from specbench.runs.run_spec import HeadSource


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
    found = {}
    for name in names:
        if name not in pair.heads:
            raise ConfigError(f"this pair has no head '{name}'{hint(name, pair.heads)}")
        spec = pair.heads[name]
        if pair.weights == "dummy":
            found[name] = ResolvedHead(spec, weights="dummy")
            continue
        local, commit = folder(spec.path, base), ""
        if not local:
            try:
                commit = (
                    commit_of(spec.path, spec.revision or None, "config.json" if spec.kind == "eagle" else FILE) or ""
                )
            except (OSError, ValueError) as error:
                raise missing_model(f"head {name}", spec.path, error) from None
        is_hub_id = not Path(spec.path).is_absolute() and spec.path.count("/") == 1
        if (local and not local.is_dir()) or not (local or is_hub_id):
            raise MissingAsset(f"head '{name}': no folder {spec.path}")
        checksum = local_checksum(local) or "" if local else ""
        provenance = provenance_in(local) if local else Provenance()
        found[name] = ResolvedHead(spec, commit, checksum, "real", provenance.report, provenance.data)
    return found
