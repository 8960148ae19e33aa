# make run      a real WordPress behind yorozu's page cache
# make test     every test, in some 12 minutes; tests/again N all of them N times under load
# make soak     what is drawn and raced in make test, for long: HOURS=1, fractions allowed
# make conformance  the public suites that ../shared/suites has (SUITES=folder names another), against their floors
# make plugins  what real plugins do to cached pages: PLUGINS=folder has plugins and themes as wp-content has
# make applications  what `yorozu serve` makes of real applications: APPLICATIONS=folder has a folder for each
# make bench    yorozu beside nginx
# make lint     formatting, lints, checks of the project's own rules
# make profile  a profile of yorozu under load, for faster builds
# make deb      packages for Debian and Ubuntu, in target/packages; ARCHITECTURE=arm64 makes those of another one
# make apt      an apt repository of these packages, signed: KEY=fingerprint of your key, else one is made
# make image    a container image of the package
# make packages-test  both on real systems: installed, upgraded under load, removed
# make release  all that a release is: tests, packages, image, their tests, checksums
.PHONY: run test soak conformance plugins applications bench lint profile deb apt image packages-test release

run:
	@exec stack/run

test:
	@exec tests/run

soak:
	@exec tests/soak

conformance:
	@tests/run -s tests/test_conformance.py && exec conformance/h2spec

plugins:
	@[ -d "$(PLUGINS)/plugins" ] || { echo 'make plugins: PLUGINS is "$(PLUGINS)": a folder with plugins (and themes) as in wp-content was expected' >&2; exit 2; }
	@rm -rf target/tests/plugins; tests/run tests/real_plugins.py; status=$$?; cat target/tests/plugins/*.md; exit $$status

applications:
	@[ -d "$(APPLICATIONS)" ] || { echo 'make applications: APPLICATIONS is "$(APPLICATIONS)": a folder with a folder for each application was expected' >&2; exit 2; }
	@/usr/bin/python3 -c 'import lxml.html, requests' || { echo 'make applications: apt install python3-lxml python3-requests' >&2; exit 2; }
	@rm -rf target/tests/applications; tests/run tests/real_applications.py; status=$$?; cat target/tests/applications/*.md; exit $$status

bench:
	@exec bench/run

lint:
	@exec tests/lint

profile:
	@exec stack/profile

deb:
	@exec packaging/run deb

apt:
	@exec packaging/run apt

image:
	@exec packaging/run image

packages-test:
	@exec packaging/run test

release:
	@exec packaging/run release
