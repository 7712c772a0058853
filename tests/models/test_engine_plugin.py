"""A plugin's engine decodes with every method that needs no Transformers model."""

import json

import pytest

from specbench.config.options import Options
from specbench.config.pair import PACKAGE
from specbench.config.presets import names
from specbench.errors import ConfigError, MissingAsset
from specbench.resolution.methods import Methods
from specbench.resolution.selection import read_pair
from tests.fixtures.console import specbench

ENGINE = '''
"""Logits by the last token alone, from a table."""

import torch

from specbench.config.pair import folder
from specbench.models.checkpoints import load_tokenizer
from specbench.models.engines import Engine
from specbench.models.feeder import Feeder, Output
from specbench.models.engines import LoadedModel


def normal(seed, size):
    return torch.randn(size, size, generator=torch.Generator().manual_seed(seed))


class TableFeeder(Feeder):
    name, device, branches = "table", torch.device("cpu"), True

    def __init__(self, logits):
        self.logits = logits  # (V, V)

    def feed(self, feed, rows):
        return Output(self.logits[feed.tokens[-rows:]], None)

    def keep(self, start, path):
        return  # nothing is cached

    def logits_of(self, states):
        raise ValueError("a table has no states")


class TableModel(LoadedModel):
    name, device, dtype, branches = "table", torch.device("cpu"), torch.float32, True

    def __init__(self, tokenizer, role):
        self.tokenizer, size = tokenizer, len(tokenizer)
        self.embedded = self.vocabulary = size
        self.logits = 3.0 * normal(0, size) + normal(len(role), size)  # the models of a pair are alike

    def feeder(self, vocabulary, source):
        return TableFeeder(self.logits[:, :vocabulary])


class TableEngine(Engine, name="table"):
    def unsupported(self, model, architecture, device):
        return "the engine table has no encoder" if architecture.encoder_decoder else ""

    def load(self, role, model, base, device):
        return TableModel(load_tokenizer(role, str(folder(model.spec.path, base))), role)
'''
ROLES = ("draft", "middle", "math", "code", "target")
FEW = ("-t", "gsm8k", "--data", "synthetic", "-n", "1", "--repeats", "1", "--max-new-tokens", "8")


@pytest.fixture
def place(tmp_path):
    (tmp_path / "table.py").write_text(ENGINE)
    models = "".join(f'[models.{role}]\npath = "{PACKAGE}/tiny/models/target"\nengine = "table"\n' for role in ROLES)
    (tmp_path / "pair.toml").write_text('ensemble = ["math", "code"]\n' + models)
    return tmp_path


def without_heads(pair_file) -> list[str]:
    """The methods of the pair without hf-*, heads, BiLD, which is for T = 0 only, and se, which stands for another."""
    _, pair = read_pair(str(pair_file), Options())
    found = []
    for name in names("method"):
        try:
            Methods((name,), pair, Options()).groups(dict.fromkeys(pair.models, 1))
        except (ConfigError, MissingAsset):
            continue
        if not name.startswith(("hf-", "bild")) and name != "se" and not Methods((name,), pair, Options()).heads:
            found.append(name)
    return found


def records(folder):
    return [json.loads(line) for path in folder.glob("*/samples.jsonl") for line in path.read_text().splitlines()]


@pytest.mark.parametrize("temperature", ["0", "1"])
def test_every_method_without_transformers_decodes_on_a_plugins_engine(place, temperature):
    methods = without_heads(place / "pair.toml")
    assert {"sd", "pld", "we-se", "we-p", "cascade-opt", "polybasic-model", "seq-cascade"} <= set(methods)
    methods = [name for name in methods if name != ("cd-p" if temperature == "0" else "we-p")]  # processes start slowly
    chosen = [word for name in methods for word in ("-m", name)]
    specbench("run", *chosen, "-p", "pair.toml", *FEW, "--temperature", temperature, "--plugin", "table.py", cwd=place)
    rows = records(place / "results")
    assert not [row["error"] for row in rows if row["error"]]
    assert len(ENGINE.strip().splitlines()) < 60
    assert {row["method"].partition("(")[0] for row in rows} >= set(methods)
    if temperature == "0":
        plain = {row["sample"]: row["tokens"] for row in rows if row["method"] == "ar"}
        assert all(
            row["tokens"] == plain[row["sample"]] for row in rows if row["method"] in ("sd", "pld", "polybasic-model")
        )


