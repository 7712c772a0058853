"""Rows and training of the heads that classify tokens: SPRINTER's verifier, and the heads of SpecDec++ and DSL.

See docs/papers/sprinter.md, Training; docs/papers/drafting.md, SpecDec++, and DSL and DISCO.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from specbench.config.construct import Table
from specbench.config.pair import Answers
from specbench.decoding.drafting import Rule, roll
from specbench.decoding.method import StopCriteria
from specbench.decoding.sampling import Draft, Sampler, read_tokens
from specbench.decoding.speculation import Speculation
from specbench.decoding.targets import Last
from specbench.decoding.targets.deferral import confidence, entropy
from specbench.models.heads import AcceptanceHead, LengthHead, Verifier
from specbench.models.heads.classifiers import FEATURES
from specbench.models.loaded_pair import LoadedPair, Models
from specbench.training.fitting import error_rate, fit, loss_of, outcome, roc_curve, roc_rates, roc_summary
from specbench.training.recipes import AUTHORS_SHARE, DraftRollout, PrefixRollout, Recipe, Split, SprinterRecipe
from specbench.training.shards import Columns, chosen, joined
from specbench.training.texts import Text, masks, sampler_of, steps_within

MIXED = 0.15  # share of positions with the target's token instead of the draft's (SpecDec++)
PREFIX_KINDS = (
    "original",
    "draft",
    "target",
    "mixed",
)  # what follows the prompt in a prefix; "original": the text's answer
THRESHOLDS = (1.0, 1.2, 1.5)  # tau_train
ACCEPTABLE = 1.0  # the ratio q/p up to which Theorem 1 calls a token acceptable, and a mixed prefix takes the draft's
HALF = 0.5  # tau_inf
LEAKING = "rows (leaks)"  # in the report of a verifier whose test rows are of texts that it was trained on
COMPARED_FEATURES = (
    "state",
    "q",
    "entropy",
    "q+entropy",
    "state+q+entropy",
    "state+token",
)  # features that a report compares


def specdec_rows(pair: LoadedPair, text: Text, rollout: DraftRollout) -> Columns:
    """Return state (n, H) of the draft after it has read a drafted token, and label (n,), min(1, p / q) of that token.

    The text is the target's output, or the reference answer. At each position the draft draws a token y after the text's
    tokens, and the label of y is computed there. The draft then reads a mixed sequence: y at most positions, the text's token
    at a share `MIXED` of them. Rows of the text's tokens are omitted.
    """
    rollout = replace(rollout, steps=steps_within(pair, text, rollout.steps))
    sampler, models = sampler_of(pair, text, rollout.seed, rollout.temperature), pair.open(text.prompt)
    draft, target, ids = models[rollout.draft], models[rollout.target], list(models.ids)
    draft.keep_states()
    with torch.inference_mode():
        if rollout.answers == Answers.reference:
            written = text.rest[: rollout.steps]
            if not written:
                width = pair.models[rollout.draft].transformers().config.hidden_size
                return {"state": torch.empty(0, width), "label": torch.empty(0)}
        else:
            written = target.roll(ids, rollout.steps, sampler, pair.eos).tokens
        context, start = ids + written[:-1], len(ids) - 1
        q, p = (confidence(model.score(context, start)) for model in (draft, target))  # (n, V)
        y = sampler.choose(q).unsqueeze(1)  # (n, 1)
        label = (p.gather(1, y) / q.gather(1, y)).clamp(max=1.0).squeeze(1)
        target_turn = torch.tensor([1.0 - MIXED, MIXED], device=q.device).expand(len(y), 2)
        keeps = sampler.choose(target_turn) == 0  # (n,)
        text_tokens = torch.tensor(written, device=q.device)
        mix = read_tokens(torch.where(keeps, y.squeeze(1), text_tokens))
        state = draft.hidden(ids + mix, len(ids)).float()  # (n, H), of the mixed tokens
    return {"state": state[keeps].cpu(), "label": label[keeps].float().cpu()}


class _RecordingRule(Rule):
    """A stop rule that never stops, and records the inputs of DSL's classifier for each draft."""

    def __init__(self, head: LengthHead) -> None:
        super().__init__()
        self._head = head
        self.seen: list[Tensor] = []

    def begin(self, ids: list[int]) -> None:
        super().begin(ids)
        self.seen = []

    def after(self, ids: list[int], token: int, logits: Tensor) -> bool:
        position = torch.tensor([len(ids) - self.start], device=logits.device)
        self.seen.append(self._head.inputs(confidence(logits), position))
        return False


