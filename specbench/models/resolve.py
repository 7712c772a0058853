"""Floor 2: from a pair's description to its models' sources: revisions, sizes, engines. Looks at configs only."""

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedConfig

from specbench.config.pair import HeadSpec, ModelSpec, Pair, folder
from specbench.data.hub import commit_of, first_line, local_checksum, missing_model
from specbench.errors import ConfigError, MissingAsset, hint
from specbench.models import random_weights as dummy
from specbench.models.checkpoints import class_of, unreadable
from specbench.models.engine import can_fuse, refusal
from specbench.models.heads import Provenance
from specbench.models.heads.head import FILE, told_by
from specbench.models.quantization import layers, sizes, stored_as, stored_by, torchao


@dataclass(frozen=True)
class Found:
    """One model's source, as far as its config tells: where, at which commit or checksum, how large."""

    source: str
    revision: str | None  # the commit; None: a local folder, which `checksum` identifies
    checksum: str | None
    config: PreTrainedConfig
    dtype: str
    engine: str = "eager"
    weights: str = "real"
    changes: dict[str, Any] = field(default_factory=dict)  # of a dummy model's architecture
    quantization: str = ""
    allowed_keys: tuple[str, ...] = ()  # patterns of weights that may be missing or unexpected

    @cached_property
    def parameters(self) -> int:
        """Parameters by the config alone, tied ones once."""
        return _sizes(_Key(self.config.to_json_string(), self.config), self.quantization, self.dtype)[0]

    @cached_property
    def traffic(self) -> dict[str, int]:
        """Bytes that a decoding forward has to read at least: of weights, and of the cache for each position that it holds.

        Tables that are only looked up in are not read, nor is an encoder, nor what a decoder makes of its output once; an
        embedding that is the head as well is. Of a quantised matrix it is the bits and the scales.
        """
        size = getattr(torch, self.dtype).itemsize
        forward = _sizes(_Key(self.config.to_json_string(), self.config), self.quantization, self.dtype)[1]
        return {"forward": forward, "position": _cached_numbers(self.config) * size}

    @cached_property
    def shape(self) -> dict[str, int]:
        """What SPRINTER's FLOPs formula needs; of an encoder-decoder model, its decoder's."""
        c = self.config
        layers = getattr(c, "num_decoder_layers", None) or c.num_hidden_layers
        wide = next(
            (w for key in ("intermediate_size", "n_inner", "d_ff", "ffn_dim") if (w := getattr(c, key, None))), None
        )
        return {
            "layers": layers, "d": c.hidden_size, "heads": c.num_attention_heads, "d_ff": wide or 4 * c.hidden_size,
            "vocabulary": c.vocab_size,
        }  # fmt: skip

    def identity(self) -> dict[str, Any]:
        """What makes a result with this model comparable with another."""
        real: dict[str, Any] = {
            "source": self.source,
            "revision": self.revision,
            "checksum": self.checksum,
            "dtype": self.dtype,
        }
        if self.quantization:
            real["quantization"] = self.quantization
        if self.allowed_keys:
            real["allowed_keys"] = list(self.allowed_keys)
        return real if self.weights == "real" else real | {"weights": self.weights, "config": self.changes}


@dataclass(frozen=True)
class _Key:
    """A config that is hashed by its text."""

    text: str
    config: PreTrainedConfig = field(compare=False)


@lru_cache(maxsize=256)
def _sizes(key: _Key, quantization: str, dtype: str) -> tuple[int, int]:
    """Parameters, and bytes that a decoding forward reads of the weights: a suite has many runs of one model."""
    config, size = key.config, getattr(torch, dtype).itemsize
    with torch.device("meta"):
        model = class_of(config).from_config(config)
    head, tables = (
        model.get_output_embeddings().weight,
        [m for m in model.modules() if isinstance(m, torch.nn.Embedding)],
    )
    looked_up = {id(table.weight) for table in tables if table.weight is not head}
    if config.is_encoder_decoder:
        looked_up |= {id(p) for p in model.get_encoder().parameters() if p is not head}
        once = (".EncDecAttention.k.", ".EncDecAttention.v.")
        looked_up |= {id(p) for name, p in model.named_parameters() if any(word in name for word in once)}
    quantised = sizes(model, quantization or stored_as(config), size)
    weights = (quantised.get(id(p), p.numel() * size) for p in model.parameters() if id(p) not in looked_up)
    return sum(p.numel() for p in model.parameters()), sum(weights)


