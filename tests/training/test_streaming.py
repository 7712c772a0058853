"""Features of an EAGLE head on disk: memory, interruption, and the plan of their size."""

import gc
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from specbench.config.options import Options
from specbench.config.pair import Answers, HeadKind
from specbench.data.task import Sample
from specbench.errors import ConfigError
from specbench.features.train.train_head import TrainRequest, train_head
from specbench.models.loader import load
from specbench.models.resolve_models import Execution, resolve_models
from specbench.observer import Observer
from specbench.resolution.selection import read_pair
from specbench.training import draft_head_training as draft_heads
from specbench.training.recipes import Budget, EagleRecipe
from specbench.training.shards import collected, folder_of, missing, size_plan, token_bytes, tokens_of
from specbench.training.texts import Text

WIDTH, TOKENS, TEXTS = 192, 500, 200  # of the bundled target; 38 MB of features


def live_bytes():
    """Return the bytes of all tensors that Python objects hold, each storage once.

    Subclasses, such as the fake tensors that torch.compile leaves in the process, have no storage of their own.
    """
    storages = {}
    for each in gc.get_objects():
        if type(each) in (torch.Tensor, torch.nn.Parameter) and each.layout is torch.strided:
            storage = each.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


class Weighing(Observer):
    """Keeps the largest number of bytes of all tensors, and the messages; interrupts after some calls if wanted."""

    def __init__(self, after=0):
        self.peak, self.messages, self._calls, self._after = 0, [], 0, after

    def weigh(self):
        self.peak = max(self.peak, live_bytes())

    @contextmanager
    def progress(self, label, total, done=0):
        def advance():
            self._calls += 1
            if self._calls == self._after:
                raise KeyboardInterrupt
            if self._calls % 5 == 0:
                self.weigh()

        yield advance

    def message(self, text):
        self.messages.append(text)


@pytest.mark.slow
def test_features_are_never_in_memory_together(tmp_path):
    """38 MB of features, of which collecting and training hold less than half, weights and optimizer included."""
    _, pair = read_pair("tiny", Options())
    found = resolve_models(pair, ("target",), Path(), Execution(torch.device("cpu"), "float32"))
    target = load(found, Path(), torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)

    def rows(text):
        return {
            "token": torch.randint(2, 900, (TOKENS,), generator=generator),
            "feature": torch.randn(TOKENS, WIDTH, generator=generator).half(),
            "own": torch.arange(TOKENS) >= 10,
        }

    texts = [Text(i, [2], [3], Sample(str(i), ""), "") for i in range(TEXTS)]
    size = TEXTS * TOKENS * token_bytes(WIDTH)
    before, observer = live_bytes(), Weighing()
    with observer.progress("collecting", TEXTS) as advance:
        shards = collected(tmp_path, texts, lambda part: map(rows, part), {}, advance)
    assert size <= sum(path.stat().st_size for path in shards.paths) < 1.01 * size
    training = draft_heads.HeadTraining(
        pair=target, base="target", recipe=EagleRecipe(epochs=1, batch=2000, rate=1e-3), folder=tmp_path, about={},
        budget=Budget(0.0), observer=observer, keep=False,
    )  # fmt: skip
    _, report = draft_heads.train(training, shards)
    assert (report["train_texts"], report["test_texts"]) == (120, 40)
    assert observer.peak - before < size / 2
    held = shards.rows()
    observer.weigh()
    assert observer.peak - before > size, "the bound would not hold with all rows in memory"
    assert len(held["token"]) == TEXTS * TOKENS


def request(out, **more):
    return TrainRequest(
        kind=HeadKind.eagle, pair="tiny", tasks=("gsm8k",), options=Options(device="cpu"), count=60, trial=0, minutes=0.0,
        answers=Answers.reference, recipe={"epochs": 1, "batch": 1000}, out=out, **more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of an uninterrupted training, and its messages."""
    folder = tmp_path_factory.mktemp("whole")
    train_head(request(folder), observer := Weighing())
    return folder, observer.messages


@pytest.mark.slow
def test_the_same_command_finishes_an_interrupted_collection(whole, tmp_path):
    """Interrupted in the third of three shards: two are kept, and the head is that of an uninterrupted training."""
    with pytest.raises(KeyboardInterrupt):
        train_head(request(tmp_path / "again"), Weighing(after=45))
    (folder,) = (tmp_path / "again" / "collected").iterdir()
    kept = {path: path.stat().st_mtime_ns for path in folder.glob("*.safetensors")}
    assert [path.name for path in sorted(kept)] == ["000000.safetensors", "000020.safetensors"]
    train_head(request(tmp_path / "again"), again := Weighing())
    assert {path: path.stat().st_mtime_ns for path in kept} == kept, "shards on disk are not collected again"
    one, two = (load_file(folder / "model.safetensors") for folder in (whole[0], tmp_path / "again"))
    assert one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)
    assert "features of 60 texts take" in whole[1][0] and "features of 20 texts take" in again.messages[0]


def test_a_damaged_shard_is_planned_and_collected_again(tmp_path):
    """A file that is cut, as after a crash of the machine: its 20 texts count as missing, and only they are collected."""
    texts = [Text(i, [2], [3], Sample(str(i), ""), "") for i in range(50)]
    made = []

    def make(part):
        made.extend(text.number for text in part)
        return ({"token": torch.full((3,), text.number)} for text in part)

    shards = collected(tmp_path, texts, make, {}, lambda: None)
    assert missing(folder_of(tmp_path, {}), texts) == []
    damaged, made[:] = shards.paths[1], []
    damaged.write_bytes(damaged.read_bytes()[:-8])
    assert missing(folder_of(tmp_path, {}), texts) == texts[20:40]
    again = collected(tmp_path, texts, make, {}, lambda: None)
    assert made == list(range(20, 40)) and again.rows()["text"].unique().tolist() == list(range(50))


def test_the_size_is_that_of_the_files(whole):
    """Reference answers have an exact size; generated ones at most the size of the token limit."""
    folder, messages = whole
    files = sum(path.stat().st_size for path in (folder / "collected").glob("*/*.safetensors"))
    said = float(messages[0].split(" take ")[1].split()[0])
    assert 1e9 * said == pytest.approx(files, rel=0.05)
    texts = [Text(0, [1] * 30, [1] * 20, Sample("0", ""), "", max_new_tokens=50)]
    assert [tokens_of(texts, 100, each) for each in (False, True)] == [50, 80]
    assert tokens_of(texts, 40, True) == 40, "no text is longer than recipe.most"


def test_a_disk_that_is_certainly_too_small_is_an_error_before_the_start(tmp_path, monkeypatch):
    """A bound that generated answers may stay below, or a time limit, gives a warning instead."""
    monkeypatch.setattr("specbench.training.shards.free_disk_bytes", lambda folder: 1000)
    with pytest.raises(ConfigError, match=r"features of 60 texts take 0\.\d+ GB .* are free; help: a smaller --limit"):
        train_head(request(tmp_path / "head"), Weighing())
    assert not list(tmp_path.glob("head/collected/*/*.safetensors"))
    for generated, limited in ((True, False), (False, True)):
        assert size_plan(60, 2000, generated, limited, tmp_path).line.startswith("! features of 60 texts")
