"""Measure a real model on a CPU: writes results/smollm2.md. Run by `make smollm2 ARGS="--gguf FILE --data FOLDER"`.

The model is SmolLM2-135M-Instruct (Apache-2.0), from a GGUF of 4-bit weights, which transformers reads and dequantizes.
The script writes it as an ordinary checkpoint, trains an EAGLE head on the model's own continuations, and measures. Only the
page is committed. Needs the package gguf.
"""

import argparse
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from specbench.runs.run_folder import runs_in

PAGE = Path("results/smollm2.md")
PAIR = """description = "SmolLM2-135M-Instruct, and its 4-bit copy as a middle model"

[models.middle]
path = "model"
quantization = "int4"

[models.target]
path = "model"

[heads.eagle]
base = "middle"
path = "head"

[heads.eagle-target]
base = "target"
path = "head"

[defaults]
tasks = ["gsm8k", "humaneval", "spec-bench"]

[defaults.task.gsm8k]
shots = 0
"""
TRAINED = 300  # GSM8K's training rows whose continuations the head is trained on
PROMPTS = {"gsm8k": "gsm8k/test.jsonl", "humaneval": "humaneval/test.jsonl", "spec-bench": "spec_bench/question.jsonl"}
PROBE = "Tom has 1234 apples,\n\n  and 56.7 pears; Zoë's café: x_1 += 10**9 // 7\t# 3rd"
INTRODUCTION = """# SmolLM2-135M-Instruct on a CPU

A real model: SmolLM2-135M-Instruct (Apache-2.0), 30 layers of width 576, with its chat template, on real prompts. Its source
is a GGUF of 4-bit weights (Q4_1), which transformers dequantizes to float32. Scores are therefore those of a quantized model,
and not comparable with published ones. The middle model is its int4 copy: a model that was quantized twice. The EAGLE head
was trained on the continuations that the model wrote for {trained} training rows of GSM8K, not on HumanEval or Spec-Bench.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure SmolLM2-135M-Instruct on a CPU.")
    parser.add_argument("--gguf", type=Path, required=True, help="SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--data", type=Path, required=True, help="folder of the tasks' JSONL files")
    parser.add_argument(
        "--work", type=Path, default=Path("build/smollm2"), help="folder of the model, the head and the runs"
    )
    parser.add_argument("-n", type=int, default=10, help="prompts per task; of Spec-Bench conversations")
    parser.add_argument("--tasks", nargs="+", choices=PROMPTS, default=list(PROMPTS))
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(args.work / "runs", ignore_errors=True)
    pair = args.work / "smollm2.toml"
    pair.write_text(PAIR, encoding="utf-8")
    tokens = converted(args.gguf, args.work / "model")
    commands = [] if (args.work / "head" / "config.json").exists() else [training(pair, args)]
    commands += [measuring(pair, task, args.data / PROMPTS[task], args) for task in args.tasks]
    profile = [
        "profile", "-p", str(pair), "-t", "gsm8k", "--data", str(args.data / PROMPTS["gsm8k"]), "-n", "4",
        "-o", str(args.work / "runs"),
    ]  # fmt: skip
    for each in commands:
        specbench(each)
    prices = specbench(profile, shown=True)
    advice = [
        "advise", "-p", str(pair), "-t", "gsm8k", "--data", str(args.data / PROMPTS["gsm8k"]), "-n", "24", "--repeats", "1",
        "--max-new-tokens", "96", "--minutes", "8", "-o", str(args.work / "advice"),
    ]  # fmt: skip
    advised = specbench(advice, shown=True)
    runs = [str(run) for run in runs_in(args.work / "runs") if "polybasic" in run.name and "under" not in run.name]
    tables = specbench(["report", *runs, "-f", "md"], shown=True)
    listed = [training(pair, args), *commands[-len(args.tasks) :], profile, advice]
    PAGE.write_text(page(args, tokens, listed, (tables, prices, advised)), encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))


def converted(gguf: Path, out: Path) -> str:
    """Write the GGUF's model and tokenizer as a checkpoint, and return a sentence that compares the tokenizers' data."""
    import torch
    from gguf import GGUFReader
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    if not out.exists():
        model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
        del model.config.quantization_config
        model.hf_quantizer, model.is_quantized = None, False
        model.save_pretrained(out)
        tokenizer.save_pretrained(out)
    fields = GGUFReader(gguf).fields
    words = fields["tokenizer.ggml.tokens"].contents()
    equal = [tokenizer.convert_ids_to_tokens(i) for i in range(len(words))] == words
    pieces = tokenizer.tokenize(PROBE)
    digits = all(len(piece.lstrip("Ġ")) == 1 for piece in pieces if any(c.isdigit() for c in piece))
    whole = tokenizer.decode(tokenizer.encode(PROBE)) == PROBE
    kind = fields["tokenizer.ggml.pre"].contents()
    assert equal and digits and whole, (equal, digits, whole, pieces)
    return (
        f"The tokenizer that transformers builds from the GGUF has the same {len(words)} tokens at the same ids as the GGUF's"
        f" list. It splits numbers into single digits, as the GGUF's pre-tokenizer `{kind}` does. It reproduces a text with"
        " digits, code and accents byte for byte."
    )


def training(pair: Path, args: argparse.Namespace) -> list[str]:
    """Return the command that trains the head."""
    return [
        "train", "eagle", "-p", str(pair), "-t", "gsm8k", "--data", str(args.data / "gsm8k/train.jsonl"), "-n", str(TRAINED),
        "--base", "target", "--minutes", "0", "--trial", "0", "-s", "recipe.epochs=12", "-s", "task.max_new_tokens=160",
        "-o", str(args.work / "head"),
    ]  # fmt: skip


def measuring(pair: Path, task: str, data: Path, args: argparse.Namespace) -> list[str]:
    """Return the command that measures one task."""
    return [
        "run", "-p", str(pair), "-m", "pld,eagle,polybasic,hf-generate", "-t", task, "--data", str(data), "-n", str(args.n),
        "--repeats", "3", "--max-new-tokens", "128", "--allow-code-execution", "-o", str(args.work / "runs"),
    ]  # fmt: skip


def specbench(words: Sequence[str], shown: bool = False) -> str:
    """Run a command; return its output if it is shown on the page."""
    print(f"$ specbench {shlex.join(words)}", flush=True)
    command = [str(Path(sys.executable).with_name("specbench")), *words]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE if shown else None, text=True)
    return done.stdout or ""


def page(
    args: argparse.Namespace, tokens: str, commands: Sequence[Sequence[str]], outputs: tuple[str, str, str]
) -> str:
    """Return the page as Markdown, from the outputs of `report`, `profile` and `advise`, without paths of this machine."""
    texts = ["\n".join(f"specbench {shlex.join(words)}" for words in commands), *outputs]
    for path, word in ((str(args.data), "DATA"), (str(args.work), "WORK")):
        texts = [text.replace(path, word) for text in texts]
    listed, tables, prices, advised = (text.strip() for text in texts)
    sections = [
        INTRODUCTION.format(trained=TRAINED), tokens,
        f"Made by `make smollm2`, which runs these commands:\n\n```\n{listed}\n```",
        "## Speed and quality", tables, "## Prices of forwards", f"```text\n{prices}\n```", "## Advice",
        f"```text\n{advised}\n```",
    ]  # fmt: skip
    return "\n\n".join(sections) + "\n"


if __name__ == "__main__":
    main()
