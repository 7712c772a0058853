"""The raw numbers of a suite's page: the page from the archive equals that from the runs, and nothing else is needed."""

import json
import lzma
import os
import shutil

import pytest

from specbench.errors import ConfigError
from specbench.features.archive import run_archive as archive
from specbench.features.archive.run_archive import unpacked_results
from specbench.runs.run_folder import IMPORTED, load
from tests.fixtures.console import specbench

SUITE = """
paper = "SPRINTER"
shows = "Table 0"
description = "a small suite"
frontier = true
options = { limit = 6, repeats = 2, max_new_tokens = 6, temperature = 1.0 }

[[prepare]]
kind = "sprinter"
pairs = ["tiny"]
tasks = ["cnndm"]
limit = 20
recipe = { epochs = 1, steps = 8 }

[[grid]]
methods = ["sprinter", "sd"]
pairs = ["tiny"]
tasks = ["cnndm"]

[[grid]]
methods = ["token-cascade", "sd"]
pairs = ["tiny"]
tasks = ["gsm8k"]
over = { "token-cascade.target.alpha" = [0.1, 0.5] }

[[tables]]
rows = ["pair", "task", "method", "setting"]
values = ["speedup", "over_sd", "score", "accepted_length", "average_tokens", "target_calls"]

[[plots]]
x = "prompt"
y = "accepted_length"

[[expect]]
says = "SPRINTER is faster than speculative decoding"
of = { method = "sprinter" }
value = "over_sd"
at_least = 1.0
"""

PROFILE = """
paper = "Polybasic"
shows = "Table 0"
description = "a small profile"
kind = "profile"
options = { limit = 2, repeats = 1, max_new_tokens = 8, temperature = 0.0, ignore_eos = true, gamma = [3] }

[[grid]]
methods = ["polybasic"]
pairs = ["tiny-polybasic"]
tasks = ["gsm8k"]
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A folder with two measured suites, one with a trained verifier, and one that profiles a chain."""
    folder = tmp_path_factory.mktemp("measured")
    for name, text in (("mine", SUITE), ("profile", PROFILE)):
        (folder / f"{name}.toml").write_text(text)
        specbench("run", "--suite", f"{name}.toml", cwd=folder)
    return folder


def rendered(folder, name, results, to):
    """Return the files of a suite's page with its plots, in every format that shows all values."""
    report = ("report", "--suite", f"{name}.toml", "--from", results)
    specbench(*report, "-f", "md", "--plots", f"{to}/{name}", "-o", f"{to}/README.md", cwd=folder)
    specbench(*report, "-f", "json", "-o", f"{to}/points.json", cwd=folder)
    found = (path for path in (folder / to).rglob("*") if path.is_file())
    return {path.relative_to(folder / to).as_posix().replace(to, ""): path.read_bytes() for path in found}


@pytest.mark.parametrize("name", ["mine", "profile"])
def test_the_page_from_the_archive_equals_the_page_from_the_runs(measured, tmp_path, name):
    """Byte for byte, with plots, in a folder that has nothing else."""
    shown = specbench("archive", "export", "--suite", f"{name}.toml", "-o", "runs.zip.xz", cwd=measured).stdout
    assert "without texts" in shown and f"report --suite {name}.toml --from runs.zip.xz" in shown
    runs = rendered(measured, name, "results", f"from-runs-{name}")
    for file in (f"{name}.toml", "runs.zip.xz"):
        shutil.copy(measured / file, tmp_path)
    archived = rendered(tmp_path, name, "runs.zip.xz", f"from-archive-{name}")
    assert runs.keys() == archived.keys() and len(runs) >= 2
    for path, content in runs.items():
        assert archived[path] == content, path
    assert not (tmp_path / "results").exists()
    page = archived["README.md"].decode()
    assert "imported from" not in page and ("Verifiers on their test rows" in page) == (name == "mine")


