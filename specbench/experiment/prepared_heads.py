"""The heads that a suite trains, and the options of its parts with them. Needs no torch."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from specbench.config.options import Options
from specbench.config.pair import head_named
from specbench.config.preparation import PreparedHead
from specbench.config.presets import preset
from specbench.config.suite import Suite
from specbench.experiment import selection


@dataclass(frozen=True)
class Step:
    """A head to train, and the options of the first part of the suite that uses it.

    `is_measured` says that the suite measures the task whose rows train the head.
    """

    head: PreparedHead
    options: Options
    is_measured: bool


def with_prepared(suite: Suite, pair: str, task: str, options: Options, out: Path) -> Options:
    """Return the options of a part of a suite with the heads that the suite trains for its pair and task.

    A head that the user gives replaces that of the suite.
    """
    found = [head for step in suite.prepare for head in step.heads(pair, task)]
    given = tuple(
        (head.name, str(head.folder(out))) for head in found if has_rows(head, options) and not _is_given(head, options)
    )
    return replace(options, heads=(*options.heads, *given))


def has_rows(head: PreparedHead, options: Options) -> bool:
    """Return whether the user names the rows of a head that the measured task does not train; true for other heads."""
    return not head.step.on or any(task == head.step.on for task, _ in options.data)


def _is_given(head: PreparedHead, options: Options) -> bool:
    """Return whether the user gives a head that replaces one of the suite's."""
    known = preset("pair", head.pair).table.get("heads", {})
    own = [name for name, _ in options.heads_for(head.pair)]
    kind = [] if head.step.base else [head.step.kind.value]
    return head_named(head.name, known) in [head_named(name, known) for name in own] or any(n in own for n in kind)


def steps_of(suite: Suite) -> Iterator[Step]:
    """Yield each head once, for the parts of the grid in order. A head that the user gives is not trained."""
    known, measured = set(), {task for _, _, task in suite.parts()}
    for line, pair, task in suite.parts():
        if suite.prepare and selection.read_pair(pair, replace(line.options, heads=()))[1].weights == "dummy":
            continue  # its heads have random weights too
        for step in suite.prepare:
            for head in step.heads(pair, task):
                key = (head.pair, head.task, head.name)
                if key not in known and not _is_given(head, line.options):
                    known.add(key)
                    yield Step(head, line.options, head.task in measured)
