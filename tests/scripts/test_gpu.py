"""Test `make gpu-check` and `make gpu-bench` on a CPU, with the static forwards that graphs would record."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from scripts.gpu import bench as gpu_bench
from scripts.gpu import check as gpu_check
from scripts.gpu import devices, gpu_graphs
from scripts.gpu import logits as gpu_logits
from scripts.gpu.common import ENGINES, VOCABULARY, Small, folder_of
from scripts.gpu.exactness import World, accepting_all_matches, distribution_matches
from scripts.gpu.gpu_figures import Figure
from specbench.errors import ExitCode
from specbench.models.cached_session import CachedSession

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
MISSING = "tomli_w datasets evaluate rouge_score sacrebleu pytest".split()  # not needed on a GPU machine
FEW = "--small --device cpu --prompt 12 --tokens 8 --repeats 2 --forwards 2 --prompts 5".split()


def rows_of(path: Path) -> list[dict]:
    page, kept = path.with_suffix(".md").read_text(), json.loads(path.read_text())
    assert kept["environment"]["cpu"] and kept["environment"]["packages"]["torch"] in page, "figures name the machine"
    return kept["rows"]


@pytest.mark.slow
def test_every_check_passes_on_a_cpu(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(gpu_graphs, "SPANS", (256,))
    monkeypatch.setattr(gpu_graphs, "REPLAYS", 5)
    arguments = "--device cpu --steps 16 --tokens 6 --draws 100 --out".split()
    assert gpu_check.main([*arguments, str(tmp_path)]) == 0
    rows = rows_of(tmp_path / "check.json")
    need_gpus = [row for row in rows if row["suite"] in ("memory", "devices")]
    assert len(need_gpus) == 7 and all(row["passed"] is None for row in need_gpus)
    rows = [row for row in rows if row not in need_gpus]
    assert all(row["passed"] for row in rows)
    suites = {
        "models",
        "logits",
        "control",
        "greedy",
        "sampling",
        "NaN",
        "bfloat16",
        "int4",
        "streams",
        "reuse",
        "synchronization",
    }
    assert {row["suite"] for row in rows} == suites
    for engine in ENGINES:
        assert sum(row["what"].endswith(f", {engine}") for row in rows if row["suite"] == "logits") >= 7
        assert sum(row["what"].endswith(f", {engine}") for row in rows if row["suite"] == "greedy") >= 4
    sampled = {row["what"] for row in rows if row["suite"] == "sampling"}
    assert {
        f"{name}, {kind}" for name in ("sd", "we-sd", "we-se", "cd-se") for kind in ("listed", "lean", "graph")
    } <= sampled
    assert capsys.readouterr().out.rstrip().splitlines()[-1].startswith(f"{len(rows)} of {len(rows)} checks passed")


@pytest.mark.parametrize("broken", [gpu_logits.StaleLean, gpu_logits.StaleGraph])
def test_a_stale_position_fails_the_check(broken):
    small = Small("gpt2", CPU)
    each = small.roles["b"]
    weights = each.graphs if "Graph" in broken.__name__ else each.network
    assert gpu_logits.logits_agree(small, CachedSession(broken.__mro__[1](weights, VOCABULARY)), 24)[2]
    assert not gpu_logits.logits_agree(small, CachedSession(broken(weights, VOCABULARY)), 24)[2]


def test_accepting_every_draft_token_fails_the_distribution_check():
    world = World(CPU)
    assert distribution_matches(world, "listed", "sd", 400, seed=1)[2]
    assert not accepting_all_matches(world, 400)[2]


@pytest.mark.parametrize(("passed", "code"), [(True, 0), (False, ExitCode.REGRESSION)])
def test_a_failed_check_sets_the_exit_code(passed, code, monkeypatch, capsys):
    def one(*_):
        yield "logits", "a check", lambda: ("error 1", "error <= 2", passed)

    monkeypatch.setattr(gpu_check, "checks", one)
    assert gpu_check.main(["--device", "cpu"]) == code
    assert ("FAIL" in capsys.readouterr().out) is not passed


def test_checks_are_written_as_they_end_and_stop_at_the_time_limit(tmp_path, monkeypatch, capsys):
    done = ("error 1", "error <= 2", True)

    def second():
        assert len(rows_of(tmp_path / "check.json")) == 1, "the first is written before the second begins"
        return done

    two = [("logits", "a check", lambda: done), ("logits", "another", second)]
    monkeypatch.setattr(gpu_check, "checks", lambda *_: iter(two))
    assert gpu_check.main(["--device", "cpu", "--out", str(tmp_path)]) == 0
    assert gpu_check.main(["--device", "cpu", "--seconds", "-1", "--out", str(tmp_path)]) == ExitCode.REGRESSION
    assert "time limit" in rows_of(tmp_path / "check.json")[-1]["what"]


def test_an_exception_in_a_check_is_a_failure(capsys):
    def run():
        raise RuntimeError("device-side\nassert")

    done = gpu_check.check("logits", "a check", run)
    assert not done.passed and done.measured == "RuntimeError: device-side assert"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("script", [gpu_check, gpu_bench])
def test_without_a_gpu_the_default_device_is_an_error(script, capsys):
    assert script.main([]) == ExitCode.MISSING
    assert "no CUDA device here" in capsys.readouterr().err


def test_figures_of_a_cpu_are_written_only_to_a_given_folder(tmp_path):
    assert folder_of(CPU, None) is None
    assert folder_of(CPU, tmp_path) == tmp_path


def test_figures_of_a_gpu_are_written_to_a_folder_with_its_name(monkeypatch):
    for name, folder in (("NVIDIA H200", "h200"), ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb")):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _, name=name: name)
        assert folder_of(torch.device("cuda"), None) == Path("results") / folder


def bench(part: str, folder: Path, *more: str) -> list[dict]:
    assert gpu_bench.main([*FEW, "--part", part, "--out", str(folder), *more]) == 0
    rows = rows_of(folder / f"{part}.json")
    assert all(row["value"] is not None for row in rows), [row["beside"] for row in rows]
    assert all(row["value"] > 0 for row in rows)
    assert all(
        "small" in row["models"] and "dummy" in row["simulated"] for row in rows if "bandwidth" not in row["what"]
    )
    return rows


def test_the_forward_part_measures_every_engine(tmp_path):
    rows = bench("forward", tmp_path)
    for model in ("llama-68m (small)", "Llama-2-7b-hf (small)"):
        own = [row for row in rows if row["models"] == model]
        for what in ("forward of 1 token", "forward of 6 tokens", "forward of 6 over 1", "ar, per token"):
            assert [row["engine"] for row in own if row["what"] == what] == list(ENGINES)
    assert [row["engine"] for row in rows if row["what"].startswith("draft token")] == 2 * list(ENGINES)
    assert all(row["low"] <= row["value"] <= row["high"] for row in rows if row["low"] is not None)
    assert all(row["met"] is None for row in rows), "small models have no goals"


def test_the_transformers_part_labels_simulated_rows(tmp_path):
    rows = {row["what"]: row for row in bench("transformers", tmp_path)}
    assert {rows[f"{name}, per token"]["engine"] for name in ("generate", "generate, static cache", "assisted")} == {
        "transformers"
    }
    assert {row["simulated"] for what, row in rows.items() if "synthetic" in what} == {"dummy synthetic"}
    assert (
        rows["sd, synthetic, per token"]["beside"]["acceptance"] > 0.4 > rows["sd, per token"]["beside"]["acceptance"]
    )
    assert {"ar over generate", "ar over generate, static cache", "sd over assisted"} < rows.keys()


def test_the_ensemble_part_shows_the_prediction_and_the_papers_figure(tmp_path, capsys):
    rows = {row["what"]: row for row in bench("ensemble", tmp_path, "--rates", "0.95")}
    low, high = (rows[f"we-se over we at {rate}"]["beside"] for rate in ("mmlu (0.582)", "0.95"))
    assert low["acceptance"] < high["acceptance"] and 1.0 < low["theory"] < high["theory"] < 2.0
    assert low["SE, Table 2"] == 1.41 and "SE, Table 2" not in high, "only a task's rate has a figure of the paper"
    assert {row["simulated"] for row in rows.values()} == {"dummy synthetic"}
    assert "humaneval 1.58x, gsm8k 1.52x, mmlu 1.41x, cnndm 1.46x" in " ".join(capsys.readouterr().out.split())


def test_a_figure_meets_its_goal_or_not():
    one = {"what": "a", "models": "b", "engine": "graph", "simulated": "dummy", "unit": "ms"}
    assert [Figure(value=value, most=0.3, **one).met for value in (0.2, 0.3, 0.4)] == [True, True, False]
    assert [Figure(value=value, least=1.0, **one).met for value in (0.9, 1.0)] == [False, True]
    assert Figure(value=None, most=0.3, **one).met is False
    assert Figure(value=1.0, **one).met is None
    assert Figure(value=0.4, most=0.3, **one).cells()[4:7] == ["0.4 ms", "<= 0.3", "not met"]


def test_tokens_of_a_placement_are_compared_with_those_of_one_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    tokens = {"": {1: [5, 6], 2: [7]}, "target=cuda:1": {1: [5, 6], 2: [7]}, "target=layers:0,1": {1: [5, 6], 2: [8]}}
    monkeypatch.setattr(devices, "tokens_of", lambda method, places, temperature: tokens["".join(places)])
    assert devices.placed_tokens_agree("sd", ["target=cuda:1"], 0.0) == ("2 of 2 generations equal", "all equal", True)
    assert devices.placed_tokens_agree("sd", ["target=layers:0,1"], 0.0)[::2] == ("1 of 2 generations equal", False)


def test_importing_the_scripts_needs_few_packages():
    """Checked in a new process, since this one has imported pytest."""
    code = (
        "import sys, scripts.gpu.check, scripts.gpu.bench\n"
        f"found = set({MISSING}) & {{name.partition('.')[0] for name in sys.modules}}\n"
        "assert not found, found"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_make_runs_the_scripts_from_a_checkout_without_installing():
    """The commands use links instead of an installed package, and leave the working directory off the path."""
    command = ["make", "-n", "gpu-check", "gpu-bench", "GPU_PYTHON=python3.12", "ARGS=--part transformers"]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    runs = [line for line in lines if "python3.12" in line]
    assert [line.partition("-m ")[2] for line in runs] == [
        "scripts.gpu.check --part transformers",
        "scripts.gpu.bench --part transformers",
    ]
    assert all("PYTHONPATH=" in line and " -P " in line for line in runs)
