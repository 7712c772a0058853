"""Training of heads that draft: a fit to states of the base along whole texts.

EAGLE-1 is fitted to the base's next feature (Li et al. 2024, Section 4.2), EAGLE-3 to the distributions of the next tokens,
in drafts that begin at every token (Li et al. 2025, Section 3.2), DFlash and DSpark to the next tokens, in blocks that begin
at random tokens (DeepSpec, arXiv 2607.05147). See docs/papers/drafting.md.
"""

import itertools
import json
import math
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import Tensor

from specbench.analysis.intervals import interval_of_sums
from specbench.config.construct import Table
from specbench.errors import ConfigError
from specbench.models.heads import DFlashHead, DraftHead, DSparkHead, Eagle1Head, Eagle3Head
from specbench.models.heads.head import UNREADABLE
from specbench.models.loaded_pair import LoadedPair
from specbench.models.panel_codes import rows_of
from specbench.observer import Observer
from specbench.training.draft_head_losses import losses_by_text, losses_of
from specbench.training.fitting import is_falling
from specbench.training.recipes import (
    MOST_EPOCHS,
    Budget,
    DFlashRecipe,
    DraftHeadRecipe,
    DSparkRecipe,
    Eagle3Recipe,
    Split,
)
from specbench.training.shards import Shards
from specbench.training.state_rows import Sequences, TextSpan, spans_of
from specbench.training.texts import split_of

CHECKPOINT = "checkpoint.pt"
CHECKPOINT_STEPS = 200
COMPARED = 0.75  # share of the steps after which the validation loss is first computed
TIMED_STEPS = 10  # steps that are timed to choose the number of steps within the budget


class TrainingCheckpoint(TypedDict):
    """An interrupted training.

    It holds the identity of the training, the total and the finished number of steps, what limits them, the validation loss
    after the share COMPARED of them, and all states, including the state of the random numbers for the noise.
    """

    identity: str
    total: int
    done: int
    ended: str
    earlier: float | None
    head: dict[str, Any]
    optimizer: dict[str, Any]
    noise: Tensor


@dataclass(frozen=True, kw_only=True)
class HeadTraining:
    """A training run: the pair, the base's role, the recipe, the budget, and the folder for checkpoints.

    `about` identifies models and texts, so that only a matching checkpoint is resumed. `keep` writes checkpoints.
    """

    pair: LoadedPair
    base: str
    recipe: DraftHeadRecipe
    folder: Path
    about: Table
    budget: Budget
    observer: Observer
    keep: bool = True

    def checkpoint(self) -> TrainingCheckpoint | None:
        """Read the checkpoint of an interrupted training of the same kind; None if there is none, or if it is damaged."""
        path = self.folder / CHECKPOINT
        try:
            checkpoint: TrainingCheckpoint | None = (
                torch.load(path, weights_only=True, map_location=self.pair.device) if path.exists() else None
            )
        except UNREADABLE:
            return None
        is_whole = checkpoint is not None and checkpoint.keys() == TrainingCheckpoint.__required_keys__
        return checkpoint if checkpoint and is_whole and checkpoint["identity"] == self.identity else None

    @property
    def identity(self) -> str:
        """The recipe, the models and the texts as text."""
        return json.dumps({"recipe": asdict(self.recipe), "about": self.about}, sort_keys=True)


def train(
    training: HeadTraining, shards: Shards, checkpoint: TrainingCheckpoint | None = None
) -> tuple[DraftHead, Table]:
    """Fit a head to collected rows, from a checkpoint if there is one. Returns it, and its report on the test texts.

    Rows are read from disk batch by batch.

    AdamW with betas (.9, .95), gradients clipped by value, linear warm-up, cosine decay; weights are trained in float32.
    Without a number of epochs, the time of the first steps decides how many steps fit into the budget.

    Raises:
        ConfigError: No training text or no test text continues after its prompt.
    """
    torch.manual_seed(training.recipe.seed)
    fit = _Fit(training, shards)
    if checkpoint:
        fit.resume(checkpoint)
    if not fit.total:
        with training.observer.status("timing the first steps"):
            fit.total = fit.steps_within(training.budget)
    with training.observer.progress("training", fit.total) as advance:
        for done in range(1, fit.total + 1):
            if done > fit.done:
                fit.step()
            advance()
    return fit.head.eval(), fit.report()


