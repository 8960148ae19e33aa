"""Floods: more than any client needs, of what is cheap to send. Meanwhile others are served, and memory stays within bounds:
the server has a limit of the system's, and its resident size is looked at all the time.
"""
import asyncio, gzip, multiprocessing, socket
from peers import SECONDS, Folder, Server
from .h2wire import (ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PING, PRIORITY, RST_STREAM,
                     SETTINGS, WINDOW_UPDATE, Connection, frame, headers, literals, request)
from .origins import STDERR, STDOUT, Closing, FastcgiOrigin, HttpOrigin, answer, record, records
from .wire import Client, ask, head

# Of the system's making: what is beyond fails.
DATA_BYTES = 1 << 30
# What any flood may add to the resident size. The page of 2 MB is held once; a debug build needs more than a release.
GROWTH_BYTES = 160 << 20
PAGE = bytes(range(256)) * 8192


def configuration(http, fastcgi):
    return f'''
    client_header_timeout 1s; client_body_timeout 1s; send_timeout 2s; keepalive_timeout 5s; ssi_types text/plain;
    proxy_cache_path $dir/cache/p keys_zone=z:4m memory=8m; proxy_http_version 1.1; proxy_set_header Connection "";
    upstream http {{ server 127.0.0.1:{http}; keepalive 32; }}
    map $a $b {{ default $a; }} map $b $a {{ default $b; }}
    server {{ listen 127.0.0.1:$port http2 backlog=4096; server_name a.test; client_max_body_size 64m; gunzip on;
      location / {{ proxy_pass http://http; proxy_read_timeout 5s; }}
      location /ok {{ return 200 ok; }}
      location /stored/ {{ proxy_pass http://http; proxy_cache z; proxy_cache_key $request_uri; proxy_force_ranges on; }}
      location /fcgi/ {{ fastcgi_pass 127.0.0.1:{fastcgi}; fastcgi_param REQUEST_METHOD $request_method; fastcgi_param REQUEST_URI $request_uri; }}
      location /ssi/ {{ ssi on; proxy_pass http://http; }}
      location /unzipped/ {{ proxy_pass http://http; }}
      location /included/ {{ ssi on; proxy_pass http://http; }}
      location /maps {{ return 200 "$a"; }}
      location = /.purge {{ cache_purge_api token=a-secret-of-sixteen-bytes-or-more; }} }}'''


def respond_fastcgi(request):
    plain = b'Content-Type: text/plain\r\n\r\n'
    if 'tiny' in request.target:
        return record(STDOUT, plain) + record(STDOUT, b'x') * 100000 + records(b'')
    if 'empty' in request.target:
        return record(STDOUT, plain) + record(STDERR) * 300000 + records(b'')
    if 'stderr' in request.target:
        return record(STDERR, b'e' * 60000) * 300 + records(plain)
    return record(STDOUT, b'X: ' + b'y' * 60000) * 200 + records(plain)


def respond(request):
    target = request.target.partition('?')[0]
    stored = {'Cache-Control': 'max-age=60', 'Content-Type': 'text/plain'}
    interim = 'HTTP/1.1 {} x\r\nLink: </a>; rel=preload\r\n\r\n'
    if target == '/unzipped/bomb':
        return answer(BOMB, fields={'Content-Encoding': 'gzip', 'Content-Type': 'text/plain'})
    if target == '/ssi/twice':
        return answer('<!--# include virtual="/ssi/twice" --><!--# include virtual="/ssi/twice" -->',
                      fields={'Content-Type': 'text/plain'})
    if target == '/ssi/doubled':
        double = ''.join('<!--# set var="a" value="$a$a" -->' for _ in range(40))
        return answer('<!--# set var="a" value="aaaaaaaa" -->' + double + '<!--# echo var="a" -->',
                      fields={'Content-Type': 'text/plain'})
    if target in ('/interim/100', '/interim/103'):
        return interim.format(target[-3:]).encode() * 30000 + answer('late')
    if target == '/head':
        return Closing(b'HTTP/1.1 200 OK\r\n' + b'X: y\r\n' * 1000000)
    if target == '/line':
        return Closing(b'HTTP/1.1 200 OK\r\nX: ' + b'y' * 10000000)
    if target == '/chunks':
        return answer(b'', fields={'Transfer-Encoding': 'chunked'},
                      length=False) + b'1\r\nx\r\n' * 300000 + b'0\r\n\r\n'
    if target == '/tags':
        return answer('tagged', fields={**stored,
                                        'Surrogate-Key': ' '.join(f't{number}' for number in range(6000))})
    if 'big' in target:
        return BIG
    return answer('small', fields=stored)


