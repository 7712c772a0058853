"""States of a base along whole texts, on disk, and batches of them that are read from there."""

import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from specbench.decoding.session import AuxLayers
from specbench.models.loaded_pair import LoadedPair
from specbench.training.shards import Columns, Shards
from specbench.training.texts import Text


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


def rows_of(pair: LoadedPair, text: Text, base: str, most: int, aux_layers: AuxLayers = ()) -> Columns:
    """Return the rows of a text, of at most `most` tokens.

    Columns: token; feature (n, H) of the base at it; `own`, whether it is in the answer, not in the prompt; with aux_layers,
    `states` (n, m H). Features and states are in half precision, or in the base's own precision if that is a half one.
    """
    models = pair.open(text.prompt)
    session, ids = models[base], list(models.ids)
    whole = (ids + text.rest)[: min(most, pair.window_of(pair.models).length or most)]
    columns: Columns = {"token": torch.tensor(whole), "own": torch.arange(len(whole)) >= len(ids)}
    kept = {"feature": (), "states": aux_layers} if aux_layers else {"feature": ()}
    for wanted in kept.values():
        session.keep_states(wanted)
    for name, wanted in kept.items():
        states = session.hidden(whole, 0, wanted)
        columns[name] = (states if states.dtype != torch.float32 else states.half()).cpu()
    return columns


@dataclass(frozen=True)
class TextBatch:
    """Padded texts.

    They have tokens t + 1 (b, n), what the head reads of the base at token t, the features f_{t+1} to predict, and a mask
    (b, n) of the positions that count for the loss. The head reads features f_t (b, n, H), or states (b, n, m H) of layers.
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

    def padded(self, group: Sequence[TextSpan]) -> TextBatch:
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
        return TextBatch(*(tensor.to(self._device) for tensor in (tokens, read, targets, counts)))
