"""Upstreams that note all they see, and read it as strictly as the RFCs say: HTTP/1.1 and FastCGI."""
import asyncio, dataclasses, inspect, re
from peers import free_port


@dataclasses.dataclass
class Request:
    """A request as an upstream saw it; of FastCGI the parameters are the fields."""
    method: str
    target: str
    fields: list
    body: bytes = b''
    connection: int = 0
    writer: object = None

    def field(self, name):
        values = [value for key, value in self.fields if key.lower() == name.lower()]
        return ', '.join(values) if values else None


class Closing(bytes):
    """An answer behind which the upstream closes."""


class Unreadable(Exception):
    """What no proxy may send to its upstream."""


def answer(body=b'', status='200 OK', fields=(), length=True):
    """An answer of HTTP/1.1."""
    body = body if isinstance(body, bytes) else body.encode('latin1')
    fields = list(dict(fields).items() if isinstance(fields, dict) else fields)
    fields += [('Content-Length', str(len(body)))] if length else []
    lines = [f'HTTP/1.1 {status}'] + [f'{name}: {value}' for name, value in fields]
    return '\r\n'.join(lines).encode('latin1') + b'\r\n\r\n' + body


def echo(request):
    """Says which request this answers."""
    return f'{request.method} {request.target} {len(request.body)}\n'.encode('latin1') + request.body


class Listening:
    """What takes connections on a port of its own, each of which `serve` serves to its end."""

    def __init__(self):
        self.port, self.broken, self.connections, self.tasks = free_port(), [], 0, set()

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.connected, '127.0.0.1', self.port, limit=1 << 22,
                                                 backlog=1024)
        return self

    async def __aexit__(self, *_):
        self.server.close()
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def connected(self, reader, writer):
        self.tasks.add(asyncio.current_task())
        self.connections += 1
        try:
            await self.serve(reader, writer, self.connections)
        except Unreadable as problem:
            self.broken.append(str(problem))
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            self.tasks.discard(asyncio.current_task())


class Origin(Listening):
    """Base of both: `respond(request)` gives bytes, or `None` to close; it may be a coroutine function."""

    def __init__(self, respond=None):
        super().__init__()
        self.respond, self.seen = respond or (lambda request: answer(echo(request))), []

    async def answered(self, request, writer):
        self.seen.append(request)
        request.writer = writer
        given = self.respond(request)
        return await given if inspect.isawaitable(given) else given

    def of(self, part):
        """The requests whose targets contain `part`."""
        return [request for request in self.seen if part in request.target]


class HttpOrigin(Origin):
    """With `early` it answers before it reads the content, as servers do that discard it."""

    def __init__(self, respond=None, early=False):
        super().__init__(respond)
        self.early = early

    async def serve(self, reader, writer, connection):
        while True:
            try:
                head = await reader.readuntil(b'\r\n\r\n')
            except asyncio.IncompleteReadError as end:
                if end.partial:
                    raise Unreadable(f'no head: {end.partial[:80]!r}') from None
                return
            request = self.read_head(head[:-4], connection)
            given = await self.answered(request, writer) if self.early else None
            if given is not None:
                writer.write(given)
            if request.field('transfer-encoding'):
                request.body = await self.chunks(reader)
            elif request.field('content-length'):
                request.body = await reader.readexactly(int(request.field('content-length')))
            if not self.early:
                given = await self.answered(request, writer)
            if given is None:
                return
            if not self.early:
                writer.write(given)
                await writer.drain()
            if (request.field('connection') or '').lower() == 'close' or isinstance(given, Closing):
                return

    def read_head(self, head, connection):
        line, *lines = head.split(b'\r\n')
        found = re.fullmatch(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([^\0-\x20\x7f]+) HTTP/1\.[01]", line)
        if not found:
            raise Unreadable(f'request line {line[:100]!r}')
        fields = []
        for text in lines:
            field = re.fullmatch(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\0\r\n]*?)[ \t]*", text)
            if not field:
                raise Unreadable(f'field line {text[:100]!r}')
            fields.append((field[1].decode().lower(), field[2].decode('latin1')))
        request = Request(found[1].decode(), found[2].decode('latin1'), fields, b'', connection)
        names = [name for name, _ in fields]
        for name in ('content-length', 'transfer-encoding', 'host'):
            if names.count(name) > 1:
                raise Unreadable(f'{name} twice')
        if 'content-length' in names and 'transfer-encoding' in names:
            raise Unreadable('length and transfer coding')
        if not re.fullmatch(r'\d+|', request.field('content-length') or ''):
            raise Unreadable(f'length {request.field("content-length")!r}')
        if request.field('transfer-encoding') not in (None, 'chunked'):
            raise Unreadable(f'transfer coding {request.field("transfer-encoding")!r}')
        return request

    @staticmethod
    async def chunks(reader):
        body = b''
        while True:
            size = await reader.readuntil(b'\r\n')
            if not re.fullmatch(rb'[0-9a-fA-F]{1,16}\r\n', size):
                raise Unreadable(f'chunk size {size[:40]!r}')
            piece = await reader.readexactly(int(size, 16) + 2)
            if piece[-2:] != b'\r\n':
                raise Unreadable(f'end of chunk {piece[-2:]!r}')
            if piece == b'\r\n':
                return body
            body += piece[:-2]


