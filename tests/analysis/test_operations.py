"""Operations of SPRINTER's Table 4 and Figures 1c and 12: for the new tokens, by the paper's count and by all positions."""

from dataclasses import replace

import pytest

from specbench.analysis.method_metrics import gigaflops, papers_gigaflops
from specbench.analysis.metric import METRICS, Context
from specbench.analysis.points import Point, reference_of
from specbench.analysis.theory import forward_flops
from specbench.decoding.traits import Traits
from specbench.features.suites.suite_tables import value_text
from specbench.machine.hardware import Bandwidth
from specbench.runs.record import RoundRecord
from specbench.runs.run_spec import MethodSpec, ModelSource, Shape
from tests.fixtures.records import record, usage_of


def shape(layers: int, d: int, heads: int) -> Shape:
    return Shape(layers=layers, d=d, heads=heads, d_ff=4 * d, vocabulary=50257)


SHAPES = {  # the paper's models
    "gpt-neo": {"draft": shape(12, 768, 12), "target": shape(24, 2048, 16)},
    "gpt2": {"draft": shape(12, 768, 12), "target": shape(48, 1600, 25)},
}
PROMPT = 500
ROLES = Traits(roles=("draft", "target"))


def usage(first: int, later: dict[int, int], encodes: int = 0):
    """The usage of a model whose first forward reads `first` tokens after the prompt but its last token."""
    forwards = {size: (count, 1.0) for size, count in later.items()}
    return usage_of(forwards, prefill_fed=PROMPT - 1 + first, encodes=encodes)


def alone(role: str, tokens: int = 20, **changes):
    return record(f"ar-{role}", "0", tokens, models={role: usage(1, {1: tokens - 1})}, prompt_tokens=PROMPT, **changes)


def context(pair: str, method: Traits, baseline=(), sd=()) -> Context:
    models = {
        role: ModelSource(source=role, dtype="float32", engine="lean", parameters=1, forward_bytes=1.0,
                          position_bytes=1.0, shape=shape)
        for role, shape in SHAPES[pair].items()
    }  # fmt: skip
    spec = MethodSpec(preset="x", options={}, traits=method)
    of_sd = replace(spec, traits=replace(ROLES, flops="drafted"))
    return Context(baseline=baseline, sd=sd, sd_method=of_sd if sd else None, method=spec, models=models,
                   bandwidth=Bandwidth(1.0, "read"))  # fmt: skip


def test_table_4_is_the_cost_of_the_new_tokens_without_the_prompt():
    """6.5 GFLOP for 20 tokens of GPT-Neo-125M after 500 tokens, not 178."""
    shapes = SHAPES["gpt-neo"]
    assert gigaflops([alone("draft")], shapes) == pytest.approx(6.5, abs=0.05)
    assert gigaflops([alone("draft")], shapes) == 20 * forward_flops(s=1, **vars(shapes["draft"])) / 1e9
    source = record(
        models={"draft": usage(2, {1: 19}, encodes=1)}, prompt_tokens=PROMPT
    )  # the source and a start token
    assert gigaflops([source], shapes) == gigaflops([alone("draft")], shapes), "an encoder's source is a prompt"
    unused = record(models={"draft": usage_of({})}, prompt_tokens=PROMPT)
    assert gigaflops([unused], shapes) == 0.0


@pytest.mark.parametrize(
    ("pair", "shown"), [("gpt-neo", "8.72 (paper 8.00, +0.72)"), ("gpt2", "10.09 (paper 10.00, +0.09)")]
)
def test_the_formulas_ratio_stands_beside_the_papers(pair, shown):
    target, draft = [alone("target")], [alone("draft")]
    ratio = METRICS["flops_ratio"].compute(draft, context(pair, ROLES, baseline=target))
    assert METRICS["flops_ratio"].compute(target, context(pair, ROLES, baseline=target)) is None
    printed = {each.metric: each.value for each in reference_of("sprinter-table4") if each.pair == pair}
    point = Point(
        pair=pair, task="wiki-summary", T=0.0, method="ar-draft", run="r", values={"flops_ratio": ratio}, paper=printed
    )
    assert value_text(point, "flops_ratio") == shown


def test_sprinters_saving_is_counted_as_in_the_paper_and_by_all_positions_that_were_read():
    """One run of 20 drafts and four rounds of 5. The target reads all of them either way, so 7.5 times fewer by the
    paper's count is no saving by positions.
    """

    def rounds(size: int):
        return [
            RoundRecord(tokens=size, drafted=size, tested=size, accepted=size, proposers=["draft"] * size)
            for _ in range(20 // size)
        ]

    sd = [record("sd", "0", 20, rounds=rounds(5), prompt_tokens=PROMPT,
                 models={"draft": usage(1, {1: 19}), "target": usage(6, {5: 3})})]  # fmt: skip
    (run,) = rounds(20)
    run = replace(run, tested=1, accepted=1, proposers=["draft"], untested=19)
    ours = [record("sprinter", "0", 20, rounds=[run], prompt_tokens=PROMPT,
                   models={"draft": usage(1, {1: 19}), "target": usage(21, {})})]  # fmt: skip
    of = context("gpt-neo", replace(ROLES, flops="tested"), sd=sd)
    q, p = (forward_flops(s=1, **vars(SHAPES["gpt-neo"][role])) for role in ("draft", "target"))
    papers = METRICS["papers_flops_ratio_sd"].compute(ours, of)
    assert papers == pytest.approx((20 * q + 20 * p) / (20 * q + p))
    assert papers_gigaflops(ours, of.method.traits, SHAPES["gpt-neo"]) == pytest.approx((20 * q + p) / 1e9)
    assert METRICS["flops_ratio_sd"].compute(ours, of) == pytest.approx(1.0)
    assert METRICS["flops_ratio_sd"].compute(sd, of) is None
