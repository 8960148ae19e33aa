"""What `memory=` bounds: the resident memory of a server whose cache is filled, read slowly, and purged.

Every bound is `memory=` and MORE above what a server has when it begins, whatever clients do, and what was stored is given back
when it is purged. A server may have LIMIT of data, so that one that breaks the bound ends instead of taking the machine with it.
TIMES=64 multiplies the `memory=` and `keys_zone=` of the servers, but not what is judged: the tests of what is stored then fail.
"""
import contextlib, os, pathlib, random, signal, socket, socketserver, subprocess, threading
import pytest
from attacks import h2wire
from peers import YOROZU, Folder, Server, until

MB = 1 << 20
# Beside memory=: its threads' buffers, what an allocator keeps, and 8 MB that wait for the disk (docs/cache.md).
MORE = 16 * MB
# What readers may hold of pages that memory has pushed out.
READ = 8 * MB
# What a request holds while its page is being made and it reads it from a file (docs/cache.md).
REQUEST = 96 * 1024
# What may stay a minute after all pages were purged: buffers, and pages of memory that are used in part.
REST = 8 * MB
LIMIT = 1536 * MB
TIMES = int(os.environ.get('TIMES', 1))
BLOCK = bytes(range(256)) * 256
# What a body has from anywhere in a block on, for as much as is read at once.
PIECE = 1 << 20
EXPECTED = BLOCK * (2 * PIECE // len(BLOCK) + 1)


class Origin(socketserver.ThreadingTCPServer):
    """Answers with as many bytes as the path says (`/200/name`), from the first quarter on when it is let go on if the name
    begins with h; knows which clients got everything."""
    daemon_threads, request_queue_size, allow_reuse_address = True, 1024, True

    def __init__(self):
        super().__init__(('127.0.0.1', 0), Answer)
        self.port, self.calls, self.whole = self.server_address[1], 0, 0
        self.quarters, self.may_go_on = 0, threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        pass


class Answer(socketserver.BaseRequestHandler):
    def setup(self):
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def handle(self):
        while asked := self.request.recv(65536):
            while not asked.endswith(b'\r\n\r\n'):
                piece = self.request.recv(65536)
                if not piece:
                    return
                asked += piece
            _, size, name, *_ = asked.split(None, 2)[1].partition(b'?')[0].decode().split('/')
            self.server.calls += 1
            head = f'HTTP/1.1 200 OK\r\nCache-Control: max-age=600\r\nContent-Length: {size}\r\n'
            if name.startswith('t'):
                head += f'Vary: Accept-Language\r\nSurrogate-Key: {name} all-{name[-1]}\r\n'
            elif name.startswith('u'):
                head += f'Surrogate-Key: {" ".join(f"{name}-{tag}" for tag in range(1000))}\r\n'
            elif name.startswith('f'):
                head += ''.join(f'X-{field}: {field}\r\n' for field in range(900))
            left, stop = int(size), int(size) * 3 // 4 if name.startswith('h') else -1
            small = left if left < len(BLOCK) and stop < 0 else 0
            self.request.sendall(head.encode() + b'Content-Type: text/plain\r\n\r\n' + BLOCK[:small])
            left -= small
            while left > 0:
                if stop >= left:
                    self.server.quarters += 1
                    self.server.may_go_on.wait()
                    stop = -1
                self.request.sendall(BLOCK[:left])
                left -= len(BLOCK)
            self.server.whole += 1


class Site(contextlib.ExitStack):
    """A server with a cache before an origin, and how much memory it took at most."""

    def __init__(self, memory, more='', path=None, zone='', keys=10):
        super().__init__()
        self.folder = self.enter_context(Folder())
        self.origin = self.enter_context(contextlib.closing(Origin()))
        self.origin.close = self.origin.server_close
        pages = path(self) if path else self.folder / 'pages'
        self.server = self.enter_context(Server(self.folder, f'''
            proxy_cache_path {pages} levels=1:2 keys_zone=z:{TIMES * keys}m memory={TIMES * memory // MB}m inactive=1h {zone};
            upstream origin {{ server 127.0.0.1:{self.origin.port}; keepalive 32; }}
            server {{ listen 127.0.0.1:$port; keepalive_requests 1000000; send_timeout 600; {more}
              location / {{ proxy_pass http://origin; proxy_http_version 1.1; proxy_set_header Connection "";
                proxy_cache z; add_header X-Cache $upstream_cache_status; }} }}''',
            main='worker_processes 2;', prefix=('prlimit', f'--data={LIMIT}')))
        self.memory = memory
        pathlib.Path(f'/proc/{self.server.serving_pid}/clear_refs').write_text('5')  # proc(5): the peak begins again
        self.begun, self.begun_allocated = self.server.resident_bytes(), self.server.allocated_bytes()

    def client(self, path, more='', window=None):
        client = socket.socket()
        if window:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        client.settimeout(60)
        client.connect(('127.0.0.1', self.server.port))
        client.sendall(f'GET {path} HTTP/1.1\r\nHost: site.example\r\n{more}\r\n'.encode())
        return client

    def judge(self, what, more=0):
        """The bound held; `more`: what else is documented to be taken beside `memory=` (docs/cache.md)."""
        most = self.server.resident_bytes('VmHWM')
        limit = self.begun + self.memory + MORE + more
        print(f'        {what}: memory={self.memory // MB}m, {self.begun / MB:.1f} MB at first, at most {most / MB:.1f}, {limit / MB:.1f} are allowed')
        assert most <= limit, f'{what}: {most / MB:.1f} MB, {limit / MB:.1f} are allowed'
        assert 'panic' not in self.server.log(), self.server.log()

    def judge_rest(self, scattered=0):
        """What was stored is given back within a minute after all of it is purged; `scattered`: what the allocator may
        keep of very many small pieces, for pages of its own that are not empty yet."""
        conf = self.server.folder / 'nginx.conf'
        subprocess.run([YOROZU, '-c', conf, '-p', self.server.folder, 'purge', '--all'], check=True, capture_output=True)
        limit = self.begun_allocated + REST + scattered
        until('memory', lambda: self.server.allocated_bytes() <= limit, told=lambda: f'{self.server.allocated_bytes() / MB:.1f} of {limit / MB:.1f} MB')


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
    at, piece = 0, memoryview(bytearray(PIECE))
    while True:
        assert EXPECTED.startswith(rest, at % len(BLOCK)), f'other bytes behind {at}'
        at += len(rest)
        if at >= length:
            return at
        rest = piece[:client.recv_into(piece, min(PIECE, length - at))]
        assert rest, f'the body ended after {at} of {length} bytes'


def get_text(client, number):
    """The answer of one of many servers."""
    client.sendall(f'GET / HTTP/1.0\r\nHost: s{number}.example\r\n\r\n'.encode())
    with client.makefile('rb') as answer:
        return answer.read().partition(b'\r\n\r\n')[2].decode()


def get_all(client, asked):
    """Asks for pages, sixteen at once: (path, size, more fields)."""
    for at in range(0, len(asked), 16):
        some, got, begun = asked[at:at + 16], bytearray(), 0
        client.sendall(b''.join(f'GET {path} HTTP/1.1\r\nHost: site.example\r\n{more}\r\n'.encode() for path, _, more in some))
        for path, size, _ in some:
            while (end := got.find(b'\r\n\r\n', begun)) < 0 or len(got) < end + 4 + size:
                piece = client.recv(1 << 20)
                assert piece, f'the connection ended after {got[begun:]!r}'
                got += piece
            assert got.startswith(b'HTTP/1.1 200 ', begun), (path, got[begun:end])
            begun = end + 4 + size
            assert EXPECTED.startswith(got[begun - size:begun]), f'other bytes of {path}'
        assert begun == len(got), got[begun:]


def get_pages(site, size, paths, more=''):
    """Asks for pages over four connections."""
    crowd(site, 4, lambda client, number: get_all(client, [(path, size, more) for path in paths[number::4]]))


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


def mounted(size):
    """A file system of this many bytes for the pages."""
    def mount(site):
        pages = site.folder / 'pages'
        pages.mkdir()
        subprocess.run(['mount', '-t', 'tmpfs', '-o', f'size={size}', 'tmpfs', pages], check=True)
        site.callback(subprocess.run, ['umount', '-l', pages], check=True)
        return pages
    return mount


def many_files(site):
    """Where many small files cost little to make, if this process may mount."""
    return site.folder / 'pages' if os.geteuid() else mounted('512m')(site)


def test_small_pages():
    with Site(1 * MB, path=many_files) as site:
        get_pages(site, 4000, [f'/4000/{page}' for page in range(5000)])
        assert site.origin.calls >= 5000
        site.judge('5,000 pages of 4,000 bytes')
        site.judge_rest()


def test_what_is_judged_is_noticed():
    """A server that holds more than is allowed fails."""
    with Site(16 * MB) as site:
        site.memory = 0
        get_pages(site, 200_000, [f'/200000/{page}' for page in range(160)])
        with pytest.raises(AssertionError, match='are allowed'):
            site.judge('160 pages of 200,000 bytes')


def test_a_slow_client_of_a_page_that_is_stored():
    # Several times what the bound allows: whoever held it, or half of it, would be seen.
    size = 64 * MB
    with Site(4 * MB) as site:
        with site.client(f'/{size}/big', window=4096) as client:
            # The origin is let go though the client takes nothing.
            until('the origin', lambda: site.origin.whole == 1)
            site.judge('a slow client of 64 MB that are stored')
            head, rest = read_head(client)
            assert b'X-Cache: MISS' in head, head
            read_body(client, size, rest)
        with site.client(f'/{size}/big') as client:
            head, rest = read_head(client)
            assert b'X-Cache: HIT' in head, head
            read_body(client, size, rest)
        assert site.origin.calls == 1


def test_several_slow_clients_without_a_lock():
    size = 10 * MB
    with Site(4 * MB) as site, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(site.client(f'/{size}/big', window=4096)) for _ in range(6)]
        until('the origin', lambda: site.origin.whole >= 6)
        for client in clients:
            read_body(client, size, read_head(client)[1])
        site.judge('6 clients that each make 10 MB')


