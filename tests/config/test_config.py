"""From words to cells: presets, overrides, defaults, and errors that say what was meant."""

from dataclasses import dataclass

import pytest

import specbench.tasks  # noqa: F401  (registers the tasks)
from specbench.config.construct import construct
from specbench.config.options import Options
from specbench.config.pair import HeadKind, Pair
from specbench.config.presets import escaped_path, names, parse_override, preset
from specbench.config.request import Request
from specbench.data.task import Data, Sample
from specbench.decoding.method import Method
from specbench.decoding.targets import Mixture, Target
from specbench.errors import ConfigError, MissingAsset
from specbench.resolution.methods import Methods
from specbench.resolution.resolve import resolve
from specbench.resolution.selection import limited, prompt_count, read_pair, read_task, select_tasks
from specbench.runs.run_spec import Rate
from tests.fixtures import console

SIZES = {"draft": 1, "target": 10, "math": 10, "code": 10}
TINY = read_pair("tiny", Options())[1]


def resolved(method: str, pair: Pair = TINY, sizes=SIZES, **options):
    return Methods((method,), pair, Options(**options)).groups(sizes)[0][-1]


def test_every_bundled_method_builds_on_a_tiny_pair():
    """Chains on the pair that has a 4-bit middle and a head for it, all others on `tiny` with a head of every kind."""
    chained = read_pair("tiny-polybasic", Options())[1]
    heads = tuple((kind.value, "folder") for kind in (HeadKind.eagle3, HeadKind.dflash, HeadKind.dspark, HeadKind.mtp))
    with_heads = read_pair("tiny", Options(heads=heads))[1]
    for name in names("method"):
        pair = chained if name.startswith("polybasic") else with_heads
        assert isinstance(resolved(name, pair, dict.fromkeys(pair.models, 1)).method, Method)


def test_synthetic_logits_and_heads_do_not_go_together(tmp_path):
    """One line, before anything is measured; prompt lookup, which is no model, has no rate to be calibrated to."""
    simulated = ["-p", "tiny", "-t", "gsm8k", "-n", 1, "--repeats", 1, "--set", "pair.logits=synthetic"]
    assert "trained head" in console.specbench("run", "-m", "eagle", *simulated, cwd=tmp_path, code=2).stderr
    assert (
        "pld (synthetic)"
        in console.specbench("run", "-m", "pld", *simulated, "--max-new-tokens", 8, cwd=tmp_path).stdout
    )


def test_rates_by_model_are_recorded_with_the_method_that_tests_the_drafts(tmp_path):
    """The chain, which has both rates, decides, although `sd` comes first."""
    simulated = (("pair.logits", "synthetic"), ("pair.acceptance", {"draft": 0.8, "middle": 0.97}))
    options = Options(data=(("", "synthetic"),), limit=2, overrides=simulated)
    request = Request(
        methods=("sd", "polybasic-model"), pair="tiny-polybasic", tasks=("gsm8k",), options=options, out=tmp_path
    )
    (spec,) = [run.spec for run in resolve(request).runs]
    synthetic = spec.pair.synthetic
    assert synthetic.rates == {
        "draft": Rate(acceptance=0.8, method="polybasic-model", scorers=("middle",)),
        "middle": Rate(acceptance=0.97, method="polybasic-model", scorers=("target",)),
    }
    assert synthetic.spreads["target"] == 0.0 < synthetic.spreads["middle"] < synthetic.spreads["draft"]


def test_rates_by_model_and_by_task_do_not_go_together():
    with pytest.raises(ConfigError, match=r"'draft' is a model and 'gsm8k' is no model; .* by model or by task"):
        construct(Pair, {**preset("pair", "tiny").table, "acceptance": {"draft": 0.8, "gsm8k": 0.7}}, "tiny.toml")


def simulate(rates: str, cwd, code: int = 0) -> str:
    """Return what `run` prints on stderr for synthetic logits with these acceptance rates of tiny-polybasic's models."""
    own = ["--set", "pair.logits=synthetic", "--set", f"pair.acceptance={rates}", "--repeats", 1, "--max-new-tokens", 4]
    return console.specbench(
        "run", "-m", "sd", "-p", "tiny-polybasic", "-t", "gsm8k", "-n", 1, *own, cwd=cwd, code=code
    ).stderr


