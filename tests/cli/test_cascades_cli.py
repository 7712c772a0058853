"""Cascades, parallel ensembles, sweeps and plugins as a user runs them."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from specbench.config.options import Options
from specbench.config.presets import names, preset
from specbench.decoding.targets import Target
from specbench.errors import ConfigError
from specbench.features.verify.enumeration import examine
from specbench.methods.proposers import DraftModel
from specbench.methods.speculative import Speculative
from specbench.resolution.methods import Methods
from specbench.resolution.plugins import load
from specbench.resolution.selection import read_pair
from tests.fixtures import console

TINY = read_pair("tiny", Options())[1]
CHAINED = read_pair("tiny-polybasic", Options())[1]
SIZES = dict.fromkeys(TINY.models, 1) | {"target": 10, "middle": 8}
DOCS = Path(__file__).parents[2] / "docs"


def pair_of(method):
    """The tiny pair that has what a method needs."""
    if method == "mtp":
        return read_pair("mimo-7b", Options())[1]
    return CHAINED if method.startswith("polybasic") else TINY


def specbench(*arguments, cwd, code=0):
    """What the console script printed, both streams."""
    return "".join(console.specbench(*arguments, cwd=cwd, code=code))


def summaries(where):
    return [json.loads(path.read_text()) for path in sorted((where / "results").glob("*/summary.json"))]


CASCADES = ["cascade-opt", "cascade-chow", "lossy", "token-cascade", "seq-cascade", "oracle-diff", "ar-draft"]


@pytest.fixture(scope="module")
def cascades(tmp_path_factory):
    """One cell of cascades on the encoder-decoder pair, and what was printed."""
    where = tmp_path_factory.mktemp("cascades")
    wanted = [word for name in CASCADES for word in ("-m", name)]
    shown = specbench("run", *wanted, "-p", "tiny-t5", "-t", "wmt", "-n", 6, "--repeats", 1, "--full", cwd=where)
    return where, shown


def test_cascades_share_a_run_with_the_large_model(cascades):
    where, shown = cascades
    (summary,) = summaries(where)
    assert [row["method"] for row in summary["methods"]] == ["ar", *CASCADES]
    assert summary["spec"]["clock"] == "end to end"
    assert "speedup over ar, end to end" in shown and "Cascades" in shown
    assert all(row["quality"]["bleu"]["value"] >= 0 and not row["failed"] for row in summary["methods"])


def test_each_encoder_runs_at_most_once_per_prompt(cascades):
    where, _ = cascades
    (folder,) = (where / "results").iterdir()
    rows = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    for row in rows:
        assert all(usage["encodes"] == 1 for usage in row["models"].values())
        if row["method"] == "token-cascade":
            deferrals = sum(each["counters"]["deferrals"] for each in row["rounds"])
            assert ("target" in row["models"]) == (deferrals > 0)
            if deferrals:
                assert 1 + row["models"]["target"]["forwards"] == deferrals
    assert {row["method"] for row in rows if set(row["models"]) == {"draft"}} >= {"ar-draft", "seq-cascade"}


def test_cascades_count_deferrals_and_rejections(cascades):
    rows = {row["method"]: row for row in summaries(cascades[0])[0]["methods"]}
    assert rows["ar"]["rule_rate"] is None
    assert 0 < rows["token-cascade"]["rule_rate"] < 1
    assert rows["token-cascade"]["forwards_per_token"]["target"] == pytest.approx(rows["token-cascade"]["rule_rate"])
    assert rows["seq-cascade"]["rule_rate"] == 0.5, "half of six prompts are deferred, as asked for"
    assert rows["oracle-diff"]["forwards_per_token"]["target"] == 1.0
    assert rows["cascade-opt"]["rejections_per_token"] > 0
    for name in ("cascade-opt", "cascade-chow", "lossy", "token-cascade", "seq-cascade"):
        assert rows[name]["predicted"] > 0 and rows[name]["corrected"] > 0
    assert "predicted" not in rows["oracle-diff"]


def test_the_expected_acceptance_of_a_rule_is_near_the_measured_one(cascades):
    """Lemma 3, over the tested tokens of one run: they differ by less than five standard errors."""
    rows = {row["method"]: row for row in summaries(cascades[0])[0]["methods"]}
    assert rows["lossy"]["expected_acceptance"] is None and rows["token-cascade"]["expected_acceptance"] is None
    (folder,) = (cascades[0] / "results").iterdir()
    records = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    for name in ("cascade-opt", "cascade-chow"):
        expected, measured = rows[name]["expected_acceptance"], rows[name]["acceptance_by_model"]
        tested = sum(each["tested"] for row in records if row["method"] == name for each in row["rounds"])
        accepted = sum(each["accepted"] for row in records if row["method"] == name for each in row["rounds"])
        assert 0.0 < expected < 1.0 and "draft" in measured and tested > 50
        assert abs(expected - accepted / tested) < 5.0 * (0.25 / tested) ** 0.5


def test_a_sweep_is_one_run_of_variants(tmp_path):
    sweep = ["--over", "method.target.alpha=[0.0, 1.0]"]
    specbench(
        "run", "-m", "lossy", "-m", "seq-cascade", "-p", "tiny-t5", "-t", "wmt", "-n", 5, "--repeats", 1, *sweep,
        cwd=tmp_path,
    )  # fmt: skip
    (summary,) = summaries(tmp_path)
    rows = {row["method"]: row for row in summary["methods"]}
    assert list(rows) == ["ar", "lossy(alpha=0.0)", "lossy(alpha=1.0)", "seq-cascade"]
    assert rows["lossy(alpha=0.0)"]["acceptance_by_model"]["draft"] < 1.0
    assert rows["lossy(alpha=1.0)"]["acceptance_by_model"]["draft"] == 1.0, "at the end of its range it is the draft"
    assert summary["run"].startswith("lossy+seq-cascade_tiny-t5_wmt_")


def test_an_alias_is_swept_as_its_method():
    options = Options(over=(("se.gamma", [[1, 1], [2, 1]]),))
    found = Methods(("se",), pair_of("se"), options).groups(SIZES)[0]
    assert [each.label for each in found[1:]] == ["we-se(gamma=[1, 1])", "we-se(gamma=[2, 1])"]


@pytest.mark.parametrize(
    ("method", "key", "labels"),
    [
        ("sd", "gamma", ["sd(gamma=1)", "sd(gamma=3)"]),
        ("eagle", "eagle.gamma", ["eagle(gamma=1)", "eagle(gamma=3)"]),
        ("polybasic", "gamma", ["polybasic(gamma=1)", "polybasic(gamma=3)"]),
        ("se", "gamma", ["we-se(gamma=[1, 1])", "we-se(gamma=[3, 1])"]),
    ],
)
def test_gamma_is_the_short_name_of_every_draft_length(method, key, labels):
    options = Options(over=((key, [1, 3]),))
    found = Methods((method,), pair_of(method), options).groups(SIZES)[0]
    assert [each.label for each in found[1:]] == labels


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["-m", "lossy", "--over", "method.target.alhpa=[0.1]"],
            "does not have this key (did you mean 'method.target.alpha'?)",
        ),
        (["-m", "lossy", "--over", "method.target.alpha=0.1"], "expected method.key=[values]"),
        (["-m", "lossy", "--over", "sd.bonus=[1]"], "lossy does not have this key"),
        (["-m", "bild", "--temperature", "1"], "bild is not defined at T = 1: it is a greedy heuristic of two models"),
        (["-m", "lossy", "--set", "method.target.alpha=2"], "alpha = 2.0 must be in [0, 1]"),
        (["-m", "cascade-opt", "--set", "method.bonus=defered"], "did you mean"),
        (["-m", "token-cascade", "--set", "method.target.name=diff"], "needs the large model at every position"),
        (["-m", "seq-cascade", "--set", "method.threshold=0.1"], "either a quantile of the scores, or a threshold"),
        (["-m", "dtr", "-p", "tiny-3"], "target 'realigned' takes a small and a large model, not 3 models"),
        (["-m", "lossy-star", "--set", "method.target.budget=0.1"], "either alpha, or a budget"),
        (["-m", "sd", "--plugin", "nowhere.py"], "plugin nowhere.py: no such file"),
        (["-m", "sd", "--plugin", "no_such_module"], "plugin no_such_module: ModuleNotFoundError"),
    ],
)
def test_mistakes_are_one_line(arguments, message, tmp_path):
    shown = specbench("run", *arguments, "-t", "gsm8k", "-n", 5, cwd=tmp_path, code=2)
    assert message in shown
    assert len(shown.strip().splitlines()) == 1


def test_a_models_own_draft_is_measured_against_the_target():
    """The baseline follows a method's distribution only where the presets' models are the same."""
    base, draft = Methods(("ar-draft",), TINY, Options()).groups(SIZES)[0]
    assert (base.spec.options["scorers"], draft.spec.options["scorers"]) == (["target"], ["draft"])


UNDECLARED = {
    "bild", "fly", "seq-cascade", "seq-cascade-threshold", "sprinter", "typical-published", "relaxed-published",
    "thresholds-published",
}  # fmt: skip


def test_every_cascade_preset_declares_its_distribution():
    for name in names("method"):
        resolved = Methods((name,), pair_of(name), Options()).groups(SIZES)[0][-1]
        is_undeclared = name in UNDECLARED or name.startswith("hf-")
        assert (resolved.method.declared_distribution() is None) == is_undeclared, name


OF_TWO_TOKENS = {
    "bild-star",
    "cascade-opt-block",
    "cd-sd",
    "cd-se",
    "dtr-sd",
    "dtr-se",
    "lossy-star",
    "lossy-star-budget",
    "thresholds",
    "we-se-block",
}  # presets whose methods and rules are enumerated over three tokens elsewhere


@pytest.mark.parametrize(
    "name",
    [n for n in names("method") if n not in UNDECLARED | {"se", "se-small-large"} and not n.startswith("hf-")],
)
def test_every_preset_follows_the_distribution_that_it_declares(name):
    """Enumerated over tables, drafts of one or two tokens, at every sampling setting: as `specbench enumerate` does.

    Longer drafts of ensembles and chains, and more tokens, are enumerated in files of their own.
    """
    gamma = 1 if name.endswith("-se") or name.startswith("polybasic") else 2
    options = (
        Options(gamma=(("", (gamma,)),)) if Methods((name,), pair_of(name), Options()).have_draft_length else Options()
    )
    if name == "we-sd-tree":  # whole trees, without a bonus token, have many branches
        options = Options(overrides=(("method.proposer.widths", [2, 1]),))
    resolved = Methods((name,), pair_of(name), options).groups(SIZES)[0][-1]
    kinds = {head: pair_of(name).heads[head].kind for head in resolved.method.heads}
    assert all(found.exact for found in examine(resolved.method, kinds, 2 if name in OF_TWO_TOKENS else None))


def test_the_papers_bonus_declares_no_distribution(tmp_path):
    assert "declares no exact output distribution" in specbench(
        "enumerate", "-m", "cascade-opt", "-s", "method.bonus=paper", cwd=tmp_path, code=2
    )


def test_parallel_models_give_the_same_tokens_as_sequential_ones(tmp_path):
    """WE-P in worker processes: the same tokens as the sequential ensemble, its communication timed and its bytes counted."""
    few = ["-t", "gsm8k", "-n", 2, "--repeats", 1, "--max-new-tokens", 8, "--ignore-eos"]
    shown = specbench("run", "-m", "we-p", *few, "--full", cwd=tmp_path)
    (summary,) = summaries(tmp_path)
    rows = {row["method"]: row for row in summary["methods"]}
    parallel = rows["we-p"]
    assert not parallel["failed"] and parallel["identical_output"] == 1.0
    assert parallel["forwards_per_token"] == rows["we"]["forwards_per_token"]
    assert 0 < parallel["communication_share"] < parallel["outside_forwards"] < 1
    assert parallel["moved_bytes_per_token"] > 2 * 4 * 1024, "two rows of logits"
    assert rows["we"]["communication_share"] is None
    assert "bytes moved/token" in shown


def test_parallel_models_reject_synthetic_logits(tmp_path):
    few = ["-t", "gsm8k", "-n", 2, "--repeats", 1, "--max-new-tokens", 4, "--set", "pair.logits=synthetic"]
    shown = specbench("run", "-m", "we-p", *few, cwd=tmp_path, code=3)
    assert "cannot use synthetic logits" in " ".join(shown.split())
    assert "all 2 failed" in shown, "a method that never came through keeps its line"


def from_docs(tmp_path, page, heading, kind="python", name=""):
    """The first block of a kind under a heading of a page of docs/, as a file, and its text."""
    text = (DOCS / page).read_text()
    block = text[text.index(heading) :].split(f"```{kind}\n")[1].split("```")[0]
    path = tmp_path / (name or f"{heading.strip('# ').lower().replace(' ', '_')}.py")
    path.write_text(block)
    assert len(block.splitlines()) <= 30, "a thing of one's own is a short file"
    return path, block


def test_the_documented_target_is_short_listed_enumerated_and_run(tmp_path):
    path, block = from_docs(tmp_path, "new-method.md", "## A target")
    assert len([line for line in block.splitlines() if line.strip()]) <= 10
    assert "agreeable" in specbench("list", "methods", "--plugin", path, cwd=tmp_path)
    assert 'name = "agreeable"' in specbench("show", "method", "agreeable", "--plugin", path, cwd=tmp_path)
    shown = specbench("enumerate", "-m", "agreeable", "--plugin", path, cwd=tmp_path)
    assert shown.count("passed") == 5 and "FAILED" not in shown
    few = ["-p", "tiny-t5", "-t", "wmt", "-n", 5, "--repeats", 1]
    shown = specbench("run", "-m", "agreeable", "--plugin", path, *few, cwd=tmp_path)
    assert re.search(
        r"agreeable.* (as fast as ar|slower than ar|and ar (on synthetic prompts )?cannot be distinguished)",
        " ".join(shown.split()),
    )
    (folder,) = (tmp_path / "results").iterdir()
    config = tomllib.loads((folder / "run.toml").read_text())
    assert list(config["plugins"]) == [path.name] and len(config["plugins"][path.name]) == 64


def test_the_documented_stop_rule_proposer_method_and_task_run(tmp_path):
    stop, _ = from_docs(tmp_path, "new-method.md", "## A stop rule")
    proposer, _ = from_docs(tmp_path, "new-method.md", "## A proposer")
    again, _ = from_docs(tmp_path, "new-method.md", "## A proposer", "toml", "again-sd.toml")
    doubling, _ = from_docs(tmp_path, "new-method.md", "### Drafts of varying length")
    method, _ = from_docs(tmp_path, "new-method.md", "## A method")
    task, _ = from_docs(tmp_path, "new-task.md", "# A task of your own")
    (tmp_path / "rows.jsonl").write_text('{"word": "apple"}\n{"word": "pear"}\n')
    plugins = [word for path in (stop, proposer, doubling, method, task) for word in ("--plugin", path)]
    wanted = [
        "-m",
        "narrow",
        "-m",
        "one-by-one",
        "-m",
        "doubling",
        "-m",
        again,
        "-t",
        "spelling",
        "--data",
        "rows.jsonl",
    ]
    specbench("run", *wanted, *plugins, "-p", "tiny", "--repeats", 1, "--max-new-tokens", 8, cwd=tmp_path)
    (summary,) = summaries(tmp_path)
    assert [row["method"] for row in summary["methods"]] == ["ar", "narrow", "one-by-one", "doubling", "again-sd"]
    assert not any(row["failed"] for row in summary["methods"])
    assert all(row["identical_output"] == 1.0 for row in summary["methods"][1:]), "all of them are lossless"
    assert summary["metrics"][0]["name"] == "spelled"
    for name in ("narrow", "one-by-one", "doubling", "again", again):
        assert "FAILED" not in specbench("enumerate", "-m", name, *plugins, cwd=tmp_path)
    (folder,) = (tmp_path / "results").iterdir()
    specbench("score", folder, *plugins, cwd=tmp_path)


def test_the_documented_variant_of_a_task_and_pair_of_ones_own_run(tmp_path):
    variant, _ = from_docs(tmp_path, "new-task.md", "If a bundled task fits", "toml", "short.toml")
    pair, _ = from_docs(tmp_path, "pairs.md", "## An example to run", "toml", "my-pair.toml")
    models = Path(__file__).parents[2] / "specbench" / "tiny" / "models"
    (tmp_path / "checkpoints").mkdir()
    for name, model in (("small", "draft"), ("large", "target")):
        (tmp_path / "checkpoints" / name).symlink_to(models / model)
    few = ["-n", 1, "--repeats", 1, "--max-new-tokens", 8]
    specbench("run", "-m", "sd", "-p", pair, "-t", variant, *few, cwd=tmp_path)
    (summary,) = summaries(tmp_path)
    assert (summary["pair"], summary["task"], summary["spec"]["task"]["data"]["source"]) == (
        "my-pair",
        "short@3-A",
        "synthetic",
    )
    assert [row["failed"] for row in summary["methods"]] == [0, 0]


INVALID = """
from specbench.decoding.targets import TwoModels
class Share(TwoModels, name="{name}"):
    def __call__(self, logits, sampler):
        q, p = (sampler.probs(each) for each in logits)
        return {pi}
