"""Commands are imported when they are invoked."""

import os
import subprocess
import sys
from importlib.metadata import version

import pytest
import typer

from specbench.cli.app import COMMANDS, HIDDEN, LazyCommand, app
from tests.fixtures.console import specbench

SLOW = {"torch", "transformers", "pandas", "datasets", "matplotlib"}


def imported_by(*lines: list[str]) -> set[str]:
    """Return the modules that a new process has imported after these command lines."""
    code = (
        "import contextlib, io, sys\n"
        "from specbench.cli.app import main\n"
        f"for line in {lines!r}:\n"
        "    sys.argv = ['specbench', *line]\n"
        "    with contextlib.redirect_stdout(io.StringIO()):\n"
        "        try: main()\n"
        "        except SystemExit as end: assert not end.code, line\n"
        "print(*sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_help_imports_no_command():
    found = imported_by(["--help"])
    assert {name for name in found if name.startswith("specbench.cli.")} == {"specbench.cli.app"}
    assert not found & {*SLOW, "numpy", "rich"}


def test_list_imports_one_command():
    found = imported_by(["list", "methods"])
    assert "specbench.cli.catalog" in found
    assert "specbench.cli.run" not in found
    assert not found & {*SLOW, "numpy", "rich"}


def test_the_help_of_every_command_imports_nothing_slow():
    assert not imported_by(*([name, "--help"] for name in COMMANDS)) & SLOW


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_has_the_first_line_of_the_commands_docstring(name):
    loaded = LazyCommand(name, COMMANDS[name]).load()
    assert (loaded.name, (loaded.help or "").splitlines()[0]) == (name, COMMANDS[name].help)


def test_the_app_is_a_typer_app_with_every_command():
    group = typer.main.get_command(app)
    assert list(group.commands) == list(COMMANDS)
    assert {each.name for each in group.commands["list"].load().params} == {"kind", "plugin", "results", "as_json"}


def test_an_unknown_command_names_the_nearest(tmp_path):
    assert "Did you mean 'report'" in specbench("reprot", cwd=tmp_path, code=2).stderr


def test_usage_names_the_command(tmp_path):
    assert "specbench list [OPTIONS]" in specbench("list", "--help", cwd=tmp_path).stdout


def test_the_version_is_that_of_the_package(tmp_path):
    assert specbench("--version", cwd=tmp_path).stdout == f"specbench {version('specbench')}\n"


def test_the_help_of_run_fits_three_screens_and_shows_each_option_in_its_panel(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = specbench("run", "--help", cwd=tmp_path).stdout.splitlines()
    assert len(shown) <= 120 and max(map(len, shown)) <= 80
    panels, panel = {}, ""
    for line in shown:
        if line and not line.startswith(" "):
            panel = line.rstrip(":")
        panels.update(dict.fromkeys((word.strip(",") for word in line.split()[:2] if word.startswith("--")), panel))
    expected = {
        "--top-k": "Decoding",
        "--shards": "Suites and jobs",
        "--sandbox": "Measurement",
        "--set": "Overrides and plugins",
    }
    assert expected.items() <= panels.items()
    assert [line for line in shown if line.startswith("    specbench run ")], "examples"


def test_help_shows_whole_descriptions_of_commands_in_panels(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    shown = " ".join(specbench("--help", cwd=tmp_path).stdout.split())
    entries = {name: entry for name, entry in COMMANDS.items() if name not in HIDDEN}
    assert all(entry.help in shown and f"{entry.panel}:" in shown for entry in entries.values())
    assert not any(COMMANDS[name].help in shown for name in HIDDEN)
