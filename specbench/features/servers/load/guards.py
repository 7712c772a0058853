"""Warnings about a measurement under load, each with its number."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from specbench.features.servers.answer_notes import (
    acceptance_notes,
    answer_notes,
    cache_notes,
    counter_notes,
    fault_notes,
    id_notes,
    remote_notes,
)
from specbench.features.servers.endpoint import Endpoint
from specbench.features.servers.load.blocks import Block
from specbench.features.servers.load.load_metrics import acceptance_of
from specbench.features.servers.load.server_run import Load
from specbench.features.servers.request_log import LoggedRequest
from specbench.features.servers.served import Description
from specbench.note import Note, warning

BUSY = 0.5  # share of a processor that the client may use
LAG = 0.05  # seconds that the client's event loop may be late
DRIFT = 0.1  # relative change of the throughput from the first to the last third of the blocks
DISAGREEMENT = 0.03  # relative difference of two sources of tokens per round
FOREIGN = 0.02  # share of tokens that the server counted beyond ours
BUFFERED = 0.2  # share of an answer's duration in which its chunks arrive, below which a proxy may buffer them
LONGEST_SHARE = 0.33  # of a block, which the mean request may take


def load_notes(endpoints: Mapping[str, Endpoint], by_side: Mapping[str, Sequence[Block]], load: Load) -> list[Note]:
    """Return the warnings about blocks of load.

    Args:
        endpoints: The servers by side, `on` with speculation.
        by_side: The blocks of each side.
        load: What was sent.
    """
    servers = [endpoint.client.server for endpoint in endpoints.values()]
    notes = remote_notes(servers)
    if endpoints["off"].description.speculation.is_on:
        notes.append(warning("off speculates", "the server that is given as --off says that it speculates"))
    if endpoints["on"].description.speculation.is_on is False:
        notes.append(warning("no speculation", "the server that is given as --on says that it does not speculate"))
    notes += _of_models(endpoints["on"].description, endpoints["off"].description)
    for side, blocks in by_side.items():
        if blocks:
            notes += _of_side(side, blocks)
            notes += _of_answers(side, blocks, endpoints[side].description.model, load.ignore_eos)
            if not load.chat:
                notes += id_notes([each for block in blocks for each in block.done], endpoints[side].description, side)
    if by_side["on"]:
        notes += _of_speculation(endpoints["on"], by_side["on"])
    return notes


def _of_models(on: Description, off: Description) -> list[Note]:
    """Compare the models that the two servers serve."""
    one, two = (each.weights or each.model for each in (on, off))
    sizes = on.vocabulary, off.vocabulary
    if one == two and (None in sizes or sizes[0] == sizes[1]):
        return []
    words = [f"{name} ({size} tokens)" if size else name for name, size in zip((one, two), sizes, strict=True)]
    return [warning("other models", f"on serves {words[0]}, off serves {words[1]}: speedups need one model on both")]


def _of_side(side: str, blocks: Sequence[Block]) -> list[Note]:
    notes: list[Note] = []
    requests = [request for block in blocks for request in block.requests]
    done = [request for request in requests if request.error is None]
    if failures := [request for request in requests if request.error is not None]:
        text = f"{len(failures)} of {len(requests)} requests to {side} failed, the first by {failures[0].error}"
        notes.append(warning("failures", text, subject=side))
    if not done:
        return notes
    notes += (
        cache_notes(done, side) + fault_notes(done, side) + counter_notes((block.counted for block in blocks), side)
    )
    if missing := sum(request.output_tokens is None and request.tokens is None for request in done):
        text = f"{missing} of {len(done)} answers of {side} have no token counts: chunks are counted as tokens"
        notes.append(warning("missing usage", text, subject=side))
    if waits := [block for block in blocks if block.waiting]:
        most = max(block.waiting or 0.0 for block in waits)
        levels = ", ".join(map(str, sorted({block.concurrency for block in waits})))
        text = f"up to {most:.0f} requests waited in {side} at concurrency {levels}: these levels measure its queue too"
        notes.append(warning("queueing", text, subject=side))
    notes += _of_window(side, blocks)
    notes += _of_client(side, blocks) + _of_drift(side, blocks) + _of_buffers(side, done) + _of_traffic(side, blocks)
    return notes


def _of_answers(side: str, blocks: Sequence[Block], model: str, ignore_eos: bool) -> list[Note]:
    """Find outputs that were cut, answers of another model, and parameters that the server changed."""
    done = [request for block in blocks for request in block.done]
    notes = answer_notes(done, model, side)
    if (cut := sum(request.finish == "length" for request in done)) and not ignore_eos:
        text = f"{cut} of {len(done)} outputs of {side} were cut at the largest number of tokens, so scores are not reliable"
        notes.append(warning("truncation", text, subject=side, help="--max-new-tokens"))
    return notes


def _of_window(side: str, blocks: Sequence[Block]) -> list[Note]:
    """Find the level whose requests are longest in relation to the window: few fit into it, so its throughput is coarse."""
    worst = (0.0, 0.0, 0)
    for concurrency in sorted({block.concurrency for block in blocks}):
        level = [block for block in blocks if block.concurrency == concurrency]
        seconds = [request.seconds for block in level for request in block.done]
        if seconds:
            mean, window = float(np.mean(seconds)), float(np.mean([block.end - block.begin for block in level]))
            worst = max(worst, (mean / window, mean, concurrency))
    share, mean, concurrency = worst
    if share <= LONGEST_SHARE:
        return []
    text = f"requests to {side} take {mean:.1f} s at concurrency {concurrency}, {share:.0%} of a block"
    return [warning("short blocks", text, subject=side, help=f"--seconds {math.ceil(mean / LONGEST_SHARE)}")]


def _of_client(side: str, blocks: Sequence[Block]) -> list[Note]:
    cpu, lag = max(block.cpu for block in blocks), float(np.percentile([block.lag for block in blocks], 90))
    if cpu <= BUSY and lag <= LAG:
        return []
    late = f"its event loop was {1e3 * lag:.0f} ms late in a tenth of the blocks"
    text = f"the client used {cpu:.0%} of a processor, and {late} ({side})"
    return [warning("busy client", text, subject=side, help="run it on another machine, or with priority (chrt -f 20)")]


def _of_drift(side: str, blocks: Sequence[Block]) -> list[Note]:
    """Compare the first third of the blocks of each level with the last third."""
    notes = []
    for concurrency in sorted({block.concurrency for block in blocks}):
        speeds = [block.throughput for block in blocks if block.concurrency == concurrency and block.tokens]
        third = len(speeds) // 3
        if third >= 2:
            change = float(np.mean(speeds[-third:]) / np.mean(speeds[:third])) - 1.0
            if abs(change) > DRIFT:
                text = f"the throughput of {side} at concurrency {concurrency} changed by {change:+.0%} during the run"
                notes.append(warning("drift", text, subject=side))
    return notes


def _of_buffers(side: str, done: Sequence[LoggedRequest]) -> list[Note]:
    """Find answers whose chunks arrive together at the end."""
    spans = [
        (request.chunks[-1][0] - request.chunks[0][0]) / request.seconds
        for request in done
        if request.chunks and request.count >= 8 and request.seconds
    ]
    if len(spans) < 5 or float(np.median(spans)) > BUFFERED:
        return []
    share = float(np.median(spans))
    text = f"the chunks of {side} arrive within {share:.0%} of an answer's duration: a proxy may buffer them"
    return [warning("buffered stream", text, subject=side)]


def _of_traffic(side: str, blocks: Sequence[Block]) -> list[Note]:
    """Compare the server's count of output tokens with ours."""
    counted = [(block, counts.output_tokens) for block in blocks if (counts := block.counted) is not None]
    known = [(block, tokens) for block, tokens in counted if tokens is not None]
    ours = sum(request.count for block, _ in known for request in block.done)
    theirs = sum(tokens for _, tokens in known)
    if not ours or theirs <= ours * (1.0 + FOREIGN) or any(block.done != block.requests for block, _ in known):
        return []
    text = f"{side} generated {theirs:.0f} tokens, of which {ours} are ours: other clients use it"
    return [warning("foreign traffic", text, subject=side)]


