#!/usr/bin/env python3
"""Small races of the cache and of leases, whose steps shuttle puts into one order after the other.

  tests/model.py [NAME ...]     the packages whose names contain one of NAME

SECONDS says for how long each goes on, SEED repeats what was drawn.
"""
import subprocess, sys, time
from peers import ROOT, told

PACKAGES = ('yorozu-cache', 'yorozu-upstream')


def main(names):
    passed = failed = 0
    for package in PACKAGES:
        if names and not any(part in package for part in names):
            continue
        begun = time.monotonic()
        # The feature is no other part's: these are builds of their own.
        command = ['cargo', 'test', '--locked', '-p', package, '--features', 'model', '--test', 'model', '--', '--nocapture']
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        print(''.join(line + '\n' for line in done.stdout.splitlines() if line.startswith(('seed', 'at random', '    at random'))), end='')
        good = told(package, time.monotonic() - begun, done.returncode, done.stdout if done.returncode else '')
        passed, failed = passed + good, failed + (not good)
    print(f'{passed} passed, {failed} failed')
    return 1 if failed or not passed else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
