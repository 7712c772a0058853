"""Weights and tokenizers from a folder or the hub, checked for completeness.

transformers fills weights that a checkpoint lacks with random numbers, and ignores weights that the architecture does not
have. Here both are errors. No code of a repository is run, and no pickled object except tensors is loaded.
"""

import copy
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
)

from specbench.config.construct import Table
from specbench.data.hub import first_line, missing_model
from specbench.errors import ConfigError, MissingAsset, is_out_of_memory
from specbench.models.quantization import explained, placement
from specbench.models.quantized_files import gguf_file as gguf
from specbench.models.quantized_files.gguf_blocks import Gguf
from specbench.models.quantized_files.registry import stored_format
from specbench.models.quantized_files.stored_layers import StoredConfig, StoredTensor, Target, decode, register

BUFFERS = (  # masks and tables in old checkpoints, which each forward recomputes
    "*.attn.bias", "*.attn.masked_bias", "*.attn.causal_mask", "*.attn.attention.bias", "*.attn.attention.masked_bias",
    "*.rotary_emb.inv_freq", "*position_ids",
)  # fmt: skip
MAX_LISTED = 4  # keys in a message
HUB = (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled)
CONSTRUCTION = threading.RLock()  # held while transformers makes a model: it replaces methods of its classes meanwhile
# Tokenizers that split this text alike are considered the same.
PROBE = "How many apples?\n  Zwölf — 12 + 30 = 42; def f(x):\n\treturn x ** 2"
# HTTP libraries of the various hub clients
CLIENTS = ("httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3")


def read_config(source: str | Path, revision: str | None = None, gguf_file: str = "") -> PreTrainedConfig:
    """Return a model's config, or the one of a GGUF file of the source.

    Raises what transformers raises if it cannot be read, or is of an unknown type.
    """
    if gguf_file:
        return _config_of_gguf(source, revision, gguf_file)
    try:
        return AutoConfig.from_pretrained(source, revision=revision, trust_remote_code=False)
    except ValueError as error:
        if "`mimo`" not in str(error):
            raise
        register_for("mimo")
        return AutoConfig.from_pretrained(source, revision=revision, trust_remote_code=False)


def _config_of_gguf(source: str | Path, revision: str | None, name: str) -> PreTrainedConfig:
    """Return the config of a GGUF file, with the types of its weights as its quantization config."""
    gguf.package()
    file = gguf.GgufFile(gguf.located(source, name, revision))
    config: PreTrainedConfig = AutoConfig.from_pretrained(
        source, revision=revision, trust_remote_code=False, gguf_file=name
    )
    with CONSTRUCTION, torch.device("meta"):
        model = class_of(config).from_config(config)
    gguf.complete_config(config, file, model)
    return config


def register_for(model_type: object) -> None:
    """Register a model type with transformers if specbench defines it."""
    if model_type == "mimo":
        from specbench.models import mimo  # imports classes of transformers

        mimo.register()


def class_of(config: Any) -> Any:
    """Return the transformers class that loads models of a config.

    Checkpoints that also read pictures, such as Gemma 3 and Mistral Small 3.1, decode text with all of their weights loaded.
    """
    if config.is_encoder_decoder:
        return AutoModelForSeq2SeqLM
    is_of_text = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING or type(config) not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    return AutoModelForCausalLM if is_of_text else AutoModelForImageTextToText


def load_tokenizer(role: str, source: str, revision: str | None = None, gguf_file: str = "") -> PreTrainedTokenizerBase:
    """Return a tokenizer, or the one of a GGUF file. Raises MissingAsset if it is not here or cannot be read."""
    settings = {"gguf_file": gguf_file} if gguf_file else {}
    try:
        with CONSTRUCTION:
            return AutoTokenizer.from_pretrained(source, revision=revision, trust_remote_code=False, **settings)
    except Exception as error:  # any error that a library raises for a damaged file
        raise unreadable(role, source, error, gguf_file) from None


