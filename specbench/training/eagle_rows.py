"""Training rows of an EAGLE head: the base's features along whole texts, on disk, and batches of them."""

import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from specbench.models.loaded_pair import LoadedPair
from specbench.training.shards import Rows, Shards
from specbench.training.texts import Text

COLUMNS = ("token", "feature", "own")


@dataclass(frozen=True)
class Span:
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

    def rows(self) -> Rows:
        """Read the rows."""
        with safe_open(self.path, "pt") as file:
            return {key: file.get_slice(key)[self.first : self.end] for key in COLUMNS}


def spans_of(shards: Shards) -> list[Span]:
    """Return the texts of collected rows in order. Features are not read."""
    spans = []
    for path in shards.paths:
        with safe_open(path, "pt") as file:
            text, own = file.get_tensor("text"), file.get_tensor("own")
        ends = torch.tensor([-1])
        bounds = torch.nonzero(torch.diff(text, prepend=ends, append=ends)).squeeze(1).tolist()
        for a, b in itertools.pairwise(bounds):
            spans.append(Span(int(text[a]), path, a, b, bool(own[a + 1 : b].any())))
    return spans


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
    """The texts of some spans, with batches of texts of similar length. Rows are read from disk for each batch."""

    def __init__(self, spans: Iterable[Span], device: torch.device) -> None:
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

    def batches(self, size: int, rng: random.Random) -> list[list[Span]]:
        """Return groups of texts, at most `size` tokens each including padding, in random order."""
        groups: list[list[Span]] = [[]]
        for span in self._spans:
            if groups[-1] and (len(groups[-1]) + 1) * span.length > size:
                groups.append([])
            groups[-1].append(span)
        rng.shuffle(groups)
        return [group for group in groups if group]

    def padded(self, group: Sequence[Span]) -> Batch:
        """Return a group of texts as a batch."""
        rows = [span.rows() for span in group]
        n, width = max(span.length for span in group) - 1, rows[0]["feature"].shape[1]
        tokens, counts = torch.zeros(len(group), n, dtype=torch.long), torch.zeros(len(group), n, dtype=torch.bool)
        features, wanted = torch.zeros(len(group), n, width), torch.zeros(len(group), n, width)
        for i, each in enumerate(rows):
            m = len(each["token"]) - 1
            tokens[i, :m] = each["token"][1:]
            features[i, :m] = each["feature"][:-1].float()
            wanted[i, :m] = each["feature"][1:].float()
            counts[i, :m] = each["own"][1:]
        return Batch(*(each.to(self._device) for each in (tokens, features, wanted, counts)))
