"""HTTP/3 and QUIC: streams and frames that break the rules, each with the error that ends the connection; and floods of what is
cheap to send, as in `floods`. Meanwhile others are served, and memory stays within bounds.
"""
import asyncio, contextlib, os, socket, time
from peers import SECONDS, Folder, Server
from . import h3wire
from .floods import Bounded, OtherClient, respond
from .h2wire import number, request
from .h3wire import (CANCEL_PUSH, CLOSED_CRITICAL_STREAM, CONTROL, DATA, DECODER, DECODER_STREAM_ERROR, DECOMPRESSION_FAILED,
                     ENCODER, ENCODER_STREAM_ERROR, EXCESSIVE_LOAD, FRAME_ERROR, FRAME_UNEXPECTED, GOAWAY, HEADERS, ID_ERROR,
                     MAX_PUSH_ID, MISSING_SETTINGS, PUSH, PUSH_PROMISE, SETTINGS, SETTINGS_ERROR, START,
                     STREAM_CREATION_ERROR, Connection, frame, get, headers, integer, section)
from .origins import HttpOrigin
from .wire import ask, together

PRIORITY_UPDATE = 0xf0700
PROTOCOL_VIOLATION = 0xa
# Entries of the client's dynamic table: a table of its largest size, and a field with a name of its own.
CAPACITY = number(4096, 5, 0x20)


def insert(name, value):
    return number(len(name), 5, 0x40) + name + number(len(value), 7) + value


# For clients that do as they should, who compute beside one another; and for floods.
PATIENT, HASTY = 'client_header_timeout 60s; keepalive_timeout 60s;', 'client_header_timeout 2s; keepalive_timeout 5s;'


def configuration(http, listen, timeouts=HASTY):
    return f'''
    {timeouts} client_body_timeout 1s; send_timeout 2s;
    proxy_cache_path $dir/cache/p keys_zone=z:4m memory=8m; proxy_http_version 1.1; proxy_set_header Connection "";
    upstream http {{ server 127.0.0.1:{http}; keepalive 32; }}
    server {{ listen 127.0.0.1:$port; {listen} server_name a.test; client_max_body_size 64m;
      location / {{ proxy_pass http://http; proxy_read_timeout 5s; }}
      location /live {{ proxy_pass http://http; proxy_request_buffering off; }}
      location /ok {{ return 200 ok; }}
      location /address {{ return 200 $remote_addr; }}
      location /stored/ {{ proxy_pass http://http; proxy_cache z; proxy_cache_key $request_uri; }} }}'''


# --- rules ----------------------------------------------------------------------------------------------

def control(*frames):
    return integer(CONTROL) + frame(SETTINGS) + b''.join(frames)


def on_control(code, *frames, start=None):
    return dict(code=code, start=control(*frames) if start is None else start)


def on_streams(code, *streams, ends=False):
    return dict(code=code, streams=streams, ends=ends)


def on_request(code, data):
    return dict(code=code, asks=data)


