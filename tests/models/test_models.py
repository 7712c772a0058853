"""Pairs into sessions: shared vocabularies, rejected tokenizers, missing models, load policy."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    PreTrainedTokenizerFast,
    T5ForConditionalGeneration,
)

from specbench.config.construct import construct
from specbench.config.pair import Pair
from specbench.decoding.targets import Last, Mixture
from specbench.errors import ConfigError, MissingAsset
from specbench.methods.autoregressive import Autoregressive
from specbench.models import engines
from specbench.models.engines import Lean, token_seconds
from specbench.models.loader import load
from specbench.models.resolve_models import Execution, device_of, dtype_of, resolve_models
from tests.fixtures import console
from tests.fixtures.worlds import FAMILIES

CPU = torch.device("cpu")
WORDS = [chr(i) for i in range(33, 127)]


def tokenizer(words: list[str]) -> PreTrainedTokenizerFast:
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token=words[0]))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token=words[0], eos_token=words[1])


def model_folder(folder: Path, rows: int = 94, words: list[str] = WORDS, family: str = "llama") -> Path:
    config = FAMILIES[family]()
    config.vocab_size = rows
    cls = T5ForConditionalGeneration if family == "t5" else LlamaForCausalLM
    torch.manual_seed(rows)
    cls(config).save_pretrained(folder)
    tokenizer(words).save_pretrained(folder)
    return folder


def bring(base: Path, **paths: str):
    pair = construct(Pair, {"models": {role: {"path": path} for role, path in paths.items()}}, "pair.toml")
    found = resolve_models(pair, tuple(paths), base, Execution(CPU))
    return found, load(found, base, CPU)


@pytest.mark.parametrize(("draft", "target"), [(96, 128), (128, 96), (94, 94)])
def test_the_whole_head_of_the_target_is_the_vocabulary(draft, target, tmp_path):
    """Qwen2.5 pads its embeddings differently from size to size."""
    model_folder(tmp_path / "small", rows=draft)
    model_folder(tmp_path / "large", rows=target)
    _, pair = bring(tmp_path, draft="small", target="large")
    assert pair.vocabulary == target
    opened = pair.open([1, 2, 3])
    rows = {role: opened[role].score(opened.ids, 0) for role in ("draft", "target")}
    assert {each.shape for each in rows.values()} == {(3, target)}
    assert bool((rows["draft"][:, draft:] == -torch.inf).all())


WE = Autoregressive(scorers=("draft", "target"), target=Mixture())


def test_different_tokenizers_of_an_ensemble_are_rejected_with_both_names(tmp_path):
    model_folder(tmp_path / "one")
    model_folder(tmp_path / "two", words=WORDS[::-1])
    _, pair = bring(tmp_path, draft="one", target="two")
    with pytest.raises(ConfigError, match=r"tokenizers differ.*/(one|two) .*/(one|two) "):
        pair.only(("draft", "target"), decided_by=WE).require_defined("we", WE)


def test_plan_names_different_tokenizers(tmp_path):
    model_folder(tmp_path / "one")
    model_folder(tmp_path / "two", words=WORDS[::-1])
    arguments = ["-m", "cascade-opt", "-p", "draft=one,target=two", "-t", "gsm8k", "--data", "synthetic"]
    done = console.specbench("plan", *arguments, cwd=tmp_path, code=2)
    assert "tokenizers differ" in done.stderr and "/one" in done.stderr and "/two" in done.stderr


def test_tokens_added_after_the_base_vocabulary_may_differ(tmp_path):
    model_folder(tmp_path / "one", rows=100)
    more = tokenizer(WORDS)
    more.add_special_tokens({"additional_special_tokens": ["<tool>"]})
    model_folder(tmp_path / "two", rows=100)
    more.save_pretrained(tmp_path / "two")
    assert bring(tmp_path, draft="one", target="two")[1].vocabulary == 100


def test_encoder_decoders_start_with_their_decoders_start_token(tmp_path):
    model_folder(tmp_path / "t5", family="t5")
    _, pair = bring(tmp_path, draft="t5", target="t5")
    opened = pair.open([5, 6, 7])
    assert opened.ids == [0]
    assert opened["target"].score([0, 3], 0).shape == (2, 94)
    assert opened["target"].usage.prefill_fed == 3 + 2
    assert pair.window is None


def test_a_run_shares_only_what_its_own_models_share(tmp_path):
    """Loading a model for another method must not change this one's EOS, vocabulary or window."""
    model_folder(tmp_path / "one", rows=100)
    other = LlamaForCausalLM.from_pretrained(model_folder(tmp_path / "two", rows=90))
    other.config.max_position_embeddings = 32
    other.generation_config.eos_token_id = [1, 5]
    other.save_pretrained(tmp_path / "two")
    _, pair = bring(tmp_path, target="one", other="two")
    alone = pair.only(("target",))
    assert (alone.vocabulary, alone.window, alone.eos & {5}) == (100, 64, set())
    plain, mixture = (
        Autoregressive(scorers=scorers, target=target)
        for scorers, target in ((("target",), Last()), (("target", "other"), Mixture()))
    )
    beside = pair.only(("target", "other"), decided_by=plain)
    assert (beside.vocabulary, beside.window, beside.eos) == (alone.vocabulary, alone.window, alone.eos)
    mixed = pair.only(("target", "other"), decided_by=mixture)
    assert (mixed.vocabulary, mixed.window, mixed.eos) == (100, 32, alone.eos | {1, 5})


