"""Loaded models, and the sessions of one prompt over them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, TypeVar

import torch
from transformers import PreTrainedTokenizerBase

from specbench.decoding.method import Earlier, Method
from specbench.decoding.session import UNENDING, Concurrent, Counted, Ends, Session, TrainedHead
from specbench.errors import ConfigError
from specbench.machine.hardware import ForwardCheck
from specbench.models.cached_session import NO_TREES, CachedSession
from specbench.models.checkpoints import is_same_tokenizer, require_same_tokenizer
from specbench.models.engines import LoadedModel
from specbench.models.generation_rules import RuledSession, applicable, processors
from specbench.models.heads import EagleHead, Head
from specbench.models.limited_session import LimitedSession, Reach
from specbench.models.model_runner import checked_model_runner
from specbench.models.parallel import StreamSession, Workers
from specbench.models.placed import MovedSession, numbered, on
from specbench.models.simulated import SyntheticDistribution, SyntheticSession
from specbench.models.switching_session import SwitchingSession
from specbench.models.text_session import TextSession, TokenizerCodec
from specbench.models.transformers_session import InstrumentedSession
from specbench.models.translated_session import TranslatedSession
from specbench.models.vocabulary_map import VocabularyMap, start_of

H = TypeVar("H", bound=TrainedHead)
DRAFTING = "-m sd, or -m sd-text if they share few tokens"  # methods for a draft with another tokenizer


class Window(NamedTuple):
    """The maximum number of tokens in a sequence, None if unlimited, and the model that limits it."""

    length: int | None
    role: str


class LoadedPair:
    """Weights in memory, and what the output is written with: a tokenizer, a vocabulary, EOS ids, a context window.

    They come from the `deciding` models, which define the output distribution: the last model unless `only` names a method. A
    model that only drafts cannot change them. If there are several deciding models, the vocabulary is the union of their
    vocabularies (the intersection, if their logits are combined), and the EOS ids are the union of their EOS ids.

    `device` is the run's, where distributions and random numbers are. `synthetic` holds the distributions of the models whose
    logits are synthetic.
    """

    def __init__(self, models: Mapping[str, LoadedModel], device: torch.device, simulated: bool = False) -> None:
        """Map the vocabularies of models whose tokenizer is another than the target's; they can only draft.

        Models with random weights share one tokenizer.
        """
        self.models, self.device, self.simulated = dict(models), device, simulated
        self.deciding: tuple[str, ...] = (list(models)[-1],)
        self._combines_logits = False
        self.heads: dict[str, Head] = {}
        self.streams: dict[str, Any] = {}  # of models that run concurrently on a GPU, by role
        self.synthetic: dict[str, SyntheticDistribution] = {}
        self.workers: Workers | None = None
        self.translations = {
            role: _map_of(self.tokenizer, model.tokenizer)
            for role, model in self.models.items()
            if not is_same_tokenizer(self.tokenizer, model.tokenizer)
        }
        rows = min(reach.entries for reach in self.reaches.values())
        if simulated and rows < len(self.tokenizer):
            raise ConfigError(
                f"a dummy vocabulary of {rows} is too small for the prompts' {len(self.tokenizer)} tokens"
            )
        self.encoder_decoder = models[self.target].start is not None

    @property
    def target(self) -> str:
        """The last deciding model of the pair, whose tokenizer and chat template are used."""
        return [role for role in self.models if role in self.deciding][-1]

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self.models[self.target].tokenizer

    @cached_property
    def reaches(self) -> dict[str, Reach]:
        """What each model can read and write."""
        return {
            role: Reach(role, model.embedded, model.vocabulary, model.window) for role, model in self.models.items()
        }

    @cached_property
    def vocabulary(self) -> int:
        """V, the number of tokens that can be written: the rows of the LM head, including padding, as in `generate`.

        Simulated models have no meaningful tokens, so V is the smallest of their vocabularies.
        """
        if self.simulated or self.synthetic:
            return min(reach.entries for reach in self.reaches.values())
        rows = [self.reaches[role].entries for role in self.deciding]
        return min(rows) if self._combines_logits else max(rows)

    @property
    def writable(self) -> int:
        """Committed token ids are below this: V, or the largest vocabulary of simulated models, whose V is cut."""
        return max(reach.entries for reach in self.reaches.values()) if self.simulated else self.vocabulary

    @cached_property
    def eos(self) -> frozenset[int]:
        """The EOS ids of the deciding models; none of random weights. Raises ConfigError for an id outside a vocabulary."""
        if self.simulated:  # their vocabulary may be cut, and their outputs have a fixed length
            return frozenset()
        return frozenset(i for role in self.deciding for i in eos_of(role, self.models[role]))

    @property
    def window(self) -> int | None:
        """The smallest context window of the deciding models; None if unlimited."""
        return self.window_of(()).length

    def window_of(self, roles: Iterable[str]) -> Window:
        """Return the smallest context window of the deciding models and of these."""
        windows = [Window(w, role) for role in (*self.deciding, *roles) if (w := self.reaches[role].window) is not None]
        return min(windows, key=lambda window: window.length or 0, default=Window(None, self.target))

    def require_defined(self, label: str, method: Method) -> None:
        """Raise ConfigError if a method combines logits, and one of its models lacks some of the V tokens.

        Raises it too if an engine lacks what the method needs: a model of transformers, or reading draft trees.
        """
        self._require_translatable(label, method)
        try:
            method.require_heads(self.heads)
        except ConfigError as error:
            raise ConfigError(f"{label}: {error}") from None
        for role in method.roles() if method.needs_transformers else ():
            try:
                self.models[role].transformers()
            except ConfigError as error:
                raise ConfigError(f"{label}: model '{role}': {error}") from None
        for test in method.verifications():
            for role in {*test.scorers, test.proposer} & self.models.keys() if test.tree else ():
                if not self.models[role].branches:
                    raise ConfigError(f"{label}: model '{role}': {NO_TREES}")
        lacking = [role for role in method.deciding if self.reaches[role].entries < self.vocabulary]
        if lacking and method.combines_logits:
            raise ConfigError(
                f"{label} combines the logits of {', '.join(method.deciding)}, and '{lacking[0]}' has"
                f" {self.reaches[lacking[0]].entries} of {self.vocabulary} tokens; help: a method whose baseline does too"
            )

    def _require_translatable(self, label: str, method: Method) -> None:
        """Raise ConfigError if a method uses a model with another tokenizer for more than drafting chains of tokens."""
        for role in self.translations.keys() & set(method.roles()):
            if method.deciding == (role,):
                raise ConfigError(
                    f"{label}: its output would have the tokens of '{role}', which are not those of '{self.target}'; help: a"
                    " pair with this model as target"
                )
            if method.needs_transformers:
                raise ConfigError(f"{label}: Transformers supports only one tokenizer here; help: {DRAFTING}")
            if role in method.deciding:
                try:
                    require_same_tokenizer(self.tokenizer, self.models[role].tokenizer, self.target, role)
                except ConfigError as error:
                    raise ConfigError(f"{label}: {error}; help: {DRAFTING}") from None
            is_base = any(getattr(self.heads.get(name), "base", "") == role for name in method.heads)
            if is_base or not method.only_drafts_chains(role):
                raise ConfigError(
                    f"{label}: model '{role}' has another tokenizer than '{self.target}', so it can only draft chains of"
                    f" tokens; help: {DRAFTING}"
                )

    def is_elsewhere(self, role: str) -> bool:
        """Return whether a model is on another device than the run's."""
        return numbered(self.models[role].device) != numbered(self.device)

    @property
    def packing_seconds(self) -> float:
        """The seconds it took to store matrices in the layouts of the engines."""
        return sum({id(model): model.packing_seconds for model in self.models.values()}.values())

    @property
    def forward_checks(self) -> dict[str, ForwardCheck]:
        """The checks of forwards, by role, for the models that have one."""
        return {role: model.check for role, model in self.models.items() if model.check}

    @property
    def has_graphs(self) -> bool:
        """Whether a model captures CUDA graphs."""
        return any(model.has_graphs for model in self.models.values())

    @property
    def all_devices(self) -> set[torch.device]:
        """Every device that a model is on, and the run's."""
        parts = {device for model in self.models.values() for device in model.devices}
        return {numbered(device) for device in (self.device, *parts)}

    def only(
        self, roles: tuple[str, ...], spreads: Mapping[str, float] | None = None, decided_by: Method | None = None
    ) -> "LoadedPair":
        """Return the pair as if only these roles had been loaded, so that other models cannot change a run's numbers.

        With `spreads`, by role, the logits are synthetic. `decided_by` is the method whose deciding models are used, normally
        the run's baseline. Raises ConfigError if an EOS id is outside their vocabulary.
        """
        pair = LoadedPair({role: self.models[role] for role in roles}, self.device, self.simulated)
        if decided_by:
            pair.deciding = decided_by.deciding
            pair._combines_logits = decided_by.combines_logits
        if spreads is not None:
            if other := next((role for role in roles if role in self.translations), ""):
                raise ConfigError(f"model '{other}' has another tokenizer, which synthetic logits cannot have")
            rows = min(reach.entries for reach in pair.reaches.values())
            pair.synthetic = {role: SyntheticDistribution(rows, i, spreads[role]) for i, role in enumerate(roles)}
        _ = pair.eos  # raises for ids outside the vocabulary
        pair.workers, pair.heads, pair.streams = self.workers, self.heads, self.streams
        return pair

    def prepare(self, length: int, blocks: Iterable[int] = ()) -> int:
        """Capture missing graphs. Returns how many were captured.

        They cover sequences of up to `length` tokens, and forwards of n tokens for each n in `blocks`.
        """
        of_heads = [head.graphs for head in self.heads.values() if isinstance(head, EagleHead) and head.graphs]
        models = {id(model): model for model in self.models.values()}  # roles may share one
        captured = sum(model.prepare(length, blocks) for model in models.values())
        for graphs in of_heads:
            with on(graphs.device):
                captured += graphs.prepare(length)
        return captured

    def stream(self, role: str) -> Any:
        """Return the CUDA stream on which a model runs concurrently with others."""
        if role not in self.streams:
            cuda: Any = torch.cuda
            self.streams[role] = cuda.Stream(self.models[role].device)
        return self.streams[role]

    def open(self, prompt: list[int], ends: Ends = UNENDING, earlier: Earlier | None = None) -> "Models":
        """Return new sessions for one prompt, given as token ids. `earlier` is what the method wrote before.

        `ends` is what ends the output; rules of a generation config may depend on it. Raises ValueError if a deciding model
        lacks one of the prompt's ids.
        """
        for role in self.deciding:
            replace(self.reaches[role], window=None).require(prompt)
        return Models(self, prompt, ends, earlier)

    def session(self, role: str, source: list[int] | None, start: int = 1, ends: Ends = UNENDING) -> Session:
        """Return a fresh session of one model.

        `source` is what an encoder reads, `start` the number of tokens that the sequence starts with.
        """
        model, reach = self.models[role], self.reaches[role]
        if role in self.translations:
            return self._translated(role, source)
        size = min(reach.entries, self.vocabulary)
        cached = CachedSession(checked_model_runner(model.model_runner(size, source), size))
        session: Session = cached
        if model.boundary:
            longer = CachedSession(checked_model_runner(model.model_runner(size, source), size))
            session = SwitchingSession(cached, longer, model.boundary)
        if rules := processors(model.rules, start, source, ends, model.device):
            session = RuledSession(session, rules)
        if size < self.vocabulary or self._needs_limited_session(reach):
            session = LimitedSession(session, reach, self.vocabulary, source, role in self.deciding)
        if self.is_elsewhere(role):
            session = MovedSession(session, model.device, self.device)
        return (
            SyntheticSession(session, self.synthetic[role], self.device, source) if role in self.synthetic else session
        )

    def _translated(self, role: str, source: list[int] | None) -> Session:
        return TranslatedSession(self._own_session(role, source), self.translations[role], self.vocabulary)

    def text_session(self, role: str, source: list[int] | None) -> TextSession:
        """Return a session of a model that drafts text for the target."""
        tokenizer = self.models[role].tokenizer
        ends = self.models[role].eos | ({tokenizer.eos_token_id} - {None})
        own, target = TokenizerCodec(tokenizer), TokenizerCodec(self.tokenizer)
        session, end = self._own_session(role, source), self.tokenizer.eos_token_id
        return TextSession(session, own, target, start_of(tokenizer), ends, end)

    def _own_session(self, role: str, source: list[int] | None) -> Session:
        """Return a session in a model's own ids, without the rules of its generation config."""
        model, reach = self.models[role], self.reaches[role]
        session: Session = CachedSession(checked_model_runner(model.model_runner(reach.entries, source), reach.entries))
        if reach.window is not None:
            session = LimitedSession(session, reach, reach.entries, source, strict=False)
        return MovedSession(session, model.device, self.device) if self.is_elsewhere(role) else session

    def _needs_limited_session(self, reach: Reach) -> bool:
        """Return whether a model can read fewer tokens or shorter sequences than the output may have."""
        is_short = reach.window is not None and (self.window is None or reach.window < self.window)
        return is_short or reach.embedded < max(self.vocabulary, len(self.tokenizer))


