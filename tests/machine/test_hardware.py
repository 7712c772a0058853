"""What a model reads, and how fast memory copies."""

import gc

import pytest

from specbench.machine.memory import copy_bandwidth, read_bandwidth, without_garbage_collection
from specbench.models.resolved_model import size_of
from tests.fixtures.worlds import ENGINES, FAMILIES, open_session, random_model


@pytest.mark.parametrize("bandwidth", [copy_bandwidth, read_bandwidth])
def test_bandwidth_is_plausible(bandwidth):
    assert 1e8 < bandwidth("cpu") < 1e13


def test_a_forward_reads_all_weights_except_embedding_tables():
    llama = random_model("llama", 1)  # untied: the head is read, the embedding is not
    everything = sum(p.numel() for p in llama.parameters())
    assert size_of(FAMILIES["llama"](), "float32").forward_bytes == 4 * (everything - 40 * 32)
    assert size_of(FAMILIES["llama"](), "bfloat16").forward_bytes == 2 * (everything - 40 * 32)
    gpt2 = random_model("gpt2", 1)  # tied: the embedding is the head, positions are looked up
    assert size_of(FAMILIES["gpt2"](), "float32").forward_bytes == 4 * (
        sum(p.numel() for p in gpt2.parameters()) - 64 * 32
    )
    t5 = random_model("t5", 1)
    decoder = sum(p.numel() for p in t5.decoder.parameters())  # its embedding is the head
    once = 2 * 2 * 32 * 32  # keys and values of the source, in two layers
    assert size_of(FAMILIES["t5"](), "float32").forward_bytes == 4 * (decoder - 8 * 4 - once), (
        "the encoder runs once, buckets are looked up"
    )


@pytest.mark.parametrize(("family", "numbers"), [
    ("llama", 2 * 2 * 2 * 8), ("llama-scaled", 2 * 2 * 1 * 16), ("gpt2", 2 * 2 * 4 * 8), ("gpt-neo", 2 * 2 * 4 * 8),
    ("opt", 2 * 2 * 4 * 8), ("t5", 2 * 2 * 4 * 8),
])  # fmt: skip
def test_a_cached_position_holds_keys_and_values_of_every_layer(family, numbers):
    assert size_of(FAMILIES[family](), "float32").position_bytes == 4 * numbers


@pytest.mark.parametrize("engine", ENGINES)
def test_read_cache_positions_are_counted(engine):
    session = open_session(random_model("llama", 1), engine)
    for ids in ([1, 2, 3, 4], [1, 2, 3, 4, 5], [1, 2, 3, 6, 7]):  # prefill, one after four, two after three
        session.score(ids, len(ids) - 1)
    session.finish()
    assert (session.usage.read, session.usage.forwards, session.usage.fed) == (4 + 3, 2, 3)


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_rests_within_a_timed_block_only(enabled):
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with without_garbage_collection():
            assert not gc.isenabled()
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()
