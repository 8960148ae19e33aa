#!/usr/bin/env python3
"""Every test: one build, and the parts side by side, whatever fails. Called by tests/run, which installs what it needs.

  tests/run [PART ...]     the parts whose names contain one of PART; all without

QUICK=1 leaves out the browser, the whole site and fuzzing. JOBS=4 says how many parts run at once, PATIENCE=10 that this
machine is ten times slower than others. STRICT=1 lets a run fail, too, whose failed tests pass by themselves. SEED=7 draws other random tests than the last run; without it each run draws the
same. What each part printed is in target/tests.
"""
import collections, json, os, pathlib, re, shutil, signal, subprocess, sys, time
from peers import PATIENCE

ROOT = pathlib.Path(__file__).resolve().parent.parent
LOGS = ROOT / 'target/tests'
CORES = len(os.sched_getaffinity(0))
JOBS = int(os.environ.get('JOBS', 0)) or 2 + CORES
# A change is judged by what it did, not by what was drawn.
SEED = os.environ.get('SEED') or '1'
COUNTS = re.compile(r'^(\d+) passed, (\d+) failed(?:, (\d+) ignored)?$', re.M)
# Most failed tests that are run once more by themselves.
REPEATED_MAX = 4
# What the end of a run repeats of a test that failed.
LINES_MAX, LINE_MAX = 6, 240
TEST = re.compile(r'^(ok    |FAILED)  (\S.*?)  ([\d.]+) s$', re.M)


class Part:
    """Something that runs tests, says of each `ok      NAME  1.2 s` or `FAILED  NAME  1.2 s`, and last `3 passed, 0 failed`.

    `needs` are what must have been built before; the word {test} in `again` is the test that a command repeats.
    """

    def __init__(self, name, about, command, needs=('yorozu',), seconds=600, is_slow=False, again=None, folder=ROOT, **env):
        self.name, self.about, self.command, self.needs = name, about, command.split(), list(needs)
        self.seconds, self.is_slow, self.folder, self.env = seconds * PATIENCE, is_slow, folder, env
        self.again = again or f'{command} {{test}}'
        self.passed = self.failed = self.ignored = self.cpu = self.took = 0
        self.text, self.tests, self.failures, self.unsteady = '', [], [], []
        self.log, self.report = LOGS / f'{name}.log', LOGS / f'{name}.json'

    def start(self, made):
        self.report.unlink(missing_ok=True)
        self.begun = time.monotonic()
        program, *words = [str(made.get(word, word)) for word in self.command]
        if '/' in program:
            program = ROOT / program
        env = os.environ | {'PATIENCE': str(PATIENCE * max(1, JOBS / CORES)), 'YOROZU': str(made.get('yorozu', '')), 'SEED': SEED} | self.env
        if made.get('wordpress'):
            env['YOROZU_SITE'] = str(made['wordpress'])
        # A new session: Ctrl-C reaches this program alone, which ends all of them.
        self.process = subprocess.Popen(
            [sys.executable, '-BS', ROOT / 'tests/supervised.py', str(self.seconds), self.report, program, *words],
            cwd=self.folder, env=env, stdin=subprocess.DEVNULL, stdout=open(self.log, 'w'), stderr=self.errors(),
            start_new_session=True)

    def errors(self):
        return subprocess.STDOUT

    def finish(self):
        """Reads its outcome."""
        self.took = time.monotonic() - self.begun
        report = json.loads(self.report.read_text()) if self.report.exists() else {}
        self.cpu = report.get('cpu', 0)
        self.text = self.log.read_text(errors='replace')
        self.judge(report.get('status'), report.get('is_late'))
        if report.get('left'):
            self.text += f'left behind, and ended: {"; ".join(report["left"])}\n'

    def judge(self, status, is_late):
        lines = TEST.findall(self.text)
        self.tests = [(float(seconds), name) for _, name, seconds in lines]
        self.failures = [name for verdict, name, _ in lines if verdict == 'FAILED']
        counts = COUNTS.findall(self.text)
        if counts:
            self.passed, self.failed, self.ignored = (int(number or 0) for number in counts[-1])
        else:
            self.passed, self.failed = len(lines) - len(self.failures), len(self.failures)
        if is_late:
            self.fails(f'was not over after {self.seconds:.0f} s')
        elif not counts:
            self.fails(f'ended with status {status} and without a count of its tests')
        elif self.passed + self.failed + self.ignored == 0:
            self.fails('ran no test')
        elif (status == 0) != (self.failed == 0):
            self.fails(f'ended with status {status} and {self.failed} failed tests')
        elif len(self.failures) != self.failed:
            self.fails(f'counts {self.failed} failed tests and shows {len(self.failures)}')

    def fails(self, why):
        self.text += f'{self.name} {why}\n'
        self.failed += 1
        self.failures.append(f'({why})')

    def how_to_repeat(self, test):
        """The command that runs a test by itself, or all of them."""
        return self.again.format(test=test) if test[0] != '(' else self.again.replace(' -- --exact', '').format(test='').strip()

    def alone(self, test):
        """A part that is this test, or the whole where a test cannot be named."""
        words = [*self.command, test] if test[0] != '(' and '{test}' in self.again else self.command
        part = Part(f'{self.name}-again', f'{test} by itself', '', self.needs, self.seconds / PATIENCE, folder=self.folder, **self.env)
        part.command = words
        return part

    def is_unsteady(self, test):
        """It passed by itself: it is no failure."""
        self.failures.remove(test)
        self.unsteady.append(test)
        self.failed, self.passed = self.failed - 1, self.passed + 1

    def why(self, test):
        """What a failed test said, for those who see the end of a run alone: the end of a traceback, the begin of a panic."""
        name = re.escape(test)
        raised = re.search(rf'^FAILED  {name}  [\d.]+ s\n(.*?)(?=^(?:ok    |FAILED)  |^---- |^\d+ passed, |\Z)', self.text, re.M | re.S)
        panicked = re.search(rf'^---- {name} stdout ----\n(.*?)(?=^---- |^failures:|^stack backtrace:|\Z)', self.text, re.M | re.S)
        said = [[line[:LINE_MAX] for line in found.group(1).splitlines() if line.strip()] if found else [] for found in (raised, panicked)]
        return said[0][-LINES_MAX:] + said[1][:LINES_MAX]

    def counts(self):
        ignored = f', {self.ignored} ignored' if self.ignored else ''
        return f'{self.passed} passed, {self.failed} failed{ignored}'


