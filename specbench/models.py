"""Floor 2: from a pair's description to open sessions.

`find` looks at configs only: revisions, sizes, tokenizers. `load` brings the weights in. `LoadedPair.open` starts one prompt.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from specbench.assets import commit_of, local_checksum, missing_model
from specbench.errors import ConfigError, MissingAsset
from specbench.pair import Pair, folder
from specbench.session import EagerSession, new_cache, window_of

PROBE = "How many apples?\n  Zwölf — 12 + 30 = 42; def f(x):\n\treturn x ** 2"  # tokenizers that agree on it agree


@dataclass(frozen=True)
class Found:
    """One model's source, as far as its config tells: where, at which commit or checksum, how large."""

    source: str
    revision: str | None  # the commit; None: a local folder, which `checksum` identifies
    checksum: str | None
    config: PreTrainedConfig
    dtype: str

    @cached_property
    def parameters(self) -> int:
        """Parameters by the config alone, tied ones once."""
        with torch.device("meta"):
            return sum(p.numel() for p in _kind(self.config).from_config(self.config).parameters())

    def identity(self) -> dict[str, Any]:
        """What makes a result with this model comparable with another."""
        return {"source": self.source, "revision": self.revision, "checksum": self.checksum, "dtype": self.dtype}


def device_of(wish: str) -> torch.device:
    """`auto` is CUDA where there is one. Raises MissingAsset for a CUDA that is not there."""
    if wish == "cuda" and not torch.cuda.is_available():
        raise MissingAsset("no CUDA device here; use --device cpu")
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if wish == "auto" else wish)


def dtype_of(wish: str, device: torch.device) -> str:
    """`auto` is float32 on a CPU and bfloat16 on a GPU."""
    return ("bfloat16" if device.type == "cuda" else "float32") if wish == "auto" else wish


def find(pair: Pair, roles: tuple[str, ...], base: Path, device: torch.device, dtype: str) -> dict[str, Found]:
    """The models of these roles. Raises MissingAsset, saying what to do, where one is not here and cannot be fetched."""
    found = {}
    for role in roles:
        spec = pair.models[role]
        local = folder(spec.path, base)
        source = str(local or spec.path)
        try:
            commit = None if local else commit_of(spec.path, spec.revision or None)
            config = AutoConfig.from_pretrained(source, revision=commit)
        except (OSError, ValueError) as error:
            raise missing_model(role, spec.path, error) from None
        found[role] = Found(
            source=spec.path,
            revision=commit,
            checksum=local_checksum(local) if local else None,
            config=config,
            dtype=dtype_of(dtype if spec.dtype == "auto" else spec.dtype, device),
        )
    kinds = {found[role].config.is_encoder_decoder for role in roles}
    if len(kinds) > 1:
        raise ConfigError("a pair cannot mix encoder-decoder and decoder-only models: " + ", ".join(map(str, roles)))
    return found


class LoadedPair:
    """Weights in memory, one tokenizer, and what all models share: vocabulary, EOS ids, context window."""

    def __init__(self, models: dict[str, PreTrainedModel], tokenizers: dict[str, PreTrainedTokenizerBase]) -> None:
        """Raises ConfigError, naming both, where two roles' tokenizers differ."""
        self.models, self._tokenizers = models, tokenizers
        last = list(models)[-1]
        self.tokenizer = tokenizers[last]
        for role, other in tokenizers.items():
            _require_same(self.tokenizer, other, last, role)
        # Padded embeddings differ within a family: crop to what the tokenizers and all models have.
        rows = [m.get_output_embeddings().weight.shape[0] for m in models.values()]
        self.vocabulary = min(*rows, *(len(t) for t in tokenizers.values()))
        self.encoder_decoder = models[last].config.is_encoder_decoder
        self.eos = frozenset(i for m in models.values() for i in _eos(m)) or frozenset({self.tokenizer.eos_token_id})
        windows = [w for model in models.values() if (w := window_of(model)) is not None]
        self.window = min(windows) if windows else None

    def only(self, roles: tuple[str, ...]) -> "LoadedPair":
        """The pair as if only these roles had been loaded: what others would have shared must not change a cell's numbers."""
        return LoadedPair({r: self.models[r] for r in roles}, {r: self._tokenizers[r] for r in roles})

    def open(self, prompt: list[int]) -> "Models":
        """Fresh sessions for one prompt, as token ids."""
        return Models(self, prompt)


class Models:
    """The sessions of one prompt, opened when first asked for; `ids` is what the sequence starts with."""

    def __init__(self, pair: LoadedPair, prompt: list[int]) -> None:
        self._pair, self._prompt = pair, prompt
        self.sessions: dict[str, EagerSession] = {}
        if pair.encoder_decoder:
            config = next(iter(pair.models.values())).config
            self.ids: list[int] = [config.decoder_start_token_id]
        else:
            self.ids = list(prompt)

    def __getitem__(self, role: str) -> EagerSession:
        if role not in self.sessions:
            source = self._prompt if self._pair.encoder_decoder else None
            self.sessions[role] = EagerSession(self._pair.models[role], self._pair.vocabulary, source)
        return self.sessions[role]


def load(found: dict[str, Found], base: Path, device: torch.device) -> LoadedPair:
    """Bring in weights and tokenizers, each source once. Raises MissingAsset where the hub does not give them."""
    models: dict[str, PreTrainedModel] = {}
    tokenizers: dict[str, PreTrainedTokenizerBase] = {}
    seen: dict[str, str] = {}
    for role, each in found.items():
        same = seen.setdefault(str(each.identity()), role)
        if same != role:
            models[role], tokenizers[role] = models[same], tokenizers[same]
            continue
        source = str(folder(each.source, base) or each.source)
        try:
            tokenizers[role] = AutoTokenizer.from_pretrained(source, revision=each.revision)
            model = _kind(each.config).from_pretrained(source, revision=each.revision, dtype=getattr(torch, each.dtype))
        except (OSError, ValueError, SafetensorError) as error:
            raise missing_model(role, each.source, error) from None
        try:
            new_cache(model)
        except ValueError as error:
            raise ConfigError(f"model '{role}': {error}") from None
        models[role] = model.to(device).eval().requires_grad_(False)
    return LoadedPair(models, tokenizers)


def _kind(config: PreTrainedConfig) -> Any:
    return AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM


def _eos(model: PreTrainedModel) -> list[int]:
    ids = model.generation_config.eos_token_id if model.generation_config else model.config.eos_token_id
    return [] if ids is None else [ids] if isinstance(ids, int) else list(ids)


def _require_same(one: PreTrainedTokenizerBase, two: PreTrainedTokenizerBase, role: str, other: str) -> None:
    """Same base vocabulary and same cuts; tokens added behind the base vocabulary may differ, since they are cropped."""
    shared = min(len(one), len(two))
    a, b = ({i: t for t, i in each.get_vocab().items() if i < shared} for each in (one, two))
    if (
        one.vocab_size != two.vocab_size
        or a != b
        or len({str(t.encode(PROBE, add_special_tokens=False)) for t in (one, two)}) > 1
    ):
        raise ConfigError(
            f"the tokenizers differ: {role} has {one.name_or_path} ({one.vocab_size} tokens), "
            f"{other} has {two.name_or_path} ({two.vocab_size}); models that decode together must share one"
        )