# Its body is read to the end.
POST = headers(request('/x', 'POST', scheme='https'))
# What ends a connection, and with which error.
RULES = {
    'a second SETTINGS': on_control(FRAME_UNEXPECTED, frame(SETTINGS)),
    'GOAWAY before SETTINGS': on_control(MISSING_SETTINGS, start=b'\0' + frame(GOAWAY, b'\0')),
    'an unknown frame before SETTINGS': on_control(MISSING_SETTINGS, start=b'\0' + frame(33)),
    'DATA on the control stream': on_control(FRAME_UNEXPECTED, frame(DATA)),
    'HEADERS on the control stream': on_control(FRAME_UNEXPECTED, headers(request('/'))),
    'PUSH_PROMISE on the control stream': on_control(FRAME_UNEXPECTED, frame(PUSH_PROMISE, b'\0\0\0')),
    **{f'the frame {kind} of HTTP/2 on the control stream': on_control(FRAME_UNEXPECTED, frame(kind, bytes(8)))
       for kind in (2, 6, 8, 9)},
    **{f'the setting {name} of HTTP/2': on_control(SETTINGS_ERROR, start=b'\0' + frame(SETTINGS, bytes([name, 1])))
       for name in (0, 2, 3, 4, 5)},
    'a setting twice': on_control(SETTINGS_ERROR, start=b'\0' + frame(SETTINGS, b'\1\1\1\1')),
    'half a setting': on_control(FRAME_ERROR, start=b'\0' + frame(SETTINGS, b'\1')),
    'endless SETTINGS': on_control(EXCESSIVE_LOAD, start=b'\0' + integer(SETTINGS) + integer(1 << 60) + bytes(100)),
    'MAX_PUSH_ID that shrinks': on_control(ID_ERROR, frame(MAX_PUSH_ID, b'\4'), frame(MAX_PUSH_ID, b'\3')),
    'GOAWAY that grows': on_control(ID_ERROR, frame(GOAWAY, b'\3'), frame(GOAWAY, b'\4')),
    'an unknown push': on_control(ID_ERROR, frame(CANCEL_PUSH, b'\0')),
    'a number too long': on_control(FRAME_ERROR, frame(MAX_PUSH_ID, bytes(9))),
    'many unknown frames': on_control(EXCESSIVE_LOAD, frame(33) * 17),
    'a second control stream': on_streams(STREAM_CREATION_ERROR, START),
    'a second encoder stream': on_streams(STREAM_CREATION_ERROR, integer(ENCODER), integer(ENCODER)),
    'a second decoder stream': on_streams(STREAM_CREATION_ERROR, integer(DECODER), integer(DECODER)),
    'a push': on_streams(STREAM_CREATION_ERROR, integer(PUSH) + b'\0'),
    'the end of the encoder stream': on_streams(CLOSED_CRITICAL_STREAM, integer(ENCODER), ends=True),
    'the end of the decoder stream': on_streams(CLOSED_CRITICAL_STREAM, integer(DECODER), ends=True),
    'the end of the control stream': on_control(CLOSED_CRITICAL_STREAM, start=b'') | on_streams(CLOSED_CRITICAL_STREAM, START, ends=True),
    'an entry larger than the table': on_streams(ENCODER_STREAM_ERROR, integer(ENCODER) + insert(b'a', b'b')),
    'a table larger than allowed': on_streams(ENCODER_STREAM_ERROR, integer(ENCODER) + number(4097, 5, 0x20)),
    'a copy of no entry': on_streams(ENCODER_STREAM_ERROR, integer(ENCODER) + CAPACITY + b'\0'),
    'a text larger than the table': on_streams(ENCODER_STREAM_ERROR, integer(ENCODER) + CAPACITY + number(1 << 20, 5, 0x40)),
    'a section acknowledged': on_streams(DECODER_STREAM_ERROR, integer(DECODER) + b'\x80'),
    'entries acknowledged': on_streams(DECODER_STREAM_ERROR, integer(DECODER) + b'\1'),
    'DATA first': on_request(FRAME_UNEXPECTED, frame(DATA, b'x')),
    'DATA behind trailers': on_request(FRAME_UNEXPECTED, POST + headers([('x', 'y')]) + frame(DATA, b'x')),
    **{f'the frame {kind} on a request': on_request(FRAME_UNEXPECTED, POST + frame(kind, b'\0'))
       for kind in (2, 3, 4, 5, 6, 7, 8, 9, 13, PRIORITY_UPDATE)},
    'half a frame': on_request(FRAME_ERROR, POST + b'\0\5x'),
    'no section': on_request(DECOMPRESSION_FAILED, frame(HEADERS)),
    'half a section': on_request(DECOMPRESSION_FAILED, frame(HEADERS, section(request('/ok'))[:-1])),
    'an entry of an empty table': on_request(DECOMPRESSION_FAILED, frame(HEADERS, b'\0\0\x80')),
    'an unknown field of the static table': on_request(DECOMPRESSION_FAILED, frame(HEADERS, b'\0\0\xff\x24')),
    'more entries than there can be': on_request(DECOMPRESSION_FAILED, frame(HEADERS, b'\xff\xff\x7f\0\x80')),
}


async def breaks(server, code, start=START, streams=(), ends=False, asks=None):
    async with await Connection.to(server.port, start) as connection:
        for data in streams:
            connection.open(data, ends)
        if asks is not None:
            connection.ask(asks)
        got = await connection.end()
        assert got == code, f'got {got and hex(got)} {connection.reason}, wanted {hex(code)}'


