#!/usr/bin/env python3
"""Small races of the cache and of leases, whose steps shuttle puts into one order after the other.

  tests/model.py [NAME ...]     the packages whose names contain one of NAME

SECONDS says for how long each goes on, SEED repeats what was drawn.
"""
import json, pathlib, subprocess, sys, time
from peers import ROOT, told

PACKAGES = ('yorozu-cache', 'yorozu-upstream')


def built():
    """The packages' programs. The feature is no other part's, so that these are builds of their own; as builds of the whole
    workspace they have the libraries that were built for all, which a package by itself would want with other features."""
    features = ','.join(f'{package}/model' for package in PACKAGES)
    command = ['cargo', 'test', '--locked', '--workspace', '--features', features, '--test', 'model', '--no-run',
               '--message-format', 'json-render-diagnostics']
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    return {pathlib.Path(one['manifest_path']).parent: one['executable'] for one in messages if one.get('executable')}


def main(names):
    passed = failed = 0
    programs = built()
    for package in PACKAGES:
        if names and not any(part in package for part in names):
            continue
        begun, folder = time.monotonic(), ROOT / 'crates' / package.removeprefix('yorozu-')
        if folder in programs:
            done = subprocess.run([programs[folder], '--nocapture'], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            status, output = done.returncode, done.stdout
        else:
            status, output = 1, f'{package} was not built'
        print(''.join(line + '\n' for line in output.splitlines() if line.startswith(('seed', 'at random', '    at random'))), end='')
        good = told(package, time.monotonic() - begun, status, output if status else '')
        passed, failed = passed + good, failed + (not good)
    print(f'{passed} passed, {failed} failed')
    return 1 if failed or not passed else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
