"""Archives of runs: what they contain, and that an import accepts nothing else."""

import hashlib
import json
import os
import resource
import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from specbench.analysis.summary import summary_of
from specbench.errors import ConfigError
from specbench.features.archive import run_archive as archive
from specbench.files import write_with_checksum
from specbench.runs.run_folder import load
from tests.fixtures import console

SPECBENCH = Path(sys.executable).with_name("specbench")
RUN = ["run", "-m", "sd", "-p", "tiny", "-t", "gsm8k", "-n", 2, "--repeats", 1, "--max-new-tokens", 8]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A folder of results with one run."""
    folder = tmp_path_factory.mktemp("measured")
    console.specbench(*RUN, cwd=folder)
    return folder


@pytest.fixture
def run(measured):
    return next(path.parent for path in (measured / "results").glob("*/run.toml"))


def exported(run, path, texts=False):
    archive.pack([run], path, texts)
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def rewritten(path, members, listing=None):
    """Write members as an archive. Its manifest fits them, unless another is given."""
    content = {name: data for name, data in members.items() if name != archive.LISTING}
    files = {name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)} for name, data in content.items()}
    table = {"format": 1, "texts": True, "files": files} | (listing or {})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(archive.LISTING, json.dumps(table))
        for name, data in content.items():
            file.writestr(name, data)
    return path


def test_an_imported_run_equals_the_exported_one(run, tmp_path):
    done = console.specbench("archive", "export", run, "-o", "runs.zip", cwd=tmp_path)
    assert "1 run without texts" in done.stdout
    done = console.specbench("archive", "import", "runs.zip", cwd=tmp_path)
    assert "4 of 4 generations" in done.stdout
    there, here = load(run), load(tmp_path / "imported" / run.name)
    assert here.complete and [r.tokens for r in here.records] == [r.tokens for r in there.records]
    assert summary_of(run).methods == summary_of(tmp_path / "imported" / run.name).methods
    report = ("report", tmp_path / "imported" / run.name)
    assert "imported from runs.zip" in " ".join(console.specbench(*report, "--full", cwd=tmp_path).stdout.split())
    console.specbench(*report, "-f", "html", "-o", "page.html", cwd=tmp_path)  # without texts to show


def test_texts_travel_on_request_only(run, tmp_path):
    record = load(run).records[0]
    with_texts = exported(run, tmp_path / "with.zip", texts=True)
    without = exported(run, tmp_path / "without.zip")
    samples = f"{run.name}/samples.jsonl"
    assert json.dumps(record.text, ensure_ascii=False).encode() in with_texts[samples]
    for line in without[samples].splitlines():
        table = json.loads(line)
        assert table["tokens"] and not (table["text"] or table["pieces"] or table["prompt_ends"])
        assert not any("rejected" in each for each in table["rounds"])
    assert "samples" not in json.loads(without[f"{run.name}/scores.json"])


def test_equal_runs_give_equal_archives(run, tmp_path):
    for name in ("one.zip", "two.zip"):
        archive.pack([run], tmp_path / name)
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()


def test_an_imported_run_without_texts_is_neither_scored_nor_continued(run, tmp_path):
    archive.pack([run], tmp_path / "runs.zip")
    archive.unpack(tmp_path / "runs.zip", tmp_path / "imported")
    done = console.specbench("score", tmp_path / "imported" / run.name, cwd=tmp_path, code=2)
    assert "exported without texts" in done.stderr
    done = console.specbench(*RUN, "--out", "imported", cwd=tmp_path, code=2)
    assert "was imported from runs.zip" in done.stderr


def test_scoring_without_the_rows_names_the_option_for_them(tmp_path):
    rows = [{"question": f"{n} + 1?", "answer": f"#### {n + 1}"} for n in range(2)]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    console.specbench(*RUN, "--data", "rows.jsonl", cwd=tmp_path)
    (tmp_path / "rows.jsonl").rename(tmp_path / "moved.jsonl")
    done = console.specbench("score", cwd=tmp_path, code=4)
    assert "the rows of results/" in done.stderr and "help: --data FILE" in done.stderr
    console.specbench("score", "--data", "moved.jsonl", cwd=tmp_path)


def test_a_damaged_run_is_not_exported(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / run.name)
    lines = (copy / "samples.jsonl").read_bytes().splitlines(keepends=True)
    (copy / "samples.jsonl").write_bytes(lines[0].replace(b'"order": 0', b'"order": 9') + b"".join(lines[1:]))
    with pytest.raises(ConfigError, match="damaged"):
        archive.pack([copy], tmp_path / "runs.zip")
    assert not (tmp_path / "runs.zip").exists()


HOSTILE = {
    "absolute path": ("/tmp/specbench-hostile", "not a file of a run folder"),
    "parent folder": ("../outside/run.toml", "not a file of a run folder"),
    "hidden folder": (".git/run.toml", "not a file of a run folder"),
    "backslash": ("a\\..\\b/run.toml", "not a file of a run folder"),
    "deep path": ("run/sub/run.toml", "not a file of a run folder"),
    "program": ("run/evil.py", "not a file of a run folder"),
    "pickle": ("run/data.pkl", "not a file of a run folder"),
}


@pytest.mark.parametrize(("name", "reason"), HOSTILE.values(), ids=HOSTILE)
def test_other_paths_are_not_written(name, reason, run, tmp_path):
    path = rewritten(tmp_path / "bad.zip", exported(run, tmp_path / "good.zip") | {name: b"x"})
    with pytest.raises(ConfigError, match=reason):
        archive.unpack(path, tmp_path / "out")
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob("outside*"))


def test_content_that_differs_from_the_manifest_is_not_imported(run, tmp_path):
    members = exported(run, tmp_path / "good.zip", texts=True)
    listing = json.loads(members[archive.LISTING])
    samples = f"{run.name}/samples.jsonl"
    changed = members | {samples: members[samples].replace(b"1", b"2")}
    with pytest.raises(ConfigError, match="its checksum differs"):
        archive.unpack(rewritten(tmp_path / "bad.zip", changed, listing), tmp_path / "out")
    longer = members | {samples: members[samples] * 2}
    with pytest.raises(ConfigError, match="is larger than"):
        archive.unpack(rewritten(tmp_path / "bad.zip", longer, listing), tmp_path / "out")
    fewer = {name: data for name, data in members.items() if name != samples}
    with pytest.raises(ConfigError, match="its contents do not match"):
        archive.unpack(rewritten(tmp_path / "bad.zip", fewer, listing), tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def test_records_are_checked_although_the_manifest_fits(run, tmp_path):
    """The author of an archive can compute checksums, so these protect against damage only."""
    members = exported(run, tmp_path / "good.zip", texts=True)
    for file, content in {
        "samples.jsonl": b'{"method": "sd"}\n',
        "env.json": b"{}",
        "run.toml": b"semantics = 1",
    }.items():
        bad = rewritten(tmp_path / "bad.zip", members | {f"{run.name}/{file}": content})
        with pytest.raises(ConfigError):
            archive.unpack(bad, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def test_sizes_are_limited(run, tmp_path):
    archive.pack([run], tmp_path / "good.zip")
    with pytest.raises(ConfigError, match="--max-gib"):
        archive.unpack(tmp_path / "good.zip", tmp_path / "out", most_bytes=100)
    bomb = rewritten(tmp_path / "bomb.zip", {f"{run.name}/run.toml": bytes(10**6)}, {"files": {f"{run.name}/run.toml": {
        "sha256": hashlib.sha256(b"").hexdigest(), "bytes": 10,
    }}})  # fmt: skip
    with pytest.raises(ConfigError, match="larger than 10 bytes"):
        archive.unpack(bomb, tmp_path / "out")


def test_other_compressions_are_not_opened(run, tmp_path):
    """zipfile unpacks a whole chunk of bzip2 and LZMA data at once, without a limit."""
    for kind in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with zipfile.ZipFile(tmp_path / "bad.zip", "w", kind) as file:
            file.writestr(archive.LISTING, bytes(10**6))
        with pytest.raises(ConfigError, match="compressed in another way"):
            archive.unpack(tmp_path / "bad.zip", tmp_path / "out")


def test_a_damaged_stream_is_one_message(run, tmp_path):
    archive.pack([run], tmp_path / "bad.zip", texts=True)
    data = bytearray((tmp_path / "bad.zip").read_bytes())
    middle = len(data) // 2
    data[middle : middle + 64] = bytes(64)
    (tmp_path / "bad.zip").write_bytes(data)
    with pytest.raises(ConfigError):
        archive.unpack(tmp_path / "bad.zip", tmp_path / "out")


def test_existing_folders_are_kept(run, tmp_path):
    archive.pack([run], tmp_path / "good.zip")
    archive.unpack(tmp_path / "good.zip", tmp_path / "out")
    with pytest.raises(ConfigError, match="exists; help: --out"):
        archive.unpack(tmp_path / "good.zip", tmp_path / "out")


def test_other_files_are_named(tmp_path):
    (tmp_path / "text.zip").write_text("not a zip")
    done = console.specbench("archive", "import", "text.zip", cwd=tmp_path, code=2)
    assert "not an archive of specbench archive export" in done.stderr
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as file:
        file.writestr("readme.txt", "x")
    done = console.specbench("archive", "import", "other.zip", cwd=tmp_path, code=2)
    assert "does not begin with archive.json" in done.stderr


@pytest.mark.parametrize("kind", ["fifo", "link to a fifo", "folder", "loop"])
def test_an_export_replaces_only_a_file(kind, run, tmp_path):
    out = tmp_path / "runs.zip"
    if kind == "folder":
        out.mkdir()
    elif kind == "loop":
        out.symlink_to(out)
    else:
        os.mkfifo(tmp_path / "pipe")
        out.symlink_to(tmp_path / "pipe") if "link" in kind else (tmp_path / "pipe").rename(out)
    before = out.lstat()
    assert (
        "is not a regular file" in console.specbench("archive", "export", run, "-o", out, cwd=tmp_path, code=2).stderr
    )
    assert (out.lstat().st_mode, out.lstat().st_ino) == (before.st_mode, before.st_ino)


@pytest.mark.parametrize("exists", [True, False])
def test_an_export_writes_through_a_link(exists, run, tmp_path):
    (tmp_path / "real").mkdir()
    real, link = tmp_path / "real" / "runs.zip", tmp_path / "runs.zip"
    if exists:
        real.write_text("old")
    link.symlink_to(real)
    console.specbench("archive", "export", run, "-o", link, cwd=tmp_path)
    assert link.is_symlink() and zipfile.is_zipfile(real)
    console.specbench("archive", "import", link, cwd=tmp_path)
    assert os.listdir(tmp_path / "real") == ["runs.zip"]


def test_texts_of_no_judge_are_exported(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / run.name)
    row = {"sample": "0", "repeat": 0, "verdict": 1.0, "unclear": 0, "key": "k"}
    row["exchanges"] = [{"prompt": "a secret prompt", "answer": "A"}]
    judged = {"judge": {}, "label": "one", "of": "sd", "against": "ar", "comparisons": 1, "rows": [row]}
    write_with_checksum(copy / "judged.json", {**judged, "earlier": [judged]})
    assert b"secret" not in exported(copy, tmp_path / "without.zip")[f"{run.name}/judged.json"]
    assert b"secret" in exported(copy, tmp_path / "with.zip", texts=True)[f"{run.name}/judged.json"]


def test_only_a_file_is_imported(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in ("pipe", "/dev/zero", "."):
        done = subprocess.run(
            [SPECBENCH, "archive", "import", path],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
            preexec_fn=_limited,
        )
        assert done.returncode == 2 and "is not a regular file" in done.stderr, done


def test_a_large_list_of_members_is_not_read(tmp_path):
    """The file is sparse: nothing but its end is written, which announces a list of 3 GiB."""
    path, size = tmp_path / "large.zip", 3 * 2**30
    with path.open("wb") as file:
        file.seek(size)
        file.write(struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, size, 0, 0))
    assert "list of members is too large" in console.specbench("archive", "import", path, cwd=tmp_path, code=2).stderr


def _limited():
    resource.setrlimit(resource.RLIMIT_AS, (16 * 2**30, 16 * 2**30))