# Made once: thousands are sent.
BIG = answer(PAGE, fields={'Cache-Control': 'max-age=60', 'Content-Type': 'text/plain'})
# 64 MB of one byte, packed.
BOMB = gzip.compress(b'a' * (64 << 20), 6)


class OtherClient:
    """Another client, in a process of its own: in this one it would wait for floods and upstreams to be made, too."""

    def __init__(self):
        self.pipe, other = multiprocessing.Pipe()
        self.process = multiprocessing.get_context('fork').Process(target=self.ask, args=(other,), daemon=True)
        self.process.start()

    def begin(self, port):
        self.pipe.send(port)

    def end(self):
        """What went wrong; it waits for its answers as long as anything here."""
        self.pipe.send(None)
        return self.pipe.recv()

    @staticmethod
    def ask(pipe):
        while True:
            port, problems = pipe.recv(), []
            while not pipe.poll(0.02):
                got = b''
                try:
                    with socket.create_connection(('127.0.0.1', port), SECONDS) as client:
                        client.sendall(head('/ok', fields={'Connection': 'close'}))
                        while piece := client.recv(4096):
                            got += piece
                    if not (got.startswith(b'HTTP/1.1 200 ') and got.endswith(b'\r\n\r\nok')):
                        problems.append(f'got {got!r}')
                except OSError as problem:
                    problems.append(repr(problem))
            pipe.recv()
            pipe.send(problems)


class Watch:
    """Another client, and the server's size, for as long as a flood lasts."""

    def __init__(self, tried, server, case, other):
        self.tried, self.server, self.case, self.other = tried, server, case, other

    async def __aenter__(self):
        self.before = self.most = self.server.resident_bytes()
        self.other.begin(self.server.port)
        self.task = asyncio.create_task(self.look())
        return self

    async def look(self):
        while self.server.process.poll() is None:
            self.most = max(self.most, self.server.resident_bytes())
            await asyncio.sleep(0.02)

    async def __aexit__(self, *_):
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        for problem in self.other.end():
            self.tried.failed(self.case, f'another client: {problem}')
        grown = self.most - self.before
        self.tried.check(self.case, grown < GROWTH_BYTES, f'the server grew by {grown >> 20} MB')
        self.tried.check(self.case, self.server.process.poll() is None, 'the server has ended')


async def raw(port, *pieces, pause=0.0, count=1):
    """That number of connections that send the pieces; what each was answered."""
    async def one():
        try:
            async with asyncio.timeout(SECONDS), await Client.to(port) as client:
                for piece in pieces:
                    client.send(piece)
                    await client.writer.drain()
                    await asyncio.sleep(pause)
                return (await client.reader.read(4096))[:40]
        except (TimeoutError, OSError) as problem:
            return problem
    return await asyncio.gather(*[one() for _ in range(count)])


# --- HTTP/1 -------------------------------------------------------------------------------------------

async def slow_heads(server):
    start = b'GET /ok HTTP/1.1\r\nHost: a.test\r\n'
    answers = await raw(server.port, start, *[b'X: y\r\n'] * 600, pause=0.1, count=400)
    assert not [one for one in answers if isinstance(one, TimeoutError)], 'slow heads went on'


async def slow_contents(server):
    await raw(server.port, head('/x', 'POST', fields={'Content-Length': '1000'}), *[b'x'] * 15, pause=0.1,
              count=300)