PARTS = [
    Part('fuzzing', 'fuzzing', 'fuzz/run 2', (), 1200, is_slow=True, again='fuzz/run 2 {test}'),
    Part('plugin', 'the WordPress plugin: changes of posts', 'tests/plugin.py', ('yorozu', 'wordpress'), 1200, is_slow=True),
    Part('plugin-screens', 'the WordPress plugin: all else, and its screens', 'tests/plugin_screens.py', ('yorozu', 'wordpress'), 1200,
         is_slow=True),
    Part('network', 'the WordPress plugin: a network of sites', 'tests/network.py', ('yorozu', 'wordpress'), 1200, is_slow=True),
    Part('model', 'orders of steps in the cache', 'tests/model.py', ('everything',), 900),
    Part('site', 'the whole site in a browser', 'tests/site.py', ('yorozu', 'wordpress'), 1200, is_slow=True),
    Part('memory', 'what memory= bounds', 'tests/memory.py'),
    Part('places', 'make run where it is not easy', 'tests/places', ('yorozu', 'wordpress'), is_slow=True, again='tests/places'),
    Part('cache', 'the page cache with PHP-FPM and Apache', 'tests/cache.py'),
    Part('attacks', 'attacks on the server and its cache', 'tests/attacks.py'),
    Part('gateways', 'gateways with memcached, PHP-FPM and Apache', 'tests/gateways.py'),
    Part('applications', 'applications behind uwsgi and SCGI', 'tests/applications.py'),
    Part('calls', 'gRPC, and upstreams of HTTP/2', 'tests/calls.py'),
    Part('videos', 'parts of videos', 'tests/videos.py'),
    Part('storm', 'clients that leave and upstreams that fail', 'tests/storm.py'),
    Part('client-certificates', 'certificates of clients', 'tests/client_certificates.py'),
    Part('server-certificates', 'certificates of upstreams', 'tests/server_certificates.py'),
    Part('acme', 'certificates of an issuer', 'tests/acme.py'),
    Part('tls', 'TLS and HTTP/2 with curl, OpenSSL and h2load', 'tests/tls.py'),
    Part('http3', 'HTTP/3 with ngtcp2, aioquic and Chromium', 'tests/http3.py'),
    Part('configurations', 'configurations as people have them', 'tests/configurations.py'),
    Part('far-origin', 'a far origin', 'tests/far_origin.py', again='tests/far_origin.py'),
    Part('presets', 'the presets with PHP-FPM', 'tests/presets.py'),
    Part('instructions', 'instructions of a request', 'tests/instructions.py'),
    Part('documents', 'what the documents say', 'tests/documents.py'),
    Part('packaging', 'the packages', 'tests/packaging.py'),
    Part('cluster', 'one WordPress behind three nodes', 'tests/cluster.py', ('yorozu', 'wordpress'), 1200, is_slow=True),
    Part('nodes', 'purges of several nodes over Redis', 'tests/nodes.py'),
    Part('metrics', 'metrics, and Prometheus that reads them', 'tests/metrics.py'),
    Part('console', 'the console, in a browser and in a terminal', 'tests/console.py'),
    Part('runner', 'the runner of the tests itself', 'tests/runner.py', ()),
    Part('published', 'the published configurations', 'tests/published.py'),
]
# Public suites, where there is a copy of them; their floors are in conformance/floors.
OUTSIDE = [
    Part('nginx-tests', "nginx's own tests", 'conformance/nginx-tests', seconds=900, is_slow=True, again='conformance/nginx-tests'),
    Part('cache-tests', 'the HTTP cache tests', 'conformance/cache-tests', is_slow=True, again='conformance/cache-tests'),
]
# It fetches a program: only when it is named.
NAMED = [Part('h2spec', 'h2spec over TLS', 'conformance/h2spec', is_slow=True, again='conformance/h2spec')]
# What is begun last shall be short. What needs nothing builds for itself, beside the build for all; what waits much goes
# with what computes much.
LONGEST = ('fuzzing', 'plugin', 'yorozu-cases', 'plugin-screens', 'model', 'site', 'acme', 'nginx-tests', 'memory', 'cache', 'attacks',
           'nodes', 'cache-tests', 'instructions', 'configurations', 'client-certificates', 'presets', 'places', 'gateways',
           'console', 'storm', 'packaging', 'yorozu-generations', 'far-origin', 'yorozu-slow_clients', 'yorozu-cache-lib')
