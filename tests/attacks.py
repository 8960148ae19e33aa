#!/usr/bin/env python3
"""Attacks on the server and its cache: scripted clients and upstreams, and nginx beside it where it knows what is right.

  tests/attacks.py [CLASS ...]     runs the classes whose names contain one of CLASS

CASE=text runs the cases whose names contain it. ROUNDS=1000 tries more random forms, SEED= repeats them. What the classes
are is said in docs/security.md and at the top of their modules in tests/attacks.
"""
import asyncio, concurrent.futures, importlib, multiprocessing, pathlib, re, sys, traceback
from attacks.tried import CASE, SEED, Tried
from peers import Pace, told

# Those that take longest come first: two run at the same time.
CLASSES = ('floods', 'http3', 'refreshes', 'answers', 'forms', 'sharing', 'requests', 'downgrades', 'authorities', 'applications',
           'upstreams', 'purges')
DOCUMENT = pathlib.Path(__file__).resolve().parent.parent / 'docs/security.md'


def tried(name):
    """Runs a class."""
    module = importlib.import_module(f'attacks.{name}')
    result = Tried(name)
    try:
        asyncio.run(module.run(result))
    except Exception:
        result.failed('the class', f'did not come to its end: {traceback.format_exc()}')
    return result.ended()


def documented():
    """How many cases of each class the document claims."""
    rows = re.findall(r'^\| `(\w+)` \|.*\| ([\d,]+) \|', DOCUMENT.read_text(), re.M)
    return {name: int(count.replace(',', '')) for name, count in rows}


def overstated(results):
    """What the document says beyond what was run."""
    claims = documented()
    for result in results:
        if result.name not in claims:
            yield f'{DOCUMENT.name} has no row for {result.name}'
        elif claims[result.name] > result.cases and not result.lacking:
            yield f'{DOCUMENT.name} says {claims[result.name]} cases of {result.name}, {result.cases} were run'


def main(names):
    print(f'SEED={SEED}', flush=True)
    chosen = [name for name in CLASSES if not names or any(part in name for part in names)]
    results, pace, before = [], Pace(), {}
    # Processes: a class is one event loop with its clients and upstreams.
    with concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context('fork')) as pool:
        running = {pool.submit(tried, name): 1 for name in chosen}
        while running:
            pace.sleep(0.05)
            for done in [one for one in running if one.done()]:
                result, tries = done.result(), running.pop(done)
                if result.wrong and not pace.is_judged(result.name, tries, before.get(result.name, 0)):
                    before[result.name] = pace.stood
                    running[pool.submit(tried, result.name)] = tries + 1
                    continue
                results.append(result)
                result.report()
    problems = [] if CASE else list(overstated(results))
    for problem in problems:
        told(f'the claims of {DOCUMENT.name}', 0, 1, problem)
    good = sum(result.cases > 0 and not result.wrong for result in results)
    failed = sum(bool(result.wrong) for result in results) + len(problems)
    ignored = sum(len(result.lacking) for result in results)
    print(f'{good} passed, {failed} failed' + (f', {ignored} ignored' if ignored else ''))
    return 1 if failed or good + ignored == 0 else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
