"""Rows and labels for SPRINTER's verifier, and its training.

See SPRINTER, Sections 4 and 5; docs/papers/sprinter.md, Training.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specbench.decoding.sampling import Sampler, read_tokens
from specbench.decoding.targets.deferral import confidence, entropy, within
from specbench.models.heads import Verifier
from specbench.models.heads.sprinter import FEATURES
from specbench.models.loader import LoadedPair, Models
from specbench.training import roc
from specbench.training.fitting import Recipe, fit
from specbench.training.shards import Rows, chosen, joined
from specbench.training.texts import Text, masks

KINDS = ("original", "draft", "target", "mixed")  # who wrote the prefix behind the prompt
THRESHOLDS = (1.0, 1.2, 1.5)  # tau_train
LABEL_THRESHOLD = 1.0  # by which a mixed prefix takes the draft's token or the target's
HALF = 0.5  # tau_inf
SHOWN = ("state", "q", "entropy", "q+entropy", "state+q+entropy", "state+token")  # features that a report compares


@dataclass(frozen=True)
class Rollout:
    """How rows are collected: `steps` tokens behind each prompt, drawn at `temperature` by roles `draft` and `target`.

    The authors draw greedily; T = 1 is what Theorem 1 is about. Laws are read unscaled and unfiltered.
    """

    draft: str = "draft"
    target: str = "target"
    steps: int = 20
    temperature: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        within("steps", self.steps, 2, math.inf)
        within("temperature", self.temperature, 0.0, math.inf)


def rows_of(pair: LoadedPair, text: Text, walk: Rollout) -> Rows:
    """All rows of a text, the four kinds of prefixes: a drafted token x behind each, and what both models say of it.

    Columns: state (n, H) of the draft before x, x, q and p its unscaled probabilities, tv between the laws, entropy of q,
    kind.
    """
    seed = hash((walk.seed, text.number)) & (2**62 - 1)
    sampler = Sampler(walk.temperature, generator=torch.Generator(pair.device).manual_seed(seed))
    room = walk.steps if pair.window is None else pair.window - len(text.prompt)
    walk = replace(walk, steps=min(walk.steps, room))
    models = pair.open(text.prompt)
    models[walk.draft].keeps_hidden = True
    parts = []
    with torch.inference_mode():
        for kind, name in enumerate(KINDS):
            tokens, drafted = _walked(models, name, text, walk, sampler, pair.eos)
            if tokens:
                parts.append(_read(models, tokens, drafted, walk, sampler, kind))
    return joined(parts)


def _walked(
    models: Models, kind: str, text: Text, walk: Rollout, sampler: Sampler, eos: frozenset[int]
) -> tuple[list[int], list[int]]:
    """What is read behind the prompt, none behind an EOS, and the tokens drafted at each place where the walk fixed them."""
    draft, target, ids = models[walk.draft], models[walk.target], list(models.ids)
    if kind == "original":
        return (text.rest[: walk.steps] or [0], [])
    if kind in ("draft", "target"):
        tokens = (draft if kind == "draft" else target).roll(ids, walk.steps, sampler, eos).tokens
        return tokens, tokens if kind == "draft" else []
    tokens, drafted = [], []
    while len(tokens) < walk.steps and not (tokens and tokens[-1] in eos):
        read = ids + tokens
        q_logits, p_logits = (each.score(read, len(read) - 1) for each in (draft, target))  # (1, V)
        x = read_tokens(sampler.draw(q_logits)[0])
        drafted += x
        q, p = (float(confidence(each)[0, x[0]]) for each in (q_logits, p_logits))
        tokens += x if q <= LABEL_THRESHOLD * p else read_tokens(sampler.draw(p_logits)[0])
    return tokens, drafted


def _read(models: Models, tokens: list[int], drafted: list[int], walk: Rollout, sampler: Sampler, kind: int) -> Rows:
    """Rows at every prefix of `tokens` behind the prompt, one forward of each model. The bare prompt is an original one."""
    ids = list(models.ids)
    read, start = ids + tokens[:-1], len(ids) - 1
    q_logits, p_logits = (models[role].score(read, start) for role in (walk.draft, walk.target))  # (n, V)
    q, p = confidence(q_logits), confidence(p_logits)
    x = torch.tensor(drafted, device=q.device) if drafted else sampler.draw(q_logits)[0]  # (n,)
    rows = {
        "state": models[walk.draft].hidden(read, start).float(),
        "x": x,
        "q": q.gather(1, x.unsqueeze(1)).squeeze(1),
        "p": p.gather(1, x.unsqueeze(1)).squeeze(1),
        "tv": (q - p).clamp_min(0.0).sum(-1),
        "entropy": entropy(q),
        "kind": torch.full_like(x, kind),
    }
    return {key: column[0 if kind == 0 else 1 :].cpu() for key, column in rows.items()}


def balanced(rows: Rows, seed: int) -> Rows:
    """As many rows of each kind of prefix as there are of the rarest: the paper's equal shares."""
    generator = torch.Generator().manual_seed(seed)
    places = [torch.nonzero(rows["kind"] == kind).squeeze(1) for kind in range(len(KINDS))]
    least = min(len(each) for each in places if len(each))
    kept = [each[torch.randperm(len(each), generator=generator)[:least]] for each in places]
    return chosen(rows, torch.cat(kept).sort().values)


