#!/usr/bin/env python3
"""What `memory=` bounds: the resident memory of a server whose cache is filled, read slowly, and purged.

  tests/memory.py [NAME ...]     runs the tests whose names contain one of NAME

Every bound is `memory=` and MORE above it, whatever clients do, and what was stored is given back when it is purged. A server
may have LIMIT of data, so that one that breaks the bound ends instead of taking the machine with it.
"""
import contextlib, os, random, socket, socketserver, subprocess, sys, threading, time
from peers import YOROZU, Folder, Server, run, until

MB = 1 << 20
# Beside memory=: the program, its threads' buffers, and what an allocator keeps.
MORE = 64 * MB
# What may stay a minute after all pages were purged: buffers, and pages of memory that are used in part.
REST = 16 * MB
LIMIT = 1536 * MB
# With 34,000 it takes a minute and says the same.
KEYS = 12000
BLOCK = bytes(range(256)) * 256


class Origin(socketserver.ThreadingTCPServer):
    """Answers with as many bytes as the path says (`/200/name`); knows who got everything."""
    daemon_threads, request_queue_size, allow_reuse_address = True, 1024, True

    def __init__(self):
        super().__init__(('127.0.0.1', 0), Answer)
        self.port, self.calls, self.whole = self.server_address[1], 0, 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        pass


