"""The heads that a suite trains, and the options of its parts with them. Needs no torch."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from specbench.config.options import Options
from specbench.config.preparation import PreparedHead
from specbench.config.suite import Suite
from specbench.experiment import selection


@dataclass(frozen=True)
class Step:
    """A head to train, and the options of the first part of the suite that uses it."""

    head: PreparedHead
    options: Options


def with_prepared(suite: Suite, pair: str, task: str, options: Options, out: Path) -> Options:
    """Return the options of a part of a suite with the heads that the suite trains for its pair and task.

    A head that the user gives replaces that of the suite.
    """
    own = {name for name, _ in options.heads_for(pair)}
    found = [head for step in suite.prepare for head in step.heads(pair, task)]
    given = tuple((head.name, str(head.folder(out))) for head in found if not own & {head.name, head.step.kind.value})
    return replace(options, heads=(*options.heads, *given))


def steps_of(suite: Suite) -> Iterator[Step]:
    """Yield each head once, for the parts of the grid in order. A head that the user gives is not trained."""
    known = set()
    for line, pair, task in suite.parts():
        if suite.prepare and selection.read_pair(pair, replace(line.options, heads=()))[1].weights == "dummy":
            continue  # its heads have random weights too
        for step in suite.prepare:
            for head in step.heads(pair, task):
                own = {name for name, _ in line.options.heads_for(pair)}
                if (key := (pair, task, head.name)) not in known and not own & {head.name, step.kind.value}:
                    known.add(key)
                    yield Step(head, line.options)