# FastCGI 1.0, section 8: types of records.
BEGIN, ABORT, END, PARAMS, STDIN, STDOUT, STDERR, DATA, VALUES, VALUES_RESULT, UNKNOWN = range(1, 12)


def record(kind, content=b'', number=1, padding=0, version=1):
    return bytes([version, kind]) + number.to_bytes(2) + len(content).to_bytes(2) + bytes([padding, 0]) + \
        content + bytes(padding)


def records(content, number=1, status=0):
    """A whole answer of FastCGI: its content as records, and the end."""
    pieces = [content[at:at + 65000] for at in range(0, len(content), 65000)]
    out = b''.join(record(STDOUT, piece, number) for piece in pieces) + record(STDOUT, b'', number)
    return out + record(END, status.to_bytes(4) + bytes(4), number)


def pairs(text):
    """Names and values of a PARAMS stream."""
    found, at = [], 0
    while at < len(text):
        lengths = []
        for _ in range(2):
            wide = text[at] >> 7
            lengths.append(int.from_bytes(text[at:at + 4]) & 0x7fffffff if wide else text[at])
            at += 4 if wide else 1
        name, value = text[at:at + lengths[0]], text[at + lengths[0]:at + sum(lengths)]
        found.append((name.decode('latin1'), value.decode('latin1')))
        at += sum(lengths)
    return found


class FastcgiOrigin(Origin):
    """`respond` gives what comes over STDOUT, or with `raw` the records themselves."""

    def __init__(self, respond=None, raw=False):
        super().__init__(respond or (lambda request: b'Content-Type: text/plain\r\n\r\n' + echo(request)))
        self.raw = raw

    async def serve(self, reader, writer, connection):
        while True:
            params, content, number, keep = b'', b'', None, False
            while True:
                begin = await reader.readexactly(8)
                version, kind, of, length = begin[0], begin[1], int.from_bytes(begin[2:4]), int.from_bytes(begin[4:6])
                data = (await reader.readexactly(length + begin[6]))[:length]
                if version != 1 or (number is None) != (kind == BEGIN) or of != (number or of):
                    raise Unreadable(f'record {begin!r}')
                if kind == BEGIN:
                    number, keep = of, bool(data[2] & 1)
                elif kind == PARAMS:
                    params += data
                elif kind == STDIN and data:
                    content += data
                elif kind == STDIN:
                    break
                else:
                    raise Unreadable(f'record {begin!r}')
            request = self.request(pairs(params), content, connection)
            given = await self.answered(request, writer)
            if given is None:
                return
            writer.write(given if self.raw else records(given, number))
            await writer.drain()
            if not keep or isinstance(given, Closing):
                return

    @staticmethod
    def request(params, content, connection):
        named = dict(params)
        if len(named) != len(params):
            raise Unreadable(f'a parameter twice: {sorted(name for name, _ in params)}')
        if content and int(named.get('CONTENT_LENGTH') or len(content)) != len(content):
            raise Unreadable(f'CONTENT_LENGTH {named["CONTENT_LENGTH"]} of {len(content)} bytes')
        return Request(named.get('REQUEST_METHOD', ''), named.get('REQUEST_URI', ''), params, content,
                       connection)


class CgiOrigin(Origin):
    """Base of uwsgi and SCGI: one request for each connection, whose end is that of the answer."""

    async def serve(self, reader, writer, connection):
        params = await self.params(reader)
        length = int(dict(params).get('CONTENT_LENGTH') or 0)
        content = await reader.readexactly(length)
        given = await self.answered(FastcgiOrigin.request(params, content, connection), writer)
        if given is not None:
            writer.write(given)
            await writer.drain()


class UwsgiOrigin(CgiOrigin):
    async def params(self, reader):
        top = await reader.readexactly(4)
        if top[0] or top[3]:
            raise Unreadable(f'modifiers {top!r}')
        text = await reader.readexactly(int.from_bytes(top[1:3], 'little'))
        words, at = [], 0
        while at < len(text):
            end = at + 2 + int.from_bytes(text[at:at + 2], 'little')
            words.append(text[at + 2:end].decode('latin1'))
            at = end
        if at != len(text) or len(words) % 2:
            raise Unreadable(f'variables {text[:80]!r}')
        return list(zip(words[::2], words[1::2]))


class ScgiOrigin(CgiOrigin):
    async def params(self, reader):
        length = int((await reader.readuntil(b':'))[:-1])
        text = await reader.readexactly(length)
        if await reader.readexactly(1) != b',' or not text.endswith(b'\0'):
            raise Unreadable(f'netstring {text[:80]!r}')
        words = text[:-1].decode('latin1').split('\0')
        params = list(zip(words[::2], words[1::2]))
        if len(words) % 2 or params[0][0] != 'CONTENT_LENGTH' or dict(params).get('SCGI') != '1':
            raise Unreadable(f'headers {words[:4]}')
        return params