async def refused(port, *data):
    for one in await raw(port, *data, count=20):
        assert not isinstance(one, bytes) or not one or one.startswith(b'HTTP/1.1 4'), one


async def many_fields(server):
    await refused(server.port, b'GET /ok HTTP/1.1\r\nHost: a.test\r\n' + b'X: y\r\n' * 100000 + b'\r\n')


async def large_cookie(server):
    await refused(server.port, b'GET /ok HTTP/1.1\r\nHost: a.test\r\nCookie: ' + b'a' * 1000000 + b'\r\n\r\n')


async def long_target(server):
    await refused(server.port, b'GET /' + b'a' * 1000000 + b' HTTP/1.1\r\nHost: a.test\r\n\r\n')


async def endless_line(server):
    await refused(server.port, *[b'A' * 65536] * 50)


async def empty_lines(server):
    await raw(server.port, b'\r\n' * 500000, count=20)


async def small_chunks(server):
    await raw(server.port, head('/ok', 'POST', fields={'Transfer-Encoding': 'chunked'}),
              b'1\r\nx\r\n' * 300000, b'0\r\n\r\n', count=8)


async def chunk_extensions(server):
    await raw(server.port, head('/x', 'POST', fields={'Transfer-Encoding': 'chunked'}),
              (b'1;' + b'a' * 8000 + b'\r\nx\r\n') * 500, b'0\r\n\r\n', count=4)


async def large_trailers(server):
    await raw(server.port, head('/x', 'POST', fields={'Transfer-Encoding': 'chunked'}),
              b'0\r\n' + b'X: y\r\n' * 1000000 + b'\r\n', count=8)


async def pipelined(server):
    await raw(server.port, head('/stored/big') * 500, count=20)


async def ranges(server):
    spans = ['bytes=' + ','.join(f'{at}-{at}' for at in range(0, 2600, 2)),
             'bytes=' + ','.join(['0-'] * 1300), 'bytes=' + ','.join(['-1'] * 1300)]
    await ask(server.port, '/stored/big')
    for span in spans:
        await raw(server.port, head('/stored/big', fields={'Range': span}), count=40)


# --- HTTP/2 -------------------------------------------------------------------------------------------

async def h2(port, *frames, settings=b'', window=1 << 24, count=1):
    """Connections that send frames and a PING; it is answered, or the connection ended."""
    async def one():
        async with await Connection.to(port, settings, window) as connection:
            try:
                for piece in frames:
                    connection.send(piece)
                    async with asyncio.timeout(SECONDS):
                        await connection.writer.drain()
                connection.send(frame(PING, content=bytes(8)))
                await connection.until(lambda: connection.pongs or connection.goaway is not None)
            except (TimeoutError, OSError):
                pass
    await asyncio.gather(*[one() for _ in range(count)])


def streams(count, target, behind=lambda stream: b''):
    return b''.join(headers(2 * number + 1, request(f'{target}?{number}')) + behind(2 * number + 1)
                    for number in range(count))


def reset(stream):
    return frame(RST_STREAM, stream=stream, content=(8).to_bytes(4))


async def rapid_reset(server):
    await h2(server.port, streams(5000, '/ok', reset), count=4)


async def rapid_reset_of_an_upstream(server):
    await h2(server.port, streams(3000, '/x', reset), count=2)


async def rapid_reset_of_stored_pages(server):
    await h2(server.port, streams(3000, '/stored/small', reset), count=2)


async def made_you_reset(server):
    await h2(server.port, streams(3000, '/x',
                                  lambda stream: frame(WINDOW_UPDATE, stream=stream, content=bytes(4))),
                                  count=2)


async def continuations(server):
    await h2(server.port, frame(HEADERS, END_STREAM, 1, literals(request('/ok'))),
             *[frame(CONTINUATION, 0, 1) * 1000] * 50, count=4)


async def continuations_with_fields(server):
    await h2(server.port, frame(HEADERS, END_STREAM, 1, literals(request('/ok'))),
             *[frame(CONTINUATION, 0, 1, literals([('x', 'y' * 1000)] * 15)) * 10] * 50, count=4)


