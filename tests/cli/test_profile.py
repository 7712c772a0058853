"""`specbench profile`: candidates for a middle model, and the method that it writes."""

import time
import tomllib
from importlib.util import find_spec

import pytest

from specbench.analysis.costs import forward_costs
from specbench.analysis.intervals import Estimate
from specbench.analysis.polybasic import ChainPlan
from specbench.features.profile.chain_profile import ChainCandidate
from specbench.features.profile.chain_tables import conclusion_of, method_toml
from specbench.features.profile.forwards_table import lines_of, slow_single_forwards
from specbench.models.lean import LeanModelRunner
from specbench.models.panel_codes import QuantizedLinear
from specbench.runs.run_folder import spec_of, timed_forwards
from tests.fixtures import console


def test_candidates_are_compared_and_the_fastest_chain_runs(tmp_path):
    few = ["-p", "tiny", "-t", "gsm8k", "--max-new-tokens", 12]
    wanted = ["-m", "polybasic-model", "--middle", "middle", "--middle", "code", "--write", "chain.toml"]
    shown = "".join(console.specbench("profile", *wanted, *few, "-n", 2, cwd=tmp_path))
    for chain in ("target > middle > draft", "target > code > draft"):
        assert chain in shown
    assert "Theorem 3.2, as printed" in shown and "is predicted to be the fastest" in " ".join(shown.split())
    table = tomllib.loads((tmp_path / "chain.toml").read_text())
    assert table["name"] == "speculative" and table["scorers"] == "target"
    console.specbench("run", "-m", "chain.toml", *few, "-n", 1, "--repeats", 1, cwd=tmp_path)


def test_forwards_of_every_model_of_a_pair_without_a_target_are_timed_without_a_chain(tmp_path):
    models = "\n".join(f'[models.{role}]\npath = "specbench:tiny/models/{role}"' for role in ("math", "code"))
    (tmp_path / "pair.toml").write_text(f"{models}\n[defaults]\ndata = 'synthetic'\n")
    shown = console.specbench("profile", "--forwards", "-p", "pair.toml", "-t", "gsm8k", "-n", 1, cwd=tmp_path).stdout
    timed = timed_forwards(next((tmp_path / "results").iterdir()))
    assert set(timed) == {"math", "code"}
    assert all(sizes[size][0] == 20 for sizes in timed.values() for size in range(1, 26))  # no block was partly cached
    assert all(f"{role}: a block of 6 tokens costs" in shown for role in timed)


@pytest.mark.skipif(find_spec("torchao") is None, reason="needs torchao: specbench[quantization]")
def test_the_cost_of_a_quantized_copy_is_the_time_of_its_forwards(tmp_path, monkeypatch):
    """Not of its bytes: a copy that reads a fifth of the target's bytes and waits for 2 ms costs 2 ms and more."""
    feed, waited = LeanModelRunner.feed, 0.002

    def slow(self, *arguments):
        if any(isinstance(module, QuantizedLinear) for module in self.network.model.modules()):
            time.sleep(waited)
        return feed(self, *arguments)

    monkeypatch.setattr(LeanModelRunner, "feed", slow)
    command = ("-p", "tiny-polybasic", "-t", "gsm8k", "-n", 1, "--set", "pair.models.middle.quantization=int4-g32-a8")
    console.specbench("profile", "--forwards", *command, cwd=tmp_path)
    folder = next((tmp_path / "results").iterdir())
    timed, models = timed_forwards(folder)["middle"], spec_of(folder).pair.models
    assert models["middle"].quantization == "int4-g32-a8"
    assert models["middle"].forward_bytes < 0.4 * models["target"].forward_bytes
    costs = forward_costs(timed, timed)
    assert costs is not None and min(costs.of(size) for size in range(1, 26)) >= waited


def test_a_single_forward_that_took_too_long_is_a_warning():
    sizes = {1: (20, 20 * 2.0)} | {n: (20, 20 * (1.0 + 0.1 * n)) for n in range(2, 9)}
    (warning,) = slow_single_forwards(lines_of({"draft": sizes}))
    assert warning.line.startswith("! draft: a forward of one token took longer than one of 2")
    assert not slow_single_forwards(lines_of({"draft": sizes | {1: (20, 20 * 1.0)}}))


@pytest.mark.parametrize(
    "option", [("-t", "gsm8k", "-t", "wmt"), ("-m", "polybasic"), ("--gamma", 3), ("--middle", "draft")]
)
def test_forwards_take_no_option_of_a_chain(option, tmp_path):
    shown = console.specbench("profile", "--forwards", "-p", "tiny", *option, cwd=tmp_path, code=2).stderr
    assert "--forwards" in shown


@pytest.mark.parametrize(
    ("levels", "proposer"),
    [
        (("target", "draft"), {"name": "model", "model": "draft", "gamma": 4}),
        (("target", "eagle"), {"name": "eagle", "base": "target", "gamma": 4}),
        (("target", "pld"), {"name": "pld", "gamma": 4}),
        (
            ("target", "middle", "eagle"),
            {
                "name": "chain", "model": "middle", "threshold": 6,
                "proposer": {"name": "eagle", "base": "middle", "gamma": 4},
            },
        ),
    ],
)  # fmt: skip
def test_the_written_method_is_the_candidates(levels, proposer):
    best = ChainCandidate(levels, ChainPlan(1.5, 4, (6,) if len(levels) == 3 else ()), Estimate(1.5, 1.4, 1.6))
    assert tomllib.loads(method_toml(best, "gsm8k", "tiny"))["proposer"] == proposer


def test_a_chain_that_does_not_pay_is_not_recommended():
    slow = ChainCandidate(("target", "draft"), ChainPlan(0.9, 1, ()), Estimate(0.9, 0.8, 1.0))
    assert conclusion_of([slow]).endswith("No candidate is predicted to be faster than target alone.")