@dataclass(frozen=True)
class FoundHead:
    """A head's source: where, at which commit or checksum, and what it goes with."""

    spec: HeadSpec
    revision: str | None
    checksum: str | None
    weights: str = "real"
    report: dict[str, Any] = field(default_factory=dict)  # what it says of itself, on texts that it was not trained on
    data: dict[str, Any] = field(default_factory=dict)  # what it was trained on

    def identity(self) -> dict[str, Any]:
        """What makes a result with this head comparable with another."""
        known: dict[str, Any] = {"source": self.spec.path, "kind": self.spec.kind, "base": self.spec.base}
        told = {"report": self.report, "data": self.data}
        known |= {"revision": self.revision, "checksum": self.checksum} | {
            key: value for key, value in told.items() if value
        }
        return known if self.weights == "real" else known | {"weights": self.weights}


def find_heads(pair: Pair, names: tuple[str, ...], base: Path) -> dict[str, FoundHead]:
    """The heads of these names. Raises MissingAsset where one is not here and cannot be fetched."""
    found = {}
    for name in names:
        if name not in pair.heads:
            raise ConfigError(f"this pair has no head '{name}'{hint(name, pair.heads)}")
        spec = pair.heads[name]
        local, commit = folder(spec.path, base), None
        if pair.weights == "real" and not local:
            try:
                commit = commit_of(spec.path, spec.revision or None, "config.json" if spec.kind == "eagle" else FILE)
            except (OSError, ValueError) as error:
                raise missing_model(f"head {name}", spec.path, error) from None
        nowhere = Path(spec.path).is_absolute() or spec.path.count("/") != 1  # and so no hub id
        if pair.weights == "real" and ((local and not local.is_dir()) or (not local and nowhere)):
            raise MissingAsset(f"head '{name}': no folder {spec.path}")
        checksum = local_checksum(local) if local and pair.weights == "real" else None
        told = told_by(local) if local and pair.weights == "real" else Provenance()
        found[name] = FoundHead(spec, commit, checksum, pair.weights, told.report, told.data)
    return found


def device_of(wish: str) -> torch.device:
    """`auto` is CUDA where there is one. Raises MissingAsset for a CUDA that is not there."""
    if wish == "cuda" and not torch.cuda.is_available():
        raise MissingAsset("no CUDA device here; use --device cpu")
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if wish == "auto" else wish)


def dtype_of(wish: str, device: torch.device) -> str:
    """`auto` is float32 on a CPU and bfloat16 on a GPU."""
    return ("bfloat16" if device.type == "cuda" else "float32") if wish == "auto" else wish


def find(
    pair: Pair, roles: tuple[str, ...], base: Path, device: torch.device, dtype: str, engine: str = "auto"
) -> dict[str, Found]:
    """The models of these roles. Raises MissingAsset, saying what to do, where one is not here and cannot be fetched."""
    found = {}
    for role in roles:
        spec = pair.models[role]
        local = folder(spec.path, base)
        own = dtype_of(dtype if spec.dtype == "auto" else spec.dtype, device)
        commit, checksum = None, None
        if pair.weights == "dummy":
            config = _dummy_config(spec, local)
        else:
            source = str(local or spec.path)
            try:
                commit = None if local else commit_of(spec.path, spec.revision or None)
                config = AutoConfig.from_pretrained(source, revision=commit, trust_remote_code=False)
            except Exception as error:  # whatever a library makes of a damaged file
                raise unreadable(role, source, error) from None
            checksum = local_checksum(local) if local else None
        try:
            runs_on = engine_of(engine, config, device, spec.quantization)
        except ValueError as error:
            raise ConfigError(f"--engine {engine}: model '{role}': {error}") from None
        if spec.quantization:
            _require_quantisable(role, spec, config)
        found[role] = Found(
            spec.path,
            commit,
            checksum,
            config,
            own,
            runs_on,
            pair.weights,
            spec.config,
            spec.quantization,
            spec.allowed_keys,
        )
        _require_model(role, found[role])
    kinds = {found[role].config.is_encoder_decoder for role in roles}
    if len(kinds) > 1:
        raise ConfigError("a pair cannot mix encoder-decoder and decoder-only models: " + ", ".join(map(str, roles)))
    return found


