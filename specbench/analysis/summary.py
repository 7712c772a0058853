"""A run folder as one dictionary: per method its speeds, what explains them, what theory predicted, and its quality."""

import hashlib
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from specbench.analysis import metrics as m
from specbench.analysis import speculation as d
from specbench.analysis.predictions import predictions
from specbench.analysis.quality import groups_of, quality, scores_of
from specbench.config.construct import Table
from specbench.errors import ConfigError
from specbench.files import read_sealed, write_sealed
from specbench.machine.hardware import Environment
from specbench.runs.record import Record
from specbench.runs.run_folder import CONFIG, ENVIRONMENT, MANIFEST, SAMPLES, SCORES, SUMMARY, load, spec_of
from specbench.runs.run_spec import MethodSpec, RunSpec

MUCH = 32 << 20  # bytes of records that are worth another process
END = 1 << 16  # bytes of a file's beginning and end that tell it from another
PLAIN = "sd"  # speculative decoding, which adaptive lengths and SPRINTER are held against


def summary_of(folder: Path) -> dict[str, Any]:
    """The summary that lies in a run folder, where it is of these records, these scores and this code; else a new one."""
    path = folder / SUMMARY
    if path.exists():
        known = _kept(path)
        if known.get("stamp") == stamp(folder):
            return known | {"folder": str(folder), "run": folder.name}
    return summarise(folder)


def save_summary(folder: Path, summary: dict[str, Any]) -> None:
    """Keep a run folder's summary in the folder."""
    write_sealed(folder / SUMMARY, summary, indent=1)


def _kept(path: Path) -> dict[str, Any]:
    """A summary that was written earlier; nothing where it is damaged, since it can be made again."""
    try:
        return read_sealed(path, dict[str, Any])
    except ConfigError:
        return {}


