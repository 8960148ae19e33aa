"""Fixtures, and what holds for every test: nothing outside of its folder decides it, and nothing outlives it.

A test's temporary files and what it mounts are its worker's own, processes that it leaves are ended, and where it fails the
configurations and logs of its servers are shown with the command that repeats it. The end of a run says what each file took.
"""
import collections, ctypes, json, os, resource, shutil, signal, socketserver, tempfile
import pytest

pytest.register_assert_rewrite('peers')
import peers
import wordpress

PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 0x40000  # unshare(2), mount(2)
LOGS = peers.ROOT / 'target/tests'
# How many tests the end of a run names.
SLOWEST = 5
# Begun first, as they take longest: files, each of whose tests runs where and when there is room, and sites, which are one piece.
FIRST = ('plugin_screens', 'acme', 'conformance', 'plugin', 'nodes', 'memory', 'site', 'places', 'instructions', 'attacks', 'cache')


def pytest_addoption(parser):
    parser.addoption('--accept', action='store_true', help='write what tests/test_instructions.py measures to tests/instructions')


def pytest_configure(config):
    # A run is judged by what was changed, not by what was drawn.
    os.environ.setdefault('SEED', '1')
    # For stack/run, which builds one without.
    os.environ['YOROZU'] = str(peers.YOROZU)
    config.temporary = None
    if config.getoption('numprocesses', None):
        # Its workers run the tests.
        return
    # What loses its parent becomes this process's child, so that it can be ended.
    system = ctypes.CDLL(None)
    system.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Users other than root may mount nothing anyway.
    if system.unshare(CLONE_NEWNS) == 0:
        system.mount(None, b'/', None, MS_REC | MS_PRIVATE, None)
    # Short: names of sockets have 107 bytes. Other users' programs write there, too.
    config.temporary = tempfile.mkdtemp(prefix='yt.', dir='/tmp')
    os.chmod(config.temporary, 0o1777)
    os.environ['TMPDIR'] = tempfile.tempdir = config.temporary


def pytest_unconfigure(config):
    if config.temporary:
        shutil.rmtree(config.temporary, ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        # Made once for a file, which one worker runs.
        if {'counted', 'made', 'packages', 'site'} & {*item.fixturenames}:
            item.add_marker(pytest.mark.xdist_group(item.module.__name__))
    place = lambda item: item.module.__name__.removeprefix('test_')
    items.sort(key=lambda item: FIRST.index(place(item)) if place(item) in FIRST else len(FIRST))


# --- what a test leaves, and what it says -----------------------------------------------------------------

@pytest.fixture(autouse=True)
def no_process_outlives_its_test(request):
    before = peers.children(os.getpid())
    yield
    # A test may have restarted its file's site.
    spared = {request.getfixturevalue('site').process.pid} if 'site' in request.fixturenames else set()
    for pid in peers.children(os.getpid()) - before - spared:
        for late in peers.below(pid):
            try:
                os.kill(late, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            os.waitpid(pid, 0)
        except ChildProcessError:
            pass


@pytest.fixture(autouse=True)
def no_server_outlives_its_test(monkeypatch):
    """Ends the loops of socketserver that a test has started: one whose socket is closed goes round without end, and may take the
    connections of the next socket that has its number."""
    serving, forever, close = [], socketserver.BaseServer.serve_forever, socketserver.TCPServer.server_close

    def serve_forever(server, poll_interval=0.1):
        serving.append(server)
        forever(server, poll_interval)

    def server_close(server):
        if server in serving:
            serving.remove(server)
            server.shutdown()
        close(server)
    monkeypatch.setattr(socketserver.BaseServer, 'serve_forever', serve_forever)
    monkeypatch.setattr(socketserver.TCPServer, 'server_close', server_close)
    yield
    for server in [*serving]:
        server.server_close()


def seconds_of_cpu():
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logstart():
    peers.Server.ended_by_failure.clear()
    pytest_runtest_logstart.cpu = seconds_of_cpu()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    if call.when == 'teardown':
        item.user_properties.append(('cpu', seconds_of_cpu() - pytest_runtest_logstart.cpu))
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        for name, text in peers.Server.ended_by_failure:
            report.sections.append((name, text))
        if 'site' in getattr(item, 'funcargs', {}):
            report.sections.append(('the last lines of the logs', item.funcargs['site'].last_errors()))
        name = item.nodeid.partition('@')[0]
        report.sections.append(('again', f"pytest '{name}'"))


def pytest_runtest_logreport(report):
    """Names at once what has failed: the rest of a run takes minutes, and says why at its end."""
    if report.failed and not os.environ.get('PYTEST_XDIST_WORKER'):
        print(f'\nFAILED {report.nodeid.partition("@")[0]}: {str(report.longrepr).splitlines()[-1][:200]}', flush=True)


def pytest_terminal_summary(terminalreporter):
    """Leaves what each file took, and the slowest tests, for the table of tests/run (target/tests/pytest.json)."""
    files, tests = {}, collections.Counter()
    for kind, reports in terminalreporter.stats.items():
        for report in reports if kind in ('', 'passed', 'failed', 'skipped', 'error') else ():
            name = report.nodeid.partition('@')[0]
            row = files.setdefault(name.partition('::')[0], dict(wall=0, cpu=0, passed=0, failed=0, skipped=0))
            row['wall'] += report.duration
            row['cpu'] += dict(report.user_properties).get('cpu', 0) if report.when == 'teardown' else 0
            if kind:
                row['failed' if kind == 'error' else kind] += 1
            tests[name] += report.duration
    LOGS.mkdir(parents=True, exist_ok=True)
    rows = [dict(name=name, **row) for name, row in files.items()]
    slowest = [(seconds, name) for name, seconds in tests.most_common(SLOWEST)]
    (LOGS / 'pytest.json').write_text(json.dumps(dict(files=rows, slowest=slowest)))


# --- what several files use ------------------------------------------------------------------------------

@pytest.fixture(scope='session')
def installed():
    """A WordPress, installed once for all workers: the archive that the folders of sites begin with."""
    run = os.environ.get('PYTEST_XDIST_TESTRUNUID', str(os.getpid()))
    return wordpress.installed(LOGS / f'wordpress-{run}.tar')


@pytest.fixture(scope='module')
def site(request, installed):
    """The site of `make run`, one for the tests of a file; SITE in it says with which variables of the environment."""
    site = wordpress.Site(installed, **getattr(request.module, 'SITE', {}))
    yield site
    site.end()
