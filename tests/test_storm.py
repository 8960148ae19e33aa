"""A storm: clients that leave at every stage, upstreams that fail at every stage, reloads in the middle. What was
taken for a request is given back once: no peer ever has more than max_conns, and afterwards all are free.

Each storm has CLIENTS; STORM=60 lets it go on for a minute instead. SEED=N makes other choices.
"""
import asyncio, contextlib, http.client, os, random, signal, socket, ssl, struct, time
import pytest
from attacks import h2wire
from openssl import authority
import peers
from peers import SECONDS, Folder, Memcached, Server, equal, free_port

CLIENTS, STORM = 480, float(os.environ.get('STORM', 0))
SEED = int(os.environ.get('SEED', 1))
BODY = b'0123456789abcdef' * 16
LONG = BODY * 4000
# TCP_INFO's first byte: neither side has closed.
ESTABLISHED = 1


def is_open(writer):
    """Whether the other side has not closed yet. What was not read does not matter."""
    handle = writer.get_extra_info('socket')
    if writer.is_closing() or handle is None or handle.fileno() < 0:
        return False
    return handle.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == ESTABLISHED


def reset(writer):
    handle = writer.get_extra_info('socket')
    if handle is not None and handle.fileno() >= 0:
        handle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
    writer.transport.abort()


# --- origins ------------------------------------------------------------------------------------------

# What an origin does with a request; the last part of the path says it.
WORDS = ['ok', 'ok', 'long', 'slow', 'empty', 'fail', 'missing', 'close', 'half-head', 'half-body', 'nonsense',
         'bad-body', 'reset', 'reset-head', 'reset-body', 'mute', 'mute-head', 'mute-body', 'early', 'dies']


