"""Conversations in ShareGPT's and OpenAI's schemas.

{"conversations": [{"from": "human", "value": "Hi."}, {"from": "gpt", "value": "Hello."}]}
{"messages": [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}]}

A text may also be a list of parts of type text; they are joined by line breaks. Conversations with tool calls or pictures
are left out, since the models here neither call tools nor read pictures.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from specbench.data.rows import Row
from specbench.data.task import Message, reader_of
from specbench.errors import ConfigError, short_repr

ASSISTANTS = ("gpt", "assistant", "model", "bing", "chatgpt", "bard")
ROLES = {
    "human": "user", "user": "user", **dict.fromkeys(ASSISTANTS, "assistant"), "system": "system", "developer": "system",
}  # fmt: skip
TOOLS = ("tool", "function", "function_call", "function_response", "observation", "ipython")  # roles of tools
SCHEMAS = {"conversations": ("from", "value"), "messages": ("role", "content")}  # key of a row -> keys of a turn


class Unusable(ValueError):
    """Raised for a conversation that is left out. `reason` is a short text for counting."""

    def __init__(self, reason: str, where: str, detail: str) -> None:
        super().__init__(f"{where}{detail}")
        self.reason = reason


def conversations(rows: Sequence[Row], source: str) -> Iterator[tuple[int, list[Message]]]:
    """Yield the messages of each usable row that has a question, with the row's number from 1.

    Raises ConfigError, with the first reason, if no row is usable.
    """
    found, first = False, None
    for number, row in enumerate(rows, 1):
        try:
            messages = messages_of(row, f"{source}:{number}")
        except Unusable as error:
            first = first or error
            continue
        found = True
        yield number, messages
    if first and not found:
        raise ConfigError(str(first))


def left_out(rows: Sequence[Row], keys: Sequence[str] = tuple(SCHEMAS)) -> Mapping[str, int]:
    """Return how many rows are left out for each reason. `keys` as in `messages_of`."""
    reasons = Counter[str]()
    for row in rows:
        try:
            messages_of(row, "", keys)
        except Unusable as error:
            reasons[error.reason] += 1
    return dict(reasons.most_common())


def messages_of(row: Row, location: str, keys: Sequence[str] = tuple(SCHEMAS)) -> list[Message]:
    """Return the messages of a row in either schema. Raises Unusable for one without a question, or with what is not text.

    `keys` are the keys under which a conversation is looked for. The first turn decides which schema it has.
    """
    key = next((name for name in keys if isinstance(row.get(name), list)), None)
    if key is None:
        suggestion = reader_of(row) or f"; the row has: {', '.join(row)}"
        names = " or ".join(f"'{name}'" for name in reversed(keys))
        raise Unusable("no conversation", location, f": no list under {names}{suggestion}")
    turns = row[key]
    is_sharegpt = any(isinstance(turn, dict) and "from" in turn for turn in turns)
    role, text = SCHEMAS["conversations" if is_sharegpt else "messages"]
    messages = [
        _message(turn, role, text, f"{location}: turn {number} of '{key}'") for number, turn in enumerate(turns, 1)
    ]
    if all(message["role"] != "user" for message in messages):
        raise Unusable("no question", location, f": '{key}' has no turn of a user")
    return messages


def _message(turn: object, role: str, text: str, where: str) -> Message:
    if not isinstance(turn, dict):
        raise Unusable("a turn of another form", where, f" is not an object with '{role}' and '{text}'")
    name, content = turn.get(role), turn.get(text)
    if name in TOOLS or turn.get("tool_calls") or turn.get("function_call"):
        raise Unusable("tool calls", where, ": calls of tools are not supported")
    if not isinstance(name, str) or name.lower() not in ROLES:
        raise Unusable(
            f"role {short_repr(name)}", where, f": '{role}' is {short_repr(name)}; known: {', '.join(ROLES)}"
        )
    if isinstance(content, str):
        return {"role": ROLES[name.lower()], "content": content}
    if not isinstance(content, list) or not content:
        raise Unusable(
            "no text", where, f": '{text}' is {short_repr(content)}; needed: a text, or a list of parts of type text"
        )
    texts = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in content]
    if not all(isinstance(each, str) for each in texts):
        raise Unusable(
            "pictures or other parts", where, f": '{text}' is {short_repr(content)}; needed: parts of type text"
        )
    return {"role": ROLES[name.lower()], "content": "\n".join(map(str, texts))}


def text_of_chat(messages: Sequence[Message], answer_follows: bool) -> str:
    """Return messages as text for models without a chat template: a line for each, after its role in capitals."""
    lines = [f"{message['role'].upper()}: {message['content'].strip()}" for message in messages]
    return "\n".join([*lines, *["ASSISTANT:"] * answer_follows])
