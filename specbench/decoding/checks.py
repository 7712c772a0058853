"""Checks of what methods, proposers and rejection rules return. Plugins define them, so results are checked where used."""

import math
from collections.abc import Iterator, Sequence

from torch import Tensor

from specbench.config.construct import OURS
from specbench.decoding.method import Method, Sessions, StopCriteria
from specbench.decoding.rejection import BY_TOKEN, Rejection, Verified, rows_of_tree
from specbench.decoding.round import Round
from specbench.decoding.sampling import Draft, Sampler, children_of, path_to
from specbench.errors import PluginError, exits_as_errors, short_repr

MOST_EMPTY = 1000  # successive rounds without tokens; a method that yields more does not end
MOST_DRAFTED = 2**16  # tokens per round
COUNTS = ("drafted", "tested", "accepted", "untested")


class CheckedRounds:
    """The rounds of a method. `step` computes the next round and can be timed; `require_valid` checks it."""

    def __init__(self, method: Method, rounds: Iterator[Round], vocabulary: int) -> None:
        self._name, self._vocabulary, self._empty = name_of(method), vocabulary, 0
        self._drafted = self._tested = 0
        try:
            self._rounds = iter(rounds)
        except TypeError:
            raise PluginError(
                f"{self._name}: rounds() returned {short_repr(rounds)}, which is not an iterator"
            ) from None

    def step(self) -> Round:
        """Return the next round. Raises StopIteration if there is none."""
        return next(self._rounds)

    def require_valid(self, round_: Round) -> None:
        """Raise PluginError if a method may not yield this round."""
        if fault := fault_in(round_, self._vocabulary):
            raise PluginError(f"{self._name}: {fault}")
        self._drafted += round_.drafted
        self._tested += round_.tested
        if self._tested > self._drafted:
            raise PluginError(
                f"{self._name}: its rounds have tested {self._tested} tokens but drafted only {self._drafted}; help:"
                " Round.drafted counts the proposed tokens"
            )
        self._empty = 0 if round_.tokens else self._empty + 1
        if self._empty > MOST_EMPTY:
            raise PluginError(f"{self._name}: rounds() yielded {MOST_EMPTY} rounds without tokens")


def checked_rounds(method: Method, models: Sessions, sampler: Sampler, stop: StopCriteria) -> Iterator[Round]:
    """Yield the checked rounds of a method, cut where no room is left. Raises PluginError as CheckedRounds does."""
    where, room = f"{name_of(method)}: rounds()", stop.room(models.ids)
    with exits_as_errors(where):
        rounds = CheckedRounds(method, method.rounds(models, sampler, stop), models.vocabulary)
    while room > 0:
        try:
            with exits_as_errors(where):
                round_ = rounds.step()
        except StopIteration:
            return
        rounds.require_valid(round_)
        yield round_.cut(min(room, len(round_.tokens)))
        room -= len(round_.tokens)


def name_of(method: object) -> str:
    """Return how errors name a method: `method 'sd'`."""
    return f"method '{getattr(method, 'name', type(method).__name__)}'"


def fault_in(round_: Round, vocabulary: int) -> str:
    """Return what is wrong with a round over a vocabulary of V tokens; empty if it is valid."""
    if not isinstance(round_, Round):
        return f"yielded {short_repr(round_)}, which is not a Round"
    for name in COUNTS:
        count = getattr(round_, name)
        if type(count) is not int or count < 0:
            return f"Round.{name} = {short_repr(count)} must be an int of at least 0"
    if round_.accepted > round_.tested:
        return f"Round.accepted = {round_.accepted} must be at most Round.tested = {round_.tested}"
    if round_.tested - round_.accepted > 1:
        both = f"Round.tested = {round_.tested} and Round.accepted = {round_.accepted}"
        return f"{both}: a round ends at its first rejected token, so they differ by at most 1"
    if round_.drafted > MOST_DRAFTED:
        return f"Round.drafted = {round_.drafted} must be at most {MOST_DRAFTED}"
    if fault := fault_in_tokens("Round.tokens", round_.tokens, vocabulary):
        return fault
    siblings = round_.siblings
    if not isinstance(siblings, tuple | list) or any(type(count) is not int or count < 1 for count in siblings):
        return f"Round.siblings = {short_repr(siblings)} must be a tuple of ints of at least 1"
    if len(siblings) > round_.tested:
        return f"Round.siblings = {short_repr(siblings)} must have at most one number per tested token, {round_.tested}"
    for name in ("rejected", "inner", "proposers"):
        if not isinstance(value := getattr(round_, name), tuple | list):
            return f"Round.{name} = {short_repr(value)} must be a tuple"
    if fault := fault_in_tokens("Round.rejected", list(round_.rejected), vocabulary):
        return fault
    if round_.untested + round_.accepted > len(round_.tokens):
        accepted = f"untested = {round_.untested} and accepted = {round_.accepted}"
        return f"Round.{accepted}, more than its {len(round_.tokens)} tokens"
    if not isinstance(round_.counters, dict):
        return f"Round.counters = {short_repr(round_.counters)} must be a dict"
    for name, value in round_.counters.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not isinstance(name, str) or not is_number or not math.isfinite(value):
            return f"Round.counters[{short_repr(name)}] = {short_repr(value)} must be a finite number"
    if not all(isinstance(role, str) for role in round_.proposers):
        return f"Round.proposers = {short_repr(round_.proposers)} must be a tuple of roles"
    if round_.at is not None and not (isinstance(round_.at, int | float) and 0.0 <= round_.at < math.inf):
        return f"Round.at = {short_repr(round_.at)} must be a number of seconds"
    return next((fault for inner_round in round_.inner if (fault := fault_in(inner_round, vocabulary))), "")


