"""Conversion of samples to token ids, with chat template, special tokens and truncation, and of token ids to text."""

import itertools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from specbench.data.chats import text_of_chat
from specbench.data.task import Message, Sample, Task
from specbench.errors import ConfigError, short_repr
from specbench.files import in_one_line
from specbench.vocabulary import Overflow

BEFORE = 16  # tokens of a prompt that show how what follows is spaced
EMPTY: Mapping[str, object] = MappingProxyType({})
BROKEN = "\ufffd"  # the text of an incomplete character


class Prompt(NamedTuple):
    """The ids that the models read, and how many tokens of the prompt were cut."""

    ids: list[int]
    cut: int


class PromptTooLong(ValueError):
    """Raised for a prompt with more tokens than allowed, if the task treats this as an error."""

    def __init__(self, tokens: int, most: int) -> None:
        super().__init__(f"the prompt has {tokens} tokens, {most} are allowed; help: --on-overflow truncate-left")
        self.tokens, self.most = tokens, most


Turn = tuple[Sample, str]  # a sample, and the answer to it


def encode(
    tokenizer: Any, task: Task, sample: Sample, history: list[Turn], window: int | None, has_encoder: bool = False
) -> Prompt:
    """Return the ids of a sample's prompt, after the turns before it.

    An encoder reads the prompt alone (`has_encoder`); otherwise it shares the window with the output. Raises ConfigError
    for a chat template that fails, or is required and missing; TooLong for a prompt that is longer than the task's
    `max_prompt_tokens`, or leaves no room in the window, where the task calls that an error; and ValueError for two BOS
    tokens.
    """
    templated = task.chat != "off" and bool(tokenizer.chat_template)
    if task.chat == "required" and not templated:
        raise ConfigError('chat = "required", and the tokenizer has no chat template; help: --chat auto')
    if templated:
        return _templated(tokenizer, task, sample, history, _limit(task, window, has_encoder))
    text = "".join(f"{turn.prompt} {answer.strip()}\n" for turn, answer in history) + sample.prompt
    ids = list(tokenizer(text)["input_ids"])
    bos = tokenizer.bos_token_id
    if has_two_bos(tokenizer, ids):
        raise ValueError("the prompt begins with two BOS tokens: its text has one, and the tokenizer adds another")
    ends = (bos is not None and ids[:1] == [bos], bool(ids) and ids[-1] == tokenizer.eos_token_id)
    return cut(ids, *_limit(task, window, has_encoder), task.overflow, ends)


def encode_firsts(
    tokenizer: Any, task: Task, samples: Sequence[Sample], window: int | None, has_encoder: bool = False
) -> list[list[int]]:
    """Return the ids of the prompts that begin a conversation. Prompts of later turns depend on answers.

    Raises ConfigError for a prompt that cannot be encoded, and with their number for prompts that are too long.
    """
    firsts = [sample for sample in samples if not sample.after]
    encoded: list[list[int]] = []
    long: list[PromptTooLong] = []
    for sample in firsts:
        try:
            encoded.append(encode(tokenizer, task, sample, [], window, has_encoder).ids)
        except PromptTooLong as error:
            long.append(error)
        except ConfigError:
            raise
        except ValueError as error:
            raise ConfigError(f"sample '{sample.id}': {error}") from None
    if long:
        raise ConfigError(
            f"{len(long)} of {len(firsts)} prompts have more than {long[0].most} tokens; the longest has"
            f" {max(error.tokens for error in long)}; help: --on-overflow truncate-left"
        )
    return encoded


