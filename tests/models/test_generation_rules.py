"""Rules of generation_config.json: exact by enumeration, and equal to `generate` on toy models with published values."""

import json
import shutil

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    set_seed,
)

import specbench
from specbench.config.pair import PACKAGE
from specbench.decoding.sampling import Tree
from specbench.decoding.session import Ends
from specbench.decoding.targets import Last, Mixture
from specbench.features.verify.enumeration import TableModels, distance, joint_distribution
from specbench.methods.autoregressive import Autoregressive
from specbench.methods.proposers import DraftModel
from specbench.methods.speculative import Speculative
from specbench.methods.speculative_ensemble import SpeculativeEnsemble
from specbench.models.generation_rules import RuledSession, ignored_in, processors, rules_of, sampling_of
from tests.fixtures import console
from tests.fixtures.worlds import table_world

V, LENGTH, CPU = 3, 4, torch.device("cpu")
RULES = {
    "repetition_penalty": {"repetition_penalty": 1.3},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "suppress_tokens": {"suppress_tokens": [1]},
    "begin_suppress_tokens": {"begin_suppress_tokens": [0]},
    "forced": {"forced_eos_token_id": 2},
    "several": {"repetition_penalty": 0.8, "no_repeat_ngram_size": 3, "min_new_tokens": 2},
}


def ruled_world(rules: dict[str, object], length: int = LENGTH) -> TableModels:
    """Tables of three models; the rules apply to each of them. Generation ends after `length` tokens."""
    models = table_world(V)
    made = processors(rules, len(models.ids), None, Ends(frozenset({2}), length), CPU)
    sessions = {role: RuledSession(session, made) for role, session in models.sessions.items()}
    return TableModels(sessions, models.ids, V)


METHODS = {
    "sd": (Speculative(proposer=DraftModel(model="a", gamma=2), scorers=("b",), target=Last()), ("b",), Last()),
    "we-se": (SpeculativeEnsemble(models=("a", "b"), gamma=(2, 1), target=Mixture()), ("a", "b"), Mixture()),
}


@pytest.mark.parametrize("temperature", [1.0, 0.0])
@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
@pytest.mark.parametrize("name", METHODS)
def test_speculation_over_ruled_models_is_exact(name, rules, temperature):
    method, scorers, target = METHODS[name]
    plain = Autoregressive(scorers=scorers, target=target)
    length = LENGTH if name == "sd" else LENGTH - 1  # an ensemble has many more paths
    expected = joint_distribution(plain, ruled_world(rules, length), length, temperature=temperature)
    found = joint_distribution(method, ruled_world(rules, length), length, temperature=temperature)
    assert distance(found, expected) < 1e-12
    unruled = joint_distribution(plain, table_world(V), length, temperature=temperature)
    assert temperature == 0.0 or distance(expected, unruled) > 1e-3, "the rules change the distribution"


def test_rows_of_a_tree_have_the_rules_of_their_paths():
    models = ruled_world({"no_repeat_ngram_size": 1})
    ids, tree = [*models.ids, 1], Tree([0, 2, 2], (-1, -1, 0))
    rows = models["a"].score(ids, 0, tree)
    paths = [[0], [2], [0, 2]]
    for row, path in zip(rows[len(ids) :], paths, strict=True):
        prefix = ids + path
        assert torch.equal(row, models["a"].score(prefix, len(prefix) - 1)[0])


# Keys and values of published generation_config.json files
PUBLISHED = {
    "Qwen/Qwen2.5-7B-Instruct": ("qwen2", {"repetition_penalty": 1.05}),
    "Qwen/Qwen2.5-0.5B-Instruct": ("qwen2", {"repetition_penalty": 1.1}),
    "microsoft/DialoGPT-medium, with no_repeat_ngram_size of its card": ("gpt2", {"no_repeat_ngram_size": 3}),
    "facebook/bart-large-cnn": (
        "bart",
        {"forced_bos_token_id": 0, "forced_eos_token_id": 2, "min_length": 56, "no_repeat_ngram_size": 3},
    ),
    "facebook/mbart-large-50-many-to-many-mmt, to English": (
        "mbart",
        {"forced_bos_token_id": 4, "forced_eos_token_id": 2},
    ),
    "facebook/nllb-200-distilled-600M, to German": ("m2m_100", {"forced_bos_token_id": 42}),
    "google/pegasus-xsum": ("pegasus", {"forced_eos_token_id": 1, "min_length": 8}),
    "openai/whisper-tiny, suppressed tokens": (
        "bart",
        {"suppress_tokens": [1, 2, 7, 8, 9, 10], "begin_suppress_tokens": [20, 50]},
    ),
    "Helsinki-NLP/opus-mt-en-de": ("marian", {"bad_words_ids": [[58]], "forced_eos_token_id": 0}),
    "philschmid/bart-large-cnn-samsum": (
        "bart",
        {"min_length": 12, "repetition_penalty": 1.2, "encoder_no_repeat_ngram_size": 4},
    ),
}
FIRST_SEED = {"openai/whisper-tiny, suppressed tokens": 22}  # with the ones before it, the settings change no output
SIZES = {
    "qwen2": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 64,
    },
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512},
}
ENCODER_DECODER = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 256, "decoder_start_token_id": 3,
    "pad_token_id": 1, "bos_token_id": 0,
}  # fmt: skip