"""


@pytest.mark.parametrize(
    ("name", "pi", "message"),
    [
        ("doubled", "q + p", "a distribution sums to 2, not to 1"),
        ("lost", "0.9 * p", "a distribution sums to 0.9, not to 1"),
        ("nan", "0.0 * p / (0.0 * p)", "a distribution sums to nan, not to 1"),
        ("typo", "q.maximun(p)", "typo.py:6: AttributeError"),
    ],
)
def test_a_plugin_without_a_valid_distribution_is_detected(name, pi, message, tmp_path):
    """`enumerate` detects it, and in a run the generations fail."""
    (tmp_path / f"{name}.py").write_text(INVALID.format(name=name, pi=pi))
    plugin = ["-m", name, "--plugin", f"{name}.py"]
    shown = specbench("enumerate", *plugin, cwd=tmp_path, code=2 if name == "typo" else 5)
    assert message in shown
    few = ["-p", "tiny-t5", "-t", "wmt", "-n", 5, "--repeats", 1, "--max-new-tokens", 8]
    shown = " ".join(specbench("run", *plugin, *few, cwd=tmp_path, code=3).split())
    assert "5 generations failed" in shown
    assert (message if name != "typo" else "AttributeError") in shown


SILENT = """
from dataclasses import dataclass
from torch import empty
from specbench.decoding.method import Proposer
from specbench.decoding.sampling import Draft