def stream(number, offset=0, data=b'', end=False):
    """A STREAM frame of QUIC."""
    return bytes([0x0e | end]) + integer(number) + integer(offset) + integer(len(data)) + data


def new_id(number, retired=0):
    return b'\x18' + integer(number) + integer(retired) + b'\x08' + number.to_bytes(8) + bytes(16)


FLOW_CONTROL_ERROR, STREAM_LIMIT_ERROR, STREAM_STATE_ERROR, FINAL_SIZE_ERROR, FRAME_ENCODING_ERROR, CONNECTION_ID_LIMIT_ERROR = 3, 4, 5, 6, 7, 9
CRYPTO_BUFFER_EXCEEDED = 0xd
# Frames of QUIC that end a connection, and with which error (RFC 9000, section 20.1).
FRAMES = {
    'data beyond the window': (FLOW_CONTROL_ERROR, stream(0, 64 * 1024, b'x')),
    'data far beyond the window': (FLOW_CONTROL_ERROR, stream(0, 1 << 60, b'x')),
    'a stream too many': (STREAM_LIMIT_ERROR, stream(4 * 128, 0, b'x')),
    'the last stream of all': (STREAM_LIMIT_ERROR, stream((1 << 62) - 4, 0, b'x')),
    'data on a stream of the server': (STREAM_STATE_ERROR, stream(1, 0, b'x')),
    'data on a one-way stream of the server': (STREAM_STATE_ERROR, stream(3, 0, b'x')),
    'room for a stream that is read only': (STREAM_STATE_ERROR, b'\x11' + integer(2) + integer(9)),
    'two ends of a stream': (FINAL_SIZE_ERROR, stream(0, 9, b'x', True) + stream(0, 8, b'x', True)),
    'data behind the end of a stream': (FINAL_SIZE_ERROR, stream(0, 9, b'x', True) + stream(0, 20, b'x')),
    'an unknown frame of QUIC': (FRAME_ENCODING_ERROR, b'\x21'),
    'half a frame of QUIC': (FRAME_ENCODING_ERROR, b'\x0e\0\0\x40'),
    'the end of the handshake': (PROTOCOL_VIOLATION, b'\x1e'),
    'a token': (PROTOCOL_VIOLATION, b'\7\4aaaa'),
    'a connection ID that was not issued': (PROTOCOL_VIOLATION, b'\x19' + integer(1000)),
    'connection IDs beyond the limit': (CONNECTION_ID_LIMIT_ERROR, b''.join(map(new_id, range(8, 30)))),
    'much that no handshake needs': (CRYPTO_BUFFER_EXCEEDED, b'\6' + integer(1 << 20) + integer(1) + b'x'),
    'more streams than there can be': (FRAME_ENCODING_ERROR, b'\x12' + integer((1 << 60) + 1)),
}


async def ends(server, code, content):
    async with await Connection.to(server.port) as connection:
        connection.packets(content)
        got = await connection.end()
        assert got == code, f'got {got} {connection.reason}, wanted {code}'


async def is_taken(connection, target='/ok', wanted=b'ok'):
    got = await connection.content(connection.ask(get(target)))
    assert got == wanted, f'got {got!r} {connection.code} {connection.reason}'


# --- what is allowed -------------------------------------------------------------------------------------

async def streams_of_unknown_types(server):
    async with await Connection.to(server.port) as connection:
        for kind in (33, 0x1f * 1000 + 33):
            connection.open(integer(kind) + b'anything', end=True)
            await is_taken(connection)


async def settings_byte_by_byte(server):
    async with await Connection.to(server.port, b'') as connection:
        stream = None
        for byte in b'\x40\0' + frame(SETTINGS, b'\1\0\x40\x21\5'):
            if stream is None:
                stream = connection.open(bytes([byte]))
            else:
                connection.send(stream, bytes([byte]))
            await is_taken(connection)


async def no_control_stream(server):
    async with await Connection.to(server.port, b'') as connection:
        await is_taken(connection)


async def priorities(server):
    async with await Connection.to(server.port) as connection:
        for at in range(50):
            connection.send(connection.control, frame(PRIORITY_UPDATE, integer(4 * at) + b'u=1, i'))
            await is_taken(connection)


async def unknown_frames_of_a_request(server):
    async with await Connection.to(server.port) as connection:
        data = frame(33, b'x' * 5000) + get('/ok') + frame(0x1f * 7 + 33) * 3
        assert await connection.content(connection.ask(data)) == b'ok'


