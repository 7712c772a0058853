"""The training of each kind of head: its recipe, its rows, and the fit.

Also fine-tuning of a pair's model, with transformers' Trainer.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import nn

from specbench.config.construct import Table, construct
from specbench.config.pair import FEATURES, TAU, Answers, HeadKind
from specbench.decoding.session import AuxLayers
from specbench.errors import ConfigError, MissingAsset, hint
from specbench.files import write
from specbench.models.heads import Head
from specbench.models.heads.block_settings import default_aux_layers as default_aux_layers_of_block
from specbench.models.heads.classifiers import FEATURES as SUPPORTED_FEATURES
from specbench.models.heads.eagle3_settings import default_aux_layers
from specbench.models.loaded_pair import LoadedPair
from specbench.observer import Observer
from specbench.training import classifier_training as classifiers
from specbench.training import draft_head_training as draft_heads
from specbench.training import shards, state_rows
from specbench.training.recipes import (
    DSL_RECIPE,
    RECIPES,
    SPECDEC_RECIPE,
    Budget,
    DFlashRecipe,
    DraftHeadRecipe,
    DraftRollout,
    Eagle3Recipe,
    FinetuneRecipe,
    PrefixRollout,
    SprinterRecipe,
    keys_of,
)
from specbench.training.shards import Columns, Shards, size_plan, token_bytes, tokens_of
from specbench.training.texts import Text, Texts, Writing, split_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


T = TypeVar("T", bound="DataclassInstance")
ACCELERATE_HELP = "fine-tuning needs accelerate, which is not installed\n  help: pip install 'specbench[train]'"
IGNORED = -100  # a label without a loss
LABELS = "labels"


def check_recipe(kind: HeadKind, recipe: Table, features: str) -> None:
    """Raise ConfigError, with the nearest name, for an unknown key of a recipe, a wrong value or unknown features."""
    keys = keys_of(kind)
    for key in recipe:
        if key not in keys:
            raise ConfigError(f"--set recipe.{key}: the recipe of {kind.value} has no key '{key}'{hint(key, keys)}")
    for part in RECIPES[kind]:
        names = {entry.name for entry in fields(part)}
        construct(type(part), {key: value for key, value in recipe.items() if key in names}, "recipe")
    if features not in SUPPORTED_FEATURES:
        raise ConfigError(f"--features {features}{hint(features, SUPPORTED_FEATURES)}")


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How a head is trained.

    `answers` is the text after each prompt that it is trained and evaluated on. `features` and `tau` are SPRINTER's. `recipe`
    holds the user's keys.

    With `compare`, SPRINTER's verifier is also fitted with other features and values of tau, for its report.
    """

    base: str
    answers: Answers = Answers.outputs
    features: str = FEATURES
    tau: float = TAU
    seed: int = 0
    recipe: Table
    compare: bool = True


class Trained(NamedTuple):
    """A head, its report on texts that it was not trained on, and the texts whose outputs were collected."""

    head: Head
    report: Table
    texts: Texts


