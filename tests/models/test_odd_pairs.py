"""A draft must not change its target: `ar` in a pair writes what `ar` alone and transformers' `generate` write."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import specbench
from tests.fixtures.odd_pairs import NEW, PROMPTS, Odd, greedy, ids_of, loaded, save

RUNNER = CliRunner()
METHODS = ["ar", "sd", "confidence", "hf-generate"]
PLAIN, NOISY = Odd(eos_at=(15,)), Odd(eos_at=(15,), noise=0.02)
ODD = {  # name: the draft, the target, and the family if it is not Llama
    "equal models": (NOISY, PLAIN),
    "no EOS at all": (Odd(noise=0.02), Odd()),
    "a head padded beyond the tokenizer": (Odd(rows=96, noise=0.02), Odd(rows=128, eos_at=(15,))),
    "a draft padded further than its target": (Odd(rows=128, noise=0.02), Odd(rows=96, eos_at=(15,))),
    "a target that writes a token of its padding": (Odd(rows=96, noise=0.02), Odd(rows=128, plant=120)),
    "a draft whose padding is likely": (Odd(rows=128, plant=120), Odd(rows=94, eos_at=(15,))),
    "an EOS in the padding": (Odd(rows=96, noise=0.02), Odd(rows=128, plant=120, eos=(120,))),
    "a draft with fewer tokens than the tokenizer": (Odd(rows=90, noise=0.02), PLAIN),
    "a draft that lacks a token of the prompt": (Odd(rows=30, noise=0.02), PLAIN),
    "an added EOS that the draft lacks": (NOISY, Odd(rows=95, added=("<eot>",), plant=94, eos=(94,))),
    "an added token that the draft lacks": (NOISY, Odd(rows=95, added=("<tool>",), plant=94, eos_at=(15,))),
    "an added EOS that the target lacks": (Odd(rows=95, added=("<eot>",), plant=94, eos=(94,)), PLAIN),
    "two added tokens, one shared": (Odd(rows=95, added=("<a>",), noise=0.02), Odd(rows=96, added=("<a>", "<b>"), plant=95)),
    "several EOS ids": (Odd(noise=0.02, eos_at=(20,)), Odd(eos_at=(12, 15, 20))),
    "an earlier EOS of the draft": (Odd(noise=0.02, eos_at=(5,)), Odd(eos_at=(18,))),
    "an EOS of the draft only": (Odd(noise=0.02, eos_at=(5,)), Odd()),
    "an EOS of the target only": (Odd(noise=0.02), Odd(eos_at=(9,))),
    "an EOS of the draft that no model has": (Odd(noise=0.02, eos=(4000,)), PLAIN),
    "an EOS in config.json alone": (NOISY, Odd(config_eos=40, generation=False)),
    "an EOS in config.json, none in generation_config.json": (NOISY, Odd(config_eos=40)),
    "a small window of the draft": (Odd(noise=0.02, window=16), PLAIN),
    "a window of the draft that the prompt fills": (Odd(noise=0.02, window=11), PLAIN),
    "a window of the draft smaller than a prompt": (Odd(noise=0.02, window=5), PLAIN),
    "a small window of the target": (NOISY, Odd(window=20)),
    "small windows of both": (Odd(noise=0.02, window=14), Odd(window=20)),
    "learned positions of a small window": (Odd(noise=0.02, window=16), PLAIN, "gpt2"),
    "different chat templates": (Odd(noise=0.02, template="two"), Odd(eos_at=(15,), template="one")),
    "a chat template of the draft only": (Odd(noise=0.02, template="two"), PLAIN),
    "encoder-decoders with different heads": (Odd(rows=60, noise=0.02), Odd(rows=128, eos_at=(10,)), "t5"),
    "encoder-decoders with different EOS": (Odd(noise=0.02, eos_at=(3,)), Odd(eos_at=(10,)), "t5"),
}  # fmt: skip


def written(folder: Path, models: dict[str, str], methods: list[str], **options):
    """Return the records of methods on a pair, by method and prompt."""
    folder.mkdir(exist_ok=True)
    (folder / "pair.toml").write_text("".join(f'[models.{role}]\npath = "{path}"\n' for role, path in models.items()))
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": each}) + "\n" for each in PROMPTS))
    result = specbench.run(
        methods, str(folder / "pair.toml"), "prompts", data=str(folder / "prompts.jsonl"), repeats=1,
        out=folder / "out", fresh=True, **{"chat": "auto", "max_new_tokens": NEW, **options},
    )  # fmt: skip
    return {(each.method, int(each.sample)): each for each in result.records()}


def expected(folder: Path, odd: Odd, family: str = "llama") -> list[list[int]]:
    """Return what `generate` writes, within the target's window."""
    model = loaded(folder, family)
    prompts = [ids_of(prompt, odd) for prompt in PROMPTS]
    rooms = [NEW if family == "t5" else min(NEW, odd.window - len(ids)) for ids in prompts]
    return [greedy(model, ids, room) for ids, room in zip(prompts, rooms, strict=True)]


@pytest.mark.parametrize("name", ODD)
def test_a_draft_does_not_change_what_its_target_writes(name, tmp_path):
    draft, target, family = (*ODD[name], "llama")[:3]
    save(tmp_path / "small", draft, family, target)
    save(tmp_path / "large", target, family)
    wanted = expected(tmp_path / "large", target, family)
    alone = written(tmp_path / "alone", {"target": str(tmp_path / "large")}, ["ar"])
    pair = written(tmp_path / "pair", {"draft": str(tmp_path / "small"), "target": str(tmp_path / "large")}, METHODS)
    assert [alone["ar", i].tokens for i in range(len(PROMPTS))] == wanted
    for (method, i), record in pair.items():
        assert record.error is None, (method, record.error)
        assert record.tokens == wanted[i], method
        assert record.finish == alone["ar", i].finish
    if "lacks a token of the prompt" not in name and "head" not in name:
        assert sum(each.tested for i in range(len(PROMPTS)) for each in pair["sd", i].rounds) > 0
