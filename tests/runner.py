#!/usr/bin/env python3
"""The runner of the tests itself: it counts what there is, and nothing goes unsaid or stays behind.

  tests/runner.py [NAME ...]     runs the tests whose names contain one of NAME
"""
import os, pathlib, signal, subprocess, sys, time
import suite
from peers import ROOT, Folder, below, run, until

GOOD = 'echo "ok      a  0.1 s"; echo "1 passed, 0 failed"'


def outcome(folder, script, seconds=60):
    """A part whose command is a script, after it ran."""
    suite.LOGS = folder
    (folder / 'script').write_text(script)
    part = suite.Part('part', 'some part', f'bash {folder}/script', (), seconds)
    part.start({})
    part.process.wait()
    part.finish()
    return part


def fails(script, why, seconds=60):
    with Folder() as folder:
        part = outcome(folder, script, seconds)
        assert part.failed and why in part.text, part.text
        return part


def test_what_passes_is_counted():
    with Folder() as folder:
        part = outcome(folder, 'echo "ok      a  0.1 s"; echo "ok      b c  2.5 s"; echo "2 passed, 0 failed, 1 ignored"')
        assert (part.passed, part.failed, part.ignored, part.tests) == (2, 0, 1, [(0.1, 'a'), (2.5, 'b c')]), part.text


def test_what_says_nothing_fails():
    fails('exit 0', 'without a count of its tests')
    fails('exit 3', 'ended with status 3 and without a count')
    fails('echo "0 passed, 0 failed"', 'ran no test')
    fails('kill -SEGV $$', 'without a count')


def test_what_contradicts_itself_fails():
    fails(GOOD + '; exit 1', 'ended with status 1 and 0 failed tests')
    fails('echo "FAILED  a  0.1 s"; echo "0 passed, 1 failed"', 'ended with status 0 and 1 failed tests')
    fails('echo "FAILED  a  0.1 s"; echo "1 passed, 2 failed"; exit 1', 'counts 2 failed tests and shows 1')


def test_failures_are_told_with_the_command_that_repeats_them():
    with Folder() as folder:
        part = outcome(folder, 'echo "ok      a  0.1 s"; echo "FAILED  b  0.1 s"; echo "1 passed, 1 failed"; exit 1')
        assert (part.passed, part.failed, part.failures) == (1, 1, ['b'])
        assert part.how_to_repeat('b') == f'bash {folder}/script b'


def test_the_end_of_a_run_says_why_a_test_failed():
    with Folder() as folder:
        said = '\n'.join(f'line {number}' for number in range(9))
        part = outcome(folder, f'echo "FAILED  a  0.1 s"; echo "{said}"; echo "ok      b  0.1 s"; echo "1 passed, 1 failed"; exit 1')
        assert part.why('a') == [f'line {number}' for number in range(3, 9)], part.why('a')
        part = outcome(folder, f'echo "FAILED  a::b  0.1 s"; echo; echo "---- a::b stdout ----"; echo; echo "{said}"; echo "stack backtrace:"; '
                       'echo "  0: main"; echo "0 passed, 1 failed"; exit 1')
        assert part.why('a::b') == [f'line {number}' for number in range(6)], part.why('a::b')


def test_what_hangs_ends_with_what_it_began():
    part = fails('echo "ok      a  0.1 s"; trap "" INT TERM; setsid sh -c "trap \'\' INT TERM HUP; sleep 4321" & sleep 4321', 'was not over after', 1)
    assert part.passed == 1 and 'left behind, and ended: ' in part.text, part.text


def test_what_is_left_behind_is_ended_and_said():
    with Folder() as folder:
        part = outcome(folder, f'setsid sleep 4321 & until grep -q ^sleep /proc/$!/cmdline; do :; done; {GOOD}')
        assert not part.failed and 'left behind, and ended: sleep 4321' in part.text, part.text
        assert not below(os.getpid()), below(os.getpid())


def test_what_is_mounted_goes_with_who_mounted_it():
    """Though it is killed; and nothing in it disturbs others meanwhile."""
    with Folder() as folder:
        part = outcome(folder, f'mkdir {folder}/full && mount -t tmpfs tmpfs {folder}/full || echo may not mount; {GOOD}; kill -KILL $PPID $$')
        mounted = pathlib.Path('/proc/self/mounts').read_text()
        assert str(folder) not in mounted and (os.geteuid() or 'may not mount' not in part.text), (mounted, part.text)


