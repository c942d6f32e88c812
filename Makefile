# make fit   set up and run the demo; make test   set up and run all checks.
# make slow   run the slow tests, and the rows of the torture that no timing can make fail.
# make torture   run the rows of benchmarks/RELIABILITY.md that have not been run, at full counts.
# make lock   write requirements.lock anew, after a change of versions; needs uv and the index.
# make docs   build the documentation site, build/docs/index.html; a warning is an error.
# make pictures   plot the pictures of the pages again; trains the demo's runs where they are missing.
# They need Python 3.11, 3.12 or 3.13 only.
PYTHON ?= python3
PIP = .venv/bin/python -m pip install --disable-pip-version-check --constraint constraints.txt
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: fit test check lint types docs suite slow torture lock pictures clean

# threads that wait some microseconds for each other before they sleep train a tenth faster, on a machine of their own
fit: export GOMP_SPINCOUNT ?= 2000
fit: .venv/.fit
	@$(STEP); step .venv/bin/python -m lab.fit configs/cpu_demo.yaml --resume
	@$(STEP); step .venv/bin/python -m lab.fit configs/cpu_demo_384.yaml --resume
	@$(STEP); step .venv/bin/python -m eval.distance runs/cpu_demo_384 --plot --distance=plain \
		--distance=string:shift=192,window=64 --distance=dca:train_len=192,chunk=128
# the shell waits for a step that Ctrl-C stops (75), whose own last line names only the command of that step
STEP = trap : INT; step() { echo "$$@"; "$$@" || { status=$$?; test $$status != 75 || \
	echo "stopped: make fit continues, here and with the steps after it"; exit $$status; }; }

# mypy takes a minute of one core, and the tests often wait for a process: they run side by side.
test: lint docs
	$(MAKE) -j 2 types suite

suite: .venv/.dev
	OMP_NUM_THREADS=1 .venv/bin/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

# slow tests, and the rows of the torture that no timing can make fail, which --torture marks as slow
slow: .venv/.dev
	OMP_NUM_THREADS=1 .venv/bin/python -m pytest -m slow --torture=1 -rs -n 2 --dist worksteal

torture: .venv/.dev
	OMP_NUM_THREADS=1 .venv/bin/python -m tests.torture

docs: .venv/.docs
	.venv/bin/python -m sphinx --quiet --fresh-env --fail-on-warning --keep-going docs build/docs
	@echo "the site is build/docs/index.html; served, its search shows sentences: python3 -m http.server -d build/docs"

lock: .venv/.dev
	.venv/bin/python .ci/lock.py

pictures: .venv/.dev
	.venv/bin/python -m docs.pictures

check: lint types

lint: .venv/.dev
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/lint-imports

types: .venv/.dev
	.venv/bin/mypy

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.fit: .venv/bin/python pyproject.toml constraints.txt
	@echo "setting up .venv, once: 2 GB, 3 minutes"
	$(PIP) --editable '.[plot]'
	@touch $@

.venv/.dev: .venv/bin/python pyproject.toml constraints.txt
	@echo "setting up .venv for the tests, once: 12 minutes"
	$(PIP) --editable '.[dev]'
	@touch $@ .venv/.fit .venv/.docs

.venv/.docs: .venv/bin/python pyproject.toml constraints.txt
	@echo "setting up .venv for the site, once"
	$(PIP) --editable '.[docs]'
	@touch $@

clean:
	rm -rf .venv *.egg-info .pytest_cache .ruff_cache .mypy_cache .import_linter_cache
