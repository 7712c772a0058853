"""Answers of model servers, changed in every way: read, logged, resumed, summed up and printed as the commands do."""

import asyncio
import json
import math
import os
import random
import re
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from specbench.errors import ConfigError, MissingAsset
from specbench.features.servers import served_results
from specbench.features.servers.endpoint import Endpoint, connected
from specbench.features.servers.exactness.reference import Served
from specbench.features.servers.load.block_log import BlockLog
from specbench.features.servers.load.blocks import Block, Pace
from specbench.features.servers.load.load_summary import summary_of
from specbench.features.servers.load.load_table import facts_of, tables_of
from specbench.features.servers.load.server_run import Load, ServerRun, ServerRunRequest
from specbench.features.servers.readiness import Patience
from specbench.features.servers.request_key import RequestKey
from specbench.features.servers.request_log import RequestLog
from specbench.features.servers.sending import Sender
from specbench.features.servers.served import ServedRequest, ServedSampling
from specbench.features.servers.server_checks import check_server
from specbench.http_client import KEY, RequestFailed, Server
from tests.faults.attack import Outcome
from tests.fixtures.answering_server import (
    BACKENDS,
    CHAT,
    PROMPT,
    REQUEST,
    TOKENS,
    Answer,
    AnsweringServer,
    answering,
    answers_of,
)
from tests.fixtures.mutations import mutated_json, mutated_text

SECRET = "sk-a/very+secret-key"
SECONDS = 10.0  # that a trial may take; the server answers at once
MOST_CHARACTERS = 700  # of an error, in one line
TEXT = ServedRequest(prompt="text", max_tokens=6)
REPORTED = re.compile(r"(?i)(?<![\w.])(-\d|nan|inf\b|\d{7,})")  # what no cell of a table holds


def fuzzed(trials: int, seed: int, folder: Path) -> Outcome:
    """Change an answer of a backend, and use the server: an error in one line, or figures that are possible."""
    outcome, before = Outcome(), os.environ.get(KEY)
    os.environ[KEY] = SECRET
    try:
        with answering({}) as on, answering(answers_of("vllm")) as off:
            usual = {}
            for backend in BACKENDS:
                on.answers = answers_of(backend)
                run, problems = used(on, off, folder / backend)
                assert run is not None and not problems, problems
                usual[run.on.backend] = run
            for trial in range(trials):
                rng = random.Random(f"{seed}:{trial}")
                backend = BACKENDS[trial % len(BACKENDS)]
                on.answers, how = changed(answers_of(backend), rng)
                run, problems = used(on, off, folder / f"trial-{trial}")
                if run is not None:
                    problems += _of_silence(run, usual[run.on.backend])
                outcome.add(f"trial {trial}, {backend}, {how}", problems)
    finally:
        os.environ.pop(KEY) if before is None else os.environ.update({KEY: before})
    return outcome


def changed(answers: dict[str, Answer], rng: random.Random) -> tuple[dict[str, Answer], str]:
    """Return answers of which one is changed, and what was changed."""
    path = rng.choice(sorted(answers))
    answer, kind = answers[path], rng.random()
    if kind < 0.06:
        status = rng.choice((204, 302, 400, 401, 404, 429, 500, 503))
        return {**answers, path: replace(answer, status=status)}, f"{path}: status {status}"
    if kind < 0.09:
        return {**answers, path: replace(answer, headers={"Content-Encoding": "br"})}, f"{path}: encoding"
    if kind < 0.25:
        body, how = mutated_text(answer.body, rng, SECRET)
    elif answer.kind == "text/event-stream":
        body, how = _mutated_stream(answer.body, rng)
    elif answer.kind == "text/plain":
        return {**answers, path: _mutated_metrics(answer, rng)}, f"{path}: counters"
    else:
        body, how = mutated_json(answer.body, rng, SECRET)
    return {**answers, path: replace(answer, body=body)}, f"{path}: {how}"


