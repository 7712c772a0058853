"""Every file that `specbench init` writes works as it is, on the bundled models, and is never overwritten by accident."""

import json
import shlex

import pytest

from specbench.cli.init import PLACEHOLDER, TEMPLATES
from tests.fixtures.console import specbench


def next_command(done) -> list[str]:
    """Return the arguments of the command that was printed last."""
    last = done.stdout.strip().splitlines()[-1]
    assert last.startswith("next: specbench ")
    return shlex.split(last.removeprefix("next: specbench "))


@pytest.mark.parametrize("kind", [kind for kind in TEMPLATES if kind != "task"])
def test_the_next_command_plans_runs_with_the_written_file(tmp_path, kind):
    command = next_command(specbench("init", kind, f"some-{kind}", cwd=tmp_path))
    assert command[0] == "run"
    rows = json.loads(specbench("plan", *command[1:], "--json", cwd=tmp_path).stdout)
    assert rows and {row["state"] for row in rows} == {"pending"}
    assert not [path for path in tmp_path.iterdir() if PLACEHOLDER in path.read_text()]


def test_the_written_task_is_measured_and_scored(tmp_path):
    command = next_command(specbench("init", "task", "capitals", cwd=tmp_path))
    small = ("-n", 2, "--repeats", 1, "--max-new-tokens", 4)
    done = specbench(*command, *small, "--full", cwd=tmp_path)
    assert "exact_match|norm:strip,case|shots:2|exemplars:" in done.stdout.replace("\n", "")
    (folder,) = (tmp_path / "results").glob("*capitals*")
    assert "Egypt" in (folder / "scores.json").read_text()


def test_files_are_overwritten_only_with_force(tmp_path):
    (tmp_path / "mine.jsonl").write_text("rows of mine\n")
    done = specbench("init", "task", "mine", cwd=tmp_path, code=2)
    assert "mine.jsonl exists" in done.stderr and "--force" in done.stderr
    assert not (tmp_path / "mine.toml").exists()
    specbench("init", "task", "mine", "--force", cwd=tmp_path)
    assert "rows of mine" not in (tmp_path / "mine.jsonl").read_text()


def test_a_name_may_be_a_path_and_has_a_default(tmp_path):
    done = specbench("init", "method", "folder/short drafts.toml", cwd=tmp_path, code=2)
    assert "is not a name" in done.stderr
    done = specbench("init", "method", "a folder/short.toml", cwd=tmp_path)
    assert (tmp_path / "a folder/short.toml").is_file()
    assert "a folder/short.toml" in next_command(done)
    specbench("init", "pair", cwd=tmp_path)
    assert (tmp_path / "my-pair.toml").is_file()


def test_an_unknown_kind_names_the_nearest_one(tmp_path):
    assert "did you mean 'plugin'" in specbench("init", "plugins", cwd=tmp_path, code=2).stderr