def apply_template(
    tokenizer: Any,
    messages: Sequence[Message],
    answer_follows: bool,
    instead: str,
    variables: Mapping[str, object] = EMPTY,
) -> list[int]:
    """Return the ids of messages in the models' chat template, which has its own special tokens.

    A template that rejects or leaves out system prompts, such as Gemma's, gets them at the beginning of the next question.

    Args:
        answer_follows: whether the model answers next.
        instead: what else the user can do, for errors.
        variables: variables of the template, besides those that tokenizers set.

    Raises ConfigError if the template fails, if its output lacks the text of a user's message, and if it begins with two BOS
    tokens.
    """
    help_ = f"help: {instead}chat_template = NAME or FILE in the pair's model"
    where = f"the chat template of {tokenizer.name_or_path}"
    try:
        text = _rendered(tokenizer, messages, answer_follows, variables)
    except Exception as error:  # a template can raise any error
        raise ConfigError(f"{where} fails: {in_one_line(error)}; {help_}") from None
    lost = next((m["content"] for m in messages if m["role"] == "user" and m["content"].strip() not in text), None)
    if lost is not None:
        raise ConfigError(f"{where} leaves out the user's text {short_repr(lost)}; {help_}")
    ids = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    if has_two_bos(tokenizer, ids):
        raise ConfigError(f"{where} begins with two BOS tokens; {help_}")
    return ids


def _rendered(
    tokenizer: Any, messages: Sequence[Message], answer_follows: bool, variables: Mapping[str, object]
) -> str:
    def rendered(messages: Sequence[Message]) -> str:
        settings = {**variables, "tokenize": False, "add_generation_prompt": answer_follows}
        return str(tokenizer.apply_chat_template(messages, **settings))

    system = [message["content"].strip() for message in messages if message["role"] == "system"]
    try:
        text = rendered(messages)
    except Exception:
        if not system:
            raise
        text = ""
    return text if text and all(prompt in text for prompt in system) else rendered(_without_system(messages))


def _without_system(messages: Sequence[Message]) -> list[Message]:
    """Return messages with each system prompt at the beginning of the next question; without one, of the last question."""
    out, before = list[Message](), ""
    for message in messages:
        if message["role"] == "system":
            before += f"{message['content']}\n\n"
        elif message["role"] == "user":
            out.append({"role": "user", "content": before + message["content"]})
            before = ""
        else:
            out.append(message)
    last = next((message for message in reversed(out) if message["role"] == "user"), None)
    if before and last is not None:
        last["content"] = before + last["content"]
    return out


def has_two_bos(tokenizer: Any, ids: Sequence[int]) -> bool:
    """Return whether a prompt begins with two BOS tokens."""
    bos = tokenizer.bos_token_id
    return bos is not None and list(ids[:2]) == [bos, bos]


def _templated(
    tokenizer: Any, task: Task, sample: Sample, history: list[Turn], limits: tuple[int | None, int]
) -> Prompt:
    """Encode with the models' chat template, which has its own special tokens. Only the last turn is truncated."""

    def ids_of(last: str) -> list[int]:
        messages: list[Message] = []
        for turn, answer in history:
            messages += [*turn.chat, {"role": "assistant", "content": answer}]
        messages += [*sample.chat[:-1], {"role": "user", "content": last}]
        return apply_template(tokenizer, messages, True, "--chat off, or ", task.template)

    whole, (most, limit) = ids_of(sample.question), limits
    if most is None or len(whole) <= most or task.overflow == Overflow.error:
        return cut(whole, most, limit, Overflow.error)
    turn_ids = list(tokenizer(sample.question, add_special_tokens=False)["input_ids"])
    around = len(whole) - len(turn_ids)
    if around >= limit:
        raise ValueError(f"template and earlier turns alone have {around} tokens, {limit} are allowed")
    shorter = ids_of(tokenizer.decode(cut(turn_ids, limit - around, limit - around, task.overflow).ids))
    return Prompt(shorter, len(whole) - len(shorter))


