"""Bytes of HTTP/3: frames as they are wanted, fields as literals (RFC 9204, section 4.5.6), nothing checked. QUIC below them
is aioquic's.
"""
import asyncio, logging, packages, ssl, time
from peers import SECONDS
from openssl import certificate
from .h2wire import number, request
from .wire import Arriving

LACKS = packages.need_aioquic()
if not LACKS:
    import pylsqpack
    from aioquic.quic import events
    from aioquic.quic.configuration import QuicConfiguration
    from aioquic.quic.connection import QuicConnection
    from aioquic.quic.packet import QuicPacketType
    from aioquic.quic.packet_builder import QuicPacketBuilder
    from aioquic.tls import Epoch

# What an attack comes to is looked at here.
logging.getLogger('quic').setLevel(logging.CRITICAL)

DATA, HEADERS, CANCEL_PUSH, SETTINGS, PUSH_PROMISE, GOAWAY, MAX_PUSH_ID = 0, 1, 3, 4, 5, 7, 13
CONTROL, PUSH, ENCODER, DECODER = range(4)
NO_ERROR, INTERNAL_ERROR, STREAM_CREATION_ERROR, CLOSED_CRITICAL_STREAM, FRAME_UNEXPECTED, FRAME_ERROR, EXCESSIVE_LOAD, \
    ID_ERROR, SETTINGS_ERROR, MISSING_SETTINGS = 0x100, 0x102, 0x103, 0x104, 0x105, 0x106, 0x107, 0x108, 0x109, 0x10a
REQUEST_CANCELLED, REQUEST_INCOMPLETE, MESSAGE_ERROR = 0x10c, 0x10d, 0x10e
DECOMPRESSION_FAILED, ENCODER_STREAM_ERROR, DECODER_STREAM_ERROR = 0x200, 0x201, 0x202

# The reason that aioquic gives for an end of its own making.
OWN_SILENCE = 'Idle timeout'


def integer(value):
    """A number as QUIC writes it."""
    for power, bits in enumerate((6, 14, 30, 62)):
        if value < 1 << bits:
            return (value | power << (8 << power) - 2).to_bytes(1 << power)
    raise ValueError(value)


def frame(kind, content=b''):
    return integer(kind) + integer(len(content)) + content


def encoded(text):
    return text if isinstance(text, bytes) else text.encode('latin1')


def section(fields):
    """A field section, each field spelled out."""
    out = bytearray(2)
    for name, value in fields:
        name, value = encoded(name), encoded(value)
        out += number(len(name), 3, 0x20) + name + number(len(value), 7) + value
    return bytes(out)


def listen(folder):
    """Words of a configuration: a server that speaks HTTP/3 where it speaks HTTP/1, too."""
    certificate(folder, 'quic')
    return f'listen 127.0.0.1:$port quic; ssl_certificate {folder}/quic.crt; ssl_certificate_key {folder}/quic.key;'


def headers(fields):
    return frame(HEADERS, section(fields))


def get(target, **more):
    """A usual request."""
    return headers(request(target, scheme='https', **more))


START = integer(CONTROL) + frame(SETTINGS)


