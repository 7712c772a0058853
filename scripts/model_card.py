"""Write the model card of the bundled family: scores, training and the cost of a forward. Run by `make card`.

Scores are greedy, in float32, on held-out rows of the synthetic tasks. They use the same tasks, decoding loop and scorers as
any run. Costs are decoding forwards of one token on this machine.
"""

import argparse
import json
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch

import specbench.tasks  # noqa: F401  (registers the tasks)
from scripts.sections import environment
from scripts.tiny_family import DOMAINS, PUBLISHED
from specbench.analysis.intervals import Estimate
from specbench.analysis.number_format import SCORE
from specbench.analysis.quality import score_estimate
from specbench.config.construct import construct
from specbench.config.options import Options
from specbench.config.pair import BUNDLED, PACKAGE, Pair
from specbench.config.presets import preset
from specbench.data.prompting import continuation, encode
from specbench.data.task import Data, Task
from specbench.data.templates import without
from specbench.decoding.loop import GenerationLimits, decode
from specbench.decoding.method import Method
from specbench.decoding.sampling import Sampler
from specbench.decoding.targets import Last, Mixture
from specbench.files import write
from specbench.machine.hardware import fingerprint
from specbench.methods.autoregressive import Autoregressive
from specbench.models.loaded_pair import LoadedPair
from specbench.models.loader import load
from specbench.models.resolve_models import Execution, resolve_models
from specbench.resolution.selection import read_task
from specbench.sandbox import Sandbox
from specbench.scoring import Scored

CARD = PACKAGE / "tiny" / "card.md"
RESULTS = Path("results/tiny-family.md")
DRAFTS = "tiny, drafts of little training"
PAIRS = ("tiny", DRAFTS, "tiny-t5")
ENSEMBLES = {"math + code": ("math", "code"), "target + math + code": ("target", "math", "code")}
VARIED = ("tiny-t5",)  # pairs whose models differ in strength by domain
Domains = dict[str, dict[str, Callable[[str], bool]]]
WORKERS = 2
TIMED = 20  # prompts whose forwards are timed


class Line(NamedTuple):
    """One model or ensemble: its score on each task and on each `task: domain`, and the milliseconds of a forward."""

    name: str
    scores: dict[str, Estimate | None]
    milliseconds: float | None


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the bundled family and write its card.")
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    jobs = [(name, model, args.prompts) for name in PAIRS for model in reversed(_methods(_pair(name)))]
    with ProcessPoolExecutor(WORKERS, multiprocessing.get_context("spawn")) as pool:
        scores = dict(zip(jobs, pool.map(_scores, *zip(*jobs, strict=True)), strict=True))
    families = []
    for name in PAIRS:  # timed with no other process running
        milliseconds = _milliseconds(name)
        lines = [
            Line(model, scores[name, model, args.prompts], milliseconds.get(model)) for model in _methods(_pair(name))
        ]
        families.append((name, lines))
    text = _card(families, args.prompts)
    write(CARD, text)
    write(args.out, f"{text}\n{environment()}\n")
    print(text)


def _pair(name: str) -> Pair:
    """Return a bundled pair, or the drafts that other bundled pairs use, with the tasks of `tiny`."""
    if name != DRAFTS:
        return construct(Pair, preset("pair", name).table, name)
    models = {stage: {"path": f"{BUNDLED}tiny/models/{stage}"} for stage in PUBLISHED if stage.startswith("draft-")}
    return construct(Pair, {"models": models, "defaults": preset("pair", "tiny").table["defaults"]}, name)


def _methods(pair: Pair) -> dict[str, Method]:
    """Return autoregressive decoding of every model and ensemble of a pair."""
    methods: dict[str, Method] = {role: Autoregressive(scorers=(role,), target=Last()) for role in pair.models}
    if set(pair.models) >= {"target", "math", "code"}:
        methods |= {name: Autoregressive(scorers=roles, target=Mixture()) for name, roles in ENSEMBLES.items()}
    return methods


def _load(name: str, roles: tuple[str, ...]) -> LoadedPair:
    base = preset("pair", "tiny").path.parent
    on = Execution(torch.device("cpu"), "float32")
    return load(resolve_models(_pair(name), roles, base, on), base, on.device)


def _scores(name: str, model: str, prompts: int) -> dict[str, Estimate | None]:
    """Return the headline score of a model or ensemble on each of the pair's tasks. Runs on one thread."""
    torch.set_num_threads(1)
    method, pair = _methods(_pair(name))[model], _pair(name)
    loaded = _load(name, method.roles())
    out: dict[str, Estimate | None] = {}
    for each in pair.defaults.tasks:
        _, task = read_task(each, pair, Options())
        out |= _score(method, loaded, task, task.data("synthetic").first(prompts), DOMAINS if name in VARIED else {})
    print(f"{name}: {model}", file=sys.stderr, flush=True)
    return out


def _milliseconds(name: str) -> dict[str, float]:
    """Return the mean milliseconds of a one-token forward of each model, over the first prompts of wmt."""
    pair, out = _pair(name), {}
    _, task = read_task("wmt", pair, Options())
    for role in pair.models:
        method, (count, seconds) = _methods(pair)[role], (0, 0.0)
        for _, _, models in _generate(method, _load(name, (role,)), task, task.data("synthetic").first(TIMED)):
            for session in models.sessions.values():
                forwards, spent = session.usage.by_fed.get(1, (0, 0.0))
                count, seconds = count + forwards, seconds + spent
        out[role] = 1e3 * seconds / count
    return out


