"""Training of an EAGLE-1 head: features of the base, then regression on them.

See Li et al. 2024, Section 4.2; docs/papers/drafting.md, EAGLE-1.
"""

import itertools
import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.config.construct import Table
from specbench.decoding.session import Session
from specbench.decoding.targets.deferral import within
from specbench.errors import ConfigError
from specbench.models.heads import EagleHead
from specbench.models.heads.head import UNREADABLE
from specbench.models.loader import LoadedPair
from specbench.training.shards import Rows
from specbench.training.texts import Text, split_of

CHECKPOINT = "checkpoint.pt"
CHECKPOINT_STEPS = 200


@dataclass(frozen=True, kw_only=True)
class EagleRecipe:
    """The paper's settings; a small model needs a larger `rate` and a shorter `warm_up`, which a pair can set.

    `noise` is the width of the uniform noise on features, scaled by 512 / length; `ce` the weight of the cross-entropy
    relative to the regression's; `most` the longest text, in tokens; `batch` the tokens per step.
    """

    epochs: int = 20
    batch: int = 4096
    rate: float = 3e-5
    warm_up: int = 2000
    noise: float = 0.2
    ce: float = 0.1
    clip: float = 0.5
    most: int = 2048
    seed: int = 0

    def __post_init__(self) -> None:
        for key, least in (("epochs", 1), ("batch", 1), ("warm_up", 1), ("most", 3), ("noise", 0.0), ("ce", 0.0)):
            within(key, getattr(self, key), least, math.inf)


def rows_of(pair: LoadedPair, text: Text, base: str, recipe: EagleRecipe) -> Rows:
    """Return columns token, feature (n, H) of the base at it, and `own`: whether it is in the continuation, not in the
    prompt.

    Features are in half precision, or in the base's own precision if that is a half one.
    """
    models = pair.open(text.prompt)
    session, ids = models[base], list(models.ids)
    whole = (ids + text.rest)[: min(recipe.most, pair.window or recipe.most)]
    session.keeps_hidden = True
    features = session.hidden(whole, 0)  # (n, H)
    own = torch.arange(len(whole)) >= len(ids)
    kept = features if features.dtype != torch.float32 else features.half()
    return {"token": torch.tensor(whole), "feature": kept.cpu(), "own": own}


@dataclass(frozen=True)
class _Batch:
    """Padded texts: tokens t + 1 (b, n), features f_t (b, n, H), features f_{t+1} to predict, and where the loss counts
    (b, n).
    """

    tokens: Tensor
    features: Tensor
    wanted: Tensor
    counts: Tensor


class _Sequences:
    """Collected rows grouped by text, with batches of texts of similar length."""

    def __init__(self, rows: Rows, numbers: set[int], device: torch.device) -> None:
        bounds = torch.nonzero(torch.diff(rows["text"], prepend=torch.tensor([-1]), append=torch.tensor([-1]))).squeeze(
            1
        )
        spans = [(int(a), int(b)) for a, b in itertools.pairwise(bounds)]
        self._spans = sorted(
            ((a, b) for a, b in spans if int(rows["text"][a]) in numbers and b - a > 2), key=lambda s: s[1] - s[0]
        )
        self._rows, self._device = rows, device

    def batches(self, size: int, rng: random.Random) -> list[list[tuple[int, int]]]:
        """Return groups of texts, at most `size` tokens each including padding, in random order."""
        groups: list[list[tuple[int, int]]] = [[]]
        for span in self._spans:
            if groups[-1] and (len(groups[-1]) + 1) * (span[1] - span[0]) > size:
                groups.append([])
            groups[-1].append(span)
        rng.shuffle(groups)
        return [group for group in groups if group]

    def padded(self, group: Sequence[tuple[int, int]]) -> _Batch:
        """Return a group of texts as a batch."""
        n = max(b - a for a, b in group) - 1
        width = self._rows["feature"].shape[1]
        tokens, counts = torch.zeros(len(group), n, dtype=torch.long), torch.zeros(len(group), n, dtype=torch.bool)
        features, wanted = torch.zeros(len(group), n, width), torch.zeros(len(group), n, width)
        for i, (a, b) in enumerate(group):
            m = b - a - 1
            tokens[i, :m] = self._rows["token"][a + 1 : b]
            features[i, :m] = self._rows["feature"][a : b - 1].float()
            wanted[i, :m] = self._rows["feature"][a + 1 : b].float()
            counts[i, :m] = self._rows["own"][a + 1 : b]
        return _Batch(*(each.to(self._device) for each in (tokens, features, wanted, counts)))


