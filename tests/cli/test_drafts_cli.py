"""Chains, SPRINTER, adaptive lengths and the profile of a chain as a user runs them, with the bundled heads."""

import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import tomli_w

from specbench.analysis import method_metrics as d
from specbench.analysis.costs import Origin
from specbench.analysis.number_format import NONE
from specbench.analysis.points import reference_of
from specbench.features.profile.chain_profile import Profile, alone, under
from specbench.features.profile.chain_tables import costs_table, pairs_table, verdicts
from specbench.features.profile.pairings import levels_and_trees, pairings
from specbench.features.suites.suite import read_suite
from specbench.files import write_with_checksum
from specbench.resolution.selection import read_pair
from specbench.runs.record import Record, RoundRecord
from specbench.runs.run_folder import BLOCKS
from tests.fixtures.console import specbench
from tests.fixtures.fabricated import write_run
from tests.fixtures.records import usage_of

ROOT = Path(__file__).parents[2]
QUESTIONS = [
    {"question_id": 1, "category": "writing", "turns": ["Ben has 3 apples.", "And now?"]},
    {"question_id": 2, "category": "math", "turns": ["A box holds 4 pens. How many pens do 3 boxes hold?"]},
]


@pytest.fixture(scope="module")
def chains(tmp_path_factory):
    """One cell of chains on two questions, one of two turns, and what was printed."""
    where = tmp_path_factory.mktemp("chains")
    (where / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS))
    few = ["--repeats", 1, "--max-new-tokens", 24, "--data", "q.jsonl"]
    names = "polybasic,polybasic-model,polybasic-pld,eagle,pld,sd"
    shown = specbench("run", "-m", names, "-p", "tiny-polybasic", "-t", "spec-bench", *few, "--full", cwd=where).stdout
    (folder,) = (where / "results").iterdir()
    return [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()], shown, folder


def test_chains_of_real_models_give_the_targets_tokens(chains):
    """T = 0, float32: every method gives ar's tokens, on both turns."""
    rows, *_ = chains
    assert not any(row["error"] for row in rows)
    plain = {row["sample"]: row["tokens"] for row in rows if row["method"] == "ar"}
    assert set(plain) == {"1", "1.2", "2"}
    for row in rows:
        assert row["tokens"] == plain[row["sample"]], row["method"]


def test_records_hold_every_level(chains):
    """An outer round's draft is what its inner rounds committed; the head's calls are booked under its name."""
    rows, shown, _ = chains
    nested = [row for row in rows if row["method"] == "polybasic"]
    for row in nested:
        assert {"middle", "target", "eagle"} <= set(row["models"])
        for x in row["rounds"]:
            assert sum(inner["tokens"] for inner in x["inner"]) == x["drafted"]
            assert all(inner["proposers"] == ["eagle"] * inner["tested"] for inner in x["inner"])
            assert x["proposers"] == ["middle"] * x["tested"]
    assert "Chains" in shown and "discarded/token" in shown and "5, then at least 8" in shown


def test_the_resolved_config_holds_the_heads(chains):
    _, _, folder = chains
    text = (folder / "run.toml").read_text()
    assert "[pair.heads.eagle]" in text and 'base = "middle"' in text and 'quantization = "int4"' in text


def test_adaptive_lengths_and_sprinter_share_a_table(tmp_path):
    few = ["-n", 5, "--repeats", 1, "--max-new-tokens", 24]
    names = "sprinter,adaedl,specdec++,dsl,confidence,sd"
    over = ["--over", "sprinter.head=['sprinter', 'sprinter-q']"]
    shown = specbench("run", "-m", names, "-p", "tiny", "-t", "gsm8k", *few, *over, "--full", cwd=tmp_path).stdout
    assert "sprinter(head=sprinter-q)" in shown and "tokens/run" in shown
    (summary,) = (json.loads(path.read_text()) for path in tmp_path.glob("results/*/summary.json"))
    rows = {row["method"]: row for row in summary["methods"]}
    assert all(rows[name]["identical_output"] == 1.0 for name in ("adaedl", "specdec++", "dsl", "confidence", "sd"))
    gate = rows["sprinter(head=sprinter)"]
    assert gate["predicted_distance"] is None and gate["over_sd"]["value"] > 0, "the prediction is of T = 1"
    assert gate["papers_gigaflops"] < gate["gigaflops"]
    assert gate["forwards_per_token"]["target"] < 1 and gate["verifier_rate"] > 0.3


