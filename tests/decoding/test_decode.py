"""The driver: where it cuts, and what it counts."""

import time
from functools import partial

import pytest
import torch

from specbench.decoding.loop import Generation, GenerationLimits
from specbench.decoding.method import Method, Round, StopCriteria
from specbench.decoding.sampling import Sampler, depths
from specbench.decoding.targets import Chow, Diff, Last, Mixture
from specbench.features.verify.enumeration import TableModels
from specbench.methods.autoregressive import Autoregressive
from specbench.methods.bild import OriginalBild
from specbench.methods.proposers import DraftModel
from specbench.methods.sequential_cascades import SequenceCascade, TokenCascade
from specbench.methods.speculative import Speculative
from specbench.methods.speculative_ensemble import SpeculativeEnsemble
from tests.fixtures.worlds import decode, open_models, random_model, table_world

EOS = 99


class Blocks(Method, name="test-blocks"):
    """Commits given blocks: accepted tokens and a last one, the replacement or bonus."""

    def __init__(self, blocks: list[list[int]]) -> None:
        self.committed = blocks

    def roles(self) -> tuple[str, ...]:
        return ()

    def rounds(self, models, sampler, stop: StopCriteria):
        for block in self.committed:
            k = len(block) - 1
            yield Round(block, drafted=k, tested=k, accepted=k, proposers=("a",) * k)


def run(blocks: list[list[int]], **limits) -> Generation:
    limits = {"eos": frozenset({EOS}), "max_new_tokens": 100} | limits
    return decode(Blocks(blocks), TableModels({}), Sampler(), GenerationLimits(**limits))


def check_identities(out: Generation) -> None:
    """committed = accepted + replaced + bonus, round by round (docs/papers/drafting.md, Counters)."""
    assert sum(len(round_.tokens) for round_ in out.rounds) == len(out.tokens)
    for round_ in out.rounds:
        assert round_.accepted <= round_.tested <= round_.accepted + 1
        assert 0 <= len(round_.tokens) - round_.accepted <= 1
        assert len(round_.proposers) == round_.tested


@pytest.mark.parametrize("offset", range(4))
def test_eos_at_every_offset_of_a_block(offset):
    block = [1, 2, 3, 4]
    block[offset] = EOS
    out = run([[5, 6], block, [7, 8]])
    assert out.tokens == [5, 6, *block[: offset + 1]]
    assert out.finish == "eos"
    check_identities(out)


@pytest.mark.parametrize("offset", range(4))
def test_a_stop_string_at_every_offset_of_a_block(offset):
    """`!?` spans two tokens, and may span two blocks; the token that completes it is the last."""
    block = [1, 2, 3, 4]
    block[offset] = 51
    letters = {50: "!", 51: "?"}
    out = run(
        [[5, 50], block, [7, 8]] if offset == 0 else [[5, 6], [*block[: offset - 1], 50, *block[offset:]]],
        stop=("!?",),
        detokenize=lambda ids: "".join(letters.get(i, "x") for i in ids),
    )
    assert out.tokens[-2:] == [50, 51]
    assert out.finish == "stop"
    check_identities(out)


@pytest.mark.parametrize("most", range(1, 8))
def test_max_new_tokens_need_not_fit_the_blocks(most):
    out = run([[1, 2, 3, 4], [5, 6, 7, 8]], max_new_tokens=most)
    assert out.tokens == list(range(1, most + 1))
    assert out.finish == "length"
    check_identities(out)


def test_the_end_of_the_context_window():
    models = table_world(3)
    sampler = Sampler()
    limits = GenerationLimits(eos=frozenset(), max_new_tokens=50, window=6)
    for method in every_method():
        out = decode(method, models, sampler, limits)
        assert (len(out.tokens), out.finish) == (5, "window"), "the prompt has one token"
        check_identities(out)


def test_a_prompt_beyond_the_window_is_an_error():
    with pytest.raises(ValueError, match="1 tokens, but the context window of the models is 1"):
        run([], window=1)


