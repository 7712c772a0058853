"""HumanEval: functions completed from docstrings, scored by running tests (Chen et al. 2021).

Source: openai/openai_humaneval, split test, 164 rows. License: MIT. Synthetic: specbench/data/synthetic/functions.py.
Example row: {"task_id": "X/0", "prompt": "def f(x):\\n    \\"\\"\\"Return x doubled.\\"\\"\\"\\n", "entry_point": "f",
              "canonical_solution": "    return 2 * x\\n", "test": "def check(candidate):\\n    assert candidate(2) == 4"}
"""

import re
from dataclasses import dataclass
from typing import ClassVar, Literal

from specbench.data.rows import Row
from specbench.data.synthetic import SYNTHETIC_TASKS
from specbench.data.task import Hub, Sample, Task
from specbench.data.templates import ends_indented, fenced_blocks, filled, up_to, without
from specbench.errors import MissingAsset
from specbench.sandbox import ProgramLimits, Sandbox
from specbench.scoring import Metric, Score

SE_PAPER_CUTS = ("</s><s>", "\n\n\n", "\n\ndef")


@dataclass(frozen=True, kw_only=True)
class HumanEval(Task, name="humaneval"):
    """pass@k over a prompt's repeats. The prompt is used unchanged, with its trailing whitespace.

    The `standard` grader runs prompt + completion. Of a completion with fenced blocks of code, it runs the first block that
    defines the function, otherwise the first one. `se-paper` follows the authors of Speculative Ensemble: it truncates the
    completion at their stop strings, strips it and indents it by four spaces. Without a sandbox, generations are not scored.
    """

    version: ClassVar[str] = "3-A"
    hub: ClassVar[Hub] = Hub("openai/openai_humaneval", "openai_humaneval/{split}-00000-of-00001.parquet")
    published: ClassVar[int | None] = 164
    fields: ClassVar[dict[str, type]] = dict.fromkeys(("task_id", "prompt", "test", "entry_point"), str)
    synthetic = SYNTHETIC_TASKS["humaneval"]
    executes_code: ClassVar[bool] = True

    prompt: str = "{prompt}"
    k: tuple[int, ...] = (1,)
    timeout: float = 3.0  # seconds per program
    grader: Literal["standard", "se-paper"] = "standard"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.k or min(self.k) < 1:
            raise ValueError(f"k = {list(self.k)} must be at least 1 each")
        if self.timeout <= 0:
            raise ValueError(f"timeout = {self.timeout} must be above 0 seconds")

    def samples(self, rows: list[Row], source: str) -> list[Sample]:
        keys = ("prompt", "test", "entry_point")
        return [
            Sample(row["task_id"], filled(self.prompt, prompt=row["prompt"]), {key: row[key] for key in keys})
            for row in rows
        ]

    def stopped(self, text: str) -> str:
        """Return an output up to its first stop string; by the `standard` grader, not to one in a fenced block of code."""
        return (without if self.grader == "standard" else up_to)(self.stop, text)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        form = (
            f"grader:{self.grader}{'|code:text,fenced' if self.grader == 'standard' else ''}|timeout:{self.timeout:g}s"
        )
        return tuple(Metric(f"pass@{k}", f"pass@{k}|unbiased|{form}", f"pass@{k}") for k in self.k)

    def score(self, sample: Sample, text: str, sandbox: Sandbox | None = None) -> Score:
        if sandbox is None:
            return {}
        row, completion = sample.reference, text
        if self.grader == "se-paper":
            completion = "    " + up_to(SE_PAPER_CUTS, text).strip()
        else:
            completion = code_of(text, row["entry_point"])
        program, limits = f"{row['prompt']}{completion}\n", ProgramLimits(seconds=self.timeout)
        helpers = f"{row['prompt']}\n    pass\n"  # other definitions of the prompt, which the tests may use
        for last in (False, True):
            try:
                verdict = sandbox.check(program, row["test"], row["entry_point"], helpers, limits)
                break
            except (RuntimeError, OSError) as error:  # of the sandbox, perhaps because the machine is busy
                if last:
                    raise MissingAsset(f"the sandbox failed at {sample.id}: {error}; help: specbench score") from None
        return {f"pass@{k}": float(verdict.passed) for k in self.k}


def code_of(text: str, function: str) -> str:
    """Return what is run after the prompt: the text, or its fenced block of code.

    A block with the whole function replaces the prompt's. A block after indented code is an example of its use.
    """
    blocks = fenced_blocks(text)
    if not blocks:
        return text
    for _, _, block in blocks:
        if re.search(rf"^def {re.escape(function)}\b", block, re.MULTILINE):
            return f"    pass\n\n{block}"
    start, _, first = blocks[0]
    return text[:start] if ends_indented(text[:start]) else first