def toy(folder, kind: str, settings: dict[str, object], seed: int, eos: int = 2) -> None:
    """Save a model with random weights, the bundled tokenizer, and a generation config."""
    set_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(PACKAGE / "tiny/models/target")
    sizes = SIZES.get(kind, ENCODER_DECODER)
    config = AutoConfig.for_model(kind, vocab_size=len(tokenizer), eos_token_id=eos, **sizes)
    model = (AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM).from_config(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(0, 0.4)
    start = {"decoder_start_token_id": 3} if config.is_encoder_decoder else {}
    model.generation_config = GenerationConfig(eos_token_id=eos, pad_token_id=1, **start, **settings)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


TEXT, MOST = "Ben has 3 bags with 4 shells each. How many shells does Ben have now?", 24


def generated(folder, kind: str, config: GenerationConfig | None = None) -> list[int]:
    """Return what `generate` writes after TEXT; with `config`, by another generation config than the folder's."""
    model = (AutoModelForCausalLM if kind in SIZES else AutoModelForSeq2SeqLM).from_pretrained(folder).eval()
    model.generation_config = config or model.generation_config
    ids = torch.tensor([AutoTokenizer.from_pretrained(folder)(TEXT)["input_ids"]])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=MOST)[0].tolist()
    return out[1:] if model.config.is_encoder_decoder else out[ids.shape[1] :]


@pytest.mark.filterwarnings("ignore:Unfeasible length constraints")
@pytest.mark.parametrize("name", PUBLISHED)
def test_every_method_writes_what_generate_writes(tmp_path, name):
    """On weights with which the settings change the output."""
    kind, settings = PUBLISHED[name]
    start = {} if kind in SIZES else {"decoder_start_token_id": 3}
    for seed in range(FIRST_SEED.get(name, 1), 60):
        toy(tmp_path / "target", kind, settings, seed)
        expected = generated(tmp_path / "target", kind)
        if generated(tmp_path / "target", kind, GenerationConfig(eos_token_id=2, pad_token_id=1, **start)) != expected:
            break
    else:
        pytest.fail("the settings change no output")
    toy(tmp_path / "draft", kind, settings, 100)
    (tmp_path / "pair.toml").write_text('[models.draft]\npath = "draft"\n[models.target]\npath = "target"\n')
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": TEXT}) + "\n")
    run = specbench.run(
        ["ar", "sd", "pld", "hf-generate"], str(tmp_path / "pair.toml"), "prompts", data=str(tmp_path / "rows.jsonl"),
        repeats=1, max_new_tokens=MOST, out=tmp_path / "out", device="cpu",
    )  # fmt: skip
    for record in run.records():
        assert record.error is None and record.tokens == expected, record.method
    (spec,) = (tmp_path / "out").glob("*/run.toml")
    assert all(key in spec.read_text() for key in settings)


def test_a_config_is_divided_into_rules_searches_and_sampling():
    config = GenerationConfig(
        do_sample=True,
        temperature=0.6,
        top_p=0.9,
        repetition_penalty=1.05,
        num_beams=4,
        no_repeat_ngram_size=0,
        min_p=0.05,
    )
    assert rules_of(config) == {"repetition_penalty": 1.05}
    assert ignored_in(config) == {"num_beams": 4, "min_p": 0.05}
    assert {"temperature": 0.6, "top_p": 0.9}.items() <= sampling_of(config).items()
    assert sampling_of(GenerationConfig(do_sample=False, temperature=0.6)) == {"temperature": 0.0}


def test_sampling_of_a_checkpoint_applies_on_request_only(tmp_path):
    shutil.copytree(PACKAGE / "tiny/models/target", tmp_path / "target")
    GenerationConfig(do_sample=True, temperature=0.5, top_k=7, eos_token_id=0, num_beams=3).save_pretrained(
        tmp_path / "target"
    )
    (tmp_path / "pair.toml").write_text(
        '[models.target]\npath = "target"\n[defaults]\ndata = "synthetic"\ntasks = ["gsm8k"]\n'
    )
    few = ["run", "-m", "pld", "-p", "pair.toml", "-n", 2, "--repeats", 1, "--max-new-tokens", 4]
    shown = console.specbench(*few, cwd=tmp_path).stdout
    full = console.specbench("report", "--full", cwd=tmp_path).stdout
    assert "generation config samples with temperature = 0.5, top_k = 7" in " ".join(full.split())
    assert "the generation config sets num_beams = 3; not applied" in " ".join(shown.split())
    console.specbench(*few, "--sampling", "checkpoint", cwd=tmp_path)
    console.specbench(*few, "--sampling", "checkpoint", "--temperature", 0.9, cwd=tmp_path)
    decoding = sorted(
        (run["temperature"]) for run in json.loads(console.specbench("list", "runs", "--json", cwd=tmp_path).stdout)
    )
    assert decoding == [0.0, 0.5, 0.9]
