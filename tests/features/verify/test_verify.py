"""`specbench verify`: sound methods pass, mutants fail, and its odds are what it says.

Seeds are fixed, so every test is deterministic. Were they drawn again, a sound method would fail once in 1,000 runs
(the sum over all of its sampled checks, by Ville's inequality), and its greedy checks never, in float32.
"""

import json
import re
from dataclasses import replace

import pytest
import torch

from specbench import tasks as tasks  # registers them
from specbench.config.options import Options
from specbench.config.pair import PACKAGE
from specbench.data.prompting import encode
from specbench.decoding import rejection as rejection_module
from specbench.decoding.drafting import roll
from specbench.decoding.method import Method
from specbench.decoding.rejection import Verified, verify
from specbench.decoding.sampling import Draft, Sampler
from specbench.features.exactness.outcome import Outcome
from specbench.features.verify.case import Case, Decoding
from specbench.features.verify.verification_run import verify as verified
from specbench.methods.speculative import Speculative
from specbench.models import cached_session as session
from specbench.models import engines
from specbench.models import loader as models
from specbench.models.heads.resolve_heads import resolve_heads
from specbench.models.lean import LeanModelRunner
from specbench.models.resolve_models import Execution, device_of, resolve_models
from specbench.resolution import selection
from specbench.resolution.methods import Methods
from tests.fixtures.console import specbench
from tests.fixtures.worlds import stale

LOSSLESS = "ar we cd dtr sd we-sd cd-sd dtr-sd se cd-se dtr-se adaedl confidence pld".split()
DECLARED = (
    "ar-draft bild-star cascade-chow cascade-chow-log cascade-diff cascade-diff-log cascade-opt cascade-opt-log"
    " cascade-token lossy lossy-star lossy-star-budget oracle-diff token-cascade"
).split()
HEADED = "dsl specdec++ eagle polybasic-model polybasic-pld".split()  # what reads a head, or a middle model, besides
ACROSS_ENCODERS = "sd we-sd se cascade-opt lossy token-cascade".split()  # one of each kind; the others are slow
UNDRAFTED = "ar we cd dtr pld eagle ar-draft oracle-diff token-cascade".split()  # at least by no model
ENOUGH = {"cuts": 18, "decoding": Decoding(24)}  # for a mutant; sound methods take less


class World:
    """A bundled pair loaded twice, and its prompts. Ensembles are of draft and target, the cheapest two models."""

    def __init__(self, name: str, *names: str, overrides: tuple[tuple[str, str], ...] = ()) -> None:
        self.options = Options(limit=2, device="cpu", overrides=(("pair.ensemble", ["draft", "target"]), *overrides))
        found_pair, self.pair = selection.read_pair(name, self.options)
        base, device = found_pair.path.parent, device_of("cpu")
        needed = tuple(role for role in ("draft", "middle", "target") if role in self.pair.models)
        self.found = resolve_models(self.pair, needed, base, Execution(device))
        heads = tuple(head for head, spec in self.pair.heads.items() if spec.base in needed)
        self.loaded = models.load(self.found, base, device, resolve_heads(self.pair, heads, base))
        eager = resolve_models(self.pair, needed, base, Execution(device, "auto", "eager"))
        self.reference = models.load(eager, base, device)
        chosen = [selection.read_task(each, self.pair, self.options)[1] for each in names]
        data = [selection.limited(each.data("synthetic"), self.pair, self.options).samples for each in chosen]
        rows = [(task, samples[i]) for i in range(2) for task, samples in zip(chosen, data, strict=True)]
        self.prompts = [encode(self.loaded.tokenizer, *row, [], self.loaded.window).ids for row in rows]

    def case(self, name: str, **more: object) -> Case:
        """The case of a preset, small: a prompt, six outputs sampled of it, 16 tokens. So few need a coarser
        control where it is the distribution at another temperature, and more outputs."""
        group = Methods((name,), self.pair, self.options).groups(
            {role: each.size.parameters for role, each in self.found.items()}
        )
        more = {"cuts": 12 if name in UNDRAFTED else 6, **more}
        return self.of(group[0][-1].method, group[0][0].method, **more)

    def of(self, tested: Method, baseline: Method, **more: object) -> Case:
        self.baseline = baseline
        roles = tested.roles()
        pairs = self.loaded.only(roles), self.reference.only(roles)
        return replace(Case(tested, *pairs, torch.float32, self.prompts[:1], Decoding(16), warmer=2.0), **more)

    def verdict(self, name: str, **more: object):
        case = self.case(name, **more)
        return verified(case, name, self.baseline)