@dataclass(frozen=True, kw_only=True)
class Training:
    """The state that all kinds of training share: the loaded models, the texts and the folders."""

    settings: TrainingSettings
    loaded: LoadedPair
    texts: Texts
    folder: Path
    rows_folder: Path
    about: Table
    budget: Budget
    observer: Observer

    def train(self, kind: HeadKind) -> Trained:
        """Train a head of a kind on as many texts as the budget allows."""
        trainers: dict[HeadKind, Callable[[], Trained]] = {
            HeadKind.sprinter: self._sprinter,
            HeadKind.specdec: self._specdec,
            HeadKind.dsl: self._dsl,
        }
        return trainers[kind]() if kind in trainers else self._draft_head(kind)

    def _sprinter(self) -> Trained:
        base, features, tau, seed = (
            self.settings.base,
            self.settings.features,
            self.settings.tau,
            self.settings.seed,
        )
        rollout = self._built(PrefixRollout(), draft=base, answers=self.settings.answers, seed=seed)
        collected, texts = self._rows(lambda text: classifiers.sprinter_rows(self.loaded, text, rollout), rollout)
        rows = classifiers.balanced_by_kind(collected, seed)
        embedding = self.loaded.models[base].transformers().get_input_embeddings().weight.detach()
        shared = classifiers.VerifierFitting(
            embedding, self._built(SprinterRecipe(), seed=seed), seed, rollout.temperature == 1.0
        )
        thresholds = sorted({*classifiers.THRESHOLDS, tau}) if self.settings.compare else [tau]
        every = (
            tuple(dict.fromkeys((*classifiers.COMPARED_FEATURES, features))) if self.settings.compare else (features,)
        )
        with self.observer.progress("fitting verifiers", len(every) * len(thresholds)) as advance:
            heads = classifiers.compare_verifiers(rows, every, thresholds, shared, advance)
        head, report = heads[features, tau]
        reports = [entry for _, entry in heads.values()]
        classifiers.plot_roc([entry for entry in reports if entry["tau_train"] == tau], self.folder / "roc")
        compared = [{key: value for key, value in entry.items() if key != "curve"} for entry in reports]
        return Trained(head, {**report, "all": compared}, self._answered(texts, rollout.temperature))

    def _specdec(self) -> Trained:
        rollout = self._draft_rollout()
        rows, texts = self._rows(lambda text: classifiers.specdec_rows(self.loaded, text, rollout), rollout)
        recipe = self._built(SPECDEC_RECIPE, seed=self.settings.seed)
        head, report = classifiers.train_specdec(rows, recipe, self.settings.seed)
        return Trained(head, report, self._answered(texts, rollout.temperature))

    def _dsl(self) -> Trained:
        rollout = self._draft_rollout()
        rows, texts = self._rows(lambda text: classifiers.dsl_rows(self.loaded, text, rollout), rollout)
        recipe = self._built(DSL_RECIPE, seed=self.settings.seed)
        head, report = classifiers.train_dsl(rows, recipe, self.settings.seed)
        return Trained(head, report, self._answered(texts, rollout.temperature))

    def _draft_rollout(self) -> DraftRollout:
        settings = self.settings
        return self._built(DraftRollout(), draft=settings.base, answers=settings.answers, seed=settings.seed)

    def _answered(self, texts: Texts, temperature: float | None) -> Texts:
        """Return texts whose description says which answers were used, and the temperature at which tokens were drawn."""
        drawn: Table = {} if temperature is None else {"temperature": temperature}
        return Texts(texts.texts, {**texts.about, "answers": self.settings.answers.value, **drawn})

    def _draft_head(self, kind: HeadKind) -> Trained:
        base = self.settings.base
        (default,) = RECIPES[kind]
        assert isinstance(default, DraftHeadRecipe)
        recipe = self._built(default, seed=self.settings.seed)
        config = self.loaded.models[base].transformers().config
        aux_layers = _aux_layers(recipe, config.num_hidden_layers)
        training = draft_heads.HeadTraining(
            pair=self.loaded, base=base, recipe=recipe, folder=self.folder, about=self.about,
            budget=self.budget, observer=self.observer,
        )  # fmt: skip
        checkpoint = training.checkpoint()  # needs the texts of the interrupted training, and no others
        if checkpoint:
            self.observer.message(f"resuming after {checkpoint['done']} of {checkpoint['total']} steps")
        writing = Writing(base, recipe.most, recipe.temperature, self.settings.seed)
        is_written = self.settings.answers == Answers.outputs
        settings = writing if is_written else recipe.most
        if not checkpoint:
            missing = shards.missing(
                shards.folder_of(self.rows_folder, self._collection(settings, aux_layers)), self.texts.texts
            )
            self._plan_size(missing, recipe.most, is_written, (1 + len(aux_layers)) * config.hidden_size)
        files, texts = self._shards(
            lambda text: state_rows.rows_of(self.loaded, text, base, recipe.most, aux_layers),
            settings,
            lambda: checkpoint is not None or self.budget.ends_collecting(),
            aux_layers,
        )
        head, report = draft_heads.train(training, files, checkpoint)
        (self.folder / draft_heads.CHECKPOINT).unlink(missing_ok=True)
        return Trained(head, report, self._answered(texts, recipe.temperature if is_written else None))

    def _plan_size(self, missing: list[Text], most: int, generated: bool, width: int) -> None:
        """Report the size of the states of texts that are not on disk yet, of `width` numbers for each token.

        Raises ConfigError if there is no room for them.
        """
        window = self.loaded.window_of(self.loaded.models).length or most
        size = tokens_of(missing, min(most, window), generated) * token_bytes(width)
        if missing:
            self.observer.message(
                size_plan(len(missing), size, generated, self.budget.has_time_limit, self.rows_folder).line
            )

    def _collection(self, settings: object, aux_layers: AuxLayers = ()) -> Table:
        """Return what identifies collected rows. Heads that read the same layers share them."""
        about = {key: value for key, value in self.about.items() if key != "kind" or not aux_layers}
        return {**about, "settings": str(settings), **({"layers": list(aux_layers)} if aux_layers else {})}

    def _rows(self, make: Callable[[Text], Columns], settings: object) -> tuple[Columns, Texts]:
        """Collect rows as `_shards` does, and read them into memory."""
        files, texts = self._shards(make, settings)
        return files.rows(), texts

    def _shards(
        self,
        make: Callable[[Text], Columns],
        settings: object,
        ends: Callable[[], bool] | None = None,
        aux_layers: AuxLayers = (),
    ) -> tuple[Shards, Texts]:
        """Collect the rows of texts, under the head's folder, until `ends` returns true; by default for half of the budget.

        With settings of type `Writing`, the outputs of a model replace the reference answers first.

        Raises ConfigError if there are none.
        """
        count = len(self.texts.texts)
        outputs = "reference answers" if self.settings.answers == Answers.reference else "outputs"
        with self.observer.progress(f"collecting {outputs}", count) as advance:
            ends = ends or self.budget.ends_collecting

            def collect(texts: Sequence[Text]) -> Iterable[Columns]:
                answered = (
                    settings.with_generated_answers(self.loaded, texts) if isinstance(settings, Writing) else texts
                )
                return map(make, answered)

            about = self._collection(settings, aux_layers)
            files = shards.collected(self.rows_folder, self.texts.texts, collect, about, advance, ends)
        if not files.paths:
            raise ConfigError("no training rows were collected; help: more texts (--limit), or another task (-t)")
        if files.texts < count:
            self.observer.message(f"training on {files.texts} of {count} texts; a larger --minutes uses more")
        texts = self.texts.first(files.texts)
        return files, Texts(texts.texts, {**texts.about, "available": count})

    def _built(self, start: T, **more: object) -> T:
        """Return a recipe or a rollout from `start`, with the user's keys that it has."""
        defaults = {field.name: getattr(start, field.name) for field in fields(start)}
        changes = {key: value for key, value in self.settings.recipe.items() if key in defaults}
        return construct(type(start), {**defaults, **more, **changes}, "recipe")


