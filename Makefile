# `make run` and `make test` need Python 3.11 or newer. They install everything else.
PYTHON ?= python3
GPU_PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TYPES := build/types
LLAMACPP := build/llamacpp
VLLM := build/vllm
SPECULATORS := build/speculators
BENCH ?= kernel_costs bench_transformers bench_llamacpp block_costs quantized_costs
ARGS ?=

# Links that mirror the installed package, for tools that read files instead of importing.
define LINK_TYPES
rm -rf $(TYPES) && mkdir -p $(TYPES)/specbench
ln -s $(CURDIR)/specbench/* $(CURDIR)/cli $(CURDIR)/configs $(CURDIR)/tasks $(TYPES)/specbench/
ln -s $(CURDIR)/scripts $(TYPES)/
endef

.PHONY: run test test-slow test-servers test-speculators coverage check docs gate faults bench suites ledger real-text intervals exactness-trials paper-specs gpu-check gpu-bench claims widening readme card tiny heads clean

run: $(INSTALLED)  ## the first table: four methods on all six tasks, at 1/83 of the costs of a 7B model and a draft of 68M, two minutes
	$(BIN)/specbench run -p tiny-7b -m sd,eagle,dflash,pld -n 6 --repeats 1 --allow-code-execution $(ARGS)

test: $(INSTALLED)  ## run all tests, including the exact distribution tests
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadscope --no-loadscope-reorder $(ARGS)

test-slow: $(INSTALLED)  ## the tests that `make test` leaves out: long campaigns, clusters, whole suites, a few minutes
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadscope -m slow $(ARGS)

coverage: $(INSTALLED)  ## the tests with line coverage of the library and the command line
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadscope --cov=specbench --cov-report=term:skip-covered $(ARGS)

check: $(INSTALLED)  ## format, lint, types, imports between packages
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(LINK_TYPES)
	MYPYPATH=$(TYPES) $(BIN)/mypy -p specbench -p scripts
	cd $(TYPES) && $(CURDIR)/$(BIN)/lint-imports --no-cache --config $(CURDIR)/pyproject.toml

docs: $(INSTALLED)  ## the documentation site, build/site: every warning is an error
	$(LINK_TYPES)
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m scripts.build_docs
	$(BIN)/zensical build --strict --config-file mkdocs.yml $(ARGS)

gate: $(INSTALLED)  ## token ids and counters against the recorded ones, results/snapshots/tiny.json: exit code 5 if they differ
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/specbench gate check results/snapshots/tiny.json --counters-only $(ARGS)

suites: $(INSTALLED)  ## every suite on the bundled models, alone on the machine: writes results/suites/, pages with their raw numbers
	for suite in $$(COLUMNS= $(BIN)/specbench list suites | awk '$$1 ~ /-tiny$$/ {print $$1}'); do \
		$(BIN)/specbench run --suite $$suite --allow-code-execution $(ARGS) && \
		$(BIN)/specbench report --suite $$suite -f md --plots results/suites/$$suite -o results/suites/$$suite/README.md && \
		$(BIN)/specbench archive export --suite $$suite -o results/suites/$$suite/runs.zip.xz || exit 1; \
	done
	rm -f results/suites/*/*.png

ledger: $(INSTALLED)  ## the first verdict of each expectation, configs/expectations.json; fails if a comparison changed, unless ARGS="--decision NUMBER" explains it
	$(BIN)/python -m scripts.expectation_ledger $(ARGS)

real-text: $(INSTALLED)  ## bundled models on real text, ARGS="--data wiki-summary=FILE --data spec-bench=FILE": writes results/suites/
	$(BIN)/specbench run --suite tiny-real-text $(ARGS)
	$(BIN)/specbench report --suite tiny-real-text -f md -o results/suites/tiny-real-text/README.md
	$(BIN)/specbench archive export --suite tiny-real-text -o results/suites/tiny-real-text/runs.zip.xz

intervals: $(INSTALLED)  ## coverage of intervals and error rates of tests in simulations, 20 minutes: writes results/intervals.md
	OMP_NUM_THREADS=1 $(BIN)/python -m scripts.interval_trials $(ARGS)

exactness-trials: $(INSTALLED)  ## false alarms and power of `server verify` on simulated servers, 15 minutes: writes results/exactness.md
	OMP_NUM_THREADS=1 $(BIN)/python -m scripts.exactness_trials $(ARGS)

paper-specs: $(INSTALLED)  ## decode every run of the papers' suites with toy models, 8 minutes: writes results/paper-specs.md
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m scripts.paper_specs $(ARGS)

faults: $(INSTALLED)  ## fault injection: kills, damaged files, fuzzed configs, full disks, hostile code; writes results/faults.md
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults --out results/faults.md $(ARGS)

bench: $(INSTALLED)  ## every CPU benchmark, or BENCH="kernel_costs" alone with its ARGS: writes a section per processor of its page in results/
	for name in $(BENCH); do $(BIN)/python -m scripts.$$name $(ARGS) || exit 1; done

