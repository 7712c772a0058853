"""Data sets of the hub and data files on the web: ids, the cache, checksums, `specbench run` and `specbench fetch`."""

import hashlib
import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from types import SimpleNamespace

import datasets
import pytest
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import OfflineModeIsEnabled

from specbench.data.remote_rows import HubData, WebFile, read_hub, read_web
from specbench.data.rows import CACHE
from specbench.errors import ConfigError, MissingAsset
from specbench.experiment.scorer import task_of
from specbench.runs.run_folder import spec_of
from specbench.tasks.custom import Custom, Prompts
from specbench.tasks.dialogues import SpecBench
from specbench.tasks.gsm8k import Gsm8k
from specbench.tasks.mmlu import Mmlu
from tests.fixtures import console

ROWS = [
    {"question_id": 1, "category": "writing", "turns": ["Write a haiku.", "Another one."]},
    {"question_id": 2, "category": "qa", "turns": ["Name a river."]},
]
CONTENT = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
SUM = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def served(tmp_path, monkeypatch):
    """The URL of a local server that has the rows, and the paths that were requested."""
    requested = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            requested.append(self.path)
            found = self.path.endswith("question.jsonl")
            self.send_response(200 if found else 404)
            if self.path.startswith("/cut"):
                self.send_header("Content-Length", str(len(CONTENT) + 1))
            self.end_headers()
            self.wfile.write(CONTENT if found else b"")

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    monkeypatch.setattr("specbench.data.remote_rows.offline_mode", lambda: False)
    yield f"http://127.0.0.1:{server.server_port}", requested
    server.shutdown()
    server.server_close()


def test_a_file_is_downloaded_once_and_read_from_the_cache(served):
    url, requested = served
    file = WebFile(f"{url}/question.jsonl", SUM)
    assert not file.is_here
    assert read_web(file, "spec-bench").rows == ROWS == read_web(file, "spec-bench").rows
    assert len(requested) == 1
    file.cached.write_bytes(CONTENT[:-5])
    assert read_web(file, "spec-bench").rows == ROWS and len(requested) == 2, "a damaged file is downloaded again"


@pytest.mark.parametrize(
    ("name", "sha256"), [("question.jsonl", "0" * 64), ("absent.jsonl", SUM), ("cut/question.jsonl", SUM)]
)
def test_another_file_or_none_is_an_error_with_help(served, name, sha256):
    url, _ = served
    file = WebFile(f"{url}/{name}", sha256)
    with pytest.raises(MissingAsset, match=r"cannot be downloaded .*help: run `specbench fetch -t spec-bench`"):
        read_web(file, "spec-bench")
    assert not list(file.cached.parent.glob("*")), "nothing is left in the cache"


def test_offline_nothing_is_requested(served, monkeypatch):
    url, requested = served
    monkeypatch.setattr("specbench.data.remote_rows.offline_mode", lambda: True)
    with pytest.raises(MissingAsset, match="offline"):
        read_web(WebFile(f"{url}/question.jsonl", SUM), "spec-bench")
    assert not requested


def test_fetch_gets_the_questions_of_spec_bench(served, tmp_path, monkeypatch):
    url, requested = served
    monkeypatch.setattr(SpecBench, "web", WebFile(f"{url}/question.jsonl", SUM))
    monkeypatch.setattr("specbench.data.download.look_for_hub", lambda: None)
    monkeypatch.setattr("specbench.data.download.offline_mode", lambda: False)
    shown = "".join(console.specbench("fetch", "-t", "spec-bench", cwd=tmp_path))
    assert "to fetch" in shown and "everything is in the local cache" in shown and len(requested) == 1
    assert "cached" in "".join(console.specbench("fetch", "-t", "spec-bench", cwd=tmp_path)) and len(requested) == 1
    rows = SpecBench().rows("hub")
    assert len(SpecBench().samples(rows.rows, "hub")) == 3, "one question has two turns"


