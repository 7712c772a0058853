"""`make paper-specs`: decode every run of every paper's suite with toy models, and write results/paper-specs.md.

The models have the papers' architectures at toy width, with random weights. Each run decodes two prompts of synthetic data,
or of invented rows where a task has none. It shows that every run can be planned, decoded and scored. It measures nothing.
"""

import argparse
import json
import re
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path

from scripts.sections import environment
from specbench.config.construct import Table
from specbench.config.options import Options
from specbench.config.presets import architecture_of, preset
from specbench.config.request import Access
from specbench.data.rows import Row
from specbench.data.task import Task
from specbench.experiment.loaded_models import LoadedModels
from specbench.experiment.pipeline import MeasureOptions, measure
from specbench.features.suites.grid import GridPart, resolve_grid
from specbench.features.suites.suite import TINY, GridLine, Suite, read_suite, suites
from specbench.observer import Observer
from specbench.resolution.selection import read_pair
from specbench.vocabulary import SandboxKind

RESULT = Path(__file__).parents[1] / "results" / "paper-specs.md"
VOCABULARY = 1200  # at least the tokenizer's 1,024
WIDTHS: dict[str, Table] = {  # keys of each architecture, by model type
    "llama": {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "vocab_size": VOCABULARY,
    },
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": VOCABULARY},
    "gpt_neo": {
        "hidden_size": 32, "num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]],
        "vocab_size": VOCABULARY,
    },
    "opt": {
        "hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "vocab_size": VOCABULARY,
    },
    "t5": {
        "d_model": 32, "d_ff": 64, "d_kv": 16, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 2,
        "vocab_size": VOCABULARY,
    },
}  # fmt: skip
WIDTHS |= {
    "qwen2": WIDTHS["llama"], "mt5": WIDTHS["t5"],
    "qwen3": WIDTHS["llama"] | {"num_hidden_layers": 9, "head_dim": 16},  # enough for heads that read five layers
}  # fmt: skip
TEXT = "The committee met on Monday, and its members agreed to publish the report before the end of the month. " * 4
ROWS: dict[str, list[Row]] = {  # of tasks without synthetic data
    "wiki-summary": [{"summary": TEXT, "full_text": TEXT}] * 2,
    "lm1b": [{"text": TEXT}] * 2,
    "spec-bench": [
        {"question_id": 1, "category": "writing", "turns": ["Write a haiku.", "Write another one."]},
        {"question_id": 2, "category": "qa", "turns": ["Name a river."]},
    ],
    "gsm8k:boxed": [{"question": TEXT, "answer": "#### 7"}] * 2,
    "math500": [{"problem": TEXT, "answer": "7", "subject": "Algebra"}] * 2,
    "aime25": [{"problem": TEXT, "answer": "7"}] * 2,
    "mbpp": [{"prompt": TEXT, "test_list": ["assert f(1) == 1"]}] * 2,
    "humaneval:chat": [{"prompt": "def f(x):\n"}] * 2,
    "livecodebench": [{"question_content": TEXT, "starter_code": "", "difficulty": "easy"}] * 2,
    "mt-bench": [{"prompt": [TEXT, "Shorter."], "category": "writing"}] * 2,
    "alpaca": [{"instruction": TEXT, "input": ""}] * 2,
    "arena-hard": [{"prompt": TEXT, "category": "creative_writing"}] * 2,
}


@dataclass
class Walked:
    """What was decoded of a suite, and what failed."""

    suite: str
    runs: int = 0
    generations: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)


def toy_options(pairs: Iterable[str], folder: Path) -> Table:
    """Return options of `read_suite` that give every model of these pairs a toy width, and every task short data."""
    overrides: list[tuple[str, object]] = [("pair.weights", "dummy")]
    for name in dict.fromkeys(pairs):
        found, pair = read_pair(name, Options())
        for role, spec in pair.models.items():
            kind = str(architecture_of(spec, found.path.parent)["model_type"])
            overrides.append((f"pair.{name}.models.{role}.config", WIDTHS[kind]))
    return {
        "overrides": tuple(overrides), "data": (("", "synthetic"), *_files(folder)), "limit": 2, "repeats": 1,
        "max_new_tokens": 6, "device": "cpu",
    }  # fmt: skip


def _files(folder: Path) -> Iterator[tuple[str, str]]:
    """Write the invented rows. Yields each task with its file."""
    for task, rows in ROWS.items():
        path = folder / f"{task.replace(':', '-')}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        yield task, str(path)


def toy_suite(name: str, folder: Path) -> Suite:
    """Return a suite with toy models and short data."""
    pairs = [pair for _, pair, _ in read_suite(name).parts()]
    return replace(read_suite(name, **toy_options(pairs, folder)), judge={})


