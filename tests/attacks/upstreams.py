"""Upstreams of HTTP/2 that break the rules, flood, or send what another reader could understand differently.

Each attack is made through `proxy_pass`, buffered and not, and `grpc_pass`, on a connection that served a request before and on a
new one. The client gets 502, or an answer that is visibly not whole; the log says why in one line; memory stays within bounds; and
the next request gets its own answer.
"""
import asyncio
from peers import Folder, Server
from .h2wire import (ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PADDED, PING, PREFACE, PRIORITY,
                     PUSH_PROMISE, RST_STREAM, SETTINGS, WINDOW_UPDATE, frame, literals, number)
from .origins import Listening
from .wire import Broken, Client, head

MODES = ('kept', 'live', 'grpc')
# What a server may hold of an upstream, beyond what it needs anyway; a flood sends many times more.
MEMORY = 32 << 20
FLOOD = 64 << 20

STATUS = b'\x88'


def answer(stream, content=b'', fields=(), end=True):
    """A whole answer, as it should be."""
    block = STATUS + literals(fields)
    return frame(HEADERS, END_HEADERS, stream, block) + frame(DATA, END_STREAM if end else 0, stream, content)


class Origin(Listening):
    """Raw frames: `attack(stream)` gives bytes, or an endless generator of them; without one, answers that count up."""

    def __init__(self, window=65535, opens=True):
        super().__init__()
        self.attack, self.count, self.window, self.opens, self.pieces = None, 0, window, opens, 0

    async def serve(self, reader, writer, connection):
        assert await reader.readexactly(len(PREFACE)) == PREFACE
        writer.write(settings((4, self.window)))
        while True:
            top = await reader.readexactly(9)
            content = await reader.readexactly(int.from_bytes(top[:3]))
            kind, flags, stream = top[3], top[4], int.from_bytes(top[5:])
            self.pieces += kind == DATA
            if kind == DATA and content and self.opens:
                for opened in (0, stream):
                    writer.write(frame(WINDOW_UPDATE, 0, opened, len(content).to_bytes(4)))
            if kind in (HEADERS, DATA) and flags & END_STREAM:
                await self.answered(writer, stream)

    async def answered(self, writer, stream):
        if self.attack is None:
            self.count += 1
            writer.write(answer(stream, b'own %d' % self.count))
            return
        given = self.attack(stream)
        if isinstance(given, bytes):
            writer.write(given)
            return
        sent = 0
        for piece in given:
            writer.write(piece)
            sent += len(piece)
            await writer.drain()
            if sent > FLOOD:
                # The server took it all: the test looks at its memory, and at what the client got.
                return


def begun(stream, *fields, end=False):
    return frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), stream, STATUS + literals(fields))


