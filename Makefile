# The commands of the README. Everything they need is installed by them (Debian 12 or Ubuntu, as root).
RUN := tests/ci/run.sh

.PHONY: demo test check docs test-full bench lab-up lab-reset lab-down

demo: ## bring up the lab, deploy, show the answer
	$(RUN) demo

test: ## all tests of a change
	$(RUN) test

check: ## everything that needs no Docker
	$(RUN) check

docs: ## the site of the documentation, in build/docs/html
	$(RUN) docs

test-full: ## what is too long for every change: make test-full PART=faults, gates, matrix, molecule, mp, packaging, preflight, registry, rollback, serving, sglang, sizes, staging or walk
	$(RUN) full $(PART)

bench: ## how fast registry_probe, staging and a whole run are, against the promises; PART=probe, overhead or staging for one
	PART=$(PART) $(RUN) bench

lab-up: ## the two simulated hosts (docs/lab.md)
	$(RUN) lab

lab-reset: ## all hosts back to their start state
	python3 tests/lab/lab.py reset

lab-down: ## remove hosts and networks; PURGE=1 removes disks, images and caches, too
	python3 tests/lab/lab.py down $(if $(PURGE),--purge)
