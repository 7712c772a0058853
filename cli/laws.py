"""`specbench laws`: is a method's output law the one it declares? By enumeration over tiny tables; no model is loaded."""

import sys
from dataclasses import replace
from typing import Annotated

import typer

from specbench.cli.arguments import imported
from specbench.cli.params import Plugins, known
from specbench.config.options import Options, parse_override
from specbench.errors import ConfigError, ExitCode

GAMMAS = ((1,), (2,))  # draft lengths: the branches to follow grow with V to their power


def laws(
    method: Annotated[
        str, typer.Option("--method", "-m", help="A method, or a TOML file.", autocompletion=known("method"))
    ],
    pair: Annotated[
        str,
        typer.Option(
            "--pair", "-p", help="The pair whose roles the method's models have.", autocompletion=known("pair")
        ),
    ] = "tiny",
    set_: Annotated[list[str] | None, typer.Option("--set", "-s", help="Override a key: method.target.mu=0.2.")] = None,
    plugin: Plugins = None,
) -> None:
    """Test a method's output distribution exactly, by enumeration.

    Compares the distribution of three tokens with the declared one. The models are small tables.

    Exit code 5 where they differ, 2 where the method declares none, as a biased bonus does.
    """
    imported(plugin)
    from specbench.experiment import run_spec as cells  # these import torch
    from specbench.experiment.method_resolution import arms, have_lengths
    from specbench.verification.enumeration import LENGTH, Finding, examine

    _, roles = cells.read_pair(pair, Options())
    worst: dict[str, Finding] = {}
    plain = Options(overrides=tuple(map(parse_override, set_ or [])))
    for gamma in GAMMAS if have_lengths([method], roles, plain) else ((),):
        options = replace(plain, gamma=gamma)
        arm = arms([method], roles, dict.fromkeys(roles.models, 1), options)[0][-1]
        if arm.method.law() is None:
            why = ": with this bonus it is biased" if "bonus" in arm.table else ""
            raise ConfigError(f"{arm.name} declares no law that its output follows exactly{why}")
        for found in examine(arm.method, {name: roles.heads[name].kind for name in arm.heads}):
            worst[found.setting] = max(worst.get(found.setting, found), found, key=lambda each: each.distance)
    print(f"{arm.name}: total variation from its declared law, {LENGTH} tokens, the worst of several worlds")
    for found in worst.values():
        verdict = "exact" if found.exact else f"DIFFERS {found.why}".rstrip()
        print(f"  {found.setting:<20} {found.distance:.1e}  {verdict}")
    if not all(found.exact for found in worst.values()):
        sys.exit(ExitCode.REGRESSION)