def endless(piece, first=b''):
    def pieces():
        yield first
        many = piece * max(1, 65536 // len(piece))
        while True:
            yield many
    return pieces()


def bomb(stream):
    """One large field in the dynamic table, and then the same again and again: a byte each."""
    large = b'\x40' + number(1, 7) + b'x' + number(3000, 7) + b'y' * 3000
    return frame(HEADERS, END_HEADERS, stream, STATUS + large + b'\xbe' * 1000)


def settings(*pairs):
    return frame(SETTINGS, content=b''.join(name.to_bytes(2) + value.to_bytes(4) for name, value in pairs))


# Name, frames for a stream, and a part of the line in the log.
BEFORE = [
    ('data-first', lambda s: frame(DATA, END_STREAM, s, b'x'), 'unexpected http2 frame: 0'),
    ('continuation-first', lambda s: frame(CONTINUATION, END_HEADERS, s, STATUS), 'unexpected http2 frame: 9'),
    ('another-stream', lambda s: frame(HEADERS, END_HEADERS | END_STREAM, s + 2, STATUS), 'unknown stream'),
    ('even-stream', lambda s: frame(HEADERS, END_HEADERS | END_STREAM, 2, STATUS), 'unknown stream'),
    ('headers-of-the-connection', lambda s: frame(HEADERS, END_HEADERS, 0, STATUS), 'without a stream'),
    ('push', lambda s: frame(PUSH_PROMISE, END_HEADERS, s, (2).to_bytes(4) + STATUS), 'PUSH_PROMISE'),
    ('long-frame', lambda s: (1 << 20).to_bytes(3) + bytes([DATA, 0]) + s.to_bytes(4), 'too large http2 frame'),
    ('http-1', lambda s: b'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok', 'too large http2 frame'),
    ('no-status', lambda s: frame(HEADERS, END_HEADERS | END_STREAM, s, literals([('a', 'b')])), 'no :status'),
    ('two-statuses', lambda s: frame(HEADERS, END_HEADERS, s, STATUS + STATUS), 'duplicate :status'),
    ('late-status', lambda s: frame(HEADERS, END_HEADERS, s, literals([('a', 'b')]) + STATUS), 'invalid header'),
    ('status-of-letters', lambda s: frame(HEADERS, END_HEADERS, s, literals([(':status', 'abc')])), 'invalid :status'),
    ('switching', lambda s: frame(HEADERS, END_HEADERS, s, literals([(':status', '101')])), 'unexpected :status'),
    ('field-with-line-end', lambda s: begun(s, ('a', 'b\r\nset-cookie: c=d')), 'invalid header'),
    ('name-with-line-end', lambda s: begun(s, ('a\r\nx', 'b')), 'invalid header'),
    ('name-in-capitals', lambda s: begun(s, ('Set-Cookie', 'b')), 'invalid header'),
    ('empty-name', lambda s: begun(s, ('', 'b')), 'invalid header'),
    ('transfer-encoding', lambda s: begun(s, ('transfer-encoding', 'chunked')), 'invalid header'),
    ('two-lengths', lambda s: begun(s, ('content-length', '1'), ('content-length', '2')), 'duplicate header line'),
    ('signed-length', lambda s: begun(s, ('content-length', '+1')), 'invalid "Content-Length"'),
    ('no-huffman', lambda s: frame(HEADERS, END_HEADERS, s, STATUS + b'\x00\x81\xff\x01b'), 'invalid http2 headers'),
    ('no-index', lambda s: frame(HEADERS, END_HEADERS, s, b'\xfe'), 'http2 headers'),
    ('short-block', lambda s: frame(HEADERS, END_HEADERS, s, STATUS + b'\x00\x05a'), 'end too early'),
    ('bomb', bomb, 'too big header'),
    ('large-field', lambda s: begun(s, ('x', 'y' * 15000)), 'too big header'),
    ('large-window', lambda s: frame(WINDOW_UPDATE, 0, 0, (0x7fffffff).to_bytes(4)), 'too large window update'),
    ('no-window', lambda s: frame(WINDOW_UPDATE, 0, 0, bytes(4)), 'without room'),
    ('large-initial-window', lambda s: settings((4, 1 << 31)), 'INITIAL_WINDOW_SIZE'),
    ('small-frames', lambda s: settings((5, 1)), 'MAX_FRAME_SIZE'),
    ('short-settings', lambda s: frame(SETTINGS, content=b'abc'), 'incorrect length'),
    ('reset', lambda s: frame(RST_STREAM, 0, s, (2).to_bytes(4)), 'rejected request with error 2'),
    ('pings', lambda s: endless(frame(PING, content=bytes(8))), 'too many ping'),
    ('settings', lambda s: endless(settings((4, 65535))), 'too many settings'),
    ('acknowledgements', lambda s: endless(frame(SETTINGS, ACK)), 'too many other'),
    ('unknown-frames', lambda s: endless(frame(99, 255, 0, bytes(100))), 'too many other'),
    ('priorities', lambda s: endless(frame(PRIORITY, 0, s, bytes(5))), 'too many other'),
    ('windows', lambda s: endless(frame(WINDOW_UPDATE, 0, 0, (1).to_bytes(4))), 'too many window update'),
    ('late-windows', lambda s: endless(frame(WINDOW_UPDATE, 0, max(s - 2, 0), (1).to_bytes(4))), 'too many'),
    ('continuations', lambda s: endless(frame(CONTINUATION, 0, s, b''), frame(HEADERS, 0, s, STATUS)), 'too many continuation'),
    ('endless-head', lambda s: endless(frame(CONTINUATION, 0, s, literals([('a', 'b' * 90)])), frame(HEADERS, 0, s, STATUS)),
     'too big header'),
    ('interim', lambda s: endless(frame(HEADERS, END_HEADERS, s, literals([(':status', '100')]))), 'too many interim'),
]
WITHIN = [
    ('reset-within', lambda s: begun(s) + frame(DATA, 0, s, b'part') + frame(RST_STREAM, 0, s, (2).to_bytes(4)), 'rejected request'),
    ('no-error-within', lambda s: begun(s) + frame(DATA, 0, s, b'part') + frame(RST_STREAM, 0, s, bytes(4)), 'rejected request'),
    ('short', lambda s: begun(s, ('content-length', '9')) + frame(DATA, END_STREAM, s, b'part'), 'prematurely closed stream'),
    ('long', lambda s: begun(s, ('content-length', '3')) + frame(DATA, END_STREAM, s, b'parts'), 'larger than indicated'),
    ('padding', lambda s: begun(s) + frame(DATA, 0, s, b'part') + frame(DATA, PADDED, s, b'\xffab'), 'too long padding'),
    ('second-head', lambda s: begun(s) + frame(DATA, 0, s, b'part') + begun(s), 'trailer without end stream'),
    ('status-behind', lambda s: begun(s) + frame(DATA, 0, s, b'part') + begun(s, end=True), 'trailer'),
    ('data-of-another', lambda s: begun(s) + frame(DATA, 0, s, b'part') + frame(DATA, END_STREAM, s + 2, b'x'), 'unknown stream'),
    ('empty-data', lambda s: endless(frame(DATA, 0, s, b''), begun(s) + frame(DATA, 0, s, b'part')), 'too many empty data'),
    ('padded-data', lambda s: endless(frame(DATA, PADDED, s, b'\x64' + bytes(100)), begun(s) + frame(DATA, 0, s, b'part')),
     'too many empty data'),
    ('pings-within', lambda s: endless(frame(PING, content=bytes(8)), begun(s) + frame(DATA, 0, s, b'part')), 'too many ping'),
    ('large-trailers', lambda s: begun(s) + frame(DATA, 0, s, b'part')
     + frame(HEADERS, END_HEADERS | END_STREAM, s, literals([('x', 'y' * 15000)])), 'too big trailers'),
]
# What is odd and allowed: the answer, and whether the connection serves another request.
ALLOWED = [
    ('late-reset', lambda s: answer(s, b'good') + frame(RST_STREAM, 0, s, bytes(4))),
    ('late-window', lambda s: answer(s, b'good') + frame(WINDOW_UPDATE, 0, s, (9).to_bytes(4))),
    ('late-nonsense', lambda s: answer(s, b'good') + frame(DATA, 0, s, b'more')),
    ('late-head', lambda s: answer(s, b'good') + frame(HEADERS, END_HEADERS | END_STREAM, s + 2, STATUS)),
    ('farewell', lambda s: answer(s, b'good') + frame(GOAWAY, content=s.to_bytes(4) + bytes(4))),
    ('early-farewell', lambda s: frame(GOAWAY, content=s.to_bytes(4) + bytes(4)) + answer(s, b'good')),
    ('unknown', lambda s: frame(50, 0, s, b'x') + answer(s, b'good')),
    ('small-window', lambda s: settings((4, 0)) + answer(s, b'good')),
    ('padded', lambda s: begun(s) + frame(DATA, PADDED | END_STREAM, s, b'\x03good' + bytes(3))),
    ('half-a-frame-behind', lambda s: answer(s, b'good') + frame(PING, content=bytes(8))[:11]),
]

# The peer did nothing for the request.
REFUSED = [
    ('goaway', lambda s: frame(GOAWAY, content=(s - 2).to_bytes(4) + bytes(4))),
    ('refused', lambda s: frame(RST_STREAM, 0, s, (7).to_bytes(4))),
]


class Attack:
    def __init__(self, tried, origin, server):
        self.tried, self.origin, self.server = tried, origin, server

    async def ask(self, mode, content=b''):
        """What a client gets: status, content, and whether the answer came to its end."""
        client = await Client.to(self.server.port)
        fields = {'Content-Length': str(len(content))} if content else {}
        client.send(head(f'/{mode}/x', 'POST' if content else 'GET', fields=fields) + content)
        try:
            got = await client.answer()
            return (got.status, got.body, True) if got else (0, b'', False)
        except (Broken, ConnectionError, TimeoutError, asyncio.IncompleteReadError) as problem:
            return 0, str(problem).encode(), False
        finally:
            client.close()

    async def own(self, case, mode):
        """A request that is no attack."""
        self.origin.attack = None
        got = await self.ask(mode)
        wanted = 200, b'own %d' % self.origin.count, True
        self.tried.check(case, got == wanted, f'the next client got {got}, not {wanted}')

    async def one(self, mode, name, frames, judge, text=None):
        for is_kept in (True, False):
            case = f'{name}:{mode}:{"kept" if is_kept else "new"}'
            if not self.tried.wants(case):
                continue
            group = mode if is_kept else f'{mode}-new'
            await self.own(case, group)
            self.origin.attack, known = frames, len(self.server.log())
            self.tried.check(case, judge(got := await self.ask(group)), f'the client got {got}')
            lines = [line for line in self.server.log()[known:].splitlines() if '[error]' in line]
            if text:
                is_said = len(lines) == 1 and text in lines[0] and 'while reading' in lines[0]
                self.tried.check(case, is_said, f'the log says {lines} and not {text!r}')
            else:
                self.tried.check(case, not lines, f'the log says {lines}')
            await self.own(case, group)

    async def refused(self, mode, name, refusal):
        """A kept connection that ends as a request comes: the request goes over a new one, with its content."""
        for content in (b'', b'x' * 5, b'x' * 300_000):
            case = f'{name}:{mode}:{len(content)}'
            if not self.tried.wants(case):
                continue
            await self.own(case, mode)
            given, known = [refusal], len(self.server.log())
            self.origin.attack = lambda stream: (given.pop() if given else answer)(stream)
            got = await self.ask(mode, content)
            # Content that is sent on while it comes cannot be sent again.
            is_lost = content[5:] and mode != 'kept'
            wanted = (502, True) if is_lost else (200, True)
            self.tried.check(case, (got[0], got[2]) == wanted, f'the client got {got}')
            lines = [line for line in self.server.log()[known:].splitlines() if '[error]' in line]
            self.tried.check(case, len(lines) == (1 if is_lost else 0), f'the log says {lines}')
            await self.own(case, mode)

    async def stuck(self, mode, narrow, closed):
        """Windows of a byte, and none: content goes as it is let, or not at all."""
        case = f'narrow:{mode}'
        if self.tried.wants(case):
            # The first request does not know of it yet.
            for _ in range(3):
                got = await self.ask(f'{mode}-narrow', b'x' * 50)
                self.tried.check(case, got == (200, b'own %d' % narrow.count, True), f'the client got {got}')
            self.tried.check(case, narrow.pieces >= 50, f'the content came in {narrow.pieces} frames')
        case, known = f'closed:{mode}', len(self.server.log())
        if self.tried.wants(case):
            # More than every window is before anything is said of it.
            got = await self.ask(f'{mode}-closed', b'x' * 70_000)
            self.tried.check(case, (got[0], got[2]) == (504, True), f'the client got {got}')
            log = self.server.log()[known:]
            self.tried.check(case, 'timed out (110: Connection timed out) while sending request' in log, log)

    async def all(self):
        for mode in MODES:
            for name, frames, text in BEFORE:
                await self.one(mode, name, frames, lambda got: (got[0], got[2]) == (502, True), text)
            for name, frames, text in WITHIN:
                # Nothing of it has to be sent; what is must not look whole.
                await self.one(mode, name, frames, lambda got: not got[2] or got[0] == 502, text)
            for name, frames in ALLOWED:
                await self.one(mode, name, frames, lambda got: got == (200, b'good', True))
            for name, frames in REFUSED:
                await self.refused(mode, name, frames)


def configuration(port, narrow, closed):
    groups = ''.join(f'upstream {mode} {{ server 127.0.0.1:{port} max_fails=0; keepalive 1; }}\n' for mode in MODES)
    groups += f'upstream new {{ server 127.0.0.1:{port} max_fails=0; keepalive 0; }}\n'
    places = ''.join(f'''
        location /kept{end}/ {{ proxy_pass http://{kept or "kept"}; }}
        location /live{end}/ {{ proxy_pass http://{kept or "live"}; proxy_buffering off; proxy_request_buffering off; }}
        location /grpc{end}/ {{ grpc_pass {kept or "grpc"}; }}''' for end, kept in (('', ''), ('-new', 'new')))
    places += ''.join(f'''
        location /kept-{name}/ {{ proxy_pass http://{name}; proxy_send_timeout 500ms; }}
        location /live-{name}/ {{ proxy_pass http://{name}; proxy_send_timeout 500ms; proxy_request_buffering off; }}
        location /grpc-{name}/ {{ grpc_pass {name}; grpc_send_timeout 500ms; }}''' for name in ('narrow', 'closed'))
    groups += f'''upstream narrow {{ server 127.0.0.1:{narrow}; keepalive 1; }}
        upstream closed {{ server 127.0.0.1:{closed}; keepalive 1; }}'''
    return f'''{groups}
        server {{ listen 127.0.0.1:$port; proxy_http_version 2; proxy_buffer_size 8k; grpc_buffer_size 8k;
          proxy_read_timeout 20s; grpc_read_timeout 20s; {places} }}'''


async def run(tried):
    with Folder() as folder:
        async with Origin() as origin, Origin(1) as narrow, Origin(0, opens=False) as closed:
            # One worker: the connection that is kept is the next request's.
            with Server(folder, configuration(origin.port, narrow.port, closed.port), main='worker_processes 1;') as server:
                attack = Attack(tried, origin, server)
                await attack.own('the first', 'kept')
                before = server.allocated_bytes()
                await attack.all()
                for mode in MODES:
                    await attack.stuck(mode, narrow, closed)
                more = server.allocated_bytes() - before
                tried.check('memory', more < MEMORY, f'grew by {more:,} bytes')
                tried.alive(server)
