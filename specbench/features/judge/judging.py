"""Comparisons of two methods' generations by a judge, stored in the run folder and repeatable without the models."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from specbench.config.construct import Table
from specbench.data.task import Data
from specbench.errors import ConfigError, hint
from specbench.features.judge.judges import Judge, Judgment
from specbench.files import read_with_checksum, write_with_checksum
from specbench.observer import Observer
from specbench.runs.run_folder import JUDGED, Judged, JudgedRow, read, require_texts

FLUSHED = 20  # comparisons between two writes of judged.json


@dataclass(frozen=True)
class JudgeRequest:
    """A judge's table, and the two methods to compare: `of` with `against`."""

    judge: Table
    of: str
    against: str

    @classmethod
    def of_table(cls, table: Table) -> "JudgeRequest":
        """Split a suite's table into the judge's own keys and the methods."""
        judge = {key: value for key, value in table.items() if key not in ("of", "against")}
        return cls(judge, str(table["of"]), str(table["against"]))


@dataclass(frozen=True)
class _Comparison:
    """Two continuations of a sample's prompt. `key` identifies the judge and all texts."""

    sample: str
    prompt: str  # the first sample with an equal prompt
    repeat: int
    text: str
    one: str
    two: str
    key: str


def judge_run(run: Path, data: Data, request: JudgeRequest, device: torch.device, observer: Observer) -> Judged:
    """Judge the generations of a run and write judged.json. Comparisons that it has already are not repeated.

    Comparisons are written while others are in progress, so that the same command resumes an interrupted one. Equal texts are
    ties. Comparisons by other judges and of other methods are kept.

    Raises:
        ConfigError: The run lacks a method or was imported without texts, or the judge's table is wrong.
        MissingAsset: The judge's model cannot be loaded, or its server does not answer.
    """
    require_texts(run)
    judge = _judge(json.dumps(request.judge), str(device))
    comparisons = list(_comparisons(run, data, request))
    stored = _stored_judgments(run)
    earlier = {row["key"]: row for judged in stored for row in judged["rows"]}
    others = [judged for judged in stored if _of(judged) != (request.judge, request.of, request.against)]
    rows = {comparison.key: earlier[comparison.key] for comparison in comparisons if comparison.key in earlier}
    missing = [comparison for comparison in comparisons if comparison.key not in rows]

    def current() -> Judged:
        done = [rows[comparison.key] for comparison in comparisons if comparison.key in rows]
        return _content_of(request, judge.label, len(comparisons), done, others)

    if not missing and stored and stored[1:] == others and stored[0]["rows"] == current()["rows"]:
        return current()
    try:
        with observer.progress(f"judging {run.name}", len(comparisons), len(rows)) as advance:
            for i, (comparison, judgment) in enumerate(_judgments(judge, missing), 1):
                rows[comparison.key] = _row(comparison, judgment)
                if i % FLUSHED == 0:
                    write_with_checksum(run / JUDGED, current())
                advance()
    finally:
        if rows or not stored:  # a judge that never answers hides no other
            write_with_checksum(run / JUDGED, current())
    return current()


def _content_of(
    request: JudgeRequest, label: str, comparisons: int, rows: list[JudgedRow], earlier: list[Judged]
) -> Judged:
    """Return the content of judged.json."""
    judged: Judged = {
        "judge": request.judge,
        "label": label,
        "of": request.of,
        "against": request.against,
        "comparisons": comparisons,
        "rows": rows,
    }
    if earlier:
        judged["earlier"] = earlier
    return judged


def methods_of(run: Path) -> list[str]:
    """Return the methods that a run has generations of, in their order."""
    return list(dict.fromkeys(record.method for record in read(run)))


def _comparisons(run: Path, data: Data, request: JudgeRequest) -> Iterator[_Comparison]:
    """Yield the pairs of generations on the same prompt and repeat."""
    methods = methods_of(run)
    for method in (request.of, request.against):
        if method not in methods:
            raise ConfigError(f"judge: no method '{method}' in {run.name}{hint(method, methods)}")
    prompts = {sample.id: sample.prompt for sample in data.samples}
    records = {record.key: record for record in read(run) if record.error is None}
    texts = {key: record.text for key, record in records.items()}
    for (method, sample, repeat), one in texts.items():
        two = texts.get((request.against, sample, repeat))
        if method == request.of and two is not None:
            if sample not in prompts:
                raise ConfigError(f"judge: the task has no sample '{sample}' any more; help: --data FILE")
            content = json.dumps([request.judge, sample, repeat, prompts[sample], one, two], sort_keys=True)
            key = hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:16]
            text, one, two = map(_well_formed, (prompts[sample], one, two))
            yield _Comparison(sample, records[method, sample, repeat].prompt, repeat, text, one, two, key)


def _judgments(judge: Judge, comparisons: Sequence[_Comparison]) -> Iterator[tuple[_Comparison, Judgment]]:
    """Yield (comparison, judgment) pairs in order, several judgments at a time if the judge allows it."""

    def judgment(comparison: _Comparison) -> Judgment:
        return (
            Judgment(0.5)
            if comparison.one == comparison.two
            else judge.compare(comparison.text, comparison.one, comparison.two)
        )

    with ThreadPoolExecutor(judge.parallel) as pool:
        for start in range(0, len(comparisons), FLUSHED):  # a few at a time, so that an interrupt ends soon
            few = comparisons[start : start + FLUSHED]
            yield from zip(few, pool.map(judgment, few), strict=True)


def _row(comparison: _Comparison, judgment: Judgment) -> JudgedRow:
    return {
        "sample": comparison.sample,
        "prompt": comparison.prompt,
        "repeat": comparison.repeat,
        "verdict": judgment.verdict,
        "unclear": judgment.unclear,
        "key": comparison.key,
        "exchanges": [
            {"prompt": exchange.prompt, "answer": _well_formed(exchange.answer)} for exchange in judgment.exchanges
        ],
        "equal": comparison.one == comparison.two,
    }


@cache
def _judge(table: str, device: str) -> Judge:
    """Return the judge of a table (as JSON), cached for all runs. Local models run on the device of the run."""
    keys = json.loads(table)
    local = {} if keys.get("name") == "endpoint" else {"device": device}
    return Judge.build({**local, **keys}, "judge")


def _stored_judgments(run: Path) -> list[Judged]:
    """Return what judges have found, the last one first; nothing if the file is missing or damaged."""
    try:
        stored = read_with_checksum(run / JUDGED, Judged) if (run / JUDGED).exists() else None
    except ConfigError:
        return []
    return [stored, *stored.pop("earlier", [])] if stored else []


def _of(judged: Judged) -> tuple[Table, str, str]:
    return judged["judge"], judged["of"], judged["against"]


def _well_formed(text: str) -> str:
    """Return a text without lone surrogates, which cannot be sent or stored."""
    return text.encode(errors="replace").decode()
