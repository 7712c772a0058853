"""run.toml holds a run spec completely: what is written reads back equal, for every preset and every run of a suite."""

import subprocess
import sys
import tomllib
from dataclasses import replace

import jsonschema
import pytest
import tomli_w
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig

import specbench.tasks  # noqa: F401  (registers the tasks)
from specbench.cli.schema import SCHEMAS
from specbench.config.construct import construct, to_table
from specbench.config.options import Options
from specbench.config.presets import names
from specbench.data.task import Data, Sample
from specbench.decoding.method import Method
from specbench.decoding.traits import Theory
from specbench.errors import ConfigError, MissingAsset
from specbench.features.profile.chain_profile import GAMMA
from specbench.features.profile.pairings import levels_and_trees, pairings
from specbench.features.suites.suite import read_suite, suites
from specbench.models.heads.resolve_heads import resolve_heads
from specbench.models.resolved_model import Architecture, ResolvedModel
from specbench.resolution.methods import Methods
from specbench.resolution.selection import SelectedTask, read_pair, read_task
from specbench.resolution.spec import ResolvedPair, run_spec
from specbench.runs.run_spec import RunSpec

DATA = Data([Sample("0", "a prompt")], "a file", None, "0" * 64, 1)


def specs_of(methods: list[str], pair_name: str, task_name: str, options: Options) -> list[RunSpec]:
    """The specs of methods on a pair, whose models have one small architecture, and a task with one sample."""
    options = replace(options, overrides=(*options.overrides, ("pair.weights", "dummy")))
    preset, pair = read_pair(pair_name, options)
    models = {
        role: ResolvedModel(pair.models[role], Architecture(CONFIG), "float32", weights="dummy")
        for role in Methods(tuple(methods), pair, options).roles
    }
    heads = resolve_heads(pair, Methods(tuple(methods), pair, options).heads, preset.path.parent)
    sizes = {role: each.size.parameters for role, each in models.items()}
    resolved = ResolvedPair(preset.name, pair, preset.path.parent, torch.device("cpu"), models, heads)
    name, task = read_task(task_name, pair, options)
    selected = SelectedTask(name, task, DATA)
    return [
        run_spec(group, resolved, selected, options) for group in Methods(tuple(methods), pair, options).groups(sizes)
    ]


CONFIG = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)


def reads_back(spec: RunSpec) -> bool:
    """Whether the text of run.toml gives an equal spec, whose methods are equal too."""
    again = RunSpec.from_toml(tomllib.loads(tomli_w.dumps(spec.to_toml())))
    for label, each in again.methods.items():
        method = Method.build(each.options, label)
        traits = replace(method.traits(), is_reference=each.traits.is_reference)  # which its preset says
        assert traits == each.traits == spec.methods[label].traits
    return again == spec and again.sha256 == spec.sha256 and again.folder == spec.folder


@settings(max_examples=200, deadline=None)
@given(
    method=st.sampled_from(names("method")), pair=st.sampled_from(names("pair")), task=st.sampled_from(names("task"))
)
def test_a_spec_of_any_presets_reads_back_equal(method, pair, task):
    try:
        specs = specs_of([method], pair, task, Options())
    except (ConfigError, MissingAsset) as error:  # a pair without the models or head that the method needs
        if not any(text in str(error) for text in ("this pair has no", "not on the hub", "takes a small")):
            raise
        return
    assert specs and all(map(reads_back, specs))


@pytest.mark.parametrize("name", suites())
def test_the_specs_of_every_suite_read_back_equal(name):
    """With every pair and every task of each of its lines; not with each combination of them, which adds no key."""
    suite, seen = read_suite(name), set()
    for line, pair, task in suite.parts():
        here = {(id(line), pair), (id(line), task)}
        if here <= seen:
            continue
        seen |= here
        methods = list(line.methods)
        if suite.kind == "profile":
            levels, trees = levels_and_trees(methods)
            methods = pairings(levels, read_pair(pair, line.options)[1], GAMMA, trees)
        trained = [head.name for step in suite.prepare for head in step.heads(pair, task)]
        heads = dict.fromkeys(["sprinter", "specdec++", *trained], "a folder")
        options = replace(line.options, heads=(*line.options.heads, *heads.items()))
        specs = specs_of(methods, pair, task, options)
        assert specs and all(map(reads_back, specs))


