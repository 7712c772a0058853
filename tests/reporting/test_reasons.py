"""Headlines that a reader may believe: their clock, their reach, and what was changed or contradicted."""

import json
import re
import shutil
from pathlib import Path

import pytest

from specbench.runs.record import RoundRecord, line_of, parse_record
from tests.fixtures.console import specbench

SD = ("run", "-m", "sd", "-p", "tiny", "-t", "gsm8k", "--data", "synthetic")
WRONG_BONUS = '''
from dataclasses import dataclass

from specbench.decoding.session import Session
from specbench.methods.autoregressive import Autoregressive


@dataclass(frozen=True, kw_only=True)
class Shifted(Autoregressive, name="shifted"):
    """Declares the target's distribution, and commits the token after the one that the target chooses."""

    def rounds(self, models, sampler, stop):
        for current in super().rounds(models, sampler, stop):
            yield type(current)([(token + 1) % 200 for token in current.tokens])
'''


def only_run(folder: Path) -> Path:
    (found,) = (folder / "results").iterdir()
    return found


def rewrite(run: Path, change) -> None:
    """Change each record of a run, with a valid checksum."""
    records = [parse_record(line) for line in (run / "samples.jsonl").read_bytes().splitlines(keepends=True)]
    for each in records:
        change(each)
    (run / "samples.jsonl").write_bytes(b"".join(map(line_of, records)))


def conclusion_of(run: Path, *options: str) -> str:
    return " ".join(specbench("report", run, *options, cwd=run.parent).stdout.split())


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> Path:
    """A run of six prompts with three repeats, whose measured load of other programs is removed."""
    folder = tmp_path_factory.mktemp("measured")
    specbench(*SD, "-n", 6, "--repeats", 3, "--max-new-tokens", 24, cwd=folder)
    rewrite(only_run(folder), lambda each: setattr(each, "other_cpu_seconds", 0.0))
    return only_run(folder)


def test_the_headline_of_short_outputs_includes_prefill(tmp_path):
    """Decoding time leaves out each model's first forward, which is most of an output of two tokens."""
    shown = " ".join(specbench(*SD, "-n", 6, "--repeats", 1, "--max-new-tokens", 2, cwd=tmp_path).stdout.split())
    (row,) = [
        each
        for each in json.loads((only_run(tmp_path) / "summary.json").read_text())["methods"]
        if each["method"] == "sd"
    ]
    assert f"{row['end_to_end_speedup']['value']:.2f}x" in shown[shown.index("synthetic) x") :]
    assert "(end to end)" in shown and "(decoding)" not in shown


def test_every_headline_names_its_clock(measured):
    (run,) = json.loads(specbench("report", measured, "-f", "json", cwd=measured.parent).stdout)
    assert f"({run['clock']}" in conclusion_of(measured)


@pytest.mark.parametrize(
    ("busy", "words"), [(0.0, "on this machine"), (1.5, "in this run")], ids=["idle", "another program"]
)
def test_other_programs_limit_the_headline_to_the_run(measured, tmp_path, busy, words):
    (tmp_path / "results").symlink_to(measured.parent)

    def load(each) -> None:
        each.other_cpu_seconds = busy * (each.prefill_seconds + each.decode_seconds)
        each.decode_seconds = 0.01 * len(each.tokens) / (2.0 if each.method == "sd" else 1.0)
        each.prefill_seconds = 0.0

    rewrite(measured, load)
    shown = conclusion_of(measured)
    assert words in shown
    assert ("other programs used" in shown) == ("idle machine" in shown) == bool(busy)


def test_one_repeat_speaks_of_this_run(tmp_path):
    shown = specbench(*SD, "-n", 2, "--repeats", 1, "--max-new-tokens", 12, cwd=tmp_path).stdout
    assert "on this machine" not in shown
    assert "one repeat does not show drift" in " ".join(shown.split()) and "--repeats 3" in shown


