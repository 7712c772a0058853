"""Models that lack tokens or positions of their pair: exact distributions, EOS ids of mixtures, reasons of truncation."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import specbench
from specbench.cli.app import app
from specbench.decoding import rejection
from specbench.decoding.rejection import verify_at_once
from specbench.decoding.targets import Diff, Last, Mixture
from specbench.errors import ConfigError
from specbench.features.exactness.exactness_check import CheckKind
from specbench.features.verify.enumeration import TableModels, TableSession, distance, joint_distribution
from specbench.methods.autoregressive import Autoregressive
from specbench.methods.proposers import Chain, DraftModel
from specbench.methods.speculative import Speculative
from specbench.methods.speculative_ensemble import SpeculativeEnsemble
from specbench.models.cached_session import CachedSession
from specbench.models.limited_session import LimitedSession, Reach
from tests.fixtures.odd_pairs import PROMPTS, Odd, save
from tests.models.test_odd_pairs import written

RUNNER = CliRunner()
V, LENGTH = 3, 3
NARROW = {"entries": 2, "embedded": 2, "window": None}
WIDE = {"entries": V, "embedded": V, "window": None}


def world(deciding: tuple[str, ...] = ("c",), **reaches: dict) -> TableModels:
    """Return table models by role, each with its own number of tokens and window, in a pair of V tokens."""
    made = {}
    for i, (role, each) in enumerate(reaches.items()):
        table = TableSession(each["entries"], i)
        made[role] = LimitedSession(table, Reach(role, **each), V, None, role in deciding)
    return TableModels(made, vocabulary=V)


SD = Speculative(proposer=DraftModel(model="a", gamma=2), scorers=("c",), target=Last())
CHAIN = Speculative(
    proposer=Chain(proposer=DraftModel(model="a", gamma=2), model="b", threshold=2), scorers=("c",), target=Last()
)


@pytest.mark.parametrize("sampling", [{"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.75}, {"temperature": 0.0}])
@pytest.mark.parametrize(
    ("method", "reaches"),
    [
        (SD, {"a": NARROW, "c": WIDE}),
        (SD, {"a": WIDE | {"window": 2}, "c": WIDE}),
        (SD, {"a": NARROW | {"window": 2}, "c": WIDE}),
        (CHAIN, {"a": WIDE, "b": NARROW, "c": WIDE}),
        (CHAIN, {"a": NARROW, "b": WIDE, "c": WIDE}),
        (CHAIN, {"a": WIDE, "b": WIDE | {"window": 3}, "c": WIDE}),
    ],
)
def test_outputs_follow_the_target_exactly_whatever_the_draft_lacks(method, reaches, sampling):
    plain = Autoregressive(scorers=("c",), target=Last())
    wanted = joint_distribution(plain, world(**reaches), LENGTH, **sampling)
    assert distance(joint_distribution(method, world(**reaches), LENGTH, **sampling), wanted) < 1e-9


def test_a_token_that_a_member_lacks_has_its_share_of_the_other_members():
    """The mixture has half of the wide member's probability there, and no output goes on after it."""
    models = world(("a", "c"), a=NARROW, c=WIDE)
    plain = Autoregressive(scorers=("a", "c"), target=Mixture())
    first = joint_distribution(plain, models, 1, temperature=1.0)
    p = [F.softmax(-1) for F in (TableSession(2, 0).score([0], 0)[0], TableSession(V, 1).score([0], 0)[0])]
    assert first[2,] == pytest.approx(float(p[1][2]) / 2)
    assert first[0,] == pytest.approx(float(p[0][0] + p[1][0]) / 2)
    for method in (
        Speculative(proposer=DraftModel(model="a", gamma=2), scorers=("a", "c"), target=Mixture(), bonus="none"),
        SpeculativeEnsemble(models=("c", "a"), gamma=(1, 1), target=Mixture()),
    ):
        assert distance(joint_distribution(method, models, 1, temperature=1.0), first) < 1e-9
    with pytest.raises(ValueError, match="model 'a' cannot read token 2: it has 2 tokens"):
        joint_distribution(plain, models, 2, temperature=1.0)


def test_a_cascade_reports_a_token_that_its_draft_cannot_read():
    models = world(a=NARROW, c=WIDE)
    method = Autoregressive(scorers=("a", "c"), target=Diff(alpha=-1.0))
    with pytest.raises(ValueError, match="model 'a' cannot read token 2"):
        joint_distribution(method, models, 2, temperature=1.0)