def _mutated_stream(body: bytes, rng: random.Random) -> tuple[bytes, str]:
    """Change an event, or the order, number or form of the events."""
    rows = body.split(b"\n\n")
    at, kind = rng.randrange(len(rows) - 2), rng.random()
    if kind < 0.7:
        value, how = mutated_json(rows[at].removeprefix(b"data: "), rng, SECRET)
        rows[at] = b"data: " + value
        return b"\n\n".join(rows), f"event {at + 1}: {how}"
    changes: dict[str, Callable[[], list[bytes]]] = {
        "an event twice": lambda: [*rows[: at + 1], *rows[at:]],
        "an event less": lambda: [*rows[:at], *rows[at + 1 :]],
        "cut": lambda: rows[:at],
        "another order": lambda: rng.sample(rows, len(rows)),
        "an error": lambda: [*rows[:at], b'data: {"error": {"message": "out of memory"}}', *rows[at:]],
        "CR": lambda: [row.replace(b"\n", b"\r") for row in rows],
        "names of events": lambda: [b"id: 1\nevent: message\n" + row for row in rows],
    }
    how = rng.choice(sorted(changes))
    return b"\n\n".join(changes[how]()), how


def _mutated_metrics(answer: Answer, rng: random.Random) -> Answer:
    """Change the value or the labels of one line, in one of the readings."""
    bodies = [answer.body, *answer.later]
    at = rng.randrange(len(bodies))
    lines = bodies[at].decode().splitlines() or [""]
    line = rng.randrange(len(lines))
    value = rng.choice(("NaN", "+Inf", "-Inf", "-1", "1.5", "1e400", "9" * 40, "0", "x", "", "123456"))
    new = rng.choice(
        (
            lines[line].rpartition(" ")[0] + f" {value}",
            re.sub(r"\{.*\}", "", lines[line]),
            re.sub(r'position="\d"', f'position="{value}"', lines[line]),
            "",
            lines[line] + "\n" + lines[line],
        )
    )
    bodies[at] = "\n".join([*lines[:line], new, *lines[line + 1 :]]).encode() + b"\n"
    return replace(answer, body=bodies[0], later=tuple(bodies[1:]))


def used(on: AnsweringServer, off: AnsweringServer, where: Path) -> tuple[ServerRun | None, list[str]]:
    """Return the summary of a use of a server, None after an error, and what went wrong."""
    on.paths.clear()
    off.paths.clear()
    try:
        return asyncio.run(asyncio.wait_for(_used(on.url, off.url, where), SECONDS))
    except TimeoutError:
        return None, [f"no end within {SECONDS:g} s"]
    except (ConfigError, MissingAsset) as error:
        return None, _of_error(str(error), on.url)
    except Exception:
        return None, [f"traceback: {' | '.join(traceback.format_exc().splitlines()[-4:])}"]


def _of_silence(run: ServerRun, usual: ServerRun) -> list[str]:
    """Return the figures that are neither the usual ones nor accompanied by a warning.

    A figure of counters may be missing, since a server needs none. llama.cpp's are the only source of its rounds.
    """
    (level,), (other,) = run.levels, usual.levels
    warned = {note.text for note in run.notes} - {note.text for note in usual.notes}
    if warned or run.failures["on"] or run.on.backend == "llama.cpp":
        return []
    rates = level.acceptance.tokens_per_round, other.acceptance.tokens_per_round, level.acceptance.by_stream
    found = [f"{level.throughput} tokens/s without a warning"] * (level.throughput != other.throughput)
    return found + [f"{rates[0]} tokens per round without a warning"] * (rates[0] not in (rates[1], rates[2], None))


def _of_error(text: str, url: str) -> list[str]:
    found = [f"an error of several lines or more than {MOST_CHARACTERS} characters: {text!r}"] * (
        "\n" in text or len(text) > MOST_CHARACTERS
    )
    found += [f"the key in an error: {text}"] * (SECRET in text)
    return found + [f"an error without the server: {text}"] * (url.removeprefix("http://") not in text)


async def _used(url: str, off_url: str, where: Path) -> tuple[ServerRun, list[str]]:
    """Use a server as `describe`, `doctor`, `verify` and `run` do. Raises their errors."""
    patience = Patience(seconds=0.2)
    server = Server(url, seconds=3.0)
    async with connected(server, "m", patience=patience) as on, connected(Server(off_url), "m") as off:
        run, found = await _of_load(on, off, where)
        found += await _of_reference(on)
    await check_server(server, "m")
    return run, found