def is_same_tokenizer(one: PreTrainedTokenizerBase, two: PreTrainedTokenizerBase) -> bool:
    """Return whether two tokenizers have the same base vocabulary and split text alike.

    One of them may have additional tokens after the base vocabulary.
    """
    shared = min(len(one), len(two))
    a, b = ({i: t for t, i in tokenizer.get_vocab().items() if i < shared} for tokenizer in (one, two))
    splits = {str(tokenizer.encode(PROBE, add_special_tokens=False)) for tokenizer in (one, two)}
    return one.vocab_size == two.vocab_size and a == b and len(splits) == 1


def require_same_tokenizer(one: PreTrainedTokenizerBase, two: PreTrainedTokenizerBase, role: str, other: str) -> None:
    """Raise ConfigError unless two tokenizers are the same (`is_same_tokenizer`)."""
    if not is_same_tokenizer(one, two):
        raise ConfigError(
            f"the tokenizers differ: {role} has {one.name_or_path} ({one.vocab_size} tokens), "
            f"{other} has {two.name_or_path} ({two.vocab_size}); models that define one output together must share one"
        )


@dataclass(frozen=True)
class Checkpoint:
    """A model's weights on disk or on the hub.

    `allowed` are patterns (`lm_head.*`) of weights that may be missing or unexpected. `gguf_file` is the name of a GGUF file
    that holds the weights. With `rounded`, products with weights that are quantized already round their input to 8 bits.
    """

    role: str
    source: str
    config: Any
    revision: str | None = None
    allowed: tuple[str, ...] = ()
    gguf_file: str = ""
    rounded: bool = False


def load_model(
    checkpoint: Checkpoint,
    dtype: torch.dtype | str = "auto",
    device: torch.device | None = None,
    placed: Mapping[str, Any] | None = None,
) -> Any:
    """Return a model with all of its weights, in transformers' form. `placed` are arguments that split it over devices.

    The layers of a checkpoint that is quantized already are for `device`, by default the CPU.

    Raises MissingAsset if the model is not here, cannot be read, or its weights do not fit its config.
    """
    role, source, config = checkpoint.role, checkpoint.source, checkpoint.config
    device = device or torch.device("cpu")
    settings = {**placement(config, device), **(placed or {})}
    format = None if placed else stored_format(config, device)
    stored_dtype = dtype if isinstance(dtype, torch.dtype) else torch.float32  # of what is not quantized
    try:
        with CONSTRUCTION, in_memory(role, source, device), explained(role, source, config):
            if format is None:
                model, info = _loaded(checkpoint, dtype, settings)
            elif isinstance(format, Gguf):
                model, info, format = _loaded_gguf(checkpoint, format, stored_dtype)
            else:
                settings = {"quantization_config": StoredConfig(format)}
                model, info = _loaded(_without_method(checkpoint), stored_dtype, settings)
    except MissingAsset:
        raise
    except Exception as error:  # any error that a library raises for a damaged file
        raise unreadable(role, source, error, checkpoint.gguf_file) from None
    _require_complete(checkpoint, info)
    if format is not None:
        try:
            decode(model, format, Target(stored_dtype, device, checkpoint.rounded))
        except (ConfigError, MissingAsset) as error:
            raise type(error)(f"model '{role}': {source}: {error}") from None
    return model


@contextmanager
def in_memory(role: str, source: str, device: torch.device | None) -> Iterator[None]:
    """Raise MissingAsset, one line, if memory is exhausted within this context, which loads, quantizes or packs a model."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise MissingAsset(
            f"model '{role}': {source} does not fit into the memory of {device or 'cpu'} while it is loaded; help: use a"
            " smaller model or another --dtype; a model that `quantization` quantizes is first loaded without it"
        ) from None


def _loaded(checkpoint: Checkpoint, dtype: torch.dtype | str, settings: Mapping[str, Any]) -> tuple[Any, Table]:
    """Return a model that transformers loads, and what it says about missing and unexpected weights."""
    register()
    named = {"gguf_file": checkpoint.gguf_file} if checkpoint.gguf_file else {}
    model, info = class_of(checkpoint.config).from_pretrained(
        checkpoint.source,
        config=checkpoint.config,
        revision=checkpoint.revision,
        dtype=dtype,
        trust_remote_code=False,
        weights_only=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # mismatches are listed, and rejected later
        **named,
        **settings,
    )
    return model, info


def _without_method(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint with a config for which transformers selects no quantizer of its own."""
    config = copy.deepcopy(checkpoint.config)
    del config.quantization_config
    return replace(checkpoint, config=config)


