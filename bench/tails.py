"""How long the slowest answers take at a constant rate: while the server is quiet, and while other work goes on in it."""
import os, pathlib, re, signal, socket, statistics, subprocess, sys, threading

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent / 'tests')]
from cache import Origin, listens, purge
from clients import fail
from measure import process_tree
from peers import free_port
from servers import certificate

# Of what the server can do when nothing else is asked of it, and no more than a client's core can ask for.
SHARE, MOST = 0.7, 20_000
CLIENTS = 50
PAGE_BYTES, BIG_BYTES = 16_000, 5 << 20
# Pages of each tag, and how many tags there are to purge.
TAGGED, TAGS = 10_000, 4
# Pages a second that are made and stored, of which disk and memory hold few.
STORED = 200
# One of this many requests of the mix is for a page that is not stored.
MISSES = 10
# Files of a cache that is read again when the server starts. FILES=1000000 takes 4 GB of disk and minutes to make.
FILES = int(os.environ.get('FILES', '100000'))


class Server:
    """One server on the first core, with a hot page, a file, pages to store and to purge, and a large text."""

    def __init__(self, name, program, folder, origin):
        self.name, self.program, self.folder = name, program, folder / f'{name}-tails'
        self.port, self.port_tls = free_port(), free_port()
        (self.folder / 'www').mkdir(parents=True)
        self.folder.chmod(0o777)
        (self.folder / 'www/file').write_bytes(os.urandom(PAGE_BYTES))
        words = b'ten thousand requests a second from a page that was made once \n'
        (self.folder / 'www/big.txt').write_bytes(words * (BIG_BYTES // len(words)))
        certificate(self.folder, 'ec')
        user = 'user root;' if os.geteuid() == 0 else ''
        memory = ' memory=8m' if name == 'yorozu' else ''
        zone = f'levels=1:2 inactive=1d max_size=64m{memory}'
        (self.folder / 'nginx.conf').write_text(f"""
            {user} daemon off; worker_processes 1; pid {self.folder}/pid; error_log {self.folder}/error.log;
            worker_rlimit_nofile 8192;
            events {{ worker_connections 4096; }}
            http {{ access_log off; keepalive_requests 1000000000; gzip_types text/plain; gzip_comp_level 6;
              default_type text/plain;
              client_body_temp_path {self.folder}/body; proxy_temp_path {self.folder}/proxy; fastcgi_temp_path {self.folder}/fastcgi;
              uwsgi_temp_path {self.folder}/uwsgi; scgi_temp_path {self.folder}/scgi;
              proxy_cache_path {self.folder}/hot keys_zone=hot:1m {zone.replace('64m', '1g')};
              proxy_cache_path {self.folder}/cold keys_zone=cold:40m {zone};
              proxy_cache_path {self.folder}/tagged keys_zone=tagged:40m {zone.replace('64m', '1g')};
              proxy_cache_path {self.folder}/scanned keys_zone=scanned:{max(FILES // 4000, 10)}m {zone.replace('64m', '8g')};
              upstream small {{ server 127.0.0.1:{self.port}; keepalive 64; }}
              upstream origin {{ server 127.0.0.1:{origin.port}; keepalive 64; }}
              proxy_http_version 1.1; proxy_set_header Connection ""; proxy_cache_key $uri; proxy_cache_valid 1h;
              server {{ listen 127.0.0.1:{self.port} backlog=4096; listen 127.0.0.1:{self.port_tls} ssl backlog=4096;
                ssl_certificate {self.folder}/ec.crt; ssl_certificate_key {self.folder}/ec.key; ssl_protocols TLSv1.3; root {self.folder}/www;
                location = /hot {{ proxy_pass http://origin; proxy_cache hot; }}
                location /plain {{ proxy_pass http://origin; }}
                location /scanned {{ proxy_pass http://small/small; proxy_cache scanned; }}
                location /small {{ return 200 small; }}
                location /cold {{ proxy_pass http://origin; proxy_cache cold; }}
                location /many {{ proxy_pass http://origin; proxy_cache tagged; }}
                location = /big.txt {{ gzip on; }} }} }}""")
        self.start()

    def start(self):
        self.process = subprocess.Popen(['taskset', '-c', '0', self.program, '-p', f'{self.folder}/', '-c', self.folder / 'nginx.conf',
                                         '-e', self.folder / 'error.log'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        listens(self.port)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)

    def ask(self, path, fields=''):
        with socket.create_connection(('127.0.0.1', self.port)) as client:
            client.sendall(f'GET {path} HTTP/1.1\r\nHost: a\r\n{fields}Connection: close\r\n\r\n'.encode())
            length = 0
            while piece := client.recv(1 << 20):
                if not length and not piece.startswith(b'HTTP/1.1 200 '):
                    fail(f'{self.name} answers {path} with {piece[:80]!r}')
                length += len(piece)
        return length

    def url(self, path):
        """`https:/path` is over TLS."""
        scheme, _, path = path.rpartition(':')
        return f'https://127.0.0.1:{self.port_tls}{path}' if scheme else f'http://127.0.0.1:{self.port}{path}'

    def capacity(self, paths, seconds):
        script = self.folder / 'mix.lua'
        listed = ', '.join(f'"{path.rpartition(":")[2]}"' for path in paths)
        script.write_text(f'local n, paths = 0, {{ {listed} }}\nfunction request() n = n + 1 return wrk.format("GET", paths[n % #paths + 1]) end')
        out = subprocess.run(['taskset', '-c', '1', 'wrk', '-t1', f'-c{CLIENTS}', f'-d{seconds}s', '-s', script, self.url(paths[0])],
                             capture_output=True, text=True).stdout
        return float(re.search(r'Requests/sec:\s+([\d.]+)', out)[1])

    def times(self, paths, rate, seconds):
        """Milliseconds that each answer took, least first."""
        log = self.folder / 'times'
        log.unlink(missing_ok=True)
        out = subprocess.run(['taskset', '-c', '1', 'h2load', '--h1', '-t1', f'-c{CLIENTS}', f'--rps={rate // CLIENTS}', f'-D{seconds}',
                              f'--log-file={log}', *map(self.url, paths)], capture_output=True, text=True).stdout
        lines = [line.split() for line in log.read_text().splitlines()]
        if not lines or any(status != '200' for _, status, _ in lines):
            fail(f'{self.name}: not every answer to {paths} was one: {out}')
        return sorted(int(took) / 1000 for _, _, took in lines)


class Work:
    """What goes on beside the requests, until it is told to end."""

    def __init__(self, act, pause=0):
        self.act, self.pause, self.over, self.problem = act, pause, threading.Event(), None
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self):
        # On the clients' core.
        os.sched_setaffinity(threading.get_native_id(), {1})
        try:
            while not self.over.wait(self.pause):
                self.act()
        except OSError as problem:
            self.problem = problem

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
        if self.problem:
            fail(f'the work beside the requests failed: {self.problem}')


def fill(server, tag):
    """Stores the pages of a tag; the origin names tags by a path's last two digits."""
    script = server.folder / 'fill.lua'
    script.write_text(f'local n = 0\nfunction request() n = n + 1 return wrk.format("GET", "/many/" .. (n % {TAGGED}) .. "{tag:02}") end')
    subprocess.run(['taskset', '-c', '1', 'wrk', '-t1', '-c50', '-d3s', '-s', script, f'http://127.0.0.1:{server.port}'],
                   capture_output=True, check=True)


def purge_tag(server, number):
    count = purge(server, tags=[f'g{number % TAGS:02}'])
    # Of those that were just stored.
    if count < TAGGED // 2:
        raise OSError(f'{count} pages of a tag were purged')


def fill_to_scan(server):
    """Stores as many small pages as are read again at the next start."""
    with socket.create_connection(('127.0.0.1', server.port)) as client:
        for first in range(0, FILES, 100):
            client.sendall(b''.join(f'GET /scanned/{number} HTTP/1.1\r\nHost: a\r\n\r\n'.encode() for number in range(first, first + 100)))
            answers = b''
            while answers.count(b'HTTP/1.1 200 ') < 100 or not answers.endswith(b'small'):
                piece = client.recv(1 << 20)
                if not piece:
                    fail(f'{server.name} ended a connection after {first} pages')
                answers += piece


def scanned(server, rate, seconds):
    """The times of hits from the server's start on."""
    server.stop()
    server.start()
    server.ask('/hot')
    return server.times(['/hot'], rate, seconds)


def works(server):
    """What may go on beside the requests of a row: its name, an act, and the pause before it."""
    pages, tags = iter(range(1 << 60)), iter(range(1 << 60))
    yield f'{STORED} pages a second are stored and as many evicted', lambda: server.ask(f'/cold/{next(pages)}'), 1 / STORED
    yield 'two reloads a second', lambda: os.kill(server.process.pid, signal.SIGHUP), 0.5
    yield 'one client after the other has a text of 5 MB compressed', lambda: server.ask('/big.txt', 'Accept-Encoding: gzip\r\n'), 0
    if server.name == 'yorozu':
        yield (f'a tag of {TAGGED:,} pages is purged each second', lambda: purge_tag(server, next(tags)), 1)


def cell(times):
    of = lambda share: statistics.median(found[int(len(found) * share)] for found in times)
    return of(0.99), of(0.999)


def shown(pair):
    return f'{pair[0]:.2f}, {pair[1]:.2f} ms'


def lines(programs, folder, rounds, seconds):
    """The rows: p99 and p99.9 of hits and of a file, quiet and beside each kind of work."""
    origin, servers = Origin(folder), []
    try:
        servers = [Server(name, program, folder, origin) for name, program in programs.items()]
        rows, quiet = {}, {}
        mix = ['/hot'] * (MISSES - 1) + ['/plain']
        for paths, what in ((['/hot'], 'a hit'), (['/file'], 'a file'), (['https:/hot'], 'a hit over TLS 1.3'),
                            (mix, f'{MISSES - 1} hits and a page that is not stored')):
            for server in servers:
                rate = int(min(SHARE * server.capacity(paths, seconds), MOST)) // CLIENTS * CLIENTS
                quiet[server.name, what] = rate, cell([server.times(paths, rate, seconds) for _ in range(rounds)])
                rows.setdefault(f'{what} at {SHARE:.0%} of capacity, {MOST:,}/s at most: p99, p99.9', {})[server.name] = (
                    f'{rate:,}/s: {shown(quiet[server.name, what][1])}')
        for server in servers:
            rate, alone = quiet[server.name, 'a hit']
            beside = lambda what, times: rows.setdefault(f'a hit while {what}: p99, p99.9', {}).update(
                {server.name: f'{shown(cell(times))}, {cell(times)[0] / alone[0]:.1f} x'})
            for what, act, pause in works(server):
                times = []
                for _ in range(rounds):
                    if 'tag' in what:
                        for tag in range(TAGS):
                            fill(server, tag)
                    with Work(act, pause):
                        times.append(server.times(['/hot'], rate, seconds))
                beside(what, times)
            fill_to_scan(server)
            beside(f'a cache of {FILES:,} files is read after the start', [scanned(server, rate, seconds) for _ in range(rounds)])
        wanted = lambda title: 'wanted: p99 at most 2 x' if 'while' in title else ''
        return [(title, cells.get('nginx', '-'), cells['yorozu'], wanted(title)) for title, cells in rows.items()]
    finally:
        for server in servers:
            server.stop()
        origin.stop()