def walk(suite: Suite, folder: Path) -> Walked:
    """Decode and score every part of a suite."""
    walked, begin = Walked(suite.name), time.perf_counter()
    for part in resolve_grid(suite, folder, SandboxKind.auto).parts:
        if part.plan is None:
            walked.failures.append(f"{part.key}: {part.invalid or part.missing}")
            continue
        try:
            _decode(part, walked)
        except Exception as error:  # the other parts are still walked
            walked.failures.append(f"{part.key}: {type(error).__name__}: {error}")
    walked.seconds = time.perf_counter() - begin
    return walked


def _decode(part: GridPart, walked: Walked) -> None:
    assert part.plan
    steps = MeasureOptions(access=Access(fresh=True), sandbox=part.sandbox)
    models = LoadedModels()
    for run in part.plan.runs:
        results = measure(part.plan, [run], models, steps, Observer())
        (summary,) = results.summaries
        if results.unscored:
            raise results.unscored
        walked.runs += 1
        walked.generations += sum(row.generations for row in summary.methods)
        walked.failures += [f"{run.folder.name}: {row.first_error}" for row in summary.methods if row.first_error]


def covering(names: Sequence[str], folder: Path) -> list[Suite]:
    """Return small suites that cover every method, architecture and task of some suites once."""
    seen: set[str] = set()
    found: dict[str, list[GridLine]] = defaultdict(list)
    originals = {name: toy_suite(name, folder) for name in names}
    for name, suite in originals.items():
        for line, pair, task in suite.parts():
            preset_of_pair, models = read_pair(pair, line.options)
            kinds = {
                str(architecture_of(spec, preset_of_pair.path.parent)["model_type"]) for spec in models.models.values()
            }
            family = Task.members[str(preset("task", task).table["name"])].name
            new = {*line.methods, *kinds, family} - seen
            if new:
                seen |= new
                found[name].append(_first_values(replace(line, pairs=(pair,), tasks=(task,)), new))
    return [replace(originals[name], grid=tuple(lines)) for name, lines in found.items()]


def _first_values(line: GridLine, new: set[str]) -> GridLine:
    """Return a line with its new methods, or its first one, and the first value of every sweep."""
    methods = tuple(name for name in line.methods if name in new) or line.methods[:1]
    over = tuple((key, values[:1]) for key, values in line.options.over if key.partition(".")[0] in methods)
    return replace(line, methods=methods, options=replace(line.options, over=over))


def report(walked: Sequence[Walked], earlier: str = "") -> str:
    """Return the results as Markdown, with the rows and failures of other suites from an earlier page."""
    rows = {row.split(" ")[1]: row for row in earlier.splitlines() if re.match(r"\| [\w-]+ \| \d", row)}
    rows |= {
        each.suite: f"| {each.suite} | {each.runs} | {each.generations} | {len(each.failures)} | {each.seconds:.0f} |"
        for each in walked
    }
    lines = [
        "# Every run of the papers' suites, with toy models",
        "`make paper-specs` decodes two prompts of every run of every suite. The models have the papers' architectures at toy"
        " width, and random weights; SPRINTER's and EAGLE's heads are random too. The data is synthetic or invented. This"
        " shows that every run can be planned, decoded and scored. No number here is a result of a paper.",
        "| suite | runs | generations | failures | seconds |\n| :-- | --: | --: | --: | --: |\n"
        + "\n".join(rows[name] for name in sorted(rows)),
    ]
    failed = {each.suite: [" ".join(text.split()) for text in each.failures] for each in walked}
    others = [each for each in re.findall(r"^- ([\w-]+): (.*)$", earlier, re.M) if each[0] not in failed]
    every = [*others, *((suite, text) for suite, texts in failed.items() for text in texts)]
    failures = [f"- {suite}: {text}" for suite, text in sorted(every, key=itemgetter(0))]
    return "\n\n".join([*lines, *(["\n".join(failures)] if failures else []), environment(is_timed=False)]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", help="suites whose rows to replace; default: all, those of every paper")
    names = parser.parse_args().suites
    every = names or [name for name in suites() if not name.endswith(TINY) and name + TINY in suites()]
    walked = []
    with tempfile.TemporaryDirectory() as folder:
        for name in every:
            walked.append(walk(toy_suite(name, Path(folder)), Path(folder)))
            last = walked[-1]
            print(f"{name}: {last.runs} runs, {len(last.failures)} failures, {last.seconds:.0f} s", flush=True)
            for text in last.failures:
                print(f"  {text}", flush=True)
    earlier = RESULT.read_text(encoding="utf-8") if names else ""
    RESULT.write_text(report(walked, earlier), encoding="utf-8")
    sys.exit(any(each.failures for each in walked))


if __name__ == "__main__":
    main()