def _loaded_gguf(checkpoint: Checkpoint, format: Gguf, dtype: torch.dtype) -> tuple[Any, Table, Gguf]:
    """Return the model of a GGUF file whose quantized weights are still blocks, what `_loaded` returns, and the format."""
    config = _without_method(checkpoint).config
    file = gguf.GgufFile(gguf.located(checkpoint.source, checkpoint.gguf_file, checkpoint.revision))
    with torch.device("meta"):
        bare = class_of(config).from_config(config)
    format = replace(format, rows=file.rows(bare, format.types))
    state = dict(file.state(bare, format.types, dtype))
    tensors = {name: StoredTensor(tuple(tensor.shape), tensor.dtype) for name, tensor in state.items()}
    register()
    model, info = type(bare).from_pretrained(
        None,
        config=config,
        state_dict=state,
        dtype=dtype,
        output_loading_info=True,
        ignore_mismatched_sizes=True,
        quantization_config=StoredConfig(format, tensors),
    )
    del state
    info["unexpected_keys"] = {*info["unexpected_keys"], *file.unread(bare)}
    model.config.name_or_path = checkpoint.source
    if (factors := file.rope_factors()) is not None:
        gguf.divide_frequencies(model, factors)
    return model, info, format


def unreadable(role: str, source: str, error: Exception, gguf_file: str = "") -> MissingAsset:
    """Return the error for a checkpoint that a library could not load, because it is missing or damaged."""
    if isinstance(error, UnpicklingError) or "weights_only" in str(error).lower():
        why = "its .bin file holds pickled objects besides tensors, which are not loaded; convert it to safetensors"
    elif isinstance(error, SafetensorError):
        why = f"a safetensors file is damaged or cut short ({first_line(error)}); help: copy or fetch it again"
    elif not Path(source).is_dir() and _is_hubs(error):
        return missing_model(role, source, error)
    else:
        why = f"{type(error).__name__}: {first_line(error)}"
        source = f"{source}/{gguf_file}" if gguf_file else source
    return MissingAsset(f"model '{role}': {source} cannot be loaded: {why}")


def _is_hubs(error: BaseException | None) -> bool:
    """Return whether the hub could not be reached or lacks the file, by the error or one of its causes."""
    while error is not None:
        if isinstance(error, HUB) or type(error).__module__.partition(".")[0] in CLIENTS:
            return True
        error = error.__cause__ or error.__context__
    return False


def _require_complete(checkpoint: Checkpoint, info: Mapping[str, Any]) -> None:
    """Raise MissingAsset, listing them, for weights that are missing, unexpected or of another shape."""
    wrong = {
        "missing (they would be random)": _not_in(info["missing_keys"], checkpoint.allowed),
        "of another shape": _not_in((mismatch[0] for mismatch in info["mismatched_keys"]), ()),
        "unexpected": _not_in(info["unexpected_keys"], (*checkpoint.allowed, *BUFFERS)),
    }
    if any(wrong.values()):
        lists = "; ".join(f"{len(keys)} {what}: {_listed(keys)}" for what, keys in wrong.items() if keys)
        what = checkpoint.gguf_file or "its config.json"
        raise MissingAsset(
            f"model '{checkpoint.role}': the weights of {checkpoint.source} do not fit {what}: {lists}\n"
            '  help: get the whole checkpoint, or name the weights that may differ in the pair: allowed_keys = ["PATTERN"]'
        )


def _not_in(keys: Iterable[str], patterns: tuple[str, ...]) -> list[str]:
    """Return the keys, sorted, that match none of the patterns."""
    return sorted(key for key in keys if not any(fnmatchcase(key, pattern) for pattern in patterns))


def _listed(keys: list[str]) -> str:
    """Return the first keys and the number of the others."""
    more = f" and {len(keys) - MAX_LISTED} more" if len(keys) > MAX_LISTED else ""
    return ", ".join(keys[:MAX_LISTED]) + more
