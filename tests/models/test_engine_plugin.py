"""A plugin's engine decodes with every method that needs no Transformers model."""

import json
from pathlib import Path

import pytest

from specbench.config.options import Options
from specbench.config.pair import PACKAGE
from specbench.config.presets import names
from specbench.errors import ConfigError, MissingAsset
from specbench.resolution.methods import Methods
from specbench.resolution.selection import read_pair
from tests.fixtures.console import specbench

ROOT = Path(__file__).parents[2]
ENGINE = (ROOT / "examples/own_engine.py").read_text(encoding="utf-8").partition("\n\n\nif __name__")[0]
ROLES = ("draft", "middle", "math", "code", "target")
FEW = ("-t", "gsm8k", "--data", "synthetic", "-n", "1", "--repeats", "1", "--max-new-tokens", "8")


@pytest.fixture
def place(tmp_path):
    (tmp_path / "table.py").write_text(ENGINE)
    models = "".join(f'[models.{role}]\npath = "{PACKAGE}/tiny/models/target"\nengine = "table"\n' for role in ROLES)
    (tmp_path / "pair.toml").write_text('ensemble = ["math", "code"]\n' + models)
    return tmp_path


def without_heads(pair_file, temperature: str) -> list[str]:
    """The methods of the pair at a temperature, without hf-*, heads, and se, which stands for another."""
    _, pair = read_pair(str(pair_file), Options())
    options, found = Options(temperature=float(temperature)), []
    for name in names("method"):
        try:
            Methods((name,), pair, options).groups(dict.fromkeys(pair.models, 1))
        except (ConfigError, MissingAsset):
            continue
        if not name.startswith("hf-") and name != "se" and not Methods((name,), pair, Options()).heads:
            found.append(name)
    return found


def records(folder):
    return [json.loads(line) for path in folder.glob("*/samples.jsonl") for line in path.read_text().splitlines()]


@pytest.mark.parametrize("temperature", ["0", pytest.param("1", marks=pytest.mark.slow)])
def test_every_method_without_transformers_decodes_on_a_plugins_engine(place, temperature):
    methods = without_heads(place / "pair.toml", temperature)
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
    "load": ("def load(self, role, model, base, device):", "def load(self, role, model):", "engine 'table': load(): "),
    "init": ('name="table"):', 'name="table"):\n    def __init__(self, x):\n        pass\n', "engine 'table': "),
    "eos": ("device, dtype, branches = \"table\", torch.device(\"cpu\"), torch.float32, True",
            "device, dtype, eos = \"table\", torch.device(\"cpu\"), torch.float32, 1",
            "with eos = 1; needed: collections.abc.Set"),
    "device": ("dtype, branches = \"table\", torch.device(\"cpu\"),", "dtype, branches = \"table\", \"cpu\",",
               "with device = 'cpu'; needed: torch.device"),
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
    ("self.logits[feed.tokens[-rows:]]", "self.logits[feed.tokens[-rows:]].half()", "logits of torch.float16; needed"),
    ("self.logits[feed.tokens[-rows:]]", "self.logits[feed.tokens[-rows:]].tolist()", "needed: a tensor of float32"),
])  # fmt: skip
def test_wrong_logits_fail_the_generation_and_name_the_model_runner(place, right, wrong, message):
    (place / "table.py").write_text(ENGINE.replace(right, wrong))
    specbench("run", "-m", "sd", "-p", "pair.toml", *FEW, "--plugin", "table.py", cwd=place, code=3)
    errors = {row["method"]: row["error"] for row in records(place / "results")}
    assert "table: " in errors["sd"] and message in errors["sd"]


def test_heads_on_an_engine_without_states_are_rejected(place):
    chosen = ("-p", "tiny", "--set", "pair.models.draft.engine=table", "--plugin", "table.py")
    specbench("run", "-m", "specdec++", *chosen, *FEW, cwd=place, code=3)
    errors = {row["method"].partition("(")[0]: row["error"] for row in records(place / "results")}
    assert "feed() returned no states, which heads read" in errors["specdec++"] and not errors["ar"]


def test_verify_names_the_engine_if_only_its_logits_differ(place, enumerated_once):
    chosen = (
        "-p",
        "pair.toml",
        "-t",
        "gsm8k",
        "--data",
        "synthetic",
        "-n",
        "2",
        "--repeats",
        "1",
        "--temperature",
        "0",
    )
    done = specbench("verify", "-m", "sd", *chosen, "--plugin", "table.py", cwd=place, code=5)
    assert "sd: it decodes as the autoregressive method does, but the engine's logits differ" in " ".join(
        done.stdout.split()
    )


def test_verify_does_not_blame_a_method_whose_baseline_is_wrong(place, enumerated_once):
    """Blocks get other logits than single tokens, and neither are those of transformers."""
    block = "self.logits[feed.tokens[-rows:]]"
    text = ENGINE.replace(block, f"({block} if rows == 1 else {block}.roll(1, -1))")
    (place / "table.py").write_text(text)
    few = ["-t", "gsm8k", "--data", "synthetic", "-n", 2, "--repeats", 1, "--temperature", 0]
    done = specbench("verify", "-m", "sd", "-p", "pair.toml", *few, "--plugin", "table.py", cwd=place, code=5)
    assert "the autoregressive method itself departs from the logits" in " ".join(done.stdout.split())
    assert "nothing can be concluded about this method" in " ".join(done.stdout.split())


@pytest.mark.parametrize("command", ["verify", "trace"])
def test_infinite_logits_are_one_line(place, command):
    (place / "table.py").write_text(ENGINE.replace("self.logits = logits  #", "self.logits = logits / 0.0  #"))
    chosen = ("-p", "pair.toml", "-t", "gsm8k", "--data", "synthetic", "--plugin", "table.py")
    done = specbench(command, "-m", "sd", *chosen, cwd=place, code=3)
    assert "error[model]: table: NaN or infinite logits" in done.stderr and "Traceback" not in done.stderr


def test_the_docs_show_the_engine_of_the_example():
    page = (ROOT / "docs/new-method.md").read_text(encoding="utf-8")
    assert ENGINE.split('"""\n\n', 1)[1] in page