def losses_of(
    head: EagleHead, base: Session, batch: _Batch, recipe: EagleRecipe, noisy: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return smooth L1 on features, cross-entropy between the distributions that the LM head computes from both, and
    their overlap.

    The overlap, sum of min(p, q), is how often a first drafted token would be accepted at T = 1, along the texts
    themselves.
    """
    given = batch.features
    if noisy:
        given = given + (torch.rand_like(given) - 0.5) * recipe.noise * 512 / given.shape[1]
    made = head(batch.tokens, given)[batch.counts]  # (m, H)
    wanted = batch.wanted[batch.counts]
    p = base.logits_of(wanted).softmax(-1)
    log_q = base.logits_of(made).log_softmax(-1)
    overlap = torch.minimum(p, log_q.detach().exp()).sum(-1).mean()
    return F.smooth_l1_loss(made, wanted), -(p * log_q).sum(-1).mean(), overlap


@dataclass(frozen=True)
class EagleTraining:
    """A training run: the pair, the base's role, the recipe, and the folder for checkpoints.

    `about` identifies models and texts, so that only a matching checkpoint is resumed. `keep` writes checkpoints.
    """

    pair: LoadedPair
    base: str
    recipe: EagleRecipe
    folder: Path
    about: Table
    keep: bool = True


def train(training: EagleTraining, rows: Rows, advance: Callable[[], None]) -> tuple[EagleHead, Table]:
    """Fit a head to collected rows, resuming a matching checkpoint. Returns it, and its report on the test texts.

    `advance` is called once per step. AdamW with betas (.9, .95), gradients clipped by value, linear warm-up, cosine
    decay; weights are trained in float32. Raises ConfigError if no text continues after its prompt, since there is
    nothing to learn.
    """
    pair, base, recipe, about = training.pair, training.base, training.recipe, training.about
    if not bool(rows["own"].any()):
        raise ConfigError("these texts end with their prompts; train an EAGLE head on a task whose rows continue")
    torch.manual_seed(recipe.seed)
    model = pair.models[base]
    head = EagleHead.of(model.config).to(pair.device)
    embedding: Any = model.get_input_embeddings()
    head.goes_with(embedding.weight.float())
    learned = [p for name, p in head.named_parameters() if "embed_tokens" not in name]
    for parameter in learned:
        parameter.requires_grad_(True)
    optimizer = torch.optim.AdamW(learned, lr=recipe.rate, betas=(0.9, 0.95))
    numbers = set(rows["text"].tolist())
    seen = _Sequences(rows, {n for n in numbers if split_of(n, recipe.seed) == "train"}, pair.device)
    unseen = _Sequences(rows, {n for n in numbers if split_of(n, recipe.seed) == "test"}, pair.device)
    session, path = pair.open([0, 0])[base], training.folder / CHECKPOINT
    steps, total, first = 0, steps_of(rows, recipe), 0
    kept = _checkpoint(path)
    if kept and kept["recipe"] == asdict(recipe) and kept["about"] == json.dumps(about, sort_keys=True):
        head.load_state_dict(kept["head"])
        optimizer.load_state_dict(kept["optimizer"])
        first = kept["steps"]
    head.train()
    for group in _schedule(seen, recipe):
        steps += 1
        if steps > first:
            warm = min(steps / recipe.warm_up, 1.0)
            for each in optimizer.param_groups:
                each["lr"] = recipe.rate * warm * (1 + math.cos(math.pi * steps / total)) / 2
            regression, ce, _ = losses_of(head, session, seen.padded(group), recipe, noisy=True)
            optimizer.zero_grad()
            (regression + recipe.ce * ce).backward()  # type: ignore[no-untyped-call]  # torch's backward is untyped
            torch.nn.utils.clip_grad_value_(learned, recipe.clip)
            optimizer.step()
            if training.keep and steps % CHECKPOINT_STEPS == 0:
                part = path.with_suffix(".part")
                state = {"recipe": asdict(recipe), "about": json.dumps(about, sort_keys=True), "steps": steps}
                torch.save(state | {"head": head.state_dict(), "optimizer": optimizer.state_dict()}, part)
                part.rename(path)
        advance()
    head.eval()
    with torch.no_grad():
        found = [losses_of(head, session, unseen.padded(group), recipe, noisy=False) for group in
                 unseen.batches(recipe.batch, random.Random(0))]  # fmt: skip
    means = [float(torch.stack([each[i] for each in found]).mean()) for i in range(3)]
    return head, {"smooth_l1": means[0], "cross_entropy": means[1], "overlap": means[2], "steps": steps}


def _checkpoint(path: Path) -> dict[str, Any]:
    """Return an interrupted training's checkpoint; empty if there is none or it is damaged, in which case training
    starts over.
    """
    try:
        return dict(torch.load(path, weights_only=True)) if path.exists() else {}
    except UNREADABLE:
        return {}


def steps_of(rows: Rows, recipe: EagleRecipe) -> int:
    """Return the number of steps of the whole training."""
    numbers = {n for n in set(rows["text"].tolist()) if split_of(n, recipe.seed) == "train"}
    return recipe.epochs * len(_Sequences(rows, numbers, torch.device("cpu")).batches(recipe.batch, random.Random(0)))


def _schedule(seen: _Sequences, recipe: EagleRecipe) -> Iterator[list[tuple[int, int]]]:
    """Yield every step's texts; reproducible."""
    for epoch in range(recipe.epochs):
        yield from seen.batches(recipe.batch, random.Random(f"{recipe.seed}:{epoch}"))
