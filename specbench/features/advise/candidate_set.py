"""The methods that `advise` compares: drafters, draft lengths, rules, static trees, chains and lossy methods."""

from collections.abc import Iterable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

from specbench.config.construct import Table
from specbench.config.options import Options
from specbench.config.pair import Pair
from specbench.config.presets import Preset, add, names, preset
from specbench.decoding.method import Proposer
from specbench.errors import ConfigError
from specbench.features.advise.candidates import HEAD, MODEL, Candidate
from specbench.methods.autoregressive import PRESET
from specbench.resolution.methods import method_on
from specbench.resolution.partial_method import BESIDES, PartialMethod
from specbench.vocabulary import Advised

BASELINE, TARGET = PRESET, "target"
DRAFT = "draft"
LENGTHS = (1, 2, 3, 4, 6)
LENGTHS_OF_OTHERS = (4,)  # of drafters besides the first
LENGTHS_OF_HEADS = (3, 5)
OF_BLOCKS = 5  # draft length of block heads, whose blocks are that long at least
PILOT_LENGTH = 4
BLOCKS = (4, 7)  # lengths tested as a whole, which differs from token by token above temperature 0
TREES = ((2, 1, 1),)  # widths by depth, of chosen children
STOPPED = 8  # longest draft of a stop rule


def presets_for(kind: Advised) -> list[str]:
    """Return the presets that `advise` tries in one way."""
    return [name for name in names("method") if preset("method", name).table.get("advise") == kind]


def drafters_of(pair: Pair) -> list[str]:
    """Return the models that may draft for the target, `draft` first; experts of an ensemble do not."""
    others = [role for role in pair.models if role != TARGET and (role == DRAFT or role not in pair.ensemble)]
    return sorted(others, key=lambda role: role != DRAFT)


def register_candidates(pair: Pair, temperature: float) -> list[Candidate]:
    """Register the lossless candidates of a pair as methods, and return them.

    Raises ConfigError for a pair without a target.
    """
    if TARGET not in pair.models:
        raise ConfigError("advise needs a pair with a model 'target'; help: add [models.target] to the pair's file")
    candidates = list(_candidates(pair, temperature))
    register_for_advice(candidates)
    return candidates


def lossy_candidates(pair: Pair, options: Options) -> list[Candidate]:
    """Return the candidates of a pair that change the output's distribution: presets whose models and heads it has."""
    built = {name: method_on(name, pair, options) for name in presets_for(Advised.lossy)}
    return [
        Candidate(
            name, PartialMethod.of_preset(name).table, drafter_of(PartialMethod.of_preset(name).table), lossless=False
        )
        for name, method in built.items()
        if method is not None and method.baseline == BASELINE and method.lossless is not True
    ]


def register_for_advice(candidates: Iterable[Candidate]) -> None:
    """Register candidates as methods under their names. Those that are presets already stay as they are."""
    for name, table in tables_of(candidates).items():
        add("method", Preset(name, Path("advise"), table), listed=False)


def tables_of(candidates: Iterable[Candidate]) -> dict[str, Table]:
    """Return the methods of candidates by name as tables, without those that are presets."""
    presets = names("method")
    return {
        candidate.name: {"description": candidate.name, "baseline": BASELINE, **candidate.table}
        for candidate in candidates
        if candidate.name not in presets
    }


def candidate_of(name: str, proposer: dict[str, Any], **more: Any) -> Candidate:
    """Return speculative decoding for the target with a proposer. `more` are other keys of the method."""
    table = {"name": "speculative", "proposer": proposer, "scorers": TARGET, "target": {"name": "last"}, **more}
    return Candidate(name, table, drafter_of(table))


def drafter_of(table: Table) -> str:
    """Return the model or head that the proposer of a method drafts with, in a chain the innermost one; empty if none."""
    proposer: Any = table.get("proposer")
    while isinstance(proposer, dict) and "proposer" in proposer:
        proposer = proposer["proposer"]
    return str(proposer.get("model", proposer.get("head", ""))) if isinstance(proposer, dict) else ""


def heads_in(table: Table) -> Iterator[str]:
    """Yield the heads that the table of a method names."""
    for key, value in table.items():
        if key == "head":
            yield str(value)
        elif isinstance(value, dict):
            yield from heads_in(value)


