"""What a reader must know to believe a table."""

import re
from typing import Any

from specbench.runs.run_folder import listed

Summary = dict[str, Any]
FEWEST_REPEATS = 3
LEAST_BOUND = 0.5  # of the memory bandwidth, for a baseline
NUMBERS = r"[-+]?\d[\d.,]*%?|\(.*?\)"  # and what stands in brackets

BY_METHOD = {  # warnings with a number a method: what they say, of which value, its form, from where on
    "outputs that the length limit cut": ("cut_by_length", "{:.0%}", 0.05),
    "prompts that were cut to fit": ("cut_prompts", "{:.0%}", 0.0),
    "drift of the speed within the run, is the machine shared?": ("drift", "{:+.0%}", 0.1),
}


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
    if captured := summary["captured"]["graphs"]:
        out.append(
            f"{captured} CUDA graphs were captured in {summary['captured']['seconds']:.1f} s, outside all timings."
        )
    if summary["made_up"]:
        out.append(_made_up(summary))
    for name, head in summary["heads"].items():
        trained = head.get("data", {})
        if data["sha256"] in trained.get("sha256", []):
            out.append(f"! head {name} was trained on these very rows, but for the first {trained.get('skipped', 0)}")
    if any(row["predicted_distance"] is not None for row in summary["methods"] if "tokens" in row):
        out.append("distance from target, predicted: Theorem 1 over the head's own test texts (docs/heads.md).")
    if any(head["kind"] == "eagle" for head in summary["heads"].values()):
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
    if summary["problems"]:
        count, what = len(summary["problems"]), listed(summary["problems"])
        out.append(f"! {count} lines of samples.jsonl are not counted: {what}")
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
        out.append(f"! scores are missing or outdated; help: specbench score {summary['folder']}")
    version = summary["task"].rpartition("@")[2]
    if summary["scored_by"] not in ("", version):
        out.append(f"! generated under version {version} of the task, scored by version {summary['scored_by']}")
    for metric in summary["metrics"]:
        out.append(f"{metric['name']}: {metric['signature']}")
        undefined = any(row["generations"] and row["quality"].get(metric["name"]) is None for row in summary["methods"])
        if metric["combine"].startswith("pass@") and undefined and not decoding["ignore_eos"] and summary["scored"]:
            out.append(f"! {metric['name']} needs that many generations of every prompt: --repeats, at T > 0")
    natural = not decoding["ignore_eos"] and not summary["continues"]
    for what, (key, form, least) in BY_METHOD.items():
        if key == "cut_by_length" and not natural:
            continue
        found = {row["method"]: row[key] for row in summary["methods"] if abs(row.get(key) or 0.0) > least}
        told = {name: form.format(value) for name, value in found.items()}
        if len(told) > 2 and len(told) == len(summary["methods"]) and len(set(told.values())) == 1:
            told = {"all methods": next(iter(told.values()))}
        if told:
            out.append(f"! {what}: " + ", ".join(map(" ".join, told.items())))
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
    """What is to be known of a table of several runs: their conditions, and one line for warnings that differ in their
    numbers or methods alone, with the tasks that they are of."""
    told = list(dict.fromkeys(note for summary in summaries for note in notes(summary)[:1]))
    if any(summary["data"]["source"] == "synthetic" for summary in summaries):
        told.append(
            "Scores on a synthetic twin are not scores on the task. How each is computed: specbench report FOLDER"
        )
    kinds: dict[str, list[tuple[str, str]]] = {}
    for summary in summaries:
        for note in notes(summary):
            if note.startswith(("!", "Sampled", "Text that runs")):
                kind = next((what for what in BY_METHOD if note.startswith(f"! {what}: ")), re.sub(NUMBERS, "#", note))
                kinds.setdefault(kind, []).append((note, summary["task"]))
    for alike in kinds.values():
        first, tasks = alike[0][0], ", ".join(dict.fromkeys(task for _, task in alike))
        often = f"in {len(alike)} runs, here the first's: " if len({note for note, _ in alike}) > 1 else ""
        told.append(f"{first} ({often}{tasks})")
    return told
