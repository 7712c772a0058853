"""Templates and texts: placeholders, stop strings, and code blocks."""

import re
from collections.abc import Mapping, Sequence

from specbench.data.rows import text_of
from specbench.errors import ConfigError, hint

FENCE = re.compile(
    r"^([ \t]*)(`{3,}|~{3,})[ \t]*(\w*)(?:[^\w\n`~][^\n`~]*)?$", re.MULTILINE
)  # its indent, marks and language
PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([^{}]+)\}|[{}]")


def filled(template: str, /, **fields: object) -> str:
    """Replace each `{field}` of a template. `{{` and `}}` are braces.

    A field is a key, also with blanks, or a path into one: `{messages[1][content]}` or `{answers.text[0]}`. Raises
    ConfigError for an unknown field, one that holds no text or number, and a single brace.
    """

    def value(match: re.Match[str]) -> str:
        if match[0] in ("{{", "}}"):
            return match[0][0]
        if match[1] is None:
            raise ConfigError(f"prompt: a single '{match[0]}'; help: write {match[0] * 2} for a brace")
        found = at_path(match[1], fields)
        if found is None and match[1].strip() in fields:
            raise ConfigError(f"prompt: field '{match[1]}' is null")
        if found is None:
            raise ConfigError(f"prompt: no field '{match[1]}'{hint(match[1], fields)}; help: {{{{ and }}}} for braces")
        if not isinstance(found, str | int | float):
            kind = "an object" if isinstance(found, Mapping) else "a list"
            raise ConfigError(f"prompt: field '{match[1]}' holds {kind}; help: a path to a text, such as {{field[0]}}")
        return text_of(found)

    return PLACEHOLDER.sub(value, template)


def placeholders(template: str) -> list[str]:
    """Return the fields of a template."""
    return [match[1] for match in PLACEHOLDER.finditer(template) if match[1] is not None]


def at_path(path: str, fields: Mapping[str, object]) -> object:
    """Return the value under a key, or at a path such as `answers.text[0]` or `messages[-1][content]`; None without one."""
    for key in (path, path.strip()):
        if key in fields:
            return fields[key]
    first, *steps = re.split(r"[.\[]", key.replace("]", ""))
    found: object = fields.get(first)
    for step in steps:
        if isinstance(found, Mapping):
            found = found.get(step)
        elif isinstance(found, list) and re.fullmatch(r"-?\d+", step) and -len(found) <= int(step) < len(found):
            found = found[int(step)]
        else:
            return None
    return found


def up_to(texts: Sequence[str], text: str) -> str:
    """Return `text` up to the first occurrence of any of `texts`."""
    return text[: min((i for each in texts if (i := text.find(each)) >= 0), default=len(text))]


def without(texts: Sequence[str], text: str) -> str:
    """Return `text` up to the first occurrence of any of `texts` outside of fenced blocks of code."""
    blocks = [(begin - 1, end) for begin, end, _ in fenced_blocks(text)] if FENCE.search(text) else []
    places = (match.start() for each in texts for match in re.finditer(re.escape(each), text))
    return text[: min((i for i in places if not any(begin <= i < end for begin, end in blocks)), default=len(text))]


def ends_indented(text: str) -> bool:
    """Return whether the last line of a text that is not blank is indented, as code in a function is."""
    last = next((line for line in reversed(text.splitlines()) if line.strip()), "")
    return last[:1] in (" ", "\t")


def fenced_blocks(text: str) -> list[tuple[int, int, str]]:
    """Return the blocks between lines of three or more backquotes or tildes: where each begins and ends, and its content.

    The content loses the indent of its first fence. A first line without the name of a language ends a block that the prompt
    began if the text before it is code: if its last line is indented. The last block may be open.
    """
    blocks, fences = list[tuple[int, int, str]](), list(FENCE.finditer(text))
    while fences:
        first = fences.pop(0)
        if not blocks and not first[3] and ends_indented(text[: first.start()]):
            continue
        last = next((each for each in fences if each[2].startswith(first[2])), None)
        fences = fences[fences.index(last) + 1 :] if last else []
        end = last.end() if last else len(text)
        content = text[first.end() + 1 : last.start() if last else end]
        if first[1]:
            content = re.sub(rf"^{first[1]}", "", content, flags=re.MULTILINE)
        blocks.append((first.start(), end, content))
    return blocks
