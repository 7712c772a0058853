"""Floor 2: from what was found to open sessions. `load` brings the weights in, `LoadedPair.open` starts one prompt."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specbench.config.pair import folder
from specbench.decoding.session import Concurrent, Session, TrainedHead
from specbench.errors import ConfigError
from specbench.machine import hardware
from specbench.models import random_weights as dummy
from specbench.models.checkpoints import load_model, load_tokenizer
from specbench.models.eager_session import EagerSession, new_cache, window_of
from specbench.models.engine import Graphs, GraphSession, LeanSession, Network, network_of
from specbench.models.heads import EagleHead, EagleNetwork, Head
from specbench.models.heads.loader import load_head
from specbench.models.heads.resolve import ResolvedHead
from specbench.models.instrumented import InstrumentedSession
from specbench.models.parallel import StreamSession, Workers
from specbench.models.quantization import quantize, stored_by
from specbench.models.resolve import ResolvedModel
from specbench.models.synthetic_logits import SyntheticDistribution, SyntheticSession

H = TypeVar("H", bound=TrainedHead)
PROBE = "How many apples?\n  Zwölf — 12 + 30 = 42; def f(x):\n\treturn x ** 2"  # tokenizers that agree on it agree


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
        simulated: bool = False,
    ) -> None:
        """Raises ConfigError, naming both, where two roles' tokenizers differ. Made-up models have no tokenizer of theirs."""
        self.models, self._tokenizers = models, tokenizers
        self.networks, self.graphs, self.simulated = networks or {}, graphs or {}, simulated
        self.heads: dict[str, Head] = {}
        self.streams: dict[str, Any] = {}  # of models that run side by side on a GPU, by role
        self.synthetic: dict[str, SyntheticDistribution] = {}
        self.workers: Workers | None = None
        last = list(models)[-1]
        self.tokenizer = tokenizers[last]
        for role, other in tokenizers.items():
            _require_same(self.tokenizer, other, last, role)
        # Padded embeddings differ within a family: crop to what the tokenizers and all models have.
        rows = [m.get_output_embeddings().weight.shape[0] for m in models.values()]
        if simulated and min(rows) < len(self.tokenizer):
            raise ConfigError(
                f"a dummy vocabulary of {min(rows)} is too small for the prompts' {len(self.tokenizer)} tokens"
            )
        self.vocabulary = min(rows) if simulated else min(*rows, *(len(t) for t in tokenizers.values()))
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
            self.simulated,
        )
        if spread is not None:
            pair.synthetic = {role: SyntheticDistribution(pair.vocabulary, i, spread) for i, role in enumerate(roles)}
        pair.workers, pair.heads, pair.streams = self.workers, self.heads, self.streams
        return pair

    def prepare(self, length: int, most: int = 0) -> int:
        """Capture the graphs that sequences of up to `length` tokens and forwards of up to `most` lack; return how many."""
        heads = [each.graphs for each in self.heads.values() if isinstance(each, EagleHead) and each.graphs]
        models = {id(each): each for each in self.graphs.values()}  # roles may share one
        return sum(each.prepare(length, most) for each in models.values()) + sum(each.prepare(length) for each in heads)

    def stream(self, role: str) -> Any:
        """The CUDA stream that a model runs on beside others."""
        if role not in self.streams:
            cuda: Any = torch.cuda
            self.streams[role] = cuda.Stream(self.device)
        return self.streams[role]

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
        return (
            SyntheticSession(session, self.synthetic[role], self.device, source) if role in self.synthetic else session
        )