async def entries_that_come_late(server):
    """A section waits for the entries that it names, and is read when they come, byte by byte; both are acknowledged."""
    async with await Connection.to(server.port) as connection:
        encoder = connection.open(integer(ENCODER))
        inserts = CAPACITY + insert(b':authority', b'a.test') + insert(b':path', b'/ok')
        # Required: two entries; the base behind them.
        blocked = b'\3\0' + b'\xd1' + b'\xd7' + b'\x81\x80'
        first = connection.ask(frame(HEADERS, blocked))
        # Others on the same connection do not wait.
        await is_taken(connection)
        for byte in inserts:
            connection.send(encoder, bytes([byte]))
        assert await connection.content(first) == b'ok', (connection.code, connection.reason)
        assert await connection.content(connection.ask(frame(HEADERS, blocked))) == b'ok'
        said = lambda: connection.of_server(DECODER) or b''
        assert await connection.until(lambda: b'\x80' in said() and b'\x88' in said()), f'the decoder said {said()!r}'


async def a_blocked_stream_that_is_reset(server):
    async with await Connection.to(server.port) as connection:
        connection.open(integer(ENCODER) + CAPACITY)
        for _ in range(40):
            stream = connection.ask(frame(HEADERS, b'\2\0\x80'), end=False)
            connection.reset(stream)
            connection.stop(stream)
            await is_taken(connection)
            if connection.closed:
                break


async def answers_that_are_not_wanted(server):
    async with await Connection.to(server.port) as connection:
        for _ in range(5):
            stream = connection.ask(get('/stored/big'))
            connection.stop(stream)
            connection.flush()
            await connection.until(lambda: stream in connection.ended)
            await is_taken(connection)
            await is_taken(connection)


async def a_busy_connection_stays(server):
    """Longer than any may be idle."""
    async with await Connection.to(server.port) as connection:
        for _ in range(60):
            await is_taken(connection)
            await asyncio.sleep(0.1)


async def a_client_behind_another_address(server):
    """It does not know that its address has changed, and is at the other one once it has answered what it was asked there."""
    async with await Connection.to(server.port) as connection:
        await is_taken(connection)
        old = connection.transport
        await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: connection, local_addr=('127.0.0.2', 0), remote_addr=('127.0.0.1', server.port))
        old.close()
        for _ in range(20):
            content = await connection.content(connection.ask(get('/address')))
            if content != b'127.0.0.1':
                break
        assert content == b'127.0.0.2', content
        await is_taken(connection, '/address', b'127.0.0.2')


async def a_client_at_anothers_address(server):
    """It says that it has another's, where it hears nothing: it goes on with the one that it had."""
    async with await Connection.to(server.port) as connection:
        await is_taken(connection)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as others:
            others.bind(('127.0.0.3', 0))
            home, send = connection.transport, connection.transport.sendto
            home.sendto = lambda data: others.sendto(data, ('127.0.0.1', server.port))
            asked = [connection.ask(get('/address')) for _ in range(5)]
            home.sendto = send
            # Nobody is there: the server comes back in the end.
            contents = [await connection.content(stream) for stream in asked]
        assert contents == [b'127.0.0.1'] * 5, contents
        await is_taken(connection, '/address', b'127.0.0.1')


async def a_client_elsewhere(server):
    """A client that changes its port goes on, and is asked whether it is there."""
    async with await Connection.to(server.port) as connection:
        await is_taken(connection)
        old = connection.transport
        connection.quic.change_connection_id()
        await asyncio.get_running_loop().create_datagram_endpoint(lambda: connection, remote_addr=('127.0.0.1', server.port))
        old.close()
        await is_taken(connection, '/address', b'127.0.0.1')
        await is_taken(connection)


async def new_keys(server):
    async with await Connection.to(server.port) as connection:
        for _ in range(3):
            await is_taken(connection)
            connection.quic.request_key_update()
        await is_taken(connection)


async def a_slow_body(server):
    async with await Connection.to(server.port) as connection:
        stream = connection.ask(headers(request('/x', 'POST', scheme='https')), end=False)
        connection.send(stream, frame(DATA, b'x'))
        answer = await connection.answer(stream)
        assert answer is None or answer[0][b':status'] == b'408', answer


