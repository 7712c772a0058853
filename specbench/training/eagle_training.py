"""Training of EAGLE heads: states of the base along whole texts, on disk, then a fit to them.

EAGLE-1 is fitted to the base's next feature (Li et al. 2024, Section 4.2), EAGLE-3 to the distributions of the next tokens,
in drafts that begin at every token (Li et al. 2025, Section 3.2). See docs/papers/drafting.md.
"""

import itertools
import json
import math
import random
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor

from specbench.analysis.intervals import interval_of_sums
from specbench.config.construct import Table
from specbench.decoding.session import Session, Taps
from specbench.errors import ConfigError
from specbench.models.heads import Eagle1Head, Eagle3Head, EagleHead
from specbench.models.heads.head import UNREADABLE
from specbench.models.loaded_pair import LoadedPair
from specbench.observer import Observer
from specbench.training.fitting import is_falling
from specbench.training.recipes import MOST_EPOCHS, Budget, Eagle3Recipe, EagleRecipe, Split
from specbench.training.shards import Columns, Shards
from specbench.training.texts import Text, split_of

CHECKPOINT = "checkpoint.pt"
CHECKPOINT_STEPS = 200
COMPARED = 0.75  # share of the steps after which the validation loss is first computed
TIMED_STEPS = 10  # steps that are timed to choose the number of steps within the budget


@dataclass(frozen=True)
class TextSpan:
    """The rows of a text: a file and the first and last row, exclusive. `continues` if the text does after its prompt."""

    number: int
    path: Path
    first: int
    end: int
    continues: bool

    @property
    def length(self) -> int:
        """The number of tokens."""
        return self.end - self.first

    def rows(self) -> Columns:
        """Read the rows."""
        with safe_open(self.path, "pt") as file:
            return {key: file.get_slice(key)[self.first : self.end] for key in file.keys() if key != "text"}  # noqa: SIM118


def spans_of(shards: Shards) -> list[TextSpan]:
    """Return the texts of collected rows in order. Features are not read."""
    spans = []
    for path in shards.paths:
        with safe_open(path, "pt") as file:
            text, in_answer = file.get_tensor("text"), file.get_tensor("own")
        ends = torch.tensor([-1])
        bounds = torch.nonzero(torch.diff(text, prepend=ends, append=ends)).squeeze(1).tolist()
        for a, b in itertools.pairwise(bounds):
            spans.append(TextSpan(int(text[a]), path, a, b, bool(in_answer[a + 1 : b].any())))
    return spans


def rows_of(pair: LoadedPair, text: Text, base: str, most: int, taps: Taps = ()) -> Columns:
    """Return the rows of a text, of at most `most` tokens.

    Columns: token; feature (n, H) of the base at it; `own`, whether it is in the answer, not in the prompt; with taps,
    `states` (n, m H). Features and states are in half precision, or in the base's own precision if that is a half one.
    """
    models = pair.open(text.prompt)
    session, ids = models[base], list(models.ids)
    whole = (ids + text.rest)[: min(most, pair.window_of(pair.models).length or most)]
    columns: Columns = {"token": torch.tensor(whole), "own": torch.arange(len(whole)) >= len(ids)}
    kept = {"feature": (), "states": taps} if taps else {"feature": ()}
    for wanted in kept.values():
        session.keep_states(wanted)
    for name, wanted in kept.items():
        states = session.hidden(whole, 0, wanted)
        columns[name] = (states if states.dtype != torch.float32 else states.half()).cpu()
    return columns


@dataclass(frozen=True)
class EagleBatch:
    """Padded texts.

    They have tokens t + 1 (b, n), what the head reads of the base at token t, the features f_{t+1} to predict, and a mask
    (b, n) of the positions that count for the loss. The head reads features f_t (b, n, H), or states (b, n, m H) of taps.
    """

    tokens: Tensor
    read: Tensor
    targets: Tensor
    counts: Tensor


