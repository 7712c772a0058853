"""Advice on the tiny pair: what is measured and on which prompts, and the recording that predictions rest on."""

import math
import shutil
from dataclasses import replace

import pandas as pd
import pytest

from specbench.config.options import Options
from specbench.config.request import Access
from specbench.errors import ConfigError
from specbench.experiment.loaded_models import LoadedModels
from specbench.experiment.pipeline import MeasureOptions, measure
from specbench.features.advise import advising
from specbench.features.advise.advice_runs import AdviceRequest, AdviceRuns
from specbench.features.advise.advice_work import PARTS
from specbench.features.advise.advising import advise, advise_on
from specbench.features.advise.candidate_set import candidate_of, register_for_advice
from specbench.features.advise.recordings import record_outputs
from specbench.methods.recorded_drafts import Replay, replay_of
from specbench.observer import Observer
from specbench.resolution.resolve import Request, resolve
from specbench.resolution.run_plan import plan_of_folder
from specbench.runs.run_folder import PATHS, read, runs_in, spec_of

OPTIONS = Options(
    data=(("", "synthetic"),), limit=16, max_new_tokens=24, ignore_eos=True, repeats=1, device="cpu", dtype="float32"
)


SHORT = replace(OPTIONS, max_new_tokens=8)


def request_in(folder, **more) -> AdviceRequest:
    return AdviceRequest(pair="tiny", task="gsm8k", options=SHORT, out=folder, seconds=1e9, **more)


def advised_here(request):
    """Advise without the last measurements, in processes of their own, which have a test of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AdviceRuns, "repeated", lambda self, candidate, deadline: [])
        return advise(request)


@pytest.fixture(scope="module")
def advised(tmp_path_factory):
    folder = tmp_path_factory.mktemp("advice")
    return folder, advised_here(request_in(folder))


def test_every_candidate_has_a_prediction_or_a_reason(advised):
    _, advice = advised
    assert {each.candidate.name for each in advice.results} >= {
        "sd-1",
        "sd-6",
        "sd-middle-4",
        "confidence-8",
        "pld",
        "suffix",
    }
    for each in advice.results:
        assert (each.predicted is None) == bool(each.why), each.candidate.name
    assert len(advice.results) == 17
    assert {each.candidate.name for each in advice.results if not each.predicted} == {"dflash-5", "dspark-5"}


def test_the_better_half_is_measured_on_other_prompts(advised):
    folder, advice = advised
    parts = sorted((each.parts for each in advice.results if each.parts), reverse=True)
    assert parts in ([3, 2, 1, 1], [1, 1, 1, 1])  # the latter if none of the four is faster than the target alone
    used = {}
    for run in runs_in(folder):
        spec = spec_of(run)
        used.setdefault(spec.task.data.shard, set()).update(record.sample for record in read(run))
    assert set(used) <= set(map(str, PARTS))
    assert sum(map(len, used.values())) == len(set.union(*used.values()))


def test_the_same_command_decodes_nothing_again(advised):
    folder, advice = advised
    before = {run.name: (run / "samples.jsonl").stat().st_mtime_ns for run in runs_in(folder)}
    again = advised_here(request_in(folder))
    assert {run.name: (run / "samples.jsonl").stat().st_mtime_ns for run in runs_in(folder)} == before
    assert [each.candidate.name for each in again.results] == [each.candidate.name for each in advice.results]
    assert again.gain == advice.gain


def test_no_candidate_is_measured_after_the_time(tmp_path):
    advice = advise(replace(request_in(tmp_path), seconds=0.0))
    assert advice.is_out_of_time and advice.gain is None and not advice.pays
    assert all(each.parts == 0 for each in advice.results)
    measured = {each.candidate.name for each in advice.results if each.measured}
    assert advice.best.candidate.name in measured, "the first part has measured some"


def test_a_pair_without_a_target_is_rejected(tmp_path):
    pair = tmp_path / "pair.toml"
    pair.write_text('[models.draft]\npath = "specbench:tiny/models/draft"\n')
    with pytest.raises(ConfigError, match="needs a pair with a model 'target'"):
        advise(replace(request_in(tmp_path), pair=str(pair)))


DRAFTERS = ["draft", "middle", "eagle"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A greedy run of two methods whose outputs are recorded, its plan, and the recordings."""
    folder = tmp_path_factory.mktemp("recorded")
    model = {"name": "model", "model": "draft"}
    methods = [
        candidate_of("tested-5", {**model, "gamma": 5}),
        candidate_of("tested-tree", {"name": "model-tree", "model": "draft", "widths": [2, 1], "children": "chosen"}),
        candidate_of("tested-pld", {"name": "pld"}),
        candidate_of("tested-suffix", {"name": "suffix"}),
        candidate_of("tested-cache", {"name": "ngram-cache"}),
        candidate_of("tested-eagle", {"name": "eagle", "head": "eagle", "base": "target", "gamma": 4}),
        candidate_of(
            "tested-chain", {"name": "chain", "model": "middle", "threshold": 5, "proposer": {**model, "gamma": 3}}
        ),
    ]
    register_for_advice(methods)
    names = tuple(method.name for method in methods)
    (plan,) = resolve(Request(methods=names, pair="tiny", tasks=("gsm8k",), options=OPTIONS, out=folder)).plans
    measure(plan, plan.runs, LoadedModels(), MeasureOptions(access=Access()), Observer())
    return plan, plan.runs[0], record_outputs(lambda: LoadedModels().of(plan), plan.runs[0], DRAFTERS)


