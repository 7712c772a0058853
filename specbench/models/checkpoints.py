"""Floor 2: weights and tokenizers from a folder or the hub, whole or not at all.

transformers fills weights that a checkpoint lacks with random numbers, and ignores those that the architecture has no place
for. Here either is an error. No code of a repository is run, and no pickled object but tensors is loaded.
"""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedTokenizerBase

from specbench.data.hub import first_line, missing_model
from specbench.errors import MissingAsset
from specbench.models.quantization import explained, placement

BUFFERS = (  # masks and tables that old checkpoints hold beside their weights: each forward computes them
    "*.attn.bias", "*.attn.masked_bias", "*.attn.causal_mask", "*.attn.attention.bias", "*.attn.attention.masked_bias",
    "*.rotary_emb.inv_freq", "*position_ids",
)  # fmt: skip
MOST_LISTED = 4  # keys of a message
HUB = (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled)
CLIENTS = ("httpx", "httpcore", "requests", "urllib3")  # libraries that hub clients of various versions connect by


def class_of(config: Any) -> Any:
    """The transformers class that a config's model is loaded by."""
    return AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM


def load_tokenizer(role: str, source: str, revision: str | None = None) -> PreTrainedTokenizerBase:
    """A tokenizer. Raises MissingAsset where it is not here, or cannot be read."""
    try:
        return AutoTokenizer.from_pretrained(source, revision=revision, trust_remote_code=False)
    except Exception as error:  # whatever a library makes of a damaged file
        raise unreadable(role, source, error) from None


def load_model(
    role: str,
    source: str,
    config: Any,
    dtype: torch.dtype | str = "auto",
    device: torch.device | None = None,
    revision: str | None = None,
    allowed: Iterable[str] = (),
) -> Any:
    """A model with all of its weights, in transformers' form.

    `allowed` are patterns (`lm_head.*`) of weights that may be missing or unexpected. Raises MissingAsset where the model is
    not here, cannot be read, or its weights do not fit its config.
    """
    settings = placement(config, device) if device else {}
    try:
        with explained(role, source, config):
            model, found = class_of(config).from_pretrained(
                source,
                config=config,
                revision=revision,
                dtype=dtype,
                trust_remote_code=False,
                weights_only=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are listed, and rejected below
                **settings,
            )
    except MissingAsset:
        raise
    except torch.OutOfMemoryError:
        raise MissingAsset(
            f"model '{role}': {source} does not fit into the memory of {device};"
            " help: use a smaller model, another --dtype, or `quantization` in the pair"
        ) from None
    except Exception as error:  # whatever a library makes of a damaged file
        raise unreadable(role, source, error) from None
    _require_whole(role, source, found, tuple(allowed))
    return model


def unreadable(role: str, source: str, error: Exception) -> MissingAsset:
    """What to say of a checkpoint that a library could not load: not here, or here and damaged."""
    if isinstance(error, UnpicklingError) or "weights_only" in str(error).lower():
        why = "its .bin file holds pickled objects besides tensors, which are not loaded; convert it to safetensors"
    elif isinstance(error, SafetensorError):
        why = f"a safetensors file is damaged or cut short ({first_line(error)}); help: copy or fetch it again"
    elif not Path(source).is_dir() and _is_hubs(error):
        return missing_model(role, source, error)
    else:
        why = f"{type(error).__name__}: {first_line(error)}"
    return MissingAsset(f"model '{role}': {source} cannot be loaded: {why}")


def _is_hubs(error: BaseException | None) -> bool:
    """Whether the hub could not be reached or lacks the file, by the error or by what it was raised from."""
    while error is not None:
        if isinstance(error, HUB) or type(error).__module__.partition(".")[0] in CLIENTS:
            return True
        error = error.__cause__ or error.__context__
    return False


def _require_whole(role: str, source: str, found: dict[str, Any], allowed: tuple[str, ...]) -> None:
    """Raise MissingAsset, listing them, for weights that are missing, unexpected or of another shape."""
    wrong = {
        "missing (they would be random)": _not_in(found["missing_keys"], allowed),
        "of another shape": _not_in((each[0] for each in found["mismatched_keys"]), ()),
        "unexpected": _not_in(found["unexpected_keys"], (*allowed, *BUFFERS)),
    }
    if any(wrong.values()):
        lists = "; ".join(f"{len(keys)} {what}: {_listed(keys)}" for what, keys in wrong.items() if keys)
        raise MissingAsset(
            f"model '{role}': the weights of {source} do not fit its config.json: {lists}\n"
            '  help: get the whole checkpoint, or name the weights that may differ in the pair: allowed_keys = ["PATTERN"]'
        )


def _not_in(keys: Iterable[str], patterns: tuple[str, ...]) -> list[str]:
    return sorted(key for key in keys if not any(fnmatchcase(key, pattern) for pattern in patterns))


def _listed(keys: list[str]) -> str:
    more = f" and {len(keys) - MOST_LISTED} more" if len(keys) > MOST_LISTED else ""
    return ", ".join(keys[:MOST_LISTED]) + more
