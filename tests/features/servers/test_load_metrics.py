"""Measures of load on fabricated blocks: definitions, intervals, and the acceptance of three sources."""

import math
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

from specbench.analysis.intervals import Estimate
from specbench.features.servers.load.blocks import Block, Pace
from specbench.features.servers.load.guards import load_notes
from specbench.features.servers.load.load_metrics import (
    acceptance_of,
    end_to_end,
    first_token,
    paired,
    pairs_needed,
    percentiles,
    throughput_speedup,
    time_between_chunks,
    time_per_token,
    time_speedup,
)
from specbench.features.servers.load.pays import (
    LevelTimes,
    MeasuredSpeculation,
    best_length,
    break_even,
    predicted_speedups,
    tokens_per_round,
)
from specbench.features.servers.load.server_run import Load
from specbench.features.servers.request_key import RequestKey
from specbench.features.servers.request_log import LoggedRequest
from specbench.features.servers.served import Counters, Description, ServedSampling, SpeculationCounts
from specbench.http_client import Server

RAMP, WINDOW = 1.0, 5.0


def request(chunks, *, started=0.0, prompt=0, seconds=None, side="on", **fields) -> LoggedRequest:
    """Return a request whose chunks are (seconds, tokens)."""
    last = chunks[-1][0] if chunks else 0.0
    return LoggedRequest(
        key=RequestKey(side=side, block=7, prompt=prompt), started=started, chunks=chunks, seconds=seconds or last,
        tokens=[0] * sum(count for _, count in chunks), **fields,
    )  # fmt: skip


def block(side: str, pair: int, *requests: LoggedRequest, begin=0.0, **fields) -> Block:
    return Block(
        side=side,
        concurrency=1,
        pair=pair,
        begin=begin + RAMP,
        end=begin + RAMP + WINDOW,
        requests=list(requests),
        **fields,
    )


def decoded(side: str, pair: int, per_token: float, prompts: int = 6) -> Block:
    """Return a block of requests one after another, each with 20 tokens at `per_token` seconds."""
    rows, began = [], RAMP
    while began < RAMP + WINDOW:
        chunks = [(0.1 + per_token * i, 1) for i in range(20)]
        rows.append(request(chunks, started=began, prompt=len(rows) % prompts, side=side))
        began += chunks[-1][0]
    return block(side, pair, *rows)


def test_times_of_a_request_are_those_that_load_generators_define():
    one = request([(0.5, 1), (0.9, 3), (1.1, 2)], seconds=1.3)
    assert first_token(one) == 0.5
    assert time_per_token(one) == pytest.approx(0.6 / 5)  # tokens after the first chunk
    assert time_between_chunks(one) == pytest.approx(0.6 / 2)
    assert end_to_end(one) == 1.3
    alone = request([(0.5, 4)])
    assert time_per_token(alone) is None and time_between_chunks(alone) is None
    assert percentiles([alone], time_per_token) is None
    assert percentiles([one, alone], first_token).values[0] == 0.5


def test_tokens_outside_the_window_do_not_count():
    one = block("on", 0, request([(0.5, 1), (1.0, 2), (5.9, 3), (6.0, 4)]))  # the window is [1, 6)
    assert one.tokens == 5 and one.throughput == 1.0
    failed = LoggedRequest(key=RequestKey(), error="timeout", chunks=[(2.0, 9)])
    assert block("on", 0, failed).tokens == 0


def test_a_speedup_of_throughput_is_the_geometric_mean_of_neighbouring_blocks():
    pairs = [
        (decoded("off", i, 0.02 * drift), decoded("on", i, 0.01 * drift)) for i, drift in enumerate((1.0, 1.5, 2.0))
    ]
    found = throughput_speedup(pairs)
    logs = [math.log(on.throughput / off.throughput) for off, on in pairs]
    assert found.value == pytest.approx(math.exp(np.mean(logs)))
    assert found.low < found.value < found.high
    assert throughput_speedup(pairs[:2]).low is None


def test_a_speedup_of_time_has_an_interval_over_prompts_and_pairs():
    chooser = np.random.default_rng(0)
    pairs = [
        (decoded("off", i, 0.02 * chooser.uniform(0.95, 1.05)), decoded("on", i, 0.01 * chooser.uniform(0.95, 1.05)))
        for i in range(6)
    ]
    found = time_speedup(pairs, time_per_token, True)
    assert found.low < 2.0 < found.high and found.high / found.low < 1.3
    assert time_speedup([], time_per_token, True) is None


def test_incomplete_pairs_are_left_out():
    blocks = [decoded("off", 0, 0.02), decoded("on", 0, 0.01), decoded("off", 1, 0.02)]
    assert [(off.pair, on.pair) for off, on in paired(blocks)] == [(0, 0)]