def pair(folder: Path, ensemble: bool = False, family: str = "llama", **odd: Odd) -> dict[str, str]:
    """Write checkpoints; returns their folders by role. The last is the target."""
    plain = list(odd.values())[-1]
    return {role: str(save(folder / role, each, family, plain)) for role, each in odd.items()}


def ensemble_of(folder: Path, methods: list[str], **odd: Odd):
    paths = pair(folder, **odd)
    text = f"ensemble = {list(odd)}\n" + "".join(f'[models.{role}]\npath = "{path}"\n' for role, path in paths.items())
    (folder / "ensemble.toml").write_text(text)
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": each}) + "\n" for each in PROMPTS))
    result = specbench.run(
        methods, str(folder / "ensemble.toml"), "prompts", data=str(folder / "prompts.jsonl"), repeats=1,
        out=folder / "out", max_new_tokens=24, temperature=0.0,
    )  # fmt: skip
    return {(each.method, int(each.sample)): each for each in result.records()}


def test_an_ensemble_stops_at_the_eos_of_any_member(tmp_path):
    one, two = Odd(noise=0.3, eos=(5,)), Odd(rows=95, added=("<eot>",), plant=94, eos=(94,))
    found = ensemble_of(tmp_path, ["we", "we-se", "we-sd"], one=one, two=two)
    assert all(record.error is None for record in found.values())
    ends = {record.tokens[-1] for record in found.values() if record.finish == "eos"}
    assert 94 in ends, "the first member lacks it"
    for (method, i), record in found.items():
        assert record.tokens == found["we", i].tokens, method


def test_contrastive_decoding_writes_only_tokens_that_both_models_have(tmp_path):
    models = pair(tmp_path, draft=Odd(noise=0.1), target=Odd(rows=128, plant=120))
    found = written(tmp_path / "run", models, ["cd", "cd-se", "cd-sd", "ar"], temperature=0.0)
    assert all(record.error is None for record in found.values())
    for (method, i), record in found.items():
        if method != "ar":
            assert max(record.tokens) < 94
            assert record.tokens == found["cd", i].tokens
    assert 120 in found["ar", 0].tokens, "the run of the target alone is not cropped"


def test_a_method_that_needs_the_draft_ends_at_its_window_and_names_it(tmp_path):
    models = pair(tmp_path, draft=Odd(noise=0.02, window=20), target=Odd())
    found = written(
        tmp_path / "run", models, ["ar", "sd", "cascade-opt", "token-cascade", "seq-cascade-threshold", "bild"],
        temperature=0.0,
    )  # fmt: skip
    for i in range(len(PROMPTS)):
        for method in ("ar", "sd", "bild"):
            assert (found[method, i].finish, found[method, i].window_of) == ("length", ""), method
        for method in ("cascade-opt", "token-cascade", "seq-cascade-threshold"):
            record = found[method, i]
            assert (record.finish, record.window_of) == ("window", "draft"), (method, record.error)
    (folder,) = (tmp_path / "run" / "out").iterdir()
    report = " ".join(RUNNER.invoke(app, ["report", str(folder), "--full"]).output.split())
    assert "! outputs cut by the context window of 'draft': cascade-opt 100%" in report
    assert "! outputs cut by the length limit: ar 100%, sd 100%" in report


def test_a_prompt_that_a_needed_model_cannot_read_fails_with_the_reason(tmp_path):
    models = pair(tmp_path, draft=Odd(noise=0.02, window=5), target=Odd())
    found = written(tmp_path / "run", models, ["ar", "cascade-opt"], temperature=0.0)
    assert found["ar", 1].error is None
    assert "the prompt has 11 tokens, but the context window of 'draft' is 5" in found["cascade-opt", 1].error


def test_a_prompt_with_a_token_that_the_target_lacks_fails_with_the_reason(tmp_path):
    models = pair(tmp_path, draft=Odd(), target=Odd(rows=60))
    found = written(tmp_path / "run", models, ["ar", "sd"])
    for (_, i), record in found.items():
        assert f"model 'target' cannot read token {(64, 71)[i]}: it has 60 tokens" in record.error