class Origin:
    """A scripted server. It counts the requests that are under way and not given up."""

    def __init__(self, most):
        self.most, self.under_way, self.too_many, self.seen, self.held = most, set(), [], 0, None
        self.connections, self.served, self.judging = set(), [], asyncio.Lock()
        self.port = free_port()

    async def start(self, tls=None, listener=None):
        where = {'sock': listener} if listener else {'host': '127.0.0.1', 'port': self.port, 'backlog': 1024}
        self.server = await asyncio.start_server(self.connected, ssl=tls, limit=1 << 20, **where)
        return self

    def count(self):
        return sum(is_open(writer) for writer in self.under_way)

    async def judge(self, word):
        """Says that there are too many requests, where none of them is over in fact: on a busy machine the end of a
        connection may arrive after a request that was sent later over another one."""
        async with self.judging:
            for _ in range(20):
                count = self.count()
                if count <= self.most:
                    return
                await asyncio.sleep(.005)
            self.too_many.append(f'{count} at once, {word}')

    async def connected(self, reader, writer):
        served = 1
        self.connections.add(writer)
        try:
            while await self.exchange(reader, writer):
                served += 1
        except (OSError, EOFError, asyncio.LimitOverrunError, ValueError, asyncio.CancelledError):
            pass
        finally:
            self.connections.discard(writer)
            self.served.append(served)
            self.under_way.discard(writer)
            writer.close()

    async def exchange(self, reader, writer):
        """Sends one request; returns whether another one follows."""
        word, body = await self.request(reader)
        self.seen += 1
        self.under_way.add(writer)
        if self.most and self.count() > self.most:
            await self.judge(word)
        if word != 'early':
            await body()
        if word == 'hold':
            await self.held.wait()
        for done in self.script(word):
            if isinstance(done, float):
                await asyncio.sleep(done)
                continue
            # Nothing ends by itself while it is judged how many there are.
            async with self.judging:
                pass
            if done == 'mute':
                await reader.read()
                return False
            elif done == 'reset':
                self.under_way.discard(writer)
                reset(writer)
                return False
            elif done == 'close':
                return False
            elif isinstance(done, bytes):
                writer.write(done)
                await writer.drain()
            else:
                # The end of the answer: a client that has it may send the next request at once.
                self.under_way.discard(writer)
                writer.write(done[0])
                await writer.drain()
        return word != 'early' or not await body()

    def script(self, word):
        head, content, end = self.answer(word)
        whole = {'long': LONG, 'slow': BODY * 4}.get(word, content)
        half, rest = (self.content(part) for part in (whole[:len(whole) // 2], whole[len(whole) // 2:]))
        head = self.head(head, len(whole))
        return {
            'empty': [[self.head('204 No Content', 0) + end]],
            'slow': [head, .05, half, .1, [rest + end]],
            'long': [head, half, [rest + end]],
            'close': ['close'],
            'half-head': [head[:len(head) // 2], 'close'],
            'half-body': [head + half, 'close'],
            'nonsense': [b'\x00\x01 nothing that a parser could read\r\n\r\n', 'close'],
            'bad-body': [self.bad_body(), 'close'],
            'reset': ['reset'],
            'reset-head': [head[:len(head) // 2], .01, 'reset'],
            'reset-body': [head + half, .01, 'reset'],
            'mute': ['mute'],
            'mute-head': [head[:len(head) // 2], 'mute'],
            'mute-body': [head + half, 'mute'],
            'dies': [[head + half + rest + end], .005, 'reset'],
        }.get(word, [[head + half + rest + end]])

    def answer(self, word):
        status = {'fail': '500 Internal Server Error', 'missing': '404 Not Found'}.get(word, '200 OK')
        return status, BODY, b''

    def content(self, content):
        return content


class Http(Origin):
    async def request(self, reader):
        head = await reader.readuntil(b'\r\n\r\n')
        line, *lines = head.decode('latin1').split('\r\n')
        fields = dict(line.lower().split(': ', 1) for line in lines if line)
        word = line.split(' ')[1].split('?')[0].rsplit('/', 1)[1]

        async def body():
            if fields.get('transfer-encoding') == 'chunked':
                while size := int(await reader.readuntil(b'\r\n'), 16):
                    await reader.readexactly(size + 2)
                await reader.readuntil(b'\r\n')
            else:
                await reader.readexactly(int(fields.get('content-length', 0)))
            return 'close' in fields.get('connection', '')

        return ('tunnel' if 'upgrade' in fields else word), body

    def head(self, status, length):
        return f'HTTP/1.1 {status}\r\nContent-Length: {length}\r\nCache-Control: max-age=1\r\n\r\n'.encode()

    def bad_body(self):
        return b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nnone\r\n'

    def script(self, word):
        if word == 'tunnel':
            head = b'HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: any\r\n\r\n'
            return [head, random.choice(['mute', 'close', 'reset', .05]), BODY, random.choice(['mute', 'close'])]
        return super().script(word)


class Fastcgi(Origin):
    async def request(self, reader):
        params = b''
        while True:
            kind, content = await self.record(reader)
            if kind == 1:
                self.keeps = content[2] & 1
            elif kind == 4 and not content:
                break
            elif kind == 4:
                params += content

        async def body():
            while (await self.record(reader))[1]:
                pass
            return not self.keeps

        return params.split(b'WORD')[1].split(b'/')[0].decode(), body

    async def record(self, reader):
        _, kind, _, length, padding, _ = struct.unpack('>BBHHBB', await reader.readexactly(8))
        content = await reader.readexactly(length)
        await reader.readexactly(padding)
        return kind, content

    def wrapped(self, kind, content):
        return struct.pack('>BBHHBB', 1, kind, 1, len(content), 0, 0) + content

    def head(self, status, length):
        fields = f'Status: {status}\r\nContent-Length: {length}\r\nCache-Control: max-age=1\r\n\r\n'
        return self.wrapped(6, fields.encode())

    def content(self, content):
        return b''.join(self.wrapped(6, content[at:at + 60000]) for at in range(0, len(content), 60000))

    def answer(self, word):
        return *super().answer(word)[:2], self.wrapped(6, b'') + self.wrapped(3, bytes(8))

    def bad_body(self):
        return self.head('200 OK', 100) + b'\x09\x09' * 100


class Pages(Origin):
    """A memcached: it answers in order, and each question by its last part."""

    async def request(self, reader):
        self.key = (await reader.readuntil(b'\r\n')).split()[1].decode()
        word = self.key.rsplit('/', 1)[1]

        async def body():
            return False

        return 'ok' if word == 'early' else word, body

    def head(self, status, length):
        if status.startswith('404') or not length:
            return b'END\r\n'
        return f'VALUE {self.key} 0 {length}\r\n'.encode()

    def script(self, word):
        if word in ('missing', 'empty'):
            return [[b'END\r\n']]
        return [[b'SERVER_ERROR out of memory\r\n']] if word == 'fail' else super().script(word)

    def answer(self, word):
        return *super().answer(word)[:2], b'\r\nEND\r\n'

    def bad_body(self):
        return self.head('200', 4) + b'more than four\r\n'


async def slam(_, writer):
    random.choice([reset, lambda writer: writer.close()])(writer)


async def deaf(reader, writer):
    """Takes everything and says nothing, not even in a handshake."""
    try:
        while await reader.read(65536):
            pass
    except OSError:
        pass
    writer.close()


class Crowd:
    """A listener whose backlog is full: connecting to it takes until it is let go."""

    def __init__(self):
        self.listener = socket.socket()
        self.listener.bind(('127.0.0.1', 0))
        self.listener.listen(0)
        self.port, self.waiting = self.listener.getsockname()[1], []
        for _ in range(4):
            waiting = socket.socket()
            waiting.setblocking(False)
            waiting.connect_ex(('127.0.0.1', self.port))
            self.waiting.append(waiting)

    def leave(self):
        for waiting in self.waiting:
            waiting.close()
        self.listener.listen(1024)
        self.listener.setblocking(False)
        return self.listener


# --- clients ------------------------------------------------------------------------------------------

async def leave(writer):
    random.choice([reset, lambda writer: writer.close()])(writer)


def asked(path, method='GET', more=''):
    return f'{method} {path} HTTP/1.1\r\nHost: a\r\n{more}\r\n'.encode()


async def answer(reader):
    """Status and content of an answer; what is cut short raises."""
    head = await reader.readuntil(b'\r\n\r\n')
    status, fields = int(head.split()[1]), head.lower()
    if b'transfer-encoding: chunked' in fields:
        content = b''
        while size := int(await reader.readuntil(b'\r\n'), 16):
            content += (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
        return status, content
    if b'content-length: ' not in fields:
        return status, b'' if status in (204, 304) else await reader.read()
    return status, await reader.readexactly(int(fields.split(b'content-length: ')[1].split(b'\r')[0]))


async def patient(reader, writer, path):
    writer.write(asked(path, more='Connection: close\r\n'))
    await answer(reader)


async def in_the_head(reader, writer, path):
    writer.write(asked(path)[:random.randrange(1, 20)])
    await asyncio.sleep(random.random() / 100)


async def before_the_answer(reader, writer, path):
    writer.write(asked(path))
    await asyncio.sleep(random.choice([0, .001, .01, .1]))


async def after_its_half(reader, writer, path):
    writer.write(asked(path))
    writer.write_eof()
    await asyncio.sleep(random.random() / 50)


async def in_the_answer(reader, writer, path):
    writer.write(asked(path))
    await reader.read(random.choice([1, 100, 10000]))


async def in_the_body(reader, writer, path):
    chunked = random.random() < .5
    more = 'Transfer-Encoding: chunked\r\n' if chunked else f'Content-Length: {len(LONG)}\r\n'
    writer.write(asked(path, 'POST', more) + (b'2000\r\n' if chunked else b'') + LONG[:random.randrange(1, 8192)])
    await asyncio.sleep(random.choice([0, .001, .05]))


async def with_a_body(reader, writer, path):
    content = random.choice([b'a', BODY, LONG])
    writer.write(asked(path, 'POST', f'Content-Length: {len(content)}\r\n') + content)
    await answer(reader)


async def between_requests(reader, writer, path):
    for _ in range(random.randrange(1, 6)):
        writer.write(asked(path))
        await answer(reader)
        await asyncio.sleep(random.choice([0, 0, .02]))


async def in_a_pipeline(reader, writer, path):
    writer.write(asked(path) * 4)
    for _ in range(random.randrange(4)):
        await answer(reader)


async def in_a_tunnel(reader, writer, path):
    writer.write(asked(path, more='Connection: upgrade\r\nUpgrade: any\r\n'))
    await reader.readuntil(b'\r\n\r\n')
    writer.write(BODY)
    await asyncio.sleep(random.random() / 20)


MANNERS = [patient, patient, in_the_head, before_the_answer, before_the_answer, after_its_half, in_the_answer,
           in_the_body, with_a_body, between_requests, in_a_pipeline, in_a_tunnel]


async def visit(port, paths):
    """One client over HTTP/1."""
    reader, writer = await asyncio.open_connection('127.0.0.1', port, limit=1 << 22)
    try:
        async with asyncio.timeout(SECONDS):
            await random.choice(MANNERS)(reader, writer, paths())
    except (OSError, EOFError, ValueError, IndexError, asyncio.LimitOverrunError):
        pass
    finally:
        await leave(writer)


async def visit_h2(port, paths):
    """One client over HTTP/2: some streams are given up, and at the end the connection, or it is waited for."""
    connection = await h2wire.Connection.to(port)
    async with connection:
        for stream in range(1, 2 * random.randrange(1, 6), 2):
            is_post = random.random() < .3
            request = h2wire.request(paths(), 'POST' if is_post else 'GET')
            connection.send(h2wire.headers(stream, request, end=not is_post))
            if is_post:
                end = h2wire.END_STREAM if random.random() < .5 else 0
                connection.send(h2wire.frame(h2wire.DATA, end, stream, BODY))
            await asyncio.sleep(random.choice([0, 0, .01]))
            if random.random() < .4:
                connection.send(h2wire.frame(h2wire.RST_STREAM, 0, stream, (8).to_bytes(4)))
        if random.random() < .5:
            await connection.until(lambda: len(connection.ended) >= stream // 2, 1)
        await leave(connection.writer)


# --- the storm ----------------------------------------------------------------------------------------

GATEWAY = """
    location /{group}/ {{ {pass_} {limits} }}
    location = /{group}/hold {{ {pass_} }}
    location /{group}-live/ {{ {pass_} {limits} {kind}_request_buffering off; {kind}_buffering off; }}
    location /{group}-cached/ {{ {pass_} {limits} {kind}_cache z; {kind}_cache_key $uri; {kind}_cache_lock on;
        {kind}_cache_valid 200 404 1s; {kind}_cache_use_stale error timeout updating;
        {kind}_cache_background_update on; }}
    location /{group}-anyway/ {{ {pass_} {limits} {kind}_ignore_client_abort on; }}
"""


class Weather:
    """The origins, and the configuration of a server before them."""

    async def start(self, folder):
        authority(folder)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(folder / 'origin.example.pem', folder / 'origin.example.key')
        http = lambda count, most, **more: [Http(most) for _ in range(count)]
        self.origins = {'one': http(1, 3), 'least': http(2, 2), 'drawn': http(2, 2), 'hashed': http(2, 2),
                        'spare': http(1, 3), 'secret': http(1, 3), 'php': [Fastcgi(3)], 'pages': [Pages(3)]}
        for group, origins in self.origins.items():
            for origin in origins:
                await origin.start(tls if group == 'secret' else None)
        slammed, silent = [await asyncio.start_server(act, '127.0.0.1', 0) for act in (slam, deaf)]
        self.slam, self.deaf = (server.sockets[0].getsockname()[1] for server in (slammed, silent))
        self.others, self.crowd, self.dead = (slammed, silent), Crowd(), free_port()
        return self

    def conf(self, other=False):
        """`other`: the same peers in another order, and taken out when they fail."""
        slam, dead, deaf = (f'server 127.0.0.1:{port} ' for port in (self.slam, self.dead, self.deaf))
        blocks = {
            'one': ('', []), 'least': ('least_conn;', [slam, dead]), 'drawn': ('random two;', [slam, dead]),
            'hashed': ('hash $request_uri consistent;', [dead]), 'spare': ('', [dead, slam]),
            'secret': ('', [deaf + 'max_conns=2']), 'php': ('least_conn;', [dead]), 'pages': ('', []),
            'crowded': ('', [f'server 127.0.0.1:{self.crowd.port} max_conns=2']),
        }
        out = 'proxy_cache_path $dir/cache keys_zone=z:1m; map $uri $word { ~/(?<last>[^/]*)$ WORD$last/; } ' \
            'map $http_upgrade $hop { default upgrade; "" ""; }\n'
        places = ''
        for group, (method, more) in blocks.items():
            spare = 'backup' if group == 'spare' else ''
            servers = [f'server 127.0.0.1:{o.port} max_conns={o.most} {spare}' for o in self.origins.get(group, [])]
            fails = 'max_fails=2 fail_timeout=200ms' if other else 'max_fails=0'
            lines = [f'{server} {fails};' for server in servers + more]
            lines = ' '.join(reversed(lines) if other else lines)
            out += f'upstream {group} {{ {method} {lines} keepalive 4; keepalive_timeout 1s; }}\n'
            kind = {'php': 'fastcgi', 'pages': 'memcached'}.get(group, 'proxy')
            scheme = {'secret': 'https://', 'php': '', 'pages': ''}.get(group, 'http://')
            limits = ''.join(f'{kind}_{name}_timeout 300ms;' for name in ('read', 'send'))
            faults = 'invalid_response' if kind == 'memcached' else 'invalid_header http_500'
            pass_ = f'{kind}_pass {scheme}{group}; {kind}_connect_timeout 300ms;' \
                f'{kind}_next_upstream error timeout {faults};'
            if kind == 'proxy':
                pass_ += 'proxy_http_version 1.1; proxy_set_header Connection $hop; ' \
                    'proxy_set_header Upgrade $http_upgrade;'
            if kind == 'fastcgi':
                pass_ += 'fastcgi_keep_conn on; fastcgi_param LAST $word;'
            if kind == 'memcached':
                pass_ += 'set $memcached_key $uri;'
                places += f'location /{group}/ {{ {pass_} {limits} }} location = /{group}/hold {{ {pass_} }}'
            else:
                places += GATEWAY.format(group=group, kind=kind, pass_=pass_, limits=limits)
        return f'{out} server {{ listen 127.0.0.1:$port; http2 on; location = /status {{ stub_status; }} {places} }}'

    def paths(self):
        groups = [*self.origins, 'crowded']

        def path():
            group = random.choice(groups)
            form = random.choice(['', '', '-live', '-cached', '-cached', '-anyway']) if group != 'pages' else ''
            return f'/{group}{form}/{random.randrange(30)}/{random.choice(WORDS)}'
        return path


def reload(server, http):
    path = server.folder / 'nginx.conf'
    text = path.read_text()
    start = text.index('proxy_cache_path')
    http = http.replace('$port', str(server.port)).replace('$dir', str(server.folder))
    path.write_text(f'{text[:start]}{http}\n}}\n')
    os.kill(server.pid, signal.SIGHUP)


async def until(what, condition):
    try:
        async with asyncio.timeout(SECONDS):
            while (found := await condition()) is not True:
                await asyncio.sleep(.02)
    except TimeoutError:
        raise AssertionError(f'waited in vain for {what}: {found}') from None


async def get(port, path):
    reader, writer = await asyncio.open_connection('127.0.0.1', port, limit=1 << 22)
    try:
        async with asyncio.timeout(SECONDS):
            writer.write(asked(path, more='Connection: close\r\n'))
            return await answer(reader)
    finally:
        writer.close()


async def listens(server):
    async def connects():
        try:
            (await asyncio.open_connection('127.0.0.1', server.port))[1].close()
            return True
        except OSError as problem:
            return problem
    await until('the server', connects)


async def gauges(server):
    """Active, reading, writing, waiting, this question included."""
    words = (await get(server.port, '/status'))[1].decode().split()
    return tuple(int(words[at]) for at in (2, 11, 13, 15))


def descriptors(server):
    """Files and sockets that are open, each once: a worker that has just begun holds some twice. Long pages that are
    stored keep their files open, up to a bound."""
    found, folder = set(), f'/proc/{server.serving_pid}/fd'
    for number in os.listdir(folder):
        try:
            found.add(os.readlink(f'{folder}/{number}'))
        except OSError:
            pass
    stored = lambda name: name.startswith(f'{server.folder}/cache/') and not name.endswith('(deleted)')
    return {name for name in found if not name.startswith('anon_inode') and not stored(name)}


async def blow(server, weather):
    """Visitors, and reloads between them; how many came."""
    loop, count = asyncio.get_running_loop(), 0
    begun = loop.time()
    passed = lambda: (loop.time() - begun) / STORM if STORM else count / CLIENTS

    async def visitor():
        nonlocal count
        while passed() < 1:
            with contextlib.suppress(OSError):
                await (visit_h2 if random.random() < .25 else visit)(server.port, weather.paths())
            count += 1
    visitors = [asyncio.create_task(visitor()) for _ in range(24)]
    # The last part is one configuration's alone: what is counted wrong there is not mended by a reload.
    for turn in range(4):
        while passed() < (turn + 1) / 6:
            await asyncio.sleep(.01)
        reload(server, weather.conf(other=turn % 2 == 0))
    await asyncio.gather(*visitors)
    return count


async def capacity(server, group, origins):
    """As many requests as the peers may have are admitted at once, and none more: nothing is counted yet."""
    for origin in origins:
        origin.held = asyncio.Event()
    most = sum(origin.most for origin in origins)
    asked = [asyncio.create_task(get(server.port, f'/{group}/hold')) for _ in range(most + 3)]
    refused = lambda: [task for task in asked if task.done()]

    async def judged():
        held = [origin.count() for origin in origins]
        return held == [origin.most for origin in origins] and len(refused()) == 3 or (held, len(refused()))
    await until(f'{group} to be free', judged)
    equal([task.result()[0] for task in refused()], [502] * 3, f'{group}: beyond max_conns')
    for origin in origins:
        origin.held.set()
    statuses = sorted([(await task)[0] for task in asked])
    equal(statuses, [200] * most + [502] * 3, group)


async def storm(workers):
    random.seed(SEED)
    with Folder() as folder:
        weather = await Weather().start(folder)
        with Server(folder, weather.conf(), main=f'worker_processes {workers};', wait=False) as server:
            await listens(server)

            async def has_begun():
                return 'start worker threads' in server.log() or 'no worker threads'
            await until('the end of the start', has_begun)
            before = descriptors(server)
            count = await blow(server, weather)
            log = server.log()
            assert 'panic' not in log and '[alert]' not in log and '[emerg]' not in log, log[-3000:]

            async def calm():
                found = await gauges(server)
                return found == (1, 0, 1, 0) or found
            await until('all gauges to be zero', calm)
            for group, origins in weather.origins.items():
                for origin in origins:
                    if group != 'pages':
                        equal(origin.too_many, [], f'{group}: at most {origin.most}')
                    assert origin.seen, f'{group} was never asked'
            # Those to which no connection was possible are well again, and used at once.
            crowded = await Http(2).start(listener=weather.crowd.leave())
            for group, origins in [*weather.origins.items(), ('crowded', [crowded])]:
                await capacity(server, group, origins)
            for group in weather.origins:
                if group != 'pages':
                    for number in range(30):
                        equal((await get(server.port, f'/{group}-cached/{number}/ok'))[0], 200, f'{group} {number}')
            await until('all gauges to be zero', calm)
            reload(server, weather.conf())

            async def closed():
                found = descriptors(server)
                return found <= before or found - before
            await until('descriptors to be closed', closed)
            print(f'        {count} clients, SEED={SEED}')


async def status(program, folder, listen, more):
    """Active, reading, writing and waiting with connections in each state."""
    origin = await Http(3).start()
    origin.held = asyncio.Event()
    conf = f'server {{ listen 127.0.0.1:$port {listen}; {more} location = /status {{ stub_status; }} ' \
        f'location / {{ proxy_pass http://127.0.0.1:{origin.port}; }} }}'
    with Server(folder, conf, program, main='worker_processes 1;', wait=False) as server:
        await listens(server)
        h2 = lambda: h2wire.Connection.to(server.port)
        # One with three requests, one with none, one that was answered; each waits or is answered as a whole.
        async with await h2() as busy, await h2() as idle:
            for stream in (1, 3, 5):
                busy.send(h2wire.headers(stream, h2wire.request('/hold')))

            async def three():
                return origin.count() == 3 or origin.count()
            await until('three requests', three)
            idle.send(h2wire.headers(1, h2wire.request('/status')))
            assert await idle.until(lambda: 1 in idle.ended)

            async def asked():
                idle.send(h2wire.headers(asked.stream, h2wire.request('/status')))
                text = (await idle.answer(asked.stream)).decode().split()
                asked.stream += 2
                return tuple(int(text[at]) for at in (2, 11, 13, 15))
            asked.stream = 3
            other = await h2()
            async with other:
                other.send(h2wire.headers(1, h2wire.request('/status')))
                assert await other.until(lambda: 1 in other.ended)

                async def settled():
                    found = await asked()
                    return found == (3, 0, 4, 1) or found
                await until('three connections, one without a request', settled)

                async def freed():
                    found = await asked()
                    return found == (3, 0, 1, 2) or found
                origin.held.set()
                await until('the end of the requests', freed)


def test_streams_are_no_connections():
    for program, listen, more in (('/usr/sbin/nginx', 'http2', ''), (None, '', 'http2 on;')):
        with Folder() as folder:
            asyncio.run(status(program, folder, listen, more))


async def statuses(port, *paths):
    """What comes of requests all at once, each over its own connection: how many of each status."""
    found = [status for status, _ in await asyncio.gather(*(get(port, path) for path in paths))]
    return {status: found.count(status) for status in found}


async def limited(program):
    conf = '''
        limit_req_zone $server_name zone=wide:1m rate=1r/m; limit_req_zone $arg_who zone=narrow:1m rate=1r/m;
        limit_req_zone $arg_who zone=quick:1m rate=10r/s; limit_req_zone $uri zone=last:1m rate=1r/m;
        limit_conn_zone $server_name zone=all:1m; limit_conn_zone $arg_who zone=each:1m;
        server { listen 127.0.0.1:$port; server_name a; root $dir;
            location = /all { limit_req zone=wide burst=19 nodelay; try_files /nginx.conf =404; }
            location = /both { limit_req zone=wide burst=19 nodelay; limit_req zone=narrow burst=4 nodelay;
                try_files /nginx.conf =404; }
            location = /delayed { limit_req zone=quick burst=4 delay=2; try_files /nginx.conf =404; }
            location = /last { limit_req zone=last; limit_req zone=narrow burst=4 nodelay;
                try_files /nginx.conf =404; }
            location / { limit_conn all 4; limit_conn each 2; proxy_pass http://127.0.0.1:PORT; }
        }'''
    origin = await Http(4).start()
    origin.held = asyncio.Event()
    with Folder() as folder:
        conf = conf.replace('PORT', str(origin.port))
        with Server(folder, conf, program, main='worker_processes 2;', wait=False) as server:
            await listens(server)
            count = lambda times, path: statuses(server.port, *[path] * times)
            # Two workers admit together what one would; what a second limit refuses does not count for the first.
            equal(await count(40, '/both?who=a'), {200: 5, 503: 35})
            equal(await count(40, '/both?who=b'), {200: 5, 503: 35})
            equal(await count(40, '/all'), {200: 10, 503: 30})
            begun = asyncio.get_running_loop().time()
            admitted = (await count(20, '/delayed?who=c'))[200]
            assert 5 <= admitted <= 5 + 10 * (asyncio.get_running_loop().time() - begun), admitted
            # Nor what the first refuses for the second.
            equal(await count(20, '/last?who=d'), {200: 1, 503: 19})
            equal(await count(20, '/both?who=d'), {503: 20}, 'nothing is left of all')
            held = [asyncio.create_task(get(server.port, '/hold?who=a')) for _ in range(2)]

            async def under_way():
                return origin.count() == len(held) or origin.count()
            await until('two under way', under_way)
            equal(await count(20, '/hold?who=a'), {503: 20})
            held += [asyncio.create_task(get(server.port, '/hold?who=b')) for _ in range(2)]
            await until('four under way', under_way)
            equal(await count(20, '/ok?who=c'), {503: 20})
            origin.held.set()
            equal([(await task)[0] for task in held], [200] * 4)

            async def free():
                return (await get(server.port, '/ok?who=a'))[0] == 200
            await until('free places', free)


def test_limits_count_what_they_admit_and_nothing_else():
    for program in ('/usr/sbin/nginx', None):
        asyncio.run(limited(program))


async def reloaded(zone, program=None):
    """What is under way counts in the next configurations, however they write the peer."""
    origin = await Http(3).start()
    origin.held = asyncio.Event()
    conf = lambda block: 'proxy_cache_path $dir/cache keys_zone=z:1m; map $uri $none { default ""; }\n' \
        f'upstream u {{ {zone} {block} }} server {{ listen 127.0.0.1:$port; location / {{ proxy_pass http://u; }} }}'
    peer = lambda most, host='127.0.0.1': f'server {host}:{origin.port} max_conns={most};'
    dead = f'server 127.0.0.1:{free_port()};'
    with Folder() as folder, Server(folder, conf(peer(2)), program, main='worker_processes 2;', wait=False) as server:
        await listens(server)

        async def again(block):
            # nginx does not say when it is done. Before that the file is not to be written again.
            said = 'reconfiguring' if program else 'reconfigured'
            before = server.log().count(said)
            reload(server, conf(block))

            async def done():
                return server.log().count(said) > before or server.log()[-300:]
            await until('the reload', done)
        held = [asyncio.create_task(get(server.port, '/hold')) for _ in range(2)]

        async def under_way():
            return origin.count() == len(held) or origin.count()
        await until('two under way', under_way)
        for block in (peer(2), 'least_conn;' + dead + peer(2), peer(1), peer(2, 'localhost') if not zone else peer(2)):
            await again(block)

            async def refuses():
                status = await get(server.port, '/ok')
                return status[0] == 502 or status
            await until(f'{block} to be full', refuses)
            equal(await statuses(server.port, *['/ok'] * 10), {502: 10}, block)
        await again(peer(3))

        async def admits():
            return (await get(server.port, '/ok'))[0] == 200
        await until('a higher bound', admits)
        origin.held.set()
        equal([(await task)[0] for task in held], [200] * 2)
        equal(origin.too_many, [])


def test_max_conns_holds_over_reloads():
    for zone in ('', 'zone u 64k;'):
        asyncio.run(reloaded(zone))


async def kept():
    """Connections of a group are bounded whatever they are for, and so are the requests of each."""
    origin = await Http(9).start()
    conf = f'upstream u {{ server 127.0.0.1:{origin.port}; keepalive 2; keepalive_requests 3; }} ' \
        'server { listen 127.0.0.1:$port; proxy_http_version 1.1; proxy_set_header Connection ""; ' \
        'location / { proxy_pass http://u; proxy_bind 127.0.0.$arg_from; } }'
    with Folder() as folder, Server(folder, conf, main='worker_processes 1;', wait=False) as server:
        await listens(server)
        for _ in range(3):
            for last in range(1, 9):
                equal((await get(server.port, f'/ok?from={last}'))[0], 200)

                async def bounded():
                    return len(origin.connections) <= 2 or len(origin.connections)
                await until('connections above the bound to be closed', bounded)
        for _ in range(20):
            equal((await get(server.port, '/ok?from=1'))[0], 200)
        assert max(origin.served) <= 4, origin.served
        equal(origin.seen, 44)


def test_kept_connections_are_bounded():
    asyncio.run(kept())


class Cutter:
    """Before a memcached: ends each connection somewhere behind its first answers."""

    def __init__(self, port):
        self.far, self.port, self.count = port, free_port(), 0

    async def start(self):
        self.server = await asyncio.start_server(self.connected, '127.0.0.1', self.port)
        return self

    async def connected(self, reader, writer):
        self.count += 1
        far_reader, far_writer = await asyncio.open_connection('127.0.0.1', self.far)

        async def forward():
            while content := await reader.read(65536):
                far_writer.write(content)
        forwarding = asyncio.create_task(forward())
        try:
            for _ in range(random.randrange(1, 9)):
                writer.write(await far_reader.readuntil(b'END\r\n'))
            writer.write((await far_reader.readuntil(b'END\r\n'))[:random.choice([0, 5, 40])])
            await writer.drain()
        except (OSError, EOFError, asyncio.CancelledError):
            pass
        forwarding.cancel()
        far_writer.close()
        writer.close()


async def cut(folder, memcached):
    for number in range(20):
        memcached.ask(f'set /{number} 0 0 {len(BODY)}\r\n{BODY.decode()}')
    cutter = await Cutter(memcached.port).start()
    conf = 'server { listen 127.0.0.1:$port; location / { set $memcached_key $uri; ' \
        f'memcached_pass 127.0.0.1:{cutter.port}; }} }}'
    with Server(folder, conf, main='worker_processes 2;', wait=False) as server:
        await listens(server)
        for _ in range(20):
            found = await asyncio.gather(*(get(server.port, f'/{number}') for number in range(20)))
            wrong = [status for status, content in found if (status, content) != (200, BODY)]
            equal(wrong, [], f'after {cutter.count} connections: {server.log()[-600:]}')
        assert cutter.count > 20, cutter.count


def test_questions_outlive_connections_that_memcached_ends():
    random.seed(SEED)
    with Folder() as folder, Memcached(folder) as memcached:
        asyncio.run(cut(folder, memcached))


def frames_of(client, wanted):
    """Frames as they arrive, until one is as wanted: `wanted(kind, flags, stream)`."""
    def exactly(count):
        out = b''
        while len(out) < count:
            piece = client.recv(count - len(out))
            assert piece, f'the connection ended after {out!r}'
            out += piece
        return out
    while True:
        head = exactly(9)
        content = exactly(int.from_bytes(head[:3]))
        yield head[3], content
        if wanted(head[3], head[4], int.from_bytes(head[5:])):
            return


def test_a_connection_that_was_told_to_go_loses_no_end_of_an_answer():
    size = 60000
    places = f'location /hold {{ proxy_pass http://127.0.0.1:ORIGIN; }}'
    with Folder() as folder, socket.create_server(('127.0.0.1', 0)) as origin, contextlib.ExitStack() as stack:
        places = places.replace('ORIGIN', str(origin.getsockname()[1]))
        conf = f'lingering_timeout 60s; server {{ listen 127.0.0.1:$port; http2 on; {places} }}'
        server = stack.enter_context(Server(folder, conf))
        client = stack.enter_context(socket.socket())
        # A small window: most of the answer is in the server's system when it has nothing more to send.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(SECONDS)
        client.connect(('127.0.0.1', server.port))
        room = h2wire.frame(h2wire.WINDOW_UPDATE, content=(1 << 24).to_bytes(4))
        client.sendall(h2wire.PREFACE + h2wire.frame(h2wire.SETTINGS) + room
                       + h2wire.headers(1, h2wire.request('/hold')))
        upstream = stack.enter_context(origin.accept()[0])
        os.kill(server.pid, signal.SIGHUP)
        told = lambda kind, *_: kind == h2wire.GOAWAY
        *_, (_, content) = frames_of(client, told)
        equal(content[:8], (2**31 - 1).to_bytes(4) + bytes(4), 'any stream that crosses it is answered')
        *_, (_, content) = frames_of(client, lambda kind, *_: kind == h2wire.PING)
        client.sendall(h2wire.frame(h2wire.PING, h2wire.ACK, content=content))
        *_, (_, content) = frames_of(client, told)
        equal(content[:8], (1).to_bytes(4) + bytes(4), 'the last stream that is answered, and no error')
        upstream.sendall(f'HTTP/1.0 200 OK\r\nContent-Length: {size}\r\n\r\n'.encode() + b'y' * size)
        upstream.close()
        # What a client sends for a while that has not read all: a closed socket would answer with a reset.
        for _ in range(40):
            time.sleep(0.05)
            client.sendall(room)
        is_end = lambda kind, flags, stream: stream == 1 and kind == h2wire.DATA and flags & h2wire.END_STREAM
        found = sum(len(content) for kind, content in frames_of(client, is_end) if kind == h2wire.DATA)
        equal(found, size, 'bytes of the answer')


def test_a_storm_before_one_worker():
    asyncio.run(storm(1))


def test_a_storm_before_two_workers():
    asyncio.run(storm(2))


def status_of(port, path, method='GET', body=None, **fields):
    connection = http.client.HTTPConnection('127.0.0.1', port, timeout=SECONDS)
    try:
        connection.request(method, path, body, fields)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize('workers', (1, 2))
def test_a_location_that_leads_to_itself_takes_nobody_along(workers):
    """Each of its requests holds a connection for the next one, until none is left."""
    with Folder() as folder, Server(folder, '''server { listen 127.0.0.1:$port;
            location /loop { proxy_pass http://127.0.0.1:$port; } location /ok { return 200; } }''',
            main=f'worker_processes {workers};', connections=64) as server:
        # Not 504: nothing has waited until a time was up.
        equal(status_of(server.port, '/loop'), 502)
        equal(status_of(server.port, '/ok'), 200)
        assert 'worker_connections are not enough while connecting to upstream' in server.log(), server.log()


def test_clients_that_ask_for_nothing_keep_nobody_out():
    """Their places are taken by those who do; purge, console and the command line have some of their own."""
    token, own, held = 'a-secret-of-sixteen-bytes-or-more', free_port(), free_port()
    with Folder() as folder, Server(folder, f'''proxy_cache_path $dir/pages keys_zone=z:1m;
            server {{ listen 127.0.0.1:$port backlog=4096; location / {{ return 200; }} location /held {{ proxy_pass http://127.0.0.1:{held}; }} }}
            server {{ listen 127.0.0.1:{own}; location = /.purge {{ cache_purge_api token={token}; }} location /console/ {{ console; }} }}''', main='worker_processes 2;', connections=64) as server, \
            socket.create_server(('127.0.0.1', held), backlog=4096):
        # First all places are held by requests that nobody answers.
        clients = []
        for _ in range(200):
            clients.append(socket.create_connection(('127.0.0.1', server.port)))
            clients[-1].sendall(b'GET /held HTTP/1.1\r\nHost: a\r\n\r\n')
        peers.until('the line', lambda: 'worker_connections are not enough: 0 are idle' in server.log())
        equal(status_of(own, '/.purge', 'POST', '{"tags":["a"]}', Authorization=f'Bearer {token}', Host='a'), 200)
        equal(status_of(own, '/console/figures'), 200)
        for client in clients:
            client.close()
        # Then by those who say nothing, or not all of it.
        clients = [socket.create_connection(('127.0.0.1', server.port)) for _ in range(600)]
        for client in clients[::2]:
            client.sendall(b'GET / HT')
        equal(status_of(server.port, '/'), 200)
        equal(status_of(own, '/console/figures'), 200)
        for client in clients:
            client.close()

