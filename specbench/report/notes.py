"""What a reader must know to believe a table."""

import re
from typing import Any

from specbench.report.chains import chain_of

Summary = dict[str, Any]
FEWEST_REPEATS = 3
LEAST_BOUND = 0.5  # of the memory bandwidth, for a baseline


def notes(summary: Summary) -> list[str]:
    """What a reader must know to believe the tables: conditions, then warnings."""
    decoding, data, env = summary["decoding"], summary["data"], summary["environment"]
    length = f"fixed length of {decoding['max_new_tokens']}" if decoding["ignore_eos"] else "natural stop"
    dtype = sorted({m["dtype"] for m in summary.get("models", {}).values()})
    out = [
        f"{data['samples']} prompts ({data['source']}) x {decoding['repeats']} repeats, T = {decoding['temperature']:g},"
        f" {length}, seed {decoding['seed']}; engine {summary['engine']['name']} on {summary['engine']['device']}"
        f" {' '.join(dtype)}, {env.get('gpu', {}).get('name') or env['cpu']}, {env['threads']} threads",
        "Intervals are 95 %, bootstrapped over prompts (Wilson's where all are right or all wrong); none from fewer than"
        " five. theory: from measured acceptance and c, a block at the price of one token; corrected: at the measured price.",
    ]
    if summary["made_up"]:
        out.append(_made_up(summary))
    for name, head in summary["heads"].items():
        trained = head.get("data", {})
        if data["sha256"] in trained.get("sha256", []):
            out.append(f"! head {name} was trained on these very rows, but for the first {trained.get('skipped', 0)}")
    if any(row["predicted_distance"] is not None for row in summary["methods"] if "tokens" in row):
        out.append("distance from target, predicted: Theorem 1 over the head's own test texts (docs/heads.md).")
    if any(chain_of(row["config"])[0].get("name") == "eagle" for row in summary["methods"]):
        out.append(
            "Theory leaves out what an EAGLE head reads again, and the forwards by which a middle catches up for it."
        )
    base: dict[str, Any] = next((row for row in summary["methods"] if row["method"] == summary["baseline"]), {})
    if base.get("bound_share") is not None and base["bound_share"] < LEAST_BOUND:
        out.append(
            f"! {base['method']} runs at {base['bound_share']:.0%} of what copying memory allows: on a faster engine speedups"
            " over it are smaller"
        )
    if any(row["method"].startswith("hf-") for row in summary["methods"]):
        out.append("hf-*: transformers runs these itself, whatever the engine of the others.")
    failed = sum(row["failed"] for row in summary["methods"])
    if data["samples"] < data["total"] and data["source"] != "synthetic":
        out.append(f"! {data['samples']} of {data['total']} samples: not comparable with published scores")
    if failed:
        first = next(row["first_error"] for row in summary["methods"] if row["first_error"])
        out.append(f"! {failed} generations failed and have no timing (`error` in samples.jsonl); the first: {first}")
    if not summary["complete"]:
        done = sum(row["generations"] + row["failed"] for row in summary["methods"])
        wanted = len(summary["methods"]) * data["samples"] * decoding["repeats"]
        out.append(f"! not complete: {done} of {wanted} generations are there; the same command resumes it")
    if env["load_1min"] > env["cores"] / 2:
        out.append(f"! the machine was busy when the run began: a load of {env['load_1min']:g} on {env['cores']} cores")
    if decoding["repeats"] < FEWEST_REPEATS:
        out.append(f"! {decoding['repeats']} repeats: drift within the run shows only from {FEWEST_REPEATS} on")
    if data["later_turns"] and decoding["temperature"] > 0:
        out.append("Later turns go on with each method's own answers, so their prompts differ between methods.")
    if decoding["temperature"] > 0 and not decoding["ignore_eos"]:
        out.append("Sampled outputs differ in length; --ignore-eos compares speeds at a fixed one.")
    if decoding["ignore_eos"]:
        out.append("Text that runs past its end is not scored; quality is for natural stop.")
    elif summary["not_executed"]:
        out.append(
            "! generated code was not executed, so it has no score; help: specbench score"
            f" {summary['folder']} --allow-code-execution"
        )
    elif not summary["scored"]:
        out.append(f"! not all generations are scored; help: specbench score {summary['folder']}")
    version = summary["task"].rpartition("@")[2]
    if summary["scored_by"] not in ("", version):
        out.append(f"! generated under version {version} of the task, scored by version {summary['scored_by']}")
    for metric in summary["metrics"]:
        out.append(f"{metric['name']}: {metric['signature']}")
        undefined = any(row["generations"] and row["quality"].get(metric["name"]) is None for row in summary["methods"])
        if metric["combine"].startswith("pass@") and undefined and summary["scored"] and not summary["not_executed"]:
            out.append(f"! {metric['name']} needs that many generations of every prompt: --repeats, at T > 0")
    for row in summary["methods"]:
        if not decoding["ignore_eos"] and not summary["continues"] and row.get("cut_by_length", 0) > 0.05:
            out.append(f"! {row['method']}: {row['cut_by_length']:.0%} of outputs were cut by the length limit")
        if row.get("cut_prompts"):
            out.append(f"! {row['method']}: {row['cut_prompts']:.0%} of prompts were cut to fit")
        if abs(row.get("drift") or 0) > 0.1:
            out.append(
                f"! {row['method']}: speed drifted by {row['drift']:+.0%} within the run; is the machine shared?"
            )
    return out