def _aux_layers(recipe: DraftHeadRecipe, layers: int) -> AuxLayers:
    """Return the layers whose inputs a head reads, of a base of `layers` layers; empty for a head that reads features."""
    if isinstance(recipe, DFlashRecipe):
        return recipe.layers or default_aux_layers_of_block(layers, recipe.depth)
    return recipe.layers or default_aux_layers(layers) if isinstance(recipe, Eagle3Recipe) else ()


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
    from transformers.trainer_utils import get_last_checkpoint  # slow to import

    recipe = construct(FinetuneRecipe, job.recipe, "recipe")
    model = job.loaded.models[job.role].transformers().float().requires_grad_(True)
    splits: dict[str, list[Text]] = {"train": [], "validation": [], "test": []}
    for text in job.texts.texts:
        splits[split_of(text.number, job.seed)].append(text)
    checkpoints = job.folder / "checkpoints"
    trainer = _trainer(job, recipe, model, splits, checkpoints)
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


def _trainer(
    job: Finetuning, recipe: FinetuneRecipe, model: nn.Module, splits: Mapping[str, list[Text]], checkpoints: Path
) -> Any:
    """Return transformers' Trainer of a model on the texts of the splits."""
    from transformers import PrinterCallback, Trainer, TrainingArguments  # slow to import

    examples = _Examples(job.loaded, model, recipe.most)
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
    trainer.remove_callback(PrinterCallback)  # prints dictionaries
    return trainer


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
        raise MissingAsset(ACCELERATE_HELP)
