"""Training rows of an EAGLE head: the base's features along whole texts, and batches of them."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.models.loader import LoadedPair
from specbench.training.shards import Rows
from specbench.training.texts import Text

Span = tuple[int, int]  # the rows of a text


def rows_of(pair: LoadedPair, text: Text, base: str, most: int) -> Rows:
    """Return the rows of a text, of at most `most` tokens.

    Columns: token; feature (n, H) of the base at it; `own`, whether it is in the answer, not in the prompt. Features
    are in half precision, or in the base's own precision if that is a half one.
    """
    models = pair.open(text.prompt)
    session, ids = models[base], list(models.ids)
    whole = (ids + text.rest)[: min(most, pair.window_of(pair.models).length or most)]
    session.keeps_hidden = True
    features = session.hidden(whole, 0)  # (n, H)
    own = torch.arange(len(whole)) >= len(ids)
    kept = features if features.dtype != torch.float32 else features.half()
    return {"token": torch.tensor(whole), "feature": kept.cpu(), "own": own}


@dataclass(frozen=True)
class Batch:
    """Padded texts: tokens t + 1 (b, n), features f_t (b, n, H), features f_{t+1} to predict, and where the loss counts
    (b, n).
    """

    tokens: Tensor
    features: Tensor
    wanted: Tensor
    counts: Tensor


class Sequences:
    """Collected rows grouped by text, with batches of texts of similar length."""

    def __init__(self, rows: Rows, numbers: set[int], device: torch.device) -> None:
        ends = torch.tensor([-1])
        bounds = torch.nonzero(torch.diff(rows["text"], prepend=ends, append=ends)).squeeze(1)
        spans = [(int(a), int(b)) for a, b in itertools.pairwise(bounds)]
        self._spans = sorted(
            ((a, b) for a, b in spans if int(rows["text"][a]) in numbers and b - a > 2), key=lambda s: s[1] - s[0]
        )
        self._rows, self._device = rows, device

    def __len__(self) -> int:
        """The number of texts."""
        return len(self._spans)

    @property
    def continues(self) -> bool:
        """Whether any text continues after its prompt."""
        return any(bool(self._rows["own"][a + 1 : b].any()) for a, b in self._spans)

    @property
    def tokens(self) -> int:
        """The number of tokens of all texts."""
        return sum(b - a for a, b in self._spans)

    def batches(self, size: int, rng: random.Random) -> list[list[Span]]:
        """Return groups of texts, at most `size` tokens each including padding, in random order."""
        groups: list[list[Span]] = [[]]
        for span in self._spans:
            if groups[-1] and (len(groups[-1]) + 1) * (span[1] - span[0]) > size:
                groups.append([])
            groups[-1].append(span)
        rng.shuffle(groups)
        return [group for group in groups if group]

    def padded(self, group: Sequence[Span]) -> Batch:
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
        return Batch(*(each.to(self._device) for each in (tokens, features, wanted, counts)))