@pytest.fixture(scope="module")
def tiny():
    return World("tiny", "gsm8k", "wmt", "mmlu", "humaneval", "xsum")


@pytest.fixture(scope="module")
def t5():
    return World("tiny-t5", "xsum")


def failures(verdict) -> set[str]:
    """The checks that failed, without the temperature."""
    return {check.name.partition(",")[0] for check in verdict.checks if check.passed is False}


def passes(verdict, name) -> None:
    """The right kind of pass, the control rejected, and acceptance as expected where a model
    drafts.
    """
    lossy = "which is lossy" in verdict.line
    assert verdict.outcome == Outcome.unfound and lossy == (name in DECLARED), verdict
    acceptance = [check.numbers.get("rounds", 0) for check in verdict.checks if "acceptance" in check.name]
    assert len(acceptance) == 2 and (acceptance == [0, 0]) == (name in UNDRAFTED), acceptance


@pytest.mark.parametrize("name", [*LOSSLESS, *HEADED, *"ar-draft cascade-opt lossy-star token-cascade".split()])
def test_sound_methods_pass_on_a_decoder(tiny, name):
    passes(tiny.verdict(name), name)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ACROSS_ENCODERS else pytest.mark.slow)
        for name in [*LOSSLESS, *DECLARED]
        if not name.endswith("-log")
    ],
)
def test_sound_methods_pass_on_an_encoder_decoder(t5, name):
    passes(t5.verdict(name), name)


@pytest.mark.parametrize("kept", [1, -1], ids=["one entry too many", "one entry too few"])
def test_a_cache_truncated_by_one_too_few_fails(tiny, kept, monkeypatch):
    """Greedy output departs after some unsupported, and there is no chance in it.

    An entry is a stale token's, or lost.
    """

    monkeypatch.setattr(engines, "LeanModelRunner", stale(LeanModelRunner, kept))
    verdict = tiny.verdict("sd", temperature=0.0, prompts=tiny.prompts, decoding=Decoding(24))
    assert (
        verdict.outcome == Outcome.differs
        and verdict.line.startswith("NOT exact: sd: it departs from the distribution of target")
        and "greedy tokens" in failures(verdict)
    )


def test_a_replacement_drawn_from_the_target_fails(tiny, monkeypatch):
    """p instead of norm((p - q)+).

    Greedy output is right, sampled output leans to the draft. p is below 1e-3 / 12 by far.
    """
    monkeypatch.setattr(rejection_module, "residual", lambda pi, q: pi)
    verdict = tiny.verdict("sd", **ENOUGH)
    assert verdict.outcome == Outcome.differs and failures(verdict) & {"first tokens", "later tokens"}
    assert not failures(verdict) & {"greedy tokens", "greedy acceptance", "acceptance"}


def test_a_bonus_from_the_target_where_the_target_is_a_mixture_fails(tiny, monkeypatch):
    """As transformers' assisted ensembles have it. At gamma 1 about every third token is such a bonus."""
    scorers = ("draft", "target")
    monkeypatch.setattr(Speculative, "declared_distribution", lambda self: (self.scorers, self.target))
    drafting = Methods(("we-sd",), tiny.pair, tiny.options).groups(dict.fromkeys(tiny.found, 1))[0][-1].method
    biased = replace(drafting, bonus="paper")
    assert biased.scorers == scorers
    verdict = verified(tiny.of(biased, biased, **ENOUGH), "biased", biased)
    assert verdict.outcome == Outcome.differs and "later tokens" in failures(verdict)
    assert "first tokens" not in failures(verdict)  # which are never a bonus


def test_drafts_drawn_from_another_distribution_than_they_report_fail(tiny, monkeypatch):
    """Drawn at half the temperature, tested as if they had not been."""

    def sharp(session_, ids, k, sampler, eos, rule=None):
        draft = roll(session_, ids, k, Sampler(sampler.temperature / 2, generator=sampler.generator), eos, rule)
        read = ids + draft.tokens[:-1]
        return Draft(draft.tokens, sampler.probs(session_.score(read, len(ids) - 1))) if draft.tokens else draft

    monkeypatch.setattr(session, "roll", sharp)
    verdict = tiny.verdict("sd", **ENOUGH)
    assert verdict.outcome == Outcome.differs and "later tokens" in failures(verdict)


