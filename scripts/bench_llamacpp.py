"""Compare decoding by specbench and by llama.cpp on a CPU, one thread each: part of `make bench`.

All methods of a model alternate prompt by prompt in one run, greedy and at a fixed length: `ar`, llama.cpp servers with the
same weights, and Transformers' `generate`. On the bundled pair, `sd` is compared with llama.cpp's speculation and with
Transformers' assisted generation. GGUF files of Q8_0 and Q4_0 are decoded by both, and blocks of tokens are timed. Writes one
section per processor to results/llamacpp.md.
"""

import argparse
import copy
import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from scripts.block_costs import SHAPES
from scripts.llamacpp.blocks import CONTEXT, SIZES, BlockRow, block_row
from scripts.llamacpp.peer import LlamaCpp, ServerFacts, serving
from scripts.llamacpp.to_gguf import DTYPES
from scripts.sections import environment, processor, write_section
from specbench.analysis.intervals import Estimate
from specbench.analysis.method_records import complete, rounds_of
from specbench.analysis.run_summary import RunSummary
from specbench.analysis.speed import identical_output, other_load, speedup, tokens_per_second
from specbench.cli.console import TerminalObserver
from specbench.config.options import Options
from specbench.config.pair import PACKAGE
from specbench.config.request import Access, Request
from specbench.errors import ExitCode
from specbench.experiment.pipeline import run
from specbench.files import write
from specbench.models.simulated import random_model
from specbench.runs.record import Record
from specbench.runs.run_folder import read

OUT = Path("results/llamacpp.md")
ROOT = Path("build/llamacpp")
PYTHON, INSTALLED, WORK = ROOT / "bin/python", ROOT / ".installed", ROOT / "work"
TO_GGUF = Path(__file__).with_name("llamacpp") / "to_gguf.py"
BUNDLED = PACKAGE / "tiny/models"
TINY = "tiny"  # the bundled pair; all other models are random
MODELS = (TINY, "25M", "100M", "450M")
FEWER = {"100M": 2, "450M": 3}  # a share of the prompts for models whose generations take long
PADDING = 1  # the bundled tokenizer's id, and EOS in GGUF
TITLES = {"hf-generate": "transformers", "hf-assisted": "transformers"}
PEERS = {"ar": ("hf-generate",), "sd": ("hf-assisted",)}  # besides the servers
INTRODUCTION = [
    "# specbench against llama.cpp on a CPU",
    "",
    "One thread each, greedy, a fixed number of new tokens. The methods of a model alternate prompt by prompt in one run."
    " In float32 these are specbench's `ar`, Transformers' `generate`, and llama.cpp with the same weights (F32). With Q8_0"
    " and Q4_0, both read the same GGUF file, and specbench rounds inputs to 8 bits as llama.cpp does (`a8`)."
    " llama.cpp stores keys and values in float16 by default, specbench in float32."
    " With a float32 cache, which has the precision of specbench's, its flash attention is off, because it is slow there. On"
    " the bundled pair, `sd` is compared with llama.cpp's own speculation (`draft-simple`) at the same draft length, and with"
    " Transformers' assisted generation.",
    "",
    "*ms/token* is decoding alone, after the first token: by specbench's clock, and of llama.cpp by its server's own clock."
    " *Whole calls* include the prompt, and of llama.cpp the HTTP request. A ratio above 1 means that specbench is faster."
    " The brackets are 95 % intervals over prompts. *Same tokens* is the share of generations with identical token ids."
    " Models other than the bundled one have random weights: only their times matter, and near ties between their logits are"
    " common. They have no draft with a useful acceptance rate, so speculation is compared on the bundled pair only. Made by"
    " `make bench`, with one section per processor.",
    "",
]


class ServerSpec(NamedTuple):
    """A llama.cpp server: the method of specbench that it is compared with, its weights, and the precision of its cache."""

    name: str  # of its method
    title: str
    method: str
    dtype: str
    float32_cache: bool = False

    def command(self, files: Mapping[str, str], draft: Sequence[str]) -> list[str]:
        """Return the command line of serve_gguf.py. `files` are by dtype, `draft` the options of speculation."""
        cache = ["--float32-cache"] if self.float32_cache else []
        return [files[self.dtype], *cache, *(draft if self.method == "sd" else [])]