def _made_up(summary: Summary) -> str:
    told = {
        "dummy": "the weights are random (dummy), so a forward costs what it costs and texts are noise",
        "synthetic": "what the models say is replaced by synthetic laws",
    }
    parts = [told[word] for word in summary["made_up"].split()]
    law = summary["synthetic"]
    if not law:
        parts.append("acceptance, and with it the speed of methods that draft, means nothing")
    elif "acceptance" in law:
        parts.append(
            f"what {law['proposer']} drafts under {law['method']} is accepted at the rate that was set,"
            f" {law['acceptance']:g}, and all other rates follow from that"
        )
    return "! Not a measurement of these models: " + "; ".join(parts)


def common_notes(summaries: list[Summary]) -> list[str]:
    """What is to be known of a table of several runs: the conditions, and the warnings of each."""
    told = [note for summary in summaries for note in notes(summary)[:1]]
    if any(summary["data"]["source"] == "synthetic" for summary in summaries):
        told.append(
            "Scores on a synthetic twin are not scores on the task. How each is computed: specbench report FOLDER"
        )
    warned = [f"{note} ({summary['task']})" for summary in summaries for note in notes(summary) if note.startswith("!")]
    said = [note for summary in summaries for note in notes(summary) if note.startswith("Sampled")]
    return [*dict.fromkeys([*told, *said]), *_merged(warned)]


def notes_of_many(summaries: list[Summary]) -> list[str]:
    """The same of as many runs as a suite has: one line for warnings that differ in their numbers alone, with their count."""
    told = list(dict.fromkeys(note for summary in summaries for note in notes(summary)[:1]))
    if any(summary["data"]["source"] == "synthetic" for summary in summaries):
        told.append("Scores on a synthetic twin are not scores on the task.")
    kinds: dict[str, list[str]] = {}
    for summary in summaries:
        for note in notes(summary):
            if note.startswith(("!", "Sampled", "Text that runs")):
                kinds.setdefault(re.sub(r"[-+]?\d[\d.,]*%?|\(.*?\)", "#", note), []).append(note)
    return told + [each[0] + (f" (so or alike {len(each)} times)" if len(each) > 1 else "") for each in kinds.values()]


def _merged(notes: list[str]) -> list[str]:
    """Equal warnings of several tasks as one."""
    tasks: dict[str, list[str]] = {}
    for note in notes:
        text, _, task = note.rpartition(" (")
        tasks.setdefault(text, []).append(task.rstrip(")"))
    return [f"{text} ({', '.join(names)})" for text, names in tasks.items()]