test-servers: $(INSTALLED) $(LLAMACPP)/.installed $(VLLM)/.installed  ## tests against real servers on this machine, vLLM and llama.cpp: 4 GB to install, half an hour
	SPECBENCH_SERVERS=1 HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/servers $(ARGS)

test-speculators: $(INSTALLED) $(SPECULATORS)/.installed  ## draft heads against the forward of the package speculators, a minute
	SPECBENCH_SPECULATORS=$(SPECULATORS)/bin/python HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/models/test_speculators_reference.py $(ARGS)

# The environment of speculators. Its torchvision does not load with this torch and is not needed.
$(SPECULATORS)/.installed: scripts/speculators/requirements.txt
	$(PYTHON) -m venv $(SPECULATORS)
	$(SPECULATORS)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	$(SPECULATORS)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio
	touch $@

# vLLM's environment, for `make test-servers` alone. These packages of its dependencies clash with this torch and are not needed.
$(VLLM)/.installed: scripts/vllm/requirements.txt
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

# llama.cpp's environment. Nothing depends on it: `make bench` skips the comparison without it.
$(LLAMACPP)/.installed: scripts/llamacpp/requirements.txt
	$(PYTHON) -m venv $(LLAMACPP)
	$(LLAMACPP)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	touch $@

# Uses a GPU machine's own Python: nothing is installed, and links mirror the installed package.
gpu-check:  ## check logits, greedy tokens and sampled distributions on a GPU; writes results/DEVICE/check.md, exit code 5 if a check fails
gpu-bench:  ## measure decoding on a GPU: ARGS="--part forward", transformers or ensemble; writes results/DEVICE/PART.md
gpu-check gpu-bench:
	rm -rf build/gpu && mkdir -p build/gpu/specbench
	ln -s $(CURDIR)/specbench/* $(CURDIR)/cli $(CURDIR)/configs $(CURDIR)/tasks build/gpu/specbench/
	ln -s $(CURDIR)/scripts build/gpu/
	PYTHONPATH=$(CURDIR)/build/gpu HF_HUB_OFFLINE=1 $(GPU_PYTHON) -P -m scripts.$(subst -,.,$@) $(ARGS)

claims: $(INSTALLED)  ## the outcomes of all claims of the papers: writes results/claims.md
	$(BIN)/python -m scripts.claims_table $(ARGS)

widening: $(INSTALLED)  ## widened models against their sources: bits, tokens, and times by bytes, 5 minutes: writes results/widening.md
	HF_HUB_OFFLINE=1 $(BIN)/python -m scripts.widening_trials $(ARGS)

readme: $(INSTALLED)  ## the example outputs, chart and picture of the README and tutorial, from the run in results/readme/run.zip; ARGS="--measure --screenshot"
	$(BIN)/python -m scripts.example_run $(ARGS)

card: $(INSTALLED)  ## measure the bundled family: writes its card and results/tiny-family.md
	$(BIN)/python -m scripts.model_card $(ARGS)

tiny: $(INSTALLED)  ## retrain the bundled family from the synthetic tasks: hours on a laptop
	$(BIN)/python -m scripts.train_tiny $(ARGS)
	$(MAKE) heads

heads: $(INSTALLED)  ## retrain the bundled heads on outputs of the bundled models: an hour
	$(BIN)/specbench train sprinter -p tiny --answers reference --minutes 0 --trial 0 -o build/heads/sprinter --rows build/heads/rows
	$(BIN)/specbench train sprinter -p tiny --answers reference --minutes 0 --trial 0 -o build/heads/sprinter-q --rows build/heads/rows --features state+q+entropy
	$(BIN)/specbench train specdec++ -p tiny --minutes 0 --trial 0 -o build/heads/specdec++
	$(BIN)/specbench train dsl -p tiny --minutes 0 --trial 0 -o build/heads/dsl
	$(BIN)/specbench train eagle -p tiny --minutes 0 --trial 0 -o build/heads/eagle
	$(BIN)/specbench train eagle -p tiny-polybasic --answers reference --minutes 0 --trial 0 --base middle -o build/heads/eagle-int4
	for head in eagle3 dflash dspark; do \
		$(BIN)/specbench train $$head -p tiny --minutes 0 --trial 0 -o build/heads/$$head --rows build/heads/states && \
		$(BIN)/python -m scripts.half_precision build/heads/$$head/model.safetensors || exit 1; \
	done
	for head in sprinter sprinter-q specdec++ dsl eagle eagle-int4 eagle3 dflash dspark; do \
		mkdir -p specbench/tiny/heads/$$head && \
		cp build/heads/$$head/*.safetensors build/heads/$$head/*.json specbench/tiny/heads/$$head/ || exit 1; \
	done
	cp build/heads/sprinter/roc.svg results/sprinter-tiny-roc.svg

clean:  ## delete what these targets made, except measurements
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "specbench needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@