COMMIT = "c" * 40
SPLITS = {"test": [{"question": f"{n} + 1?", "answer": f"#### {n + 1}"} for n in range(9)]}
SPLITS["dev"] = SPLITS["test"][:2]


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with the data set org/sums, configurations `main` and `other`, and an empty cache; returns what was read."""
    read = []

    def repo_info(self, repo_id, *, repo_type=None, revision=None, **more):
        assert (repo_id, repo_type) == ("org/sums", "dataset"), "404"
        return SimpleNamespace(sha="d" * 40 if revision == "old" else COMMIT)

    def dataset_info(self, repo_id, revision=None, files_metadata=False):
        siblings = [SimpleNamespace(rfilename=f"main/{split}.parquet", size=1 << 20) for split in SPLITS]
        return SimpleNamespace(sha=COMMIT, gated=False, siblings=siblings)

    def load_dataset_builder(repo, config, revision):
        if config != "main":
            raise ValueError(f"BuilderConfig '{config}' not found.\nAvailable: ['main', 'other']")
        urls = {split: [f"hf://datasets/{repo}@{revision}/main/{split}.parquet"] for split in SPLITS}

        def as_streaming_dataset(split):
            read.append((repo, config, split, revision))
            return datasets.IterableDataset.from_generator(
                lambda: iter(SPLITS[split]), features=datasets.Features.from_arrow_schema(
                    datasets.Dataset.from_list(SPLITS[split]).data.schema
                )
            )  # fmt: skip

        return SimpleNamespace(config=SimpleNamespace(data_files=urls), as_streaming_dataset=as_streaming_dataset)

    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for name in ("remote_rows", "download"):
        monkeypatch.setattr(f"specbench.data.{name}.look_for_hub", lambda: None)
    monkeypatch.setattr(HfApi, "repo_info", repo_info)
    monkeypatch.setattr(HfApi, "dataset_info", dataset_info)
    monkeypatch.setattr(datasets, "load_dataset_builder", load_dataset_builder)
    return read


def offline(monkeypatch):
    """Disconnect from the hub: from here on the hub's own client resolves revisions, from its cache."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    def unreachable(self, *args, **more):
        raise OfflineModeIsEnabled("offline")

    monkeypatch.setattr(HfApi, "repo_info", unreachable)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("hf:squad", HubData("squad")),
        ("hf:openai/gsm8k:main#train", HubData("openai/gsm8k", "main", "train")),
        ("hf:wmt/wmt14:de-en@refs/convert/parquet", HubData("wmt/wmt14", "de-en", "test", "refs/convert/parquet")),
        ("hf:abisee/cnn_dailymail:3.0.0#validation@v1", HubData("abisee/cnn_dailymail", "3.0.0", "validation", "v1")),
    ],
)
def test_an_id_names_a_data_set_a_configuration_a_split_and_a_revision(text, found):
    assert HubData.parse(text) == found
    assert HubData.parse(str(found)) == HubData(found.repo, found.config, found.split)


@pytest.mark.parametrize("text", ["hf:", "hf:a/b/c", "hf:a/b#", "hf:a/b#test@", "hf:a/b:"])
def test_a_wrong_id_is_an_error_with_the_form(text):
    with pytest.raises(ConfigError, match=r"expected hf:REPO\[:CONFIG\]\[#SPLIT\]\[@REVISION\]; help: --data hf:"):
        Gsm8k().data(text)


def test_rows_are_read_once_and_named_by_their_commit(hub):
    rows = read_hub(HubData("org/sums", "main"))
    assert (rows.rows, rows.source, rows.revision) == (SPLITS["test"], "hf:org/sums:main#test", COMMIT)
    assert read_hub(HubData("org/sums", "main")) == rows and len(hub) == 1
    old = read_hub(HubData("org/sums", "main", revision="old"))
    assert old.revision == "d" * 40 and hub[1] == ("org/sums", "main", "test", "d" * 40)


def test_offline_the_rows_come_from_the_cache(hub, monkeypatch):
    rows = read_hub(HubData("org/sums", "main"))
    offline(monkeypatch)
    assert read_hub(HubData("org/sums", "main")) == rows
    assert read_hub(HubData("org/sums", "main", revision=COMMIT)) == rows
    for missing in (HubData("org/sums", "main", "dev"), HubData("org/sums", "main", revision="old"), HubData("a/b")):
        with pytest.raises(
            MissingAsset, match=rf"^data set {missing.repo} is not in .*\(offline\); help: `specbench fetch`"
        ):
            read_hub(missing)
    assert len(hub) == 1


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("hf:org/sums", "hf:org/sums: BuilderConfig 'None' not found. Available: ['main', 'other']; help: hf:REPO"),
        ("hf:org/sums:main#tst", "hf:org/sums:main#tst: there is no split 'tst' (did you mean 'test'?); it has: dev, test"),
    ],
)  # fmt: skip
def test_a_wrong_configuration_or_split_lists_those_that_there_are(hub, source, said):
    with pytest.raises(ConfigError) as error:
        Gsm8k().data(source)
    assert str(error.value).startswith(said)


