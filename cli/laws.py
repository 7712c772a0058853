"""`specbench laws`: is a method's output law the one it declares? By enumeration over tiny tables; no model is loaded."""

import sys
from typing import Annotated

import typer

from specbench.cli.choices import Plugins, loaded
from specbench.errors import ConfigError

DIFFERS = 5
LENGTH = 2  # of drafts: the branches to follow grow with V to its power


def laws(
    method: Annotated[str, typer.Option("--method", "-m", help="A method, or a TOML file.")],
    pair: Annotated[str, typer.Option("--pair", "-p", help="The pair whose roles the method's models have.")] = "tiny",
    set_: Annotated[list[str] | None, typer.Option("--set", "-s", help="Override a key: method.target.mu=0.2.")] = None,
    plugin: Plugins = None,
) -> None:
    """Compare a method's exact law of three tokens with the law that it declares, on models that are small tables.

    Exit code 5 where they differ, 2 where the method declares none, as a biased bonus does.
    """
    loaded(plugin)
    from specbench import suite
    from specbench.arms import arms
    from specbench.laws import LENGTH as TOKENS
    from specbench.laws import examine
    from specbench.options import Options, parse_override

    options = Options(gamma=(LENGTH,), overrides=tuple(map(parse_override, set_ or [])))
    _, roles = suite.read_pair(pair, options)
    arm = arms([method], roles, dict.fromkeys(roles.models, 1), options)[0][-1]
    try:
        findings = examine(arm.method)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    print(f"{arm.name}: total variation from its declared law, {TOKENS} tokens, the worst of several worlds")
    for found in findings:
        print(f"  {found.setting:<20} {found.distance:.1e}  {'exact' if found.exact else 'DIFFERS'}")
    if not all(found.exact for found in findings):
        sys.exit(DIFFERS)