async def compression_bomb(server):
    first = literals(request('/ok')) + literals([('x', 'y' * 4000)], indexed=True)
    await h2(server.port, frame(HEADERS, END_HEADERS | END_STREAM, 1, first + b'\xbe' * 12000), count=20)


async def many_h2_fields(server):
    await h2(server.port, headers(1, request('/ok', fields=[(f'x{number}', 'y') for number in range(1500)])),
             count=20)


async def pings(server):
    await h2(server.port, *[frame(PING, content=bytes(8)) * 5000] * 10, count=4)


async def settings_frames(server):
    await h2(server.port, *[frame(SETTINGS, content=b'\0\4\0\0\xff\xff') * 2000] * 10, count=4)


async def priorities(server):
    await h2(server.port, *[b''.join(frame(PRIORITY, stream=2 * number + 1, content=bytes(5))
                                     for number in range(5000))] * 4, count=4)


async def window_updates(server):
    await h2(server.port, *[frame(WINDOW_UPDATE, content=(1).to_bytes(4)) * 5000] * 10, count=4)


async def empty_data(server):
    await h2(server.port, headers(1, request('/x', 'POST'), end=False), *[frame(DATA, 0, 1) * 5000] * 10,
             count=4)


async def window_zero(server):
    zero = b'\0\4' + bytes(4)
    await h2(server.port, *[streams(128, '/big')], settings=zero, window=0, count=8)


async def window_zero_of_stored_pages(server):
    await ask(server.port, '/stored/big')
    await h2(server.port, b''.join(headers(2 * number + 1, request('/stored/big')) for number in range(128)),
             settings=b'\0\4' + bytes(4), window=0, count=20)


async def window_of_one_byte(server):
    await h2(server.port, b''.join(headers(2 * number + 1, request('/stored/big')) for number in range(128)),
             settings=b'\0\4\0\0\0\1', window=0, count=4)


async def acknowledgements(server):
    await h2(server.port, *[frame(SETTINGS, ACK) * 10000] * 5, count=4)


# --- what upstreams and their pages do ----------------------------------------------------------------

async def asked(port, *targets):
    """Each is answered in time, whatever with; a reader that stops reading does no harm."""
    async def one(target):
        async with asyncio.timeout(SECONDS), await Client.to(port) as client:
            client.send(head(target, fields={'Connection': 'close'}))
            await client.reader.read(65536)
    results = await asyncio.gather(*map(one, targets), return_exceptions=True)
    assert not [one for one in results if isinstance(one, TimeoutError)], 'no answer in time'


async def interim_answers(server):
    await asked(server.port, '/interim/100', '/interim/103')


async def endless_heads(server):
    await asked(server.port, '/head', '/line', '/fcgi/head')


async def chunks_of_an_upstream(server):
    await asked(server.port, *['/chunks'] * 4)


async def records_of_fastcgi(server):
    await asked(server.port, '/fcgi/tiny', '/fcgi/empty', '/fcgi/stderr')


async def gunzip_bomb(server):
    """Slow readers: nothing of it may be held beyond some buffers."""
    clients = [await slow_reader(server.port, '/unzipped/bomb') for _ in range(2)]
    for _ in range(20):
        for client in clients:
            await client.reader.read(1000)
        await asyncio.sleep(0.05)
    for client in clients:
        client.close()


async def slow_reader(port, target):
    """A client that takes next to nothing, and whose system keeps little for it."""
    taker = socket.socket()
    taker.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
    taker.setblocking(False)
    await asyncio.get_running_loop().sock_connect(taker, ('127.0.0.1', port))
    client = Client(*await asyncio.open_connection(sock=taker, limit=16384))
    client.send(head(target))
    return client


async def includes_of_itself(server):
    """The page goes on as long as its client reads, within bounds; without its client it ends."""
    async with await Client.to(server.port) as client:
        client.send(head('/ssi/twice'))
        for _ in range(8):
            await client.reader.read(65536)
    await asyncio.sleep(0.5)
    before = server.resident_bytes()
    await asyncio.sleep(0.5)
    assert server.resident_bytes() - before < 4 << 20, f'it goes on without its client: {before >> 20}, then {server.resident_bytes() >> 20} MB'


