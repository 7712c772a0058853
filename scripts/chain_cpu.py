"""Compare chains of three models with plain speculation on a CPU: writes results/chain-cpu.md. Run by `make chain-cpu`.

A chain is a draft, the target's int4 copy, and the target. All models have random weights of Llama shapes; only their times
are real. Acceptance is synthetic: the rates of Polybasic's Table 1, and rates at which the middle model is closer to the
target.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

import specbench
from specbench.analysis import polybasic, theory
from specbench.analysis.intervals import Estimate
from specbench.analysis.polybasic import ChainPlan
from specbench.analysis.run_metrics import complete
from specbench.analysis.speed import speedup
from specbench.config.options import Options
from specbench.config.request import Access, Request
from specbench.experiment.pipeline import run
from specbench.features.profile.chain_profile import Profile
from specbench.features.profile.pairings import pairings
from specbench.files import write
from specbench.machine.hardware import fingerprint
from specbench.reporting.column import HUNDREDTHS, TENTHS_OF_PERCENT, TIMES
from specbench.reporting.formats.writers import markdown_table
from specbench.reporting.tables import Table
from specbench.resolution.selection import read_pair
from specbench.runs.run_folder import read

PAGE = Path("results/chain-cpu.md")
LEVELS = ("target", "middle", "draft")
TABLE_1 = {
    "middle": (6.26, 10),
    "draft": (4.36, 5),
    "plain": (4.34, 5),
}  # printed accepted length, assumed draft length
MIDDLES = (0.93, 0.95, 0.97, 0.98, 0.99, 0.995)  # acceptance rates of the middle model beyond Table 1's
SHAPES = {  # layers, width, width of the MLP, heads
    "100M": (12, 768, 2048, 12),
    "450M": (12, 1536, 5120, 16),
    "1B": (16, 2048, 8192, 16),
}
DRAFT = (2, 512, 1376, 8)
VOCABULARY = 16000
SIZES = (1, 2, 3, 4, 5, 8, 12, 16)
PLAIN = range(1, 17)  # draft lengths without the middle model
CHAIN = range(1, 9), range(1, 25)  # draft lengths and thresholds with it


class Row(NamedTuple):
    """A shape at an acceptance of the middle model: the best chain and the best plain speculation."""

    shape: str
    middle: float
    chain: ChainPlan
    plain: ChainPlan
    measured: "Measured | None" = None


class Measured(NamedTuple):
    """Measured speedups over the target alone, and of the chain over plain speculation."""

    chain: Estimate
    plain: Estimate
    ratio: Estimate
    chain_length: float  # tokens that a forward of the target commits
    plain_length: float


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare chains of three models with plain speculation on a CPU.")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--runs", type=Path, default=Path("build/chain-cpu"))
    args = parser.parse_args()
    args.runs.mkdir(parents=True, exist_ok=True)
    prices, rows = list[list[str]](), list[Row]()
    for shape in args.shapes:
        profile = profiled(shape, args.runs)
        prices += price_rows(shape, profile)
        rows += [
            each._replace(measured=measured(each, args)) if each.middle in chosen(found) else each
            for found in [list(predicted(shape, profile))]
            for each in found
        ]
    write(PAGE, page(prices, rows, args))
    print(PAGE.read_text(encoding="utf-8"))


def rate_of(role: str) -> float:
    """Return the acceptance rate at which Table 1's accepted length is expected."""
    length, drafted = TABLE_1[role]
    rates = np.linspace(0.5, 1.0, 5001)
    lengths = [1.0 + theory.expected_accepted(float(rate), drafted) for rate in rates]
    return round(float(np.interp(length, lengths, rates)), 3)