def test_a_drifting_speedup_limits_the_headline_to_the_run(measured):
    def drift(each) -> None:
        faster = 2.0 + 0.4 * each.repeat if each.method == "sd" else 1.0
        each.other_cpu_seconds, each.prefill_seconds = 0.0, 0.0
        each.decode_seconds = 0.01 * len(each.tokens) / faster

    rewrite(measured, drift)
    shown = conclusion_of(measured)
    assert "in this run" in shown and "changed by +40.0% from the first repeat to the last" in shown


@pytest.mark.parametrize(("spread", "words"), [(0.05, "on this machine"), (0.3, "in this run")])
def test_a_baseline_whose_time_varies_limits_the_headline_to_the_run(measured, spread, words):
    """Each prompt is slow in another repeat, for both methods, so that neither speeds nor speedups drift."""

    def disturb(each) -> None:
        slow = 1.0 + spread * ((int(each.sample) + each.repeat) % 3)
        each.other_cpu_seconds, each.prefill_seconds = 0.0, 0.0
        each.decode_seconds = 0.01 * len(each.tokens) * slow / (2.0 if each.method == "sd" else 1.0)

    rewrite(measured, disturb)
    shown = conclusion_of(measured)
    assert words in shown
    assert ("the time of ar for the same tokens varied by 23% between repeats" in shown) == (spread == 0.3)


def test_repeats_that_differ_widen_the_interval(measured):
    """The interval over prompts alone has no width here: all prompts have one speedup in each repeat."""

    def shift(each) -> None:
        faster = 2.0 + 0.1 * (each.repeat - 1) if each.method == "sd" else 1.0
        each.decode_seconds, each.prefill_seconds = 0.01 * len(each.tokens) / faster, 0.0

    rewrite(measured, shift)
    (run,) = json.loads(specbench("report", measured, "-f", "json", cwd=measured.parent).stdout)
    speedup = next(each for each in run["methods"] if each["method"] == "sd")["speedup"]
    assert speedup["high"] / speedup["low"] > 1.1


def test_equal_prompts_count_as_one(tmp_path):
    row = {"question": "Tom has 3 apples and buys 4 more. How many apples does Tom have?", "answer": "#### 7"}
    (tmp_path / "same.jsonl").write_text("".join(json.dumps(row) + "\n" for _ in range(6)))
    few = ("-t", "gsm8k", "--data", "same.jsonl", "--repeats", 1, "--max-new-tokens", 8)
    shown = specbench("run", "-m", "sd", "-p", "tiny", *few, cwd=tmp_path).stdout
    assert "Only 1 of 6 prompts are different" in " ".join(shown.split())
    summary = json.loads((only_run(tmp_path) / "summary.json").read_text())
    assert [each["prompts"] for each in summary["methods"]] == [1, 1]
    assert summary["methods"][1]["speedup"]["low"] is None


def test_wrong_greedy_tokens_contradict_a_declared_distribution(tmp_path):
    (tmp_path / "shifted.py").write_text(WRONG_BONUS)
    (tmp_path / "shifted.toml").write_text(
        'description = "wrong"\nbaseline = "ar"\nname = "shifted"\nscorers = "target"\ntarget = { name = "last" }\n'
    )
    command = ("run", "-m", "shifted.toml,sd", "-p", "tiny", "-t", "gsm8k", "--data", "synthetic", "-n", 2)
    done = specbench(*command, "--plugin", "shifted.py", "--max-new-tokens", 12, "--repeats", 1, cwd=tmp_path)
    shown = " ".join(done.stdout.split())
    assert "contradicted" in shown
    assert "shifted is declared lossless, but" in shown and "specbench verify -m shifted" in shown
    methods = {
        each["method"]: each for each in json.loads((only_run(tmp_path) / "summary.json").read_text())["methods"]
    }
    assert methods["shifted"]["wrong_tokens"] > 0 == methods["sd"]["wrong_tokens"]


def test_an_imported_run_is_not_of_this_machine(measured, tmp_path):
    rewrite(
        measured, lambda each: setattr(each, "decode_seconds", 0.01 * len(each.tokens) / (1 + (each.method == "sd")))
    )
    specbench("archive", "export", measured, "-o", tmp_path / "runs.zip", cwd=tmp_path)
    specbench("archive", "import", "runs.zip", cwd=tmp_path)
    shown = conclusion_of(tmp_path / "imported" / measured.name)
    assert "on the machine of the archive" in shown and "on this machine" not in shown