SERVERS = (
    ServerSpec("llamacpp-f32", "llama.cpp F32, float32 cache", "ar", "F32", float32_cache=True),
    ServerSpec("llamacpp-f32-f16", "llama.cpp F32, float16 cache", "ar", "F32"),
    ServerSpec("llamacpp-q8", "llama.cpp Q8_0, float16 cache", "ar", "Q8_0"),
    ServerSpec("llamacpp-q4", "llama.cpp Q4_0, float16 cache", "ar", "Q4_0"),
    ServerSpec("llamacpp-sd", "llama.cpp F32, float32 cache", "sd", "F32", float32_cache=True),
    ServerSpec("llamacpp-sd-f16", "llama.cpp F32, float16 cache", "sd", "F32"),
)


class Series(NamedTuple):
    """A measured model: its run with weights of a type, and the servers that took part."""

    model: str
    weights: str
    summary: RunSummary
    records: list[Record]
    servers: Mapping[str, ServerFacts]


class Row(NamedTuple):
    """A method of specbench beside another one. Ratios are the other's time over specbench's time."""

    model: str
    weights: str
    method: str
    peer: str
    milliseconds: tuple[float, float]  # per decoded token, of both
    decoding: Estimate
    whole: Estimate
    same: float
    accepted: tuple[str, str]


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Compare with llama.cpp: one thread each, alternating prompt by prompt."
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--engine", default="lean", help="specbench's engine")
    parser.add_argument("--prompts", type=int, default=16, help="fewer for 100M (a half) and 450M (a third)")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--gamma", type=int, default=4)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    if not INSTALLED.exists():
        print(f"llama.cpp is not compared: its environment {ROOT} is missing; help: make {INSTALLED}")
        return
    series = [measured(name, weights, args) for name in args.models for weights in DTYPES]
    blocks = [blocks_of(name, weights) for name in args.models for weights in DTYPES]
    lines = [*section(series, args), "", *block_table(blocks)]
    write_section(args.out, processor(), lines, INTRODUCTION)
    print("\n".join(lines))


def measured(model: str, weights: str, args: argparse.Namespace) -> Series:
    """Measure one model with weights of a type, while its llama.cpp servers run."""
    WORK.mkdir(parents=True, exist_ok=True)
    observer, compared = TerminalObserver(), methods_of(model, weights)
    with observer.status(f"converting {model}"):
        files = {dtype: str(gguf_of(checkpoint(model), dtype)) for dtype in DTYPES}
        drafting = ["--draft", str(gguf_of(BUNDLED / "draft", "F32")), "--draft-length", str(args.gamma)]
    servers = [each for each in SERVERS if each.method in compared and each.dtype == weights]
    commands = {each.name: each.command(files, drafting) for each in servers}
    with serving(PYTHON, WORK / "servers.log", commands) as servers_facts:
        methods = [name for method in compared for name in (method, *peers_of(method, weights))]
        methods += [method_file(name, facts["url"]) for name, facts in servers_facts.items()]
        request = Request(
            methods=tuple(methods), pair=pair_file(model, weights), tasks=("gsm8k",), options=options(model, weights, args),
            out=WORK / "runs", access=Access(fresh=True),
        )  # fmt: skip
        results = run(request, observer)
    (summary,) = results.summaries
    if results.some_failed:
        print(f"some generations failed; see {summary.folder}")
        raise SystemExit(ExitCode.SOME_FAILED)
    return Series(model, weights, summary, list(read(Path(summary.folder))), servers_facts)


def blocks_of(model: str, weights: str) -> BlockRow:
    """Time blocks of tokens on one thread, with a server that keeps the cache of prompts."""
    torch.set_num_threads(1)
    command = [str(gguf_of(checkpoint(model), weights)), "--reuse-prompts"]
    with serving(PYTHON, WORK / "servers.log", {"blocks": command}) as servers:
        return block_row(model, weights, pair_file(model, weights), servers["blocks"]["url"])


