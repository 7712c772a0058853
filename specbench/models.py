"""Floor 2: from a pair's description to open sessions.

`find` looks at configs only: revisions, sizes, tokenizers. `load` brings the weights in. `LoadedPair.open` starts one prompt.
"""

from dataclasses import dataclass, field
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

from specbench import dummy
from specbench.assets import commit_of, local_checksum, missing_model
from specbench.engine import Graphs, GraphSession, LeanSession, Network, network_of, refusal
from specbench.errors import ConfigError, MissingAsset
from specbench.pair import ModelSpec, Pair, folder
from specbench.session import EagerSession, Session, new_cache, window_of
from specbench.synthetic import Law, SyntheticSession
from specbench.watched import Watched

PROBE = "How many apples?\n  Zwölf — 12 + 30 = 42; def f(x):\n\treturn x ** 2"  # tokenizers that agree on it agree


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

    @cached_property
    def parameters(self) -> int:
        """Parameters by the config alone, tied ones once."""
        with torch.device("meta"):
            return sum(p.numel() for p in _kind(self.config).from_config(self.config).parameters())

    @cached_property
    def traffic(self) -> dict[str, int]:
        """Bytes that a decoding forward has to read at least: of weights, and of the cache for each position that it holds.

        Tables that are only looked up in are not read, nor is an encoder, nor what a decoder makes of its output once; an
        embedding that is the head as well is.
        """
        with torch.device("meta"):
            model = _kind(self.config).from_config(self.config)
        size = getattr(torch, self.dtype).itemsize
        head, tables = (
            model.get_output_embeddings().weight,
            [m for m in model.modules() if isinstance(m, torch.nn.Embedding)],
        )
        looked_up = {id(table.weight) for table in tables if table.weight is not head}
        if self.config.is_encoder_decoder:
            looked_up |= {id(p) for p in model.get_encoder().parameters() if p is not head}
            once = (".EncDecAttention.k.", ".EncDecAttention.v.")
            looked_up |= {id(p) for name, p in model.named_parameters() if any(word in name for word in once)}
        weights = sum(p.numel() for p in model.parameters() if id(p) not in looked_up)
        return {"forward": weights * size, "position": _cached_numbers(self.config) * size}

    def identity(self) -> dict[str, Any]:
        """What makes a result with this model comparable with another."""
        real = {"source": self.source, "revision": self.revision, "checksum": self.checksum, "dtype": self.dtype}
        return real if self.weights == "real" else real | {"weights": self.weights, "config": self.changes}


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
                config = AutoConfig.from_pretrained(source, revision=commit)
            except (OSError, ValueError) as error:
                raise missing_model(role, spec.path, error) from None
            checksum = local_checksum(local) if local else None
        try:
            runs_on = engine_of(engine, config, device)
        except ValueError as error:
            raise ConfigError(f"--engine {engine}: model '{role}': {error}") from None
        found[role] = Found(spec.path, commit, checksum, config, own, runs_on, pair.weights, spec.config)
    kinds = {found[role].config.is_encoder_decoder for role in roles}
    if len(kinds) > 1:
        raise ConfigError("a pair cannot mix encoder-decoder and decoder-only models: " + ", ".join(map(str, roles)))
    return found


def engine_of(wish: str, config: PreTrainedConfig, device: torch.device) -> str:
    """What a model is run by: eager (transformers), lean (ours), or graph (ours, as CUDA graphs).

    `auto` is the fastest that there is for this architecture on this device. Raises ValueError where a wish cannot be met.
    """
    if wish == "eager":
        return wish
    why = refusal(config)
    if wish == "auto":
        return "eager" if why else "graph" if device.type == "cuda" and not config.is_encoder_decoder else "lean"
    if wish == "graph" and not why:
        if device.type != "cuda":
            why = "graphs need a CUDA device"
        elif config.is_encoder_decoder:
            why = "no graphs of encoder-decoder models"
    if why:
        raise ValueError(why)
    return wish


def _dummy_config(spec: ModelSpec, local: Path | None) -> PreTrainedConfig:
    """A local folder's architecture, or the one that is known of a hub id, with the spec's changes."""
    if local:
        return dummy.changed(AutoConfig.from_pretrained(local), spec.config)
    return dummy.architecture(spec.path, spec.config)


