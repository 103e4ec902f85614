# Needs Python 3.11 and make. `make train` trains an agent, `make check` tests a change in a minute, `make test` is what
# CI runs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BENCH_VENV := .venv-bench
WORLD := .venv-world
EXTRAS := .venv-extras
CLUSTER := .venv-cluster
FOREIGN := .venv-foreign
GAMES := .venv-games
# tests that run at the same time: as many as there are cores
WORKERS ?= 2
FAST := tests/unit tests/property tests/architecture tests/docs
IN_WORLD := $(WORLD)/bin/python -m pip install --quiet --disable-pip-version-check
IN_FOREIGN := $(FOREIGN)/bin/python -m pip install --quiet --disable-pip-version-check
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
BENCH_PIP := $(BENCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check

.PHONY: train check test test-extras cluster durations lint learn bench bench-ours bench-threads replay-memory offline-memory chaos chaos-foreign hostile parity pixels-peer traces world zoo-smoke clean

train: $(VENV)/.installed
	$(BIN)/rl-training train --config configs/ppo/cartpole.yaml

# lint, types and the fast tests
check: $(VENV)/.installed-dev lint
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow" $(FAST)

# everything; prints which tests were skipped and why
test: $(VENV)/.installed-dev lint
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# the tests that `make test` skips because they need other packages; writes results/test_extras.md
test-extras: $(EXTRAS)/.installed
	$(EXTRAS)/bin/python -m pytest -m extra --junitxml=$(EXTRAS)/tests.xml
	$(EXTRAS)/bin/python scripts/test_report.py --kind extras --files $(EXTRAS)/tests.xml --output results/test_extras.md

# the tests that start Ray clusters on this machine and kill parts of them; writes results/cluster.md
cluster: $(CLUSTER)/.installed
	$(CLUSTER)/bin/python -m pytest -m cluster tests/cluster tests/smoke --junitxml=$(CLUSTER)/tests.xml
	$(CLUSTER)/bin/python scripts/test_report.py --kind cluster --files $(CLUSTER)/tests.xml --output results/cluster.md

# the whole suite with the time of every test; writes results/test_durations.md
durations: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --junitxml=$(VENV)/tests.xml
	$(BIN)/python scripts/test_report.py --kind durations --files $(VENV)/tests.xml --output results/test_durations.md

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

learn: $(VENV)/.installed-dev
	$(PIP) --constraint constraints.txt -e ".[minigrid]" minatar==1.0.15 popgym==1.0.7
	$(BIN)/python scripts/learn.py
	$(BIN)/python scripts/pixels.py
	$(BIN)/python scripts/masks.py

# the same with rollouts of an older policy: lag 0, 1 and free side by side; writes results/learning_lag.md
.PHONY: learn-lag
learn-lag: $(VENV)/.installed-dev
	$(BIN)/python scripts/learn_lag.py

# the offline algorithms on the datasets of `make datasets`; writes results/offline.md
.PHONY: offline
offline: $(VENV)/.installed-dev
	$(BIN)/python scripts/offline.py $(TASKS)

# Ours and the peers, in a virtual environment of their own; ROWS and ROUNDS as in `bench.py --help`.
# With BASE=<commit>: this tree and that commit in turns, without peers.
ifdef BASE
bench: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/against_base.py $(BASE) $(if $(ROWS),--rows $(ROWS)) $(if $(ROUNDS),--rounds $(ROUNDS))
else
bench: $(BENCH_VENV)/.installed
	$(BENCH_VENV)/bin/python benchmarks/bench.py $(if $(ROWS),--rows $(ROWS)) $(if $(ROUNDS),--rounds $(ROUNDS))
endif

# What only concerns ourselves: the price of exact resume, and the replay buffer alone.
bench-ours: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/bench_reliability.py
	$(BIN)/python benchmarks/bench_buffer.py
	$(BIN)/python benchmarks/bench_callbacks.py

# one thread, two and auto, on idle cores and beside a busy one; writes results/threads.md
bench-threads: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/threads.py $(if $(ROUNDS),--rounds $(ROUNDS))

# one process beside several on two cores; ROWS and ROUNDS as in `scale.py --help`; writes results/scale.md
.PHONY: scale
scale: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/scale.py $(if $(ROWS),--rows $(ROWS)) $(if $(ROUNDS),--rounds $(ROUNDS))

# what `rl-training plan` predicts for the same rows; commit it before the measurement, and compare afterwards with
# COMPARE=1; writes results/scale_plan.md
.PHONY: scale-plan
scale-plan: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/scale_plan.py $(if $(ROWS),--rows $(ROWS)) $(if $(COMPARE),--compare)

# the same beside Sample Factory and RLlib, each in a virtual environment of its own: they need other versions of
# Gymnasium and NumPy; writes results/scale_peers.md
.PHONY: peers-scale
peers-scale: $(VENV)/.installed-dev .venv-sample-factory/.installed .venv-rllib/.installed
	$(BIN)/python benchmarks/scale_peers.py $(if $(TASKS),--tasks $(TASKS)) $(if $(ROUNDS),--rounds $(ROUNDS))

# ours and d3rlpy on the same dataset files, such as DATA="td3_bc=data/a iql=data/a cql=data/b"; continues where it was
# interrupted; writes results/offline_peer.md
.PHONY: offline-peer
offline-peer: $(VENV)/.installed-dev .venv-d3rlpy/.installed
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/offline_peer.py --data $(DATA) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(UPDATES),--updates $(UPDATES))

