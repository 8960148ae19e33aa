"""Bytes of HTTP/1: a client that sends any bytes, and answers read as strictly as RFC 9112 says."""
import asyncio, contextlib, dataclasses, re, socket
from peers import SECONDS


class Broken(Exception):
    """An answer that is not HTTP."""


@dataclasses.dataclass
class Answer:
    status: int
    fields: list
    body: bytes = b''

    def field(self, name):
        values = [value for key, value in self.fields if key == name.lower()]
        return ', '.join(values) if values else None


def fields_of(lines):
    fields = []
    for line in lines:
        name, colon, value = line.partition(b':')
        if not colon or not re.fullmatch(rb"[^\0-\x20\x7f:]+", name):
            raise Broken(f'field line {line!r}')
        if re.search(rb'[\0\r\n]', value):
            raise Broken(f'field value {value!r}')
        fields.append((name.decode('latin1').lower(), value.strip(b' \t').decode('latin1')))
    return fields


async def connected(port, data=b''):
    """A connection to a server, and `data` sent before any other client has its turn: the server's patience begins
    when it has the connection, and a loop with hundreds of clients may not come to this one again in time."""
    near = socket.create_connection(('127.0.0.1', port))
    near.setblocking(False)
    sent = 0
    # A reader notices the end of a connection.
    with contextlib.suppress(ConnectionError):
        sent = near.send(data) if data else 0
    reader, writer = await asyncio.open_connection(sock=near, limit=1 << 22)
    writer.write(data[sent:])
    return reader, writer


class Arriving:
    """A connection that many wait for: `arrived` is set when something came, `closed` is said at its end."""

    async def until(self, condition, seconds=SECONDS):
        """Waits for an event; `False` if it does not come or the connection ends."""
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    if self.closed:
                        return False
                    self.arrived.clear()
                    await self.arrived.wait()
                return True
        except TimeoutError:
            return False


class Client:
    """One connection to a server."""

    was_reset = False

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, port, data=b''):
        return cls(*await connected(port, data))

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self.close()

    def close(self):
        self.writer.close()

    def send(self, data):
        self.writer.write(data)

    async def answer(self, method='GET'):
        """The next answer, interim ones passed over; `None` at the end of the connection."""
        async with asyncio.timeout(SECONDS):
            while True:
                answer = await self.head()
                if answer is None or answer.status >= 200 or answer.status == 101:
                    break
            if answer is not None and method != 'HEAD':
                answer.body = await self.body(answer)
            return answer

    async def head(self):
        try:
            head = await self.reader.readuntil(b'\r\n\r\n')
        except asyncio.IncompleteReadError as end:
            if end.partial:
                raise Broken(f'no head: {end.partial[:80]!r}') from None
            return None
        except ConnectionError:
            self.was_reset = True
            return None
        line, *lines = head[:-4].split(b'\r\n')
        found = re.fullmatch(rb'HTTP/1\.[01] (\d\d\d)( [^\r\n\0]*)?', line)
        if not found:
            raise Broken(f'status line {line[:80]!r}')
        return Answer(int(found[1]), fields_of(lines))

    async def body(self, answer):
        coding, length = answer.field('transfer-encoding'), answer.field('content-length')
        if answer.status in (101, 204, 304):
            return b''
        if coding is not None:
            if coding.lower() != 'chunked' or length is not None:
                raise Broken(f'framing {answer.fields}')
            return await self.chunks()
        if length is None:
            return await self.reader.read(-1)
        if not re.fullmatch(r'\d+', length):
            raise Broken(f'length {length}')
        try:
            return await self.reader.readexactly(int(length))
        except asyncio.IncompleteReadError as end:
            raise Broken(f'{len(end.partial)} bytes of {length}') from None

    async def chunks(self):
        body = b''
        try:
            while True:
                size = await self.reader.readuntil(b'\r\n')
                if not re.fullmatch(rb'[0-9a-fA-F]{1,16}\r\n', size):
                    raise Broken(f'chunk size {size[:40]!r}')
                piece = await self.reader.readexactly(int(size, 16) + 2)
                if piece[-2:] != b'\r\n':
                    raise Broken(f'end of chunk {piece[-2:]!r}')
                if piece == b'\r\n':
                    return body
                body += piece[:-2]
        except asyncio.IncompleteReadError:
            raise Broken('a chunked body without end') from None

    async def rest(self):
        """All that comes until the connection ends."""
        try:
            async with asyncio.timeout(SECONDS):
                return await self.reader.read(-1)
        except ConnectionError:
            return b''


def head(target, method='GET', host='a.test', fields=(), version='1.1'):
    """A request's head; values may be bytes."""
    lines = [f'{method} {target} HTTP/{version}'.encode('latin1')]
    lines += [] if host is None else [b'Host: ' + host.encode('latin1')]
    for name, value in dict(fields).items() if isinstance(fields, dict) else fields:
        lines.append(name.encode('latin1') + b': ' +
                     (value if isinstance(value, bytes) else value.encode('latin1')))
    return b'\r\n'.join(lines) + b'\r\n\r\n'


async def ask(port, target, method='GET', body=b'', host='a.test', fields=(), version='1.1', client=None):
    """One request and its answer, on a new connection where none is given."""
    fields = list(dict(fields).items() if isinstance(fields, dict) else fields)
    if body and not any(name.lower() in ('content-length', 'transfer-encoding') for name, _ in fields):
        fields.append(('Content-Length', str(len(body))))
    if client is None:
        fields.append(('Connection', 'close'))
        async with await Client.to(port, head(target, method, host, fields, version) + body) as client:
            return await client.answer(method)
    client.send(head(target, method, host, fields, version) + body)
    return await client.answer(method)


async def together(work, limit=128):
    """Runs coroutines at the same time, at most `limit` of them."""
    gate = asyncio.Semaphore(limit)

    async def one(coroutine):
        async with gate:
            return await coroutine
    return await asyncio.gather(*map(one, work))
