"""Training of heads: labels, balance, splits, what a fit finds, and that an interrupted training goes on."""

import json
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from specbench.config.options import Options
from specbench.data.task import Sample
from specbench.errors import ConfigError
from specbench.models.heads import AcceptanceHead, BlockSession, DSparkHead, EagleHead, LengthHead, Verifier
from specbench.models.loader import load
from specbench.models.resolve_models import Execution, resolve_models
from specbench.observer import Observer
from specbench.resolution.selection import read_pair
from specbench.training import classifier_training as classifiers
from specbench.training import draft_head_losses
from specbench.training import draft_head_training as draft_heads
from specbench.training.fitting import auc, auc_interval, fit, loss_of, roc_curve, roc_rates, roc_summary
from specbench.training.recipes import (
    MOST_EPOCHS,
    SPLITS,
    Budget,
    DFlashRecipe,
    DSparkRecipe,
    Eagle3Recipe,
    EagleRecipe,
    Recipe,
    SprinterRecipe,
)
from specbench.training.shards import collected
from specbench.training.state_rows import rows_of
from specbench.training.texts import Text, split_of
from tests.fixtures.console import specbench

Q, P = (0.5, 0.3, 0.15, 0.05), (0.2, 0.2, 0.5, 0.1)


@pytest.mark.parametrize(("tau", "labels"), [(1.0, [0, 0, 1, 1]), (1.2, [0, 0, 1, 1]), (1.5, [0, 1, 1, 1])])
def test_labels_are_those_of_the_ratio_q_over_p(tau, labels):
    """docs/papers/sprinter.md, Acceptable tokens: the label is 1 if q(x) <= tau p(x)."""
    assert classifiers.acceptable_labels({"q": torch.tensor(Q), "p": torch.tensor(P)}, tau).tolist() == labels


def test_theorem_1_takes_unacceptable_tokens_by_the_ratio_whatever_tau_train_is():
    """A third of the tokens each has q/p = 0.5, 1.1 and 2, and the state says which. At tau_train = 1.2 a perfect verifier
    accepts two thirds: none of what its labels reject, and half of the tokens with q > p.
    """
    kind = torch.arange(600) % 3
    p = torch.tensor([0.8, 0.4, 0.2])[kind]
    rows = {
        "state": torch.nn.functional.one_hot(kind, 3).float(), "x": kind, "p": p, "tv": torch.full((600,), 0.5),
        "q": p * torch.tensor([0.5, 1.1, 2.0])[kind], "entropy": torch.zeros(600), "text": torch.arange(600) // 6,
    }  # fmt: skip
    fitting = classifiers.VerifierFitting(torch.zeros(3, 3), SprinterRecipe(epochs=30, rate=0.2), seed=0)
    _, loose = classifiers.train_sprinter(rows, "state", 1.2, fitting)
    assert (loose["eta_tp"], loose["eta_fp"], loose["ratio_eta_fp"]) == (1.0, 0.0, 0.5)
    _, strict = classifiers.train_sprinter(rows, "state", 1.0, fitting)
    assert strict["ratio_eta_fp"] == strict["eta_fp"] == 0.0
    assert loose["draft_tv"] == strict["draft_tv"] == 0.5


def test_the_authors_split_leaks_and_is_reported_so():
    """Ten rows of each text share a random state and a random label. Nothing can be learned about another text, but with
    rows of the same texts in training the test rows are known.
    """
    generator = torch.Generator().manual_seed(0)
    text = torch.arange(60).repeat_interleave(10)
    good = (torch.rand(60, generator=generator) < 0.5)[text]
    rows = {
        "state": torch.randn(60, 120, generator=generator)[text], "x": text, "text": text, "tv": torch.full((600,), 0.5),
        "q": torch.full((600,), 0.4), "p": torch.where(good, 0.8, 0.1), "entropy": torch.zeros(600),
    }  # fmt: skip
    found = {}
    for split in ("texts", "rows"):
        fitting = classifiers.VerifierFitting(
            torch.zeros(60, 120), SprinterRecipe(epochs=20, rate=0.01, split=split), seed=0
        )
        _, found[split] = classifiers.train_sprinter(rows, "state", 1.0, fitting)
    assert found["rows"]["auc"] == 1.0 and found["rows"]["split"] == "rows (leaks)"
    assert found["rows"]["rows"] == 180 and found["rows"]["validation_error"] == 0.0
    assert found["texts"]["auc_low"] < 0.6 and "split" not in found["texts"]


