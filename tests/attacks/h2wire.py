"""Bytes of HTTP/2: frames as they are wanted, fields as literals (RFC 7541, section 6.2), nothing checked."""
import asyncio
from .wire import Arriving, connected

PREFACE = b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITISED = 1, 1, 4, 8, 32


def frame(kind, flags=0, stream=0, content=b''):
    return len(content).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + content


def number(value, bits, first=0):
    """An integer with a prefix of this many bits."""
    most = (1 << bits) - 1
    if value < most:
        return bytes([first | value])
    out, value = [first | most], value - most
    while value >= 128:
        out.append(value % 128 | 128)
        value //= 128
    return bytes([*out, value])


def literals(fields, indexed=False):
    """A block of fields, each spelled out; with `indexed` they go to the dynamic table too."""
    out = b''
    for name, value in fields:
        name, value = (text if isinstance(text, bytes) else text.encode('latin1') for text in (name, value))
        out += bytes([0x40 if indexed else 0]) + number(len(name), 7) + name + number(len(value), 7) + value
    return out


def request(target, method='GET', authority='a.test', scheme='http', fields=()):
    """The fields of a usual request."""
    return [(':method', method), (':scheme', scheme), (':authority', authority), (':path', target), *fields]


def headers(stream, fields, end=True, flags=END_HEADERS):
    return frame(HEADERS, flags | (END_STREAM if end else 0), stream, literals(fields))


class Connection(Arriving):
    """One connection to a server; answers are gathered by stream."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self.contents, self.ended, self.resets, self.goaway, self.arrived = {}, set(), {}, None, asyncio.Event()
        self.closed, self.pongs = False, 0

    @classmethod
    async def to(cls, port, settings=b'', window=1 << 24, first=b''):
        """A connection, with the frames `first` on their way before others have their turn."""
        more = frame(WINDOW_UPDATE, content=window.to_bytes(4)) if window else b''
        connection = cls(*await connected(port, PREFACE + frame(SETTINGS, content=settings) + more + first))
        connection.task = asyncio.create_task(connection.read())
        return connection

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self.task.cancel()
        self.writer.close()

    def send(self, *frames):
        if not self.closed:
            self.writer.write(b''.join(frames))

    async def read(self):
        try:
            while True:
                head = await self.reader.readexactly(9)
                content = await self.reader.readexactly(int.from_bytes(head[:3]))
                self.take(head[3], head[4], int.from_bytes(head[5:]), content)
                self.arrived.set()
        except (asyncio.IncompleteReadError, OSError):
            self.closed = True
            self.arrived.set()

    def take(self, kind, flags, stream, content):
        if kind == SETTINGS and not flags & ACK:
            self.send(frame(SETTINGS, ACK))
        elif kind == PING and not flags & ACK:
            self.send(frame(PING, ACK, content=content))
        elif kind == PING:
            self.pongs += 1
        elif kind == GOAWAY:
            self.goaway = int.from_bytes(content[4:8])
        elif kind == RST_STREAM:
            self.resets[stream] = int.from_bytes(content)
            self.ended.add(stream)
        elif kind in (DATA, HEADERS):
            self.contents.setdefault(stream, b'')
            if kind == DATA:
                self.contents[stream] += content
            if flags & END_STREAM:
                self.ended.add(stream)

    async def answer(self, stream):
        """The content of a stream's answer; `None` if it was reset or the connection ended."""
        await self.until(lambda: stream in self.ended)
        return None if stream in self.resets or stream not in self.ended else self.contents.get(stream)
