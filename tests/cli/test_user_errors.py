"""A user's mistake, a damaged file or a signal is one line with a documented exit code, never a traceback."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from specbench.config.pair import PACKAGE
from tests.fixtures.console import specbench

PROGRAM = str(Path(sys.executable).with_name("specbench"))
FEW = ["-n", 1, "--repeats", 1, "--max-new-tokens", 4]
OWN = ["run", "-m", "ar", "-t", "prompts", "--data", "rows.jsonl", *FEW]


def one_line(done):
    assert "Traceback" not in done.stderr
    assert done.stderr.count("error[") == 1, done.stderr
    return done.stderr


def test_a_missing_data_file_names_the_similar_one_beside_it(tmp_path):
    (tmp_path / "prompts.jsonl").write_text('{"question": "1 + 1?", "answer": "#### 2"}\n')
    done = specbench("run", "-t", "gsm8k", "-m", "ar", "--data", "promts.jsonl", cwd=tmp_path, code=4)
    assert "no data file promts.jsonl (did you mean 'prompts.jsonl'?)" in one_line(done)


@pytest.mark.parametrize("option", ["-m", "-p", "-t"])
@pytest.mark.parametrize("name", ["../papers", "../x", "/etc/passwd", "a/../../x", "x" * 5000, "a\0b"])
def test_a_preset_name_cannot_leave_the_preset_folder(tmp_path, option, name):
    one_line(specbench("plan", option, name, cwd=tmp_path, code=2))


def test_a_file_of_any_name_keeps_its_run_within_out(tmp_path):
    name = "..a[red]b c%$é"
    (tmp_path / f"{name}.toml").write_text(
        'name = "autoregressive"\nbaseline = "ar"\nscorers = "target"\ntarget = { name = "last" }\n'
    )
    (tmp_path / "rows.jsonl").write_text('{"prompt": "One"}\n')
    specbench(*["./" + f"{name}.toml" if word == "ar" else word for word in OWN], cwd=tmp_path)
    (folder,) = (tmp_path / "results").iterdir()
    assert set(folder.name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.+-_")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            'temperature = -1.0\nname = "autoregressive"\nscorers = "target"\ntarget = { name = "last" }\n',
            "temperature = -1",
        ),
        ('temperature = nan\nname = "autoregressive"\nscorers = "target"\ntarget = { name = "last" }\n', "temperature"),
    ],
)
def test_an_impossible_temperature_is_a_config_error(tmp_path, table, message):
    (tmp_path / "own.toml").write_text(table)
    assert message in one_line(specbench("plan", "-m", "own.toml", "-t", "gsm8k", cwd=tmp_path, code=2))


def test_an_empty_stop_string_is_a_config_error(tmp_path):
    done = specbench("plan", "-m", "ar", "-t", "gsm8k", "--set", 'task.stop=[""]', cwd=tmp_path, code=2)
    assert "stop" in one_line(done)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"prompt": "\xff"}\n', "rows.jsonl:1"),
        (b'{"prompt": "\\ud800"}\n', "surrogate"),
        (b"[" * 100_000, "rows.jsonl: not JSON"),
        (b'{"prompt": "One"}\n{', "rows.jsonl:2"),
        (b'["prompt"]\n', "not a JSON object"),
    ],
)
def test_rows_without_text_are_reported_with_their_line(tmp_path, data, message):
    (tmp_path / "rows.jsonl").write_bytes(data)
    assert message in one_line(specbench(*OWN, cwd=tmp_path, code=4))


def test_a_mistake_in_the_data_is_reported_before_a_model_is_looked_for(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"promt": "One"}\n')
    (tmp_path / "pair.toml").write_text('[models.target]\npath = "gone"\n')
    for data, code, message in (("rows.jsonl", 2, "rows.jsonl:1: no text under 'prompt'"), ("no.jsonl", 4, "no.jsonl")):
        done = specbench("run", "-m", "ar", "-p", "pair.toml", "-t", "prompts", "--data", data, cwd=tmp_path, code=code)
        assert message in one_line(done) and "gone" not in done.stderr


COMMANDS = [["run", "-n", 3], ["verify", "-n", 3], ["trace"]]


def long_prompts(folder):
    """Write three prompts, of which two are beyond the window of 8192 tokens."""
    rows = [{"prompt": "One"}, {"prompt": "1 " * 5000}, {"prompt": "1 " * 4500}]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ["-m", "ar", "-t", "prompts", "--data", "rows.jsonl", "--max-new-tokens", 4]


@pytest.mark.parametrize("command", COMMANDS)
def test_prompts_that_do_not_fit_end_a_command_before_decoding(tmp_path, command):
    words = [*command, *long_prompts(tmp_path), *(["--sample-index", 1] if command == ["trace"] else [])]
    said = one_line(specbench(*words, cwd=tmp_path, code=2))
    count = "1 of 1" if command == ["trace"] else "2 of 3"
    assert f"{count} prompts have more than 8191 tokens; " in said and "--on-overflow truncate-left" in said
    assert "10000" in said, "the longest"
    assert not list(tmp_path.rglob("samples.jsonl"))


def test_no_task_is_measured_if_the_prompts_of_another_do_not_fit(tmp_path):
    words = ["run", "-t", "gsm8k", *long_prompts(tmp_path)[:4], "--data", "prompts=rows.jsonl", *FEW[2:]]
    said = one_line(specbench(*words, "-n", 2, cwd=tmp_path, code=2))
    assert "task prompts: 1 of 2 prompts have more than 8191 tokens" in said
    assert not list(tmp_path.rglob("samples.jsonl"))


def templated_pair(folder, template):
    (folder / "own.jinja").write_text(template)
    model = PACKAGE / "tiny" / "models" / "target"
    (folder / "pair.toml").write_text(f'[models.target]\npath = "{model}"\nchat_template = "own.jinja"\n')
    (folder / "rows.jsonl").write_text('{"prompt": "One"}\n')
    return ["-m", "ar", "-p", "pair.toml", "-t", "prompts", "--data", "rows.jsonl", "--max-new-tokens", 4]


TEMPLATES = {
    "{{ raise_exception('Only assistant\nroles') }}": "Only assistant roles",
    "{% for m in messages %}{{ m['content'] }": "unexpected '}'",
    "{{ missing.name }}": "'missing' is undefined",
    "{{ messages | unknown }}": "No filter named 'unknown'",
    "{{ messages + 1 }}": "can only concatenate list",
}


@pytest.mark.parametrize(
    ("command", "template"),
    [(["trace"], template) for template in TEMPLATES]
    + [(command, next(iter(TEMPLATES))) for command in (["run", "-n", 1], ["verify", "-n", 1])],
)
def test_a_chat_template_that_fails_is_a_config_error(tmp_path, command, template):
    words = [*command, *templated_pair(tmp_path, template)]
    said = one_line(specbench(*words, "--chat", "auto", cwd=tmp_path, code=2))
    assert TEMPLATES[template] in said
    assert "help: --chat off, or chat_template = NAME or FILE in the pair's model" in said
    assert not list(tmp_path.rglob("samples.jsonl"))
    specbench(*words, "--chat", "off", cwd=tmp_path, code={0, 6})


@pytest.mark.parametrize("command", [["run", "-n", 1], ["verify", "-n", 1]])
def test_a_required_chat_template_that_is_missing_is_a_config_error(tmp_path, command):
    words = [*command, *long_prompts(tmp_path), "--chat", "required"]
    assert "the tokenizer has no chat template; help: --chat auto" in one_line(specbench(*words, cwd=tmp_path, code=2))
    assert not list(tmp_path.rglob("samples.jsonl"))


def test_an_argument_that_is_not_utf8_is_rejected(tmp_path):
    done = subprocess.run([PROGRAM, "run", "-m", b"\xff"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "UTF-8" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("out", ["/proc/nowhere", "x" * 300, "file/results"])
def test_an_impossible_output_folder_is_an_error_of_one_line(tmp_path, out):
    (tmp_path / "file").write_text("")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "One"}\n')
    one_line(specbench(*OWN, "-o", out, cwd=tmp_path, code={2, 4}))


def test_a_damaged_snapshot_is_one_line(tmp_path):
    command = {"methods": ["sd"], "pair": "tiny", "tasks": ["gsm8k"], "options": {"limit": "x"}}
    base = {"schema": 1, "semantics": 4, "counters_only": True, "commands": [command], "cells": [1]}
    for change in ({}, {"cells": []}, {"commands": 3}, {"schema": "x"}, {"cells": [{}]}, {"commands": [{}]}):
        (tmp_path / "base.json").write_text(json.dumps(base | change))
        one_line(specbench("gate", "check", "base.json", cwd=tmp_path, code=2))
        one_line(specbench("compare", "base.json", "base.json", cwd=tmp_path, code=2))


OWN_TASK = """
import numpy
from pathlib import Path
from dataclasses import dataclass
from specbench.scoring import Metric
from specbench.tasks.custom import Prompts