def test_a_model_whose_cache_cannot_be_truncated_is_rejected_before_any_measurement(tmp_path):
    MambaForCausalLM(
        MambaConfig(vocab_size=94, hidden_size=32, num_hidden_layers=1, state_size=4, expand=1)
    ).save_pretrained(tmp_path / "mamba")
    tokenizer(WORDS).save_pretrained(tmp_path / "mamba")
    with pytest.raises(ConfigError, match=r"model 'draft': .*recurrent states cannot go back"):
        bring(tmp_path, draft="mamba")


def test_decoder_only_and_encoder_decoder_do_not_mix(tmp_path):
    model_folder(tmp_path / "t5", family="t5")
    model_folder(tmp_path / "llama")
    with pytest.raises(ConfigError, match="cannot mix"):
        bring(tmp_path, draft="t5", target="llama")


def test_one_source_is_loaded_once(tmp_path):
    model_folder(tmp_path / "one")
    _, pair = bring(tmp_path, draft="one", target="one")
    assert pair.models["draft"] is pair.models["target"]


def test_sizes_come_from_the_config_alone(tmp_path):
    folder = model_folder(tmp_path / "one")
    expected = sum(p.numel() for p in LlamaForCausalLM.from_pretrained(folder).parameters())
    (folder / "model.safetensors").unlink()
    pair = construct(Pair, {"models": {"draft": {"path": "one"}}}, "pair.toml")
    assert resolve_models(pair, ("draft",), tmp_path, Execution(CPU))["draft"].size.parameters == expected


def test_a_checksum_follows_the_files(tmp_path):
    """Otherwise a run folder would serve one model's answers as another's."""
    folder = model_folder(tmp_path / "one")
    pair = construct(Pair, {"models": {"draft": {"path": "one"}}}, "pair.toml")
    before = resolve_models(pair, ("draft",), tmp_path, Execution(CPU))["draft"].identity
    assert before == resolve_models(pair, ("draft",), tmp_path, Execution(CPU))["draft"].identity
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.1}))
    assert before != resolve_models(pair, ("draft",), tmp_path, Execution(CPU))["draft"].identity


