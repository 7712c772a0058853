"""Layers of packages, the wheel, and what start-up imports."""

import ast
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LINT_IMPORTS = [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--config", ROOT / "pyproject.toml"]


@pytest.fixture
def tree(tmp_path) -> Path:
    """A copy of the package's modules, put together as they are installed."""
    for folder, place in ((ROOT / "specbench", ""), *((ROOT / top, top) for top in ("cli", "tasks", "configs"))):
        for path in folder.rglob("*.py"):
            copy = tmp_path / "specbench" / place / path.relative_to(folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    return tmp_path


def lint_imports(tree: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, LINT_IMPORTS)), cwd=tree, capture_output=True, text=True)


def test_packages_import_only_those_below_them(tree):
    done = lint_imports(tree)
    assert done.returncode == 0, done.stdout


def test_an_import_of_the_command_line_by_the_library_breaks_the_contract(tree):
    with (tree / "specbench" / "experiment" / "runner.py").open("a") as file:
        file.write("\n\ndef _forbidden() -> None:\n    import specbench.cli.app  # noqa: F401\n")
    done = lint_imports(tree)
    assert done.returncode == 1
    assert "specbench.experiment.runner -> specbench.cli.app" in done.stdout


def test_no_two_modules_have_one_name():
    """A command's module has the name of its command, which the library's modules do not use."""
    modules = [
        path for top in ("specbench", "cli", "tasks") for path in (ROOT / top).rglob("*.py") if path.stem[:2] != "__"
    ]
    by_name = Counter(path.name for path in modules)
    assert [str(path.relative_to(ROOT)) for path in modules if by_name[path.name] > 1] == []


def test_every_package_is_listed():
    tops = {
        "cli": "specbench.cli",
        "tasks": "specbench.tasks",
        "configs": "specbench.configs",
        "specbench": "specbench",
    }
    there = {
        ".".join([name, *path.parent.relative_to(ROOT / top).parts])
        for top, name in tops.items()
        for path in (ROOT / top).rglob("__init__.py")
    }
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == there


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy, since setuptools leaves a build folder and would include its files."""
    out, source = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("source") / "specbench"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "build", "results", "tests", "__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", out, source]
    subprocess.run(list(map(str, command)), check=True, capture_output=True)
    return next(out.glob("*.whl"))


def test_the_wheel_installs_one_top_level_name_with_all_its_data(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"specbench"}
    for kind in ("methods", "pairs", "tasks"):
        expected = {p.name for p in (ROOT / "configs" / kind).rglob("*.toml")}
        assert {Path(n).name for n in names if n.startswith(f"specbench/configs/{kind}/")} == expected
    assert "specbench/tiny/models/target/model.safetensors" in names
    assert "specbench/py.typed" in names


def test_the_wheel_works_from_any_directory(wheel, tmp_path):
    """Unpacked, with nothing of the checkout on the path."""
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = "import sys; sys.argv = ['specbench', 'list', 'pairs']; from specbench.cli.app import main; main()"
    script = f"import sys; sys.meta_path = [f for f in sys.meta_path if 'editable' not in repr(f)]\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path / "site", capture_output=True, text=True, env={"PYTHONPATH": "."}
    )
    assert done.returncode == 0, done.stderr
    assert "llama-vicuna" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "exit_code"),
    [
        (["--help"], 0),
        (["list", "methods"], 0),
        (["show", "pair", "tiny"], 0),
        (["run", "-m", "see"], 2),
        (["verify", "-m", "sd", "-p", "tinny"], 2),
        (["gate", "record", "base.json", "-t", "gsm9k"], 2),
    ],
)
def test_start_up_imports_nothing_slow(arguments, exit_code):
    """`--help`, `list`, `show` and the error for a misspelt name import no torch, transformers, pandas or numpy."""
    code = (
        f"import sys; sys.argv = ['specbench', *{arguments}]\n"
        "from specbench.cli.app import main\n"
        "try: main()\n"
        f"except SystemExit as end: assert (end.code or 0) == {exit_code}, end.code\n"
        "slow = {'torch', 'transformers', 'pandas', 'numpy', 'datasets', 'huggingface_hub'} & set(sys.modules)\n"
        "assert not slow, slow\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["list", "methods"]])
def test_start_up_imports_few_modules(arguments):
    """Count modules instead of seconds: `--help` imports about 170."""
    code = (
        f"import sys; sys.argv = ['specbench', *{arguments}]\n"
        "from specbench.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "assert len(sys.modules) <= 210, len(sys.modules)\n"
        "assert not {'msgspec', 'filelock', 'pydantic'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_reports_need_no_torch():
    modules = "specbench.analysis.summary, specbench.reporting.tables"
    code = f"import sys, {modules}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_requirements_admit_what_we_promise():
    from packaging.requirements import Requirement

    ranges = {r.name: r.specifier for r in map(Requirement, PROJECT["project"]["dependencies"])}
    assert all(version in ranges["torch"] for version in ("2.11.0", "2.12.1", "2.13.0"))
    assert all(version in ranges["transformers"] for version in ("5.17.0", "5.23.0"))


def _texts(tree: ast.AST) -> Iterator[str]:
    """Yield the texts in quotes, without the words of closed vocabularies, which may be spelled as a method is."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef) and "StrEnum" in map(ast.unparse, node.bases):
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        yield from _texts(node)


@pytest.mark.parametrize(
    "package", ["analysis", "config", "experiment", "features/advise", "features/plan", "reporting", "resolution"]
)
def test_the_core_names_no_method(package):
    """Names of methods in quotes. What reports need of a method is stored with the run, or in its class or preset."""
    methods = {path.stem for path in (ROOT / "configs" / "methods").glob("*.toml")}
    for path in (ROOT / "specbench" / package).rglob("*.py"):
        if path.name == "speculation_profile.py":  # names of NVIDIA's file format
            continue
        assert not methods & {*_texts(ast.parse(path.read_text()))}, path