ALLOWED = [streams_of_unknown_types, settings_byte_by_byte, no_control_stream, priorities, unknown_frames_of_a_request,
           entries_that_come_late, answers_that_are_not_wanted, a_client_behind_another_address,
           a_client_at_anothers_address, a_client_elsewhere, new_keys, a_slow_body, a_blocked_stream_that_is_reset]


# What the log has of a client that gives up more than it takes.
GIVEN_UP = 'client gave up too many streams'
VIOLATED = ': unsent packet acked) while processing HTTP/3 connection'


# --- floods ---------------------------------------------------------------------------------------------

async def connections(server, work, count=1, seconds=SECONDS, **more):
    """Connections that do the same; how each ended."""
    async def one():
        async with await Connection.to(server.port, **more) as connection:
            # Beside a flood, the handshake may take longer than the server waits for it.
            if not connection.closed:
                with contextlib.suppress(TimeoutError, OSError):
                    async with asyncio.timeout(seconds):
                        await work(connection)
            return connection.code
    return await asyncio.gather(*[one() for _ in range(count)])


async def turn(connection):
    """Lets the server's datagrams come in."""
    await asyncio.sleep(0.001)
    return not connection.closed


def may_open(connection):
    quic = connection.quic
    return quic.get_next_available_stream_id() // 4 < quic._remote_max_streams_bidi


async def resets(server, data, give_up, count, end=True):
    """Streams with `data` that are given up until the server has enough. Its log tells how each connection ended: a client that has
    not taken what it was sent may not be told."""
    before = server.log().count(GIVEN_UP)
    async def work(connection):
        while not connection.closed:
            for _ in range(50):
                if not may_open(connection):
                    break
                give_up(connection, connection.ask(data, end))
            connection.flush()
            await turn(connection)
    codes = await connections(server, work, count)
    assert set(codes) <= {EXCESSIVE_LOAD, None}, codes
    ended = server.log().count(GIVEN_UP) - before
    assert ended == count, f'{ended} of {count} were sent away'


def reset_and_stop(connection, stream):
    connection.reset(stream)
    connection.stop(stream)


async def rapid_reset(server):
    await resets(server, get('/x'), reset_and_stop, 4)


async def rapid_stop(server):
    await ask(server.port, '/stored/big')
    await resets(server, get('/stored/big'), lambda connection, stream: connection.stop(stream), 4)


async def rapid_reset_of_heads(server):
    def give_up(connection, number):
        connection.send(number, frame(33, b'x'))
        reset_and_stop(connection, number)
    await resets(server, b'\1\x40\xffx', give_up, 2, end=False)


async def streamed(server, first, piece, pieces, kind='ask', count=2):
    """Sends a stream that goes on and on, as fast as the server takes it."""
    async def work(connection):
        stream = connection.ask(first, end=False) if kind == 'ask' else connection.open(first)
        for _ in range(pieces):
            connection.send(stream, piece)
            if not await turn(connection):
                return
        await connection.end(1)
    return await connections(server, work, count)


async def unknown_frames(server):
    await streamed(server, b'', frame(33, b'x' * 16000), 1000)


async def an_endless_unknown_frame(server):
    await streamed(server, integer(33) + integer(1 << 60), b'x' * 16000, 1000)


async def empty_unknown_frames(server):
    await streamed(server, b'', frame(33) * 8000, 300)


async def empty_data(server):
    await streamed(server, headers(request('/live', 'POST', scheme='https')), frame(DATA) * 8000, 300)


async def an_endless_section(server):
    for code in await streamed(server, integer(HEADERS) + integer(1 << 60), b'x' * 16000, 100):
        assert code is None or code == EXCESSIVE_LOAD, code


async def too_large(server, fields):
    """It is refused, and the connection goes on."""
    # To write it takes its time, in which no client may be waited for.
    data = headers([*request('/ok'), *fields])

    async def work(connection):
        answer = await connection.answer(connection.ask(data))
        assert answer and answer[0][b':status'] == b'400', f'got {answer} {connection.code} {connection.reason}'
        await is_taken(connection)
    await connections(server, work, 2)


async def a_large_section(server):
    await too_large(server, [('x', 'y' * 1000000)])
    await too_large(server, [('x', 'y' * 9000)])