def test_a_missing_model_is_reported_with_help(tmp_path):
    with pytest.raises(MissingAsset, match=r"(?s)model 'draft': missing/model is not in the local cache.*help: "):
        bring(tmp_path, draft="missing/model")
    (tmp_path / "empty").mkdir()
    with pytest.raises(MissingAsset, match="model 'draft'"):
        bring(tmp_path, draft="empty")
    shutil.copytree(model_folder(tmp_path / "one"), tmp_path / "weightless")
    (tmp_path / "weightless" / "model.safetensors").unlink()
    with pytest.raises(MissingAsset, match="model 'draft'"):
        bring(tmp_path, draft="weightless")


def test_every_kind_of_download_failure_has_advice():
    from specbench.data.hub import missing_model

    assert "accept its license" in str(missing_model("target", "meta-llama/x", OSError("a gated repo")))


def test_a_missing_device_is_an_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_of("auto") == CPU
    with pytest.raises(MissingAsset, match="no CUDA"):
        device_of("cuda")


def test_auto_is_float32_on_a_cpu_and_bfloat16_on_a_gpu(tmp_path):
    """transformers loads a bfloat16 checkpoint as bfloat16: slower on a CPU, and other tokens."""
    assert dtype_of("auto", CPU) == "float32"
    assert dtype_of("auto", torch.device("cuda")) == "bfloat16"
    folder = model_folder(tmp_path / "one")
    LlamaForCausalLM.from_pretrained(folder).to(torch.bfloat16).save_pretrained(folder)
    assert bring(tmp_path, draft="one")[1].models["draft"].dtype == torch.float32


def test_t5_keeps_its_wo_layers_in_float32_under_float16(tmp_path):
    """T5's feed-forward output overflows in float16; transformers keeps these layers in float32 on loading."""
    model_folder(tmp_path / "t5", family="t5")
    pair = construct(Pair, {"models": {"target": {"path": "t5", "dtype": "float16"}}}, "pair.toml")
    model = (
        load(resolve_models(pair, ("target",), tmp_path, Execution(CPU)), tmp_path, CPU).models["target"].transformers()
    )
    kept = {name.split(".")[-2]: p.dtype for name, p in model.named_parameters() if "DenseReluDense" in name}
    assert kept == {"wi": torch.float16, "wo": torch.float32}


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_a_loaded_model_has_the_time_of_a_forward_beside_transformers_own(family, tmp_path, monkeypatch):
    monkeypatch.setattr(Lean, "is_checked", True)
    model_folder(tmp_path / "one", family=family)
    _, pair = bring(tmp_path, draft="one", target="one")
    check = pair.forward_checks["target"]
    assert check.context > 0 and check.seconds > 0 and check.reference_seconds > 0
    assert pair.forward_checks["draft"] == check, "roles that share weights share the check"


def test_a_check_fits_into_the_context_window_and_uses_few_forwards(tmp_path, monkeypatch):
    model_folder(tmp_path / "one")
    _, pair = bring(tmp_path, target="one")
    model, fed = pair.models["target"], []
    model_runner = model.model_runner(model.vocabulary, None)
    feed = model_runner.feed
    monkeypatch.setattr(model_runner, "feed", lambda each, rows: fed.append(each.positions()) or feed(each, rows))
    monkeypatch.setattr(model, "model_runner", lambda *_: model_runner)
    monkeypatch.setattr(model, "window", 10)
    assert token_seconds(model)[0] == 9
    assert fed == [[*range(9)], *[[9]] * (engines.WARM_UPS + engines.REPETITIONS)]
    fed.clear()
    monkeypatch.setattr(engines, "SLOW_FORWARD", 0.0)
    token_seconds(model)
    assert fed == [[*range(9)], [9]], "a slow forward is not repeated"


def test_transformers_own_forwards_are_not_checked(tmp_path):
    model_folder(tmp_path / "one")
    pair = construct(Pair, {"models": {"target": {"path": "one"}}}, "pair.toml")
    found = resolve_models(pair, ("target",), tmp_path, Execution(CPU, engine="eager"))
    assert load(found, tmp_path, CPU).forward_checks == {}