WORDPRESS = Part('wordpress', 'a WordPress, installed once for those that want one', f'tests/wordpress.py {LOGS}/wordpress.tar',
                 is_slow=True, again='tests/wordpress.py target/tests/wordpress.tar')


def rust_parts():
    """A part for each of cargo's targets that has tests."""
    words = ['cargo', 'metadata', '--no-deps', '--format-version', '1', '--locked', '--offline']
    known = json.loads(subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout)
    for package in known['packages']:
        folder = pathlib.Path(package['manifest_path']).parent
        for target in package['targets']:
            kind = target['kind'][0]
            if kind in ('lib', 'bin') and has_tests(folder / 'src') != target['test']:
                sys.exit(f'make test: {package["name"]} {kind} {target["name"]}: "test" in Cargo.toml is not whether it has tests')
            # Tests with a feature are a separate part.
            if not target['test'] or target.get('required-features'):
                continue
            program, option = key(package['manifest_path'], target)
            # Cargo may have a test program before the program that it starts.
            needs = [program, 'yorozu'] if kind == 'test' else [program]
            # The differential test prints its seed, which repeats a run.
            env = {'ROUNDS': os.environ.get('ROUNDS', '60')} if target['name'] == 'differential' else {}
            yield Part(f'{package["name"]}{option.replace("--", "-").replace(" ", "-").replace("-test-", "-")}',
                       f'cargo test -p {package["name"]} {option}', f'tests/libtest.py {program}', needs, 1200, folder=folder,
                       again=f'cargo test --locked -p {package["name"]} {option} -- --exact {{test}}',
                       CARGO_MANIFEST_DIR=str(folder), CARGO_PKG_NAME=package['name'], **env)


