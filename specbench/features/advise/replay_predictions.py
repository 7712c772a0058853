"""Predicted speeds of candidates, from recorded outputs and the costs of forwards."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from specbench.analysis.intervals import Estimate
from specbench.analysis.length_predictions import is_covered
from specbench.analysis.method_records import Records, complete, seconds, token_count
from specbench.analysis.theory import drafting_sizes
from specbench.decoding.method import Method
from specbench.features.advise.candidate_set import TARGET
from specbench.features.advise.candidates import (
    Candidate,
    CandidateResult,
    Costs,
    pilot_costs,
    predicted_speedup,
)
from specbench.features.advise.recordings import LoadPair, OutputKey, Recording, record_outputs
from specbench.methods.proposers import Chain
from specbench.methods.recorded_drafts import Replay, replay_of
from specbench.observer import Observer
from specbench.resolution.run_plan import PlannedRun
from specbench.runs.run_folder import read, timed_forwards


def predict_all(
    load: LoadPair,
    run: PlannedRun,
    methods: Mapping[Candidate, Method],
    pilots: Sequence[Candidate],
    observer: Observer,
) -> list[CandidateResult]:
    """Return all candidates with their predicted speedups over the baseline of a run whose blocks are timed.

    Predictions miss costs that depend on how a method drafts. So each pilot's measured seconds per token are divided by its
    predicted ones, and this ratio corrects candidates with the same kind of draft and the same drafter. Between the draft
    lengths of pilots, the ratio is interpolated: if pilots need 1.1 times the predicted seconds at length 2 and 1.3 times at
    length 6, a candidate with length 4 is predicted to need 1.2 times.

    Args:
        load: Returns the models of the run. It is called if outputs are not recorded yet.
        run: The run.
        methods: The candidates, as methods.
        pilots: Candidates that the run measured. They give the costs, and correct the predictions of candidates that draft
            in the same way.
        observer: Receives progress.
    """
    records = list(read(run.folder))
    base = complete(records, run.spec.baseline)
    rows = {pilot: complete(records, pilot.name) for pilot in pilots}
    costs = _costs(run, base, rows)
    temperature = run.spec.decoding.temperature
    replays = {candidate: _replay_of(candidate, method, temperature) for candidate, method in methods.items()}
    recordings = _recorded(load, run, replays.values(), observer) if costs else []
    of_base, tokens = _seconds_by_output(base, recordings), token_count([recording.record for recording in recordings])
    corrections = defaultdict[tuple[str, str], dict[int, float]](dict)  # by kind and drafter, and by draft length
    out = []
    for candidate in dict.fromkeys((*rows, *methods)):  # pilots first: they correct the others
        replayed = replays[candidate]
        of_round = _costs_for(candidate, replayed, costs)
        if isinstance(of_round, str) or isinstance(replayed, str) or candidate.kind is None:
            out.append(CandidateResult(candidate=candidate, why=str(of_round)))
            continue
        prediction = _predicted(replayed, candidate.kind, of_round, costs, recordings)
        by_length = corrections[candidate.kind, candidate.drafter]
        predicted = sum(prediction.seconds.values()) / tokens if tokens else 0.0
        if rows.get(candidate) and predicted > 0.0:
            by_length[candidate.gamma] = _per_token(rows[candidate]) / predicted
        if by_length:
            prediction = replace(prediction, factor=_interpolated(by_length, candidate.gamma))
        out.append(CandidateResult(candidate=candidate, predicted=prediction.speedup(of_base, of_round, recordings)))
    return out


def _interpolated(by_length: Mapping[int, float], gamma: int) -> float:
    """Return the correction at a draft length, interpolated between measured lengths, and constant outside of them."""
    lengths = sorted(by_length)
    return float(np.interp(gamma, lengths, [by_length[length] for length in lengths]))


def _recorded(load: LoadPair, run: PlannedRun, replays: Iterable[Replay | str], observer: Observer) -> list[Recording]:
    """Return the outputs of a run, with the probabilities by each model and head of the run that a replay needs."""
    needed = {name for replay in replays if isinstance(replay, Replay) for name in replay.drafters}
    drafters = sorted(needed & {*run.spec.pair.models, *run.spec.pair.heads})
    return record_outputs(load, run, drafters, observer)


def _replay_of(candidate: Candidate, method: Method, temperature: float) -> Replay | str:
    """Return how a candidate is replayed, or why it cannot be, or has no cost."""
    replayed = replay_of(method, (TARGET,), temperature)
    if isinstance(replayed, Replay) and candidate.kind is None:
        return "forwards of a head over a tree have no cost"
    return replayed


def _costs_for(candidate: Candidate, replayed: Replay | str, costs: Mapping[str, Costs]) -> Costs | str:
    """Return the costs of a candidate's rounds, or why it has no prediction."""
    if isinstance(replayed, str):
        return replayed
    missing = [name for name in replayed.drafters if name not in costs]
    if missing:
        return f"no method that was run drafts with {missing[0]} alone"
    of_round = costs.get(candidate.drafter, next(iter(costs.values()), None))
    if of_round is None:
        return "no draft model was measured, which predictions need"
    proposer = replayed.method.proposer
    largest = [(proposer.nodes + 1, of_round.verifier.largest)]
    if candidate.kind == "tree":
        largest.append((max(drafting_sizes(proposer.shape or ())[1:], default=1), of_round.largest_of_drafter))
    if isinstance(proposer, Chain):
        largest.append((proposer.proposer.nodes + 1, costs[replayed.drafters[-1]].largest_of_drafter))
    if any(size > known for size, known in largest):
        return "its blocks are larger than the timed ones"
    return of_round


