"""Plans for another machine: sizes, times and the sentence at the end, without weights and network."""

import json
import socket

import pytest

from specbench.analysis.formula import AssumedRates
from specbench.config.options import Options
from specbench.config.pair import ModelSpec, Pair
from specbench.decoding.method import Method
from specbench.errors import ConfigError
from specbench.features.plan.machine_plan import FAST, SLOW, seconds_per_token, sentence, span, total_of
from specbench.features.suites.suite import read_suite
from specbench.models.heads.head_size import size_of_head
from specbench.models.resolved_model import Architecture, ResolvedModel
from specbench.models.simulated import architecture
from specbench.resolution.methods import Methods
from tests.fixtures.console import specbench
from tests.fixtures.plans import H200, named_on_h200, rows_on_h200

SECONDS = {"draft": 1.0, "target": 10.0, "eagle": 0.5}
BIG = """
[models.draft]
path = "meta-llama/Llama-3.2-1B"
[models.target]
path = "meta-llama/Llama-3.1-70B-Instruct"
"""


@pytest.mark.parametrize("name", ["se-table2", "cascade-fig1", "polybasic-table1", "sprinter-table2"])
def test_runs_on_the_papers_models_can_be_estimated(name):
    rows = named_on_h200(name)
    assert rows and all(row.seconds and 0 < row.seconds[0] < row.seconds[1] for row in rows)
    assert all(row.downloads and row.fits for row in rows)


def cost(rates, **table):
    """The seconds per token of a method, whose baseline is the target alone."""
    return seconds_per_token(Method.build(table, "a method"), SECONDS, rates)


def test_a_method_without_drafts_costs_a_forward_of_each_scorer():
    mixture = {"scorers": ["draft", "target"], "target": {"name": "mixture", "weights": [0.5, 0.5]}}
    assert cost(FAST, name="autoregressive", **mixture) == 11.0
    assert cost(FAST, name="parallel", **mixture) == 10.0


def test_speculation_costs_what_theory_says_at_an_acceptance_rate():
    def speculative(rates, **proposer):
        return cost(rates, name="speculative", scorers=["target"], target={"name": "last"}, proposer=proposer)

    draft = {"name": "model", "model": "draft", "gamma": 4}
    never, always = AssumedRates(acceptance=0.0, deferred=0.0), AssumedRates(acceptance=1.0, deferred=0.0)
    assert speculative(never, **draft) == 14.0  # four drafts and a forward for one token
    assert speculative(always, **draft) == pytest.approx(14.0 / 5)  # five tokens
    assert speculative(always, name="eagle", head="eagle", base="target", gamma=4) == pytest.approx(12.0 / 5)
    assert speculative(never, name="pld") == 10.0
    adaptive = speculative(always, name="model", model="draft", gamma=10, stop={"name": "unsure", "threshold": 0.5})
    assert adaptive == pytest.approx(15.0 / 6)  # five drafts on average


def test_a_method_that_declares_no_distribution_costs_between_its_fastest_model_and_all():
    assert [cost(each, name="hf-assisted", draft="draft", model="target", gamma=4) for each in (FAST, SLOW)] == [
        1.0,
        11.0,
    ]


def test_a_chain_that_ends_in_a_lookup_costs_what_its_levels_do():
    """Five tokens are drafted for free, the middle model (2.0) tests them, and the target reads what it accepts."""
    lookup = {"name": "chain", "model": "middle", "threshold": 6, "proposer": {"name": "pld"}}
    table = {"name": "speculative", "scorers": ["target"], "target": {"name": "last"}, "proposer": lookup}
    method = Method.build(table, "a method")
    always = AssumedRates(acceptance=1.0, deferred=0.0)
    found = seconds_per_token(method, {**SECONDS, "middle": 2.0}, always)
    assert found == pytest.approx(12.0 / 7)  # six tokens by one forward of the middle model, and one of the target's


def test_a_cascade_is_bounded_by_no_and_by_every_deferral():
    table = {"name": "token-cascade", "small": "draft", "large": "target", "target": {"name": "chow", "alpha": 0.1}}
    assert [cost(each, **table) for each in (FAST, SLOW)] == pytest.approx([1.0, 11.0])


def test_a_plugins_method_has_an_estimate(tmp_path):
    """With its own formula if it has one, else between one forward of its fastest model and one of each."""
    (tmp_path / "own.py").write_text(OWN)
    command = (
        "plan",
        "--plugin",
        "own.py",
        "-m",
        "halved,blind",
        "-p",
        "gpt2",
        "-t",
        "humaneval",
        "-n",
        "1",
        "--repeats",
        "1",
    )
    (row,) = json.loads(specbench(*command, "--for", "h100", "--json", cwd=tmp_path).stdout)["runs"]
    assert row["methods"] == "ar, halved, blind" and 0 < row["seconds"][0] < row["seconds"][1]
    (alone,) = json.loads(
        specbench(*command[:4], "blind", *command[5:], "--for", "h100", "--json", cwd=tmp_path).stdout
    )["runs"]
    low, high = alone["seconds"]
    assert high > 1.5 * low, "one forward of the draft, and one of each model"


