"""Prompts of served requests: texts and messages of a task, and ids by the server's or the reference's tokenizer."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from specbench.config.options import Options
from specbench.data.task import Message, Sample, Task
from specbench.errors import ConfigError
from specbench.resolution.plugins import load_all
from specbench.resolution.selection import read_pair, select_tasks


@dataclass(frozen=True)
class ServedPrompt:
    """A prompt of a task: its sample and its text."""

    task: Task
    sample: Sample

    @property
    def text(self) -> str:
        """The text of the prompt."""
        return self.sample.prompt

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages of the prompt as a chat."""
        return self.sample.chat


@dataclass(frozen=True, kw_only=True)
class PromptSource:
    """Where prompts come from: the first `limit` prompts of tasks, alternating between them.

    Args:
        tasks: The tasks, as presets or TOML files.
        limit: The number of prompts; 0: all.
        data: The sources of the tasks' rows, as (task, source); an empty task covers all.
        plugins: Plugins that define tasks, as files or modules.
    """

    tasks: tuple[str, ...]
    limit: int
    data: tuple[tuple[str, str], ...] = ()
    plugins: tuple[str, ...] = ()

    def read(self) -> list[ServedPrompt]:
        """Return the prompts. Raises ConfigError and MissingAsset."""
        plugins = load_all(self.plugins) if self.plugins else ()
        return served_prompts(self.tasks, Options(limit=self.limit, data=self.data, plugins=plugins))


def read_again(source: PromptSource | None) -> list[ServedPrompt]:
    """Return the prompts of a stored request. Raises ConfigError if it does not say where they come from."""
    if source is None:
        raise ConfigError("the request does not say where its prompts come from, so it cannot be repeated")
    return source.read()


def hash_of(prompts: Sequence[ServedPrompt]) -> str:
    """Return a hash of the texts of prompts."""
    return hashlib.sha256(json.dumps([prompt.text for prompt in prompts]).encode()).hexdigest()[:16]


def served_prompts(tasks: Sequence[str], options: Options) -> list[ServedPrompt]:
    """Return the first prompts of tasks, alternating between them: first turns only.

    Raises ConfigError and MissingAsset.
    """
    _, pair = read_pair("target=server", options)  # the server's models are its own
    chosen = select_tasks(tasks, pair, options)
    if fixed := next((task for task in chosen if task.task.template), None):
        raise ConfigError(f"{fixed.name} sets variables of the chat template, which requests to a server do not carry")
    longest = max(len(task.data.samples) for task in chosen)
    found = [
        ServedPrompt(task.task, task.data.samples[i])
        for i in range(longest)
        for task in chosen
        if i < len(task.data.samples) and not task.data.samples[i].after
    ]
    if not found:
        raise ConfigError(f"{', '.join(tasks)}: no prompt")
    return found[: options.limit] if options.limit else found
