"""What a class of attacks has tried and what came of it."""
import os, random, shlex, time
from .wire import Broken

CASE = os.environ.get('CASE', '')
ROUNDS = int(os.environ.get('ROUNDS', '20'))
SEED = int(os.environ.get('SEED', '1'))
# Says how long each case took, where cases are long.
SHOW = bool(os.environ.get('SHOW'))
# Failures shown of one class; the others are counted.
SHOWN = 12


class Tried:
    """The cases of one class: how many there were, and which of them went wrong."""

    def __init__(self, name):
        self.name, self.cases, self.wrong, self.lacking = name, 0, {}, []
        self.random = random.Random(f'{SEED} {name}')

    def wants(self, case):
        """Counts a case; with CASE= only those whose names contain it, or a part of it between `|`, are run."""
        if not any(part in case for part in CASE.split('|')):
            return False
        self.cases += 1
        return True

    def lacks(self, why):
        """Whether something is not there that cases need; says so."""
        if why:
            self.lacking.append(why)
        return bool(why)

    def failed(self, case, what):
        self.wrong.setdefault(case, []).append(what)

    def check(self, case, holds, what):
        if not holds:
            self.failed(case, what)
        return holds

    async def attempt(self, case, work):
        """Awaits what fails by raising."""
        begun = time.monotonic()
        try:
            await work
        except (OSError, AssertionError, TimeoutError, Broken) as problem:
            self.failed(case, f'{type(problem).__name__} {problem}'[:300])
        if SHOW:
            print(f'{case:60} {time.monotonic() - begun:5.1f} s', flush=True)

    def alive(self, server):
        """No attack ends a server or makes it panic."""
        self.check('the server', server.process.poll() is None, 'has ended')
        panics = [line for line in server.log().splitlines() if 'panic' in line]
        self.check('the server', not panics, f'panicked: {panics[:2]}')

    def report(self):
        """What went wrong, kinds of cases together."""
        groups, lines = {}, [f'{self.cases} cases, {len(self.wrong)} wrong, SEED={SEED}']
        for case in self.wrong:
            groups.setdefault(case.rpartition(':')[0] or case, []).append(case)
        for cases in list(groups.values())[:SHOWN]:
            more = f' (and {len(cases) - 1} cases like it)' if cases[1:] else ''
            seed = f'SEED={SEED} ROUNDS={ROUNDS} ' if 'random' in cases[0] else ''
            lines += [f'    {cases[0]}: {self.wrong[cases[0]][0]}{more}',
                      f'        {seed}CASE={shlex.quote(cases[0])} pytest tests/test_attacks.py -k {self.name}']
        return '\n'.join(lines + ([f'    and {len(groups) - SHOWN} more'] if len(groups) > SHOWN else []))
