"""Losses of heads that draft, on batches of states of the base."""

import random
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.decoding.session import Session
from specbench.models.heads import BlockHead, DraftHead, Eagle1Head, Eagle3Head
from specbench.models.heads.block_parts import BlockParts
from specbench.training.recipes import DFlashRecipe, DraftHeadRecipe, DSparkRecipe, Eagle3Recipe, EagleRecipe
from specbench.training.state_rows import Sequences, TextBatch


class Losses(NamedTuple):
    """One loss per draft, (m,). EAGLE heads draft after every token of the answers, block heads after each anchor.

    `total` is what is minimized. `cross_entropy` is between the base's distribution and that of the first drafted token, and
    `overlap`, sum of min(p, q), how often that token would be accepted at T = 1, along the texts themselves. `text` is the
    draft's text in the batch.
    """

    total: Tensor
    cross_entropy: Tensor
    overlap: Tensor
    text: Tensor


def losses_of(head: DraftHead, base: Session, batch: TextBatch, recipe: DraftHeadRecipe) -> Losses:
    """Return the losses of a head on a batch."""
    if isinstance(head, Eagle3Head):
        assert isinstance(recipe, Eagle3Recipe)
        return _losses_of_drafts(head, base, batch, recipe)
    if isinstance(head, BlockHead):
        assert isinstance(recipe, DFlashRecipe)
        return _losses_of_blocks(head, base, batch, recipe)
    assert isinstance(head, Eagle1Head) and isinstance(recipe, EagleRecipe)
    read = batch.read
    if head.training and recipe.noise:
        read = read + (torch.rand_like(read) - 0.5) * recipe.noise * 512 / read.shape[1]
    made = head(batch.tokens, read)[batch.counts]  # (m, H)
    targets = batch.targets[batch.counts]
    p, log_q = base.logits_of(targets).softmax(-1), base.logits_of(made).log_softmax(-1)
    ce, regression = -(p * log_q).sum(-1), F.smooth_l1_loss(made, targets, reduction="none").mean(-1)
    return Losses(regression + recipe.ce * ce, ce, _overlap(p, log_q), batch.counts.nonzero()[:, 0])