OWN = """
from dataclasses import dataclass
from specbench.decoding.method import Method
from specbench.decoding.traits import Theory

@dataclass(frozen=True, kw_only=True)
class Halved(Method, name="halved"):
    draft: str = "draft"
    model: str = "target"

    def roles(self):
        return (self.draft, self.model)

    def theory(self):
        return Theory(formula="speculation", models=("draft", "target"), gamma=(4,), bonus="exact")

    def rounds(self, models, sampler, stop):
        yield from ()

@dataclass(frozen=True, kw_only=True)
class Blind(Method, name="blind"):
    draft: str = "draft"
    model: str = "target"

    def roles(self):
        return (self.draft, self.model)

    def rounds(self, models, sampler, stop):
        yield from ()
"""


def test_a_large_target_does_not_fit_and_the_plan_says_what_would_help(tmp_path):
    (tmp_path / "big.toml").write_text(BIG)
    command = ("plan", "-p", "big.toml", "-m", "sd", "-t", "humaneval", "-n", "4", "--for")
    found = specbench(*command, "h100", cwd=tmp_path, code=4).stdout
    last = " ".join(found.split())
    assert "this run does not fit on one H100: it needs 137 GiB on a GPU with 80 GiB" in last
    assert (
        "it fits on one H200; help: --place ROLE=layers:0,1 on several GPUs (--gpus N), or --set pair.models.ROLE."
        in last
    )
    assert "it fits on one H200" in specbench(*command, "rtx4090", cwd=tmp_path, code=4).stdout
    smaller = specbench(*command, "h100", "--set", "pair.models.target.quantization=int8", cwd=tmp_path).stdout
    assert "this run on one H100: " in smaller and "GiB to download." in smaller


def test_a_checkpoint_in_two_roles_is_one_copy(tmp_path):
    mixtral = "mistralai/Mixtral-8x7B-v0.1"
    command = ("plan", "--target", mixtral, "--draft", mixtral, "-m", "sd", "-t", "gsm8k", "-n", "4", "--for", "h100")
    (row,) = json.loads(specbench(*command, "--json", cwd=tmp_path, code=4).stdout)["runs"]
    assert row["devices"][0]["weights"] / 2**30 == pytest.approx(87, abs=1.0)


def test_an_unknown_architecture_is_one_error_with_the_nearest_id(tmp_path):
    command = ("plan", "--target", "Qwen/Qwen3-9B", "-m", "pld", "-t", "gsm8k", "--for", "h100")
    assert "(did you mean 'Qwen/Qwen3-8B'?)" in specbench(*command, cwd=tmp_path, code=4).stderr


@pytest.mark.parametrize(
    ("gpus", "place", "devices", "said"),
    [
        (1, [], [149], "it fits on no known machine; help: --place ROLE=layers:0,1 on several GPUs (--gpus N)"),
        (2, ["target=layers:0,1"], [84, 65], "does not fit on 2 H100: it needs 84 GiB on a GPU with 80 GiB"),
        (4, [], [149], "does not fit on 4 H100: it needs 149 GiB on a GPU with 80 GiB"),
        (4, ["target=layers:0,1", "draft=cuda:2"], [69, 65, 17], "this run on 4 H100: "),
        (4, ["target=layers:0,1,2,3"], [51, 35, 35, 32], "at most 51 GiB of 80 GiB on a GPU"),
    ],
)
def test_a_70b_pair_on_several_gpus(gpus, place, devices, said, tmp_path):
    """Weights of 131 and 15 GiB, a cache, and a workspace on each device."""
    options = [word for each in place for word in ("--place", each)]
    command = ("plan", "-p", "llama-3.1-70b", "-m", "sd", "-t", "gsm8k", "--for", "h100", "--gpus", gpus, *options)
    code = 4 if "fit" in said else 0
    assert said in " ".join(specbench(*command, cwd=tmp_path, code=code).stdout.split())
    (row,) = json.loads(specbench(*command, "--json", cwd=tmp_path, code=code).stdout)["runs"]
    found = [(each["weights"] + each["cache"] + each["graphs"]) / 2**30 for each in row["devices"]]
    assert found == pytest.approx(devices, abs=1.0)