def test_an_archive_has_neither_prompts_nor_texts(measured):
    specbench("archive", "export", "--suite", "mine.toml", "-o", "runs.zip.xz", cwd=measured)
    with unpacked_results(measured / "runs.zip.xz") as results:
        found = (path for path in results.rglob("*") if path.is_file())
        content = {path.relative_to(results).as_posix(): path.read_bytes() for path in found}
    assert sorted(name for name in content if name.startswith(("suites/", "heads/"))) == [
        "heads/tiny/cnndm/sprinter-tau1.2/report.json", "suites/mine/index.json"
    ]  # fmt: skip
    lines = [line for name, text in content.items() if name.endswith("samples.jsonl") for line in text.splitlines()]
    assert len(lines) == 2 * (3 + 4) * 6
    for record in map(json.loads, lines):
        assert record["tokens"] and not (record["text"] or record["pieces"] or record["prompt_ends"])
        assert record["decode_seconds"] == round(record["decode_seconds"], 7)


def test_a_changed_or_cut_archive_is_an_error(measured, tmp_path):
    """An archive whose numbers were changed is not read: checksums of archive, records and index cover them."""
    specbench("archive", "export", "--suite", "mine.toml", "-o", "runs.zip.xz", cwd=measured)
    data = lzma.decompress((measured / "runs.zip.xz").read_bytes())
    place = data.index(b"[0.", data.index(b'"decode_seconds"')) + len("[0.")  # in one of the columns
    changed = bytes([ord("1") if data[place] == ord("2") else ord("2")])
    (tmp_path / "bad.zip.xz").write_bytes(lzma.compress(data[:place] + changed + data[place + 1 :]))
    with pytest.raises(ConfigError), unpacked_results(tmp_path / "bad.zip.xz"):
        pass
    (tmp_path / "cut.zip.xz").write_bytes((measured / "runs.zip.xz").read_bytes()[:-40])
    (tmp_path / "text.zip.xz").write_text("no archive")
    for name in ("cut", "text"):
        wrong = pytest.raises(ConfigError, match="not an archive of specbench archive export --suite")
        with wrong, unpacked_results(tmp_path / f"{name}.zip.xz"):
            pass


def test_an_archive_is_unpacked_up_to_a_size(measured, tmp_path):
    (tmp_path / "bomb.xz").write_bytes(lzma.compress(bytes(10_000_000)))
    with pytest.raises(ConfigError, match=r"bomb.xz: more than .* when unpacked"):
        archive.decompress(tmp_path / "bomb.xz", tmp_path / "out", most_bytes=5_000_000)
    assert (tmp_path / "out").stat().st_size <= 5_000_000


def test_unpacked_runs_are_complete_and_not_marked_as_imported(measured):
    specbench("archive", "export", "--suite", "mine.toml", "-o", "runs.zip.xz", cwd=measured)
    with unpacked_results(measured / "runs.zip.xz") as results:
        folders = [path.parent for path in results.glob("*/run.toml")]
        assert len(folders) == 2 and all(load(folder).complete for folder in folders)
        assert not any((folder / IMPORTED).exists() for folder in folders)
    assert not results.exists()


def test_an_export_of_a_suite_replaces_only_a_file(measured):
    os.mkfifo(measured / "pipe")
    (measured / "link").symlink_to("pipe")
    done = specbench("archive", "export", "--suite", "mine.toml", "-o", "link", cwd=measured, code=2)
    assert "link is not a regular file" in done.stderr
    assert (measured / "link").is_symlink() and (measured / "pipe").is_fifo()


def test_a_mistake_is_explained(measured):
    assert (
        "give either run folders or --suite NAME"
        in specbench("archive", "export", "-o", "x.zip", cwd=measured, code=2).stderr
    )
    specbench("archive", "export", "--suite", "mine.toml", "-o", "runs.zip.xz", cwd=measured)
    assert "is a file; help: --suite NAME" in specbench("report", "--from", "runs.zip.xz", cwd=measured, code=2).stderr


def test_an_archive_of_a_suite_is_imported_as_run_folders(measured, tmp_path):
    specbench("archive", "export", "--suite", "mine.toml", "-o", "runs.zip.xz", cwd=measured)
    specbench("archive", "import", measured / "runs.zip.xz", cwd=tmp_path)
    folders = [path.parent for path in (tmp_path / "imported").glob("*/run.toml")]
    assert len(folders) == 2 and all(load(folder).complete and (folder / IMPORTED).exists() for folder in folders)