def test_slow_readers_of_large_pages():
    size, count = 1_990_000, 24
    with Site(16 * MB) as site, contextlib.ExitStack() as stack:
        get_pages(site, size, [f'/{size}/{page}' for page in range(count)])
        site.judge(f'{count} pages of {size} bytes are stored')
        calls = site.origin.calls
        readers = []
        for page in range(count):
            readers.append(stack.enter_context(site.client(f'/{size}/{page}', window=4096)))
            head, rest = read_head(readers[-1])
            assert b'X-Cache: HIT' in head, head
            readers[-1] = (readers[-1], rest)
        site.judge(f'{count} slow readers of them', READ + count * REQUEST)
        for client, rest in readers[::6]:
            read_body(client, size, rest)
        assert site.origin.calls == calls, 'they are not stored'
        stack.close()
        site.judge_rest()


def head_of(site, path, coding):
    with site.client(path, more=f'Accept-Encoding: {coding}\r\n') as client:
        return read_head(client)[0]


def asked_without_room(site, paths, fields=()):
    """A client that asks for all of the paths, has the heads of the answers, and takes nothing of their bodies."""
    none = h2wire.frame(h2wire.SETTINGS, content=(4).to_bytes(2) + (0).to_bytes(4))
    client = socket.create_connection(('127.0.0.1', site.server.port), 60)
    client.sendall(h2wire.PREFACE + none + b''.join(
        h2wire.headers(1 + 2 * number, h2wire.request(path, fields=fields))
        for number, path in enumerate(paths)))
    heads = 0
    with client.makefile('rb') as frames:
        while heads < len(paths):
            head = frames.read(9)
            frames.read(int.from_bytes(head[:3]))
            heads += head[3] == h2wire.HEADERS
    return client