async def many_fields(server):
    await too_large(server, [(f'x{at}', 'y') for at in range(100000)])
    await too_large(server, [(f'x{at}', 'y') for at in range(2000)])


async def a_compression_bomb(server):
    async def work(connection):
        connection.open(integer(ENCODER) + CAPACITY + insert(b'x', b'y' * 4000))
        for _ in range(20):
            connection.ask(frame(HEADERS, b'\2\0' + section(request('/ok'))[2:] + b'\x80' * 15000))
        await connection.end(2)
    await connections(server, work, 10)


async def copies_of_entries(server):
    codes = await streamed(server, integer(ENCODER) + CAPACITY + insert(b'x', b'y' * 4000), b'\0' * 16000, 200, 'open')
    assert set(codes) == {EXCESSIVE_LOAD}, codes


async def changes_of_the_table(server):
    await streamed(server, integer(ENCODER), (CAPACITY + insert(b'x', b'y' * 100) + b'\x20') * 100, 300, 'open')


async def capacities(server):
    await streamed(server, integer(ENCODER), CAPACITY * 5000, 300, 'open')


async def cancellations(server):
    await streamed(server, integer(DECODER), b'\x40' * 16000, 300, 'open')


async def an_endless_control_frame(server):
    await streamed(server, control(integer(33) + integer(1 << 60)), b'x' * 16000, 300, 'open')


async def push_numbers(server):
    async def work(connection):
        for _ in range(300):
            connection.send(connection.control, frame(MAX_PUSH_ID, b'\0') * 5000)
            if not await turn(connection):
                return
    await connections(server, work, 2)


async def priority_updates(server):
    async def work(connection):
        for _ in range(300):
            connection.send(connection.control, frame(PRIORITY_UPDATE, b'\0u=1') * 2000)
            if not await turn(connection):
                return
    await connections(server, work, 2)


async def blocked_streams(server):
    """All that a client may open, each with a section that waits for what never comes."""
    blocked = frame(HEADERS, b'\2\0' + section([('x', 'y' * 7000)] * 4)[2:] + b'\x80')

    async def work(connection):
        connection.open(integer(ENCODER) + CAPACITY)
        for _ in range(128):
            if may_open(connection):
                connection.ask(blocked)
                await turn(connection)
        await connection.end(4)
    await connections(server, work, 8)


async def no_room_for_answers(server):
    await ask(server.port, '/stored/big')
    async def work(connection):
        for _ in range(128):
            if may_open(connection):
                connection.ask(get('/stored/big'))
        await connection.end(3)
    await connections(server, work, 8, max_stream_data=1)
    await connections(server, work, 8, max_data=1000)


async def clients_that_are_gone(server):
    """Clients that ask for much and never speak again."""
    async def one(at):
        connection = await Connection.to(server.port, max_stream_data=1 << 24)
        for _ in range(20):
            connection.ask(get(f'/big?{at}'))
        connection.leave()
    await asyncio.gather(*[one(at) for at in range(30)])
    await asyncio.sleep(1)


async def idle_clients(server):
    """They are sent away in the end."""
    async def one():
        connection = await Connection.to(server.port)
        await connection.end()
        connection.leave()
        return connection.closed
    closed = await asyncio.gather(*[one() for _ in range(100)])
    assert all(closed), f'{closed.count(False)} of {len(closed)} idle clients were kept'


async def slow_streams(server):
    """Heads and bodies that never end."""
    async def work(connection):
        for at in range(128):
            if may_open(connection):
                connection.ask(get('/x')[:at] if at % 2 else headers(request('/live', 'POST')), end=False)
        for _ in range(30):
            connection.quic.send_ping(1)
            connection.flush()
            await asyncio.sleep(0.1)
    await connections(server, work, 8)


async def acknowledgements_of_what_was_not_sent(server):
    """Packets acknowledged that are still to come: a client would be sent more than the network carries. The log tells that each is
    sent away: what a busy client is told may be lost, and then nothing is left that could say it again."""
    before, count = server.log().count(VIOLATED), 4
    ended = lambda: server.log().count(VIOLATED) - before

    async def work(connection):
        connection.ask(get('/stored/big'))
        space = connection.quic._spaces[h3wire.Epoch.ONE_RTT]
        # Again and again: a datagram may be lost here, too.
        while not connection.closed and ended() < count:
            space.ack_queue.add(0, 100000)
            space.ack_at = 0
            connection.quic.send_ping(1)
            connection.flush()
            await asyncio.sleep(0.1)
    codes = await connections(server, work, count, max_data=60000)
    assert {*codes} <= {PROTOCOL_VIOLATION, None}, f'got {codes}'
    assert ended() == count, f'{ended()} of {count} were sent away'


