"""Fine-tuning of a pair's model on the training rows of a task, with transformers' Trainer."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from specbench.config.construct import Table, construct
from specbench.errors import MissingAsset
from specbench.files import write
from specbench.models.loaded_pair import LoadedPair
from specbench.observer import Observer
from specbench.training.recipes import FinetuneRecipe
from specbench.training.texts import Text, Texts, split_of

HELP = "fine-tuning needs accelerate, which is not installed\n  help: pip install 'specbench[train]'"
IGNORED = -100  # a label without a loss
LABELS = "labels"


@dataclass(frozen=True)
class Finetuning:
    """A model to fine-tune: its role, the texts, the folder of the result, the seed, and the user's keys of the recipe.

    Training ends after `minutes`, if it is not 0.
    """

    loaded: LoadedPair
    role: str
    texts: Texts
    folder: Path
    seed: int = 0
    minutes: float = 0.0
    recipe: Table = field(default_factory=dict)


def finetune(job: Finetuning, observer: Observer) -> Table:
    """Fine-tune a model on the training split of its texts, and write it with its tokenizer into the folder.

    A call after an interruption resumes from the last checkpoint. Returns the report: the loss in nats per token on the test
    split before and after, and the number of steps and texts.

    Raises:
        MissingAsset: accelerate is not installed.
    """
    _require_accelerate()
    from transformers import Trainer, TrainingArguments  # slow to import
    from transformers.trainer_utils import get_last_checkpoint

    recipe = construct(FinetuneRecipe, job.recipe, "recipe")
    model = job.loaded.models[job.role].transformers().float().requires_grad_(True)
    examples = _Examples(job.loaded, model, recipe.most)
    splits: dict[str, list[Text]] = {"train": [], "validation": [], "test": []}
    for text in job.texts.texts:
        splits[split_of(text.number, job.seed)].append(text)
    checkpoints = job.folder / "checkpoints"
    arguments = TrainingArguments(
        output_dir=str(checkpoints), num_train_epochs=recipe.epochs, per_device_train_batch_size=recipe.batch,
        per_device_eval_batch_size=recipe.batch, learning_rate=recipe.rate, optim=recipe.optimizer,
        lr_scheduler_type="constant", seed=job.seed, save_steps=500, save_total_limit=1, report_to=[], disable_tqdm=True,
        use_cpu=job.loaded.device.type == "cpu", logging_strategy="no",
    )  # fmt: skip
    trainer = Trainer(
        model=model,
        args=arguments,
        data_collator=examples.batch,
        train_dataset=[*map(examples.of, splits["train"])],
        eval_dataset=[*map(examples.of, splits["test"])],
    )
    last = get_last_checkpoint(str(checkpoints)) if checkpoints.is_dir() else None
    before = trainer.evaluate()["eval_loss"] if last is None else None
    total = -(-len(splits["train"]) // recipe.batch) * max(int(recipe.epochs), 1)
    with observer.progress("fine-tuning", total) as advance:
        trainer.add_callback(_callback(advance, job.minutes))
        trainer.train(resume_from_checkpoint=last)
    after = trainer.evaluate()["eval_loss"]
    model.eval().requires_grad_(False)
    job.folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(job.folder)
    job.loaded.tokenizer.save_pretrained(job.folder)
    report = {
        **job.texts.about, "steps": trainer.state.global_step, "train_texts": len(splits["train"]),
        "test_texts": len(splits["test"]), "loss_before": before, "loss": after, "seed": job.seed,
    }  # fmt: skip
    write(job.folder / "report.json", json.dumps(report, indent=1) + "\n")
    return report


class _Examples:
    """Rows for the Trainer: the loss is on the answer only."""

    def __init__(self, loaded: LoadedPair, model: nn.Module, most: int) -> None:
        self.is_seq2seq, self.most, self.device = loaded.encoder_decoder, most, loaded.device
        self.pad = loaded.tokenizer.pad_token_id or 0

    def of(self, text: Text) -> dict[str, list[int]]:
        """Return the ids of a text with its labels."""
        if self.is_seq2seq:
            return {"input_ids": text.prompt[-self.most :], LABELS: text.rest[: self.most]}
        ids, labels = text.prompt + text.rest, [IGNORED] * len(text.prompt) + text.rest
        return {"input_ids": ids[-self.most :], LABELS: labels[-self.most :]}

    def batch(self, rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        """Pad rows to one length."""
        longest = {name: max(len(row[name]) for row in rows) for name in rows[0]}
        padding = {"input_ids": self.pad, LABELS: IGNORED}
        columns = {
            name: torch.tensor([row[name] + [padding[name]] * (longest[name] - len(row[name])) for row in rows])
            for name in rows[0]
        }
        lengths = torch.tensor([len(row["input_ids"]) for row in rows]).unsqueeze(1)
        return {**columns, "attention_mask": (torch.arange(longest["input_ids"]) < lengths).long()}


def _callback(advance: Callable[[], None], minutes: float) -> Any:
    """Return a callback that reports steps, and ends training when the time is up."""
    from transformers import TrainerCallback  # slow to import

    end = time.monotonic() + 60.0 * minutes if minutes else float("inf")

    class StepCallback(TrainerCallback):  # type: ignore[misc]  # its type is Any
        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            advance()
            if time.monotonic() > end:
                control.should_training_stop = True

    return StepCallback()


def _require_accelerate() -> None:
    if find_spec("accelerate") is None:
        raise MissingAsset(HELP)
