"""JSON Schemas of the TOML files: they accept the bundled presets and reject typical mistakes."""

import dataclasses
import json
import tomllib
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from specbench.cli.schema import SCHEMAS, MethodFile, Rules, family_schema, object_schema
from specbench.config.construct import Named, construct
from specbench.config.presets import KINDS
from specbench.resolution.partial_method import BESIDES
from tests.fixtures.console import specbench

METHOD = {
    "name": "speculative",
    "proposer": {"name": "model", "model": "draft"},
    "scorers": "target",
    "target": {"name": "last"},
}
PAIR = {"models": {"draft": {"path": "a"}, "target": {"path": "b"}}}
SUITE = {
    "paper": "P",
    "shows": "Table 1",
    "description": "D",
    "grid": [{"methods": ["sd"], "pairs": ["tiny"], "tasks": ["gsm8k"]}],
}
LINE = SUITE["grid"][0]


@pytest.fixture(scope="module")
def validators() -> dict[str, Draft202012Validator]:
    schemas = {kind: make() for kind, make in SCHEMAS.items()}
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
    return {kind: Draft202012Validator(schema) for kind, schema in schemas.items()}


def test_every_kind_of_preset_has_a_schema():
    assert set(SCHEMAS) >= set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_bundled_presets_are_valid(kind, validators):
    paths = list((Path(str(resources.files("specbench.configs"))) / KINDS[kind]).rglob("*.toml"))
    assert paths
    for path in paths:
        errors = [error.message for error in validators[kind].iter_errors(tomllib.loads(path.read_text()))]
        assert not errors, (path, errors)


def test_a_second_name_is_valid(validators):
    assert validators["method"].is_valid({"same_as": "we-se"})


@pytest.mark.parametrize(
    ("kind", "table"), [("method", METHOD), ("pair", PAIR), ("task", {"name": "gsm8k"}), ("suite", SUITE)]
)
def test_minimal_tables_are_valid(kind, table, validators):
    validators[kind].validate(table)


@pytest.mark.parametrize(
    ("kind", "table"),
    [
        ("method", METHOD | {"scorer": "target"}),  # an unknown key
        ("method", METHOD | {"name": "speculativ"}),  # an unknown member
        ("method", METHOD | {"target": {"name": "mixtur"}}),
        ("method", METHOD | {"target": {}}),  # a family's table without a name
        ("method", METHOD | {"proposer": {"name": "model", "model": 3}}),  # a wrong type
        ("method", METHOD | {"proposer": {"name": "model", "model": "draft", "gama": 3}}),
        ("method", {key: value for key, value in METHOD.items() if key != "target"}),  # a missing key
        ("method", METHOD | {"clock": "wall"}),
        ("method", METHOD | {"sweep": {"key": "proposer.gamma"}}),
        ("pair", {}),
        ("pair", PAIR | {"models": {"draft": "a"}}),
        ("pair", PAIR | {"weights": "random"}),
        ("pair", PAIR | {"defaults": {"limit": "all"}}),
        ("pair", {"models": {"draft": {"path": "a", "dtype": "fp8"}}}),
        ("task", {"name": "gsm9k"}),
        ("task", {"name": "gsm8k", "stop": "\n"}),
        ("task", {"name": "gsm8k", "shots": "five"}),
        ("suite", SUITE | {"grid": []}),
        ("suite", SUITE | {"options": {"engine": "leen"}}),
        ("suite", SUITE | {"grid": [LINE | {"gama": [1]}]}),
        ("suite", SUITE | {"grid": [{"methods": ["sd"], "pairs": ["tiny"]}]}),
        ("suite", SUITE | {"options": {"limits": 3}}),
        ("suite", SUITE | {"options": {"over": {"we-se.gamma": 5}}}),
        ("suite", SUITE | {"tables": [{"rows": ["pair"]}]}),
    ],
)
def test_mistakes_are_invalid(kind, table, validators):
    assert not validators[kind].is_valid(table)


def test_options_of_a_suite_are_those_of_a_run(validators):
    options = {"limit": 3, "gamma": [5, 1], "temperature": 0, "set": {"task.shots": 0}, "head": {"sprinter": "F"}}
    validators["suite"].validate(SUITE | {"options": options})
    scoped = {"gamma": {"sd": 3, "we-se": [3, 1]}, "data": {"mmlu": "FILE"}}
    validators["suite"].validate(SUITE | {"options": scoped})
    for wrong in ({"gamma": {"sd": "3"}}, {"gamma": 0}, {"data": 1}):
        assert not validators["suite"].is_valid(SUITE | {"options": wrong})
    validators["suite"].validate(SUITE | {"grid": [LINE | options | {"over": {"sd": "auto", "sd.bonus": ["a"]}}]})


def test_method_files_have_the_keys_that_resolution_reads():
    assert {each.name for each in dataclasses.fields(MethodFile)} == set(BESIDES)


class Shape(Named):
    """A family."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Circle(Shape, name="circle"):
    """A member with a nested member."""

    radius: float = 1.0
    inner: Shape | None = None


class Color(StrEnum):
    red = "red"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Picture:
    """A dataclass with every kind of field."""

    title: str
    shapes: tuple[Shape, ...] = ()
    sizes: dict[str, float | tuple[int, ...]] = dataclasses.field(default_factory=dict)
    color: Color = Color.red
    hidden: int = 0


def picture(**values: Any) -> dict[str, Any]:
    return {"title": "t", **values}


@pytest.mark.parametrize(
    ("table", "valid"),
    [
        (picture(), True),
        ({}, False),
        (picture(shapes=[{"name": "circle", "inner": {"name": "circle", "radius": 2}}]), True),
        (picture(shapes=[{"name": "square"}]), False),
        (picture(sizes={"a": 1.5, "b": [1, 2]}), True),
        (picture(sizes={"a": "large"}), False),
        (picture(hidden=1), False),
    ],
)
def test_any_dataclass_has_a_schema(table, valid):
    schema = object_schema(Picture, "picture", Rules(hidden=frozenset({"hidden"})))
    validator = Draft202012Validator(schema)
    assert validator.is_valid(table) is valid
    if valid:
        construct(Picture, table, "picture")
    assert schema["description"] == "A dataclass with every kind of field."
    assert schema["properties"]["color"] == {"enum": ["red"], "default": "red"}


def test_a_field_type_without_a_toml_value_is_an_error():
    @dataclasses.dataclass
    class Odd:
        numbers: set[int]

    with pytest.raises(TypeError, match="set"):
        object_schema(Odd, "odd")


def test_a_family_accepts_keys_in_addition_to_the_constructors():
    @dataclasses.dataclass
    class Extra:
        description: str = ""

    validator = Draft202012Validator(family_schema(Shape, "shape", Rules(extra=Extra)))
    assert validator.is_valid({"name": "circle", "description": "d"})
    assert not validator.is_valid({"name": "circle", "inner": {"name": "circle", "description": "d"}})


def test_the_command_writes_one_file_per_kind(tmp_path):
    specbench("schema", "-o", "out", cwd=tmp_path)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {f"{kind}.schema.json" for kind in SCHEMAS}
    printed = json.loads(specbench("schema", "pair", cwd=tmp_path).stdout)
    assert printed == json.loads((tmp_path / "out" / "pair.schema.json").read_text())


def test_the_command_names_the_nearest_kind(tmp_path):
    done = specbench("schema", "pairs", cwd=tmp_path, code=2)
    assert "did you mean 'pair'" in done.stderr
