"""Rows and training of the heads that decide draft lengths: those of SpecDec++ and DSL.

See docs/papers/drafting.md, SpecDec++; docs/papers/drafting.md, DSL and DISCO.
"""

from dataclasses import replace

import torch
from torch import Tensor

from specbench.config.construct import Table
from specbench.config.pair import Answers
from specbench.decoding.drafting import Rule, roll
from specbench.decoding.method import StopCriteria
from specbench.decoding.sampling import Draft, read_tokens
from specbench.decoding.speculation import Speculation
from specbench.decoding.targets import Last
from specbench.decoding.targets.deferral import confidence
from specbench.models.heads import AcceptanceHead, LengthHead
from specbench.models.loaded_pair import LoadedPair
from specbench.training.fitting import fit, outcome, roc_curve, roc_summary
from specbench.training.recipes import DraftRollout, Recipe
from specbench.training.shards import Columns, chosen
from specbench.training.texts import Text, masks, sampler_of, steps_within

MIXED = 0.15  # share of positions with the target's token instead of the draft's (SpecDec++)


def specdec_rows(pair: LoadedPair, text: Text, rollout: DraftRollout) -> Columns:
    """Return state (n, H) of the draft after it has read a drafted token, and label (n,), min(1, p / q) of that token.

    The text is the target's output, or the reference answer. At each position the draft draws a token y, whose label is
    computed after the text's tokens. The draft then reads a mix: y, or at a share `MIXED` of positions the text's token,
    whose rows are omitted.
    """
    rollout = replace(rollout, steps=steps_within(pair, text, rollout.steps))
    sampler, models = sampler_of(pair, text, rollout.seed, rollout.temperature), pair.open(text.prompt)
    draft, target, ids = models[rollout.draft], models[rollout.target], list(models.ids)
    draft.keeps_hidden = True
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

    Each round follows the tokens that the round before committed, or as many of the reference answer.
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
