"""Our decoding against transformers' own, side by side in one run: `make bench`.

The same loaded models, prompts, greedy tokens and fixed length; the stopwatch is around the whole call on either side, opened
sessions and prefill included. Ours: `ar` and `sd`. Theirs: `generate`, and assisted generation at the same fixed draft
length. The order rotates from prompt to prompt.
"""

import argparse
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch

from specbench.decode import Generation, Limits, decode
from specbench.hardware import fingerprint
from specbench.method import Method
from specbench.methods.autoregressive import Autoregressive
from specbench.methods.speculative import Speculative
from specbench.models import LoadedPair, find, load
from specbench.pair import Pair
from specbench.presets import preset
from specbench.proposers import DraftModel
from specbench.records import Record
from specbench.registry import construct
from specbench.report.metrics import Estimate, speedup
from specbench.sampling import Sampler
from specbench.targets import Last
from specbench.twins import TWINS

TOKENS = 96
WANTED = {"ar": 1.0, "sd": 1.15}  # how fast ours must be, as multiples of transformers
MOST_OUTSIDE = {"ar": 0.08, "sd": 0.12}  # share of decoding time outside model forwards
THEIRS = {"ar": "transformers generate", "sd": "transformers assisted generation"}


def ours(method: Method, pair: LoadedPair, ids: list[int]) -> Generation:
    return decode(method, pair.open(ids), Sampler(temperature=0.0), Limits(eos=frozenset(), max_new_tokens=TOKENS))


def theirs(pair: LoadedPair, ids: list[int], gamma: int | None) -> Generation:
    """transformers' greedy tokens; with gamma, by assisted generation with the draft. No EOS on either side."""
    target, more = pair.models["target"], {}
    if gamma is not None:
        draft = pair.models["draft"]
        draft.generation_config.num_assistant_tokens = gamma
        draft.generation_config.num_assistant_tokens_schedule = "constant"
        draft.generation_config.assistant_confidence_threshold = 0.0
        draft.generation_config.eos_token_id = None
        more = {"assistant_model": draft}
    fed = torch.tensor([ids])
    out = target.generate(
        fed, attention_mask=torch.ones_like(fed), max_new_tokens=TOKENS, do_sample=False, eos_token_id=None, **more
    )
    return Generation(tokens=out[0, len(ids) :].tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare with transformers on the tiny pair.")
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--gamma", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("results/cpu-peers.md"))
    args = parser.parse_args()

    found_pair, cpu = preset("pair", "tiny"), torch.device("cpu")
    base = found_pair.path.parent
    models = find(construct(Pair, found_pair.table, "tiny"), ("draft", "target"), base, cpu, "float32")
    pair = load(models, base, cpu)
    ar = Autoregressive(scorers=("target",), target=Last())
    sd = Speculative(proposer=DraftModel(model="draft", gamma=args.gamma), scorers=("target",), target=Last())
    arms: dict[str, Callable[[list[int]], Generation]] = {
        "ar": lambda ids: ours(ar, pair, ids),
        THEIRS["ar"]: lambda ids: theirs(pair, ids, None),
        "sd": lambda ids: ours(sd, pair, ids),
        THEIRS["sd"]: lambda ids: theirs(pair, ids, args.gamma),
    }
    records, outside = _race(arms, pair, args.prompts, args.repeats)
    text = _page(records, outside, args.gamma)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(text, encoding="utf-8")
    print(text)


def _race(
    arms: dict[str, Callable[[list[int]], Generation]], pair: LoadedPair, prompts: int, repeats: int
) -> tuple[dict[str, list[Record]], dict[str, float]]:
    """Whole-call seconds of every arm, and our arms' shares of decoding time outside forwards."""
    twin = TWINS["gsm8k"]
    asked = (twin.prompt(row) for row in itertools.islice(twin.rows("test", seed=2), prompts))
    questions = [pair.tokenizer(text)["input_ids"] for text in asked]
    records: dict[str, list[Record]] = {name: [] for name in arms}
    inside, clock = dict.fromkeys(WANTED, 0.0), dict.fromkeys(WANTED, 0.0)
    for run in arms.values():
        run(questions[0])  # warm-up
    names = list(arms)
    for repeat in range(repeats):
        for i, ids in enumerate(questions):
            for name in names[i % 4 :] + names[: i % 4]:
                begin = time.perf_counter()
                out = arms[name](ids)
                seconds = time.perf_counter() - begin
                records[name].append(
                    Record(method=name, sample=str(i), repeat=repeat, seed=0, order=len(records[name]),
                           tokens=out.tokens, decode_seconds=seconds, prefill_seconds=0.0)
                )  # fmt: skip
                if name in WANTED:
                    clock[name] += out.decode_seconds
                    inside[name] += out.forward_seconds
        print(f"repeat {repeat + 1}/{repeats}", flush=True)
    return records, {name: 1.0 - inside[name] / clock[name] for name in WANTED}


def _page(records: dict[str, list[Record]], outside: dict[str, float], gamma: int) -> str:
    prompts, env = len({r.sample for r in records["ar"]}), fingerprint()
    lines = [
        "# specbench against transformers on a CPU",
        "",
        f"Tiny pair, float32, greedy, {TOKENS} new tokens, {prompts} synthetic prompts x"
        f" {len(records['ar']) // prompts} repeats, draft length {gamma}, the four interleaved in one process. Whole calls,"
        " prefill included; intervals are 95 %, bootstrapped over prompts. Made by `make bench`.",
        "",
        "| ours | theirs | ms a token, ours | theirs | ours is faster by | wanted | same tokens |",
        "| :-- | :-- | --: | --: | --: | --: | --: |",
    ]
    for name, wanted in WANTED.items():
        mine, other = records[name], records[THEIRS[name]]
        ratio: Estimate = speedup(mine, other)
        same = sum(a.tokens == b.tokens for a, b in zip(mine, other, strict=True)) / len(mine)
        lines.append(
            f"| {name} | {THEIRS[name]} | {_ms(mine):.2f} | {_ms(other):.2f} |"
            f" {ratio.value:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}] | {wanted:.2f}x | {same:.0%} |"
        )
    own = speedup(records["sd"], records["ar"])
    lines += [
        "",
        "| ours | decoding time outside model forwards | at most |",
        "| :-- | --: | --: |",
        *(f"| {name} | {share:.1%} | {MOST_OUTSIDE[name]:.0%} |" for name, share in outside.items()),
        "",
        f"Our sd over our ar: {own.value:.2f}x [{own.low:.2f}, {own.high:.2f}].",
        "",
        f"`{json.dumps({k: env[k] for k in ('cpu', 'cores', 'threads', 'python', 'packages', 'git')})}`",
    ]
    return "\n".join(lines) + "\n"


def _ms(rows: list[Record]) -> float:
    return 1e3 * sum(r.decode_seconds or 0.0 for r in rows) / sum(len(r.tokens) for r in rows)


if __name__ == "__main__":
    main()