def test_a_first_token_that_is_never_tested_fails(tiny, monkeypatch):
    """Committed whatever the test says.

    Greedy output shows it, and so does the distribution of an output's first token.
    """

    def credulous(draft, pi, sampler, unread=None):
        if not draft.tokens:
            return verify(draft, pi, sampler, unread)
        rest = verify(Draft(draft.tokens[1:], draft.probs[1:]), pi[1:], sampler) if len(pi) > 1 else Verified([], 0)
        return Verified([draft.tokens[0], *rest.tokens], 1 + rest.accepted)

    monkeypatch.setattr(rejection_module, "verify", credulous)
    found = failures(tiny.verdict("sd", **ENOUGH))
    assert {"greedy tokens", "greedy acceptance", "first tokens", "later tokens", "acceptance"} <= found


def test_a_draft_whose_cache_misses_a_token_after_full_acceptance_fails(tiny, monkeypatch):
    """Output stays right, acceptance does not: where two tokens are new to the drafter, it reads the second alone."""

    class Forgetful(LeanModelRunner):
        missed = 0

        def feed(self, feed, rows):
            feed = feed._replace(start=feed.start - self.missed)
            if self.network is tiny.loaded.models["draft"].network and feed.start and len(feed.tokens) == 2:
                self.missed += 1
                feed = feed._replace(tokens=feed.tokens[1:])
            return super().feed(feed, rows)

    monkeypatch.setattr(engines, "LeanModelRunner", Forgetful)
    verdict = tiny.verdict("sd", temperature=0.0, prompts=tiny.prompts, decoding=Decoding(24))
    assert failures(verdict) == {"greedy acceptance"} and "no departure from" in verdict.line


def test_a_control_that_looks_like_the_distribution_makes_a_pass_inconclusive(tiny):
    """One output of one token cannot tell the draft from the target."""
    verdict = tiny.verdict("sd", prompts=tiny.prompts[:1], cuts=1, decoding=Decoding(1))
    assert verdict.outcome == Outcome.inconclusive and failures(verdict) == {"control"}


def test_a_greedy_verdict_mentions_that_nothing_was_sampled(tiny):
    verdict = tiny.verdict("sd", temperature=0.0)
    assert (
        verdict.outcome == Outcome.unfound
        and "sampled outputs were not tested" in verdict.line
        and len(verdict.checks) == 2
    )


def test_the_command_prints_text_and_json(tmp_path):
    models = "--target", PACKAGE / "tiny" / "models" / "target", "--draft", PACKAGE / "tiny" / "models" / "draft"
    few = "-t", "wmt", "--data", "synthetic", "-n", "2", "--repeats", "2"
    done = specbench("verify", "-m", "sd", *models, *few, "--json", cwd=tmp_path)
    report = json.loads(done.stdout)
    assert (
        report["outcome"] == "exact"
        and report["lossless"]
        and report["engine"] == "lean"
        and report["tasks"] == ["wmt"]
    )
    assert [check["passed"] for check in report["checks"]] == [True] * 7
    text = " ".join(done.stderr.split())
    assert (
        "exact: sd follows the distribution of target, so it is lossless: enumerated exactly; no departure in" in text
    )
    assert re.search(r"\(would have missed (even )?rules (less than )?[\d.]+x too lenient; ", text)


def test_the_command_fails_a_method_that_is_not_lossless(tmp_path, monkeypatch):
    monkeypatch.setattr(rejection_module, "residual", lambda pi, q: pi)
    done = specbench("verify", "-t", "wmt,gsm8k", "-n", "2", "--repeats", "9", "-m", "sd", cwd=tmp_path, code=5)
    assert done.stdout.splitlines()[-1].startswith("NOT exact: sd: it departs from the distribution of target")


def test_a_method_that_declares_no_distribution_is_not_verified_and_a_biased_bonus_is_named(tmp_path):
    done = specbench("verify", "-m", "cascade-opt", "-s", "method.bonus=paper", cwd=tmp_path, code=6)
    assert done.stdout.count("\n") == 1 and "biases the output" in done.stdout
    done = specbench("verify", "-m", "bild", "-p", "tiny-t5", cwd=tmp_path, code=6)
    assert done.stdout.startswith("cannot be verified: bild declares no distribution"), (
        "greedy methods are at T = 0 by default"
    )
    done = specbench("verify", "-m", "sprinter", cwd=tmp_path, code=6)
    assert done.stdout == "cannot be verified: sprinter declares no distribution that its output follows\n"


def test_synthetic_logits_are_rejected(tmp_path):
    done = specbench("verify", "-m", "sd", "-s", "pair.logits=synthetic", cwd=tmp_path, code=2)
    assert "synthetic logits" in done.stderr