def test_a_profile_is_table_one_and_a_verdict(tmp_path):
    """`specbench profile`: forwards, pairs, and whether theory keeps the 4-bit middle, which on a CPU it does not."""
    few = ["-n", 2, "--max-new-tokens", 24, "-t", "gsm8k"]
    shown = specbench("profile", "-p", "tiny-polybasic", *few, cwd=tmp_path).stdout
    assert "M1: target" in shown and "M2 - M3: eagle under middle" in shown
    assert re.search("middle: (keep it|leave it out|not decided by these prompts)", shown)
    wrong = specbench("profile", "-p", "tiny-polybasic", "-m", "sd", "-t", "gsm8k", cwd=tmp_path, code=2)
    assert "-m polybasic" in wrong.stderr


def record(method, **more):
    table = {"method": method, "sample": "0", "repeat": 0, "seed": 0, "order": 0, "decode_seconds": 1.0}
    return Record(**(table | {"prefill_seconds": 0.0} | more))


def usage(*sizes):
    """Forwards by tokens fed: (fed, seconds of each), twenty each."""
    return usage_of({fed: (20, 20 * seconds) for fed, seconds in sizes}, prefill_fed=1)


def rounds(tested, accepted, proposer):
    counts = {"tokens": accepted + 1, "drafted": 5, "tested": tested, "accepted": accepted}
    return [RoundRecord(**counts, proposers=[proposer] * tested)] * 10


def plain(role):
    """The options of plain decoding by a model."""
    return {"name": "autoregressive", "scorers": [role]}


@pytest.mark.parametrize(("middle", "kept"), [(0.2, True), (3.0, False)])
def test_a_profile_keeps_a_cheap_faithful_middle_model_only(tmp_path, middle, kept):
    """The verdict follows the costs: the target 1 s a forward of any size, the middle `middle` s, the drafter 0.05 s."""
    flat = {"target": (1, 1.0), "middle": (1, middle), "draft": (1, 0.05)}
    rows = [record("ar", tokens=[1] * 10, models={"target": usage(flat["target"])})]
    options = {"ar": plain("target"), alone("middle"): plain("middle")}
    rows.append(record(alone("middle"), tokens=[1] * 10, models={"middle": usage(flat["middle"])}))
    for low, high, tested, accepted in (
        ("middle", "target", 5, 5),
        ("draft", "target", 3, 2),
        ("draft", "middle", 5, 4),
    ):
        models = {high: usage((6, flat[high][1])), low: usage(flat[low])}
        proposer = {"name": "model", "model": low}
        options[under(low, high)] = {"name": "speculative", "scorers": [high], "proposer": proposer}
        rows.append(
            record(
                under(low, high), tokens=[1] * 10 * (accepted + 1), models=models, rounds=rounds(tested, accepted, low)
            )
        )
    found = Profile.read(tmp_path, ["target", "middle", "draft"], write_run(tmp_path, rows, options))
    assert found.seconds("target", 6) == 1.0 and found.seconds("middle") == middle
    assert found.pairing("draft", "middle").acceptance == 0.8
    assert ["5.00", "6", "0.800", "1.000"] in [row[1:] for row in pairs_table(found).rows]
    printed = pairs_table(found, {"M2 - M3": 4.36})
    assert [row[-1] for row in printed.rows] == [NONE, NONE, "4.36"] and printed.heads[
        -1
    ] == "mean acceptance length in the paper"
    (verdict,) = verdicts(found)
    assert verdict.text.startswith("middle: not decided by these prompts") and ("keep it" in verdict.text) == kept
    assert "draft length is" in verdict.details


def seconds_of(size: int) -> float:
    """A forward of the target in the next test: 1 s for one token, 0.1 s more for each further one."""
    return 0.9 + 0.1 * size