def pair_file(shape: str, middle: float, folder: Path) -> Path:
    """Write the pair of a shape, and return its path.

    The draft of plain speculation is a model of its own, since an acceptance rate belongs to a model.
    """
    target, draft = _model(SHAPES[shape]), _model(DRAFT)
    models = {"draft": draft, "plain": draft, "middle": f'quantization = "int4"\n{target}', "target": target}
    text = (
        f'description = "a random Llama of {shape} parameters, its int4 copy, and a small draft"\nweights = "dummy"\n'
        f'logits = "synthetic"\nacceptance = {{ middle = {middle}, draft = {rate_of("draft")},'
        f" plain = {rate_of('plain')} }}\n"
        + "".join(f"\n[models.{role}]\n{keys}" for role, keys in models.items())
        + '\n[defaults]\ndata = "synthetic"\ntasks = ["gsm8k"]\n\n[defaults.task.gsm8k]\nshots = 0\n'
    )
    path = folder / f"llama-{shape.lower()}-{1000 * middle:.0f}.toml"
    path.write_text(text, encoding="utf-8")
    return path


def _model(shape: Sequence[int]) -> str:
    layers, width, wide, heads = shape
    return (
        'path = "JackFram/llama-68m"\n'
        f"config = {{ num_hidden_layers = {layers}, hidden_size = {width}, intermediate_size = {wide},"
        f" num_attention_heads = {heads}, num_key_value_heads = {heads}, vocab_size = {VOCABULARY} }}\n"
    )


def profiled(shape: str, folder: Path) -> Profile:
    """Return the prices of the shape's models, as `specbench profile` measures them."""
    path, options = str(pair_file(shape, rate_of("middle"), folder)), Options(limit=2, repeats=1, max_new_tokens=24)
    names = tuple(pairings(list(LEVELS), read_pair(path, options)[1], 5))
    out, access = folder / "profile", Access()
    request = Request(methods=names, pair=path, tasks=("gsm8k",), options=options, out=out, access=access)
    (summary,) = run(request, profile=True).summaries
    return Profile.of(summary, LEVELS)


def predicted(shape: str, profile: Profile) -> Iterator[Row]:
    """Yield the fastest plan with and without the middle model, by exact theory at the measured prices."""
    three, two = profile.cost(LEVELS[::-1], blocks=True), profile.cost(("draft", "target"), blocks=True)
    reach = profile.longest
    plain = polybasic.best_chain([rate_of("plain")], two, [k for k in PLAIN if k < reach])
    drafted, thresholds = CHAIN
    for middle in (rate_of("middle"), *MIDDLES):
        chain = polybasic.best_chain([rate_of("draft"), middle], three, drafted, [t for t in thresholds if t < reach])
        yield Row(shape, middle, chain, plain)


def chosen(rows: Sequence[Row]) -> set[float]:
    """Return the acceptances that are measured: Table 1's, the two around the threshold, and the highest."""
    losing = [row.middle for row in rows if row.chain.speedup <= row.plain.speedup]
    winning = [row.middle for row in rows if row.chain.speedup > row.plain.speedup]
    return {rate_of("middle"), *losing[-1:], *winning[:1], *winning[-1:]}


def measured(row: Row, args: argparse.Namespace) -> Measured:
    """Measure the two plans and the target alone, in turn in one run."""
    draft = f'{{ name = "model", model = "draft", gamma = {row.chain.drafted} }}'
    chain = f'{{ name = "chain", model = "middle", threshold = {row.chain.thresholds[0]}, proposer = {draft} }}'
    plain = f'{{ name = "model", model = "plain", gamma = {row.plain.drafted} }}'
    paths = []
    for name, proposer in (("chain", chain), ("plain", plain)):
        path = args.runs / f"{name}-{row.shape.lower()}-{1000 * row.middle:.0f}.toml"
        path.write_text(
            f'description = "{name}"\nbaseline = "ar"\nname = "speculative"\nproposer = {proposer}\n'
            'scorers = "target"\ntarget = { name = "last" }\n',
            encoding="utf-8",
        )
        paths.append(path)
    result = specbench.run(
        list(map(str, paths)), str(pair_file(row.shape, row.middle, args.runs)), "gsm8k", out=args.runs / "runs",
        limit=args.prompts, repeats=args.repeats, max_new_tokens=args.tokens, ignore_eos=True,
    )  # fmt: skip
    (summary,) = result.summaries
    records = list(read(result.folders[0]))
    ours, theirs = (complete(records, path.stem) for path in paths)
    found = {method.method: method for method in summary.methods}
    speeds = [found[path.stem].speedup for path in paths]
    lengths = [found[path.stem].accepted_length for path in paths]
    assert speeds[0] is not None and speeds[1] is not None
    return Measured(speeds[0], speeds[1], speedup(ours, theirs), lengths[0] or 0.0, lengths[1] or 0.0)


