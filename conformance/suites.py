"""What the runners of the outside suites share: where the suites are, what is run, and the floors."""
import os, pathlib, shutil, subprocess, sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.append(str(ROOT / 'tests'))
from peers import YOROZU

# Written to by the runners: copies of the suites and what they install.
WORK = ROOT / 'target/conformance'


def suite(name):
    """A suite's folder, below SUITES or ../shared/suites; without it there is nothing to run, which is said."""
    folder = pathlib.Path(os.environ.get('SUITES') or ROOT.parent / 'shared/suites') / name
    if not folder.is_dir():
        not_run(name, f'{folder} is not there (SUITES=folder names where the suites are)')
    return folder


def not_run(name, why):
    print(f'ignored  {name}: {why}\n0 passed, 0 failed, 1 ignored')
    sys.exit(0)


def copy_of(folder):
    """A copy that can be written to and that every user may read."""
    copy = WORK / folder.name
    copy.mkdir(parents=True, exist_ok=True)
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    return copy


def need_packages(wanted):
    """Installs what is missing of Debian's packages, where that is possible; what is missing still."""
    def missing():
        shown = subprocess.run(['dpkg-query', '-W', '-f', '${Package} ${db:Status-Status}\n', *wanted],
                               capture_output=True, text=True).stdout.splitlines()
        return [name for name in wanted if f'{name} installed' not in shown]
    if missing() and os.geteuid() == 0:
        quiet = dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                     env=os.environ | {'DEBIAN_FRONTEND': 'noninteractive'})
        subprocess.run(['apt-get', 'update'], **quiet)
        subprocess.run(['apt-get', 'install', '-y', '--no-install-recommends', *missing()], **quiet)
    return missing()


def told(name, is_good, more=''):
    print(f'{"ok    " if is_good else "FAILED"}  {name}', more, sep='\n' if more else '', flush=True)


def floors(name):
    """The floors of a suite: what of it passes at least."""
    lines = [line.split() for line in (HERE / 'floors').read_text().splitlines() if line and line[0] != '#']
    return {' '.join(words[1:-1]): int(words[-1]) for words in lines if words[0] == name}


def judge(name, found):
    """Compares what passed, by part of the suite, with the floors; whether all hold. `found` has (passed, of) for each part."""
    wanted, good, bad = floors(name), 0, 0
    for part, (passed, of) in found.items():
        floor = wanted.get(part)
        is_good = floor is not None and passed >= floor
        more = '' if floor is not None else f'        conformance/floors has no line "{name} {part} {passed}"'
        if floor is not None and passed > floor:
            more = f'        raise the floor to {passed}: "{name} {part} {passed}" in conformance/floors'
        told(f'{part}: {passed} of {of}, floor {floor}', is_good, more)
        good, bad = good + is_good, bad + (not is_good)
    return good, bad


def documented(name, rows):
    """A claim is a test: the table in the suite's document says what the floors say. `rows` are its lines."""
    file = HERE / f'{name}.md'
    text = file.read_text()
    missing = [row for row in rows if row not in text]
    told(f'what {file.name} claims', not missing, '\n'.join(f'        {file.name} has no line "{row}"' for row in missing))
    return (0, 1) if missing else (1, 0)


def conclude(*counts):
    passed, failed = (sum(count[at] for count in counts) for at in (0, 1))
    print(f'{passed} passed, {failed} failed')
    sys.exit(1 if failed or not passed else 0)