@pytest.mark.parametrize(
    "name", [f"tested-{name}" for name in ("5", "tree", "pld", "suffix", "cache", "eagle", "chain")]
)
def test_greedy_rounds_equal_those_of_the_run(recorded, name):
    _, run, recordings = recorded
    replayed = replay_of(run.methods[name], ("target",), 0.0)
    assert isinstance(replayed, Replay)
    by_sample = {each.record.sample: each for each in recordings}
    compared = 0
    for record in read(run.folder):
        if record.method != name or record.tokens != by_sample[record.sample].record.tokens:
            continue
        found = replayed.rounds(by_sample[record.sample].output)
        drafted, accepted = (sum(getattr(x, key) for x in record.rounds) for key in ("drafted", "accepted"))
        assert (found.rounds, found.accepted_tokens) == (len(record.rounds), accepted)
        assert (
            found.drafted_tokens == drafted or name == "tested-chain"
        )  # drafts go on after a token that will be rejected
        compared += 1
    assert compared >= 10


class Counting(Observer):
    """Counts the outputs that are recorded."""

    total = 0

    def progress(self, label, total, done=0):
        assert label == "recording outputs"
        self.total = total
        return super().progress(label, total, done)


def count_recorded(plan, run, drafters):
    """Record what is missing, and return how many outputs that was."""
    observer = Counting()
    record_outputs(lambda: LoadedModels().of(plan), run, drafters, observer)
    return observer.total


def test_recordings_are_read_again_and_damaged_ones_made_again(recorded):
    plan, run, recordings = recorded
    path = run.folder / PATHS
    assert count_recorded(plan, run, DRAFTERS) == 0
    again = record_outputs(lambda: LoadedModels().of(plan), run, DRAFTERS)
    assert [each.output.tokens for each in again] == [each.output.tokens for each in recordings]
    assert all(math.isclose(a.output.pi.sum(), b.output.pi.sum()) for a, b in zip(again, recordings, strict=True))
    table = pd.read_parquet(path)
    table.drop(columns=["draft:room"]).to_parquet(path)
    for role in ("middle", "draft"):
        assert count_recorded(plan, run, [role]) == len(recordings), (
            "the checksum of each row includes all of its columns"
        )
    table.to_parquet(path)
    path.write_bytes(path.read_bytes()[:-10])
    assert count_recorded(plan, run, ["draft"]) == len(recordings)
    assert count_recorded(plan, run, ["draft"]) == 0
    assert count_recorded(plan, run, ["draft", "middle"]) == len(recordings)


@pytest.mark.slow
def test_methods_that_are_not_lossless_are_measured_and_selected_only_if_the_score_holds(tmp_path):
    options = replace(OPTIONS, ignore_eos=False)
    advice = advise(replace(request_in(tmp_path), options=options, max_drop=0.02))
    lossy = {each.candidate.name: each for each in advice.results if not each.candidate.lossless}
    assert {"lossy", "cascade-chow", "cascade-opt", "cascade-token"} <= set(lossy)
    assert all(each.predicted is None and each.parts and each.measured for each in lossy.values())
    assert advice.best.candidate.lossless or advice.best.keeps_score(0.02)
    assert all(each.speedup > advice.best.speedup for each in advice.faster_but_unproven)