def test_prefixes_are_balanced_by_kind():
    """The paper's equal shares of the four kinds, whole rows, drawn without replacement."""
    kinds = torch.tensor([0] * 5 + [1] * 9 + [2] * 30 + [3] * 12)
    rows = classifiers.balanced_by_kind({"kind": kinds, "row": torch.arange(len(kinds))}, seed=0)
    assert torch.bincount(rows["kind"]).tolist() == [5, 5, 5, 5]
    assert len(set(rows["row"].tolist())) == 20
    assert (kinds[rows["row"]] == rows["kind"]).all()


def test_a_text_is_in_one_split_and_the_shares_are_kept():
    """Of any five texts in a row from a fifth on, three, one and one; which ones differs from five to five."""
    splits = [split_of(number, 7) for number in range(500)]
    assert splits == [split_of(number, 7) for number in range(500)]
    fives = [splits[i : i + 5] for i in range(0, 500, 5)]
    assert all(sorted(five) == sorted(SPLITS) for five in fives)
    assert len(set(map(tuple, fives))) > 10


def test_auc_is_the_probability_that_a_positive_scores_higher():
    """Against all pairs counted one by one, ties half; 1 for perfect scores, 1/2 for constant ones."""
    rng = np.random.default_rng(0)
    scores, labels = rng.integers(0, 6, 60).astype(float), rng.integers(0, 2, 60)
    good, bad = scores[labels == 1], scores[labels == 0]
    pairs = np.mean([(a > b) + 0.5 * (a == b) for a in good for b in bad])
    assert auc(scores, labels) == pytest.approx(pairs)
    assert auc(labels.astype(float), labels) == 1.0
    assert auc(np.zeros(60), labels) == 0.5
    low, high = auc_interval(scores, labels, np.arange(60) // 3)
    assert low < pairs < high
    x, y = np.array(roc_curve(scores, labels)).T
    assert (np.diff(x) >= 0).all() and (np.diff(y) >= 0).all()
    assert np.trapezoid(y, x) == pytest.approx(pairs, abs=0.02), "the curve's area is the same number"
    with pytest.raises(ConfigError, match="the same label"):
        roc_summary(scores, np.ones(60), np.arange(60), 0.5)


def test_rates_at_a_threshold():
    """eta_TP and eta_FP by hand."""
    found = roc_rates(np.array([0.9, 0.5, 0.4, 0.6]), np.array([1, 1, 0, 0]), 0.5)
    assert found == {"eta_tp": 1.0, "eta_fp": 0.5}


def test_a_soft_label_is_fitted_to_its_own_chance():
    """Binary cross-entropy of soft labels is least at the label.

    A rejection's weight w moves it to l / (l + w (1 - l)).
    """
    logits = torch.linspace(-4, 4, 801)
    for weight in (1.0, 6.0):
        losses = torch.stack([loss_of(each[None], torch.tensor([0.6]), weight) for each in logits])
        best = logits[losses.argmin()].sigmoid()
        assert best == pytest.approx(0.6 / (0.6 + weight * 0.4), abs=0.01)


def test_the_epoch_that_validates_best_is_kept():
    """A fit that runs into noise ends with the weights of its best epoch, and stops `patience` epochs after it."""
    torch.manual_seed(0)
    head = torch.nn.Linear(20, 1)
    inputs, labels = torch.randn(40, 20), torch.randint(0, 2, (40,)).float()
    other = torch.randn(400, 20), torch.randint(0, 2, (400,)).float()
    losses = fit(head, lambda x: head(x).squeeze(-1), (inputs, labels), other, Recipe(epochs=60, rate=0.05, patience=5))
    assert len(losses) == losses.index(min(losses)) + 6 < 60
    with torch.no_grad():
        assert float(loss_of(head(other[0]).squeeze(-1), other[1], 1.0)) == pytest.approx(min(losses))


def each(make):
    """Return a function of several texts from one of a single text."""
    return lambda texts: map(make, texts)


def test_an_interrupted_collection_resumes(tmp_path):
    """Shards that lie there are not made again; other settings have their own, and leave them there."""
    texts = [Text(i, [i], [], Sample(str(i), ""), "") for i in range(50)]
    made: list[int] = []

    def make(text):
        made.append(text.number)
        if len(made) == 45:
            raise KeyboardInterrupt
        return {"x": torch.tensor([text.number, text.number])}

    with pytest.raises(KeyboardInterrupt):
        collected(tmp_path, texts, each(make), {"a": 1}, lambda: None)
    again = len(made)
    rows = collected(tmp_path, texts, each(make), {"a": 1}, lambda: None).rows()
    assert made[again:] == list(range(40, 50))
    assert rows["x"].tolist() == rows["text"].tolist() == [i for i in range(50) for _ in range(2)]
    collected(tmp_path, texts, each(make), {"a": 2}, lambda: None)
    assert made[-50:] == list(range(50))
    collected(tmp_path, texts, each(make), {"a": 1}, lambda: None)
    assert len(made) == again + 60, "the first ones are there still"


FEW = ["-p", "tiny", "-t", "gsm8k"]


def test_a_verifier_is_trained_from_the_command_line_and_used(tmp_path):
    """`train sprinter`: report, plots, a head that `run` takes; its columns stand in the table."""
    quick = [
        "-n",
        30,
        "--set",
        "recipe.epochs=2",
        "--set",
        "recipe.batch=300",
        "--set",
        "recipe.rate=0.02",
        "--trial",
        0,
    ]
    shown = specbench("train", "sprinter", *FEW, *quick, "-o", "gate", cwd=tmp_path).stdout
    assert "state+q+entropy" in shown and "--head sprinter@draft=gate" in shown
    report = json.loads((tmp_path / "gate" / "report.json").read_text())
    assert {each["tau_train"] for each in report["all"]} == {1.0, 1.2, 1.5}
    assert report["auc_low"] <= report["auc"] <= report["auc_high"]
    assert 0.0 < report["predicted_tv"] <= report["draft_tv"] + 0.05
    assert all((tmp_path / "gate" / f"roc.{kind}").stat().st_size > 1000 for kind in ("svg", "png"))
    head = Verifier.read(tmp_path / "gate")
    assert head.provenance.data["tasks"] == ["gsm8k"]
    assert head.provenance.base["source"] == "specbench:tiny/models/draft"
    short = ["-n", 5, "--repeats", 1, "--max-new-tokens", 20, "--head", "sprinter=gate", "--temperature", 1]
    shown = specbench("run", "-m", "sprinter,sd", *FEW, *short, "--full", cwd=tmp_path).stdout
    assert "tokens/run" in shown and f"{report['predicted_tv']:.3f}" in shown
    wrong = specbench("run", "-m", "sd", *FEW, "--head", "sprinter=gate", cwd=tmp_path, code=2)
    assert "none of sd reads it" in wrong.stderr


@pytest.mark.parametrize(("kind", "made"), [("specdec++", AcceptanceHead), ("dsl", LengthHead)])
def test_heads_of_draft_lengths_are_trained_from_the_command_line(tmp_path, kind, made):
    quick = ["-n", 20, "--set", "recipe.epochs=1", "--set", "recipe.steps=20", "--trial", 0]
    assert "AUC" in specbench("train", kind, *FEW, *quick, "-o", "head", cwd=tmp_path).stdout
    assert made.read(tmp_path / "head").provenance.target["source"] == "specbench:tiny/models/target"


class Interrupting(Observer):
    """Counts the steps of a training, and interrupts it after some of them."""

    def __init__(self, after: int = 1_000_000) -> None:
        self.steps, self._after = 0, after

    @contextmanager
    def progress(self, label, total, done=0):
        def advance():
            self.steps += 1
            if self.steps == self._after:
                raise KeyboardInterrupt

        yield advance


@pytest.fixture(scope="module")
def target():
    """The bundled target."""
    _, pair = read_pair("tiny", Options())
    found = resolve_models(pair, ("target",), Path(), Execution(torch.device("cpu"), "float32"))
    return load(found, Path(), torch.device("cpu"))


def state_rows_of(target, folder, aux_layers=()):
    """Files of the rows of 24 short texts."""
    texts = [Text(i, list(range(2, 12)), list(range(12, 30)), Sample(str(i), ""), "") for i in range(24)]
    return collected(
        folder, texts, each(lambda text: rows_of(target, text, "target", 64, aux_layers)), {}, lambda: None
    )


def head_training(target, folder, recipe, observer=None, budget=None, keep=True):
    return draft_heads.HeadTraining(
        pair=target, base="target", recipe=recipe, folder=folder, about={}, budget=budget or Budget(0.0),
        observer=observer or Observer(), keep=keep,
    )  # fmt: skip


@pytest.mark.parametrize(
    "recipe",
    [
        EagleRecipe(epochs=4, batch=80, rate=1e-3, warm_up=2),
        Eagle3Recipe(epochs=4, batch=80, rate=1e-3, warm_up=2, layers=(1, 3), steps=2),
        Eagle3Recipe(epochs=4, batch=80, rate=1e-3, warm_up=2, layers=(1, 3), vocabulary=24),
        DFlashRecipe(epochs=4, batch=80, rate=1e-3, warm_up=2, layers=(1, 3), length=3, anchors=4),
        DSparkRecipe(epochs=4, batch=80, rate=1e-3, warm_up=2, layers=(1, 3), length=3, anchors=4, rank=3),
    ],
    ids=["EAGLE-1", "EAGLE-3", "EAGLE-3, 24 tokens", "DFlash", "DSpark"],
)
def test_an_eagle_head_is_trained_and_an_interrupted_training_resumes(recipe, tmp_path, monkeypatch, target):
    """The same steps in one go, and interrupted and resumed from a checkpoint, give the same head."""
    monkeypatch.setattr(draft_heads, "CHECKPOINT_STEPS", 3)
    rows = state_rows_of(target, tmp_path, getattr(recipe, "layers", ()))
    whole, report = draft_heads.train(head_training(target, tmp_path / "none", recipe, keep=False), rows)
    assert report["steps"] > 8 and report["epochs"] == 4.0
    assert report["overlap_low"] <= report["overlap"] <= report["overlap_high"]
    with pytest.raises(KeyboardInterrupt):
        draft_heads.train(head_training(target, tmp_path, recipe, Interrupting(7)), rows)
    training = head_training(target, tmp_path, recipe)
    assert training.checkpoint()["done"] == 6
    assert head_training(target, tmp_path, replace(recipe, rate=1e-4)).checkpoint() is None, "of another recipe"
    again, _ = draft_heads.train(training, rows, training.checkpoint())
    for one, two in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.allclose(one, two, atol=1e-6)
    if getattr(recipe, "vocabulary", 0):
        assert {*range(12, 30)} <= {*whole.tokens.tolist()} and len(whole.tokens) == len(whole.lm_head.weight) == 24


@pytest.mark.parametrize(("kind", "more"), [(Eagle3Recipe, 12), (DFlashRecipe, 20), (DSparkRecipe, 40)])
def test_a_head_learns_the_tokens_of_its_drafts(kind, more, tmp_path, target):
    """The loss on texts that count upwards falls.

    Heads that learn the base's distributions draft its tokens more often; DFlash learns the tokens of the texts.
    """
    recipe = kind(epochs=1, batch=600, rate=2e-3, warm_up=1, layers=(1, 3))
    rows, reports = state_rows_of(target, tmp_path, (1, 3)), []
    for epochs in (1, more):
        training = head_training(target, tmp_path, replace(recipe, epochs=epochs), keep=False)
        reports.append(draft_heads.train(training, rows)[1])
    assert reports[1]["loss"] < reports[0]["loss"] - 0.5
    if kind is not DFlashRecipe:
        assert reports[1]["overlap"] > reports[0]["overlap"] + 0.02


def test_the_training_of_blocks_computes_what_a_session_drafts(tmp_path, target):
    """The rows of blocks after anchors in the middle of two texts equal those of a session that drafts there."""
    model, length, aux_layers = target.models["target"].transformers(), 3, (1, 3)
    with torch.random.fork_rng([]):
        torch.manual_seed(5)
        head = DSparkHead.of(model.config, 2, length, aux_layers, 4)
    head.goes_with(model.get_input_embeddings().weight.float(), model.config)
    texts, anchors = [list(range(2, 20)), list(range(30, 48))], [4, 11]
    sessions = [target.open(text)["target"] for text in texts]
    for session in sessions:
        session.keep_states(aux_layers)
    states = [session.hidden(text, 0, aux_layers) for session, text in zip(sessions, texts, strict=True)]
    tokens = torch.tensor([[text[at] for at in anchors] for text in texts])
    columns = torch.tensor([[at - 1 for at in anchors]] * 2)
    blocks = draft_head_losses.blocks_after(head, torch.stack(states), tokens, columns)
    for text, session, made in zip(texts, sessions, blocks, strict=True):
        for at, block in zip(anchors, made, strict=True):
            out = BlockSession(head, session).block(text[: at + 1], length)
            torch.testing.assert_close(out.states, block, atol=1e-5, rtol=1e-4)


def test_the_budget_decides_how_many_steps_an_eagle_head_is_trained(tmp_path, target):
    """A budget without a limit gives 40 epochs. One that is too short for an epoch is an error."""
    rows = state_rows_of(target, tmp_path)
    spent = iter([0.0])
    no_time = Budget(1.0, clock=lambda: next(spent, 60.0))
    assert draft_heads.TIMED_STEPS < 24
    with pytest.raises(ConfigError, match="steps of one epoch; help: a larger --minutes"):
        draft_heads.train(head_training(target, tmp_path, EagleRecipe(batch=28), budget=no_time, keep=False), rows)
    _, report = draft_heads.train(head_training(target, tmp_path, EagleRecipe(batch=600), keep=False), rows)
    assert report["epochs"] == MOST_EPOCHS


def test_collecting_ends_with_its_share_of_the_budget(tmp_path):
    """Half of the minutes, at least one shard; shards on disk are read whatever the time."""
    now = [0.0]
    budget = Budget(1.0, clock=lambda: now[0])
    texts = [Text(i, [i], [], Sample(str(i), ""), "") for i in range(100)]

    def make(text):
        now[0] += 0.5
        return {"x": torch.tensor([text.number])}

    found = collected(tmp_path, texts, each(make), {}, lambda: None, budget.ends_collecting)
    assert (found.texts, len(found.rows()["x"])) == (60, 60)
    assert budget.remaining == 30.0
    assert collected(tmp_path, texts, each(make), {}, lambda: None, lambda: True).texts == 60
    assert collected(tmp_path / "other", texts, each(make), {}, lambda: None, lambda: True).texts == 20


def test_the_recipe_of_an_eagle_head_depends_on_texts_and_width():
    """The paper's learning rate for its width, the bundled one for the bundled target's; given keys are kept."""
    assert EagleRecipe().resolved(10**7, 4096).rate == pytest.approx(3e-5)
    assert EagleRecipe().resolved(10**7, 192).rate == pytest.approx(2e-3)
    assert 3e-5 < EagleRecipe().resolved(10**7, 1024).rate < 2e-3
    assert [EagleRecipe().resolved(tokens, 192).batch for tokens in (100, 64_000, 10**7)] == [256, 1000, 4096]
    assert EagleRecipe(batch=7, rate=0.5).resolved(10**7, 192) == EagleRecipe(batch=7, rate=0.5)


@pytest.mark.slow
def test_an_eagle_head_learns_its_bases_distribution(tmp_path):
    """A few steps on the command line: a head in the published format, better than none."""
    quick = [
        "-n",
        40,
        "--set",
        "recipe.epochs=8",
        "--set",
        "recipe.batch=600",
        "--set",
        "recipe.warm_up=5",
        "--trial",
        5,
    ]
    shown = specbench("train", "eagle", *FEW, *quick, "-o", "head", cwd=tmp_path).stdout
    assert "Trial of eagle on 5 held-out prompts" in shown
    report = json.loads((tmp_path / "head" / "report.json").read_text())
    assert [each["method"] for each in report["trial"]] == ["ar", "eagle"]
    head = EagleHead.read(tmp_path / "head")
    assert head.provenance.base["source"] == "specbench:tiny/models/target" and not head.has_embedding
    assert head.provenance.data["answers"] == "outputs" and head.provenance.data["temperature"] == 0.0
    assert head.fc.weight.shape == (192, 384)
    assert head.provenance.report["overlap"] > 0.2, "an untrained one: 0.01"


def test_a_wrong_kind_feature_or_pair_is_an_error_that_lists_the_valid_ones(tmp_path):
    specbench("train", "sprintr", cwd=tmp_path, code=2)
    wrong = specbench("train", "sprinter", *FEW, "-n", 20, "--features", "stat", cwd=tmp_path, code=2)
    assert "did you mean 'state'" in wrong.stderr
    assert (
        "specbench train sprinter"
        in specbench("run", "-m", "sprinter", "-p", "gpt2", "-t", "lm1b", cwd=tmp_path, code=4).stderr
    )
    assert "has no key 'rat'" in specbench("train", "dsl", *FEW, "--set", "recipe.rat=1", cwd=tmp_path, code=2).stderr
    assert "No such option: --tau" in specbench("train", "dsl", *FEW, "--tau", 1.5, cwd=tmp_path, code=2).stderr