@pytest.mark.parametrize("rates", ["{draft = 0.8, middel = 0.97}", "{middel = 0.97}"])
def test_a_rate_of_a_model_that_the_pair_does_not_have_is_an_error_with_the_nearest_model(rates, tmp_path):
    err = simulate(rates, tmp_path, code=2)
    assert "acceptance: " in err and "'middel' is no" in err and "did you mean 'middle'?" in err


def test_a_rate_of_a_model_that_does_not_draft_is_reported(tmp_path):
    found = simulate("{draft = 0.8, middle = 0.97}", tmp_path)
    assert "acceptance of middle has no effect: no method of this run drafts with it" in found
    assert "has no effect" not in simulate("{draft = 0.8}", tmp_path)


def test_a_head_is_that_of_its_kind_and_of_the_model_that_drafts():
    """The first that the pair lists, unless the method's table names one; without any, the line says how to train one."""
    chained = read_pair("tiny-polybasic", Options())[1]
    sizes = dict.fromkeys(chained.models, 1)
    assert resolved("eagle", chained, sizes).spec.options["proposer"]["head"] == "eagle-target"
    assert resolved("polybasic", chained, sizes).method.heads == ("eagle",)
    assert resolved("sprinter").spec.options["head"] == "sprinter"
    assert resolved("sprinter", overrides=(("method.head", "sprinter-q"),)).spec.options["head"] == "sprinter-q"
    with pytest.raises(MissingAsset, match="specbench train dsl"):
        resolved("dsl", chained, sizes)
    passed = read_pair("gpt2", Options(heads=(("sprinter", "heads/mine"),)))[1]
    assert passed.heads["sprinter"].path == "heads/mine" and passed.head_of("sprinter", "draft") == "sprinter"


TABLE_1 = {  # the models of each pair, the draft or the first of the ensemble first
    "llama-vicuna": ["meta-llama/Llama-2-7b-hf", "lmsys/vicuna-7b-v1.5"],
    "qwen-3b": ["Qwen/Qwen2.5-3B-Instruct", "Qwen/Qwen2.5-Coder-3B-Instruct"],
    "qwen-1.5b": ["Qwen/Qwen2.5-1.5B-Instruct", "Qwen/Qwen2.5-Coder-1.5B-Instruct"],
    "llama-3": ["meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.1-8B-Instruct"],
    "llama-2": ["JackFram/llama-68m", "meta-llama/Llama-2-7b-hf"],
    "opt": ["facebook/opt-125m", "facebook/opt-13b"],
}


@pytest.mark.parametrize("name", TABLE_1)
def test_the_pairs_of_the_paper_have_its_models(name):
    """Speculative Ensemble, Table 1."""
    pair = read_pair(name, Options())[1]
    roles = ("draft", "target") if "draft" in pair.models else pair.ensemble
    assert [pair.models[role].path for role in roles] == TABLE_1[name]


@pytest.mark.parametrize("name", names("pair"))
def test_every_bundled_pair_is_valid_and_runs_the_ensembles(name):
    pair = read_pair(name, Options())[1]
    sizes = dict.fromkeys(pair.models, 10)
    if len(pair.models) == 1:  # a target and its heads
        kind = next(iter(pair.heads.values())).kind
        assert resolved(kind, pair, sizes).method.roles() == ("target",)
        return
    assert len(resolved("we-se", pair, sizes).method.roles()) == len(pair.ensemble)
    if "draft" in pair.models:
        assert resolved("cd-se", pair, sizes | {"draft": 1}).spec.options["gamma"] == [5, 1]


