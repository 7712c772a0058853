"""The sessions of one prompt over the models of a pair."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from specbench.decoding.session import Concurrent, Session, TrainedHead
from specbench.models.instrumented import InstrumentedSession
from specbench.models.parallel import StreamSession

if TYPE_CHECKING:
    from specbench.models.loaded_pair import LoadedPair

H = TypeVar("H", bound=TrainedHead)


class Models:
    """The sessions of one prompt, opened on first use. `ids` holds the token ids that the sequence starts with."""

    def __init__(self, pair: "LoadedPair", prompt: list[int]) -> None:
        self._pair, self._prompt = pair, prompt
        self.sessions: dict[str, Any] = {}  # Session, InstrumentedSession or Concurrent
        if pair.encoder_decoder:
            self.ids: list[int] = [pair.models[pair.target].config.decoder_start_token_id]
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
            opened = [*pair.workers.open({role: pair.reaches[role] for role in roles}, pair.vocabulary, source)]
        self.sessions |= dict(zip(roles, opened, strict=True))
        return opened