def _require_model(role: str, found: Found) -> None:
    """Raise ConfigError where a config describes no model that could decode a token."""
    try:
        smallest = min(found.shape.values())
        if smallest >= 1 and found.parameters and found.weights == "dummy":  # else loading the weights checks the sizes
            _try_forward(found.config)
    except NotImplementedError:  # an operation that has no meta form says nothing about the config
        return
    except Exception as error:  # whatever a library makes of a number that cannot be
        why = f"{type(error).__name__}: {first_line(error)}"
        raise ConfigError(f"model '{role}': the config of {found.source} describes no model: {why}") from None
    if smallest < 1:
        raise ConfigError(f"model '{role}': the config of {found.source} describes no model: {found.shape}")


def _try_forward(config: PreTrainedConfig) -> None:
    """Run two tokens through a model without weights. Raises whatever transformers does for sizes that do not fit."""
    with torch.device("meta"):
        ids = torch.zeros(1, 2, dtype=torch.long)
        model = class_of(config).from_config(config)
        model(input_ids=ids, **({"decoder_input_ids": ids} if config.is_encoder_decoder else {}))


def engine_of(wish: str, config: PreTrainedConfig, device: torch.device, quantization: str = "") -> str:
    """What a model is run by: eager (transformers), lean (ours), graph (ours, as CUDA graphs), or compiled (those, fused).

    `auto` is the fastest that there is for this architecture on this device, but no graph of nf4: whether torchao's unpacking
    can be recorded is not known. Raises ValueError where a wish cannot be met.
    """
    if wish == "eager":
        return wish
    why = refusal(config)
    if wish == "auto":
        graphs = device.type == "cuda" and not config.is_encoder_decoder and quantization != "nf4"
        return "eager" if why else "graph" if graphs else "lean"
    if wish in ("graph", "compiled") and not why:
        if wish == "compiled" and not can_fuse(config):
            why = (
                f"torch.compile is used for Llama, Qwen2 and Mistral, not for {config.model_type}; help: --engine graph"
            )
        elif device.type != "cuda":
            why = "CUDA graphs need a CUDA device; help: --engine lean, or auto"
        elif config.is_encoder_decoder:
            why = "no graphs of encoder-decoder models"
    if why:
        raise ValueError(why)
    return wish


def _require_quantisable(role: str, spec: ModelSpec, config: PreTrainedConfig) -> None:
    """Raises ConfigError for a model that is quantised already, or has nothing to quantise; MissingAsset without torchao."""
    told = f"model '{role}': quantization = '{spec.quantization}'"
    if method := stored_by(config):
        raise ConfigError(f"{told}: {spec.path} is quantised already, by {method}; leave the key out")
    torchao()
    with torch.device("meta"):
        if not layers(class_of(config).from_config(config), spec.quantization):
            kind = config.model_type
            raise ConfigError(
                f"{told}: {kind} has no linear layer of a fitting width (GPT-2's are of a class of its own)"
            )


def _dummy_config(spec: ModelSpec, local: Path | None) -> PreTrainedConfig:
    """A local folder's architecture, or the one that is known of a hub id, with the spec's changes."""
    if local:
        return dummy.architecture_in(local, spec.config)
    return dummy.architecture(spec.path, spec.config)


def _cached_numbers(config: PreTrainedConfig) -> int:
    """Keys and values that a position leaves in the cache, over all layers."""
    text = config.get_text_config(decoder=True)
    layers = getattr(text, "num_decoder_layers", None) or text.num_hidden_layers
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    dim = getattr(text, "d_kv", None) or getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return int(2 * layers * heads * dim)
