"""Which tokens of two tokenizers stand for the same bytes: a drafting model with a tokenizer of its own (TLI).

Timor et al. 2025 (arXiv 2502.05202), token-level intersection. Tokens are compared as the bytes that they stand for, so that
the mark of a leading space and the tokens of single bytes may be written differently. Special tokens are compared by their
role. Several tokens of the drafter may stand for one of the target; their probabilities are added.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cached_property

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

ROLES = ("bos_token_id", "eos_token_id")  # of special tokens that are mapped
UNKNOWN = -1
INCOMPLETE = "unexpected end of data"  # Python's reason for bytes that begin a character
BYTE = re.compile(r"<0x([0-9A-F]{2})>")
SPACE, BYTE_SPACE = "▁", "Ġ"  # marks of a space, of SentencePiece and of byte-level BPE
CONTEXTS = ("a", "\n", "0", "(", ".", "")  # texts before a token; the empty one last, since a blank may be added to it
TAIL = 10  # tokens of the context in which a text is encoded


class VocabularyMap:
    """The tokens of a target and of a drafter that stand for the same bytes.

    `target_ids` (W,) is the target's token of each of the drafter's, or UNKNOWN. `mapped` is how many have one.
    """

    def __init__(self, target: PreTrainedTokenizerBase, drafter: PreTrainedTokenizerBase) -> None:
        self._target, self._drafter = target, drafter
        self._of_target, self._of_drafter = TokenBytes(target), TokenBytes(drafter)
        self.target_ids = [UNKNOWN] * (max(drafter.get_vocab().values()) + 1)
        for token, data in self._of_drafter.of.items():
            self.target_ids[token] = self._of_target.by_bytes.get(data, UNKNOWN)
        for one, two in self._roles:
            self.target_ids[one] = two

    @property
    def _roles(self) -> list[tuple[int, int]]:
        """The special tokens that are mapped, of the drafter and of the target."""
        both = [(getattr(self._drafter, role), getattr(self._target, role)) for role in ROLES]
        return [(one, two) for one, two in both if one is not None and two is not None]

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
    def _own(self) -> dict[int, int]:
        """The drafter's token for each of the target's tokens that it has."""
        by_bytes = self._of_drafter.by_bytes
        found = {token: by_bytes[data] for token, data in self._of_target.of.items() if data in by_bytes}
        return found | {two: one for one, two in reversed(self._roles)}

    def own(self, token: int) -> list[int]:
        """Return the drafter's tokens that stand for a token of the target alone; empty for a part of a character."""
        return self.read(token, [], b"")[0]

    def read(self, token: int, before: Sequence[int], pending: bytes) -> tuple[list[int], bytes]:
        """Return the drafter's tokens that stand for a token of the target, and the bytes that it has not read yet.

        `before` are the drafter's tokens so far. A token that the drafter lacks is encoded as it follows them: the drafter
        reads the text of the target, without blanks that its tokenizer adds to a text. Bytes that begin a character stay
        pending until the character is complete, and are given with the next token.
        """
        if not pending and token in self._own:
            return [self._own[token]], b""
        data = pending + self._of_target.of.get(token, b"")
        complete, rest = _whole_characters(data)
        if not complete:
            return [], rest
        try:
            text = complete.decode()
        except UnicodeDecodeError:
            return self._of_drafter.split(complete) or [], rest
        found = self._of_drafter.continued(before, text)
        if found is None:  # a character that the drafter does not have
            found = self._drafter.encode(text, add_special_tokens=False)
        return found, rest

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


def _whole_characters(data: bytes) -> tuple[bytes, bytes]:
    """Return bytes up to the last whole character, and those that begin another one."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        if error.reason == INCOMPLETE:
            return data[: error.start], data[error.start :]
    return data, b""


class TokenBytes:
    """The tokens of a tokenizer by the bytes that they stand for. Special tokens stand for none."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    @cached_property
    def of(self) -> dict[int, bytes]:
        """The bytes of each token. Decoding a token alone may drop its leading space."""
        return _bytes_of(self._tokenizer)

    @cached_property
    def by_bytes(self) -> dict[bytes, int]:
        """The token for bytes: of several, the one that the tokenizer gives for their text."""
        groups: dict[bytes, list[int]] = {}
        for token, data in sorted(self.of.items()):
            groups.setdefault(data, []).append(token)
        return {data: tokens[0] if len(tokens) == 1 else self._given(data, tokens) for data, tokens in groups.items()}

    def _given(self, data: bytes, tokens: list[int]) -> int:
        """Return the token of several with equal bytes that an encoded text has.

        If no text has one, a token of a single byte comes last: a tokenizer with such tokens falls back to them.
        """
        text = _text(data)
        for context in CONTEXTS if text else ():
            encoded = {*self._encode(context + text)}
            for token in tokens:
                if token in encoded:
                    return token
        names: list[str] = self._tokenizer.convert_ids_to_tokens(tokens)
        return min(zip(tokens, names, strict=True), key=lambda pair: (bool(BYTE.fullmatch(pair[1])), pair[0]))[0]

    def joined(self, tokens: Iterable[int]) -> bytes:
        """Return the bytes of tokens."""
        return b"".join(self.of.get(token, b"") for token in tokens)

    def continued(self, before: Sequence[int], text: str) -> list[int] | None:
        """Return tokens that stand for exactly this text, as they follow the tokens `before`; None if there are none.

        The text is encoded together with the end of `before`, with a shorter end, or after another text. So a blank that the
        tokenizer adds before a text is not a part of it. Otherwise the text is split into the longest tokens.
        """
        tail = before[-TAIL:]
        ends = [self.joined(tail[-length:]) for length in dict.fromkeys((len(tail), len(tail) // 2, 1)) if length]
        contexts = [context for end in ends if (context := _text(end))]
        for context in dict.fromkeys((*contexts, *CONTEXTS)):
            found = self._suffix(self._encode(context + text), text.encode())
            if found is not None:
                return found
        return self.split(text.encode())

    def _suffix(self, tokens: list[int], data: bytes) -> list[int] | None:
        """Return the last tokens, which stand for these bytes; None if no token ends before them."""
        size = 0
        for i in range(len(tokens) - 1, -1, -1):
            size += len(self.of.get(tokens[i], b""))
            if size >= len(data):
                return tokens[i:] if self.joined(tokens[i:]) == data else None
        return None

    def split(self, data: bytes) -> list[int] | None:
        """Return tokens that stand for bytes, the longest first; None if there are none."""
        found: list[int] = []
        while data:
            for size in range(min(len(data), self._longest), 0, -1):
                if (token := self.by_bytes.get(data[:size])) is not None:
                    found.append(token)
                    data = data[size:]
                    break
            else:
                return None
        return found

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self.by_bytes), default=0)

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids


def _text(data: bytes) -> str:
    """Return the text of bytes; empty if they are no whole characters."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return ""


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
