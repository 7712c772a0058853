"""Which tokens of two tokenizers stand for the same bytes: a drafting model with a tokenizer of its own (TLI).

Timor et al. 2025 (arXiv 2502.05202), token-level intersection. Tokens are compared as the bytes that they stand for, so that
the mark of a leading space and the tokens of single bytes may be written differently. Special tokens are compared by their
role. Several tokens of the drafter may stand for one of the target; their probabilities are added.
"""

import re
from functools import cached_property

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

ROLES = ("bos_token_id", "eos_token_id")  # of special tokens that are mapped
BYTE = re.compile(r"<0x([0-9A-F]{2})>")
SPACE, BYTE_SPACE = "▁", "Ġ"  # marks of a space, of SentencePiece and of byte-level BPE
UNKNOWN = -1


class VocabularyMap:
    """The tokens of a target and of a drafter that stand for the same bytes.

    `target_ids` (W,) is the target's token of each of the drafter's, or UNKNOWN. `mapped` is how many have one.
    """

    def __init__(self, target: PreTrainedTokenizerBase, drafter: PreTrainedTokenizerBase) -> None:
        self._target, self._drafter = target, drafter
        by_bytes: dict[bytes, int] = {}
        for token, text in sorted(self._texts.items()):
            by_bytes.setdefault(text, token)
        self.target_ids = [UNKNOWN] * (max(drafter.get_vocab().values()) + 1)
        for token, text in _bytes_of(drafter).items():
            self.target_ids[token] = by_bytes.get(text, UNKNOWN)
        for role in ROLES:
            one, two = getattr(drafter, role), getattr(target, role)
            if one is not None and two is not None:
                self.target_ids[one] = two

    @property
    def mapped(self) -> int:
        """The number of the drafter's tokens that have one of the target's."""
        return sum(token != UNKNOWN for token in self.target_ids)

    @cached_property
    def draftable(self) -> frozenset[int]:
        """The target's tokens that one of the drafter's stands for, which alone can be drafted."""
        return frozenset(self.target_ids) - {UNKNOWN}

    @property
    def words(self) -> str:
        """What is mapped, in words."""
        return (
            f"{self.mapped:,} of its {len(self.target_ids):,} tokens map to {len(self.draftable):,} of the target's"
            f" {len(self._target):,} tokens, and only mapped tokens can be drafted"
        )

    @property
    def start(self) -> list[int]:
        """The drafter's tokens before a sequence."""
        return start_of(self._drafter)

    @cached_property
    def _own(self) -> dict[int, list[int]]:
        """The drafter's tokens for each of the target's tokens that is mapped; the lowest id of several."""
        found: dict[int, list[int]] = {}
        for token, other in enumerate(self.target_ids):
            if other != UNKNOWN:
                found.setdefault(other, [token])
        return found

    @cached_property
    def _texts(self) -> dict[int, bytes]:
        """The bytes of the target's tokens. Decoding a token alone may drop its leading space."""
        return _bytes_of(self._target)

    def own(self, token: int) -> list[int]:
        """Return the drafter's tokens that stand for a token of the target; empty for a part of a character."""
        if token not in self._own:
            text = self._texts.get(token, b"").decode(errors="replace")
            readable = text and "\N{REPLACEMENT CHARACTER}" not in text
            self._own[token] = self._drafter.encode(text, add_special_tokens=False) if readable else []
        return self._own[token]

    @cached_property
    def _found_pairs(self) -> dict[tuple[int, int, torch.device], tuple[Tensor, Tensor]]:
        return {}

    def _pairs(self, width: int, vocabulary: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the drafter's mapped tokens below `width`, and the target's tokens below `vocabulary` of them, (n,) each."""
        key = width, vocabulary, device
        if key not in self._found_pairs:
            ids = torch.tensor(self.target_ids[:width], device=device)
            tokens = ((ids >= 0) & (ids < vocabulary)).nonzero().squeeze(-1)
            self._found_pairs[key] = tokens, ids[tokens]
        return self._found_pairs[key]

    def rows(self, logits: Tensor, vocabulary: int) -> tuple[Tensor, Tensor]:
        """Return logits (n, V) over the target's tokens from the drafter's (n, W), and the mass (n,) of unmapped tokens.

        Probabilities of tokens that stand for the same bytes are added. A token that nothing stands for has -inf.
        """
        tokens, ids = self._pairs(logits.shape[-1], vocabulary, logits.device)
        logits = logits.double() - logits.double().logsumexp(-1, keepdim=True)
        known = logits[:, tokens]
        mass = logits.new_zeros(len(logits), vocabulary).index_add_(1, ids, known.exp())
        return mass.log(), 1.0 - mass.sum(-1)


def start_of(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the tokens before every sequence: the BOS, else the EOS, so that a model always has read one token."""
    first = tokenizer.bos_token_id
    return [tokenizer.eos_token_id or 0 if first is None else first]


def _bytes_of(tokenizer: PreTrainedTokenizerBase) -> dict[int, bytes]:
    """Return the bytes of each token that is not special."""
    vocabulary, special = tokenizer.get_vocab(), set(tokenizer.all_special_ids)
    is_sentencepiece = any(text.startswith(SPACE) for text in vocabulary)  # it may have the letter Ġ as well
    is_byte_level = any(text.startswith(BYTE_SPACE) for text in vocabulary) and not is_sentencepiece
    of_bytes = _characters() if is_byte_level else None
    found = {}
    for text, token in vocabulary.items():
        if token in special:
            continue
        if of_bytes is not None and all(character in of_bytes for character in text):
            found[token] = bytes(of_bytes[character] for character in text)
        elif match := BYTE.fullmatch(text):
            found[token] = bytes([int(match[1], 16)])
        else:
            found[token] = text.replace(SPACE, " ").encode()
    return found


def _characters() -> dict[str, int]:
    """Return the byte of each character with which byte-level BPE writes its tokens.

    Printable bytes of Latin-1 are themselves. The others are the characters from 256 on, in order.
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