def _of_speculation(endpoint: Endpoint, blocks: Sequence[Block]) -> list[Note]:
    found = acceptance_of(blocks, endpoint.backend.streams_steps)
    notes: list[Note] = []
    sources = {
        "the stream": found.by_stream,
        "the answers": found.by_answers.tokens_per_round if found.by_answers else None,
        "the counters": found.by_counters.tokens_per_round if found.by_counters else None,
    }
    known = {name: value for name, value in sources.items() if value is not None}
    if len(known) > 1 and max(known.values()) > (1.0 + DISAGREEMENT) * min(known.values()):
        text = ", ".join(f"{value:.3f} by {name}" for name, value in known.items())
        why = "foreign traffic, or drafts that were cut by the end of an output"
        notes.append(warning("disagreement", f"tokens per round: {text}; possible causes are {why}"))
    counts, length = found.counts, endpoint.description.speculation.length
    is_chain = length is not None and endpoint.backend.drafts_chains
    if is_chain and counts and counts.rounds and (counts.drafted or 0) > (length or 0) * counts.rounds:
        text = f"{counts.drafted} tokens were drafted in {counts.rounds} rounds, and a draft has {length} tokens"
        notes.append(warning("draft length", text))
    notes += acceptance_notes(found.counts, "on")
    if found.counts is None and not (found.by_stream and found.by_stream > 1.0):
        notes.append(warning("no speculation", "the server with speculation shows no sign of it"))
    return notes