def whole(folder, *parts):
    """A program that is a whole run of `bash FOLDER/PART` for each, without a build."""
    return f'''import sys; sys.path.insert(0, {str(ROOT / 'tests')!r})
import pathlib, suite
suite.LOGS, suite.JOBS = pathlib.Path({str(folder)!r}) / 'logs', 1
suite.Build.__init__ = lambda self, made, what: suite.Part.__init__(self, 'build', 'none', 'true', ())
suite.Build.look = lambda self: None
suite.Build.errors = suite.Part.errors
suite.Build.judge = lambda self, status, is_late: None
suite.chosen = lambda names: [suite.Part(name, name, f'bash {folder}/{{name}}', ()) for name in {parts!r}]
sys.exit(suite.main([]))'''


def test_a_failed_test_is_run_once_more_by_itself():
    """`x` fails beside others, `y` always."""
    script = 'for test in ${1:-x y}; do [ -n "$1" ] && [ $test = x ] && { echo "ok      x  0.1 s"; echo "1 passed, 0 failed"; exit; }; ' \
        'echo "FAILED  $test  0.1 s"; done; echo "0 passed, $([ -n "$1" ] && echo 1 || echo 2) failed"; exit 1'
    for text, counts, status, strict in ((script, '1 passed, 1 failed, 1 unsteady', 1, ''), (script.replace('x y', 'x').replace('2', '1'),
            '1 passed, 0 failed, 1 unsteady', 0, ''), (script.replace('x y', 'x').replace('2', '1'), '1 passed, 0 failed, 1 unsteady', 1, '1')):
        with Folder() as folder:
            (folder / 'one').write_text(text)
            done = subprocess.run([sys.executable, '-B', '-c', whole(folder, 'one')], capture_output=True, text=True,
                                  env=os.environ | {'STRICT': strict})
            assert done.stdout.endswith(counts + '\n') and done.returncode == status, done.stdout + done.stderr
            assert 'unsteady: failed beside others, passed by itself\n  one: x\n' in done.stdout, done.stdout


def test_many_failures_are_no_unsteadiness():
    with Folder() as folder:
        (folder / 'one').write_text('[ -n "$1" ] && exec echo repeated; for test in a b c d e; do echo "FAILED  $test  0.1 s"; done; echo "0 passed, 5 failed"; exit 1')
        done = subprocess.run([sys.executable, '-B', '-c', whole(folder, 'one')], capture_output=True, text=True)
        assert done.stdout.endswith('\n0 passed, 5 failed\n') and 'by itself' not in done.stdout, done.stdout


