# make demo | test | lint | conformance | adopt | bench: each sets up its own .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint conformance adopt bench clean

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -e '.[torch,jax,dev]'
	touch $(READY)

demo: $(READY)
	$(BIN)/python examples/mlp.py

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy gt/client/tensor.py
	$(BIN)/mypy --check-untyped-defs --allow-untyped-defs --allow-untyped-calls examples
	$(BIN)/python tests/lines.py

conformance: $(READY)
	$(BIN)/python -m tests.conformance --jobs 2
	$(BIN)/python -m tests.sharding
	$(BIN)/python -m tests.sharding --real

# Public models, in an environment of their own. They bring no torch: GT's stays the only one.
ADOPT := .venv-adopt
PUBLIC := transformers timm diffusers x-transformers einops einx loguru torch_einops_utils accelerate huggingface_hub \
  tokenizers regex tqdm typer click shellingham hf-xet httpx2 httpcore2 truststore httpx httpcore h11 anyio idna certifi \
  importlib_metadata zipp Pillow psutil requests urllib3 charset_normalizer frozendict

$(ADOPT)/.ready: Makefile pyproject.toml
	$(PYTHON) -m venv $(ADOPT)
	$(ADOPT)/bin/python -m pip install -q -e '.[torch,dev]'
	$(ADOPT)/bin/python -m pip install -q --no-deps $(PUBLIC)
	touch $(ADOPT)/.ready

adopt: $(ADOPT)/.ready
	$(ADOPT)/bin/python -m tests.adopt

bench: $(READY)
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/steps.py --model mlp,cnn,gpt-char,unet --device cpu
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/upload.py
	$(BIN)/python benchmarks/sharded.py

clean:
	rm -rf $(VENV) $(ADOPT) build *.egg-info