@dataclass(frozen=True, kw_only=True)
class Silent(Proposer, name="silent"):
    gamma: int = 3
    role = "silent"
    longest = property(lambda self: self.gamma)

    def roles(self):
        return ()

    def open(self, models, sampler, stop):
        return lambda ids, room: Draft([], empty(0, models.vocabulary))
"""


def test_enumerating_a_proposer_that_never_drafts_is_inconclusive(tmp_path):
    (tmp_path / "silent.py").write_text(SILENT)
    shown = specbench("enumerate", "-m", "silent", "--plugin", "silent.py", cwd=tmp_path, code=6)
    assert "FAILED" not in shown and "nothing was drafted" in shown


def test_the_documented_formula_predicts_a_plugins_speed_and_a_report_works_without_it(tmp_path):
    plugin, _ = from_docs(tmp_path, "new-method.md", "### Predicted speed")
    again, _ = from_docs(tmp_path, "new-method.md", "## A proposer")
    free, _ = from_docs(tmp_path, "new-method.md", "### Predicted speed", "toml", "free.toml")
    few = ["-p", "tiny", "-t", "gsm8k", "-n", 2, "--repeats", 1, "--max-new-tokens", 48]
    specbench("run", "-m", free, "--plugin", plugin, "--plugin", again, *few, cwd=tmp_path)
    (path,) = (tmp_path / "results").glob("*/summary.json")
    row = json.loads(path.read_text())["methods"][1]
    accepted = row["acceptance_rate"]
    assert (
        row["predicted"] == pytest.approx(1.0 + accepted + accepted**2)
        and row["corrected"]
        and row["cost_ratio"] == 0.0
    )
    path.unlink()
    command = [sys.executable, "-m", "specbench", "report", path.parent, "-f", "json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)[0]["methods"][1]
    assert row["acceptance_rate"] == accepted and row.get("predicted") is None


def test_what_a_plugin_leaves_to_its_defaults_can_be_swept(tmp_path):
    path, _ = from_docs(tmp_path, "new-method.md", "## A target")
    few = ["-p", "tiny-t5", "-t", "wmt", "-n", 5, "--repeats", 1, "--max-new-tokens", 8]
    sweep = ["--over", "method.target.least=[0.2, 0.9]"]
    specbench("run", "-m", "agreeable", "--plugin", path, *few, *sweep, cwd=tmp_path)
    rows = summaries(tmp_path)[0]["methods"]
    assert [row["method"] for row in rows] == ["ar", "agreeable(least=0.2)", "agreeable(least=0.9)"]


def test_plugins_that_cannot_be_loaded_are_reported_with_the_reason(tmp_path):
    cases = {
        "empty.py": ("x = 1\n", "defines no Target"),
        "wrong.py": ("x = 1\n\ny = 1 / 0\n", "wrong.py:3: ZeroDivisionError"),
        "taken.py": (
            "from specbench.decoding.targets import Last\nclass Again(Last, name='last'):\n    pass\n",
            "the name 'last' already exists: specbench.decoding.targets",
        ),
    }
    for name, (text, message) in cases.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(ConfigError, match=message):
            load(str(tmp_path / name))
    assert Target.members["last"].__name__ == "Last"
    assert preset("method", "sd").path.suffix == ".toml"


def test_a_plugin_may_be_loaded_twice(tmp_path):
    path, _ = from_docs(tmp_path, "new-method.md", "## A target")
    assert load(str(path)) == load(str(path))
    method = Speculative(
        proposer=DraftModel(model="a", gamma=2),
        scorers=("a", "b"),
        target=Target.build({"name": "agreeable"}, "here"),
    )
    assert all(found.exact for found in examine(method))


def test_enumerate_does_not_call_a_method_exact_whose_draft_lengths_it_does_not_know(tmp_path):
    (tmp_path / "hidden.py").write_text(
        "from specbench.methods.speculative import Speculative\n\n\n"
        'class Hidden(Speculative, name="hidden"):\n    blocks = property(lambda self: (1,))\n'
    )
    (tmp_path / "hidden.toml").write_text(
        'name = "hidden"\nbaseline = "ar"\nproposer = { name = "model", model = "draft", gamma = 5 }\n'
        'scorers = "target"\ntarget = { name = "last" }\n'
    )
    shown = specbench("enumerate", "-m", "hidden.toml", "--plugin", "hidden.py", cwd=tmp_path, code=6)
    assert "declares no block sizes" in " ".join(shown.split())