class Models:
    """The sessions of one prompt, opened when first asked for; `ids` is what the sequence starts with."""

    def __init__(self, pair: LoadedPair, prompt: list[int]) -> None:
        self._pair, self._prompt = pair, prompt
        self.sessions: dict[
            str, Any
        ] = {}  # Session, InstrumentedSession or Concurrent: whatever has `calls` and settles
        if pair.encoder_decoder:
            config = next(iter(pair.models.values())).config
            self.ids: list[int] = [config.decoder_start_token_id]
        else:
            self.ids = list(prompt)

    @property
    def vocabulary(self) -> int:
        size: int = self._pair.vocabulary
        return size

    @property
    def device(self) -> torch.device:
        return self._pair.device

    def head(self, name: str, kind: type[H]) -> H:
        """A head of the pair's. Raises ValueError where it is of another kind."""
        head = self._pair.heads[name]
        if not isinstance(head, kind):
            raise ValueError(f"head '{name}' is a {head.kind} head, not a {kind.kind} one")
        return head

    def track(self, name: str, session: Session) -> None:
        self.sessions[name] = session

    def __getitem__(self, role: str) -> Session:
        if role not in self.sessions:
            self.sessions[role] = self._pair.session(role, self._prompt if self._pair.encoder_decoder else None)
        session: Session = self.sessions[role]
        return session

    def instrumented(self, role: str) -> InstrumentedSession:
        """The transformers model of a role. Raises ValueError where its logits were to be replaced."""
        if role in self._pair.synthetic:
            raise ValueError("transformers' own decoding cannot be given synthetic laws")
        instrumented = self.sessions[role] = InstrumentedSession(self._pair.models[role], self._prompt)
        return instrumented

    def concurrent(self, roles: Sequence[str]) -> list[Concurrent]:
        """Sessions that run at the same time. Raises ValueError where the logits were to be replaced."""
        pair, source = self._pair, self._prompt if self._pair.encoder_decoder else None
        if pair.synthetic:
            raise ValueError("models that run in parallel cannot be given synthetic laws")
        opened: list[Concurrent]
        if pair.device.type == "cuda":
            peers: list[StreamSession] = []
            streams = [pair.stream(role) for role in roles]
            sessions = [pair.session(role, source) for role in roles]
            opened = [StreamSession(each, stream, peers) for each, stream in zip(sessions, streams, strict=True)]
        else:
            assert pair.workers is not None
            opened = [*pair.workers.open(roles, pair.vocabulary, source)]
        self.sessions |= dict(zip(roles, opened, strict=True))
        return opened


def load(
    found: Mapping[str, ResolvedModel],
    base: Path,
    device: torch.device,
    heads: Mapping[str, ResolvedHead] | None = None,
) -> LoadedPair:
    """Bring in weights and tokenizers, each source once, and heads. Raises MissingAsset where the hub does not give them."""
    hardware.configure(device)
    models: dict[str, PreTrainedModel] = {}
    tokenizers: dict[str, PreTrainedTokenizerBase] = {}
    networks: dict[str, Network] = {}
    seen: dict[str, str] = {}
    for role, each in found.items():
        same = seen.setdefault(f"{each.identity} {each.engine}", role)
        if same != role and each.weights == "real":
            models[role], tokenizers[role] = models[same], tokenizers[same]
        else:
            models[role], tokenizers[role] = _loaded_model(role, each, base, device)
        if each.engine != "eager":
            networks[role] = (
                networks[same] if models[role] is models[same] and same in networks else network_of(models[role])
            )
    graphs = {
        role: Graphs(networks[role], device, fused=each.engine == "compiled")
        for role, each in found.items()
        if each.engine in ("graph", "compiled")
    }
    pair = LoadedPair(models, tokenizers, networks, graphs, simulated=any(f.weights != "real" for f in found.values()))
    pair.workers = Workers(found, base)
    for name, head in (heads or {}).items():
        pair.heads[name] = loaded = load_head(name, head, found, base, models[head.spec.base])
        if isinstance(loaded, EagleHead) and head.spec.base in graphs:
            loaded.graphs = Graphs(EagleNetwork(loaded, networks[head.spec.base]), device)
    return pair


def _loaded_model(
    role: str, each: ResolvedModel, base: Path, device: torch.device
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    source = str(folder(each.spec.path, base) or each.spec.path)
    if each.weights == "dummy":
        tokenizer = load_tokenizer(role, str(dummy.TOKENIZERS[each.config.is_encoder_decoder]))
        model = dummy.random_model(each.config, each.dtype, device, role)
    else:
        tokenizer = load_tokenizer(role, source, each.revision or None)
        dtype = getattr(torch, each.dtype)
        model = load_model(role, source, each.config, dtype, device, each.revision or None, each.spec.allowed_keys)
    try:
        new_cache(model)
    except ValueError as error:
        raise ConfigError(f"model '{role}': {error}") from None
    if not stored_by(each.config):  # else it is on its device, and may not be moved
        model = model.to(device)
    model.eval().requires_grad_(False)
    if each.spec.quantization:
        quantize(model, each.spec.quantization)
    return model, tokenizer


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