def test_a_long_prompt_is_truncated_for_the_target_and_not_for_its_draft(tmp_path):
    large = Odd(window=30)
    models = pair(tmp_path, draft=Odd(noise=0.02, window=20), target=large)
    options = {"on_overflow": "truncate-left", "max_new_tokens": 22}
    found = written(tmp_path / "run", models, ["ar", "sd"], **options)
    alone = written(tmp_path / "alone", {"target": models["target"]}, ["ar"], **options)
    for (method, i), record in found.items():
        assert record.prompt_cut == alone["ar", i].prompt_cut == (0, 3)[i]
        assert record.tokens == alone["ar", i].tokens, method


@pytest.mark.parametrize("command", ["run", "verify"])
def test_an_eos_id_outside_the_vocabulary_is_an_error(command, tmp_path):
    models = pair(tmp_path, draft=Odd(), target=Odd(eos=(4000,)))
    (tmp_path / "pair.toml").write_text("".join(f'[models.{k}]\npath = "{v}"\n' for k, v in models.items()))
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "abc"}\n')
    words = [command, "-m", "sd", "-p", f"{tmp_path}/pair.toml", "-t", "prompts", "--data", f"{tmp_path}/prompts.jsonl"]
    found = RUNNER.invoke(app, [*words, *(["-o", f"{tmp_path}/out"] if command == "run" else [])])
    assert isinstance(found.exception, ConfigError | SystemExit)
    text = " ".join(found.output.split()) + str(found.exception)
    assert "model 'target'" in text
    assert "EOS id 4000, and 94 tokens" in text and "eos_token_id" in text


@pytest.mark.parametrize(
    "odd",
    [
        {"draft": Odd(noise=0.02), "target": Odd(rows=95, added=("<eot>",), plant=94, eos=(94,))},
        {"draft": Odd(rows=90, noise=0.02), "target": Odd()},
        {"draft": Odd(rows=30, noise=0.02), "target": Odd()},
        {"draft": Odd(noise=0.02, window=8), "target": Odd()},
    ],
)
def test_verify_accepts_pairs_whose_draft_lacks_tokens_or_positions(odd, tmp_path, enumerated_once):
    models = pair(tmp_path, **odd)
    (tmp_path / "pair.toml").write_text("".join(f'[models.{k}]\npath = "{v}"\n' for k, v in models.items()))
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": each}) + "\n" for each in PROMPTS))
    data = {"data": str(tmp_path / "prompts.jsonl"), "limit": 2, "repeats": 2, "temperature": 1.0}
    found = specbench.verify("sd", str(tmp_path / "pair.toml"), "prompts", **data)
    failed = [check for check in found.checks if check.passed is False and check.kind is not CheckKind.control]
    assert not failed


def test_a_method_that_combines_logits_under_a_baseline_that_does_not_is_rejected(tmp_path):
    models = pair(tmp_path, draft=Odd(), target=Odd(rows=128))
    (tmp_path / "mine.toml").write_text(
        'description = "x"\nbaseline = "ar"\nname = "autoregressive"\nscorers = ["draft", "target"]\n'
        'target = { name = "contrastive" }\n'
    )
    with pytest.raises(
        ConfigError, match="mine combines the logits of draft, target, and 'draft' has 94 of 128 tokens"
    ):
        written(tmp_path / "run", models, [str(tmp_path / "mine.toml")])


def test_rows_of_a_wider_draft_are_cropped_and_those_of_a_narrower_one_padded():
    table = TableSession(2, 0)
    rows = LimitedSession(table, Reach("a", **NARROW), V, None, strict=False).score([0, 1], 0)
    assert rows.shape == (2, V)
    assert torch.equal(rows[:, :2], table.score([0, 1], 0))
    assert bool((rows[:, 2] == -torch.inf).all())


@pytest.mark.parametrize("draft", [Odd(rows=90, noise=0.02), Odd(noise=0.02, window=16), Odd(rows=128, plant=120)])
def test_drafts_that_are_read_at_once_as_on_a_gpu_do_not_change_the_target_either(draft, tmp_path, monkeypatch):
    monkeypatch.setattr(CachedSession, "roll", CachedSession.roll_at_once)
    monkeypatch.setattr(rejection, "verify", verify_at_once)
    found = written(tmp_path / "run", pair(tmp_path, draft=draft, target=Odd(eos_at=(15,))), ["ar", "sd"])
    for i in range(len(PROMPTS)):
        assert found["sd", i].tokens == found["ar", i].tokens
        assert sum(each.tested for each in found["sd", i].rounds) > 0