def test_wrong_columns_list_what_the_task_needs_and_what_the_rows_have(hub):
    with pytest.raises(ConfigError) as error:
        Mmlu().data("hf:org/sums:main")
    needed, there = str(error.value).split(";")
    assert needed.startswith("hf:org/sums:main#test: task mmlu ") and needed.endswith(
        "question, subject, choices, answer"
    )
    assert there.endswith(": question, answer")
    with pytest.raises(ConfigError, match=r"main#test:1: no text under 'prompt'; .*: answer, question"):
        Prompts().data("hf:org/sums:main#test")


def test_a_task_may_name_a_data_set_of_the_hub(hub, monkeypatch):
    custom = Custom(prompt="{question}", reference="answer", dataset="hf:org/sums:main#dev@old")
    for source in ("hub", "synthetic"):
        data = custom.data(source)
        assert [sample.reference for sample in data.samples] == ["#### 1", "#### 2"]
        assert (data.source, data.revision) == ("hf:org/sums:main#dev", "d" * 40)
    with pytest.raises(ValueError, match=r"file = 'a\.jsonl' and dataset = 'hf:a/b' conflict"):
        Custom(prompt="x", file="a.jsonl", dataset="hf:a/b")
    with pytest.raises(ValueError, match=r"dataset = 'a/b' must be hf:REPO"):
        Custom(prompt="x", dataset="a/b")
    monkeypatch.setattr(Gsm8k, "hub", HubData("org/sums", "main"))
    task = Gsm8k(revision="old")
    assert task.data("hub").revision == "d" * 40 and task.has_training_split("hub")
    with pytest.raises(ConfigError, match="no split 'train'"):
        task.texts("hub")


def test_a_run_records_the_commit_and_is_scored_again_offline(hub, tmp_path, monkeypatch):
    source = "gsm8k=hf:org/sums:main"
    console.specbench(
        "run", "-m", "ar", "-p", "tiny", "-t", "gsm8k", "--data", source, "-n", 2, "--repeats", 1, "--max-new-tokens", 2,
        cwd=tmp_path,
    )  # fmt: skip
    (folder,) = (tmp_path / "results").iterdir()
    data = spec_of(folder).task.data
    assert (data.source, data.revision, data.total) == ("hf:org/sums:main#test", COMMIT, 9)
    offline(monkeypatch)
    (tmp_path / "hub/datasets--org--sums/refs/main").write_text("e" * 40)  # a later commit
    _, again = task_of(folder)
    assert (again.sha256, again.revision) == (data.sha256, COMMIT) and len(hub) == 1
    console.specbench("score", folder, cwd=tmp_path)


def test_fetch_downloads_the_splits_that_a_task_needs(hub, tmp_path):
    (tmp_path / "mine.toml").write_text(
        'name = "custom"\nprompt = "{question}"\nreference = "answer"\ndataset = "hf:org/sums:main"\n'
    )
    fetch = ("fetch", "-t", "mine.toml", "--json")
    (found,) = json.loads(console.specbench(*fetch, "--dry-run", cwd=tmp_path).stdout)["repositories"]
    assert (found["repository"], found["kind"], found["commit"]) == ("org/sums", "dataset", COMMIT)
    assert found["files"] == {"main/test.parquet": 1 << 20} and not found["here"] and not hub
    console.specbench("fetch", "-t", "mine.toml", cwd=tmp_path)
    assert hub == [("org/sums", "main", "test", COMMIT)]
    (found,) = json.loads(console.specbench(*fetch, cwd=tmp_path).stdout)["repositories"]
    assert found["here"] and found["missing_bytes"] == 0 and len(hub) == 1
