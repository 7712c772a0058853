"""The order in which the generations of a run are measured."""

from specbench.config.options import Options
from specbench.config.request import Access, Request
from specbench.experiment.loaded_models import LoadedModels
from specbench.experiment.runner import Trial, decode_missing, open_recorder, rotation
from specbench.files import read_with_checksum
from specbench.machine.hardware import Environment, ForwardCheck
from specbench.resolution.resolve import resolve
from specbench.runs.locking import locked
from specbench.runs.run_folder import ENVIRONMENT, load


def planned(folder):
    options = Options(data=(("", "synthetic"),), limit=3, repeats=2, max_new_tokens=4, device="cpu")
    return resolve(Request(methods=("sd", "pld"), pair="tiny", tasks=("gsm8k",), options=options, out=folder)).plans[0]


def measured(plan, **schedule):
    (run,) = plan.runs
    access = Access()
    with locked([run.folder], access) as locks:
        recorder = open_recorder(run, locks[run.folder], access)
        return [
            (r.method, r.repeat, r.sample) for r in decode_missing(run, LoadedModels().of(plan), recorder, **schedule)
        ]


def test_methods_rotate_from_prompt_to_prompt(tmp_path):
    plan = planned(tmp_path)
    (run,) = plan.runs
    ids = [sample.id for sample in run.data.samples]
    assert [(t.method, t.sample.id) for t in rotation(run) if t.repeat == 0] == [
        ("ar", ids[0]), ("sd", ids[0]), ("pld", ids[0]), ("sd", ids[1]), ("pld", ids[1]), ("ar", ids[1]),
        ("pld", ids[2]), ("ar", ids[2]), ("sd", ids[2]),
    ]  # fmt: skip


def test_another_schedule_is_followed_and_what_it_leaves_out_is_measured_later(tmp_path):
    """Its order is that of the records, and the default schedule completes the run."""
    plan = planned(tmp_path)
    (run,) = plan.runs

    def last_prompt_first(run):
        for sample in reversed(run.data.samples[1:]):
            yield from (Trial(label, 0, sample) for label in run.spec.methods)

    first = measured(plan, schedule=last_prompt_first)
    assert first == [(t.method, t.repeat, t.sample.id) for t in last_prompt_first(run)]
    assert not load(run.folder).complete
    rest = measured(plan)
    assert load(run.folder).complete and not set(first) & set(rest)


def test_the_environment_has_the_bandwidths_and_the_checks_of_the_runs_models(tmp_path):
    (run,) = planned(tmp_path).runs
    check = ForwardCheck(64, 0.002, 0.001)
    with locked([run.folder], Access()) as locks:
        open_recorder(run, locks[run.folder], Access(), {"target": check, "another": check})
    found = read_with_checksum(run.folder / ENVIRONMENT, Environment)
    assert found["forward_checks"] == {"target": check}
    assert found["read_bytes_per_second"] > 0 and found["copy_bytes_per_second"] > 0