def test_a_spec_with_an_unknown_key_names_it():
    table = specs_of(["sd"], "tiny", "gsm8k", Options())[0].to_toml()
    with pytest.raises(ConfigError, match=r"run.toml: unknown key 'baselin' \(did you mean 'baseline'\?\)"):
        RunSpec.from_toml({**table, "baselin": "ar"})


def test_the_hash_covers_everything_but_traits():
    table = specs_of(["sd"], "tiny", "gsm8k", Options())[0].to_toml()
    spec = RunSpec.from_toml(table)
    table["methods"]["sd"]["traits"]["draft_length"] = "about 5"
    assert RunSpec.from_toml(table).sha256 == spec.sha256 and RunSpec.from_toml(table).checksum != spec.checksum
    table["decoding"]["seed"] = 1
    assert RunSpec.from_toml(table).sha256 != spec.sha256


def test_keys_that_a_model_does_not_use_are_not_stored():
    models = specs_of(["sd"], "tiny", "gsm8k", Options())[0].to_toml()["pair"]["models"]
    assert all({"cost", "gguf_file", "stored"}.isdisjoint(model) for model in models.values())  # else older runs differ


def test_reading_a_spec_does_not_import_torch():
    code = "import sys, specbench.runs.run_folder; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_run_toml_validates_against_its_schema():
    (spec,) = specs_of(["sd"], "tiny", "gsm8k", Options())
    table = tomllib.loads(tomli_w.dumps(spec.to_toml()))
    schema = SCHEMAS["run"]()
    jsonschema.validate(table, schema)
    with pytest.raises(jsonschema.ValidationError, match="seed"):
        jsonschema.validate({**table, "decoding": {**table["decoding"], "seed": "one"}}, schema)


def test_a_formulas_own_numbers_are_stored_with_the_method():
    theory = Theory(formula="alternating", models=("draft", "target"), parameters={"every": 2.0})
    assert construct(Theory, to_table(theory), "theory") == theory
    assert "parameters" not in to_table(Theory(formula="speculation", models=("draft", "target")))


def test_a_table_with_the_traits_of_an_earlier_revision_is_read_with_the_same_hash_and_checksum():
    """Earlier revisions stored the names of methods where there are kinds now, and neither of the two newer traits."""
    (spec,) = specs_of(["sprinter"], "tiny", "gsm8k", Options(heads=(("sprinter", "a folder"),)))
    table = spec.to_toml()
    for label, method in table["methods"].items():
        traits = method["traits"]
        for key in ("is_reference", "longest_draft", "predicts_distance"):
            traits.pop(key, None)
        traits["flops"] = {"tested": "sprinter", "drafted": "speculation"}.get(traits["flops"], traits["flops"])
        if label == "sprinter":
            assert traits["flops"] == "sprinter"
            traits["theory"]["formula"] = "sprinter"
    earlier = RunSpec.from_toml(table)
    later = {
        label: replace(method, traits=replace(method.traits, longest_draft=None))
        for label, method in spec.methods.items()
    }
    assert earlier == replace(spec, methods=later) and earlier.methods["sprinter"].traits.predicts_distance
    assert (earlier.sha256, earlier.checksum) == (spec.sha256, spec.checksum)


def test_the_reference_of_a_run_is_plain_speculative_decoding_without_settings():
    assert specs_of(["sd"], "tiny", "gsm8k", Options())[0].reference == "sd"
    assert specs_of(["eagle"], "tiny", "gsm8k", Options())[0].reference == ""