def test_streams_of_large_pages_without_room():
    size = 300_000
    paths = [f'/{size}/{page}' for page in range(100)]
    with Site(4 * MB, more='http2 on;') as site, contextlib.ExitStack() as stack:
        get_pages(site, size, paths)
        for _ in range(20):
            stack.enter_context(asked_without_room(site, paths))
        site.judge(f'20 clients that ask for {len(paths)} pages of {size} bytes and take nothing', READ)


def test_streams_of_pages_that_memory_pushed_out():
    size = 200_000
    paths = [f'/{size}/{page}' for page in range(160)]
    with Site(16 * MB, more='http2 on;') as site, contextlib.ExitStack() as stack:
        get_pages(site, size, paths)
        for number in range(8):
            stack.enter_context(asked_without_room(site, paths[number % 4 * 40:][:40]))
        site.judge(f'8 clients that ask for 40 of {len(paths)} pages of {size} bytes and take nothing', READ)
        # What is asked for then takes their place in memory.
        small = [f'/16000/{page}' for page in range(1050)]
        get_pages(site, 16000, small)
        site.judge(f'and {len(small)} small pages', READ)


def test_streams_that_are_compressed_on_their_way():
    for coding, count in ('gzip', 900), ('br', 90), ('zstd', 180):
        with Site(4 * MB, more="""http2 on; root $dir/cache; gzip on;
                location /page { try_files /page.html =404; brotli on; zstd on; }""") as site:
            # Hardly smaller when it is compressed, so that it does not end while it waits for the client.
            (site.server.folder / 'cache/page.html').write_bytes(random.Random(1).randbytes(1 << 20))
            with contextlib.ExitStack() as stack:
                for _ in range(count // 90):
                    fields = [('accept-encoding', f'{coding}, gzip;q=0.5')]
                    stack.enter_context(asked_without_room(site, ['/page'] * 90, fields))
                site.judge(f'{count} streams of {coding}', more=128 * MB)
            # There is room again as soon as they are gone.
            until('room', lambda: f'Content-Encoding: {coding}'.encode() in head_of(site, '/page', coding))


def test_many_pages_that_are_being_made_for_slow_clients():
    size, count = 24 * len(BLOCK), 100
    with Site(4 * MB) as site, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(site.client(f'/{size}/h{page}', window=4096)) for page in range(count)]
        until('the quarters', lambda: site.origin.quarters == count)
        rests = [read_head(client)[1] for client in clients]
        site.judge(f'a quarter of {count} pages of {size} bytes, which clients take slowly', count * REQUEST)
        for client in clients[5:]:
            client.close()
        site.origin.may_go_on.set()
        for client, rest in zip(clients[:5], rests):
            read_body(client, size, rest)
        until('the pages', lambda: site.origin.whole == count)
        site.judge('all of them', count * REQUEST)

        def is_stored():
            """It is stored behind its last byte."""
            calls = site.origin.calls
            with site.client(f'/{size}/h0') as client:
                head, rest = read_head(client)
                read_body(client, size, rest)
            return b'X-Cache: HIT' in head and site.origin.calls == calls
        until('a page to be stored', is_stored)


