"""The texts that name kinds of quantization: their meaning, one text for each meaning, and errors with the nearest text."""

import re
from itertools import product

import pytest

from specbench.config.construct import construct, to_table
from specbench.config.pair import ModelSpec
from specbench.config.quantization_kind import NOT_QUANTIZED, QuantizationKind
from specbench.errors import ConfigError

GROUPS = ("", "-channel", "-g32", "-g64", "-g128")
TEXTS = ["", "nf4", *map("".join, product(("int4", "int8"), GROUPS, ("", "-sym", "-asym"), ("", "-a8")))]


def spec(text: object) -> ModelSpec:
    return construct(ModelSpec, {"path": "x", "quantization": text}, "pair.toml: models.middle")


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_is_read_from_a_pair_and_recorded_as_the_same_kind(text):
    kind = spec(text).quantization
    recorded = to_table(spec(text))["quantization"]
    assert recorded == str(kind) and spec(recorded).quantization == kind
    assert bool(kind) == bool(text)
    assert re.match(QuantizationKind.pattern, text), "the schema accepts it"


@pytest.mark.parametrize("text", ["", "int4", "int8", "int4-a8", "int8-a8", "nf4"])
def test_texts_of_earlier_records_mean_what_they_meant(text):
    kind = QuantizationKind.parse(text)
    assert str(kind) == text
    assert kind.symmetric == text.startswith("int8")
    assert kind.rounds_inputs == text.endswith("a8")
    if text == "int4":
        assert [kind.group_of(inputs) for inputs in (256, 192, 96, 48)] == [128, 64, 32, 0]
    if text.startswith("int8"):
        assert kind.group_of(192) == 192, "a row"


@pytest.mark.parametrize(
    ("text", "shortest"),
    [("int4-asym", "int4"), ("int8-sym", "int8"), ("int8-channel-sym-a8", "int8-a8"), ("int4-g64-asym", "int4-g64")],
)
def test_two_texts_of_one_meaning_are_recorded_as_one(text, shortest):
    assert spec(text) == spec(shortest)
    assert str(spec(text).quantization) == shortest


def test_groups_of_other_meaning_stay_apart():
    assert len({QuantizationKind.parse(text) for text in TEXTS}) == 2 + 2 * 5 * 2 * 2 - 4, (
        "int8 has channels by default"
    )
    assert QuantizationKind.parse("int4-g128").group_of(192) == 0
    assert QuantizationKind.parse("int4-channel").group_of(20) == 20
    assert QuantizationKind.parse("int4-channel-a8").group_of(20) == 0, "inputs are rounded in blocks of 32"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("INT4", " (did you mean 'int4'?)"),
        ("int4-g48", ": unknown part 'g48' (did you mean 'int4-g32'?)"),
        ("int4-g256-a8", ": unknown part 'g256' (did you mean 'int4-g128-a8'?)"),
        ("int8-chanel", ": unknown part 'chanel' (did you mean 'int8-channel'?)"),
        ("int4-128", ": unknown part '128' (did you mean 'int4-g128'?)"),
        ("int4-a8-sym", ": the order of its parts is wrong (did you mean 'int4-sym-a8'?)"),
        ("int4-g32-g64", ": 'g32' and 'g64' exclude each other (did you mean 'int4-g32'?)"),
        ("int4-a8-a8", ": 'a8' and 'a8' exclude each other (did you mean 'int4-a8'?)"),
        ("nf4-a8", ": nf4 has no further parts, such as 'a8' (did you mean 'nf4'?)"),
        ("q5_k", "; known: int4 or int8, then -channel"),
        (4, " must be a text"),
    ],
)
def test_a_mistake_is_named_with_its_key_its_part_and_the_nearest_text(text, message):
    with pytest.raises(ConfigError) as raised:
        spec(text)
    assert str(raised.value).startswith(f"pair.toml: models.middle: quantization = {text!r}{message}")


def test_a_model_is_not_quantized_by_default():
    assert ModelSpec(path="x").quantization == NOT_QUANTIZED and not NOT_QUANTIZED and str(NOT_QUANTIZED) == ""
