"""Settings of a method that a sweep varies: typed values by key, and the label that they give a method.

A key is a path in the method's table, such as `target.alpha`. Its last word stands in labels: `cascade-chow(alpha=0.3)`.
"""

import re
import tomllib
from typing import NamedTuple

from specbench.config.construct import Table


def short_key(key: str) -> str:
    """Return the word of a key in labels."""
    return key.removesuffix(".name").rpartition(".")[2]


def value_text(value: object) -> str:
    """Return a value as labels show it: `name(key=value)` for a table with a name."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return str(list(value))
    if isinstance(value, dict):
        values = ", ".join(f"{key}={value_text(inner)}" for key, inner in value.items() if key != "name")
        name = str(value.get("name", ""))
        return f"{name}({values})" if values else name
    return str(value)


def setting_text(settings: Table) -> str:
    """Return settings as text: `gamma=[5, 1], alpha=0.3`."""
    return ", ".join(f"{short_key(key)}={value_text(value)}" for key, value in settings.items())


def label_of(preset: str, settings: Table) -> str:
    """Return the label of a method: the preset's name, with its settings in parentheses."""
    return f"{preset}({setting_text(settings)})" if settings else preset


def setting_of(settings: Table, word: str) -> object:
    """Return the value of the setting whose key ends with a word; None without one."""
    return next((value for key, value in settings.items() if short_key(key) == word), None)


class SweptNumber(NamedTuple):
    """The number of a method's first setting, the word of its key, and the other settings.

    Without a number, `x` is None and `others` are all settings.
    """

    x: float | None
    word: str
    others: Table


def swept_number(settings: Table) -> SweptNumber:
    """Return the number that settings vary: 0.3 of `alpha=0.3`, and the first, 5, of `gamma=[5, 1]`."""
    if not settings:
        return SweptNumber(None, "", {})
    (key, value), *rest = settings.items()
    if isinstance(value, str | dict):
        return SweptNumber(None, short_key(key), settings)
    value = value[0] if isinstance(value, tuple | list) and value else value
    number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    return SweptNumber(number, short_key(key), dict(rest))


def settings_in(label: str) -> Table:
    """Return the settings in the label of a method of a run folder that does not store them, by the words of their keys."""
    _, _, text = label.partition("(")
    settings: Table = {}
    for part in re.split(r", (?=\w+=)", text.removesuffix(")")) if text else ():
        word, _, value = part.partition("=")
        try:
            settings[word] = tomllib.loads(f"v = {value}")["v"]
        except tomllib.TOMLDecodeError:
            settings[word] = value
    return settings