def has_tests(folder):
    return any(re.search(r'#\[(tokio::)?test\b', file.read_text()) for file in folder.rglob('*.rs'))


def key(manifest, target):
    """What a test program is called in `made`, and the options of cargo that run it."""
    kind, name = target['kind'][0], target['name']
    option = '--lib' if kind == 'lib' else f'--{kind} {name}'
    return f'{manifest}:{kind}:{name}', option


class Build(Part):
    """One build for all; what it makes is known as soon as it is there."""

    def __init__(self, made, what):
        super().__init__('build', 'the build', f'cargo build --locked --workspace {what} --keep-going'
                         ' --message-format json-render-diagnostics', (), 3600, again='cargo test --locked --workspace --no-run')
        self.read, self.made, self.said = 0, made, LOGS / 'build.err'

    def errors(self):
        return open(self.said, 'w')

    def look(self):
        with open(self.log, 'rb') as log:
            log.seek(self.read)
            for line in log:
                if not line.endswith(b'\n'):
                    break
                self.read += len(line)
                self.note(json.loads(line))

    def note(self, message):
        if message['reason'] == 'compiler-artifact' and message.get('executable'):
            target = message['target']
            name = key(message['manifest_path'], target)[0] if message['profile']['test'] else target['name']
            self.made[name] = message['executable']

    def judge(self, status, is_late):
        self.look()
        self.text = self.said.read_text(errors='replace')
        if is_late or status != 0:
            self.fails('was not over in time' if is_late else 'failed')

    def counts(self):
        return 'failed' if self.failed else 'ok'