def dsl_rows(pair: LoadedPair, text: Text, rollout: DraftRollout) -> Columns:
    """Return training rows of `LengthHead` from tested draft tokens: inputs (n, 12), and label (n,), 1 if accepted.

    Each round begins after the tokens that the previous round committed, or after as many tokens of the reference answer.
    """
    rollout = replace(rollout, steps=steps_within(pair, text, rollout.steps))
    sampler, models = sampler_of(pair, text, rollout.seed, rollout.temperature), pair.open(text.prompt)
    draft, target, ids = models[rollout.draft], models[rollout.target], list(models.ids)
    reference = ids + text.rest if rollout.answers == Answers.reference else None
    steps = rollout.steps if reference is None else min(rollout.steps, len(text.rest))
    stop, rule = StopCriteria(pair.eos, len(ids) + steps), _RecordingRule(LengthHead())
    inputs: list[Tensor] = []
    labels: list[float] = []

    def propose(ids: list[int], room: int) -> Draft:
        return roll(draft, ids, min(rollout.gamma, room), sampler, pair.eos, rule)

    speculation = Speculation(
        proposer=rollout.draft, propose=propose, scorers=[target], target=Last(), sampler=sampler, bonus=True
    )
    with torch.inference_mode():
        tokens: list[int] = []
        while stop.room(ids) and not stop.closes(tokens):
            current = speculation.round(ids, stop).round
            inputs += rule.seen[: current.tested]
            labels += [1.0] * current.accepted + [0.0] * (current.tested - current.accepted)
            tokens = current.tokens if reference is None else reference[len(ids) : len(ids) + len(current.tokens)]
            ids = ids + tokens
    return {"inputs": torch.cat(inputs).cpu() if inputs else torch.empty(0, 12), "label": torch.tensor(labels)}


def train_specdec(rows: Columns, recipe: Recipe, seed: int) -> tuple[AcceptanceHead, Table]:
    """Return the head fitted to rows, and its report on the test texts (a label above 1/2 counts as acceptable)."""
    torch.manual_seed(seed)
    head = AcceptanceHead(hidden=rows["state"].shape[1])
    return head, _fit(head, rows, "state", recipe, seed)


def train_dsl(rows: Columns, recipe: Recipe, seed: int) -> tuple[LengthHead, Table]:
    """Return the classifier fitted to rows, and its report on the test texts."""
    torch.manual_seed(seed)
    head = LengthHead()
    return head, _fit(head, rows, "inputs", recipe, seed)


def _fit(head: AcceptanceHead | LengthHead, rows: Columns, column: str, recipe: Recipe, seed: int) -> Table:
    """Fit a head to a column of the rows. Returns its report on the test texts."""
    score = head.logits_of_features if isinstance(head, LengthHead) else head
    parts = {split: chosen(rows, mask) for split, mask in masks(rows["text"], seed).items()}
    ready = {s: (part[column], part["label"]) for s, part in parts.items()}
    losses = fit(head, score, ready["train"], ready["validation"], recipe)
    with torch.no_grad():
        scores = score(ready["test"][0]).sigmoid()
    labels = (ready["test"][1] > 0.5).float()
    report = roc_summary(scores.numpy(), labels.numpy(), parts["test"]["text"].numpy(), 0.5)
    report |= outcome(losses, recipe)
    return report | {"curve": roc_curve(scores.numpy(), labels.numpy())}


def sprinter_rows(pair: LoadedPair, text: Text, rollout: PrefixRollout) -> Columns:
    """Return the training rows of a text, for four kinds of prefixes. Each row describes a token x drafted after one.

    Columns: state (n, H) of the draft before x; x; q and p, its unscaled probabilities; tv between the distributions;
    entropy of q; kind.
    """
    sampler = sampler_of(pair, text, rollout.seed, rollout.temperature)
    rollout = replace(rollout, steps=steps_within(pair, text, rollout.steps))
    models = pair.open(text.prompt)
    models[rollout.draft].keep_states()
    parts = []
    with torch.inference_mode():
        for kind, name in enumerate(PREFIX_KINDS):
            tokens, drafted = _prefix_of(models, name, text, rollout, sampler, pair.eos)
            if tokens:
                parts.append(_prefix_rows(models, tokens, drafted, rollout, sampler, kind))
    return joined(parts)


