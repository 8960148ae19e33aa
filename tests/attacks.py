#!/usr/bin/env python3
"""Attacks on the server and its cache, the upstreams scripted and nginx beside it where it knows what is right.

  tests/attacks.py [CLASS ...]     runs the classes whose names contain one of CLASS

CASE=text runs the cases whose names contain it. ROUNDS=1000 tries more random forms, SEED= repeats them.
"""
import asyncio, importlib, sys, traceback
from attacks.tried import SEED, Tried

CLASSES = ('requests', 'answers')


def tried(name):
    """Runs a class; `None` if it could not be run to its end."""
    module = importlib.import_module(f'attacks.{name}')
    result = Tried(name)
    try:
        asyncio.run(module.run(result))
    except Exception:
        traceback.print_exc()
        result.failed('the class', 'did not come to its end')
    result.report()
    return result


def main(names):
    print(f'SEED={SEED}')
    results = [tried(name) for name in CLASSES if not names or any(part in name for part in names)]
    failed = sum(bool(result.wrong) for result in results)
    print(f'{len(results) - failed} passed, {failed} failed')
    return 1 if failed or not results else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