async def _of_load(on: Endpoint, off: Endpoint, where: Path) -> tuple[ServerRun, list[str]]:
    """Send requests, read their log again, and sum up two blocks."""
    where.mkdir(parents=True)
    log = BlockLog(where)
    blocks = []
    for side, endpoint in (("off", off), ("on", on)):
        block = Block(id=len(blocks) + 1, side=side, concurrency=1, pair=0, begin=0.0, end=5.0)
        block.before = await endpoint.counters()

        def finished(entry: Any, block: Block = block) -> None:
            block.requests.append(entry)
            log.requests.add(entry)

        sender = Sender(endpoint, asyncio.get_running_loop().time(), finished)
        raw = REQUEST if endpoint.description.has_ids else TEXT
        for number, request in enumerate((raw, CHAT, raw)):
            await sender.send(RequestKey(side=side, block=block.id, number=number), request)
        block.after = await endpoint.counters()
        blocks.append(block)
        log.add(block)
    load = Load(sampling=ServedSampling(), max_tokens=6, ignore_eos=True, pace=Pace())
    request = ServerRunRequest(on=on.client.server, off=off.client.server, prompts=(), load=load, concurrencies=(1,))
    run = summary_of(request, on, off, blocks, where)
    served_results.write_result(where / served_results.RUN, run)
    found = _of_files(where, blocks, run)
    for entry in blocks[1].requests:
        if entry.error is not None:
            found += _of_error(entry.error, on.description.url)
        elif not entry.faults and not 0 <= entry.count <= len(TOKENS):
            found.append(f"{entry.count} tokens, and at most {len(TOKENS)} were requested, without a fault")
    return run, found + _of_figures(run)


def _of_files(where: Path, blocks: list[Block], run: ServerRun) -> list[str]:
    """Read what was written again, as a command does that resumes."""
    again = BlockLog(where)
    found = ["the log has lost requests"] * (len(RequestLog(where / "requests.jsonl").entries) != 6)
    found += ["the log has other blocks"] * ([block.requests for block in again.blocks] != [b.requests for b in blocks])
    (stored,) = served_results.results_in(where)
    found += ["another summary is read"] * (stored.name != run.name)
    found += [f"the key in {path.name}" for path in where.iterdir() if SECRET.encode() in path.read_bytes()]
    return found + [
        f"the key in {path.name}" for path in where.iterdir() if json.dumps(SECRET)[1:-1] in path.read_text()
    ]


def _of_figures(run: ServerRun) -> list[str]:
    """Return the figures that are not possible."""
    found = []
    for table in tables_of(run):
        cells = [cell for row in table.rows for cell in row]
        found += [
            f"{table.title!r} has {cell!r}" for cell in cells if REPORTED.search(re.sub(r"[\w.]+x", "", str(cell)))
        ]
    for level in run.levels:
        acceptance = level.acceptance
        shares = [*acceptance.by_position, *(counts.shares_by_position for counts in [acceptance.counts] if counts)]
        flat = [share for each in shares for share in (each if isinstance(each, tuple) else (each,))]
        numbers = [*flat, *level.throughput.values(), acceptance.tokens_per_round or 1.0, acceptance.by_stream or 1.0]
        numbers += [each.mean for times in level.times.values() for each in times.values()]
        found += [f"figures {numbers}"] * (not all(math.isfinite(number) and number >= 0.0 for number in numbers))
        found += [f"shares {flat}"] * any(share > 1.0 for share in flat)
        counts = acceptance.counts
        if counts is not None and counts.drafted is not None and counts.accepted > counts.drafted:
            found.append(f"{counts.accepted} of {counts.drafted} drafted tokens")
    texts = [*facts_of(run), run.answer, *(note.text for note in run.notes)]
    return found + [f"the key in {text!r}" for text in texts if SECRET in text]


async def _of_reference(on: Endpoint) -> list[str]:
    """Use the server as a reference. What it does not answer is an error in one line."""
    if not on.description.has_ids:
        return []
    ids = await on.tokenize("text")
    await on.rendered(CHAT.messages)
    try:
        logits = await Served(on).logits(ids or PROMPT, TOKENS[:2])
    except RequestFailed as error:
        return _of_error(str(error.at(on.description.url)), on.description.url)
    except ConfigError as error:
        return _of_error(str(error), on.description.url)
    return [] if bool(logits.isfinite().all()) else ["logits that are not finite"]