def test_the_number_of_pairs_follows_from_the_measured_deviation():
    calm = [(decoded("off", i, 0.02), decoded("on", i, 0.01)) for i in range(6)]
    assert pairs_needed(calm, 0.05) == 6
    noisy = [(decoded("off", i, 0.02), decoded("on", i, 0.01 * (1.0 + 0.5 * (i % 2)))) for i in range(6)]
    assert pairs_needed(noisy, 0.05) > 30


def test_acceptance_of_stream_answers_and_counters_has_one_definition():
    row = request([(0.1, 1), (0.2, 3), (0.3, 1)], speculation=SpeculationCounts(2, 8, 2, (1, 1, 0, 0)))
    counters = [
        Counters(SpeculationCounts(10, 40, 20, (8, 7, 3, 2)), output_tokens=100.0),
        Counters(SpeculationCounts(12, 48, 22, (9, 8, 3, 2)), output_tokens=105.0),
    ]
    found = acceptance_of([block("on", 0, row, before=counters[0], after=counters[1])], True)
    assert found.by_stream == found.by_answers.tokens_per_round == found.by_counters.tokens_per_round == 2.0
    assert found.by_position == (0.5, 0.5, 0.0, 0.0)
    assert acceptance_of([block("on", 0, row)], False).by_stream is None


class _Endpoint(NamedTuple):
    client: SimpleNamespace
    backend = SimpleNamespace(streams_steps=True, drafts_chains=True)
    description: Description


def notes_of(on: Block, off: Block, server: str = "http://localhost:1", off_model: str = "m") -> dict[str, str]:
    client = SimpleNamespace(server=Server(server))
    endpoints = {
        "on": _Endpoint(client, Description(backend="vllm", url=server, model="m")),
        "off": _Endpoint(client, Description(backend="vllm", url=server, model=off_model)),
    }
    load = Load(sampling=ServedSampling(), pace=Pace())
    found = load_notes(endpoints, {"on": [on], "off": [off]}, load)
    return {note.kind: note.text for note in found}


def test_each_guard_is_a_warning_with_its_number():
    off = decoded("off", 0, 0.02)
    rows = decoded("on", 0, 0.01).requests
    for row in rows:
        row.speculation, row.cached_tokens = SpeculationCounts(10, 40, 0), 5
    before, after = (
        Counters(SpeculationCounts(0, 0, 0), output_tokens=0.0),
        Counters(SpeculationCounts(60, 240, 60), output_tokens=5000.0),
    )
    on = block("on", 0, *rows, before=before, after=after, waiting=3.0, cpu=0.9, lag=0.2)
    found = notes_of(on, off, "http://far.example")
    count = len(rows)
    assert f"{count} of {count} prompts were read from a prefix cache (on)" in found["cache hits"]
    assert "up to 3 requests waited in on" in found["queueing"]
    assert "90% of a processor" in found["busy client"] and "200 ms late" in found["busy client"]
    assert f"5000 tokens, of which {20 * count} are ours" in found["foreign traffic"]
    assert "2.000 by the counters" in found["disagreement"] and "1.000 by the answers" in found["disagreement"]
    assert "far.example receives them" in found["remote server"]


def test_servers_of_two_models_are_named():
    found = notes_of(decoded("on", 0, 0.01), decoded("off", 0, 0.02), off_model="n")
    assert "on serves m, off serves n" in found["other models"]


def test_cut_outputs_other_models_and_changed_parameters_are_found():
    rows = decoded("on", 0, 0.01).requests
    rows[0].finish, rows[1].model, rows[2].changed = "length", "other", {"top_p": (1.0, 0.95)}
    found = notes_of(block("on", 0, *rows), decoded("off", 0, 0.02))
    assert f"1 of {len(rows)} outputs of on were cut" in found["truncation"]
    assert "name the model 'other', but 'm' was requested" in found["another model"]
    assert "top_p = 1 was sent, and the server answers that it used 0.95 (on)" in found["changed parameter"]


def test_a_calm_measurement_has_no_warning():
    on, off = decoded("on", 0, 0.01), decoded("off", 0, 0.02)
    for row in on.requests:
        row.tokens = [0] * 39
        row.chunks = [row.chunks[0], *((seconds, 2) for seconds, _ in row.chunks[1:])]
        row.speculation = SpeculationCounts(19, 76, 19)
    assert notes_of(on, off) == {}