async def doubled_variable(server):
    await asked(server.port, '/ssi/doubled')


async def maps_in_a_circle(server):
    await asked(server.port, '/maps')


async def small_pages(server):
    """Within memory=8m, whatever stands beside it."""
    before = server.resident_bytes()
    async def some(first):
        async with await Client.to(server.port) as client:
            for number in range(first, first + 250):
                await ask(server.port, f'/stored/small?{number}', client=client)
    await asyncio.gather(*[some(first) for first in range(0, 3000, 250)])
    assert server.resident_bytes() - before < 48 << 20, f'{before >> 20}, then {server.resident_bytes() >> 20} MB'


async def slow_reader_of_a_store(server):
    """Readers that stop: what they have not taken is bounded."""
    clients = [await slow_reader(server.port, f'/stored/big?{number}') for number in range(100)]
    await asyncio.sleep(1)
    for client in clients:
        client.close()


async def many_tags(server):
    await asked(server.port, *[f'/tags?{number}' for number in range(10)])


async def deep_json(server):
    fields = {'Authorization': 'Bearer a-secret-of-sixteen-bytes-or-more'}
    bodies = [b'[' * 15000, b'{"tags":' * 2000, b'[' * 1000000, b'{"tags": ["' + b'a' * 5000000 + b'"]}',
              b'{"tags": [' + b'"a",' * 10001 + b'"a"]}', b'{"urls": ["' + b'/*' * 7000 + b'"]}',
              b'[' + b'{"tags":["a"]},' * 1000 + b'{"tags":["a"]}]']
    for body in bodies:
        got = await ask(server.port, '/.purge', 'POST', body, fields=fields)
        assert got is None or got.status in (200, 400, 413), got


FLOODS = [slow_heads, slow_contents, many_fields, large_cookie, long_target, endless_line, empty_lines,
          small_chunks, chunk_extensions, large_trailers, pipelined, ranges, rapid_reset,
          rapid_reset_of_an_upstream, rapid_reset_of_stored_pages, made_you_reset, continuations,
          continuations_with_fields, compression_bomb, many_h2_fields, pings, settings_frames,
          acknowledgements, priorities, window_updates, empty_data, window_zero, window_zero_of_stored_pages,
          window_of_one_byte, interim_answers, endless_heads, chunks_of_an_upstream, records_of_fastcgi,
          gunzip_bomb, small_pages, slow_reader_of_a_store, many_tags, deep_json, includes_of_itself,
          doubled_variable, maps_in_a_circle]


class Bounded:
    """A server with a limit of the system's on its memory, started again if an attack ends it."""

    def __init__(self, folder, conf):
        self.folder, self.conf = folder, conf

    def __enter__(self):
        prefix = ('prlimit', f'--data={DATA_BYTES}', '--core=0', '--')
        self.server = Server(self.folder, self.conf, prefix=prefix)
        return self

    def __exit__(self, *_):
        self.server.stop()

    async def flooded(self, tried, floods, other):
        """One after the other; those of a group, which have one bound, together."""
        for group in floods:
            group = [flood for flood in (group if isinstance(group, tuple) else (group,)) if tried.wants(flood.__name__)]
            if not group:
                continue
            async with Watch(tried, self.server, '|'.join(flood.__name__ for flood in group), other):
                await asyncio.gather(*[tried.attempt(flood.__name__, flood(self.server)) for flood in group])
            if self.server.process.poll() is not None:
                self.server.stop()
                self.__enter__()
        tried.alive(self.server)


async def run(tried):
    # Before there is any socket that it would hold open, too.
    other = OtherClient()
    http, fastcgi = HttpOrigin(respond), FastcgiOrigin(respond_fastcgi, raw=True)
    async with http, fastcgi:
        with Folder() as folder, Bounded(folder, configuration(http.port, fastcgi.port)) as bounded:
            await bounded.flooded(tried, FLOODS, other)