def test_defaults_follow_the_pair():
    assert resolved("se").label == "we-se"
    assert resolved("we-se").spec.options["models"] == ["math", "code"]
    assert resolved("we-se").spec.options["gamma"] == [1, 1], "models that cost alike"
    assert resolved("cd-se").spec.options["gamma"] == [5, 1]
    assert resolved("sd").spec.options["proposer"] == {"name": "model", "model": "draft", "gamma": 5}
    assert resolved("we-se", sizes=SIZES | {"math": 5}).spec.options["gamma"] == [5, 1], "c = 0.5"
    assert resolved("we-se", sizes=SIZES | {"target": 6}).spec.options["gamma"] == [1, 1]
    assert [resolved(m).temperature for m in ("ar", "sd", "we", "cd", "we-sd", "cd-se")] == [0, 0, 1, 1, 1, 1]


def test_methods_with_the_same_baseline_share_a_run():
    groups = Methods(("we-sd", "we-se", "sd", "cd-se"), TINY, Options()).groups(SIZES)
    assert [[each.label for each in group] for group in groups] == [
        ["we", "we-sd", "we-se"],
        ["ar", "sd"],
        ["cd", "cd-se"],
    ]
    assert [[each.label for each in g] for g in Methods(("ar",), TINY, Options()).groups(SIZES)] == [["ar"]]


def test_the_baseline_follows_the_same_distribution():
    base, method = Methods(("we-se",), TINY, Options(overrides=(("method.target.weights", [0.25, 0.75]),))).groups(
        SIZES
    )[0]
    assert base.spec.options["target"] == method.spec.options["target"] == {"name": "mixture", "weights": [0.25, 0.75]}
    base, _ = Methods(("we-se",), TINY, Options(overrides=(("method.models", ["draft", "target"]),))).groups(SIZES)[0]
    assert base.spec.options["scorers"] == ["draft", "target"]


def test_gamma_is_the_first_models_or_each_models():
    assert resolved("we-se", gamma=(("", (3,)),)).spec.options["gamma"] == [3, 1]
    assert resolved("we-se", gamma=(("", (3, 2)),)).spec.options["gamma"] == [3, 2]
    both = Methods(("we-sd", "we-se"), TINY, Options(gamma=(("", (3, 2)),))).groups(SIZES)[0]
    assert both[1].spec.options["proposer"]["gamma"] == 3
    assert both[2].spec.options["gamma"] == [3, 2]
    with pytest.raises(ConfigError, match="gamma"):
        resolved("we-se", gamma=(("", (3, 2, 1)),))


def test_zero_is_a_value():
    """`threshold or default` turns 0 into the default; here 0 stays 0."""
    assert resolved("sd", temperature=0.0).temperature == 0.0
    assert resolved("we-se", temperature=0.0).temperature == 0.0
    assert resolved("cd-se", overrides=(("method.target.mu", 0.0),)).method.target.mu == 0.0
    assert read_task("gsm8k", TINY, Options(overrides=(("task.shots", 0),)))[1].shots == 0
    data = Data([Sample(str(i), "") for i in range(50)], "file", None, "", 50)
    assert len(limited(data, TINY, Options(limit=0)).samples) == 50
    assert len(limited(data, TINY, Options()).samples) == 50


def own_pair(**defaults) -> Pair:
    return construct(Pair, {"models": {"target": {"path": "target"}}, "defaults": defaults}, "own.toml")


def test_the_tasks_and_the_limit_of_a_pair_apply_to_every_source_of_data(tmp_path):
    pair, options = own_pair(tasks=["gsm8k", "wmt"], limit=20), Options(data=(("", "synthetic"),))
    assert [(each.name, len(each.data.samples)) for each in select_tasks([], pair, options)] == [
        ("gsm8k", 20),
        ("wmt", 20),
    ]
    assert prompt_count("gsm8k", read_task("gsm8k", pair, options)[1], pair, options) == 20
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "1 + 1?", "answer": "#### 2"}\n' * 30)
    found = select_tasks([], pair, Options(data=(("", str(rows)),)))
    assert [(each.name, len(each.data.samples)) for each in found] == [("gsm8k", 20)]
    assert [
        len(each.data.samples) for each in select_tasks(["gsm8k"], pair, Options(data=(("", str(rows)),), limit=0))
    ] == [30]


