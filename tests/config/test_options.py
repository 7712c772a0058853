"""The declarations of options: the command line, suites, Python and editors read the same fields."""

from dataclasses import fields
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

from specbench.cli.params import GIVEN, SharedOptions, typer_option
from specbench.config.options import FLAGS, Options, RunOptions, fields_of
from specbench.config.request import Request
from specbench.config.request_table import request_from, table_of
from specbench.errors import ConfigError


def literals(kind: object) -> set[str]:
    """The words that a type names."""
    if get_origin(kind) is Literal:
        return set(get_args(kind))
    return {word for part in get_args(kind) for word in literals(part)} if get_args(kind) else set()


def test_the_types_for_editors_are_those_of_the_options():
    """`RunOptions` exists for editors, which cannot read the flags."""
    declared = get_type_hints(RunOptions)
    words = {flag.word or name for name, flag in FLAGS.items() if name != "plugins"}
    assert declared.keys() == words | {"plugins", "sandbox"}
    for name, flag in FLAGS.items():
        if flag.choices and name != "device":
            assert literals(declared[name]) == set(flag.choices)
    plain = {name: kind for name, kind in get_type_hints(Options).items() if not FLAGS[name].word}
    for name, kind in plain.items():
        if not FLAGS[name].choices and not FLAGS[name].read:
            assert declared[name] == kind, name


def test_every_option_has_a_flag_with_help_and_a_default_of_the_field():
    assert FLAGS.keys() == {field.name for field in fields(Options)}
    for word, (name, flag) in GIVEN.items():
        parameter = typer_option(name, flag)
        assert flag.help and parameter.name == word
        if not (flag.is_unset or flag.entry or name == "plugins"):
            assert parameter.default == getattr(Options(), name)
    assert SharedOptions().options() == Options()


def test_the_command_line_suites_python_and_files_give_equal_options():
    given = {
        "gamma": ["sd=3", "5"], "data": ["gsm8k=synthetic"], "limit": 4, "temperature": 1.0, "chat": "auto",
        "set": ["task.shots=0"], "place": ["target=cpu"], "over": ["sd.gamma=[1, 2]"], "head": ["eagle=here"],
    }  # fmt: skip
    typed = SharedOptions(given).options()
    table = {
        "gamma": {"sd": 3, "": 5}, "data": {"gsm8k": "synthetic"}, "limit": 4, "temperature": 1.0, "chat": "auto",
        "set": dict(typed.overrides), "over": {"sd.gamma": [1, 2]}, "head": {"eagle": "here"},
    }  # fmt: skip
    assert Options(**fields_of(table)) == typed
    request = Request(methods=("sd",), pair="tiny", options=typed)
    assert request_from(table_of(request)).options == typed
    words = SharedOptions(given).arguments()
    assert words[:4] == ["--gamma", "sd=3", "--gamma", "5"] and "--place" in words


def test_a_misspelled_option_of_a_table_is_named():
    with pytest.raises(ConfigError, match="unknown option 'heads' \\(did you mean 'head'"):
        fields_of({"heads": {}})
