"""The end of `make test`: what cargo's tests said where they failed, and one table of all parts.

  tests/table.py STATUS     STATUS is cargo's

Reads what tests/run and tests/conftest.py leave in target/tests.
"""
import json, pathlib, re, sys

LOGS = pathlib.Path(__file__).resolve().parent.parent / 'target/tests'
PROGRAM = re.compile(r'^     Running (?:unittests )?(\S+) \(\S*/([\w-]+)-[0-9a-f]{16}\)\n(.*?)^took ([\d.]+) ([\d.]+) ([\d.]+)$', re.M | re.S)
RESULT = re.compile(r'^test result: .*? (\d+) passed; (\d+) failed; (\d+) ignored', re.M)


def seconds(text):
    minutes, rest = re.match(r'(\d+)m([\d.]+)s', text).groups()
    return 60 * int(minutes) + float(rest)


def of_cargo(log):
    """A row for each of cargo's test programs."""
    for source, name, text, wall, user, system in PROGRAM.findall(log):
        passed, failed, ignored = map(int, (RESULT.findall(text) or [(0, 1, 0)])[-1])
        if passed + failed + ignored:
            yield dict(name=f'{name} {source}', wall=float(wall), cpu=float(user) + float(system), passed=passed, failed=failed, skipped=ignored)


def main(cargo_failed):
    log = (LOGS / 'cargo.log').read_text(errors='replace')
    if cargo_failed:
        print(log)
    of_pytest = json.loads((LOGS / 'pytest.json').read_text())
    rows = [*of_cargo(log), *of_pytest['files']]
    print('\n  wall     CPU  passed  failed  skipped')
    for row in sorted(rows, key=lambda row: -row['wall']):
        print(f'{row["wall"]:4.0f} s  {row["cpu"]:4.0f} s  {row["passed"]:6}  {row["failed"]:6}  {row["skipped"]:7}  {row["name"]}')
    print('\nthe slowest tests of pytest')
    for wall, name in of_pytest['slowest']:
        print(f'{wall:4.0f} s  {name}')
    every = [seconds(word) for line in (LOGS / 'times').read_text().splitlines() for word in line.split()]
    print(f'\n{sum(every):.0f} s of CPU')
    print('{} passed, {} failed, {} skipped'.format(*(sum(row[kind] for row in rows) for kind in ('passed', 'failed', 'skipped'))))


if __name__ == '__main__':
    sys.exit(main(sys.argv[1] != '0'))