def price_rows(shape: str, profile: Profile) -> list[list[str]]:
    """Return the price of blocks of each model, relative to one token of the target."""
    one = profile.seconds("target")
    assert one is not None
    return [
        [shape, level, f"{1e3 * (profile.seconds(level) or 0.0):.2f}",
         *(HUNDREDTHS.text((profile.seconds(level, size) or 0.0) / one) for size in SIZES)]
        for level in LEVELS
    ]  # fmt: skip


def page(prices: list[list[str]], rows: Sequence[Row], args: argparse.Namespace) -> str:
    """Return the results as Markdown."""
    head = ["target", "model", "T(1), ms", *(f"T({size})" for size in SIZES)]
    body = [
        [
            row.shape, TENTHS_OF_PERCENT.number(row.middle),
            f"{row.plain.drafted}", TIMES.text(row.plain.speedup),
            f"{row.chain.drafted}, {row.chain.thresholds[0]}", TIMES.text(row.chain.speedup),
            *([TIMES.text(row.measured.plain), TIMES.text(row.measured.chain), TIMES.text(row.measured.ratio),
               *map(HUNDREDTHS.text, (row.measured.plain_length, row.measured.chain_length))] if row.measured else ["-"] * 5),
        ]
        for row in rows
    ]  # fmt: skip
    titles = [
        "target", "acceptance rate of the middle model", "plain: draft length", "plain, predicted",
        "chain: draft length, threshold", "chain, predicted", "plain, measured", "chain, measured",
        "chain over plain, measured", "plain: tokens per target forward", "chain: tokens per target forward",
    ]  # fmt: skip
    env = fingerprint()
    lines = [
        "# A chain of three models on a CPU",
        "",
        "Does the target's int4 copy make decoding faster as a middle model? **Dummy weights and synthetic acceptance**: only"
        f" the times of forwards are real. The draft has {DRAFT[0]} layers of width {DRAFT[1]}. Acceptance rates are those at"
        " which the accepted lengths of Polybasic's Table 1 are expected, if its draft lengths were 5 and 10, which the paper"
        f" does not state: {TENTHS_OF_PERCENT.number(rate_of('draft'))} for the draft under the middle model (4.36 tokens),"
        f" {TENTHS_OF_PERCENT.number(rate_of('plain'))} under the target (4.34), and"
        f" {TENTHS_OF_PERCENT.number(rate_of('middle'))} for the middle model under the target (6.26). Made by"
        f" `make chain-cpu`: {args.prompts} prompts x {args.repeats} repeats of {args.tokens} tokens, T = 0.",
        "",
        "The prices of blocks, relative to a forward of one token by the target:",
        "",
        markdown_table(Table("", head, prices)),
        "",
        f"The fastest plan by exact theory at these prices: plain speculation with draft lengths up to {PLAIN[-1]}, and the"
        f" chain with draft lengths up to {CHAIN[0][-1]} and thresholds up to {CHAIN[1][-1]}. Some plans were measured side"
        " by side: at Table 1's rate, at the rates between which theory changes its choice, and at the highest. Speedups are"
        " over the target alone, with 95 % intervals.",
        "",
        markdown_table(Table("", titles, body)),
        "",
        f"{env['cpu']}, {env['cores']} cores, {env['threads']} threads, revision {env['git']['revision'][:9]}",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