async def acknowledgements_of_all(server):
    """Optimistic ones: of each packet number between, also those that were skipped or did not arrive."""
    async def work(connection):
        space = connection.quic._spaces[h3wire.Epoch.ONE_RTT]
        for _ in range(40):
            connection.ask(get('/stored/big'))
            for _ in range(20):
                await turn(connection)
                if connection.closed:
                    return
                if len(space.ack_queue):
                    space.ack_queue.add(0, space.largest_received_packet + 1)
    await connections(server, work, 4)


async def pings(server):
    async def work(connection):
        for at in range(3000):
            connection.quic.send_ping(at)
            connection.flush()
            if at % 50 == 0 and not await turn(connection):
                return
    await connections(server, work, 4)


async def gaps(server):
    """All streams and all of their windows, but for the first byte of each: it is kept, and no one can read it."""
    async def work(connection):
        for number in range(1, 128):
            connection.packets(*[stream(4 * number, 1 + at, b'x' * 1000) for at in range(0, 64000, 1000)])
            if not await turn(connection):
                return
        await connection.end(1)
    await connections(server, work, 4)


async def bytes_apart(server):
    """Every second byte of a stream, each in a datagram of its own that is otherwise empty."""
    before = server.resident_bytes()

    async def work(connection):
        for first in range(0, 40000, 400):
            connection.packets(*[stream(0, at, b'x') + bytes(1200) for at in range(first + 1, first + 400, 2)])
            if not await turn(connection):
                return
        await connection.end(1)
        grown = server.resident_bytes() - before
        assert grown < 16 << 20, f'20,000 bytes are kept in {grown >> 20} MB'
    await connections(server, work, 1)


async def frames(server, *contents, count=100):
    async def work(connection):
        for _ in range(count):
            connection.packets(*contents)
            if not await turn(connection):
                return
        await connection.end(1)
    await connections(server, work, 2)


async def path_challenges(server):
    await frames(server, *[b'\x1a' + bytes(8) + b'\x1a' + bytes(7) + b'x'] * 50)


async def connection_ids(server):
    """New ones that retire those before, without an end: each is to be answered."""
    async def work(connection):
        for first in range(10, 20000, 200):
            connection.packets(*[new_id(number, number - 1) for number in range(first, first + 200)])
            if not await turn(connection):
                return
        await connection.end(1)
    await connections(server, work, 2)


async def windows(server):
    await frames(server, *[b''.join(b'\x10' + integer(1000 + at) + b'\x14' + integer(at) for at in range(100))] * 20)


async def the_same_data_again(server):
    await frames(server, *[stream(0, 0, b'\x21\x7f\xff' + b'x' * 1000), stream(0, 500, b'y' * 1000)] * 50)


def datagrams(port, *data, wait=0.5):
    """Sends datagrams from an address of their own: how many bytes come back."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as near:
        near.connect(('127.0.0.1', port))
        near.settimeout(wait)
        got = 0
        try:
            for piece in data:
                near.send(piece)
            while True:
                got += len(near.recv(65536))
        except (TimeoutError, ConnectionError):
            return got


def initial(port, token=b''):
    """A client's first datagram."""
    configuration = h3wire.QuicConfiguration(is_client=True, alpn_protocols=['h3'], server_name='a.test', token=token)
    quic = h3wire.QuicConnection(configuration=configuration)
    quic.connect(('127.0.0.1', port), now=time.monotonic())
    return quic.datagrams_to_send(now=time.monotonic())[0][0]


async def apart(work, *arguments):
    return await asyncio.get_running_loop().run_in_executor(None, work, *arguments)