def every_method() -> list[Method]:
    return [
        Autoregressive(scorers=("a", "b"), target=Mixture()),
        Speculative(proposer=DraftModel(model="a", gamma=4), scorers=("b",), target=Last()),
        Speculative(proposer=DraftModel(model="a", gamma=4), scorers=("a", "b"), target=Mixture(), bonus="none"),
        SpeculativeEnsemble(models=("a", "b"), gamma=(1, 1), target=Mixture()),
        SpeculativeEnsemble(models=("a", "b", "c"), gamma=(3, 2, 1), target=Mixture()),
        *(
            Speculative(
                proposer=DraftModel(model="a", gamma=2), scorers=("a", "b"), target=Diff(alpha=0.05), bonus=bonus
            )
            for bonus in ("deferred", "exact", "none", "paper")
        ),
        TokenCascade(small="a", large="b", target=Chow(alpha=0.4)),
        SequenceCascade(small="a", large="b", threshold=0.05),
        OriginalBild(small="a", large="b", fallback=0.5, rollback=1.0, gamma=3),
    ]


@pytest.mark.parametrize("most", [1, 2, 3, 7])
def test_methods_never_read_past_the_last_token(most):
    """No model is fed beyond what the length limit lets be committed: at most one position short of it."""
    for method in every_method():
        models, longest = table_world(3), 0

        def scored(score, ids, start, tree=None):
            nonlocal longest
            longest = max(longest, len(ids) + max(depths(tree.parents if tree else ()), default=-1) + 1)
            return score(ids, start, tree)

        for session in models.sessions.values():
            session.score = partial(scored, session.score)
        out = decode(method, models, Sampler(), GenerationLimits(eos=frozenset(), max_new_tokens=most))
        assert len(out.tokens) == most
        assert 0 < longest <= most, "to commit token n, n - 1 new tokens are read after a prompt of one"
        check_identities(out)


def test_eos_in_a_draft_ends_generation_only_when_it_is_verified():
    """With EOS likely, drafts contain it, accepted and rejected; every output ends at its first EOS or at the limit."""
    ends = set()
    for method in every_method():
        for seed in range(20):
            sampler = Sampler(generator=torch.Generator().manual_seed(seed))
            out = decode(method, table_world(3), sampler, GenerationLimits(eos=frozenset({1}), max_new_tokens=6))
            assert 1 not in out.tokens[:-1]
            assert out.finish == ("eos" if out.tokens[-1] == 1 else "length")
            check_identities(out)
            ends.add(out.finish)
    assert ends == {"eos", "length"}


def test_prefill_is_each_models_first_forward_and_all_else_is_decoding():
    """Real sessions: their seconds are disjoint, and add up to the clock but for what is outside forwards."""
    models = open_models({role: random_model("llama", seed) for seed, role in enumerate("ab")}, [1, 2, 3])
    method = SpeculativeEnsemble(models=("a", "b"), gamma=(1, 1), target=Mixture())
    begin = time.perf_counter()
    out = decode(method, models, Sampler(), GenerationLimits(eos=frozenset(), max_new_tokens=20))
    wall = time.perf_counter() - begin
    usage = [models[role].usage for role in "ab"]
    assert [each.prefill_fed for each in usage] == [3, 4], "the second model's first forward reads the draft too"
    assert out.prefill_seconds == sum(each.prefill_seconds for each in usage) > 0
    assert out.forward_seconds == sum(each.seconds for each in usage) > 0
    assert 0 < out.forward_seconds < out.decode_seconds < wall - out.prefill_seconds
    assert out.prefill_seconds < out.first_token_seconds < out.prefill_seconds + out.decode_seconds


@pytest.mark.parametrize("by", ["d", ("draft",), ("draft", "draft", "draft")])
def test_a_round_names_a_role_for_each_tested_token(by):
    with pytest.raises(ValueError, match="tuple of 2 roles" if by != "d" else "tuple of 1 roles"):
        Round([1, 2], drafted=2, tested=1 if by == "d" else 2, accepted=1, proposers=by)
    assert Round([1, 2], drafted=2, tested=2, accepted=1).proposers == ()
