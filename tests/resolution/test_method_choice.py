"""The methods of a request without names, and with the words `all` and `lossless`."""

from dataclasses import replace

import pytest

from specbench.config.options import Options
from specbench.config.pair import HeadKind, ModelSpec, Pair
from specbench.config.presets import names, preset
from specbench.config.request import Request
from specbench.errors import ConfigError
from specbench.resolution.available_methods import default_method, named_methods
from specbench.resolution.resolve import resolve
from specbench.resolution.selection import read_pair


def chosen(wanted: tuple[str, ...], pair: str, options: Options) -> tuple[str, ...]:
    preset, models = read_pair(pair, options)
    return named_methods(wanted, pair, models, options, preset.path.parent)


def pair_of(*roles: str, ensemble: tuple[str, ...] = ("draft", "target")) -> Pair:
    return Pair(models={role: ModelSpec(path=role) for role in roles}, ensemble=ensemble)


@pytest.mark.parametrize(
    ("pair", "method"),
    [
        (pair_of("draft", "target"), "sd"),
        (pair_of("llama", "vicuna", ensemble=("llama", "vicuna")), "se"),
        (pair_of("draft", "target", "code", "math", ensemble=("math", "code")), "sd"),
        (pair_of("target"), "pld"),
    ],
)
def test_the_default_method_suits_the_pair(pair, method):
    assert default_method(pair) == method


def test_a_pair_without_target_and_ensemble_needs_a_method():
    with pytest.raises(ConfigError, match="neither a target nor an ensemble; help: -m METHOD"):
        default_method(pair_of("draft"))


def test_names_are_kept():
    assert chosen(("sd", "own.toml"), "tiny", Options()) == ("sd", "own.toml")


def test_all_is_every_method_that_the_pair_allows():
    found = chosen(("all",), "tiny-t5", Options())
    assert {"sd", "pld", "ar-draft", "cascade-opt", "lossy"} <= set(found)
    assert "sprinter" not in found, "the pair has no verifier"
    assert "eagle" not in found, "the pair has no such head"
    assert "ar" not in found, "it is the baseline of others"
    assert len(found) == len(set(found)) and "se" not in found, "no alias"
    assert found.index("pld") < found.index("sd"), "the cheapest come first"


def test_lossless_methods_declare_their_baselines_distribution():
    found = chosen(("lossless",), "tiny", Options())
    assert {"sd", "pld", "eagle", "we-se", "we-sd"} <= set(found)
    assert not {"lossy", "cascade-opt", "sprinter", "ar-draft", "hf-assisted"} & set(found)


def test_greedy_methods_are_left_out_of_sampled_runs():
    assert "bild" in chosen(("all",), "tiny", Options())
    assert "bild" not in chosen(("all",), "tiny", replace(Options(), temperature=1.0))


def test_sweeps_and_overrides_do_not_restrict_all():
    options = Options(over=(("gamma", [1, 3]),), overrides=(("method.target.alpha", 0.1),))
    assert set(chosen(("all",), "tiny-t5", options)) == set(chosen(("all",), "tiny-t5", Options()))


def test_a_word_may_be_combined_with_names():
    found = chosen(("ar-draft", "lossless"), "tiny-t5", Options())
    assert found[0] == "ar-draft" and "sd" in found


@pytest.mark.parametrize("word", ["all", "lossless"])
def test_no_preset_has_the_name_of_a_word(word):
    with pytest.raises(ConfigError):
        preset("method", word)


def test_every_method_runs_on_a_bundled_pair_without_torchao():
    """A plain installation has no torchao, which quantized models need. The user has the heads of newer kinds."""
    bundled = [name for name in names("pair") if name.startswith("tiny")]
    plain = [
        name for name in bundled if not any(spec.quantization for spec in read_pair(name, Options())[1].models.values())
    ]
    assert "tiny-polybasic" not in plain
    heads = tuple((kind.value, "folder") for kind in (HeadKind.eagle3, HeadKind.dflash, HeadKind.dspark, HeadKind.mtp))
    runnable = {method for pair in plain for method in chosen(("all",), pair, Options(heads=heads))}
    every = [preset("method", name) for name in names("method")]
    baselines = {each.table["baseline"] for each in every if "baseline" in each.table}
    assert {each.name for each in every} == runnable | baselines


@pytest.mark.parametrize("scorers", ['["ensemble", "target"]', '["target", "ensemble"]'])
def test_a_group_in_a_list_of_models_is_an_error(scorers, tmp_path):
    method = tmp_path / "m.toml"
    method.write_text(f'name = "autoregressive"\nscorers = {scorers}\ntarget = {{ name = "mixture" }}\n')
    with pytest.raises(ConfigError, match="'ensemble' is a group of models"):
        resolve(Request(methods=(str(method),), pair="tiny", tasks=("gsm8k",), options=Options()))