class Connection(Arriving, asyncio.DatagramProtocol):
    """One connection to a server; answers are gathered by stream."""

    def __init__(self, quic):
        self.quic, self.arrived, self.transport = quic, asyncio.Event(), None
        self.raw, self.ended, self.resets, self.stops = {}, set(), {}, {}
        self.closed, self.code, self.reason, self.timer = False, None, '', None
        self.decoder = pylsqpack.Decoder(4096, 16)
        self.sent_bytes = self.received_bytes = 0

    @classmethod
    def prepared(cls, alpn='h3', name='a.test', **more):
        """A connection that is not begun."""
        configuration = QuicConfiguration(is_client=True, alpn_protocols=[alpn], verify_mode=ssl.CERT_NONE, server_name=name,
                                          **{'idle_timeout': 60, 'max_data': 1 << 30, 'max_stream_data': 1 << 26} | more)
        tokens, tickets = [], []
        connection = cls(QuicConnection(configuration=configuration, token_handler=tokens.append, session_ticket_handler=tickets.append))
        connection.tokens, connection.tickets = tokens, tickets
        return connection

    async def connect(self, port, near=None):
        await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: self, local_addr=near, remote_addr=('127.0.0.1', port))
        self.quic.connect(('127.0.0.1', port), now=time.monotonic())
        self.flush()

    @classmethod
    async def to(cls, port, start=START, near=None, seconds=SECONDS, **more):
        """A connection whose control stream begins with `start`; none is opened for nothing."""
        connection = cls.prepared(**more)
        await connection.connect(port, near)
        # An error that comes earlier would have another number (RFC 9000, section 10.2.3).
        await connection.until(lambda: connection.quic._handshake_confirmed, seconds)
        if start:
            connection.control = connection.open(start)
        return connection

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self.close()

    def close(self):
        if not self.closed:
            self.quic.close(error_code=NO_ERROR)
            self.flush()
        self.leave()

    def leave(self):
        """Goes without a word."""
        self.closed = True
        if self.timer:
            self.timer.cancel()
        self.transport.close()

    # asyncio's side

    def connection_made(self, transport):
        self.transport = transport

    def error_received(self, problem):
        self.closed = True
        self.arrived.set()

    def datagram_received(self, data, address):
        self.received_bytes += len(data)
        self.quic.receive_datagram(data, ('127.0.0.1', self.transport.get_extra_info('peername')[1]), now=time.monotonic())
        self.take()
        self.flush()
        self.arrived.set()

    def flush(self):
        """Sends what there is to send."""
        if self.transport.is_closing():
            return
        for data, _ in self.quic.datagrams_to_send(now=time.monotonic()):
            self.sent_bytes += len(data)
            self.transport.sendto(data)
        if self.timer:
            self.timer.cancel()
        at = self.quic.get_timer()
        if at is not None:
            self.timer = asyncio.get_running_loop().call_later(max(at - time.monotonic(), 0), self.timed)

    def timed(self):
        self.timer = None
        self.quic.handle_timer(now=time.monotonic())
        self.take()
        self.flush()

    def take(self):
        while (event := self.quic.next_event()) is not None:
            if isinstance(event, events.StreamDataReceived):
                self.raw.setdefault(event.stream_id, bytearray()).extend(event.data)
                if event.end_stream:
                    self.ended.add(event.stream_id)
            elif isinstance(event, events.StreamReset):
                self.resets[event.stream_id] = event.error_code
                self.ended.add(event.stream_id)
            elif isinstance(event, events.StopSendingReceived):
                self.stops[event.stream_id] = event.error_code
            elif isinstance(event, events.ConnectionTerminated):
                self.closed, self.reason = True, event.reason_phrase
                # What the client's own patience comes to is nothing that the server said.
                self.code = None if event.reason_phrase == OWN_SILENCE else event.error_code
            self.arrived.set()

    # what tests do

    def send(self, stream, data=b'', end=False):
        """Nothing goes where the server wants no more."""
        if not self.closed and stream not in self.stops:
            self.quic.send_stream_data(stream, data, end)
            self.flush()

    def open(self, data, end=False):
        """A new unidirectional stream."""
        stream = self.quic.get_next_available_stream_id(is_unidirectional=True)
        self.send(stream, data, end)
        return stream

    def ask(self, data, end=True):
        """A new stream for a request."""
        stream = self.quic.get_next_available_stream_id()
        self.send(stream, data, end)
        return stream

    def reset(self, stream, code=REQUEST_CANCELLED):
        if not self.closed:
            self.quic.reset_stream(stream, code)

    def stop(self, stream, code=REQUEST_CANCELLED):
        if not self.closed:
            self.quic.stop_stream(stream, code)

    def packets(self, *contents):
        """Sends packets whose frames are as they are given; nothing of them is known here, or sent again."""
        quic = self.quic
        for content in contents:
            builder = QuicPacketBuilder(host_cid=quic.host_cid, is_client=True, max_datagram_size=1400, packet_number=quic._packet_number,
                                        peer_cid=quic._peer_cid.cid, version=quic._version)
            builder.start_packet(QuicPacketType.ONE_RTT, quic._cryptos[Epoch.ONE_RTT])
            kind, rest = read_integer(content)
            builder.start_frame(kind, capacity=len(rest)).push_bytes(rest)
            for data in builder.flush()[0]:
                self.transport.sendto(data)
            quic._packet_number = builder.packet_number

    async def end(self, seconds=SECONDS):
        """The code that the server ends the connection with; `None` if it does not."""
        await self.until(lambda: self.closed, seconds)
        return self.code

    def frames(self, stream):
        """What has come on a stream: kinds and contents of frames."""
        rest, found = bytes(self.raw.get(stream, b'')), []
        while rest:
            kind, rest = read_integer(rest)
            length, rest = read_integer(rest) if rest else (None, rest)
            if kind is None or length is None or len(rest) < length:
                break
            found.append((kind, rest[:length]))
            rest = rest[length:]
        return found

    async def answer(self, stream, seconds=SECONDS):
        """An answer's fields and content; `None` if its stream was reset or the connection ended."""
        await self.until(lambda: stream in self.ended, seconds)
        if stream in self.resets or stream not in self.ended:
            return None
        frames = self.frames(stream)
        sections = [self.decoder.feed_header(stream, content)[1] for kind, content in frames if kind == HEADERS]
        heads = [dict(fields) for fields in sections if fields and fields[0][0] == b':status' and fields[0][1] >= b'200']
        return (heads[0] if heads else {}), b''.join(content for kind, content in frames if kind == DATA)

    async def content(self, stream, seconds=SECONDS):
        answer = await self.answer(stream, seconds)
        return answer and answer[1]

    def of_server(self, kind):
        """What has come on the server's unidirectional stream of a kind."""
        return next((bytes(data[1:]) for stream, data in self.raw.items() if stream % 4 == 3 and data[:1] == bytes([kind])), None)


def read_integer(data):
    length = 1 << (data[0] >> 6)
    if len(data) < length:
        return None, b''
    return int.from_bytes(data[:length]) & (1 << 8 * length - 2) - 1, data[length:]