def test_the_break_even_point_is_a_sentence_and_a_picture(measured, tmp_path):
    assert "at an acceptance rate of" in conclusion_of(measured)
    specbench("report", measured, "-f", "md", "--plots", tmp_path, cwd=tmp_path)
    assert list(tmp_path.glob("*break-even*"))


def test_the_winner_of_each_kind_is_named_over_each_baseline(tmp_path):
    """Lossless methods run at T = 0 by default, others at T = 1, and an ensemble's baseline is its own decoding."""
    few = ("-p", "tiny", "-t", "gsm8k", "--data", "synthetic", "-n", 2, "--repeats", 1, "--max-new-tokens", 8)
    specbench("run", "-m", "sd,pld,adaedl,lossy,cascade-opt,we-se,we-sd", *few, "-o", "runs", cwd=tmp_path)
    shown = " ".join(specbench("report", "runs", cwd=tmp_path).stdout.split())
    named = re.findall(
        r"(\S+) at T = (\d), the fastest (lossless method|method that is not lossless)(?: over (\w+))?,", shown
    )
    methods, temperatures, kinds, over = zip(*named, strict=True)
    assert kinds == ("lossless method", "method that is not lossless", "lossless method") and over == ("", "", "we")
    assert temperatures[:2] == ("0", "1")
    assert methods[0] in ("sd", "pld", "adaedl") and methods[1] in ("lossy", "cascade-opt")
    assert methods[2] in ("we-se", "we-sd")


def unrelated_drafts(record) -> None:
    if record.rounds:
        round_ = RoundRecord(tokens=1, drafted=4, tested=1, accepted=0, proposers=["draft"])
        record.rounds = [round_ for _ in record.tokens]


def slow_blocks(record) -> None:
    usage = record.models["target"]
    for fed, sums in usage.by_fed.items():
        if record.rounds and int(fed) > 1:
            more, sums[1] = 9.0 * sums[1], 10.0 * sums[1]
            usage.seconds += more
            record.decode_seconds += more


def slow_host(record) -> None:
    if record.rounds:
        record.decode_seconds *= 10.0


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (unrelated_drafts, "of the first draft tokens of sd are accepted: check that the drafter or head was trained"),
        (slow_blocks, "verifying several tokens at once causes the largest loss: a factor of 0."),
        (slow_host, "time outside forwards causes the largest loss: a factor of 0."),
    ],
)
def test_a_run_that_was_broken_is_explained_by_its_cause(measured, tmp_path, change, cause):
    broken = tmp_path / measured.name
    shutil.copytree(measured, broken)
    rewrite(broken, change)
    assert cause in conclusion_of(broken)


def test_the_steps_to_the_measured_speedup_end_with_the_measured_ones(measured):
    (run,) = json.loads(specbench("report", measured, "-f", "json", cwd=measured.parent).stdout)
    (row,) = (row for row in run["methods"] if row["method"] == "sd")
    assert row["steps"]["host"] == pytest.approx(row["speedup"]["value"])
    assert row["steps"]["prefill"] == pytest.approx(row["end_to_end_speedup"]["value"])
    assert "From theory to the measured speedup" in conclusion_of(measured, "--full")


def test_a_score_of_zero_shows_an_output_and_what_its_grader_looked_for(tmp_path):
    rows = [{"question": f"{n} + 1?", "answer": f"#### {n + 1000}"} for n in range(2)]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    few = ["--data", "rows.jsonl", "--repeats", 1, "--max-new-tokens", 4]
    shown = " ".join(specbench("run", "-m", "sd", "-p", "tiny", "-t", "gsm8k", *few, cwd=tmp_path).stdout.split())
    (record,) = (
        parse_record(line) for line in (only_run(tmp_path) / "samples.jsonl").read_bytes().splitlines(True)[:1]
    )
    wrote = " ".join(record.text.split())
    assert f'For example, ar wrote "{wrote}", where the reference is "1000" (exact_match|extract:first-####' in shown
