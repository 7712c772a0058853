"""The losses of an EAGLE head on a batch, and over texts."""

import random
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.decoding.session import Session
from specbench.models.heads import EagleHead
from specbench.training.eagle_rows import Batch, Sequences


class Losses(NamedTuple):
    """Losses at each predicted position of a batch, (m,).

    `regression` is smooth L1 on features, `cross_entropy` is between the distributions that the LM head computes from both
    features. `overlap`, sum of min(p, q), is how often a first drafted token would be accepted at T = 1, along the texts
    themselves. `text` is the position's text in the batch.
    """

    regression: Tensor
    cross_entropy: Tensor
    overlap: Tensor
    text: Tensor


def losses_of(head: EagleHead, base: Session, batch: Batch, noise: float) -> Losses:
    """Return the losses of a head on a batch, with uniform noise of a width on the features."""
    given = batch.features
    if noise:
        given = given + (torch.rand_like(given) - 0.5) * noise * 512 / given.shape[1]
    made = head(batch.tokens, given)[batch.counts]  # (m, H)
    wanted = batch.wanted[batch.counts]
    p = base.logits_of(wanted).softmax(-1)
    log_q = base.logits_of(made).log_softmax(-1)
    return Losses(
        F.smooth_l1_loss(made, wanted, reduction="none").mean(-1),
        -(p * log_q).sum(-1),
        torch.minimum(p, log_q.detach().exp()).sum(-1),
        batch.counts.nonzero()[:, 0],
    )


def losses_by_text(head: EagleHead, base: Session, texts: Sequences, batch: int) -> np.ndarray:
    """Return sums over the predicted positions of each text, (texts, 4): regression, cross-entropy, overlap, 1.

    Texts without an answer are left out.
    """
    sums = []
    with torch.no_grad():
        for group in texts.batches(batch, random.Random(0)):
            found = losses_of(head, base, texts.padded(group), noise=0.0)
            columns = torch.stack([*found[:3], torch.ones_like(found.overlap)], 1)  # (m, 4)
            sums.append(columns.new_zeros(len(group), 4).index_add_(0, found.text, columns))
    table = torch.cat(sums).cpu().numpy().astype(np.float64) if sums else np.zeros((0, 4))
    kept: np.ndarray = table[table[:, 3] > 0]
    return kept