@lru_cache(maxsize=4)
def _map_of(target: PreTrainedTokenizerBase, drafter: PreTrainedTokenizerBase) -> VocabularyMap:
    return VocabularyMap(target, drafter)


class Models:
    """The sessions of one prompt, opened on first use. `ids` holds the token ids that the sequence starts with."""

    def __init__(
        self, pair: LoadedPair, prompt: list[int], ends: Ends = UNENDING, earlier: Earlier | None = None
    ) -> None:
        self._pair, self._prompt, self._ends = pair, prompt, ends
        self.earlier = earlier or Earlier()
        self.sessions: dict[str, Any] = {}  # Session, InstrumentedSession or Concurrent
        if pair.encoder_decoder:
            start = pair.models[pair.target].start
            assert start is not None
            self.ids: list[int] = [start]
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

    def track(self, name: str, session: Counted) -> None:
        self.sessions[name] = session

    def __getitem__(self, role: str) -> Session:
        if role not in self.sessions:
            self.sessions[role] = self._session(role)
        session: Session = self.sessions[role]
        return session

    def _session(self, role: str) -> Session:
        source = self._prompt if self._pair.encoder_decoder else None
        return self._pair.session(role, source, len(self.ids), self._ends)

    def through_text(self, role: str) -> TextSession:
        """Return a model that drafts text. Raises ValueError if its logits are synthetic, and for an encoder-decoder."""
        if role in self._pair.synthetic or self._pair.encoder_decoder:
            raise ValueError("drafts through text need a decoder with logits of its own")
        session = self.sessions[role] = self._pair.text_session(role, None)
        return session

    def instrumented(self, role: str) -> InstrumentedSession:
        """Return the transformers model of a role. Raises ValueError if its logits are synthetic."""
        if role in self._pair.synthetic:
            raise ValueError("transformers' own decoding cannot use synthetic logits")
        model = self._pair.models[role]
        keys = applicable(model.rules, self._ends, self._pair.encoder_decoder)
        rules = {key: model.rules[key] for key in keys}
        instrumented = self.sessions[role] = InstrumentedSession(model.transformers(), self._prompt, rules)
        return instrumented

    def concurrent(self, roles: Sequence[str]) -> list[Concurrent]:
        """Return sessions that run at the same time. Raises ValueError if logits are synthetic or have rules."""
        pair, source = self._pair, self._prompt if self._pair.encoder_decoder else None
        if pair.synthetic:
            raise ValueError("models that run in parallel cannot use synthetic logits")
        if {pair.models[role].device.type for role in roles} != {pair.device.type}:
            raise ValueError("models that run in parallel must all be on GPUs, or all on the CPU")
        if ruled := next((role for role in roles if pair.models[role].rules), None):
            keys = ", ".join(pair.models[ruled].rules)
            raise ValueError(
                f"models that run in parallel cannot apply the generation config of '{ruled}' ({keys}); help:"
                f" --set pair.models.{ruled}.generation=off"
            )
        opened: list[Concurrent]
        if pair.device.type == "cuda":
            group: list[StreamSession] = []
            streams = [pair.stream(role) for role in roles]
            sessions = [pair.session(role, source) for role in roles]
            opened = [StreamSession(session, stream, group) for session, stream in zip(sessions, streams, strict=True)]
        else:
            assert pair.workers is not None
            opened = [*pair.workers.open({role: pair.reaches[role] for role in roles}, pair.vocabulary, source)]
        self.sessions |= dict(zip(roles, opened, strict=True))
        return opened


def eos_of(role: str, model: LoadedModel) -> frozenset[int]:
    """Return the EOS ids with which a model ends an output. Raises ConfigError for an id that it cannot write."""
    for id_ in sorted(model.eos):
        if not 0 <= id_ < model.vocabulary:
            raise ConfigError(
                f"model '{role}': {model.name} has the EOS id {id_}, and {model.vocabulary} tokens;"
                " help: correct eos_token_id in its generation_config.json"
            )
    return model.eos