class _Fit:
    """A head during its training. `total` is the number of steps, 0 until it is known, `done` the number of finished ones."""

    def __init__(self, training: HeadTraining, shards: Shards) -> None:
        self._training = training
        pair, base = training.pair, training.base
        splits: tuple[Split, ...] = ("train", "validation", "test")
        spans = spans_of(shards)
        self._seen, self._validation, self._unseen = (_split(spans, split, training) for split in splits)
        if not self._seen.continues or not self._unseen.continues:
            raise ConfigError(
                "too few texts have an answer after the prompt; use a task or --data with answers, or a larger --limit"
            )
        model = pair.models[base].transformers()
        embedding: Any = model.get_input_embeddings()
        self.recipe = training.recipe.resolved(self._seen.tokens, embedding.weight.shape[1])
        self.head = self._fresh(model).to(pair.device)
        self.head.goes_with(embedding.weight.float(), model.config)
        self._learned = [p for name, p in self.head.named_parameters() if "embed_tokens" not in name]
        for parameter in self._learned:
            parameter.requires_grad_(True)
        self._optimizer = torch.optim.AdamW(self._learned, lr=self.recipe.rate, betas=(0.9, 0.95))
        self._session = pair.open([0, 0])[base]
        self._batches = _schedule(self._seen, self.recipe)
        self.epoch = len(self._seen.batches(self.recipe.batch, random.Random(0)))  # in steps
        self.total, self.done = self.recipe.epochs * self.epoch, 0
        self._ended = "epochs"  # what limits the number of steps: epochs or minutes
        self._earlier: float | None = None
        self.head.train()

    def _fresh(self, model: Any) -> DraftHead:
        """Return an untrained head for a base."""
        recipe, config = self.recipe, model.config
        if isinstance(recipe, DSparkRecipe):
            return DSparkHead.of(config, recipe.depth, recipe.length, recipe.layers, recipe.rank)
        if isinstance(recipe, DFlashRecipe):
            return DFlashHead.of(config, recipe.depth, recipe.length, recipe.layers)
        if not isinstance(recipe, Eagle3Recipe):
            return Eagle1Head.of(config)
        head = Eagle3Head.of(config, recipe.layers, recipe.vocabulary)
        if head.lm_head is not None:
            head.tokens = self._seen.most_frequent(recipe.vocabulary)
            head.lm_head.weight.data.copy_(rows_of(model.get_output_embeddings(), head.tokens))
        return head

    def resume(self, checkpoint: TrainingCheckpoint) -> None:
        """Continue from a checkpoint, with its number of steps."""
        self.head.load_state_dict(checkpoint["head"])
        self._optimizer.load_state_dict(checkpoint["optimizer"])
        self.total, self.done = checkpoint["total"], checkpoint["done"]
        self._ended, self._earlier = checkpoint["ended"], checkpoint["earlier"]
        _set_random_state(checkpoint["noise"], self._training.pair.device)
        next(itertools.islice(self._batches, self.done - 1, None), None)

    def steps_within(self, budget: Budget) -> int:
        """Return how many steps fit into a budget, at most MOST_EPOCHS epochs. Takes the first steps to time them."""
        self.total = MOST_EPOCHS * self.epoch
        if not budget.has_time_limit:
            return self.total
        seconds = []
        for _ in range(min(TIMED_STEPS, self.total)):
            start = time.perf_counter()
            self.step()
            seconds.append(time.perf_counter() - start)
        possible = self.done + int(budget.remaining / statistics.median(seconds))
        if possible < self.epoch:
            raise ConfigError(
                f"the budget allows {possible} of the {self.epoch} steps of one epoch; help: a larger --minutes, or fewer"
                " texts (--limit)"
            )
        if possible < self.total:
            self._ended = "minutes"
        return min(possible, self.total)

    def step(self) -> None:
        """Train on the next batch."""
        self.done += 1
        recipe = self.recipe
        warm = min(self.done / max(min(recipe.warm_up or self.total // 20, self.total // 4), 1), 1.0)
        for group in self._optimizer.param_groups:
            group["lr"] = recipe.rate * warm * (1 + math.cos(math.pi * (self.done - 1) / self.total)) / 2
        losses = losses_of(self.head, self._session, self._seen.padded(next(self._batches)), recipe)
        self._optimizer.zero_grad()
        loss = losses.total.mean()
        loss.backward()  # type: ignore[no-untyped-call]  # torch's backward is untyped
        torch.nn.utils.clip_grad_value_(self._learned, recipe.clip)
        self._optimizer.step()
        if self.done == int(COMPARED * self.total):
            self._earlier = self._validation_loss()
        if self._training.keep and self.done % CHECKPOINT_STEPS == 0:
            self._save()

    def _save(self) -> None:
        """Write a checkpoint."""
        path = self._training.folder / CHECKPOINT
        state = TrainingCheckpoint(
            identity=self._training.identity, total=self.total, done=self.done, ended=self._ended, earlier=self._earlier,
            head=self.head.state_dict(), optimizer=self._optimizer.state_dict(),
            noise=_random_state(self._training.pair.device),
        )  # fmt: skip
        part = path.with_suffix(".part")
        torch.save(state, part)
        part.rename(path)

    def _validation_loss(self) -> float | None:
        """Return the loss per predicted position of the validation texts; None if none has an answer."""
        sums = losses_by_text(self.head, self._session, self._validation, self.recipe).sum(0)
        return float(sums[0] / sums[-1]) if sums[-1] else None

    def report(self) -> Table:
        """Return the losses on the test texts, the overlap with its 95 % interval over texts, and what was trained."""
        table = losses_by_text(self.head, self._session, self._unseen, self.recipe)
        earlier, last = self._earlier, self._validation_loss()
        total, ce, *_ = table.sum(axis=0) / table[:, -1].sum()
        overlap = interval_of_sums(table[:, [2, -1]], lambda sums: sums[..., 0] / sums[..., 1])
        return {
            "loss": float(total),
            "cross_entropy": float(ce),
            "overlap": overlap.value,
            "overlap_low": overlap.low,
            "overlap_high": overlap.high,
            "train_texts": len(self._seen),
            "test_texts": len(table),
            "steps": self.done,
            "epochs": round(self.done / self.epoch, 2),
            "ended": self._ended,
            "validation_loss": last,
            "falling": None if earlier is None or last is None else is_falling(earlier, last),
            "batch": self.recipe.batch,
            "rate": self.recipe.rate,
        }


def _split(spans: Sequence[TextSpan], split: Split, training: HeadTraining) -> Sequences:
    """Return the texts of a split."""
    seed = training.recipe.seed
    return Sequences((span for span in spans if split_of(span.number, seed) == split), training.pair.device)


def _schedule(seen: Sequences, recipe: DraftHeadRecipe) -> Iterator[list[TextSpan]]:
    """Yield every step's texts without end; reproducible."""
    for epoch in itertools.count():
        yield from seen.batches(recipe.batch, random.Random(f"{recipe.seed}:{epoch}"))


def _random_state(device: torch.device) -> Tensor:
    """Return the state of the generator that a device draws from."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _set_random_state(state: Tensor, device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state.cpu(), device)
    else:
        torch.set_rng_state(state.cpu())
