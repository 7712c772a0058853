"""Loaded models, and the sessions of one prompt over them."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specbench.decoding.session import Concurrent, Session, TrainedHead
from specbench.errors import ConfigError
from specbench.models.eager_session import EagerSession, window_of
from specbench.models.engine import Graphs, GraphSession, LeanSession, Network
from specbench.models.heads import EagleHead, Head
from specbench.models.instrumented import InstrumentedSession
from specbench.models.parallel import StreamSession, Workers
from specbench.models.placed import MovedSession, numbered, on
from specbench.models.synthetic_logits import SyntheticDistribution, SyntheticSession

H = TypeVar("H", bound=TrainedHead)
# Tokenizers that split this text alike are taken to be the same.
PROBE = "How many apples?\n  Zwölf — 12 + 30 = 42; def f(x):\n\treturn x ** 2"


class LoadedPair:
    """Weights in memory, one tokenizer, and what all models share: vocabulary, EOS ids, context window.

    `networks` holds the lean form of the models that are not run eagerly, `graphs` the CUDA graphs of those that have
    them, and `synthetic` the distributions of those whose logits are synthetic.
    """

    def __init__(
        self,
        models: dict[str, PreTrainedModel],
        tokenizers: dict[str, PreTrainedTokenizerBase],
        networks: dict[str, Network] | None = None,
        graphs: dict[str, Graphs] | None = None,
        simulated: bool = False,
    ) -> None:
        """Raise ConfigError, naming both, if two roles' tokenizers differ. Models with random weights share one
        tokenizer.
        """
        self.models, self._tokenizers = models, tokenizers
        self.networks, self.graphs, self.simulated = networks or {}, graphs or {}, simulated
        self.heads: dict[str, Head] = {}
        self.streams: dict[str, Any] = {}  # of models that run concurrently on a GPU, by role
        self.synthetic: dict[str, SyntheticDistribution] = {}
        self.workers: Workers | None = None
        self.device: torch.device = next(iter(models.values())).device
        self.devices: dict[str, torch.device] = {}  # of models that are elsewhere than the pair's device, by role
        last = list(models)[-1]
        self.tokenizer = tokenizers[last]
        for role, other in tokenizers.items():
            _require_same(self.tokenizer, other, last, role)
        # Padded embeddings differ within a family; crop to the ids that all tokenizers and models have.
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

    def place(self, device: torch.device, devices: Mapping[str, torch.device]) -> None:
        """Set the run's device, and those of the models."""
        self.device = device
        self.devices = {role: each for role, each in devices.items() if numbered(each) != numbered(device)}

    @property
    def all_devices(self) -> set[torch.device]:
        """Every device that a model is on, and the run's."""
        parts = {torch.device(part) for model in self.models.values() for part in _device_map(model) if part != "disk"}
        return {numbered(each) for each in (self.device, *self.devices.values(), *parts)}

    def only(self, roles: tuple[str, ...], spread: float | None = None) -> "LoadedPair":
        """Return the pair as if only these roles had been loaded, so that other models cannot change a run's numbers.

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
        pair.place(self.device, {role: each for role, each in self.devices.items() if role in roles})
        return pair

    def prepare(self, length: int, max_block: int = 0) -> int:
        """Capture missing graphs for sequences of up to `length` tokens and forwards of up to `max_block`; returns how
        many.
        """
        heads = [each.graphs for each in self.heads.values() if isinstance(each, EagleHead) and each.graphs]
        models = {id(each): each for each in self.graphs.values()}  # roles may share one
        captured = 0
        for each in models.values():
            with on(each.device):
                captured += each.prepare(length, max_block)
        for each in heads:
            with on(each.device):
                captured += each.prepare(length)
        return captured

    def stream(self, role: str) -> Any:
        """Return the CUDA stream on which a model runs concurrently with others."""
        if role not in self.streams:
            cuda: Any = torch.cuda
            self.streams[role] = cuda.Stream(self.devices.get(role, self.device))
        return self.streams[role]

    def open(self, prompt: list[int]) -> "Models":
        """Return fresh sessions for one prompt, given as token ids."""
        return Models(self, prompt)

    def session(self, role: str, source: list[int] | None) -> Session:
        """Return a fresh session of one model; `source` is what an encoder reads."""
        model, network = self.models[role], self.networks.get(role)
        session: Session
        if network is None:
            session = EagerSession(model, self.vocabulary, source, self.devices.get(role, self.device))
        elif role in self.graphs:
            session = GraphSession(self.graphs[role], self.vocabulary)
        else:
            session = LeanSession(network, self.vocabulary, source)
        if role in self.devices:
            session = MovedSession(session, self.devices[role], self.device)
        return (
            SyntheticSession(session, self.synthetic[role], self.device, source) if role in self.synthetic else session
        )


class Models:
    """The sessions of one prompt, opened on first use. `ids` holds the token ids that the sequence starts with."""

    def __init__(self, pair: LoadedPair, prompt: list[int]) -> None:
        self._pair, self._prompt = pair, prompt
        self.sessions: dict[str, Any] = {}  # Session, InstrumentedSession or Concurrent
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
        """Return a head of the pair. Raises ValueError if it is of another kind."""
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
        """Return the transformers model of a role. Raises ValueError if its logits are synthetic."""
        if role in self._pair.synthetic:
            raise ValueError("transformers' own decoding cannot use synthetic logits")
        instrumented = self.sessions[role] = InstrumentedSession(self._pair.models[role], self._prompt)
        return instrumented

    def concurrent(self, roles: Sequence[str]) -> list[Concurrent]:
        """Return sessions that run at the same time. Raises ValueError if logits are synthetic."""
        pair, source = self._pair, self._prompt if self._pair.encoder_decoder else None
        if pair.synthetic:
            raise ValueError("models that run in parallel cannot use synthetic logits")
        if {pair.devices.get(role, pair.device).type for role in roles} != {pair.device.type}:
            raise ValueError("models that run in parallel must all be on GPUs, or all on the CPU")
        opened: list[Concurrent]
        if pair.device.type == "cuda":
            group: list[StreamSession] = []
            streams = [pair.stream(role) for role in roles]
            sessions = [pair.session(role, source) for role in roles]
            opened = [StreamSession(each, stream, group) for each, stream in zip(sessions, streams, strict=True)]
        else:
            assert pair.workers is not None
            opened = [*pair.workers.open(roles, pair.vocabulary, source)]
        self.sessions |= dict(zip(roles, opened, strict=True))
        return opened


def _device_map(model: PreTrainedModel) -> set[Any]:
    """Return the devices that accelerate has put a model's layers on; empty for a model on one device."""
    return set((getattr(model, "hf_device_map", None) or {}).values())


def _eos(model: PreTrainedModel) -> list[int]:
    """Return the EOS ids of a model's generation config."""
    ids = model.generation_config.eos_token_id if model.generation_config else model.config.eos_token_id
    return [] if ids is None else [ids] if isinstance(ids, int) else list(ids)


def _require_same(one: PreTrainedTokenizerBase, two: PreTrainedTokenizerBase, role: str, other: str) -> None:
    """Raise ConfigError unless two tokenizers have the same base vocabulary and split text alike.

    Tokens added after the base vocabulary may differ, since they are cropped.
    """
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