def _losses_of_drafts(head: Eagle3Head, base: Session, batch: TextBatch, recipe: Eagle3Recipe) -> Losses:
    """Return the losses of drafts of `steps` tokens: the cross-entropy of step s counts decay^s.

    Of a head with its own vocabulary, p is restricted to it and renormalized, and positions whose most likely next token is
    not in it have a loss of 0.
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


def _losses_of_blocks(head: BlockHead, base: Session, batch: TextBatch, recipe: DFlashRecipe) -> Losses:
    """Return the losses of blocks after random anchors: the weighted mean over the tokens of a block, weight exp(-k / decay).

    DFlash's loss is the cross-entropy of the text's own tokens. DSpark's Markov head reads these tokens, its loss is mostly
    the distance to the base's distributions, and its confidence is fitted to 1 - distance / 2. Evaluation has fixed anchors.
    """
    columns, chosen = _anchors(batch.counts, recipe.anchors, head.training)  # (b, A), column c holds token c + 1
    n, length = batch.counts.shape[1], head.block.length
    later = columns[..., None] + torch.arange(length + 1, device=columns.device)  # (b, A, L + 1)
    is_inside, later = later < n, later.clamp_max(n - 1)
    texts = torch.arange(len(columns), device=columns.device)[:, None, None]
    tokens = batch.tokens[texts, later]  # the anchor, then the L tokens to predict
    counts = (batch.counts[texts, later] & is_inside)[..., 1:] & chosen[..., None]  # (b, A, L)
    read = blocks_after(head, batch.read, tokens[..., 0], columns)[counts]  # (m, H)
    logits = base.logits_of(read)
    w1 = None
    if head.markov is not None:
        w1 = head.markov.looked_up(tokens[..., :-1][counts])
        logits = logits + head.markov(w1, read, None)[0]
    log_q = logits.log_softmax(-1)  # (m, V)
    p = base.logits_of(batch.targets[texts, later[..., :-1]][counts]).softmax(-1)
    loss = -log_q.gather(-1, tokens[..., 1:][counts][:, None]).squeeze(-1)
    if isinstance(recipe, DSparkRecipe):
        distance = (log_q.exp() - p).abs().sum(-1)
        loss = recipe.ce * loss + recipe.distance * distance
        sure = head.confidence_of(read, w1)
        label = (1.0 - distance.detach() / 2).clamp(0.0, 1.0)
        loss = loss + recipe.confidence * F.binary_cross_entropy_with_logits(sure, label, reduction="none")
    weight = (-torch.arange(length, device=columns.device) / recipe.decay).exp() * counts  # (b, A, L)
    weighted = torch.zeros_like(weight).masked_scatter(counts, loss) * weight
    total = weighted.sum(-1)[chosen] / weight.sum(-1)[chosen]
    first = counts.nonzero()[:, 2] == 0  # of the rows that count; every chosen anchor has one
    ce = -(p[first] * log_q[first]).sum(-1)
    return Losses(total, ce, _overlap(p[first], log_q[first]), chosen.nonzero()[:, 0])


def _anchors(counts: Tensor, count: int, at_random: bool) -> tuple[Tensor, Tensor]:
    """Return columns (b, A) of tokens of the answers with another one next, and which of them are such tokens (b, A)."""
    can = counts & F.pad(counts[:, 1:], (0, 1))
    generator = None if at_random else torch.Generator(counts.device).manual_seed(0)
    order = torch.rand(counts.shape, device=counts.device, generator=generator).masked_fill(~can, -1.0)
    best = order.topk(min(count, counts.shape[1]), -1)
    return best.indices, best.values >= 0.0


def blocks_after(head: BlockHead, states: Tensor, anchors: Tensor, columns: Tensor) -> Tensor:
    """Return what the LM head reads in blocks after anchors, (b, A, L, H), with gradients.

    `states` (b, n, m H) are those of tokens 0 to n - 1. The anchor (b, A) of column c is token c + 1, whose block reads the
    entries of the tokens before it.
    """
    parts, n, length = BlockParts.plain(head, head.block.layer), states.shape[1], head.block.length
    device, group = states.device, parts.heads // parts.kv_heads
    entries = parts.entries(states)
    cos, sin = parts.rope.until(n + length + 1)
    rows = columns[..., None] + 1 + torch.arange(length, device=device)  # positions (b, A, L)
    is_later = torch.arange(n, device=device) > columns[..., None]  # (b, A, n)

    def turned(heads: Tensor, positions: Tensor) -> Tensor:
        at = positions[..., None]
        return heads * cos[at] + heads.roll(parts.dim // 2, -1) * sin[at]

    def keys_and_values(both: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = both[..., : parts.kv_heads, :], both[..., parts.kv_heads :, :]
        return turned(keys, positions).repeat_interleave(group, -2), values.repeat_interleave(group, -2)

    def attend(i: int, heads: Tensor) -> Tensor:
        q = turned(heads[..., : parts.heads, :], rows)
        context = keys_and_values(parts.layers[i].context(entries, parts), torch.arange(n, device=device))
        own = keys_and_values(heads[..., parts.heads :, :], rows)
        outer = torch.einsum("balhd,bnhd->balhn", q, context[0]).masked_fill(is_later[:, :, None, None], -torch.inf)
        inner = torch.einsum("balhd,bakhd->balhk", q, own[0])
        weights = (torch.cat([outer, inner], -1) * parts.dim**-0.5).softmax(-1)
        seen = torch.einsum("balhn,bnhd->balhd", weights[..., :n], context[1])
        return (seen + torch.einsum("balhk,bakhd->balhd", weights[..., n:], own[1])).flatten(-2)

    return parts.forward(head.embedded(anchors, length), attend)


def _overlap(p: Tensor, log_q: Tensor) -> Tensor:
    return torch.minimum(p, log_q.detach().exp()).sum(-1)


def losses_by_text(head: DraftHead, base: Session, texts: Sequences, recipe: DraftHeadRecipe) -> np.ndarray:
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