def dialogue_ids(tokenizer: Any, messages: list[Message]) -> tuple[list[int], list[int]]:
    """Return the ids of a dialogue up to its first question, and the ids of all later turns.

    They follow the models' chat template, or USER and ASSISTANT if there is none. Raises ConfigError if the template fails.
    """
    question = next(number for number, message in enumerate(messages, 1) if message["role"] == "user")
    whole, first = _dialogue(tokenizer, messages, False), _dialogue(tokenizer, messages[:question], True)
    pairs = itertools.takewhile(lambda both: both[0] == both[1], zip(whole, first, strict=False))
    count = sum(1 for _ in pairs)  # a token may span the end of the question
    return whole[:count], whole[count:]


def _dialogue(tokenizer: Any, messages: list[Message], answer_follows: bool) -> list[int]:
    if tokenizer.chat_template:
        return apply_template(tokenizer, messages, answer_follows, "")
    return list(tokenizer(text_of_chat(messages, answer_follows))["input_ids"])


def continuation(tokenizer: Any, prompt: list[int], tokens: list[int], encoder_decoder: bool) -> str:
    """Return the text of generated tokens as a continuation of the prompt.

    Decodes both together, since a tokenizer may drop a blank at the start of a text; an indented completion keeps its
    indentation. The output of an encoder-decoder is decoded alone.
    """
    text_alone = str(tokenizer.decode(tokens, skip_special_tokens=True))
    if encoder_decoder:
        return text_alone
    before = tokenizer.decode(prompt, skip_special_tokens=True)
    whole = tokenizer.decode(prompt + tokens, skip_special_tokens=True)
    return str(whole[len(before) :]) if whole.startswith(before) else text_alone


def pieces(tokenizer: Any, prompt: list[int], tokens: list[int], encoder_decoder: bool) -> list[str]:
    """Return the text that each token adds to the continuation; empty for special tokens.

    For a character of several tokens, the last one adds the character.
    """
    out, shown = [], ""
    for count in range(1, len(tokens) + 1):
        text = continuation(tokenizer, prompt[-BEFORE:], tokens[:count], encoder_decoder)
        whole = text if count == len(tokens) else text.rstrip(BROKEN)
        out.append(whole[len(shown) :] if whole.startswith(shown) else "")
        shown = whole if whole.startswith(shown) else shown
    return out


def special_tokens(tokenizer: Any) -> list[str]:
    """Return the texts of a tokenizer's special tokens, which are not part of decoded texts."""
    return [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]


def cut(
    ids: list[int], most: int | None, limit: int, how: Overflow, ends: tuple[bool, bool] = (False, False)
) -> Prompt:
    """Return the ids, truncated to `limit` of them if there are more than `most`: the last, the first, or half from each end.

    `ends`: whether the first and the last id are special tokens, which are kept. Raises TooLong if `how` is `error`.
    """
    if most is None or len(ids) <= most:
        return Prompt(ids, 0)
    if how == "error":
        raise PromptTooLong(len(ids), most)
    first, last = ids[: ends[0]], ids[len(ids) - ends[1] :]
    middle, room = ids[len(first) : len(ids) - len(last)], max(limit - len(first) - len(last), 1)
    front = {"truncate-left": 0, "truncate-right": room}.get(how, room - room // 2)
    middle = middle[:front] + middle[len(middle) - (room - front) :]
    return Prompt(first + middle + last, len(ids) - len(first) - len(middle) - len(last))


def _limit(task: Task, window: int | None, has_encoder: bool) -> tuple[int | None, int]:
    """Return the maximum length of a prompt, and the length to which it is truncated.

    An encoder's prompt may fill its window. Otherwise truncation leaves room for the new tokens in the context window. If
    a long prompt is an error, a prompt that fits without that room is accepted: its output ends at the window, which its
    finish reason records.
    """
    roomy = None if window is None else window if has_encoder else max(window - task.max_new_tokens, 1)
    limits = [limit for limit in (task.max_prompt_tokens or None, roomy) if limit is not None]
    shortest = min(limits, default=0)
    if task.overflow == "error" and window is not None and not task.max_prompt_tokens:
        return window if has_encoder else window - 1, shortest
    return (shortest, shortest) if limits else (None, 0)
