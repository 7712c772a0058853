"""Data files on the web: the cache, checksums, and `specbench fetch`."""

import hashlib
import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from specbench.data import web
from specbench.data.web import CACHE, WebFile
from specbench.errors import MissingAsset
from specbench.tasks.spec_bench import SpecBench
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
            self.end_headers()
            self.wfile.write(CONTENT if found else b"")

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    monkeypatch.setattr(web, "offline_mode", lambda: False)
    yield f"http://127.0.0.1:{server.server_port}", requested
    server.shutdown()
    server.server_close()


def test_a_file_is_downloaded_once_and_read_from_the_cache(served):
    url, requested = served
    file = WebFile(f"{url}/question.jsonl", SUM)
    assert not file.is_here
    assert web.read(file, "spec-bench").rows == ROWS == web.read(file, "spec-bench").rows
    assert len(requested) == 1
    file.cached.write_bytes(CONTENT[:-5])
    assert web.read(file, "spec-bench").rows == ROWS and len(requested) == 2, "a damaged file is downloaded again"


@pytest.mark.parametrize(("name", "sha256"), [("question.jsonl", "0" * 64), ("absent.jsonl", SUM)])
def test_another_file_or_none_is_an_error_with_help(served, name, sha256):
    url, _ = served
    file = WebFile(f"{url}/{name}", sha256)
    with pytest.raises(MissingAsset, match=r"cannot be downloaded .*help: run `specbench fetch -t spec-bench`"):
        web.read(file, "spec-bench")
    assert not list(file.cached.parent.glob("*")), "nothing is left in the cache"


def test_offline_nothing_is_requested(served, monkeypatch):
    url, requested = served
    monkeypatch.setattr(web, "offline_mode", lambda: True)
    with pytest.raises(MissingAsset, match="offline"):
        web.read(WebFile(f"{url}/question.jsonl", SUM), "spec-bench")
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
