"""llama.cpp as a peer on a CPU (`scripts/bench_llamacpp.py`). Its packages have an environment of their own."""