def _prefix_of(
    models: Models, kind: str, text: Text, rollout: PrefixRollout, sampler: Sampler, eos: frozenset[int]
) -> tuple[list[int], list[int]]:
    """Return the tokens read after the prompt, ending at an EOS, and the drafted tokens if the prefix determines them."""
    draft, target, ids = models[rollout.draft], models[rollout.target], list(models.ids)
    if kind == "original" and rollout.answers == Answers.reference:
        return (text.rest[: rollout.steps] or [0], [])
    if kind == "original":
        return target.roll(ids, rollout.steps, sampler, eos).tokens, []
    if kind in ("draft", "target"):
        tokens = (draft if kind == "draft" else target).roll(ids, rollout.steps, sampler, eos).tokens
        return tokens, tokens if kind == "draft" else []
    tokens, drafted = [], []
    while len(tokens) < rollout.steps and not (tokens and tokens[-1] in eos):
        context = ids + tokens
        q_logits, p_logits = (model.score(context, len(context) - 1) for model in (draft, target))  # (1, V)
        x = read_tokens(sampler.draw(q_logits)[0])
        drafted += x
        q, p = (float(confidence(logits)[0, x[0]]) for logits in (q_logits, p_logits))
        tokens += x if q <= ACCEPTABLE * p else read_tokens(sampler.draw(p_logits)[0])
    return tokens, drafted


def _prefix_rows(
    models: Models, tokens: list[int], drafted: list[int], rollout: PrefixRollout, sampler: Sampler, kind: int
) -> Columns:
    """Return rows at every prefix of `tokens` after the prompt, with one forward per model.

    The bare prompt counts as an original prefix.
    """
    ids = list(models.ids)
    context, start = ids + tokens[:-1], len(ids) - 1
    q_logits, p_logits = (models[role].score(context, start) for role in (rollout.draft, rollout.target))  # (n, V)
    q, p = confidence(q_logits), confidence(p_logits)
    x = torch.tensor(drafted, device=q.device) if drafted else sampler.draw(q_logits)[0]  # (n,)
    rows = {
        "state": models[rollout.draft].hidden(context, start).float(),
        "x": x,
        "q": q.gather(1, x.unsqueeze(1)).squeeze(1),
        "p": p.gather(1, x.unsqueeze(1)).squeeze(1),
        "tv": (q - p).clamp_min(0.0).sum(-1),
        "entropy": entropy(q),
        "kind": torch.full_like(x, kind),
    }
    return {key: column[0 if kind == 0 else 1 :].cpu() for key, column in rows.items()}


def balanced_by_kind(rows: Columns, seed: int) -> Columns:
    """Return equally many rows of each kind of prefix, as in the paper."""
    generator = torch.Generator().manual_seed(seed)
    positions = [torch.nonzero(rows["kind"] == kind).squeeze(1) for kind in range(len(PREFIX_KINDS))]
    least = min(len(indices) for indices in positions if len(indices))
    picks = [indices[torch.randperm(len(indices), generator=generator)[:least]] for indices in positions]
    return chosen(rows, torch.cat(picks).sort().values)


def acceptable_labels(rows: Columns, threshold: float) -> Tensor:
    """Return 1 for acceptable draft tokens: q(x) <= tau p(x) (docs/papers/sprinter.md, Acceptable tokens)."""
    return (rows["q"] <= threshold * rows["p"]).float()


def _inputs(head: Verifier, rows: Columns) -> Tensor:
    """Return `Verifier.inputs` from columns that hold q(x) and the entropy instead of the distributions."""
    parts = {
        "state": rows["state"],
        "q": torch.logit(rows["q"], eps=1e-6).unsqueeze(1),
        "entropy": rows["entropy"].unsqueeze(1),
    }
    if "token" in head.parts:
        assert head.embedding is not None
        parts["token"] = head.embedding[rows["x"]].float().cpu()
    return torch.cat([parts[part] for part in head.parts], -1)


@dataclass(frozen=True)
class VerifierFitting:
    """What all verifiers of a report share: the draft's embedding (V, H), the recipe, the seed, and how tokens were drawn.

    `is_sampled` says that the rows' tokens were drawn from q at T = 1, as Theorem 1 requires.
    """

    embedding: Tensor
    recipe: SprinterRecipe
    seed: int
    is_sampled: bool = True