# IPPO and MAPPO of ours and of BenchMARL in the same games; continues where it was interrupted; writes
# results/games_peer.md
.PHONY: games-peer
games-peer: $(VENV)/.installed-dev .venv-benchmarl/.installed
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/games_peer.py

# torch must come first and stay, or a build for GPUs is fetched
.venv-%/.installed: benchmarks/peer_runners/%.txt
	@echo "Installing into .venv-$* (a few minutes the first time)"
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints.txt)"
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

# the scheduler with hundreds of hosts on a virtual clock; writes results/virtual_scale.md
.PHONY: virtual-scale
virtual-scale: $(VENV)/.installed-dev
	$(BIN)/python scripts/virtual_scale.py

replay-memory: $(VENV)/.installed-dev
	$(PIP) --constraint constraints.txt -e ".[bench]"
	$(BIN)/python scripts/replay_memory.py

# a dataset several times as large as its memory, beside the same one in memory; writes results/offline_memory.md
offline-memory: $(VENV)/.installed-dev
	$(BIN)/python scripts/offline_memory.py

hostile: $(VENV)/.installed-dev
	$(BIN)/python scripts/hostile.py
	$(BIN)/python scripts/hostile_folders.py

# trains three small agents and records five datasets in the folder datasets (5 minutes); writes results/datasets.md
.PHONY: datasets
datasets: $(VENV)/.installed-dev
	$(BIN)/python scripts/make_datasets.py

# runs that learn from datasets, and recordings, are killed again and again; writes results/chaos_offline.md
.PHONY: chaos-offline
chaos-offline: $(VENV)/.installed-dev
	$(BIN)/python scripts/chaos_offline.py

chaos: $(VENV)/.installed-dev
	$(BIN)/python scripts/chaos.py

# samplers, learner ranks, fork servers, drivers and whole trees are killed or stopped; writes results/chaos_engines.md
.PHONY: chaos-engines
chaos-engines: $(VENV)/.installed-dev
	$(BIN)/python scripts/chaos_engines.py

# the same on Ray clusters, whose actors and nodes are struck as well; writes results/chaos_ray.md
.PHONY: chaos-ray
chaos-ray: $(CLUSTER)/.installed
	$(CLUSTER)/bin/python scripts/chaos_engines.py --ray

# EnvPool beside the other backends, with random actions; writes results/envpool.md
.PHONY: envpool
envpool: $(EXTRAS)/.installed
	$(EXTRAS)/bin/python scripts/envpool_ceiling.py

# the same in environments of other packages; writes results/chaos_foreign.md
chaos-foreign: $(FOREIGN)/.installed
	$(FOREIGN)/bin/python scripts/chaos_foreign.py

pixels-peer: $(VENV)/.installed-dev
	$(PIP) --constraint constraints.txt -e ".[bench]"
	$(BIN)/python scripts/pixels_peer.py

parity: $(VENV)/.installed-dev
	$(PIP) --constraint constraints.txt -e ".[bench]"
	PYTHONPATH=tests $(BIN)/python tests/parity/peer_batches.py
	$(BIN)/python scripts/parity.py

world: $(WORLD)/.installed
	$(WORLD)/bin/python scripts/world_mujoco.py
	OMP_NUM_THREADS=1 $(WORLD)/bin/python scripts/world.py  # a pool of threads would not survive its forks