class Sequences:
    """The texts of some spans, with batches of texts of similar length. Rows are read from disk for each batch."""

    def __init__(self, spans: Iterable[TextSpan], device: torch.device) -> None:
        self._spans = sorted((span for span in spans if span.length > 2), key=lambda span: span.length)
        self._device = device

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self._spans)

    @property
    def continues(self) -> bool:
        """Whether any text continues after its prompt."""
        return any(span.continues for span in self._spans)

    @property
    def tokens(self) -> int:
        """The number of tokens of all texts."""
        return sum(span.length for span in self._spans)

    def batches(self, size: int, rng: random.Random) -> list[list[TextSpan]]:
        """Return groups of texts, at most `size` tokens each including padding, in random order."""
        groups: list[list[TextSpan]] = [[]]
        for span in self._spans:
            if groups[-1] and (len(groups[-1]) + 1) * span.length > size:
                groups.append([])
            groups[-1].append(span)
        rng.shuffle(groups)
        return [group for group in groups if group]

    def most_frequent(self, count: int) -> Tensor:
        """Return the most frequent tokens of the answers, `count` in ascending order; the lowest ids fill up."""
        tokens = torch.cat([rows["token"][rows["own"]] for rows in (span.rows() for span in self._spans)])
        times = torch.bincount(tokens, minlength=count)
        return times.argsort(descending=True, stable=True)[:count].sort().values

    def padded(self, group: Sequence[TextSpan]) -> EagleBatch:
        """Return a group of texts as a batch."""
        rows = [span.rows() for span in group]
        n, source = max(span.length for span in group) - 1, "states" if "states" in rows[0] else "feature"
        width, read_width = rows[0]["feature"].shape[1], rows[0][source].shape[1]
        tokens, counts = torch.zeros(len(group), n, dtype=torch.long), torch.zeros(len(group), n, dtype=torch.bool)
        read, targets = torch.zeros(len(group), n, read_width), torch.zeros(len(group), n, width)
        for i, columns in enumerate(rows):
            m = len(columns["token"]) - 1
            tokens[i, :m] = columns["token"][1:]
            read[i, :m] = columns[source][:-1].float()
            targets[i, :m] = columns["feature"][1:].float()
            counts[i, :m] = columns["own"][1:]
        return EagleBatch(*(tensor.to(self._device) for tensor in (tokens, read, targets, counts)))