def test_what_needs_transformers_is_rejected_with_the_reason(place):
    done = specbench("run", "-m", "hf-generate", "-p", "pair.toml", *FEW, "--plugin", "table.py", cwd=place, code=2)
    assert "no transformers model" in " ".join((done.stderr + done.stdout).split())


def test_an_explicit_engine_takes_precedence_and_an_unknown_one_is_named(place):
    shown = specbench(
        "run", "-m", "sd", "-p", "pair.toml", *FEW, "--engine", "eager", "--plugin", "table.py", cwd=place
    ).stdout
    assert "engine eager" in " ".join(shown.split())
    text = (place / "pair.toml").read_text()
    (place / "pair.toml").write_text(text.replace('"table"', '"tabel"'))
    done = specbench("run", "-m", "sd", "-p", "pair.toml", *FEW, "--plugin", "table.py", cwd=place, code=2)
    assert "'tabel'" in done.stderr and "did you mean 'table'" in done.stderr


def test_a_bundled_engine_cannot_be_replaced(place):
    (place / "table.py").write_text(ENGINE.replace('name="table"', 'name="lean"'))
    done = specbench("run", "-m", "sd", "-p", "pair.toml", *FEW, "--plugin", "table.py", cwd=place, code=2)
    assert "the name 'lean' already exists: specbench.models.engines.Lean" in " ".join(done.stderr.split())


def test_an_engine_of_the_pair_that_cannot_run_here_is_named_by_its_key(tmp_path):
    text = f'[models.target]\npath = "{PACKAGE}/tiny/models/target"\nengine = "graph"\n'
    (tmp_path / "pair.toml").write_text(text)
    done = specbench("run", "-m", "pld", "-p", "pair.toml", *FEW, "--device", "cpu", cwd=tmp_path, code=2)
    assert "model 'target': engine = 'graph': CUDA graphs need a CUDA device" in " ".join(done.stderr.split())


BROKEN = {
    "load returns a tuple": ("return TableModel(load_tokenizer", "return 1, 2  # (load_tokenizer",
                             "engine 'table': load() returned (1, 2), which is not a LoadedModel"),
    "no vocabulary": ("self.embedded = self.vocabulary = size", "self.embedded = size",
                      "engine 'table': load() returned a model without vocabulary"),
    "no load": ("    def load(self", "    def loads(self", "TableEngine lacks load"),
    "a reserved name": ('name="table")', 'name="auto")', "cannot have the name 'auto'"),
    "unsupported": ("def unsupported(self, model, architecture, device):", "def unsupported(self, model):",
                    "engine 'table': unsupported(): "),
}  # fmt: skip


@pytest.mark.parametrize("mistake", BROKEN)
def test_a_mistake_in_an_engine_is_one_line(place, mistake):
    right, wrong, message = BROKEN[mistake]
    assert right in ENGINE
    (place / "table.py").write_text(ENGINE.replace(right, wrong))
    done = specbench("run", "-m", "sd", "-p", "pair.toml", *FEW, "--plugin", "table.py", cwd=place, code=2)
    assert message in " ".join(done.stderr.split()) and "Traceback" not in done.stderr


@pytest.mark.parametrize(("right", "wrong", "message"), [
    ("self.logits[feed.tokens[-rows:]]", "self.logits[feed.tokens[-1:]]", "feed() returned logits of shape (1, "),
    ("self.logits[feed.tokens[-rows:]]", "self.logits[feed.tokens[-rows:], :5]", "5), and "),
    ("return Output(self.logits[feed.tokens[-rows:]], None)", "return self.logits", "which is not an Output"),
])  # fmt: skip
def test_wrong_logits_fail_the_generation_and_name_the_feeder(place, right, wrong, message):
    (place / "table.py").write_text(ENGINE.replace(right, wrong))
    specbench("run", "-m", "sd", "-p", "pair.toml", *FEW, "--plugin", "table.py", cwd=place, code=3)
    errors = {row["method"]: row["error"] for row in records(place / "results")}
    assert "table: " in errors["sd"] and message in errors["sd"]