class Run:
    """Parts side by side, begun in their order as soon as what they need is there."""

    def __init__(self, parts):
        self.made, self.waiting, self.running, self.done = {}, list(parts), [], []
        self.begun = self.told = time.monotonic()
        wants_tests = any(':' in need for part in parts for need in part.needs)
        self.build = Build(self.made, '--tests --bins' if wants_tests else '--bins')
        self.is_built = False
        self.on_terminal = sys.stdout.isatty()

    def all(self):
        self.start(self.build)
        while self.waiting or self.running:
            if not self.is_built:
                self.build.look()
            for part in [part for part in self.running if part.process.poll() is not None]:
                self.finish(part)
            for part in list(self.waiting):
                self.consider(part)
            self.progress()
            time.sleep(0.1)

    def consider(self, part):
        missing = [need for need in part.needs if need not in self.made]
        if not missing:
            # The build is not counted: parts may wait for what others do, and it does not wait.
            if len([one for one in self.running if one is not self.build]) < JOBS:
                self.waiting.remove(part)
                self.start(part)
        elif self.is_built and missing != ['wordpress']:
            self.waiting.remove(part)
            part.fails('was not run, for it was not built')
            self.show(part)

    def start(self, part):
        part.start(self.made)
        self.running.append(part)

    def finish(self, part):
        self.running.remove(part)
        part.finish()
        if part is self.build:
            self.is_built = self.made['everything'] = True
        if part is WORDPRESS:
            # Without one, each installs its own.
            self.made['wordpress'] = '' if part.failed else part.command[1]
        self.show(part)

    def show(self, part):
        self.done.append(part)
        self.clear()
        end = '' if part.text.endswith('\n') or not part.text else '\n'
        print(f'--- {part.name}: {part.about}\n{part.text}{end}--- {part.name}: {part.counts()}, {part.took:.0f} s', flush=True)

    def progress(self):
        now = time.monotonic()
        if now - self.told < (1 if self.on_terminal else 30):
            return
        self.told = now
        names = ', '.join(f'{part.name} {now - part.begun:.0f} s' for part in self.running)
        line = f'{now - self.begun:.0f} s: {len(self.done)} done, {len(self.waiting)} to come, running {names}'
        if self.on_terminal:
            line = '\r\033[K' + line[:shutil.get_terminal_size().columns - 1]
        print(line, end='' if self.on_terminal else '\n', flush=True)

    def clear(self):
        if self.on_terminal:
            print('\r\033[K', end='')

    def repeat(self):
        """Failed tests once more, each by itself: whether they fail at all, or only beside others on a busy machine."""
        failures = [(part, test) for part in self.done for test in part.failures]
        if len(failures) > REPEATED_MAX or self.build.failed:
            return
        for part, test in failures:
            again = part.alone(test)
            self.start(again)
            again.process.wait()
            self.running.remove(again)
            again.finish()
            print(f'--- {again.name}: {again.about}\n{again.text}--- {again.name}: {again.counts()}', flush=True)
            if not again.failed:
                part.is_unsteady(test)

    def stop(self):
        """Ends every process."""
        self.clear()
        print('ending what runs', flush=True)
        for part in self.running:
            part.process.terminate()
        for part in list(self.running):
            part.process.wait()
            self.finish(part)
        for part in self.waiting:
            part.fails('was not run')
            self.done.append(part)
        self.waiting = []

    def summary(self):
        """Everything that can be said at the end; whether all is well."""
        print('\n  wall    CPU  part')
        for part in sorted(self.done, key=lambda part: -part.took):
            print(f'{part.took:4.0f} s {part.cpu:4.0f} s  {part.name}: {part.counts()}')
        tests = sorted(((seconds, part.name, test) for part in self.done for seconds, test in part.tests), reverse=True)
        print('\nthe slowest tests')
        for seconds, name, test in tests[:10]:
            print(f'{seconds:4.0f} s  {name}: {test}')
        absent = [(part, line) for part in self.done for line in re.findall(r'^ignored +(.*)$', part.text, re.M)]
        if absent:
            print('\nnot run')
        for part, line in absent:
            print(f'  {part.name}: {line}')
        for kind, about in (('unsteady', 'unsteady: failed beside others, passed by itself'), ('failures', 'failed')):
            found = [(part, test) for part in self.done for test in getattr(part, kind)]
            if found:
                print(f'\n{about}')
            for part, test in found:
                print(f'  {part.name}: {test}\n      {part.how_to_repeat(test)}')
                print(''.join(f'          {line}\n' for line in part.why(test)), end='')
        passed, failed, ignored = (sum(getattr(part, kind) for part in self.done) for kind in ('passed', 'failed', 'ignored'))
        cpu = sum(part.cpu for part in self.done)
        print(f'\n{len(self.done)} parts, {time.monotonic() - self.begun:.0f} s, {cpu:.0f} s of CPU')
        unsteady = sum(len(part.unsteady) for part in self.done)
        more = ''.join(f', {count} {what}' for count, what in ((unsteady, 'unsteady'), (ignored, 'ignored')) if count)
        print(f'{passed} passed, {failed} failed{more}', flush=True)
        return passed > 0 and failed == 0 and not (unsteady and os.environ.get('STRICT'))


def chosen(names):
    every = sorted([*rust_parts(), *OUTSIDE, *PARTS], key=lambda part: (*LONGEST, part.name).index(part.name))
    parts = [part for part in every if not names or any(name in part.name for name in names)]
    parts += [part for part in NAMED if part.name in names]
    if os.environ.get('QUICK'):
        parts = [part for part in parts if not part.is_slow]
    wanting = [part for part in parts if 'wordpress' in part.needs]
    if len(wanting) > 1:
        return [WORDPRESS, *parts]
    for part in wanting:
        part.needs.remove('wordpress')
    return parts


def main(names):
    parts = chosen(names)
    if not parts:
        sys.exit(f'make test: no part is called {" or ".join(names)}')
    shutil.rmtree(LOGS, ignore_errors=True)
    LOGS.mkdir(parents=True)
    run = Run(parts)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    is_stopped = False
    try:
        run.all()
        run.repeat()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        is_stopped = True
        run.stop()
    is_good = run.summary()
    return 130 if is_stopped else 0 if is_good else 1


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
