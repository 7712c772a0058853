"""Measure decoding on a GPU at the papers' model shapes: `make gpu-bench`.

`--part forward` times forwards relative to memory bandwidth. `--part transformers` compares specbench with transformers.
`--part ensemble` compares Speculative Ensemble with the sequential ensemble at given acceptance rates. Weights are random,
and acceptance rates are set with synthetic logits; every row is labeled accordingly. `--small --device cpu` tries the parts
out on small models.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from scripts.gpu import common as gpu
from scripts.gpu.forward import BLOCK, forward
from scripts.gpu.gpu_figures import HEAD, Figure, Settings
from scripts.gpu.vs_transformers import ACCEPTANCE, GAMMA, TABLE_2, against_transformers, ensemble
from specbench.errors import ExitCode, MissingAsset
from specbench.machine.hardware import configure, fingerprint
from specbench.models.resolve_models import device_of

TITLES = {
    "forward": "Cost of a forward",
    "transformers": "specbench and transformers",
    "ensemble": "Speculative Ensemble and the sequential ensemble",
}
ABOUT = {
    "forward": f"""\
Medians and ranges over repeats. A repeat times many forwards between two synchronizations; the engines alternate. A forward
of {BLOCK} tokens verifies {BLOCK - 1} draft tokens. `of read bandwidth` is the time to read the weights and the cache,
divided by the measured time. On a CPU nothing is captured, and `graph` is the static forward.""",
    "transformers": f"""\
Whole calls, prefill included, greedy; the methods alternate. Medians over calls, and speedups with 95 % intervals
over prompts. Draft length {GAMMA}. transformers cannot use synthetic logits, so it is compared with specbench on the same
dummy weights, whose drafts are rarely accepted. `synthetic` rows have an acceptance rate of {ACCEPTANCE:g}, and exclude the
time of the synthetic logits.""",
    "ensemble": f"""\
T = 1, draft lengths (1, 1). Decoding time, without that of the synthetic logits; speedups with 95 % intervals over
prompts. `theory` is the paper's prediction at the measured acceptance, where a block costs as much as one token; `corrected`
uses the measured cost of a block. A negative share outside forwards would mean that the clock missed some time. The paper's
figures on real models (SE, Table 2, Llama-Vicuna, WE-SE):
{", ".join(f"{task} {value:.2f}x" for task, value in TABLE_2.items())}.""",
}
RATES = (0.7, 0.8, 0.9)
PARTS: dict[str, Callable[[Settings], list[Figure]]] = {
    "forward": forward,
    "transformers": against_transformers,
    "ensemble": ensemble,
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Measure decoding on a GPU.", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--part", choices=(*PARTS, "all"), default="all")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="small models, to try the parts out")
    parser.add_argument("--prompt", type=int, default=128, help="tokens per prompt")
    parser.add_argument("--tokens", type=int, default=96, help="new tokens per prompt")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--forwards", type=int, default=50, help="forwards that are timed together")
    parser.add_argument("--rates", type=float, nargs="*", default=RATES, help="acceptance rates of the ensemble part")
    parser.add_argument(
        "--seconds", type=float, default=360.0, help="time limit of the transformers and ensemble parts"
    )
    parser.add_argument(
        "--out", type=Path, help="output folder; the default is results/DEVICE on a GPU, and none on a CPU"
    )
    args = parser.parse_args(argv)
    try:
        device = device_of(args.device)
    except MissingAsset as error:
        print(f"error[asset]: {error} and --small", file=sys.stderr)
        return ExitCode.MISSING
    amount = {key: value for key, value in vars(args).items() if key not in ("part", "device", "out")}
    settings = Settings(device=device, **amount | {"rates": tuple(args.rates)})
    configure(device)  # before the environment is recorded
    environment, folder = fingerprint(), gpu.folder_of(device, args.out)
    for part in PARTS if args.part == "all" else (args.part,):
        with gpu.heartbeat():
            figures = PARTS[part](settings)
        lines = [_about(part, settings), "", *gpu.table(HEAD, [each.cells() for each in figures])]
        gpu.publish(
            part, TITLES[part], lines, [each.row() for each in figures], environment | {"settings": amount}, folder
        )
    return 0


def _about(part: str, settings: Settings) -> str:
    shapes = "Small architectures" if settings.small else "Real architectures"
    dtype = "bfloat16" if settings.device.type == "cuda" else "float32"
    size = f"{settings.prompt} prompt tokens, {settings.tokens} new tokens, {settings.repeats} repeats"
    return f"{shapes}, {dtype}, one prompt at a time: {size}. {ABOUT[part]}"


if __name__ == "__main__":
    sys.exit(main())