def test_a_model_on_a_gpu_that_the_machine_lacks_is_an_error(tmp_path):
    command = ("plan", "-p", "gpt2", "-m", "sd", "-t", "gsm8k", "--for", "h100", "--place", "target=cuda:1")
    assert "placed on cuda:1, and there are 1 GPUs" in specbench(*command, cwd=tmp_path, code=2).stderr
    assert "--gpus needs --for" in specbench("plan", "-m", "sd", "--gpus", 2, cwd=tmp_path, code=2).stderr


def test_a_longer_answer_takes_longer_and_a_quantized_model_less_memory():
    def row(**more):
        options = Options(device="auto", limit=2, **more)
        suite = read_suite("polybasic-table2")
        line = suite.grid[0].__class__(methods=("sd",), pairs=("llama-2",), tasks=("gsm8k",), options=options)
        (found,) = rows_on_h200(suite.__class__(name="", paper="", shows="", description="", grid=(line,)))
        return found

    plain = row()
    assert row(max_new_tokens=512).seconds[0] == pytest.approx(2 * plain.seconds[0], rel=0.05)
    assert row(overrides=(("pair.models.target.quantization", "int4"),)).memory.weights < 0.4 * plain.memory.weights
    assert row(engine="eager").seconds[1] > plain.seconds[1]


def test_a_quantized_copy_costs_what_a_gpu_does_with_it():
    """A forward by kernels for 4 bits reads the codes; without kernels, matrices are written and read in bfloat16 too."""
    suite = read_suite("polybasic-table2")

    def seconds(kind):
        overrides = (("pair.models.target.quantization", kind),)
        options = Options(device="auto", limit=2, overrides=overrides)
        line = suite.grid[0].__class__(methods=("ar",), pairs=("llama-2",), tasks=("gsm8k",), options=options)
        (found,) = rows_on_h200(suite.__class__(name="", paper="", shows="", description="", grid=(line,)))
        assert found.quantized == ({"target": kind} if kind else {})
        return found.seconds[0]

    plain = seconds("")
    assert seconds("int4") < seconds("int4-g32-sym") * 1.01 < 0.6 * plain
    assert all(seconds(kind) > 1.5 * plain for kind in ("int8", "int4-channel", "nf4")), "as slow as their matrices"


def test_a_plan_says_that_the_cost_of_a_quantized_copy_is_assumed(tmp_path):
    command = ("plan", "-p", "gpt-neo", "-m", "sd", "-t", "gsm8k", "-n", "4", "--for", "h100")
    quantized = (*command, "--set", "pair.models.target.quantization=int8-g64")
    said = " ".join(specbench(*quantized, cwd=tmp_path).stdout.split())
    assert "The cost of a quantized copy is assumed, not measured: target (int8-g64)." in said
    assert "quantized" not in specbench(*command, cwd=tmp_path).stdout
    (row,) = json.loads(specbench(*quantized, "--json", cwd=tmp_path).stdout)["runs"]
    assert row["quantized"] == {"target": "int8-g64"}