def pilots_of(candidates: list[Candidate]) -> list[Candidate]:
    """Return the candidates whose runs give the costs.

    These are each draft model at PILOT_LENGTH and at its shortest length, the first candidate of each head that drafts one
    token after the other, and one candidate of every other kind.
    """
    models = [candidate for candidate in candidates if candidate.kind == MODEL and "rejection" not in candidate.table]
    usual = dict[str, Candidate]()
    for candidate in models:
        if candidate.gamma == PILOT_LENGTH:
            usual.setdefault(candidate.drafter, candidate)
    short = [
        min((candidate for candidate in models if candidate.drafter == pilot.drafter), key=lambda c: c.gamma)
        for pilot in usual.values()
    ]
    heads = {candidate.drafter: candidate for candidate in reversed(candidates) if candidate.kind == HEAD}
    others = {
        candidate.kind: candidate for candidate in reversed(candidates) if candidate.kind not in (None, MODEL, HEAD)
    }
    return [*usual.values(), *short, *reversed(heads.values()), *others.values()]


def _candidates(pair: Pair, temperature: float) -> Iterator[Candidate]:
    drafters = drafters_of(pair)
    for name in presets_for(Advised.model):
        for i, drafter in enumerate(drafters):
            prefix = f"{name}-{drafter}" if i else name
            for gamma in LENGTHS_OF_OTHERS if i else LENGTHS:
                yield _varied(f"{prefix}-{gamma}", name, model=drafter, gamma=gamma)
    first = next(iter(drafters), "")
    if first:
        for name in presets_for(Advised.stopped):
            yield _varied(f"{name}-{STOPPED}", name, model=first, gamma=STOPPED)
    if first and temperature > 0.0:
        for name in presets_for(Advised.block):
            yield from (_varied(f"{name}-{gamma}", name, model=first, gamma=gamma) for gamma in BLOCKS)
    for widths in TREES if first else ():
        name = "tree-" + "-".join(map(str, widths))
        yield candidate_of(name, {"name": "model-tree", "model": first, "widths": list(widths), "children": "chosen"})
    heads = {name: head.kind for name, head in pair.heads.items() if head.base == TARGET and head.drafts}
    for name, kind in heads.items():
        yield from _of_head(name, kind)
    for name in [name for name in presets_for(Advised.chain) if _is_lossless(name, pair)][:1]:
        yield _as_it_is(name)
    others = [] if first or heads else presets_for(Advised.other_lookup)
    for name in (*presets_for(Advised.lookup), *others):
        yield candidate_of(name, deepcopy(preset("method", name).table["proposer"]))
    yield from (_as_it_is(name) for name in presets_for(Advised.lossless) if _is_lossless(name, pair))


def _of_head(head: str, kind: str) -> Iterator[Candidate]:
    """Yield the candidates of a head of the target, with the first preset whose proposer drafts with heads of its kind."""
    for name in presets_for(Advised.head):
        member = Proposer.members[preset("method", name).table["proposer"]["name"]]
        if kind in member.head_kinds:
            for gamma in (OF_BLOCKS,) if member.draft_kind != HEAD else LENGTHS_OF_HEADS:
                yield _varied(f"{head.replace('/', '-')}-{gamma}", name, head=head, base=TARGET, gamma=gamma)
            return


def _varied(name: str, source: str, **changes: Any) -> Candidate:
    """Return a preset with other values of its proposer, as a candidate of another name."""
    table = deepcopy({key: value for key, value in preset("method", source).table.items() if key not in BESIDES})
    table["proposer"] |= changes
    return Candidate(name, table, drafter_of(table))


def _as_it_is(name: str) -> Candidate:
    """Return a preset as a candidate. A draft model without a draft length gets PILOT_LENGTH."""
    table = PartialMethod.of_preset(name).table
    candidate = Candidate(name, table, drafter_of(table))
    if candidate.kind == MODEL and not candidate.gamma:
        return _varied(f"{name}-{PILOT_LENGTH}", name, gamma=PILOT_LENGTH)
    return candidate


def _is_lossless(name: str, pair: Pair) -> bool:
    """Return whether a pair has the models and heads of a preset, and the preset is lossless on it."""
    method = method_on(name, pair, Options())
    return method is not None and method.lossless is True
