# make run    a real WordPress behind yorozu's page cache
# make test   every test
# make bench  yorozu beside nginx
# make lint   formatting, lints, checks of the project's own rules
.PHONY: run test bench lint

run:
	@exec stack/run

test:
	@exec tests/run

bench:
	@exec bench/run

lint:
	@exec tests/lint
