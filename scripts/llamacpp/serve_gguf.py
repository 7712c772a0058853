"""Serve a GGUF file by llama.cpp's HTTP server until standard input closes, so that no server outlives its parent.

Runs in the environment of scripts/llamacpp/requirements.txt. Once the server listens, prints its address, version and
instruction sets as a line of JSON. By default llama.cpp stores keys and values in float16. `--float32-cache` also turns off
flash attention, which on a CPU is slow with a float32 cache (b11549).
"""

import argparse
import json
import os
import sys
from typing import Any

import xllamacpp
from xllamacpp import common_speculative_type as speculation
from xllamacpp import ggml_type, llama_flash_attn_type

FLOAT32 = ggml_type.GGML_TYPE_F32


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve a GGUF file until standard input closes.")
    parser.add_argument("model")
    parser.add_argument("--draft", help="the GGUF of a draft model")
    parser.add_argument("--draft-length", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--float32-cache", action="store_true", help="store keys and values in float32")
    args = parser.parse_args()
    server = xllamacpp.Server(parameters(args))
    facts = {
        "url": server.listening_address,
        "version": xllamacpp.__version__,
        "system": xllamacpp.get_system_info(),
    }
    print(json.dumps(facts), flush=True)
    sys.stdin.read()
    os._exit(0)  # without waiting for the server's threads


def parameters(args: argparse.Namespace) -> Any:
    """Return llama.cpp's parameters: one request at a time, without reuse of earlier prompts."""
    out = xllamacpp.CommonParams()
    out.model.path = args.model
    out.port, out.n_parallel, out.n_ctx, out.n_gpu_layers = 0, 1, args.context, 0
    out.cpuparams.n_threads = out.cpuparams_batch.n_threads = args.threads
    if args.float32_cache:
        out.cache_type_k = out.cache_type_v = out.speculative.draft.cache_type_k = (
            out.speculative.draft.cache_type_v
        ) = FLOAT32
        out.flash_attn_type = llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    out.cache_prompt, out.cache_ram_mib, out.fit_params = False, 0, False
    if args.draft:
        draft = out.speculative.draft
        out.speculative.types = [speculation.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        draft.mparams.path, draft.n_gpu_layers = args.draft, 0
        draft.n_max, draft.n_min, draft.p_min, draft.probabilistic = args.draft_length, 0, 0.0, False
        draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = args.threads
    return out


if __name__ == "__main__":
    main()
