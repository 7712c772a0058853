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
CACHES = {
    "float32": FLOAT32,
    "float16": ggml_type.GGML_TYPE_F16,
    "q8_0": ggml_type.GGML_TYPE_Q8_0,
    "q4_0": ggml_type.GGML_TYPE_Q4_0,
}
SPECULATIONS = {  # `--spec-type` of llama-server -> type
    "draft-simple": speculation.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE,
    "ngram-simple": speculation.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE,
    "ngram-map-k": speculation.COMMON_SPECULATIVE_TYPE_NGRAM_MAP_K,
    "ngram-map-k4v": speculation.COMMON_SPECULATIVE_TYPE_NGRAM_MAP_K4V,
    "ngram-mod": speculation.COMMON_SPECULATIVE_TYPE_NGRAM_MOD,
    "ngram-cache": speculation.COMMON_SPECULATIVE_TYPE_NGRAM_CACHE,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve a GGUF file until standard input closes.")
    parser.add_argument("model")
    parser.add_argument("--draft", help="the GGUF of a draft model")
    parser.add_argument("--speculation", choices=SPECULATIONS, help="default: draft-simple with --draft, else none")
    parser.add_argument("--draft-length", type=int, default=4)
    parser.add_argument("--ngram-size", type=int, help="tokens that ngram-simple and ngram-map-* match; default: 12")
    parser.add_argument("--probabilistic", action="store_true", help="sample drafts and accept them by their ratio")
    parser.add_argument("--synthetic-rates", help="accept drafts at these rates, which is lossy: 0.9,0.8")
    parser.add_argument("--port", type=int, default=0, help="0: a free one")
    parser.add_argument("--parallel", type=int, default=1, help="sequences at a time; --context is divided among them")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--reuse-prompts", action="store_true", help="let requests reuse the cache of equal prefixes")
    parser.add_argument("--float32-cache", action="store_true", help="the same as --cache float32")
    parser.add_argument("--cache", choices=CACHES, help="type of stored keys and values")
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
    """Return llama.cpp's parameters. Earlier prompts are reused on request only."""
    out = xllamacpp.CommonParams()
    out.model.path = args.model
    out.port, out.n_parallel, out.n_ctx, out.n_gpu_layers = args.port, args.parallel, args.context, 0
    out.cpuparams.n_threads = out.cpuparams_batch.n_threads = args.threads
    out.endpoint_metrics = out.endpoint_slots = True
    draft = out.speculative.draft
    if cache := "float32" if args.float32_cache else args.cache:
        out.cache_type_k = out.cache_type_v = draft.cache_type_k = draft.cache_type_v = CACHES[cache]
        if cache == "float32":
            out.flash_attn_type = llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    out.cache_prompt, out.fit_params = args.reuse_prompts, False
    if not args.reuse_prompts:
        out.cache_ram_mib = 0
    if kind := args.speculation or ("draft-simple" if args.draft else ""):
        out.speculative.types = [SPECULATIONS[kind]]
        draft.n_max, draft.n_min, draft.p_min, draft.probabilistic = args.draft_length, 0, 0.0, args.probabilistic
    if args.ngram_size:
        for table in (out.speculative.ngram_simple, out.speculative.ngram_map_k, out.speculative.ngram_map_k4v):
            table.size_n, table.size_m = args.ngram_size, args.draft_length
    if args.draft:
        draft.mparams.path, draft.n_gpu_layers = args.draft, 0
        draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = args.threads
    if args.synthetic_rates:
        out.speculative.synth_rates = [float(rate) for rate in args.synthetic_rates.split(",")]
    return out


if __name__ == "__main__":
    main()
