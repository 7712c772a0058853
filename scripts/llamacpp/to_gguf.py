"""Write a Llama checkpoint as GGUF: float32, or Q8_0 or Q4_0 with float32 norms.

Runs in the environment of scripts/llamacpp/requirements.txt: `python to_gguf.py FOLDER OUT --dtype F32`. The folder has
config.json, model.safetensors and tokenizer.json (byte-level BPE).

llama.cpp masks EOS if a request ignores it, while specbench decodes past it. So that greedy tokens stay comparable, the file
names the padding token as EOS, and all special tokens have neutral names.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

DTYPES = ("F32", "Q8_0", "Q4_0")
NORMAL, CONTROL, UNUSED = 1, 3, 5  # gguf.TokenType
ROTATED = ("self_attn.q_proj.weight", "self_attn.k_proj.weight")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a Llama checkpoint as GGUF.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--dtype", choices=DTYPES, default="F32")
    args = parser.parse_args()
    unfinished = args.out.with_suffix(".unfinished")
    convert(args.folder, unfinished, args.dtype)
    unfinished.replace(args.out)


def convert(folder: Path, out: Path, dtype: str) -> None:
    """Write a folder's model and tokenizer as one GGUF file. Raises ValueError for a model that is not a plain Llama."""
    import gguf

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    require_plain(config)
    writer = gguf.GGUFWriter(out, "llama")
    _add_config(writer, config)
    _add_tokenizer(writer, json.loads((folder / "tokenizer.json").read_text(encoding="utf-8")), config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    kind = gguf.GGMLQuantizationType[dtype]
    for name, values in tensors_of(folder / "model.safetensors"):
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        renamed = names.get_name(name, try_suffixes=(".weight",))
        if renamed is None:
            raise ValueError(f"{folder}: {name} is not a tensor of a Llama")
        stored = permuted(values, heads_of(name, config)) if name.endswith(ROTATED) else values
        if stored.ndim == 1:
            writer.add_tensor(renamed, stored)
        else:
            writer.add_tensor(renamed, gguf.quants.quantize(stored, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def require_plain(config: dict[str, Any]) -> None:
    """Raise ValueError for a model other than a Llama with plain rotary positions and no biases."""
    rope = config.get("rope_parameters", {}).get("rope_type", "default")
    if config["model_type"] != "llama" or rope != "default" or config.get("attention_bias") or config.get("mlp_bias"):
        raise ValueError(f"only a Llama without biases and scaled rotary positions, not {config['model_type']}, {rope}")


def heads_of(name: str, config: dict[str, Any]) -> int:
    """Return the number of heads in the rows of q or k."""
    return int(config["num_key_value_heads" if "k_proj" in name else "num_attention_heads"])


def permuted(rows: np.ndarray, heads: int) -> np.ndarray:
    """Return the rows of q or k (heads * d, H) in the order of llama.cpp.

    transformers rotates row i of a head together with row i + d / 2; llama.cpp rotates neighbors.
    """
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, rows.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows.shape))  # (heads * d, H)


def tensors_of(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the names and values, as float32, of a safetensors file of float32, float16 or bfloat16."""
    raw = np.memmap(path, np.uint8, "r")
    length = int(raw[:8].view(np.uint64)[0])
    header = json.loads(raw[8 : 8 + length].tobytes())
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        yield name, _as_float32(raw[begin:end].tobytes(), entry["dtype"]).reshape(entry["shape"])


def _as_float32(content: bytes, dtype: str) -> np.ndarray:
    if dtype == "BF16":
        return (np.frombuffer(content, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(content, {"F32": np.float32, "F16": np.float16}[dtype]).astype(np.float32)


def _add_config(writer: Any, config: dict[str, Any]) -> None:
    heads = config["num_attention_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads") or heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def _add_tokenizer(writer: Any, tokenizer: dict[str, Any], config: dict[str, Any]) -> None:
    words, kinds = vocabulary(tokenizer, config["vocab_size"])
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in tokenizer["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(words)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(config["pad_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_add_bos_token(False)


def vocabulary(tokenizer: dict[str, Any], size: int) -> tuple[list[str], list[int]]:
    """Return the text and the type of `size` tokens. Ids that the tokenizer lacks are filled with unused tokens."""
    words, kinds = [f"[unused {i}]" for i in range(size)], [UNUSED] * size
    for word, i in tokenizer["model"]["vocab"].items():
        words[i], kinds[i] = word, NORMAL
    for token in tokenizer["added_tokens"]:
        if token["special"]:
            words[token["id"]], kinds[token["id"]] = f"[special {token['id']}]", CONTROL
    return words, kinds


if __name__ == "__main__":
    main()
