"""`specbench enumerate`: compare a method's exact output distribution with the declared one. Loads no model."""

import sys
from dataclasses import replace
from typing import Annotated

import typer

from specbench.cli.params import Method, Plugins, SharedOptions, preset_names
from specbench.errors import ConfigError, ExitCode
from specbench.reporting import escaping

GAMMAS = (1, 2)  # draft lengths of whole outputs: the number of branches grows with V to their power
DEFAULT = 5  # the draft length of a first round


def enumerate_(
    method: Method,
    pair: Annotated[
        str,
        typer.Option("--pair", "-p", help="The pair that names the models.", autocompletion=preset_names("pair")),
    ] = "tiny",
    set_: Annotated[list[str] | None, typer.Option("--set", "-s", help="Override a key: method.target.mu=0.2.")] = None,
    plugin: Plugins = None,
) -> None:
    """Compare a method's exact output distribution with the declared one.

    Enumerates every output of three tokens on small lookup-table models, at draft lengths of 1 and 2, and every first round
    at a draft length of 5; with --set, both at the draft length that it gives. The last line shows the longest draft.

    Exit code 5 if they differ, 6 if nothing was drafted, 2 if the method declares no distribution.
    """
    plain = SharedOptions(set_=set_, plugin=plugin).options()
    # imports torch
    from specbench.resolution.method_tables import applies, constructor, length_path
    from specbench.resolution.methods import Methods
    from specbench.resolution.selection import read_pair, unused_options
    from specbench.verification.enumeration import LENGTH, ExactComparison, examine, examine_drafts

    source, roles = read_pair(pair, plain)
    unused = unused_options(source, pair, (), plain) | Methods((method,), roles, plain).unused_options(pair)
    for error in unused.values():
        raise error
    worst: dict[str, ExactComparison] = {}
    drafts, longest = False, 0
    base = constructor(method)
    applied = [override for override in plain.overrides_for("method", method) if applies(override, base)]
    is_set = any(".".join(override.path) == length_path(base) for override in applied)
    is_open = Methods((method,), roles, plain).have_draft_length and not is_set
    for gamma in (*GAMMAS, DEFAULT) if is_open else (0,):
        options = replace(plain, gamma=(("", (gamma,)),) if gamma else ())
        resolved = Methods((method,), roles, options).groups(dict.fromkeys(roles.models, 1))[0][-1]
        label, built = resolved.label, resolved.method
        if built.declared_distribution() is None:
            why = ": bonus = 'paper' biases the output" if getattr(built, "bonus", "") == "paper" else ""
            raise ConfigError(f"{label} declares no exact output distribution{why}")
        drafts, kinds = max(built.blocks) > 1, {name: roles.heads[name].kind for name in built.heads}
        findings = examine(built, kinds) if gamma in (0, *GAMMAS) else []
        findings += examine_drafts(built, kinds) if gamma in (0, DEFAULT) else []
        for finding in findings:
            worst[finding.setting] = max(
                worst.get(finding.setting, finding), finding, key=lambda finding: finding.distance
            )
            longest = max(longest, finding.drafted)
    print(
        f"{escaping.terminal(label)}: total variation from its declared distribution, {LENGTH} tokens, the maximum over"
        " several models"
    )
    for finding in worst.values():
        verdict = "exact" if finding.exact else f"DIFFERS {finding.why}".rstrip()
        print(f"  {finding.setting:<20} {finding.distance:.1e}  {verdict}")
    if drafts:
        beyond = f"; longer ones, up to {built.depth}, were not" if longest < built.depth else ""
        print(f"drafts of up to {longest} tokens were enumerated{beyond}")
    if not all(finding.exact for finding in worst.values()):
        sys.exit(ExitCode.REGRESSION)
    if drafts and not longest:
        print("inconclusive: nothing was drafted in the first tokens, so the proposer was not tested")
        sys.exit(ExitCode.INCONCLUSIVE)
