"""Compare Polybasic's chains with 4-bit middle models of two kinds, by `make middle-models`: writes results/middle-models.md.

The target is the bundled one as it is, and with its MLPs widened to 80M parameters, which changes its cost and none of its
outputs. The middle model is its 4-bit copy, with float activations (W4A16) or 8-bit ones (W4A8).
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import specbench
from specbench.analysis.intervals import Estimate
from specbench.analysis.method_records import complete
from specbench.analysis.number_format import HUNDREDTHS, TIMES
from specbench.analysis.speed import speedup
from specbench.config.options import Options
from specbench.config.request import Access, Request
from specbench.experiment.pipeline import run
from specbench.features.profile.chain_profile import Profile
from specbench.features.profile.pairings import pairings
from specbench.files import write
from specbench.machine.hardware import fingerprint
from specbench.reporting.formats.writers import markdown_table
from specbench.reporting.tables import Table
from specbench.resolution.selection import read_pair
from specbench.runs.run_folder import read

PAGE = Path("results/middle-models.md")
COSTS = {"bundled": "", "widened to 80M": 'cost = { parameters = "80M" }\n'}
KINDS = {"int4": "W4A16", "int4-a8": "W4A8"}
CHAINS = {"polybasic": "eagle", "polybasic-model": "sd"}  # and its counterpart with two models
LEVELS = ("target", "middle", "draft")
SIZES = (1, 5, 9)
TASKS = ("gsm8k", "wmt")
EAGLE = {"eagle": ("middle", "eagle-int4"), "eagle-target": ("target", "eagle")}  # base, and the bundled head


class Row(NamedTuple):
    """A chain on a task, and its counterpart with two models: speedups over the target alone, and their ratio."""

    target: str
    kind: str
    task: str
    chain: str
    speedups: tuple[Estimate, Estimate]  # of the chain, of the counterpart
    ratio: Estimate
    length: float  # tokens of the chain per forward of the target


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare Polybasic's chains with 4-bit middle models of two kinds.")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--runs", type=Path, default=Path("build/middle-models"))
    args = parser.parse_args()
    args.runs.mkdir(parents=True, exist_ok=True)
    prices, rows = list[list[str]](), list[Row]()
    for target in COSTS:
        for kind in KINDS:
            pair = pair_file(target, kind, args.runs)
            prices += price_rows(target, kind, profiled(pair, args.runs))
            rows += measured(target, kind, pair, args)
    write(PAGE, page(prices, rows, args))
    print(PAGE.read_text(encoding="utf-8"))


def pair_file(target: str, kind: str, folder: Path) -> str:
    """Write the pair of a target and a kind of middle model, and return its path."""
    large = f'path = "specbench:tiny/models/target"\n{COSTS[target]}'
    models = {
        "draft": 'path = "specbench:tiny/models/draft"\n',
        "middle": f'{large}quantization = "{kind}"\n',
        "target": large,
    }
    text = (
        f'description = "the bundled draft and target ({target}), and a middle model with {kind} weights"\n'
        + "".join(f"\n[models.{role}]\n{keys}" for role, keys in models.items())
        + "".join(
            f'\n[heads.{name}]\nbase = "{base}"\npath = "specbench:tiny/heads/{head}"\n'
            for name, (base, head) in EAGLE.items()
        )
        + '\n[defaults]\ndata = "synthetic"\n\n[defaults.task.gsm8k]\nshots = 0\n'
    )
    path = folder / f"{target.partition(' ')[0]}-{kind}.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def profiled(pair: str, folder: Path) -> Profile:
    """Return the prices of the pair's models, as `specbench profile` measures them."""
    options = Options(limit=2, repeats=1, max_new_tokens=24)
    names = tuple(pairings(list(LEVELS), read_pair(pair, options)[1], 8))
    request = Request(
        methods=names, pair=pair, tasks=("gsm8k",), options=options, out=folder / "profile", access=Access(fresh=True)
    )
    (summary,) = run(request, profile=True).summaries
    return Profile.of(summary, LEVELS)


def price_rows(target: str, kind: str, profile: Profile) -> list[list[str]]:
    """Return the time of each model's blocks, relative to one token of the target."""
    one = profile.seconds("target") or 0.0
    return [
        [target, KINDS[kind], level, f"{1e3 * (profile.seconds(level) or 0.0):.2f}",
         *(HUNDREDTHS.text((profile.seconds(level, size) or 0.0) / one) for size in SIZES)]
        for level in LEVELS
    ]  # fmt: skip


def measured(target: str, kind: str, pair: str, args: argparse.Namespace) -> Iterator[Row]:
    """Yield the chains on each task, measured in one run with their counterparts and the target alone."""
    for task in TASKS:
        result = specbench.run(
            [*CHAINS, *CHAINS.values()], pair, task, out=args.runs / "runs", limit=args.prompts, repeats=args.repeats,
            max_new_tokens=args.tokens, ignore_eos=True,
        )  # fmt: skip
        (summary,) = result.summaries
        records, found = list(read(result.folders[0])), {method.method: method for method in summary.methods}
        for chain, plain in CHAINS.items():
            ours, theirs = found[chain].speedup, found[plain].speedup
            assert ours is not None and theirs is not None
            ratio = speedup(complete(records, chain), complete(records, plain))
            yield Row(target, kind, task, chain, (ours, theirs), ratio, found[chain].accepted_length or 0.0)


def page(prices: list[list[str]], rows: Sequence[Row], args: argparse.Namespace) -> str:
    """Return the results as Markdown."""
    body = [
        [row.target, KINDS[row.kind], row.task, row.chain, TIMES.text(row.speedups[0]), CHAINS[row.chain],
         TIMES.text(row.speedups[1]), TIMES.text(row.ratio), HUNDREDTHS.text(row.length)]
        for row in rows
    ]  # fmt: skip
    titles = [
        "target", "middle", "task", "chain", "speedup", "with two models", "speedup", "chain over two models",
        "chain: tokens per target forward",
    ]  # fmt: skip
    env = fingerprint()
    return "\n".join(
        [
            "# Polybasic's middle model with 4-bit weights",
            "",
            "Does a 4-bit copy of the target make decoding faster as a middle model, with float activations (W4A16) or with"
            " 8-bit ones (W4A8)? The pair is the bundled one, as it is, and with a target widened to 80M parameters, which"
            " costs more and has the same outputs. EAGLE heads and draft are not widened. In the paper, a forward of the"
            f" middle model takes 0.28 of the target's. Made by `make middle-models`: {args.prompts} prompts x {args.repeats}"
            f" repeats of {args.tokens} tokens, T = 0, synthetic prompts.",
            "",
            "The time of forwards of n tokens, relative to a forward of one token by the target:",
            "",
            markdown_table(Table("", ["target", "middle", "model", "T(1), ms", *(f"T({n})" for n in SIZES)], prices)),
            "",
            "Speedups over the target alone, with 95 % intervals. Chains have the presets' draft lengths and thresholds:",
            "",
            markdown_table(Table("", titles, body)),
            "",
            f"{env['cpu']}, {env['cores']} cores, {env['threads']} threads, revision {env['git']['revision'][:9]}",
            "",
        ]
    )


if __name__ == "__main__":
    main()