def test_ctrl_c_ends_everything_and_says_what_was_not_run():
    with Folder() as folder:
        for name in ('one', 'two'):
            (folder / name).write_text('setsid sleep 4321 & sleep 4321 & wait')
        out = open(folder / 'out', 'w+')
        process = subprocess.Popen([sys.executable, '-B', '-c', whole(folder, 'one', 'two')], stdout=out, stderr=out)
        # What was begun is there before it is the program it becomes.
        until('the part', lambda: sum(line.startswith('sleep 4321') for line in below(process.pid).values()) == 2)
        everyone = below(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130
        assert not [pid for pid in everyone if pathlib.Path(f'/proc/{pid}').exists()]
        said = (folder / 'out').read_text()
        assert 'two: (was not run)' in said and '0 passed, 2 failed' in said, said


def test_a_program_that_crashes_or_hangs_takes_no_other_test_along():
    """As cargo's test programs speak: three tests, of which the second ends the program or the third never ends."""
    program = '''#!/bin/bash
if [ "$1" = --list ]; then printf '%s: test\\n' one two three; exit; fi
for test in one two three; do
    [ "${3-}" = --exact ] && [ "$4" != $test ] && continue
    [ $test = WHICH ] && { HOW; }
    echo "test $test ... ok <0.001s>"
done
'''
    for which, how, failed in (('two', 'kill -ABRT $$', 'two'), ('three', 'sleep 4321', 'three')):
        with Folder() as folder:
            file = folder / 'program'
            file.write_text(program.replace('WHICH', which).replace('HOW', how))
            file.chmod(0o755)
            text = f'import sys; sys.path.insert(0, {str(ROOT / "tests")!r}); import libtest; ' \
                f'libtest.SECONDS = libtest.SECONDS_ALONE = 2; sys.exit(libtest.main({str(file)!r}))'
            done = subprocess.run([sys.executable, '-B', '-c', text], capture_output=True, text=True)
            assert done.returncode == 1 and done.stdout.endswith('2 passed, 1 failed\n'), done.stdout + done.stderr
            assert f'FAILED  {failed}  ' in done.stdout, done.stdout


def test_each_test_of_a_file_ends_by_itself():
    text = f'''import sys; sys.path.insert(0, {str(ROOT / "tests")!r}); import os, peers, time
tests = dict(dies=lambda: os._exit(0 + 7), hangs=lambda: time.sleep(4321), is_wrong=lambda: 1 / 0, is_good=lambda: print('said'),
    lacks=lambda: lack())
def lack():
    print('begun')
    raise peers.Ignored('a thing\\nis not there')
sys.exit(peers.run(tests, [], 1, at_once=AT_ONCE))'''
    for at_once in (1, 3):
        done = subprocess.run([sys.executable, '-B', '-c', text.replace('AT_ONCE', str(at_once))], capture_output=True, text=True)
        assert done.returncode == 1 and done.stdout.endswith('1 passed, 3 failed, 1 ignored\n'), done.stdout + done.stderr
        said(done)


def said(done):
    for word in ('ignored lacks: a thing is not there', 'FAILED  dies', 'FAILED  hangs', 'it was not over', 'FAILED  is_wrong', 'ZeroDivisionError', 'ok      is_good', 'said'):
        assert word in done.stdout, (word, done.stdout)
    assert 'ok      lacks' not in done.stdout


def test_what_failed_while_the_machine_stood_still_is_run_again():
    """And only that; what fails each time fails."""
    text = f'''import sys; sys.path.insert(0, {str(ROOT / "tests")!r}); import os, peers, signal, time
def stands():
    os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(1)
    os.kill(os.getppid(), signal.SIGCONT)
def count(name):
    with open(os.path.join({{folder!r}}, name), "a+") as file:
        return file.write("x"), file.tell()
def once():
    stands()
    assert count("once")[1] > 1
def always():
    count("always"), stands()
    assert False
def wrong():
    count("wrong")
    assert False
sys.exit(peers.run(dict(once=once, always=always, wrong=wrong), []))'''
    with Folder() as folder:
        done = subprocess.run([sys.executable, '-B', '-c', text.replace('{folder!r}', repr(str(folder)))], capture_output=True, text=True)
        assert done.returncode == 1 and done.stdout.endswith('1 passed, 2 failed\n'), done.stdout + done.stderr
        assert 'ok      once' in done.stdout and done.stdout.count('it is run again') == 1 + 3, done.stdout
        runs = {name: len((folder / name).read_text()) for name in ('once', 'always', 'wrong')}
        # The machine may stand still by itself, too.
        assert runs['once'] == 2 and runs['always'] == 4 and runs['wrong'] >= 1, runs


def test_a_rust_test_that_failed_while_the_machine_stood_still_is_run_again():
    program = '''#!/bin/bash
if [ "$1" = --list ]; then printf '%s: test\\n' one two; exit; fi
for test in one two; do
    [ "${3-}" = --exact ] && [ "$4" != $test ] && continue
    [ $test = one ] && { kill -STOP $PPID; sleep 1; kill -CONT $PPID; echo x >>RUNS; }
    [ $test = two ] || [ $(wc -l <RUNS) -gt 2 ] && echo "test $test ... ok <0.001s>" || { echo "test $test ... FAILED <0.001s>"; failed=1; }
done
exit ${failed-0}
'''
    with Folder() as folder:
        file = folder / 'program'
        file.write_text(program.replace('RUNS', str(folder / 'runs')))
        file.chmod(0o755)
        text = f'import sys; sys.path.insert(0, {str(ROOT / "tests")!r}); import libtest; sys.exit(libtest.main({str(file)!r}))'
        done = subprocess.run([sys.executable, '-B', '-c', text], capture_output=True, text=True)
        assert done.returncode == 0 and done.stdout.endswith('2 passed, 0 failed\n'), done.stdout + done.stderr


def test_ports_are_given_once():
    text = f'import sys, time; sys.path.insert(0, {str(ROOT / "tests")!r}); from peers import free_port; ' \
        'print(*(free_port() for _ in range(150)), flush=True); sys.stdin.read()'
    ports, others = [], []
    for _ in range(4):
        others.append(subprocess.Popen([sys.executable, '-B', '-c', text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        ports += others[-1].stdout.readline().split()
    for other in others:
        other.communicate()
    assert len(set(ports)) == 600, len(set(ports))


if __name__ == '__main__':
    sys.exit(run({name: test for name, test in globals().items() if name.startswith('test_')}, sys.argv[1:]))