# Training


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
class EagleTraining:
    """A training run: the pair, the base's role, the recipe, the budget, and the folder for checkpoints.

    `about` identifies models and texts, so that only a matching checkpoint is resumed. `keep` writes checkpoints.
    """

    pair: LoadedPair
    base: str
    recipe: EagleRecipe | Eagle3Recipe
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
    training: EagleTraining, shards: Shards, checkpoint: TrainingCheckpoint | None = None
) -> tuple[EagleHead, Table]:
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

    def __init__(self, training: EagleTraining, shards: Shards) -> None:
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

    def _fresh(self, model: Any) -> EagleHead:
        """Return an untrained head for a base."""
        if isinstance(self.recipe, EagleRecipe):
            return Eagle1Head.of(model.config)
        head = Eagle3Head.of(model.config, self.recipe.layers, self.recipe.vocabulary)
        if head.lm_head is not None:
            head.tokens = self._seen.most_frequent(self.recipe.vocabulary)
            output = model.get_output_embeddings().weight
            head.lm_head.weight.data.copy_(output[head.tokens.to(output.device)])
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
        warm = min(self.done / (recipe.warm_up or max(self.total // 20, 1)), 1.0)
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


def _split(spans: Sequence[TextSpan], split: Split, training: EagleTraining) -> Sequences:
    """Return the texts of a split."""
    seed = training.recipe.seed
    return Sequences((span for span in spans if split_of(span.number, seed) == split), training.pair.device)


def _schedule(seen: Sequences, recipe: EagleRecipe | Eagle3Recipe) -> Iterator[list[TextSpan]]:
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


class Losses(NamedTuple):
    """Losses at each predicted position of a batch, (m,).

    `total` is what is minimized. `cross_entropy` is between the base's distribution and that of the first drafted token, and
    `overlap`, sum of min(p, q), how often that token would be accepted at T = 1, along the texts themselves. `text` is the
    position's text in the batch.
    """

    total: Tensor
    cross_entropy: Tensor
    overlap: Tensor
    text: Tensor


def losses_of(head: EagleHead, base: Session, batch: EagleBatch, recipe: EagleRecipe | Eagle3Recipe) -> Losses:
    """Return the losses of a head on a batch."""
    if isinstance(head, Eagle3Head):
        assert isinstance(recipe, Eagle3Recipe)
        return _losses_of_drafts(head, base, batch, recipe)
    assert isinstance(head, Eagle1Head) and isinstance(recipe, EagleRecipe)
    read = batch.read
    if head.training and recipe.noise:
        read = read + (torch.rand_like(read) - 0.5) * recipe.noise * 512 / read.shape[1]
    made = head(batch.tokens, read)[batch.counts]  # (m, H)
    targets = batch.targets[batch.counts]
    p, log_q = base.logits_of(targets).softmax(-1), base.logits_of(made).log_softmax(-1)
    ce, regression = -(p * log_q).sum(-1), F.smooth_l1_loss(made, targets, reduction="none").mean(-1)
    return Losses(regression + recipe.ce * ce, ce, _overlap(p, log_q), batch.counts.nonzero()[:, 0])


def _losses_of_drafts(head: Eagle3Head, base: Session, batch: EagleBatch, recipe: Eagle3Recipe) -> Losses:
    """Return the losses of drafts of `steps` tokens: the cross-entropy of step s counts decay^s.

    Of a head with its own vocabulary, p is restricted to it and renormalized, and tokens count whose most likely successor
    is in it.
    """
    n, first, total = batch.counts.shape[1], None, torch.zeros_like(batch.counts, dtype=torch.float32)  # (b, n)
    for step, read in enumerate(head.unrolled(batch.tokens, batch.read, recipe.steps)):
        counts = batch.counts[:, : n - step] & batch.counts[:, step:]
        p = base.logits_of(batch.targets[:, step:][counts]).softmax(-1)  # (m, V)
        log_q = head.trained_logits(read[:, : n - step][counts], base.logits_of).log_softmax(-1)
        if first is None:
            first = _overlap(p, log_q)
        if head.tokens is not None:
            known = torch.isin(p.argmax(-1), head.tokens)
            p, log_q = p[:, head.tokens], log_q[:, head.tokens]
            p = p / p.sum(-1, keepdim=True) * known[:, None]
        ce = -(p * log_q).sum(-1)
        if not step:
            at_once = ce
        total = total.masked_scatter(
            F.pad(counts, (0, step)), total[F.pad(counts, (0, step))] + recipe.decay**step * ce
        )
    assert first is not None
    return Losses(total[batch.counts], at_once, first, batch.counts.nonzero()[:, 0])


def _overlap(p: Tensor, log_q: Tensor) -> Tensor:
    return torch.minimum(p, log_q.detach().exp()).sum(-1)


def losses_by_text(head: EagleHead, base: Session, texts: Sequences, recipe: EagleRecipe | Eagle3Recipe) -> np.ndarray:
    """Return sums over the predicted positions of each text, (texts, 4): total, cross-entropy, overlap, 1.

    Texts without an answer are left out.
    """
    sums, was_training = [], head.training
    head.eval()
    with torch.no_grad():
        for group in texts.batches(recipe.batch, random.Random(0)):
            losses = losses_of(head, base, texts.padded(group), recipe)
            columns = torch.stack([*losses[:3], torch.ones_like(losses.overlap)], 1)  # (m, 4)
            sums.append(columns.new_zeros(len(group), 4).index_add_(0, losses.text, columns))
    head.train(was_training)
    table = torch.cat(sums).cpu().numpy().astype(np.float64) if sums else np.zeros((0, 4))
    answered: np.ndarray = table[table[:, 3] > 0]
    return answered
