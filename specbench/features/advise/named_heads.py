"""Heads to compare that are given by their folders or hub ids alone."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from specbench.config.options import Options
from specbench.errors import ConfigError
from specbench.models.heads.draft_head import kind_in
from specbench.models.heads.resolve_heads import fetched


def with_heads(options: Options, sources: Sequence[str]) -> Options:
    """Return options with a head for each folder or hub id, named KIND/LABEL. The label is the last part of the source.

    The kind is found in the head's files, which are fetched if needed. Raises MissingAsset for a source without a supported
    drafter, and ConfigError for two sources with one label.
    """
    heads = dict[str, str]()
    for source in sources:
        label = Path(source).name
        name = f"{kind_in(fetched(label, source, Path()))}/{label}"
        if name in heads:
            raise ConfigError(
                f"{heads[name]} and {source} have one name; help: --head {name.split('/')[0]}/LABEL={source}"
            )
        heads[name] = source
    return replace(options, heads=(*options.heads, *heads.items()))