def labels_of(rows: Rows, threshold: float) -> Tensor:
    """1 where a drafted token is acceptable: q(x) <= tau p(x) (docs/papers/sprinter.md, Acceptable tokens)."""
    return (rows["q"] <= threshold * rows["p"]).float()


def _inputs(head: Verifier, rows: Rows) -> Tensor:
    """`Verifier.inputs` from columns that hold q(x) and the entropy in place of the laws."""
    parts = {
        "state": rows["state"],
        "q": torch.logit(rows["q"], eps=1e-6).unsqueeze(1),
        "entropy": rows["entropy"].unsqueeze(1),
    }
    if "token" in head.parts:
        assert head.embedding is not None
        parts["token"] = head.embedding[rows["x"]].float().cpu()
    return torch.cat([parts[part] for part in head.parts], -1)


def train(
    rows: Rows, embedding: Tensor, features: str, threshold: float, recipe: Recipe, seed: int, drawn: bool = True
) -> tuple[Verifier, dict[str, Any]]:
    """A verifier fitted to balanced rows, and what it is worth on the test texts.

    `predicted_tv` is the distance from the target at a position that Theorem 1 predicts in its token-dependent form, the sum
    over x of fp(x) (q(x) - p(x))+, estimated over the rows' own draws where those were `drawn` from q at T = 1; `draft_tv` is
    what accepting everything would give.
    """
    torch.manual_seed(seed)
    head = Verifier(hidden=rows["state"].shape[1], features=features, threshold=threshold)
    head.embedding = embedding
    parts = {split: chosen(rows, mask) for split, mask in masks(rows["text"], seed).items()}
    ready = {split: (_inputs(head, part), labels_of(part, threshold)) for split, part in parts.items()}
    head.mean.copy_(ready["train"][0].mean(0))
    head.spread.copy_(ready["train"][0].std(0).clamp_min(1e-6))
    losses = fit(head, head, ready["train"], ready["validation"], recipe)
    with torch.no_grad():
        scores = head(ready["test"][0]).sigmoid()
    test = parts["test"]
    told = roc.summary(scores.numpy(), ready["test"][1].numpy(), test["text"].numpy(), HALF)
    wrong = (1.0 - test["p"] / test["q"].clamp_min(1e-12)).clamp_min(0.0)  # x ~ q, so its mean is the distance
    told["draft_tv"] = float(test["tv"].mean())
    if drawn:
        told["predicted_tv"] = float(((scores >= HALF) * wrong).mean())
    told |= {"features": features, "tau_train": threshold, "epochs": len(losses), "validation_loss": min(losses)}
    return head, told | {"curve": roc.curve(scores.numpy(), ready["test"][1].numpy())}


def compare(
    rows: Rows, embedding: Tensor, features: str, thresholds: Sequence[float], recipe: Recipe, seed: int,
    drawn: bool, advance: Callable[[], None],
) -> dict[tuple[str, float], tuple[Verifier, dict[str, Any]]]:  # fmt: skip
    """A verifier of each features that a report shows, and of the wanted ones, at each tau_train."""
    out = {}
    for which in dict.fromkeys((*SHOWN, features)):
        for threshold in thresholds:
            out[which, threshold] = train(rows, embedding, which, threshold, recipe, seed, drawn)
            advance()
    return out


def plot(reports: Sequence[dict[str, Any]], path: Path) -> None:
    """ROC curves of one tau_train as SVG and PNG: what a forward pass with these features is worth."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 5.0), layout="constrained")
    axes = figure.add_subplot()
    for told in reports:
        x, y = np.array(told["curve"]).T
        axes.plot(x, y, label=f"{told['features']}: {told['auc']:.3f} [{told['auc_low']:.3f}, {told['auc_high']:.3f}]")
        axes.plot([told["eta_fp"]], [told["eta_tp"]], "k.", markersize=4)
    axes.plot([0, 1], [0, 1], color="0.7", linewidth=0.8)
    axes.set(xlabel="unacceptable tokens accepted (eta_FP)", ylabel="acceptable tokens accepted (eta_TP)")
    axes.set_title(f"Unseen texts, tau_train = {reports[0]['tau_train']:g}; points: at the threshold", fontsize=10)
    axes.legend(title="features: AUC", fontsize=8, loc="lower right")
    for suffix in (".svg", ".png"):
        figure.savefig(path.with_suffix(suffix), dpi=150)


assert set(SHOWN) <= set(FEATURES)