async def amplification(server):
    """A client that was not heard from twice is sent three times its bytes; the library looks whether there is room for a byte
    before each datagram, so that the last may go beyond."""
    for _ in range(2):
        # Others flood the socket meanwhile: a datagram that it has no room for is lost.
        for _ in range(30):
            first = initial(server.port)
            got = await apart(lambda first=first: datagrams(server.port, first, wait=2))
            if got:
                break
        assert 0 < got < 3 * len(first) + 1200, f'{len(first)} bytes were answered with {got}'
    unknown = bytes([0xc0]) + b'\x1a\x2a\x3a\x4a' + b'\x08' + bytes(8) + b'\x08' + bytes(8) + bytes(1180)
    got = await apart(lambda: datagrams(server.port, unknown))
    assert got <= len(unknown), f'another version: {got} bytes'
    got = await apart(lambda: datagrams(server.port, unknown[:100]))
    assert got <= 100, f'another version in a small datagram: {got} bytes'


async def first_datagrams(server):
    """Handshakes that never go on. Those of others do meanwhile."""
    def flood():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as near:
            near.connect(('127.0.0.1', server.port))
            for _ in range(1000):
                near.send(initial(server.port))
    work = [asyncio.create_task(apart(flood)) for _ in range(2)]
    while not all(task.done() for task in work):
        async with await Connection.to(server.port) as connection:
            await is_taken(connection)
    await asyncio.gather(*work)


async def any_datagrams(server):
    def flood():
        sent = got = 0
        for size in (1, 5, 21, 22, 40, 41, 100, 1200, 1500, 9000, 60000):
            for first in (0x00, 0x40, 0x7f, 0x80, 0xc0, 0xe0, 0xff):
                many = [bytes([first]) + os.urandom(size - 1) for _ in range(40)]
                v1 = [bytes([first]) + b'\0\0\0\1' + os.urandom(size) for _ in range(10)]
                got += datagrams(server.port, *many, *v1, wait=0.02)
                sent += sum(map(len, many + v1))
        return sent, got
    sent, got = await apart(flood)
    assert got <= sent, f'{sent} bytes were answered with {got}'


async def replayed_datagrams(server):
    """What someone on the way has seen, sent again and changed."""
    seen = []
    async with await Connection.to(server.port) as connection:
        send = connection.transport.sendto
        connection.transport.sendto = lambda data: (seen.append(data), send(data))
        for _ in range(20):
            await is_taken(connection)
        changed = [data[:at % len(data)] + bytes([data[at % len(data)] ^ 1]) + data[at % len(data) + 1:]
                   for at, data in enumerate(seen * 50)]
        await apart(lambda: datagrams(server.port, *seen * 50, *changed))
        await is_taken(connection)


# Those that mostly wait, or that send little before they do, run together; not those that count lines of the log or bytes.
FLOODS = [rapid_reset, rapid_stop, rapid_reset_of_heads, (unknown_frames, an_endless_unknown_frame),
          (empty_unknown_frames, empty_data), an_endless_section, a_large_section, many_fields, a_compression_bomb,
          copies_of_entries, (changes_of_the_table, capacities, cancellations), an_endless_control_frame,
          (push_numbers, priority_updates),
          (blocked_streams, clients_that_are_gone, slow_streams), (no_room_for_answers, idle_clients, amplification),
          acknowledgements_of_what_was_not_sent, acknowledgements_of_all, pings, (gaps, connection_ids), bytes_apart,
          (path_challenges, windows, the_same_data_again), first_datagrams, (any_datagrams, replayed_datagrams)]


async def run(tried):
    if tried.lacks(h3wire.LACKS):
        return
    # Before there is any socket that it would hold open, too.
    other = OtherClient()
    async with HttpOrigin(respond) as http:
        with Folder() as folder, Server(folder, configuration(http.port, h3wire.listen(folder), PATIENT)) as server:
            cases = {allowed.__name__: lambda allowed=allowed: allowed(server) for allowed in ALLOWED}
            cases |= {f'an error: {name}': lambda rule=rule: breaks(server, **rule) for name, rule in RULES.items()}
            cases |= {f'an error of QUIC: {name}': lambda ended=ended: ends(server, *ended) for name, ended in FRAMES.items()}
            wanted = [tried.attempt(case, work()) for case, work in cases.items() if tried.wants(case)]
            # Those that take longest come first.
            await together(wanted, 16)
            tried.alive(server)
        with Folder() as folder, Bounded(folder, configuration(http.port, h3wire.listen(folder))) as bounded:
            await bounded.flooded(tried, [a_busy_connection_stays, *FLOODS], other)