def test_a_configuration_of_many_servers_is_given_back():
    many, one = ('\n'.join(f'''server {{ listen 127.0.0.1:$port; server_name s{number}.example *.s{number}.example;
        access_log $dir/logs/{number % 10}.log; gzip on; location / {{ return 200 {number}; }}
        location ~ ^/a{number}/.*\\.php$ {{ proxy_pass http://127.0.0.1:1; }} }}''' for number in range(count)) for count in (2500, 1))
    with Folder() as folder:
        with Server(folder, one, main='worker_processes 2;') as server:
            fresh = server.resident_bytes()
        with Server(folder, many, main='worker_processes 2;', prefix=('prlimit', f'--data={LIMIT}')) as server:
            def ask(number):
                with socket.create_connection(('127.0.0.1', server.port)) as client:
                    return get_text(client, number)
            conf = server.folder / 'nginx.conf'
            for number in (0, 2_499):
                assert ask(number) == str(number)
            whole, text = server.resident_bytes(), conf.read_text()
            lines = one.replace('$port', str(server.port)).replace('$dir', str(server.folder))
            conf.write_text(text[:text.index('server {')] + lines + '\n}\n')
            server.process.send_signal(signal.SIGHUP)
            until('the reload', lambda: ask(2_499) == '0')
            limit = fresh * 6 // 5 + 8 * MB
            assert whole > limit, f'{whole // MB} MB with 2,500 servers would be allowed for one'
            until('memory', lambda: server.resident_bytes() <= limit, told=lambda: f'{server.resident_bytes() / MB:.1f} of {limit / MB:.1f} MB')


