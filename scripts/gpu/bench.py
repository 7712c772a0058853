"""`make gpu-bench`: what decoding costs on this GPU, at the papers' shapes, beside what was wanted.

`--part forward` times forwards against the memory's bandwidth, `peers` our decoding against transformers' own, `ensemble`
Speculative Ensemble against the standard ensemble, at given acceptance rates. Weights are random, and where acceptance is
given the models' laws are synthetic: every line says so. With `--small --device cpu` shrunk models try the parts out.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from scripts.gpu import common as gpu
from scripts.gpu.forward import BLOCK, HEAD, Figure, Settings, forward
from scripts.gpu.vs_transformers import ACCEPTANCE, GAMMA, TABLE_2, ensemble, peers
from specbench.errors import ExitCode, MissingAsset
from specbench.machine.hardware import configure, fingerprint
from specbench.models.resolve import device_of

TITLES = {
    "forward": "What a forward costs",
    "peers": "Our decoding beside transformers' own",
    "ensemble": "Speculative Ensemble beside the standard ensemble",
}
ABOUT = {
    "forward": f"""\
Medians, with the least and the greatest of the repeats, of many forwards between two synchronisations, the engines in turns.
A forward of {BLOCK} verifies {BLOCK - 1} drafted tokens. `of copy bandwidth` is the time that copying the weights and the
cache would take, over the time taken. On a CPU nothing is captured: `graph` is the static forward as it stands.""",
    "peers": f"""\
Whole calls, prefill included, greedy, in turns; medians over calls, and speedups with 95 % bootstrap intervals over prompts.
Draft length {GAMMA}. transformers cannot be given synthetic laws: beside it ours have dummy weights too, whose drafts are
hardly ever right. `synthetic` rows are at an acceptance of {ACCEPTANCE:g}, without the seconds of their laws.""",
    "ensemble": f"""\
T = 1, draft lengths (1, 1), decoding seconds of the driver, without those of the synthetic laws; speedups with 95 % bootstrap
intervals over prompts. `theory` is the paper's at the measured acceptance, a block for the price of one token; `corrected` at
a block's measured price. Less than nothing outside forwards would mean that the clock lost time. The paper's own, on real
models (SE, Table 2, Llama-Vicuna, WE-SE): {", ".join(f"{task} {value:.2f}x" for task, value in TABLE_2.items())}.""",
}
RATES = (0.7, 0.8, 0.9)
PARTS: dict[str, Callable[[Settings], list[Figure]]] = {"forward": forward, "peers": peers, "ensemble": ensemble}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Measure decoding on a GPU.", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--part", choices=(*PARTS, "all"), default="all")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="shrunk models, for trying the parts out")
    parser.add_argument("--prompt", type=int, default=128, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=96, help="decoded for each prompt")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--forwards", type=int, default=50, help="that are timed together")
    parser.add_argument(
        "--rates", type=float, nargs="*", default=RATES, help="acceptance rates of the ensemble's models"
    )
    parser.add_argument(
        "--seconds", type=float, default=360.0, help="after which the peers and ensemble parts begin nothing new"
    )
    parser.add_argument("--out", type=Path, help="a folder; the default is results/DEVICE, and nowhere on a CPU")
    args = parser.parse_args(argv)
    try:
        device = device_of(args.device)
    except MissingAsset as error:
        print(f"error[asset]: {error} and --small", file=sys.stderr)
        return ExitCode.MISSING
    told = {key: value for key, value in vars(args).items() if key not in ("part", "device", "out")}
    settings = Settings(device=device, **told | {"rates": tuple(args.rates)})
    configure(device)  # before the environment is recorded
    environment, folder = fingerprint(), gpu.folder_of(device, args.out)
    for part in PARTS if args.part == "all" else (args.part,):
        with gpu.heartbeat():
            figures = PARTS[part](settings)
        lines = [_about(part, settings), "", *gpu.table(HEAD, [each.cells() for each in figures])]
        gpu.publish(
            part, TITLES[part], lines, [each.row() for each in figures], environment | {"settings": told}, folder
        )
    return 0


def _about(part: str, settings: Settings) -> str:
    shapes = "Shrunk architectures" if settings.small else "Real architectures"
    dtype = "bfloat16" if settings.device.type == "cuda" else "float32"
    size = f"{settings.prompt} prompt tokens, {settings.tokens} new ones, {settings.repeats} repeats"
    return f"{shapes}, {dtype}, one prompt at a time: {size}. {ABOUT[part]}"


if __name__ == "__main__":
    sys.exit(main())
