#!/usr/bin/env python3
"""Runs one of cargo's test programs. Where it does not come to its end, each test that did not report its outcome is run
by itself.

  tests/libtest.py PROGRAM [NAME ...]     the tests whose names contain one of NAME
"""
import contextlib, os, pathlib, re, signal, subprocess, sys, tempfile, time
from peers import PATIENCE, Pace, told
from supervised import below

# Times of tests are not stable yet; this variable asks for them at run time.
TIMES = os.environ | {'RUSTC_BOOTSTRAP': '1'}
LINE = re.compile(r'test (\S+)(?: - should panic)? \.\.\. (ok|FAILED|ignored).*?(?: <([\d.]+)s>)?$', re.M)
SECONDS, SECONDS_ALONE = 400, 200


def output_of(command, seconds, pace):
    """Status and output; a status of none if the time was up."""
    end = time.monotonic() + seconds * PATIENCE
    with tempfile.TemporaryFile('w+', errors='replace') as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=TIMES)
        while process.poll() is None and time.monotonic() < end:
            pace.sleep(0.02)
        status = process.poll()
        if status is None:
            for pid in [process.pid, *below(process.pid)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
        out.seek(0)
        return status, out.read()


def main(program, *names):
    listed = subprocess.run([program, '--list', '--format', 'terse', *names], capture_output=True, text=True, check=True)
    wanted = re.findall(r'^(.*): test$', listed.stdout, re.M)
    command = [program, '-Zunstable-options', '--report-time']
    pace = Pace()
    whole, text = output_of([*command, *names], SECONDS, pace)
    passed = failed = ignored = 0
    seen = {name: (verdict, seconds) for name, verdict, seconds in LINE.findall(text)}
    again = [name for name, (verdict, _) in seen.items() if verdict == 'FAILED' and not pace.is_judged(name, 1, 0)]
    for name, (verdict, seconds) in seen.items():
        if name in again:
            continue
        if verdict == 'ignored':
            ignored += 1
            print(f'ignored {name}')
        elif told(name, float(seconds or 0), 0 if verdict == 'ok' else 1):
            passed += 1
        else:
            failed += 1
    # What the failed ones said, or how the program ended.
    if whole != 0:
        print(LINE.sub('', text).strip())
    missing = [name for name in wanted if name not in seen]
    if missing:
        how = f'was not over after {SECONDS * PATIENCE:.0f} s' if whole is None else f'ended with status {whole}'
        print(f'the program {how} before {len(missing)} tests had said anything: each is run by itself')
    for name in missing + again:
        begun, tries, status = time.monotonic(), 1, None
        while status != 0 and (tries == 1 or not pace.is_judged(name, tries, before)):
            tries, before = tries + 1, pace.stood
            status, text = output_of([*command, '--exact', name], SECONDS_ALONE, pace)
        good = told(name, time.monotonic() - begun, status, '' if status == 0 else text)
        passed, failed = passed + good, failed + (not good)
    if whole != 0 and not failed and not again:
        failed = 1
        told(pathlib.Path(program).name, 0, 1, 'the program fails, though every test passes\n')
    print(f'{passed} passed, {failed} failed' + (f', {ignored} ignored' if ignored else ''))
    return 1 if failed or not passed else 0


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