def test_what_reading_a_configuration_took_is_given_back():
    """Of two processes, though no request comes. The lines of a list leave little behind: a table of values."""
    lines = '\n'.join(f'1.{number >> 8}.{number & 255}.0/24 C{number % 250};' for number in range(32_768))
    text = 'geo $arg_ip $country { default XX; %s } server { listen 127.0.0.1:$port; return 200 "$country"; }'
    with Folder() as folder:
        def resident(server):
            statuses = [pathlib.Path(f'/proc/{pid}/status').read_text() for pid in (server.pid, server.serving_pid)]
            return sum(int(status.split('RssAnon:')[1].split()[0]) * 1024 for status in statuses)
        with Server(folder, text % '') as server:
            few, low = resident(server), server.resident_bytes('VmHWM')
        with Server(folder, text % lines, prefix=('prlimit', f'--data={LIMIT}')) as server:
            limit = few + REST
            assert server.resident_bytes('VmHWM') - low > REST, 'reading takes no more than is allowed to stay'
            until('memory', lambda: resident(server) <= limit, told=lambda: f'{resident(server) / MB:.1f} of {limit / MB:.1f} MB')


def test_any_keys_variants_and_tags():
    with Site(1 * MB, path=many_files) as site:
        def act(client, number):
            draw, asked = random.Random(number), []
            for _ in range(1800):
                size, name = draw.choice((0, 200, 900, 8000)), draw.randrange(1 << 20)
                more = f'Accept-Language: {draw.randrange(1 << 30)}\r\n'
                asked.append((f'/{size}/t{name % 97}' + (f'?{name}' if draw.random() < 0.5 else ''), size, more))
            get_all(client, asked)
        crowd(site, 4, act)
        site.judge('7,200 keys, variants and tags')
        site.judge_rest(scattered=4 * MB)


def test_long_keys():
    with Site(1 * MB, path=many_files, keys=1, more='large_client_header_buffers 4 16k;') as site:
        get_pages(site, 200, [f'/200/{page}?{"k" * 14000}' for page in range(2500)])
        assert site.origin.calls == 2500
        site.judge('2,500 keys of 14,000 bytes', more=12 * MB)
        site.judge_rest(scattered=4 * MB)


def test_long_keys_that_are_not_stored_yet():
    with Site(4 * MB, keys=1, more='proxy_cache_min_uses 2; large_client_header_buffers 4 16k;') as site:
        get_pages(site, 200, [f'/200/{page}?{"k" * 14000}' for page in range(2000)])
        site.judge('2,000 keys of 14,000 bytes, each asked for once')


def test_many_small_fields():
    with Site(4 * MB, path=many_files, more='proxy_buffer_size 32k; proxy_buffers 8 32k;') as site:
        get_pages(site, 200, [f'/200/f{page}' for page in range(500)])
        assert site.origin.calls == 500
        with site.client('/200/f499') as client:
            head, rest = read_head(client)
            assert b'X-Cache: HIT' in head and b'X-899: 899' in head, head
            read_body(client, 200, rest)
        site.judge('500 pages with 900 fields each')
        site.judge_rest(scattered=4 * MB)


def test_tags_that_no_other_page_has():
    with Site(1 * MB, path=many_files, keys=1, more='proxy_buffer_size 32k; proxy_buffers 8 32k;') as site:
        get_pages(site, 200, [f'/200/u{page}' for page in range(250)])
        assert site.origin.calls == 250
        site.judge('250 pages with 1,000 tags of their own each', more=20 * MB)
        site.judge_rest(scattered=8 * MB)


def test_storing_that_is_given_up_midway():
    size = 32 * MB
    if os.geteuid():
        return print('        not run: needs root for a file system of its own')
    for what, more in ('a full disk', dict(path=mounted(8 * MB))), ('more than max_size=8m', dict(zone='max_size=8m')):
        with Site(4 * MB, more='proxy_cache_lock on; proxy_max_temp_file_size 0;', **more) as site:
            with site.client(f'/{size}/big', window=4096) as client, \
                    site.client(f'/{size}/big', window=4096) as other:
                first, second = read_head(client), read_head(other)
                # Both get all of it, also the slower one.
                results = []
                threads = [threading.Thread(target=lambda pair=pair: results.append(read_body(pair[0], size, pair[1])))
                           for pair in ((client, first[1]), (other, second[1]))]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                assert results == [size, size], results
            site.judge(what)