def _generate(method: Method, loaded: LoadedPair, task: Task, data: Data) -> Iterator[tuple[Any, str, Any]]:
    """Yield (sample, text, sessions) for every prompt, decoded greedily."""
    for sample in data.samples:
        prompt, _ = encode(loaded.tokenizer, task, sample, [], loaded.window)
        models = loaded.open(prompt)
        limits = GenerationLimits(
            eos=loaded.eos,
            max_new_tokens=task.max_new_tokens,
            window=loaded.window,
            stop=task.stop,
            detokenize=lambda ids: loaded.tokenizer.decode(ids, skip_special_tokens=True),
        )
        with torch.inference_mode():
            out = decode(method, models, Sampler(temperature=0.0), limits)
        text = continuation(loaded.tokenizer, prompt, out.tokens, loaded.encoder_decoder)
        yield sample, without(task.stop, text), models


def _score(method: Method, loaded: LoadedPair, task: Task, data: Data, domains: Domains) -> dict[str, Estimate | None]:
    """Return the headline score of a method on a task, and on each of its domains as `task: domain`."""
    sandbox = Sandbox.find() if task.executes_code else None
    metric = next(each for each in task.metrics if each.name == task.headline)
    texts = [(sample, text) for sample, text, _ in _generate(method, loaded, task, data)]
    values = [Scored(task.score(sample, text, sandbox)[metric.name], sample.id, sample.group) for sample, text in texts]
    out = {task.name: score_estimate(values, metric.combine)}
    for domain, contains in domains.get(task.name, {}).items():
        inside = [value for value, (sample, _) in zip(values, texts, strict=True) if contains(sample.reference)]
        out[f"{task.name}: {domain}"] = score_estimate(inside, metric.combine)
    return out


def _card(families: list[tuple[str, list[Line]]], prompts: int) -> str:
    machine = fingerprint()
    parts = [
        "# The tiny family",
        "Trained by `make tiny` on the synthetic tasks alone (specbench/data/synthetic/, training split). Measured by `make"
        f" card` on {prompts} held-out rows per task, greedy, float32, with 95 % intervals over prompts. A forward"
        f" reads one token; it was timed on {machine['cpu']} with {machine['threads']} threads.",
    ]
    for name, lines in families:
        heads = [task for task in lines[0].scores if ":" not in task]
        measured = [f"{task} ({_headline(task)})" for task in heads]
        rows = [["model", *measured, "ms per forward"], [":--", *["--:"] * (len(heads) + 1)]]
        for line in lines:
            cost = "–" if line.milliseconds is None else f"{line.milliseconds:.1f}"
            rows.append([line.name, *(SCORE.text(line.scores[task]) for task in heads), cost])
        parts += [f"## {name}", _table(rows), *_better(lines), *_domains(lines)]
    stages = [["model", "parameters", "stages: tokens in steps, final answer loss"], [":--", "--:", ":--"]]
    for name in PAIRS:
        for role, spec in _pair(name).models.items():
            folder = PACKAGE / spec.path.removeprefix(BUNDLED)
            trained = json.loads((folder / "training.json").read_text())
            steps = (
                f"{s['stage']}: {s['tokens'] / 1e6:.1f}M in {s['steps']:,}, {s['answer_loss']:.3f}" for s in trained
            )
            stages.append([f"{name.partition(',')[0]} {role}", f"{_parameters(folder):,}", "; ".join(steps)])
    return "\n\n".join([*parts, "## Training", _table(stages), NOTE]) + "\n"


NOTE = """\
The shapes, learning rates and mixes of the stages are in scripts/tiny_family.py, and the generators of the tasks in
specbench/data/synthetic/. Retraining with the present code would not repeat this training exactly. The stage `words`
used an earlier tokenizer of 640 tokens; the embeddings of the present 1,024 tokens were copied from that stage, or
are the means of the embeddings of their pieces. The tokenizer was trained before the multiple-choice task had its
present form. The stages up to `settled`, `draft-core` and `middle-core` were trained on earlier forms of the
multiple-choice task, and on functions whose tests also accept a constant. The stages were chosen after looking at
results on the first rows of the test split, which are the rows that this card scores.

Prompts are held out, but parts of them occur in training. About a third of the test functions have the body of a training
function with another example. Nearly every multiple-choice question appears in training with its choices in another
order. Translations are held out by their English side, and 2 % of the training examples are German to English."""


def _better(lines: list[Line]) -> list[str]:
    """Return a line that names the tasks on which an ensemble scores above each of its members."""
    scores = {line.name: line.scores for line in lines}
    out = []
    for name, roles in ENSEMBLES.items():
        for task, found in scores.get(name, {}).items():
            members = [scores[role][task] for role in roles]
            if found and all(member and found.value > member.value for member in members):
                out.append(f"{name} on {task}")
    if not out:
        return ["No ensemble scored above each of its members on any task."] if set(scores) & set(ENSEMBLES) else []
    return [
        f"Ensembles that scored above each of their members (point estimates, intervals may overlap): {', '.join(out)}."
    ]


def _domains(lines: list[Line]) -> list[str]:
    """Return a table of the scores by domain, if there are any."""
    heads = [task for task in lines[0].scores if ":" in task]
    if not heads:
        return []
    rows = [["model", *heads], [":--", *["--:"] * len(heads)]]
    rows += [[line.name, *(SCORE.text(line.scores[head]) for head in heads)] for line in lines]
    return [
        "By domain (scripts/tiny_family.py). The draft's last stage has hardly any text of each task's second domain.",
        _table(rows),
    ]


def _headline(task: str) -> str:
    return Task.build(preset("task", task).table, task).headline


def _parameters(folder: Path) -> int:
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", "pt") as file:
        return sum(torch.Size(file.get_slice(key).get_shape()).numel() for key in file.keys())  # noqa: SIM118  (a safetensors file is not a mapping)


def _table(rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    main()