def test_buffered_streams_and_missing_usage_are_found():
    late = [request([(5.0, 10), (5.01, 10)], prompt=i) for i in range(6)]
    for row in late:
        row.tokens = row.output_tokens = None
    found = notes_of(block("on", 0, *late), decoded("off", 0, 0.02))
    assert "a proxy may buffer them" in found["buffered stream"]
    assert "chunks are counted as tokens" in found["missing usage"]
    assert "shows no sign of it" not in found.get("no speculation", "")


# Predictions


SHARES = (0.8, 0.6, 0.5, 0.4)


def measured(length: int, rounds: dict[int, float], shares=SHARES, pairs: int = 3) -> MeasuredSpeculation:
    """Return a run with steps of 10 ms, and rounds of so many seconds by concurrency."""
    counts = [counted(shares)] * pairs
    tokens = tokens_per_round(shares, length)
    levels = {
        level: LevelTimes([0.01] * pairs, [seconds / tokens] * pairs, counts) for level, seconds in rounds.items()
    }
    return MeasuredSpeculation(length, levels)


def predicted(*runs: MeasuredSpeculation) -> dict[tuple[int, int], Estimate]:
    return {(row.length, row.concurrency): row.speedup for row in predicted_speedups(runs[0], runs[1:])}


def counted(shares: tuple[float, ...]) -> SpeculationCounts:
    """Return the counts of 1,000 rounds, which have these shares of accepted tokens by position."""
    accepted = tuple(round(1000 * share) for share in shares)
    return SpeculationCounts(1000, 1000 * len(shares), sum(accepted), accepted)


def test_the_model_goes_through_the_measured_speedup_and_is_uncertain_at_other_lengths():
    found = predicted(measured(4, {1: 0.02, 4: 0.025}))
    tokens = 1.0 + sum(SHARES)
    at_4 = found[4, 1]
    assert at_4.value == at_4.low == at_4.high == pytest.approx(tokens / 2.0)
    assert found[4, 4].value == pytest.approx(tokens / 2.5)
    at_1 = found[1, 1]  # between an excess in proportion to the length and one of which half is fixed
    assert 1.8 / 1.625 < at_1.low < at_1.value < at_1.high < 1.8 / 1.25
    assert tokens_per_round(SHARES, 6) == pytest.approx(tokens + 0.4 * 0.8 + 0.4 * 0.8**2)


def test_pairs_of_different_acceptance_widen_the_interval_at_other_lengths_alone():
    shares = [(each / 1000,) * 4 for each in (300, 500, 700)]
    rounds = [tokens_per_round(each, 4) for each in shares]  # a round takes 20 ms, whatever its tokens
    level = LevelTimes([0.01] * 3, [0.02 / tokens for tokens in rounds], [counted(each) for each in shares])
    found = {row.length: row.speedup for row in predicted_speedups(MeasuredSpeculation(4, {1: level}))}
    calm = predicted(measured(4, {1: 0.02}, (0.5,) * 4))
    assert found[1].high - found[1].low > calm[1, 1].high - calm[1, 1].low > 0.0


def test_two_pairs_have_no_interval_at_their_concurrency_alone():
    few, many = measured(4, {1: 0.02}, pairs=2), measured(4, {4: 0.02})
    found = predicted(MeasuredSpeculation(4, {**few.levels, **many.levels}))
    assert found[1, 1].low is None and found[1, 4].low is not None


def test_two_lengths_show_what_a_round_costs_at_length_zero():
    found = predicted(measured(1, {1: 0.016}), measured(3, {1: 0.022}))  # 0.3 steps, and 0.3 for each drafted token
    assert found[2, 1].low == found[2, 1].high == pytest.approx(2.4 / 1.9)
    falling = predicted(measured(1, {1: 0.02}), measured(3, {1: 0.018}))
    assert falling[6, 1].value == pytest.approx(tokens_per_round(SHARES, 6) / 1.9)  # never cheaper with more tokens


def test_the_best_length_is_zero_where_no_length_pays():
    slow = predicted_speedups(measured(2, {1: 0.05}, (0.5, 0.2)))
    assert best_length(slow, 1) == 0
    quick = predicted_speedups(measured(2, {1: 0.011}, (0.9, 0.8)))
    assert best_length(quick, 1) == 8


def test_the_break_even_concurrency_lies_between_measured_ones():
    crossing = break_even({1: Estimate(1.5, 1.4, 1.6), 4: Estimate(1.1, 0.9, 1.3), 16: Estimate(0.8, 0.7, 0.9)})
    assert 4 < crossing[0] < 16 and 1 < crossing[1] < 4 < crossing[2] < 16
    assert break_even({1: Estimate(0.9, 0.8, 1.0), 4: Estimate(0.8, 0.7, 0.9)}) is None