# every preset for an instant; goes on where it was interrupted
zoo-smoke: $(VENV)/.installed-dev
	$(PIP) --constraint constraints.txt -e ".[minigrid]" minatar==1.0.15 popgym==1.0.7
	$(BIN)/python scripts/zoo_smoke.py

traces: $(VENV)/.installed-dev
	PYTHONPATH=tests $(BIN)/python tests/parity/traces.py

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing into $(VENV) (a minute or two the first time)"
	$(PIP) --constraint constraints.txt -e ".[video]"
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing into $(VENV) with everything the tests need (a few minutes the first time)"
	$(PIP) --constraint constraints.txt -e ".[dev,mujoco,box2d,video,wandb,atari,offline,agents]"
	@touch $@ $(VENV)/.installed

# The pinned list is complete and goes without a resolver: Tianshou asks for a virtualenv that it does not import and
# that no recent filelock suits.
$(BENCH_VENV)/.installed: pyproject.toml constraints.txt benchmarks/requirements.txt
	@echo "Installing into $(BENCH_VENV), with JAX among others (a few minutes the first time)"
	$(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_PIP) --constraint constraints.txt -e ".[mujoco,atari,bench]" tensorboard
	$(BENCH_PIP) --no-deps -r benchmarks/requirements.txt
	@touch $@

# torch must come with the constraints, or a build for GPUs is fetched; mo-gymnasium alone, as it asks for a pygame that
# overwrites Gymnasium's
$(WORLD)/.installed: pyproject.toml constraints.txt scripts/world_requirements.txt
	@echo "Installing other people's environments into $(WORLD) (several minutes the first time)"
	$(PYTHON) -m venv $(WORLD)
	$(IN_WORLD) --constraint constraints.txt -e ".[atari,box2d,mujoco,minigrid,bench]" -r scripts/world_requirements.txt
	$(IN_WORLD) --constraint constraints.txt --no-deps mo-gymnasium==1.3.2
	@touch $@

$(EXTRAS)/.installed: pyproject.toml constraints.txt
	@echo "Installing what the tests in test-extras need into $(EXTRAS) (a few minutes the first time)"
	$(PYTHON) -m venv $(EXTRAS)
	$(EXTRAS)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		-e ".[dev,mujoco,box2d,video,wandb,atari,minigrid,bench,envpool,agents]" minatar==1.0.15 popgym==1.0.7 pandas==2.3.3 rliable==1.2.0
	@touch $@

$(CLUSTER)/.installed: pyproject.toml constraints.txt
	@echo "Installing Ray and what its tests need into $(CLUSTER) (a few minutes the first time)"
	$(PYTHON) -m venv $(CLUSTER)
	$(CLUSTER)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		-e ".[dev,mujoco,ray]"
	@touch $@

# every game of PettingZoo and mpe2; FAMILIES names those to try again; writes results/world_games.md
.PHONY: world-games
world-games: $(GAMES)/.installed
	OMP_NUM_THREADS=1 SDL_VIDEODRIVER=dummy $(GAMES)/bin/python scripts/world_games.py $(FAMILIES)

# runs of games are killed again and again; writes results/chaos_games.md
.PHONY: chaos-games
chaos-games: $(VENV)/.installed-dev
	$(BIN)/python scripts/chaos_games.py

$(GAMES)/.installed: pyproject.toml constraints.txt scripts/games_requirements.txt
	@echo "Installing the games of PettingZoo into $(GAMES) (a few minutes the first time)"
	$(PYTHON) -m venv $(GAMES)
	$(GAMES)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		-e ".[agents,video,images]" -r scripts/games_requirements.txt
	@touch $@

# without a resolver, as scripts/chaos_foreign_requirements.txt says
$(FOREIGN)/.installed: pyproject.toml constraints.txt scripts/chaos_foreign_requirements.txt
	@echo "Installing other people's environments into $(FOREIGN) (a few minutes the first time)"
	$(PYTHON) -m venv $(FOREIGN)
	$(IN_FOREIGN) --constraint constraints.txt -e ".[mujoco,images]"
	$(IN_FOREIGN) --no-deps -r scripts/chaos_foreign_requirements.txt
	@touch $@

clean:
	rm -rf $(VENV) $(BENCH_VENV) $(WORLD) $(EXTRAS) $(CLUSTER) $(FOREIGN) $(GAMES) .venv-sample-factory .venv-rllib .venv-benchmarl runs
