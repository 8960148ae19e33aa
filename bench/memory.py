"""Memory: empty, with ten thousand idle clients, with slow ones, with uploads, after a million requests."""
import contextlib, pathlib, statistics, subprocess, sys, time

from clients import at_rate, fail, wrk
from measure import resident_kilobytes
from servers import Cached, Crowded, Gateway, Server, Unlogged

HERE = pathlib.Path(__file__).resolve().parent
BOTH = ('nginx', 'yorozu')
IDLE, SLOW, UPLOADS, UPLOAD_BYTES = 10_000, 5_000, 100, 200_000_000
WORKER_RATE = 12_000


class Empty(Server):
    """A server that only listens."""

    def write_configuration(self):
        (self.folder / 'conf/nginx.conf').write_text(f"""
            {'user root;' if self.peers.is_root else ''} worker_processes 1; pid {self.folder}/pid;
            error_log {self.folder}/logs/error.log; events {{ }}
            http {{ access_log off; server {{ listen 127.0.0.1:{self.port}; location / {{ return 204; }} }} }}""")

    def warm(self):
        self.answers(' 204', self.url(), None)


@contextlib.contextmanager
def crowd(server, kind, count, path):
    """Clients that do little, while they are there."""
    process = subprocess.Popen(['taskset', '-c', '1', 'bash', '-c', f'ulimit -n 20000; exec {sys.executable} '
                                f'{HERE}/crowd.py {server.port} {kind} {count} {path}'],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        if process.stdout.readline().strip() != 'ready':
            fail(f'{server.name}: {kind} clients could not all connect')
        yield
    finally:
        process.stdin.close()
        process.wait()


def fresh(kind, bench, folder):
    """Servers that have done nothing yet."""
    sub = folder / f'fresh-{time.monotonic_ns()}'
    sub.mkdir()
    return {name: kind(name, bench.peers, sub) for name in BOTH}


def idle_rows(bench, folder):
    empty, few, many = (fresh(kind, bench, folder) for kind in (Empty, Cached, Crowded))
    resident, each = {}, {}
    for name in BOTH:
        resident[name] = resident_kilobytes(empty[name].process.pid) / 1024
        # The same with room for 1,024 clients, and none: nginx takes the memory for connections when it starts.
        without = resident_kilobytes(few[name].process.pid)
        with crowd(many[name], 'idle', IDLE, '/'):
            each[name] = (resident_kilobytes(many[name].process.pid) - without) * 1024 / IDLE
    for server in (*empty.values(), *few.values(), *many.values()):
        server.stop()
    return [('resident memory of a server that only listens', *(f'{resident[name]:.1f} MB' for name in BOTH),
             'wanted: under 20 MB'),
            (f'resident memory for each of {IDLE:,} idle keep-alive connections',
             *(f'{each[name]:.0f} bytes' for name in BOTH), "wanted: at most nginx's")]


def slow_rows(bench, folder):
    rows = []
    for kind, path, what in (('writer', '/', 'send their head'), ('reader', '/file-1m', 'take 1 MB')):
        servers, cells = fresh(Crowded, bench, folder), {}
        for name, server in servers.items():
            alone = wrk(server, 3)
            before = resident_kilobytes(server.process.pid)
            with crowd(server, kind, SLOW, path):
                beside = wrk(server, 3)
                grown = (resident_kilobytes(server.process.pid) - before) / 1024
            cells[name] = (f'p99 {alone["p99"]:.1f} ms, then {beside["p99"]:.1f} ms; {grown:+.0f} MB; '
                           f'{beside["errors"]} errors')
            server.stop()
        rows.append((f'100 clients beside {SLOW:,} that {what} byte by byte', *(cells[name] for name in BOTH), ''))
    return rows


MIX = """
    local paths = {"/", "/file-16k", "/missing", "/0.jpg", "/?p=1", "/wp-admin", "/index.php?a=b", "/%41"}
    local n = 0
    function request()
        n = n + 1
        local headers = {}
        if n % 3 == 0 then headers["Accept-Encoding"] = "gzip, br" end
        if n % 5 == 0 then headers["Range"] = "bytes=10-99" end
        if n % 7 == 0 then headers["If-None-Match"] = '"x"' end
        if n % 11 == 0 then headers["Connection"] = "close" end
        if n % 101 == 0 then headers["Cookie"] = "wordpress_logged_in_x=" .. n end
        return wrk.format("GET", paths[n % #paths + 1], headers)
    end
"""


def leak_row(bench, folder):
    servers, cells = fresh(Unlogged, bench, folder), {}
    for name, server in servers.items():
        script = server.folder / 'mix.lua'
        script.write_text(MIX)
        done, marks = 0, []
        for share in (200_000, 600_000, 1_000_000):
            while done < share:
                done += wrk(server, 5, script=script)['requests']
            marks.append(resident_kilobytes(server.process.pid) / 1024)
        cells[name] = ' / '.join(f'{mark:.1f}' for mark in marks) + ' MB'
        server.stop()
    return [('resident memory after 200,000 / 600,000 / 1,000,000 mixed requests', *(cells[name] for name in BOTH),
             'wanted: no growth')]


def upload_row(bench, folder):
    """Most memory during uploads at once, to a PHP that is slow to take them."""
    servers, cells = fresh(Gateway, bench, folder), {}
    for name, server in servers.items():
        sender = subprocess.Popen(['taskset', '-c', '1', sys.executable, HERE / 'uploads.py', str(server.port),
                                   str(UPLOADS), str(UPLOAD_BYTES)], stdout=subprocess.PIPE, text=True)
        most = 0
        while sender.poll() is None:
            most = max(most, resident_kilobytes(server.process.pid) / 1024)
            time.sleep(0.02)
        failed = int(sender.stdout.read().split()[-1])
        cells[name] = f'{most:.0f} MB, {failed} failed'
        server.stop()
    return [(f'resident memory, {UPLOADS} uploads of 200 MB at once', *(cells[name] for name in BOTH),
             'wanted: at most 100 MB')]


def workers_row(bench, folder):
    """Two workers on two cores against one, at a rate that leaves the client room, the same for each worker."""
    servers = {(name, count): Workers(name, bench.peers, folder, count) for name in BOTH for count in (1, 2)}
    found = {key: [] for key in servers}
    for _ in range(5):
        for key, server in servers.items():
            result = at_rate(server, 2, [WORKER_RATE * key[1]])
            found[key].append(result['cpu'] / result['requests'] * 1e6)
    cells = {}
    for name in BOTH:
        one, two = (statistics.median(found[name, count]) for count in (1, 2))
        cells[name] = f'{one:.1f} us, {two:.1f} us: {two / one:.2f}'
    for server in servers.values():
        server.stop()
    return [(f'CPU of a hit with one worker at {WORKER_RATE:,}/s, with two on two cores at twice that',
             *(cells[name] for name in BOTH), 'wanted: at most 1.10')]


class Workers(Crowded):
    listen_options = ' backlog=16384 reuseport'

    def __init__(self, name, behind, folder, count):
        self.count = count
        sub = folder / f'workers-{count}'
        sub.mkdir(exist_ok=True)
        super().__init__(name, behind, sub)

    def change(self, main, site):
        main, site = super().change(main, site)
        main = main.replace('worker_processes auto', f'worker_processes {self.count}')
        return main, site

    def command(self):
        # Over the pin of those with one core.
        return super().command() if self.count == 1 else ['taskset', '-c', '0,1', *super().command()]


ROWS = dict(workers=workers_row, idle=idle_rows, slow=slow_rows, leak=leak_row, uploads=upload_row)