def require_usage(role: str, usage: object) -> None:
    """Raise PluginError if a session's usage contains a negative or non-finite number."""
    for name, value in vars(usage).items():
        if isinstance(value, int | float) and not 0 <= value < math.inf:
            raise PluginError(f"the session '{role}': Usage.{name} = {short_repr(value)} must be at least 0 and finite")


def require_draft(draft: Draft, room: int, proposer: str) -> None:
    """Raise PluginError if a draft has more than `room` tokens, or does not have one distribution per token.

    Whether the rows sum to 1 is not checked, since that would wait for the device.
    """
    if fault := fault_in_draft(draft, room):
        raise PluginError(f"the proposer '{proposer}': {fault}")


class _CheckedRejection(Rejection):
    """Checks the results of a plugin's rejection rule."""

    def __init__(self, rule: Rejection) -> None:
        self._rule = rule

    def __call__(self, draft: Draft, pi: Tensor, sampler: Sampler, unread: Tensor | None = None) -> Verified:
        out = self._rule(draft, pi, sampler, unread)
        if fault := fault_in_verified(out, draft, pi):
            raise PluginError(f"the rejection rule '{self._rule.name}': {fault}")
        return out

    def after(self, ids: list[int]) -> Rejection:
        return _CheckedRejection(self._rule.after(ids))

    def distance(self, q: Tensor, pi: Tensor) -> Tensor | None:
        return self._rule.distance(q, pi)


def checked_rejection(rule: Rejection | None) -> Rejection:
    """Return the rule (by default token by token). The results of a plugin's rule are checked."""
    if rule is None or type(rule).__module__.startswith(OURS):
        return rule or BY_TOKEN
    return _CheckedRejection(rule)


def fault_in_verified(out: object, draft: Draft, pi: Tensor) -> str:
    """Return what is wrong with a rejection rule's result for a draft; empty if it is valid."""
    if not isinstance(out, Verified):
        return f"{short_repr(out)} is not a Verified"
    k = len(draft.tokens)
    if type(out.accepted) is not int or not 0 <= out.accepted <= k:
        return f"Verified.accepted = {short_repr(out.accepted)} must be an int from 0 to {k}"
    if fault := fault_in_tokens("Verified.tokens", out.tokens, pi.shape[-1]):
        return fault
    if draft.parents is not None:
        path = list(out.path)
        is_path = len(path) == out.accepted and path == path_to(draft.parents, path[-1] if path else -1)
        below = children_of(draft.parents)
        has_row = rows_of_tree(below, len(pi))[path[-1] + 1 if path else 0] >= 0
        is_written = out.tokens[: out.accepted] == [draft.tokens[token] for token in path]
        is_written = is_written and len(out.tokens) == out.accepted + has_row
        if is_path and is_written:
            return ""
        return f"Verified.path = {short_repr(out.path)} must lead to the accepted tokens; at most one may follow"
    count = out.accepted + (out.accepted < len(pi))
    if len(out.tokens) != count or out.tokens[: out.accepted] != draft.tokens[: out.accepted]:
        more = count - out.accepted
        return f"Verified.tokens = {short_repr(out.tokens)} must be the {out.accepted} accepted tokens and {more} after them"
    return ""


def fault_in_draft(draft: Draft, room: int) -> str:
    """Return what is wrong with a draft; empty if it is valid."""
    if not isinstance(draft, Draft):
        return f"{short_repr(draft)} is not a Draft"
    shape: tuple[int, ...] = getattr(draft.probs, "shape", ())
    if len(shape) != 2 or not isinstance(draft.tokens, list) or (draft.tokens and shape[0] != len(draft.tokens)):
        return f"Draft.probs = {short_repr(draft.probs)} must have one row of shape (V,) per token"
    if draft.parents is not None:
        is_tree = len(draft.parents) == len(draft.tokens) and all(-1 <= p < i for i, p in enumerate(draft.parents))
        if not is_tree:
            return f"Draft.parents = {short_repr(draft.parents)} must give every token an earlier one, or -1"
    if draft.depth > room:
        in_a_row = "" if draft.parents is None else " in a row"
        return f"Draft.tokens has {draft.depth} tokens{in_a_row}, and there is room for {room}"
    return fault_in_tokens("Draft.tokens", draft.tokens, shape[1])


def fault_in_tokens(name: str, tokens: Sequence[int], vocabulary: int) -> str:
    """Return what is wrong with token ids over a vocabulary of V tokens; empty if they are valid."""
    if not isinstance(tokens, list):
        return f"{name} = {short_repr(tokens)} must be a list of ints"
    for token in tokens:
        if type(token) is not int:
            return (
                f"{name} has {short_repr(token)} of type {type(token).__name__}; help: int(token), or tensor.tolist()"
            )
        if not 0 <= token < vocabulary:
            return f"{name} has {token}, which is not one of the {vocabulary} tokens"
    return ""