def test_outputs_that_are_not_scored_have_no_score_to_keep(tmp_path):
    with pytest.raises(ConfigError, match="--max-drop needs scores, and gsm8k has none"):
        advise(replace(request_in(tmp_path), max_drop=0.02))


def test_without_a_sandbox_code_has_no_score_to_keep(tmp_path):
    with pytest.raises(ConfigError, match="--allow-code-execution"):
        advise(replace(request_in(tmp_path), task="humaneval", max_drop=0.02))


def test_advice_on_a_run_decodes_nothing(recorded):
    _, run, _ = recorded
    before = (run.folder / "samples.jsonl").read_bytes()
    advice = advise_on(run.folder)
    assert (run.folder / "samples.jsonl").read_bytes() == before
    results = {each.candidate.name: each for each in advice.results}
    assert results["tested-5"].measured and results["tested-5"].predicted
    assert results["sd-2"].predicted and not results["sd-2"].measured
    assert (
        results["eagle-3"].predicted
        and results["polybasic-model"].why == "no method that was run drafts with middle alone"
    )
    assert "eagle-4" not in results  # the run has measured it, as tested-eagle
    assert advice.best.speedup == max(each.speedup for each in advice.results)


def test_a_run_without_a_draft_model_gives_no_costs(tmp_path):
    (plan,) = resolve(Request(methods=("pld",), pair="tiny", tasks=("gsm8k",), options=SHORT, out=tmp_path)).plans
    measure(plan, plan.runs, LoadedModels(), MeasureOptions(access=Access()), Observer())
    with pytest.raises(ConfigError, match="specbench run -m sd"):
        advise_on(plan.runs[0].folder)


def test_a_run_whose_samples_changed_is_rejected(tmp_path):
    rows = tmp_path / "rows.jsonl"
    row = '{{"question": "How much is {0} + {0}?", "answer": "It is {1}.\\n#### {1}"}}\n'
    rows.write_text("".join(row.format(i, 2 * i) for i in range(4)))
    options = replace(OPTIONS, data=(("", str(rows)),), limit=4, overrides=(("task.shots", 0),))
    (plan,) = resolve(Request(methods=("sd",), pair="tiny", tasks=("gsm8k",), options=options, out=tmp_path)).plans
    folder = plan.runs[0].folder
    measure(plan, plan.runs, LoadedModels(), MeasureOptions(access=Access()), Observer())
    assert plan_of_folder(folder).runs[0].spec == plan.runs[0].spec
    rows.write_text("".join(row.format(i, 2 * i) for i in range(1, 5)))
    with pytest.raises(ConfigError, match="the samples of gsm8k are not those of the run"):
        plan_of_folder(folder)


def test_a_folder_must_have_one_run_of_the_same_conditions(recorded, tmp_path, monkeypatch):
    _, run, _ = recorded
    with pytest.raises(ConfigError, match="help: -p PAIR"):
        advise_on(tmp_path / "tiny")
    for name in ("a", "b"):
        shutil.copytree(run.folder, tmp_path / "two" / name)
    with pytest.raises(ConfigError, match="has 2 runs; help: name one of them"):
        advise_on(tmp_path / "two")
    monkeypatch.setattr(advising, "other_conditions", lambda folder: ["threads: 1 | 2"])
    with pytest.raises(ConfigError, match="other conditions"):
        advise_on(run.folder)


class _Messages(Observer):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)


@pytest.mark.slow
def test_the_selected_method_is_measured_again_in_processes_of_its_own(tmp_path):
    """A candidate is no preset file, so its table travels to the processes, whose failure is a message."""
    observer = _Messages()
    parts = AdviceRuns(request_in(tmp_path), observer)
    candidate = candidate_of("sd-2", {"name": "model", "model": "draft", "gamma": 2})
    speedups = parts.repeated(candidate, math.inf)
    folders = runs_in(tmp_path / "again")
    assert [folder.parent.name for folder in folders] == ["1", "2"] and len(speedups) == 2
    assert all(spec_of(folder).task.data.shard == str(PARTS[-1]) for folder in folders)
    unknown = candidate_of("sd-none", {"name": "model", "model": "none", "gamma": 2})
    assert parts.repeated(unknown, math.inf) == []
    assert "sd-none was not measured again in another process: error" in observer.messages[-1]
