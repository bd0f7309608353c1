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
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder  # on two cores: tests with processes wait much

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

# Public models, in an environment of their own. Its torch is the one that GT's extra brings: the others must take it.
ADOPT := .venv-adopt
PUBLIC := transformers timm torchvision diffusers x-transformers einops kornia torch_geometric torchmetrics gpytorch \
  torchdiffeq

$(ADOPT)/.ready: Makefile pyproject.toml
	$(PYTHON) -m venv $(ADOPT)
	$(ADOPT)/bin/python -m pip install -q -e '.[torch,dev]'
	$(ADOPT)/bin/python -m pip freeze | grep '^torch==' > $(ADOPT)/constraint.txt
	$(ADOPT)/bin/python -m pip install -q -c $(ADOPT)/constraint.txt $(PUBLIC)
	touch $(ADOPT)/.ready

adopt: $(ADOPT)/.ready
	$(ADOPT)/bin/python -m tests.adopt --out $(ADOPT)/results.jsonl

bench: $(READY)
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/steps.py --model mlp,cnn,gpt-char,unet --device cpu
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/upload.py
	$(BIN)/python benchmarks/sharded.py

clean:
	rm -rf $(VENV) $(ADOPT) build *.egg-info