def _costs(run: PlannedRun, base: Records, rows: Mapping[Candidate, Records]) -> dict[str, Costs]:
    """Return the costs of each draft model and head that a run measured, from its first method that has costs.

    Blocks of other pilots with the same drafter have costs too.
    """
    timed, costs = timed_forwards(run.folder), dict[str, Costs]()
    others: dict[str, Records] = {
        pilot.kind: records for pilot, records in rows.items() if pilot.kind and pilot.kind not in ("model", "head")
    }
    for pilot, records in rows.items():
        theory = run.spec.methods[pilot.name].traits.theory
        if (
            pilot.kind in ("model", "head")
            and theory
            and is_covered(theory, records, base)
            and pilot.drafter not in costs
        ):
            more = [
                row
                for other in rows
                if other is not pilot and (other.kind, other.drafter) == (pilot.kind, pilot.drafter)
                for row in rows[other]
            ]
            costs[pilot.drafter] = pilot_costs(theory, records, base, timed, more, others)
    return costs


@dataclass(frozen=True)
class _Prediction:
    """The predicted seconds of a method by output, and the seconds of the target's blocks by size, without correction.

    `factor` corrects the seconds by output. It is measured / predicted seconds of methods that draft in the same way.
    """

    seconds: Mapping[OutputKey, float]
    blocks: Mapping[int, float]
    factor: float = 1.0

    def speedup(self, base: Mapping[OutputKey, float], costs: Costs, recordings: Sequence[Recording]) -> Estimate:
        """Return the predicted speedup over the baseline's seconds by output."""
        ours, theirs = defaultdict[str, float](float), defaultdict[str, float](float)
        for record in (recording.record for recording in recordings):
            key = record.sample, record.repeat
            ours[record.prompt] += self.factor * self.seconds[key]
            theirs[record.prompt] += base[key]
        prompts = [prompt for prompt in ours if ours[prompt] > 0.0]
        return predicted_speedup(
            [theirs[prompt] for prompt in prompts], [ours[prompt] for prompt in prompts], self.blocks, costs.verifier
        )


def _predicted(
    replayed: Replay, kind: str, costs: Costs, of_drafters: Mapping[str, Costs], recordings: Sequence[Recording]
) -> _Prediction:
    """Return the predicted seconds of a method on recorded outputs, at the costs of its drafter."""
    shape, bonus = replayed.method.proposer.shape or (), replayed.method.bonus != "none"
    spent, blocks = dict[OutputKey, float](), defaultdict[int, float](float)
    for recording in recordings:
        rounds = replayed.rounds(recording.output)
        key = recording.record.sample, recording.record.repeat
        if kind == "chain":
            middle = of_drafters[replayed.drafters[-1]]
            spent[key] = costs.seconds_of_chain(rounds, middle, is_lookup=len(replayed.drafters) == 1)
        else:
            spent[key] = costs.seconds(rounds, kind, shape, bonus)
        for k, count in enumerate(rounds.drafted.sum(axis=0)):
            size = max(k + bonus, 1)
            blocks[size] += float(count) * costs.verifier.of(size)
    return _Prediction(spent, blocks)


def _per_token(rows: Records) -> float:
    """Return decoding seconds / tokens."""
    return sum(map(seconds, rows)) / token_count(rows)


def _seconds_by_output(rows: Records, recordings: Sequence[Recording]) -> dict[OutputKey, float]:
    """Return the decoding seconds of each recorded output; at temperature 0, the mean over the repeats of its sample."""
    repeats = defaultdict[str, list[float]](list)
    for record in rows:
        repeats[record.sample].append(seconds(record))
    of_output = {(record.sample, record.repeat): seconds(record) for record in rows}
    greedy = all(recording.record.repeat == 0 for recording in recordings)
    keys = [
        (recording.record.sample, recording.record.repeat)
        for recording in recordings
        if recording.record.sample in repeats
    ]
    return {key: float(np.mean(repeats[key[0]])) if greedy else of_output[key] for key in keys}