def train_sprinter(rows: Columns, features: str, threshold: float, fitting: VerifierFitting) -> tuple[Verifier, Table]:
    """Fit a verifier to balanced rows. Returns it, and a table of its results on the test texts and of how the fit ended."""
    torch.manual_seed(fitting.seed)
    head = Verifier(hidden=rows["state"].shape[1], features=features, threshold=threshold)
    head.embedding = fitting.embedding
    by_rows = fitting.recipe.split == "rows"
    split_masks = row_masks(len(rows["text"]), fitting.seed) if by_rows else masks(rows["text"], fitting.seed)
    parts = {split: chosen(rows, mask) for split, mask in split_masks.items()}
    ready = {split: (_inputs(head, part), acceptable_labels(part, threshold)) for split, part in parts.items()}
    head.mean.copy_(ready["train"][0].mean(0))
    head.spread.copy_(ready["train"][0].std(0).clamp_min(1e-6))
    validate = error_rate if by_rows else loss_of
    losses = fit(head, head, ready["train"], ready["validation"], fitting.recipe, validate)
    results = evaluated_verifier(head, parts["test"], fitting.is_sampled)
    curve = results.pop("curve")
    report = {**results, "features": features, "tau_train": threshold, **outcome(losses, fitting.recipe)}
    if by_rows:
        report |= {"split": LEAKING, "validation_error": report.pop("validation_loss")}
    return head, report | {"curve": curve}


def evaluated_verifier(head: Verifier, test: Columns, is_sampled: bool) -> Table:
    """Return the rates of a verifier on rows that it was not trained on, and its ROC curve.

    `eta_tp` and `eta_fp` are against the labels that the verifier was trained on, q <= tau_train p, and `ratio_eta_fp` is
    against the labels of Theorem 1, q <= p.

    Total variation distances from the target per position: `draft_tv` if every token is accepted; `predicted_tv` by the
    token-dependent form, the sum over x of fp(x) (q(x) - p(x))+, estimated over the rows' own draws if they are
    `is_sampled`; `output_tv` as measured, for features that do not depend on the token: the output follows q after prefixes
    that the verifier accepts, and p after others. Theorem 1's is derived in `specbench.features.suites.papers.verifiers`.
    """
    with torch.no_grad():
        scores = head(_inputs(head, test)).sigmoid()
    labels = acceptable_labels(test, head.settings["threshold"]).numpy()
    report = roc_summary(scores.numpy(), labels, test["text"].numpy(), HALF)
    wrong = (1.0 - test["p"] / test["q"].clamp_min(1e-12)).clamp_min(0.0)  # x ~ q, so its mean is the distance
    report["draft_tv"] = float(test["tv"].mean())
    if is_sampled:
        report["predicted_tv"] = float(((scores >= HALF) * wrong).mean())
        report["ratio_eta_fp"] = roc_rates(scores.numpy(), acceptable_labels(test, ACCEPTABLE).numpy(), HALF)["eta_fp"]
        if head.parts == ["state"]:
            report["output_tv"] = float(((scores >= HALF) * test["tv"]).mean())
    return {**report, "curve": roc_curve(scores.numpy(), labels)}


def row_masks(count: int, seed: int) -> dict[Split, Tensor]:
    """Return the authors' split of the rows: AUTHORS_SHARE for training, and the rest for both validation and test."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    train = torch.zeros(count, dtype=torch.bool)
    train[order[: round(AUTHORS_SHARE * count)]] = True  # (count,)
    return {"train": train, "validation": ~train, "test": ~train}


def compare_verifiers(
    rows: Columns,
    features: Sequence[str],
    thresholds: Sequence[float],
    fitting: VerifierFitting,
    advance: Callable[[], None],
) -> dict[tuple[str, float], tuple[Verifier, Table]]:
    """Return a verifier and its report for each set of features at each tau_train."""
    out = {}
    for which in features:
        for threshold in thresholds:
            out[which, threshold] = train_sprinter(rows, which, threshold, fitting)
            advance()
    return out


def plot_roc(reports: Sequence[Table], path: Path) -> None:
    """Plot ROC curves of one tau_train as SVG and PNG."""
    from matplotlib.figure import Figure  # slow to import, and used here only

    figure = Figure(figsize=(5.5, 5.0), layout="constrained")
    axes = figure.add_subplot()
    for report in reports:
        x, y = np.array(report["curve"]).T
        axes.plot(
            x, y, label=f"{report['features']}: {report['auc']:.3f} [{report['auc_low']:.3f}, {report['auc_high']:.3f}]"
        )
        axes.plot(np.array([report["eta_fp"]]), np.array([report["eta_tp"]]), "k.", markersize=4)
    axes.plot([0, 1], [0, 1], color="0.7", linewidth=0.8)
    axes.set(xlabel="unacceptable tokens accepted (eta_FP)", ylabel="acceptable tokens accepted (eta_TP)")
    axes.set_title(f"Unseen texts, tau_train = {reports[0]['tau_train']:g}; points: at the threshold", fontsize=10)
    axes.legend(title="features: AUC", fontsize=8, loc="lower right")
    for suffix in (".svg", ".png"):
        figure.savefig(path.with_suffix(suffix), dpi=150)


assert set(COMPARED_FEATURES) <= set(FEATURES)