def test_data_that_suit_none_of_the_pairs_tasks_run_on_the_tasks_that_they_suit(tmp_path):
    pair, options = own_pair(tasks=["wiki-summary"]), Options(data=(("", "synthetic"),))
    assert "gsm8k" in [each.name for each in select_tasks([], pair, options)]
    with pytest.raises(ConfigError, match="synthetic"):
        select_tasks(["wiki-summary"], pair, options)


def test_roles_are_only_those_needed():
    assert Methods(("sd",), TINY, Options()).roles == ("draft", "target")
    assert Methods(("we-se",), TINY, Options()).roles == ("code", "math")


@pytest.mark.parametrize(
    ("kind", "word", "meant"),
    [
        ("method", "see", "se"),
        ("pair", "tinny", "tiny"),
        ("pair", "llama-vicunia", "llama-vicuna"),
        ("task", "gsm", "gsm8k"),
    ],
)
def test_a_typo_gets_a_suggestion(kind, word, meant):
    with pytest.raises(ConfigError, match=f"did you mean '{meant}'"):
        preset(kind, word)


@pytest.mark.parametrize(
    ("kind", "own"), [("method", "--plugin FILE"), ("pair", "--target DIR --draft DIR"), ("task", "--plugin FILE")]
)
def test_help_for_an_unknown_name_says_how_to_use_ones_own(kind, own):
    with pytest.raises(ConfigError, match=f"a TOML file, or {own}$"):
        preset(kind, "zzz")


@dataclass(frozen=True, kw_only=True)
class Toy(Target, name="test-toy"):
    count: int
    rate: float = 0.5


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": "mixtur"}, r"unknown name 'mixtur' \(did you mean 'mixture'\?\)"),
        ({}, "unknown name None"),
        ({"name": "mixture", "weight": [1.0]}, r"unknown key 'weight' \(did you mean 'weights'\?\)"),
        ({"name": "mixture", "weights": [0.5, 0.6]}, "must be at least 0 and sum to 1"),
        ({"name": "mixture", "weights": 0.5}, "must be a list"),
        ({"name": "mixture", "weights": ["a"]}, r"weights\[0\] = 'a' must be of type float"),
        ({"name": "test-toy"}, "a value for 'count' is missing"),
        ({"name": "test-toy", "count": True}, "count = True must be of type int"),
        ({"name": "test-toy", "count": 1.0}, "count = 1.0 must be of type int"),
    ],
)
def test_a_wrong_table_is_one_line_with_its_place(table, message):
    with pytest.raises(ConfigError, match=message) as caught:
        Target.build(table, "file.toml: target")
    assert str(caught.value).startswith("file.toml: target")


def test_whole_numbers_pass_for_floats():
    assert Toy(count=1, rate=1.0) == Target.build({"name": "test-toy", "count": 1, "rate": 1}, "")
    assert Target.build({"name": "mixture", "weights": [0, 1]}, "") == Mixture(weights=(0.0, 1.0))


def test_a_missing_role_is_an_error_that_lists_the_roles():
    pair = read_pair("llama-vicuna", Options())[1]
    with pytest.raises(ConfigError, match=r"no model 'target'.*llama, vicuna"):
        resolved("sd", pair, {"llama": 1, "vicuna": 1})


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("method.target.mu=0.2", ("method.target.mu", 0.2)),
        ("task.shots=0", ("task.shots", 0)),
        ("method.scorers=['a', 'b']", ("method.scorers", ["a", "b"])),
        ("pair.models.draft.path=gpt2", ("pair.models.draft.path", "gpt2")),
    ],
)
def test_overrides_are_toml_or_a_word(text, parsed):
    assert parse_override(text) == parsed


@pytest.mark.parametrize("bad", ["mu", "mu=1", "method.target.mu"])
def test_overrides_need_a_table_and_a_value(bad):
    with pytest.raises(ConfigError, match="--set"):
        parse_override(bad)