class Answer(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True

    def handle(self):
        while line := self.rfile.readline():
            while self.rfile.readline().strip():
                pass
            _, size, name, *_ = line.split()[1].decode().split('?')[0].split('/')
            self.server.calls += 1
            head = f'HTTP/1.1 200 OK\r\nCache-Control: max-age=600\r\nContent-Length: {size}\r\n'
            if name.startswith('t'):
                head += f'Vary: X-Kind\r\nSurrogate-Key: {name} all-{name[-1]}\r\n'
            self.wfile.write(head.encode() + b'Content-Type: text/plain\r\n\r\n')
            left = int(size)
            while left > 0:
                self.wfile.write(BLOCK[:left])
                left -= len(BLOCK)
            self.server.whole += 1


class Site(contextlib.ExitStack):
    """A server with a cache before an origin, and how much memory it took at most."""

    def __init__(self, memory, more='', path=None, zone=''):
        super().__init__()
        self.folder = self.enter_context(Folder())
        self.origin = self.enter_context(contextlib.closing(Origin()))
        self.origin.close = self.origin.server_close
        pages = path(self) if path else self.folder / 'pages'
        self.server = self.enter_context(Server(self.folder, f'''
            proxy_cache_path {pages} levels=1:2 keys_zone=z:40m memory={memory // MB}m inactive=1h {zone};
            upstream origin {{ server 127.0.0.1:{self.origin.port}; keepalive 32; }}
            server {{ listen 127.0.0.1:$port; keepalive_requests 1000000; send_timeout 600; {more}
              location / {{ proxy_pass http://origin; proxy_http_version 1.1; proxy_set_header Connection "";
                proxy_cache z; add_header X-Cache $upstream_cache_status; }} }}''',
            main='worker_processes 2;', prefix=('prlimit', f'--data={LIMIT}')))
        self.memory, self.most, self.is_over = memory, 0, threading.Event()
        self.begun = self.server.resident_bytes()
        self.sampler = threading.Thread(target=self.sample, daemon=True)
        self.sampler.start()
        self.callback(self.sampler.join)
        self.callback(self.is_over.set)

    def sample(self):
        while not self.is_over.wait(0.02):
            try:
                self.most = max(self.most, self.server.resident_bytes())
            except (OSError, IndexError):
                return

    def client(self, path, more='', window=None):
        client = socket.socket()
        if window:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        client.settimeout(30)
        client.connect(('127.0.0.1', self.server.port))
        client.sendall(f'GET {path} HTTP/1.1\r\nHost: site.example\r\n{more}\r\n'.encode())
        return client

    def judge(self, what):
        """The bound held."""
        now = self.server.resident_bytes()
        self.most = max(self.most, now)
        print(f'        {what}: memory={self.memory // MB}m, {self.begun // MB} MB at first, at most '
              f'{self.most // MB}, {now // MB} now', flush=True)
        limit = self.memory + MORE
        assert self.most <= limit, f'{self.most // MB} MB, {limit // MB} are allowed'
        assert 'panic' not in self.server.log(), self.server.log()

    def judge_rest(self):
        """What was stored is given back within a minute after all of it is purged."""
        conf = self.server.folder / 'nginx.conf'
        subprocess.run([YOROZU, '-c', conf, '-p', self.server.folder, 'purge', '--all'], check=True, capture_output=True)
        begun, limit = time.monotonic(), self.begun + REST
        with contextlib.suppress(AssertionError):
            until('memory', lambda: self.server.resident_bytes() <= limit, 60)
        rest = self.server.resident_bytes()
        print(f'        {rest // MB} MB {time.monotonic() - begun:.0f} s after a purge of all', flush=True)
        assert rest <= limit, f'{rest // MB} MB, {limit // MB} are allowed'


def read_head(client):
    head = b''
    while b'\r\n\r\n' not in head:
        piece = client.recv(65536)
        assert piece, f'the connection ended after {head!r}'
        head += piece
    head, _, rest = head.partition(b'\r\n\r\n')
    return head, rest


def read_body(client, length, rest):
    """The rest of a body, compared with what the origin sent."""
    at = 0
    while True:
        expected = (BLOCK * (len(rest) // len(BLOCK) + 2))[at % len(BLOCK):][:len(rest)]
        assert rest == expected, f'other bytes behind {at}'
        at += len(rest)
        if at >= length:
            return at
        rest = client.recv(min(1 << 20, length - at))
        assert rest, f'the body ended after {at} of {length} bytes'


def get(client, path, length, more=''):
    client.sendall(f'GET {path} HTTP/1.1\r\nHost: site.example\r\n{more}\r\n'.encode())
    head, rest = read_head(client)
    assert read_body(client, length, rest) == length
    return head


def crowd(site, threads, act):
    """`act(client, number)` in some threads, each with a connection of its own; all numbers below those of `act`."""
    problems = []

    def work(number):
        try:
            with socket.create_connection(('127.0.0.1', site.server.port), 30) as client:
                act(client, number)
        except BaseException as problem:
            problems.append(problem)
    all_of_them = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in all_of_them:
        thread.start()
    for thread in all_of_them:
        thread.join()
    assert not problems, problems[:3]


def test_small_pages():
    with Site(16 * MB) as site:
        def act(client, number):
            for page in range(number, 12000, 4):
                get(client, f'/200/{page}', 200)
        crowd(site, 4, act)
        assert site.origin.calls >= 12000
        site.judge('12,000 pages of 200 bytes')
        site.judge_rest()


def test_a_slow_client_of_a_page_that_is_stored():
    size = 400 * MB
    with Site(4 * MB) as site:
        with site.client(f'/{size}/big', window=4096) as client:
            # The origin is let go though the client takes nothing.
            until('the origin', lambda: site.origin.whole == 1, 60)
            site.judge('a slow client of 400 MB that are stored')
            head, rest = read_head(client)
            assert b'X-Cache: MISS' in head, head
            read_body(client, size, rest)
        with site.client(f'/{size}/big') as client:
            head, rest = read_head(client)
            assert b'X-Cache: HIT' in head, head
            read_body(client, size, rest)
        assert site.origin.calls == 1


def test_several_slow_clients_without_a_lock():
    size = 60 * MB
    with Site(4 * MB) as site, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(site.client(f'/{size}/big', window=4096)) for _ in range(6)]
        until('the origin', lambda: site.origin.whole >= 6, 60)
        for client in clients:
            read_body(client, size, read_head(client)[1])
        site.judge('6 clients that each make 60 MB')


def test_slow_readers_of_large_pages():
    size, count = 7_900_000, 80
    with Site(64 * MB) as site, contextlib.ExitStack() as stack:
        def fill(client, number):
            for page in range(number, count, 2):
                get(client, f'/{size}/{page}', size)
        crowd(site, 2, fill)
        site.judge(f'{count} pages of {size} bytes are stored')
        calls = site.origin.calls
        readers = []
        for page in range(count):
            readers.append(stack.enter_context(site.client(f'/{size}/{page}', window=4096)))
            head, rest = read_head(readers[-1])
            assert b'X-Cache: HIT' in head, head
            readers[-1] = (readers[-1], rest)
        site.judge(f'{count} slow readers of them')
        for client, rest in readers[::8]:
            read_body(client, size, rest)
        assert site.origin.calls == calls, 'they are not stored'
        stack.close()
        site.judge_rest()


def test_any_keys_variants_and_tags():
    with Site(16 * MB) as site:
        def act(client, number):
            draw = random.Random(number)
            for _ in range(KEYS // 4):
                size, name = draw.choice((0, 200, 900, 4000)), draw.randrange(1 << 20)
                kind = f'X-Kind: {draw.randrange(1 << 30)}\r\n'
                path = f'/{size}/t{name % 97}?{name}' if draw.random() < 0.5 else f'/{size}/t{name % 97}'
                get(client, path, size, kind)
        crowd(site, 4, act)
        site.judge(f'{KEYS} keys, variants and tags')
        site.judge_rest()


def mounted(size):
    """A file system of so many bytes for the pages."""
    def mount(site):
        pages = site.folder / 'pages'
        pages.mkdir()
        subprocess.run(['mount', '-t', 'tmpfs', '-o', f'size={size}', 'tmpfs', pages], check=True)
        site.callback(subprocess.run, ['umount', '-l', pages], check=True)
        return pages
    return mount


def test_storing_that_is_given_up_midway():
    size = 120 * MB
    if os.geteuid():
        return print('        not run: needs root for a file system of its own')
    for what, more in ('a full disk', dict(path=mounted(8 * MB))), ('more than max_size=8m', dict(zone='max_size=8m')):
        with Site(4 * MB, more='proxy_cache_lock on; proxy_max_temp_file_size 0;', **more) as site:
            with site.client(f'/{size}/big', window=4096) as client, \
                    site.client(f'/{size}/big', window=4096) as other:
                first, second = read_head(client), read_head(other)
                # Both get all of it, whoever is slower.
                results = []
                threads = [threading.Thread(target=lambda pair=pair: results.append(read_body(pair[0], size, pair[1])))
                           for pair in ((client, first[1]), (other, second[1]))]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                assert results == [size, size], results
            site.judge(what)


if __name__ == '__main__':
    sys.exit(run({name: test for name, test in globals().items() if name.startswith('test_')},
                 sys.argv[1:]))
