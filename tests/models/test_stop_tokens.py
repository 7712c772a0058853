"""Stop strings that are special tokens, which decoded texts lack: a generation ends at them, as that of `generate` does."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, set_seed

import specbench
from specbench.config.pair import PACKAGE

TEXT = "Ben has 3 bags with 4 shells each."
END, TURN = "<|im_end|>", "<turn>"  # the second is an added token that is not special


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A target that writes END after five tokens, and after it TURN."""
    where = tmp_path_factory.mktemp("stops")
    tokenizer = AutoTokenizer.from_pretrained(PACKAGE / "tiny/models/target")
    tokenizer.add_special_tokens({"additional_special_tokens": [END]})
    tokenizer.add_tokens([TURN])
    set_seed(1)
    sizes = {
        "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 96, "vocab_size": len(tokenizer), "tie_word_embeddings": False, "eos_token_id": None,
    }  # fmt: skip
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen2", **sizes)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(0, 0.3)
    ids = torch.tensor([tokenizer(TEXT)["input_ids"]])
    for place, text in ((5, END), (9, TURN)):
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=16)[0]
        with torch.no_grad():
            written = model.lm_head.weight[out[ids.shape[1] + place]]
            model.lm_head.weight[tokenizer.convert_tokens_to_ids(text)] = 1.5 * written
    model.save_pretrained(where / "target")
    tokenizer.save_pretrained(where / "target")
    (where / "pair.toml").write_text('[models.target]\npath = "target"\n')
    (where / "rows.jsonl").write_text(json.dumps({"prompt": TEXT}) + "\n")
    return where


@pytest.mark.parametrize("stop", [[END], [TURN], ["never", END], [END, "<|other|>"], [f"x{END}", TURN]])
def test_a_generation_ends_where_that_of_generate_ends(folder, stop, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(folder / "target")
    model = AutoModelForCausalLM.from_pretrained(folder / "target").eval()
    ids = torch.tensor([tokenizer(TEXT)["input_ids"]])
    how = {"do_sample": False, "max_new_tokens": 24, "stop_strings": stop, "tokenizer": tokenizer}
    wanted = model.generate(ids, attention_mask=torch.ones_like(ids), **how)[0, ids.shape[1] :].tolist()
    keys = {"name": "prompts", "stop": stop}
    (tmp_path / "task.toml").write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items()))
    run = specbench.run(
        ["ar", "pld", "hf-generate"], str(folder / "pair.toml"), str(tmp_path / "task.toml"),
        data=str(folder / "rows.jsonl"), repeats=1, max_new_tokens=24, out=tmp_path / "out", device="cpu",
    )  # fmt: skip
    found = {record.method: (record.tokens, record.finish) for record in run.records()}
    assert found == dict.fromkeys(found, (wanted, "stop" if len(wanted) < 24 else "length"))