def test_an_unknown_override_is_rejected():
    options = Options(overrides=(("method.target.muu", 0.2),))
    (error,) = Methods(("cd-se",), TINY, options).unused_options("tiny").values()
    assert "did you mean 'target.mu'" in str(error)
    with pytest.raises(ConfigError, match="did you mean 'mu'"):
        resolved("cd-se", overrides=(("method.cd-se.target.muu", 0.2),))
    with pytest.raises(ConfigError, match=r"start with method\., pair\. or task\."):
        Options(overrides=(("decoding.mu", 1),))


def test_a_users_own_toml_file(tmp_path):
    own = tmp_path / "mine.toml"
    own.write_text('name = "autoregressive"\nscorers = ["draft"]\ntarget = { name = "last" }\n')
    assert resolved(str(own)).spec.options["scorers"] == ["draft"]
    own.write_text("name = ")
    with pytest.raises(ConfigError, match=r"mine\.toml"):
        resolved(str(own))
    with pytest.raises(ConfigError, match="no method file"):
        resolved(str(tmp_path / "none.toml"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('name = "speculative"\nscorers = 3', "scorers = 3 must be a list"),
        ('name = "speculative"\nbaseline = "ar"\nscorers = "target"', "'proposer' is missing"),
        ('name = "autoregressive"\nbaseline = "arr"\nscorers = "target"\ntarget = 3', "did you mean 'ar'"),
        ('name = "autoregressive"\nbaseline = "ar"\nscorers = "target"\ntarget = 3', "target = 3 must be a table"),
        ('name = "autoregressive"\nscorers = []\ntarget = { name = "last" }', "at least one model"),
        (
            'temperature = "x"\nname = "autoregressive"\nscorers = "target"\ntarget = { name = "last" }',
            "temperature = 'x'",
        ),
        (
            'name = "speculative"\nproposer = "draft"\nscorers = "target"\ntarget = { name = "last" }',
            "proposer = 'draft'",
        ),
    ],
)
def test_an_incomplete_method_of_a_user_is_a_config_error(tmp_path, text, message):
    own = tmp_path / "mine.toml"
    own.write_text(text)

    def settle():
        assert Methods((str(own),), TINY, Options()).roles
        resolved(str(own))

    with pytest.raises(ConfigError) as caught:
        settle()
    assert message in str(caught.value)


def test_a_pair_needs_models():
    with pytest.raises(ConfigError, match="'models' is missing"):
        construct(Pair, {}, "x.toml")
    with pytest.raises(ConfigError, match=r"models\.draft: unknown key 'pth' \(did you mean 'path'"):
        construct(Pair, {"models": {"draft": {"pth": "x"}}}, "x.toml")


def test_a_path_with_a_comma_is_one_path_in_a_pair_of_models():
    text = ",".join(f"{role}={escaped_path(path)}" for role, path in (("draft", "p/a,b"), ("target", "p/c")))
    assert {role: model["path"] for role, model in preset("pair", text).table["models"].items()} == {
        "draft": "p/a,b", "target": "p/c"
    }  # fmt: skip


def test_a_pair_extends_another_one_key_by_key(tmp_path):
    file = tmp_path / "wide.toml"
    file.write_text('extends = "tiny"\nstands_for = "llama-2"\n[models.target]\ncost = { parameters = "80M" }\n')
    pair, tiny = read_pair(str(file), Options())[1], TINY
    assert pair.models["target"].path == tiny.models["target"].path
    assert pair.models["target"].cost.parameters == "80M" and pair.models["draft"] == tiny.models["draft"]
    assert (pair.stands_for, pair.heads, pair.defaults) == ("llama-2", tiny.heads, tiny.defaults)
    assert preset("pair", "tiny").table["models"]["target"].keys() == {"path"}, "the other one is as before"
    file.write_text('extends = "tiny-7b"\n[models.target]\ncost = { parameters = "100M" }\n')
    cost = read_pair(str(file), Options())[1].models["target"].cost
    assert (cost.parameters, cost.like) == ("100M", ""), "a cost is replaced as a whole"
    file.write_text('extends = "tyni"\n')
    with pytest.raises(ConfigError, match=r"extends = 'tyni' is no other pair of configs/ \(did you mean 'tiny'"):
        read_pair(str(file), Options())