def test_a_plan_for_another_machine_opens_no_connection(monkeypatch):
    def refuse(*_):
        raise AssertionError("a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    rows = named_on_h200("se-table2")
    assert sentence("se-table2", total_of(rows), H200).startswith("se-table2 on one H200: ")


def test_a_file_describes_a_machine(tmp_path):
    (tmp_path / "mine.toml").write_text('name = "Mine"\nmemory_gib = 8.0\nbandwidth_gb_s = 100.0\nbf16_tflops = 10.0\n')
    command = ("plan", "-m", "sd", "-p", "gpt2", "-t", "humaneval", "-n", "1", "--for", "mine.toml")
    found = json.loads(specbench(*command, "--json", cwd=tmp_path).stdout)
    assert found["machine"]["name"] == "Mine" and found["total"]["fits"]
    assert found["runs"][0]["generations"] == 2 * 3
    (tmp_path / "mine.toml").write_text('name = "Mine"\nmemory = 8.0\nbandwidth_gb_s = 100.0\nbf16_tflops = 10.0\n')
    assert "did you mean 'memory_gib'" in specbench(*command, cwd=tmp_path, code=2).stderr
    for number in ("0.0", "1e-320", "1e308"):
        text = f'name = "Mine"\nmemory_gib = 8.0\nbandwidth_gb_s = {number}\nbf16_tflops = 10.0\n'
        (tmp_path / "mine.toml").write_text(text)
        assert "must be from 0.001 to 1e+09" in specbench(*command, cwd=tmp_path, code=2).stderr


def test_a_run_without_an_architecture_or_a_number_of_prompts_has_no_estimate(tmp_path):
    (tmp_path / "other.toml").write_text('[models.draft]\npath = "a/small"\n[models.target]\npath = "a/large"\n')
    command = ("plan", "-m", "sd", "-p", "other.toml", "-t", "gsm8k", "--for", "h100")
    assert "no architecture for a/small" in specbench(*command, cwd=tmp_path, code=4).stderr
    done = specbench("plan", "-m", "sd", "-p", "gpt2", "-t", "lm1b", "--for", "h100", cwd=tmp_path, code=4).stdout
    assert "help: -n N" in done and "time unknown, at most " in done
    assert "There is no estimate for lm1b." in " ".join(done.split())


def test_gpus_that_no_model_uses_are_named(tmp_path):
    command = ("plan", "-m", "sd", "-p", "gpt2", "-t", "gsm8k", "-n", "4", "--for", "h100", "--gpus", "2")
    shown = " ".join(specbench(*command, cwd=tmp_path).stdout.split())
    assert shown.endswith("1 of 2 GPUs is used, --place puts a model on others.")
    total = json.loads(specbench(*command, "--json", cwd=tmp_path).stdout)["total"]
    assert (total["gpus"], total["complete"], total["lacking"]) == (1, True, [])


def test_mistakes_name_the_nearest_right_value(tmp_path):
    plan = ("plan", "-m", "sd", "-p", "gpt2", "-t", "gsm8k")
    assert "did you mean 'h200'" in specbench(*plan, "--for", "h20", cwd=tmp_path, code=2).stderr
    assert "did you mean" in specbench(*plan, "--for", "h200", "--set", "task.shotz=1", cwd=tmp_path, code=2).stderr
    assert "--device conflict" in specbench(*plan, "--for", "h200", "--device", "cpu", cwd=tmp_path, code=2).stderr


def test_spans_use_the_unit_of_their_upper_end():
    assert span(30.0, 5400.0) == "1 to 90 minutes"
    assert span(9.2 * 3600, 17.4 * 3600) == "9 to 17 hours"
    assert span(3600.0, 30 * 86400.0) == "1 to 30 days"
    assert span(7200.0, 7300.0) == "2 hours"


def test_a_role_that_the_pair_lacks_is_an_error():
    pair = Pair(models={})
    with pytest.raises(ConfigError, match="no model"):
        Methods(("sd",), pair, Options()).groups({})


@pytest.mark.parametrize(
    ("kind", "layers", "states"), [("eagle", 1, 1), ("eagle3", 1, 3), ("mtp", 1, 1), ("dflash", 5, 5), ("dspark", 5, 5)]
)
def test_the_size_of_a_head_follows_from_its_kind_and_its_base(kind, layers, states):
    """Of a base of width 4096 with 8 of 32 heads for keys and values, and an MLP of width 11008."""
    path = "XiaomiMiMo/MiMo-7B-RL"
    base = ResolvedModel(ModelSpec(path=path), Architecture(architecture(path, {})), "bfloat16")
    size = size_of_head(kind, "target", base)
    square, layer = 4096 * 4096, 2 * 4096 * (4096 + 1024) + 3 * 4096 * 11008
    weights = {
        "eagle": 2 * square + 4 * square + 3 * 4 * square,  # a layer of Llama's form, since the base is none
        "eagle3": 3 * square + 4096 * (4096 + 2 * 1024) + layer,  # its attention reads two vectors
        "mtp": 2 * square + layer,
        "dflash": 5 * square + 5 * layer,
        "dspark": 5 * square + 5 * layer + 2 * 256 * 151680,  # of its Markov head
    }[kind]
    assert size.weights == size.download_bytes == pytest.approx(2 * weights, rel=1e-3)
    assert size.layers == layers and size.forward_bytes == size.weights + 2 * 4096 * 151680
    keys = 4096 if kind == "eagle" else 1024  # of a layer of Llama's form with as many heads as the base
    assert size.position_bytes == 2 * (2 * layers * keys + states * 4096)


def test_a_plan_counts_each_head_of_its_methods():
    def row(*methods):
        suite = read_suite("deepspec-table1")
        line = suite.grid[0].__class__(
            methods=methods, pairs=("qwen3-14b",), tasks=("gsm8k",), options=Options(device="auto", limit=2)
        )
        (found,) = rows_on_h200(suite.__class__(name="", paper="", shows="", description="", grid=(line,)))
        return found

    plain, eagle3, both = row("pld"), row("eagle3"), row("eagle3", "dflash")
    assert len(plain.downloads) == 1 and len(eagle3.downloads) == 2 and len(both.downloads) == 3
    assert plain.memory.total < eagle3.memory.total < both.memory.total
    assert eagle3.memory.cache > plain.memory.cache and both.memory.models == ("target", "head eagle3", "head dflash")
    assert both.seconds[0] > eagle3.seconds[0]