@pytest.mark.parametrize("is_timed", [True, False])
def test_a_block_read_at_the_ends_of_answers_only_has_no_cost_of_its_own(tmp_path, is_timed):
    """Six quick forwards of 5 tokens beside 40 of 1 and of 6: the cost of 5 comes from the timed ones, or from 6 and 1."""
    by = {1: [40, 40 * seconds_of(1)], 5: [4, 4 * 0.1], 6: [40, 40 * seconds_of(6)]}
    target = replace(usage(), by_fed=by)
    rows = [record("ar", tokens=[1] * 10, models={"target": target, "draft": usage((1, 0.1))})]
    spec = write_run(tmp_path, rows, {"ar": plain("target")})
    if is_timed:
        times = {str(size): [20, 20 * (seconds_of(size) + 1.0)] for size in range(1, 26)}
        write_with_checksum(tmp_path / BLOCKS, {"models": {"target": times}})
    found = Profile.read(tmp_path, ["target", "draft"], spec)
    costs = [found.seconds("target", size) for size in (1, 5, 6)]
    assert costs == pytest.approx([1.0, 2.4 * 1.5 / 2.5, 1.5] if is_timed else [1.0, 1.4, 1.5])
    bases = [found.basis("target", size) for size in (1, 5, 6)]
    assert bases == [(Origin.RUN, 40), (Origin.TIMED, 20) if is_timed else (Origin.BETWEEN, 0), (Origin.RUN, 40)]
    cells = {row[0]: row[1] for row in costs_table(found).rows}
    assert cells["5"] == ("1440.00 (20 timed)" if is_timed else "1400.00 (from other sizes)")
    assert len(cells) == (31 if is_timed else 7), "no cost beyond 1.25 times the largest size"


def test_table_ones_draft_lengths_allow_the_papers_accepted_lengths():
    printed = max(each.value for each in reference_of("polybasic-table1") if each.metric == "accepted length")
    assert printed == 6.26
    for name in ("polybasic-table1", "polybasic-table1-tiny"):
        for line in read_suite(name).grid:
            (gamma,) = line.options.gamma_for("polybasic")
            assert gamma + 1 > printed + 1, "the mean is far from the greatest possible value"


def test_a_suites_profile_times_its_blocks(tmp_path):
    """As `specbench profile` does: the page states for every size from how many forwards its cost is estimated."""
    table = tomllib.loads((ROOT / "configs/suites/polybasic-table1-tiny.toml").read_text())
    table["options"] |= {"limit": 2, "repeats": 1, "max_new_tokens": 24}
    table["grid"] = [{"methods": ["polybasic-model"], "pairs": ["tiny"], "tasks": ["gsm8k"]}]
    (tmp_path / "mine.toml").write_text(tomli_w.dumps(table))
    specbench("run", "--suite", "mine.toml", cwd=tmp_path)
    (file,) = tmp_path.glob("results/*/blocks.json")
    assert {each["25"][0] for each in json.loads(file.read_text())["models"].values()} == {20}
    page = specbench("report", "--suite", "mine.toml", "-f", "md", cwd=tmp_path).stdout
    assert "**Costs of blocks**" in page and "tokens (20 timed forwards)" in page


def test_counters_of_levels_match_a_worked_example():
    """Two outer rounds with inner ones; a run of SPRINTER with three untested tokens."""
    inner = [RoundRecord(tokens=3, drafted=5, tested=3, accepted=2, proposers=["eagle"] * 3)]
    outer = RoundRecord(tokens=4, drafted=6, tested=4, accepted=3, proposers=["middle"] * 4, inner=inner * 2)
    low, high = d.levels([record("x", tokens=[1] * 8, rounds=[outer, outer])])
    assert (low.proposer, low.rounds, low.length, low.acceptance) == ("eagle", 2.0, 3.0, pytest.approx(2 / 3))
    assert (high.proposer, high.rounds, high.length, high.acceptance) == ("middle", 1.0, 4.0, 0.75)
    assert d.discarded_per_token([record("x", tokens=[1] * 8, rounds=[outer, outer])]) == 6 / 8
    counters = {"verifier_calls": 4, "verifier_accepts": 3}
    run = RoundRecord(tokens=5, drafted=4, tested=1, accepted=1, proposers=["draft"], untested=3, counters=counters)
    rows = [record("sprinter", tokens=[1] * 5, rounds=[run])]
    assert (d.average_tokens(rows), d.verifier_rate(rows), d.levels(rows)) == (4.0, 0.75, [])


def test_table_one_has_every_reading_of_the_papers_drafter():
    """A chain, a static tree and a dynamic tree of the head, each under the target and under the middle model."""
    for name, pair in (("polybasic-table1", "vicuna-7b-polybasic"), ("polybasic-table1-tiny", "tiny-polybasic")):
        (line,) = read_suite(name).grid
        levels, trees = levels_and_trees(line.methods)
        methods = pairings(levels, read_pair(pair, line.options)[1], 10, trees)
        assert methods == [
            "middle-alone", "middle-under-target", "eagle-tree-under-target", "eagle2-under-target", "eagle-under-target",
            "eagle-tree-under-middle", "eagle2-under-middle", "eagle-under-middle",
        ]  # fmt: skip
