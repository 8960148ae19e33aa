# make run      a real WordPress behind yorozu's page cache
# make test     every test; tests/run PART ... runs some, tests/again N all of them N times under load
# make bench    yorozu beside nginx
# make lint     formatting, lints, checks of the project's own rules
# make profile  a profile of yorozu under load, for faster builds
.PHONY: run test bench lint profile

run:
	@exec stack/run

test:
	@exec tests/run

bench:
	@exec bench/run

lint:
	@exec tests/lint

profile:
	@exec stack/profile
