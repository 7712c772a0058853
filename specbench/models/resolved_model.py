"""A resolved model: its source, its architecture, its precision and its engine, without weights."""

from dataclasses import dataclass
from functools import cached_property

from transformers import PreTrainedConfig

from specbench.config.construct import Table
from specbench.config.model_files import ChatTemplate
from specbench.config.pair import ModelSpec
from specbench.models.sizes import Architecture, ModelSize
from specbench.runs.run_spec import ModelSource


@dataclass(frozen=True)
class ResolvedModel:
    """A model as described by its config: source, commit or checksum, dtype and engine."""

    spec: ModelSpec
    architecture: Architecture
    dtype: str
    engine: str = "eager"
    weights: str = "real"
    revision: str = ""  # the commit; empty for a local folder, which `checksum` identifies
    checksum: str = ""
    chat_template: ChatTemplate | None = None  # in place of the tokenizer's
    is_local: bool = False  # a folder, not a hub id

    @cached_property
    def size(self) -> ModelSize:
        """The sizes of the model by its config alone."""
        return self.architecture.size(self.dtype, self.spec.quantization)

    @property
    def config(self) -> PreTrainedConfig:
        """transformers' config, for engines and heads that need it."""
        return self.architecture.config

    @cached_property
    def source(self) -> ModelSource:
        """The model as run.toml holds it."""
        return ModelSource(
            source=self.spec.path,
            dtype=self.dtype,
            engine=self.engine,
            revision=self.revision,
            checksum=self.checksum,
            quantization=self.spec.quantization,
            allowed_keys=self.spec.allowed_keys,
            weights="real" if self.weights == "real" else "dummy",
            changes=self.spec.config,
            chat_template=self.chat_template.label if self.chat_template else None,
            placement=self.spec.placement.label,
            parameters=self.size.parameters,
            forward_bytes=float(self.size.forward_bytes),
            position_bytes=float(self.size.position_bytes),
            shape=self.architecture.shape,
        )

    def copy_of(self, role: str) -> str:
        """Return a key that is equal for roles which share one copy of the weights. Random weights are not shared."""
        revision = self.revision or self.spec.revision  # for another machine, no commit is resolved
        return (
            f"{self.identity} {revision} {self.engine} {self.spec.placement} {'' if self.weights == 'real' else role}"
        )

    @property
    def identity(self) -> Table:
        """The source, revision and checksum. Results with models of equal identity are comparable."""
        return self.source.identity