@dataclass(frozen=True, kw_only=True)
class Own(Prompts, name="own"):
    metrics = (Metric("right", "always"),)

    def score(self, sample, text, sandbox=None):
        return {"right": eval(Path("value.txt").read_text())}
"""


def test_a_score_outside_0_to_1_is_an_error_of_one_line(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "One two"}\n')
    (tmp_path / "own.py").write_text(OWN_TASK)
    (tmp_path / "value.txt").write_text("numpy.float32(1)")
    few = ("-n", 1, "--repeats", 1, "--max-new-tokens", 4, "--data", "rows.jsonl")
    specbench("run", "-m", "ar", "-p", "tiny", "-t", "own", "--plugin", "own.py", *few, cwd=tmp_path)
    (folder,) = (tmp_path / "results").iterdir()
    for value, words in (("numpy.float32(7.5)", "right = 7.5, which must be from 0 to 1"), ("None", "is not a number")):
        (tmp_path / "value.txt").write_text(value)
        done = specbench("score", folder, "--plugin", "own.py", cwd=tmp_path, code=2)
        assert words in one_line(done)


def test_an_interrupt_within_a_finalizer_prints_nothing():
    code = (
        "import sys; from specbench.cli import without_signals; sys.unraisablehook = without_signals\n"
        "class Fragile:\n"
        "    def __init__(self, error): self.error = error\n"
        "    def __del__(self): raise self.error\n"
        "Fragile(KeyboardInterrupt()); Fragile(SystemExit(143)); Fragile(ValueError('a bug'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "KeyboardInterrupt" not in done.stderr and "SystemExit" not in done.stderr
    assert "ValueError: a bug" in done.stderr


@pytest.fixture(scope="module")
def things(tmp_path_factory):
    """A folder with rows of two kinds, an empty folder, and a model in a folder."""
    folder = tmp_path_factory.mktemp("things")
    (folder / "prompts.jsonl").write_text('{"prompt": "One"}\n')
    (folder / "chats.jsonl").write_text('{"conversations": [{"from": "human", "value": "Hi."}]}\n')
    (folder / "empty").mkdir()
    shutil.copytree(PACKAGE / "tiny/models/draft", folder / "own/large")
    (folder / "two.toml").write_text(
        '[models.draft]\npath = "own/large"\n[models.target]\npath = "own/large"\n[defaults]\ntasks = ["gsm8k"]\n'
    )
    return folder


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("run -t gsm8k --data synthetic -m ar --target empty", 4, "no config.json in"),
        ("run -t gsm8k --data synthetic -m ar --target own", 4, "help: one of its folders: large"),
        ("run -t gsm8k --data synthetic -m ar --target own/larg", 4, "did you mean the folder own/large?"),
        ("run -t gsm8k -m SD", 2, "did you mean 'sd'?"),
        ("run -t gsm8k -m ar --data synthetc", 4, "no data file synthetc (did you mean 'synthetic'?)"),
        ("plan -t gsm8k -m ar --set gamma=3", 2, "help: --gamma 3"),
        ("plan -t gsm8k -m ar --set max-new-tokens=3", 2, "help: --max-new-tokens 3"),
        ("run -m ar -t dialogues --data prompts.jsonl", 2, "help: -t prompts"),
        ("run -m ar -t gsm8k --data prompts.jsonl", 2, "help: -t prompts"),
        ("run -m ar -t gsm8k --data chats.jsonl", 2, "help: -t dialogues"),
        ("run -m ar -t prompts --data chats.jsonl", 2, "help: -t dialogues"),
        ("profile -p two.toml --data synthetic", 2, "help: a pair of three models, such as -p tiny-polybasic"),
        ("run -m sd -t gsm8k -n 1 --max-new-tokens 2 --over gamma=auto", 2, "too few to know the cost of blocks"),
        ("list metods", 2, "did you mean 'methods'?"),
        ("show gsm8k", 2, "did you mean `specbench show task gsm8k`?"),
        ("show method", 2, "help: specbench list methods"),
    ],
)
def test_an_error_says_what_was_meant(things, command, code, message):
    assert message in one_line(specbench(*command.split(), cwd=things, code=code))


def test_all_missing_options_of_a_judge_are_one_error(things):
    specbench("run", "-m", "sd,pld", "-t", "gsm8k", *FEW, cwd=things)
    error = one_line(specbench("judge", cwd=things, code=2))
    assert "--judge is missing" in error and "help: --of sd" in error


def test_verify_reads_its_data_before_it_loads_models(things):
    done = specbench("verify", "-m", "sd", "-t", "gsm8k", "--data", "none.jsonl", cwd=things, code=4)
    assert "no data file none.jsonl" in one_line(done) and "loading" not in done.stderr


@pytest.mark.parametrize(
    ("command", "usage"), [("list", "list [OPTIONS] KIND"), ("show", "show [OPTIONS] KIND [NAME]")]
)
def test_usage_lines_are_plain(command, usage):
    text = specbench(command, "-h", cwd=Path.cwd()).stdout
    assert usage in text and not {*"{}\t"} & {*text.partition("Options:")[0]}