def options(model: str, weights: str, args: argparse.Namespace) -> Options:
    """Return the options of the run on a model with weights of a type."""
    return Options(
        gamma=(("", (args.gamma,)),) if "sd" in methods_of(model, weights) else (),
        data=(("", "synthetic"),),
        limit=max(5, args.prompts // FEWER.get(model, 1)),
        max_new_tokens=args.tokens,
        ignore_eos=True,
        repeats=args.repeats,
        device="cpu",
        dtype="float32",
        engine=args.engine,
        threads=1,
        overrides=(("task.shots", 0),),
    )


def methods_of(model: str, weights: str) -> tuple[str, ...]:
    """Return specbench's methods that are measured on a model with weights of a type."""
    return ("ar", "sd") if model == TINY and weights == "F32" else ("ar",)


def peers_of(method: str, weights: str) -> tuple[str, ...]:
    """Return the methods besides servers that a method is compared with."""
    return PEERS[method] if weights == "F32" else ()


def checkpoint(model: str) -> Path:
    """Return the folder of a model in float32 or bfloat16. A random one is written once."""
    if model == TINY:
        return BUNDLED / "target"
    folder = WORK / model
    if not folder.exists():
        unfinished = WORK / f"{model}.unfinished"
        config = copy.deepcopy(SHAPES[model])
        config.pad_token_id, config.eos_token_id, config.bos_token_id = PADDING, 0, None
        random = random_model(config, "float32", torch.device("cpu"))
        with torch.no_grad():
            random.lm_head.weight[PADDING] = 0.0  # never the largest logit: llama.cpp masks it
        random.save_pretrained(unfinished)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(BUNDLED / "target" / name, unfinished / name)
        unfinished.rename(folder)
    return folder


def gguf_of(folder: Path, dtype: str) -> Path:
    """Return the GGUF of a folder's model, written unless it is newer than the weights and the converter."""
    out = WORK / f"{folder.name}-{dtype}.gguf"
    newest = max(path.stat().st_mtime for path in (folder / "model.safetensors", TO_GGUF))
    if not out.exists() or out.stat().st_mtime < newest:
        subprocess.run([str(PYTHON), str(TO_GGUF), str(folder), str(out), "--dtype", dtype], check=True)
    return out


def method_file(name: str, url: str) -> str:
    """Write the preset of a server's method, and return its path."""
    path = WORK / f"{name}.toml"
    write(path, f'description = "llama.cpp"\nbaseline = "ar"\nname = "{LlamaCpp.name}"\nurl = "{url}"\n')
    return str(path)


def pair_file(model: str, weights: str) -> str:
    """Write the pair of a model with weights of a type, and return its path; for the bundled pair its name."""
    if model == TINY and weights == "F32":
        return TINY
    path = WORK / f"{model.lower()}-{weights.lower()}.toml"
    folder = checkpoint(model)
    if weights == "F32":
        keys = f"path = {json.dumps(str(folder.resolve()))}\n"
    else:
        file = gguf_of(folder, weights)
        keys = f'path = {json.dumps(str(file.parent.resolve()))}\ngguf_file = "{file.name}"\nquantization = "a8"\n'
    write(path, f"[models.target]\n{keys}")
    return str(path)


def rows_of(series: Series) -> Iterator[Row]:
    """Yield the comparisons of a model."""
    for method in methods_of(series.model, series.weights):
        ours = complete(series.records, method)
        servers = {each.name: each.title for each in SERVERS if each.method == method and each.dtype == series.weights}
        for peer, title in (servers | {name: TITLES[name] for name in peers_of(method, series.weights)}).items():
            theirs = complete(series.records, peer)
            yield Row(
                series.model, series.weights, method, title, (_milliseconds(ours), _milliseconds(theirs)),
                speedup(ours, theirs), speedup(ours, theirs, end_to_end=True), identical_output(theirs, ours),
                (accepted(ours), accepted(theirs)),
            )  # fmt: skip


def accepted(rows: Sequence[Record]) -> str:
    """Return the numbers of accepted and drafted tokens as text."""
    counts = {"accepted": 0, "drafted": 0}
    for each in rounds_of(rows):
        counters = each.counters
        counts["accepted"] += each.accepted + int(counters.get("accepted", 0))
        counts["drafted"] += each.drafted + int(counters.get("drafted", 0))
    share = counts["accepted"] / counts["drafted"] if counts["drafted"] else 0.0
    return f"{share:.1%} of {counts['drafted']}"


def section(series: Sequence[Series], args: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of this processor's section."""
    rows = [row for each in series for row in rows_of(each)]
    yield (
        f"Engine {args.engine}; {args.prompts} synthetic prompts (100M: a half, 450M: a third) x {args.repeats} repeats of"
        f" {args.tokens} new tokens."
        f" llama.cpp was built with: {_instructions(series[0].servers)}. Other programs used"
        f" {max(_load(each) for each in series):.2f} processors on average during the generations of a model, at most."
    )
    yield from _table([row for row in rows if row.method == "ar"], speculative=False)
    if drafting := [row for row in rows if row.method == "sd"]:
        yield ""
        yield f"Speculation on the bundled pair, {args.gamma} drafted tokens:"
        yield from _table(drafting, speculative=True)
    version = next(iter(series[0].servers.values()))["version"]
    yield ""
    yield environment(series[0].summary.environment, xllamacpp=version)


def _table(rows: Sequence[Row], speculative: bool) -> Iterator[str]:
    more = [" accepted, specbench | accepted, other |", " --: | --: |"] if speculative else ["", ""]
    yield ""
    yield (
        "| model | weights | specbench | other | ms/token, specbench | ms/token, other | other / specbench | whole calls |"
        f" same tokens |{more[0]}"
    )
    yield f"| :-- | :-- | :-- | :-- | --: | --: | --: | --: | --: |{more[1]}"
    for row in rows:
        drafts = f" {row.accepted[0]} | {row.accepted[1]} |" if speculative else ""
        yield (
            f"| {row.model} | {row.weights} | {row.method} | {row.peer} |"
            f" {row.milliseconds[0]:.2f} | {row.milliseconds[1]:.2f} |"
            f" {_times(row.decoding)} | {_times(row.whole)} | {row.same:.0%} |{drafts}"
        )


def block_table(rows: Sequence[BlockRow]) -> Iterator[str]:
    """Yield the lines on blocks of tokens."""
    yield (
        f"Blocks of n tokens after {CONTEXT} tokens: the time of a forward by llama.cpp over that by specbench, in turn. Only"
        " the logits of the last token are computed. llama.cpp has a float16 cache; its times are its server's own. As the"
        " two alternate, no block finds weights in the processor's caches, so small models take longer than in decoding."
    )
    yield ""
    heads = " | ".join(f"n = {n}" for n in SIZES)
    yield f"| model | weights | T(1), specbench, ms | T(1), llama.cpp, ms | {heads} |"
    yield "| :-- | :-- | --: | --: |" + " --: |" * len(SIZES)
    for row in rows:
        cells = " | ".join(map(_times, row.ratios))
        yield f"| {row.model} | {row.weights} | {row.ours[0]:.2f} | {row.theirs[0]:.2f} | {cells} |"


def _load(series: Series) -> float:
    """Return how many processors other programs kept busy while a model was measured; servers do not count."""
    return other_load([row for row in series.records if row.error is None]) or 0.0


def _instructions(servers: Mapping[str, ServerFacts]) -> str:
    """Return llama.cpp's instruction sets and features that are on: `AVX2, FMA`."""
    facts = next(iter(servers.values()))["system"].partition(":")[2]
    pairs = [word.split("=") for word in facts.split("|") if "=" in word]
    return ", ".join(name.strip() for name, value in pairs if value.strip() != "0")


def _milliseconds(rows: Sequence[Record]) -> float:
    return 1e3 / tokens_per_second(rows)


def _times(ratio: Estimate) -> str:
    return f"{ratio.value:.2f}" if ratio.low is None else f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"


if __name__ == "__main__":
    main()
