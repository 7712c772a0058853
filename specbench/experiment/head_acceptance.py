"""The acceptance of a trained EAGLE head's drafts on texts that it was not trained on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specbench.analysis.acceptance import acceptance_interval
from specbench.analysis.intervals import Estimate
from specbench.config.options import Options
from specbench.config.pair import HeadKind
from specbench.decoding.loop import decode
from specbench.decoding.targets import Last
from specbench.methods.proposers import Eagle
from specbench.methods.speculative import Speculative
from specbench.models.heads import EagleHead
from specbench.models.loader import LoadedPair
from specbench.observer import Observer
from specbench.resolution import selection
from specbench.resolution.methods import Methods
from specbench.training.outputs import limits_of, sampler_of
from specbench.training.texts import Text

MOST_TOKENS = 128  # per output, as in a trial
MOST_TEXTS = 40
NAME = "trained"  # of the head in the loaded pair


@dataclass(frozen=True)
class Drafting:
    """The drafts of a head: the proposer that uses it, and the temperature."""

    proposer: Eagle
    temperature: float


def drafting_of(pair: str, options: Options, base: str, folder: Path) -> Drafting:
    """Return the drafts of a head on a base: those of the method `eagle` on the target, else the default ones at T = 0."""
    default = Drafting(Eagle(head=NAME, base=base), 0.0)
    if base != "target":
        return default
    with_head = replace(options, heads=((f"{HeadKind.eagle.value}@{base}", str(folder)),))
    _, found = selection.read_pair(pair, with_head)
    method = Methods((HeadKind.eagle.value,), found, with_head).groups({})[0][-1]
    proposer = method.method.proposer if isinstance(method.method, Speculative) else None
    return Drafting(proposer, method.temperature) if isinstance(proposer, Eagle) else default


def measure_acceptance(
    pair: LoadedPair, folder: Path, drafting: Drafting, texts: Sequence[Text], observer: Observer
) -> Estimate | None:
    """Decode prompts with the head in a folder and its base, and return the acceptance rate of the drafts.

    This is the quantity that a trial measures: accepted / tested draft tokens, along the base's own outputs. Returns None if
    no token was tested.
    """
    base, head = drafting.proposer.base, EagleHead.read(folder)
    pair.heads[NAME] = head.goes_with(pair.models[base].get_input_embeddings().weight)
    method = Speculative(proposer=replace(drafting.proposer, head=NAME), scorers=(base,), target=Last())
    counts = []
    texts = texts[:MOST_TEXTS]
    with observer.progress("measuring acceptance", len(texts)) as advance:
        for text in texts:
            limits = limits_of(pair, text)
            limits = replace(limits, max_new_tokens=min(limits.max_new_tokens, MOST_TOKENS))
            sampler = sampler_of(pair, text, 0, drafting.temperature)
            rounds = decode(method, pair.open(text.prompt), sampler, limits).rounds
            counts.append((sum(r.accepted for r in rounds), sum(r.tested for r in rounds), str(text.number)))
            advance()
    return acceptance_interval(counts)