def summaries_of(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """The summaries of run folders, several at a time where there is much to read."""
    if len(folders) < 2 or sum((folder / SAMPLES).stat().st_size for folder in folders if _has(folder)) < MUCH:
        return [summary_of(folder) for folder in folders]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:  # what torch holds is not to be forked
        return list(pool.map(summary_of, folders))


def _has(folder: Path) -> bool:
    return (folder / SAMPLES).exists()


def stamp(folder: Path) -> str:
    """What a summary depends on: the run's files, by their sizes, times and ends, and the code that summarises."""
    digest = hashlib.sha256(_code().encode())
    for path in (folder / name for name in (SAMPLES, SCORES, CONFIG, ENVIRONMENT, MANIFEST)):
        if path.exists():
            size = path.stat().st_size
            digest.update(str(path.stat().st_mtime_ns).encode())
            with path.open("rb") as file:
                digest.update(f"{path.name}:{size}".encode() + file.read(END))
                file.seek(max(size - END, 0))
                digest.update(file.read())
    return digest.hexdigest()[:16]


@cache
def _code() -> str:
    """Of the sources whose change may change a summary."""
    package = Path(__file__).parents[1]
    sources = sorted(path for part in ("analysis", "report", "scoring") for path in (package / part).rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()


def summarise(folder: Path) -> dict[str, Any]:
    """The summary of a run folder, complete or not. Raises ConfigError where the folder holds no run."""
    if not (folder / CONFIG).exists() or not (folder / SAMPLES).exists():
        raise ConfigError(f"{folder} holds no run (no run.toml and samples.jsonl); help: specbench run")
    spec = spec_of(folder)
    environment = read_sealed(folder / ENVIRONMENT, Environment)
    recorded, scores = load(folder), scores_of(folder)
    records = recorded.records
    return {
        "schema": 1,
        "stamp": stamp(folder),
        "run": folder.name,
        "folder": str(folder),
        "pair": spec.pair.name,
        "models": {role: _but_none(each.identity) for role, each in spec.pair.models.items()},
        "task": spec.task.label,
        "task_options": spec.task.options,
        "data": asdict(spec.task.data),
        "decoding": asdict(spec.decoding),
        "engine": {"name": spec.engine, "device": spec.device},
        "made_up": spec.pair.simulated,
        "heads": {name: asdict(each) for name, each in spec.pair.heads.items()},
        "synthetic": asdict(spec.pair.synthetic) if spec.pair.synthetic else None,
        "baseline": spec.baseline,
        "clock": spec.clock,
        "environment": environment,
        "complete": recorded.complete,
        "problems": recorded.problems,
        "captured": {
            "graphs": sum(each.captured for each in records),
            "seconds": sum(each.capture_seconds for each in records),
        },
        "metrics": scores["metrics"],
        "headline": scores["headline"],
        "scored_by": scores["version"],
        "continues": spec.task.continues,
        "not_executed": scores["not_executed"],
        "scored": scores["records"] == len(records),
        "methods": [
            _method(name, records, spec, groups_of(scores), environment["copy_bytes_per_second"])
            | quality(name, scores)
            for name in spec.methods
        ],
    }


def _method(
    name: str, records: list[Record], spec: RunSpec, groups: dict[str, str], bandwidth: float
) -> dict[str, Any]:
    rows, base = m.complete(records, name), m.complete(records, spec.baseline)
    plain = m.complete(records, PLAIN) if name != PLAIN else []
    later_turns = spec.task.data.later_turns > 0
    shapes = {role: asdict(each.shape) for role, each in spec.pair.models.items()}
    out: dict[str, Any] = {
        "method": name,
        "label": " ".join([name, *(f"({word})" for word in spec.pair.simulated.split())]),
        "config": spec.methods[name].options,
        "draft_length": spec.methods[name].traits.draft_length,
        "generations": len(rows),
        "failed": sum(r.method == name and r.error is not None for r in records),
        "first_error": next((r.error for r in records if r.method == name and r.error), None),
        "prompts": len({r.sample for r in rows}),
    }
    if not rows:
        return out
    out |= {
        "tokens": sum(len(r.tokens) for r in rows),
        "tokens_per_second": m.tokens_per_second(rows),
        "end_to_end_tokens_per_second": m.tokens_per_second(rows, end_to_end=True),
        "first_token_seconds": m.first_token_seconds(rows),
        "round_milliseconds": m.round_milliseconds(rows),
        "accepted_length": m.accepted_length(rows),
        "acceptance_rate": m.acceptance_rate(rows),
        "acceptance_by_position": m.acceptance_by_position(rows),
        "acceptance_by_model": m.acceptance_by_model(rows),
        "wasted_share": m.wasted_share(rows),
        "forwards_per_token": m.forwards_per_token(rows),
        "noted": m.noted(rows),
        "average_tokens": d.average_tokens(rows),
        "generation_milliseconds": list(d.generation_milliseconds(rows)),
        "gigaflops": d.gigaflops(rows, shapes),
        "verifier_rate": d.verifier_rate(rows),
        "predicted_distance": _predicted_distance(spec.methods[name], spec),
        "papers_gigaflops": d.papers_gigaflops(rows, spec.methods[name].traits, shapes),
        "levels": [asdict(level) for level in d.levels(rows)],
        "discarded_per_token": d.discarded(rows),
        "length_counts": d.length_counts(rows),
        "rule_rate": m.rule_rate(rows),
        "communication_share": m.communication_share(rows),
        "moved_bytes_per_token": m.moved_per_token(rows),
        "rejections_per_token": m.rejections_per_token(rows),
        "outside_forwards": m.outside_forwards(rows),
        "bound_share": m.bound_share(
            rows,
            {
                role: {"forward": each.forward_bytes, "position": each.position_bytes}
                for role, each in spec.pair.models.items()
            },
            bandwidth,
        ),
        "drift": m.drift(rows),
        "groups": _by_group(rows, base, groups, later_turns),
        "cut_by_length": sum(r.finish in ("length", "window") for r in rows) / len(rows),
        "cut_prompts": sum(r.prompt_cut > 0 for r in rows) / len(rows),
    }
    if plain and m.paired(rows, plain)[0]:
        out["over_sd"] = m.completion_speedup(rows, plain)._asdict()
    if name != spec.baseline and m.paired(rows, base)[0]:
        baseline = spec.methods[spec.baseline].traits.roles
        predicted = predictions(spec.methods[name].traits.theory, baseline, rows, base)
        out |= {
            "speedup": m.speedup(rows, base)._asdict(),
            "end_to_end_speedup": m.speedup(rows, base, end_to_end=True)._asdict(),
            "relative_latency": m.relative_latency(rows, base)._asdict(),
            "geometric_mean_speedup": m.geometric_mean_speedup(rows, base)._asdict(),
            "papers_speedup": m.papers_speedup(rows, base, later_turns),
            "identical_output": m.identical_share(rows, base),
            **(asdict(predicted) if predicted else {}),
        }
        if out.get("corrected"):
            out["measured_over_corrected"] = out["speedup"]["value"] / out["corrected"]
    return out


def _predicted_distance(method: MethodSpec, spec: RunSpec) -> float | None:
    """The distance from the target that a verifier's head predicts on its unseen texts (SPRINTER, Theorem 1).

    None except at T = 1, unfiltered, with tau_inf = 1/2, and on a task that those texts are of.
    """
    if method.traits.flops != "sprinter" or method.options.get("threshold") != 0.5:
        return None
    head, decoding = spec.pair.heads[method.traits.heads[0]], spec.decoding
    plain = (decoding.temperature, decoding.top_k, decoding.top_p) == (1.0, 0, 1.0)
    return head.predicted_distance if plain and spec.task.name in head.tasks else None


def _but_none(table: Table) -> Table:
    """A model's identity without what is empty."""
    return {key: value for key, value in table.items() if value not in ("", [], {})}


def _by_group(rows: m.Rows, base: m.Rows, groups: dict[str, str], later_turns: bool) -> dict[str, dict[str, Any]]:
    """Speed on each subject or category; a sample that was not scored yet is of none."""
    out: dict[str, dict[str, Any]] = {}
    for group in sorted(set(groups.values())):
        ours, theirs = ([r for r in side if groups.get(r.sample) == group] for side in (rows, base))
        if m.paired(ours, theirs)[0]:
            out[group] = {"accepted_length": m.accepted_length(ours)}
            if rows is not base and rows[0].method != base[0].method:
                out[group] |= {
                    "speedup": m.speedup(ours, theirs)._asdict(),
                    "papers_speedup": m.papers_speedup(ours, theirs, later_turns),
                }
    return out
