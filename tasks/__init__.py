"""The tasks, one class and one file each. Importing the package registers them."""

from specbench.tasks import cnndm, gsm8k, humaneval, lm1b, mmlu, prompts, spec_bench, wiki_summary, wmt, xsum

__all__ = ["cnndm", "gsm8k", "humaneval", "lm1b", "mmlu", "prompts", "spec_bench", "wiki_summary", "wmt", "xsum"]
