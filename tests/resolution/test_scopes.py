"""Overrides apply where their key is, and to one task, method or pair if they name it; in suites as in single runs."""

from pathlib import Path

import pytest

from specbench.config.options import Options
from specbench.config.request import Request
from specbench.errors import ConfigError
from specbench.features.suites.grid import resolve_grid
from specbench.features.suites.suite import read_suite, suites
from specbench.resolution.methods import Methods
from specbench.resolution.resolve import Choice, resolve
from specbench.resolution.selection import read_pair, read_task, source_of

TINY = read_pair("tiny", Options())[1]
SIZES = dict.fromkeys(TINY.models, 1)
PAPERS = [name for name in suites() if not name.endswith("-tiny") and not name.startswith("tiny-")]


def options_of(**sets: object) -> Options:
    return Options(overrides=tuple((key.replace("__", "."), value) for key, value in sets.items()))


def method_of(name: str, options: Options):
    return Methods((name,), TINY, options).groups(SIZES)[0][-1].method


def request_of(methods: tuple[str, ...], tasks: tuple[str, ...], options: Options) -> Request:
    return Request(methods=methods, pair="tiny", tasks=tasks, options=options, out=Path("results"))


def test_a_key_without_a_scope_changes_every_method_that_takes_the_value():
    options = options_of(method__bonus="paper")
    assert method_of("we-sd", options).bonus == "paper"
    assert method_of("sprinter", options).bonus is True, "its bonus is a switch, which does not take a word"
    assert method_of("we-se", options) == method_of("we-se", Options())


def test_a_scoped_key_changes_one_method_alone():
    options = Options(overrides=(("method.we-sd.bonus", "none"), ("method.bonus", "exact")))
    assert (method_of("we-sd", options).bonus, method_of("sd", options).bonus) == ("none", "exact")


def test_a_task_key_changes_the_tasks_that_have_it():
    options = options_of(task__shots=3)
    assert read_task("gsm8k", TINY, options)[1].shots == 3
    assert read_task("humaneval", TINY, options)[1] == read_task("humaneval", TINY, Options())[1]
    scoped = options_of(task__mmlu__shots=2)
    assert read_task("mmlu", TINY, scoped)[1].shots == 2
    assert read_task("gsm8k", TINY, scoped)[1].shots == read_task("gsm8k", TINY, Options())[1].shots


def test_data_and_draft_lengths_have_scopes():
    options = Options(data=(("", "hub"), ("mmlu", "FILE")), gamma=(("", (2,)), ("we-se", (3, 1))))
    assert [source_of(task, TINY, options) for task in ("gsm8k", "mmlu", "mmlu:se-paper")] == ["hub", "FILE", "FILE"]
    assert method_of("sd", options).proposer.gamma == 2 and method_of("we-se", options).gamma == (3, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (options_of(method__bonsu="paper"), r"method.bonsu: none of sd, we-se has this key \(did you mean 'bonus'\?\)"),
        (options_of(task__direction="de-en"), "task.direction: none of gsm8k has this key"),
        (options_of(task__mmlu__shots=2), "task.mmlu.shots: this run has no task 'mmlu'"),
        (Options(data=(("mmlu", "FILE"),)), "--data mmlu=FILE: this run has no task 'mmlu'"),
        (Options(gamma=(("sprinter", (3,)),)), "--gamma sprinter=3: 'sprinter' is not one of the methods sd, we-se"),
        (Options(heads=(("sprinter", "FOLDER"),)), "--head sprinter: none of sd, we-se reads it"),
        (Options(heads=(("gpt2:sprinter", "F"),)), "--head gpt2:sprinter: this run has no pair 'gpt2'"),
        (Options(heads=(("tinny:eagle", "F"),)), r"this run has no pair 'tinny' \(did you mean 'tiny"),
        (options_of(pair__modles__draft__path="x"), r"pair tiny has no such key \(did you mean 'models'\?\)"),
    ],
)
def test_an_option_that_nothing_reads_is_an_error(options, message):
    with pytest.raises(ConfigError, match=message.replace("(did", r"(did") if "\\" in message else message):
        resolve(request_of(("sd", "we-se"), ("gsm8k",), options))


def test_an_option_needs_only_one_method_that_reads_it():
    options = options_of(method__bonus="exact", task__shots=1)
    assert not Choice.of(request_of(("sd", "we-se"), ("gsm8k", "humaneval"), options)).unused_options()


@pytest.mark.parametrize("name", PAPERS)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "data": (("mmlu", "mmlu.jsonl"),),
            "overrides": (("task.mmlu.exemplars", "dev.jsonl"), ("method.bonus", "paper")),
            "heads": (("gpt2:sprinter", "heads/mine"), ("eagle@middle", "heads/mine")),
        },
    ],
    ids=["as shipped", "with options of one task, method, pair or kind of head"],
)
def test_every_suite_of_the_papers_plans_without_weights_and_data(name, changes, tmp_path):
    """On a machine without either, every part says what is missing, and no part is called a mistake."""
    grid = resolve_grid(read_suite(name, **changes), tmp_path, None)
    assert [part.invalid for part in grid.parts if part.invalid] == []
    assert all(part.missing for part in grid.parts)


def test_a_key_that_no_method_has_is_an_error_in_a_suite_too(tmp_path):
    suite = read_suite("se-table2-tiny", overrides=(("method.bonsu", "paper"),))
    with pytest.raises(ConfigError, match="did you mean 'bonus'"):
        resolve_grid(suite, tmp_path, None)


def test_a_head_of_a_pair_that_does_not_exist_is_an_error_in_a_suite(tmp_path):
    with pytest.raises(ConfigError, match=r"no pair 'tinny' \(did you mean 'tiny"):
        resolve_grid(read_suite("sprinter-table1-tiny", heads=(("tinny:sprinter", "F"),)), tmp_path, None)
    unused = resolve_grid(read_suite("sprinter-table1-tiny", heads=(("gpt2:sprinter", "F"),)), tmp_path, None).unused
    assert "--head gpt2:sprinter=F has no effect" in "".join(unused.values())


def test_an_option_that_no_part_reads_is_named(tmp_path):
    suite = read_suite("sprinter-table1-tiny", data=(("mmlu", "mmlu.jsonl"),))
    assert "mmlu=mmlu.jsonl has no effect" in "".join(resolve_grid(suite, tmp_path, None).unused.values())