class LoadedPair:
    """Weights in memory, one tokenizer, and what all models share: vocabulary, EOS ids, context window.

    `networks` holds the lean form of those that are not run eagerly, `graphs` the CUDA graphs of those that have them, and
    `laws` those whose logits are synthetic.
    """

    def __init__(
        self,
        models: dict[str, PreTrainedModel],
        tokenizers: dict[str, PreTrainedTokenizerBase],
        networks: dict[str, Network] | None = None,
        graphs: dict[str, Graphs] | None = None,
        made_up: bool = False,
    ) -> None:
        """Raises ConfigError, naming both, where two roles' tokenizers differ. Made-up models have no tokenizer of theirs."""
        self.models, self._tokenizers = models, tokenizers
        self.networks, self.graphs, self.made_up = networks or {}, graphs or {}, made_up
        self.laws: dict[str, Law] = {}
        last = list(models)[-1]
        self.tokenizer = tokenizers[last]
        for role, other in tokenizers.items():
            _require_same(self.tokenizer, other, last, role)
        # Padded embeddings differ within a family: crop to what the tokenizers and all models have.
        rows = [m.get_output_embeddings().weight.shape[0] for m in models.values()]
        if made_up and min(rows) < len(self.tokenizer):
            raise ConfigError(
                f"a dummy vocabulary of {min(rows)} is too small for the prompts' {len(self.tokenizer)} tokens"
            )
        self.vocabulary = min(rows) if made_up else min(*rows, *(len(t) for t in tokenizers.values()))
        self.encoder_decoder = models[last].config.is_encoder_decoder
        self.eos = frozenset(i for m in models.values() for i in _eos(m)) or frozenset({self.tokenizer.eos_token_id})
        windows = [w for model in models.values() if (w := window_of(model)) is not None]
        self.window = min(windows) if windows else None

    @property
    def device(self) -> torch.device:
        device: torch.device = next(iter(self.models.values())).device
        return device

    def only(self, roles: tuple[str, ...], spread: float | None = None) -> "LoadedPair":
        """The pair as if only these roles had been loaded: what others would have shared must not change a cell's numbers.

        With a spread, their logits are synthetic.
        """
        pair = LoadedPair(
            {r: self.models[r] for r in roles},
            {r: self._tokenizers[r] for r in roles},
            {r: self.networks[r] for r in roles if r in self.networks},
            {r: self.graphs[r] for r in roles if r in self.graphs},
            self.made_up,
        )
        if spread is not None:
            pair.laws = {role: Law(pair.vocabulary, i, spread) for i, role in enumerate(roles)}
        return pair

    def prepare(self, length: int, most: int) -> None:
        """Capture what graphs there are, for sequences of up to `length` tokens and forwards of up to `most`."""
        for graphs in self.graphs.values():
            graphs.prepare(length, most)

    def open(self, prompt: list[int]) -> "Models":
        """Fresh sessions for one prompt, as token ids."""
        return Models(self, prompt)

    def session(self, role: str, source: list[int] | None) -> Session:
        """A fresh session of one model; `source` is what an encoder reads."""
        model, network = self.models[role], self.networks.get(role)
        session: Session
        if network is None:
            session = EagerSession(model, self.vocabulary, source)
        elif role in self.graphs:
            session = GraphSession(self.graphs[role], self.vocabulary)
        else:
            session = LeanSession(network, self.vocabulary, source)
        return SyntheticSession(session, self.laws[role], self.device) if role in self.laws else session


class Models:
    """The sessions of one prompt, opened when first asked for; `ids` is what the sequence starts with."""

    def __init__(self, pair: LoadedPair, prompt: list[int]) -> None:
        self._pair, self._prompt = pair, prompt
        self.sessions: dict[str, Session] = {}
        if pair.encoder_decoder:
            config = next(iter(pair.models.values())).config
            self.ids: list[int] = [config.decoder_start_token_id]
        else:
            self.ids = list(prompt)

    def __getitem__(self, role: str) -> Session:
        if role not in self.sessions:
            self.sessions[role] = self._pair.session(role, self._prompt if self._pair.encoder_decoder else None)
        return self.sessions[role]

    def watched(self, role: str) -> Watched:
        """The transformers model of a role. Raises ValueError where its logits were to be replaced."""
        if role in self._pair.laws:
            raise ValueError("transformers' own decoding cannot be given synthetic laws")
        watched = self.sessions[role] = Watched(self._pair.models[role], self._prompt)
        return watched


def load(found: dict[str, Found], base: Path, device: torch.device) -> LoadedPair:
    """Bring in weights and tokenizers, each source once. Raises MissingAsset where the hub does not give them."""
    models: dict[str, PreTrainedModel] = {}
    tokenizers: dict[str, PreTrainedTokenizerBase] = {}
    networks: dict[str, Network] = {}
    seen: dict[str, str] = {}
    for role, each in found.items():
        same = seen.setdefault(f"{each.identity()} {each.engine}", role)
        if same != role and each.weights == "real":
            models[role], tokenizers[role] = models[same], tokenizers[same]
        else:
            models[role], tokenizers[role] = _brought(role, each, base, device)
        if each.engine != "eager":
            networks[role] = (
                networks[same] if models[role] is models[same] and same in networks else network_of(models[role])
            )
    graphs = {role: Graphs(networks[role]) for role, each in found.items() if each.engine == "graph"}
    return LoadedPair(models, tokenizers, networks, graphs, made_up=any(f.weights != "real" for f in found.values()))


def _brought(
    role: str, each: Found, base: Path, device: torch.device
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    source = str(folder(each.source, base) or each.source)
    if each.weights == "dummy":
        tokenizer = AutoTokenizer.from_pretrained(dummy.TOKENIZERS[each.config.is_encoder_decoder])
        model = dummy.random_model(each.config, each.dtype, device)
    else:
        try:
            tokenizer = AutoTokenizer.from_pretrained(source, revision=each.revision)
            model = _kind(each.config).from_pretrained(source, revision=each.revision, dtype=getattr(torch, each.dtype))
        except (OSError, ValueError, SafetensorError) as error:
            raise missing_model(role, each.source, error) from None
    try:
        new_cache(model)
    except ValueError as error:
        raise ConfigError(f"model '{role}': {error}") from None
    return model.to(device).eval().requires_grad_(False), tokenizer


def _cached_numbers(config: PreTrainedConfig) -> int:
    """Keys and values that a position leaves in the cache, over all layers."""
    text = config.get_text_config(decoder=True)
    layers = getattr(text, "num_decoder_layers", None) or text.num_hidden_layers
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    dim = getattr(text, "d_kv", None) or getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return int(2 * layers * heads * dim)


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
