#!/usr/bin/env python3
"""gRPC's own server and client, each in a process of its own: run by tests/test_calls.py with a Python that has grpcio.

  calls_peers.py serve PORT TLS-PORT CERTIFICATE KEY     a server on PORT, with TLS on the other
  calls_peers.py ask ADDRESS CERTIFICATE CALL ...        one line for each call: its outcome
"""
import concurrent.futures, itertools, queue, sys, threading
import grpc

SERVICE = 'yorozu.Test'


class Service(grpc.GenericRpcHandler):
    """Messages are bytes as they are."""

    def service(self, details):
        name = details.method.rsplit('/', 1)[1]
        kinds = {'Echo': grpc.unary_unary_rpc_method_handler(echo), 'Fail': grpc.unary_unary_rpc_method_handler(fail),
                 'Slow': grpc.unary_unary_rpc_method_handler(slow), 'Metadata': grpc.unary_unary_rpc_method_handler(metadata),
                 'Count': grpc.unary_stream_rpc_method_handler(count), 'Sum': grpc.stream_unary_rpc_method_handler(total),
                 'Talk': grpc.stream_stream_rpc_method_handler(talk), 'Break': grpc.unary_stream_rpc_method_handler(breaks)}
        return kinds.get(name)


def echo(message, context):
    return message


def fail(message, context):
    context.set_trailing_metadata([('x-why', 'because')])
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, 'not now: ' + message.decode())


def slow(message, context):
    threading.Event().wait(60)
    return b'late'


def metadata(message, context):
    found = {name: value for name, value in context.invocation_metadata()}
    context.send_initial_metadata([('x-head', 'h')])
    context.set_trailing_metadata([('x-trailer', 't'), ('x-data-bin', b'\0\1')])
    return repr((found.get('x-mine'), found.get('x-set'), found.get('x-many-bin'))).encode()


def count(message, context):
    for number in range(int(message)):
        yield b'%d' % number + b'.' * 1000


def total(messages, context):
    return b'%d' % sum(len(message) for message in messages)


def talk(messages, context):
    for message in messages:
        yield message[::-1]


def breaks(message, context):
    yield b'one'
    context.abort(grpc.StatusCode.DATA_LOSS, 'lost')


def serve(port, secure_port, certificate, key):
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(50), options=[('grpc.max_receive_message_length', -1)])
    server.add_generic_rpc_handlers([Service()])
    server.add_insecure_port(f'127.0.0.1:{port}')
    pair = open(key, 'rb').read(), open(certificate, 'rb').read()
    server.add_secure_port(f'127.0.0.1:{secure_port}', grpc.ssl_server_credentials([pair]))
    server.start()
    print('serving', flush=True)
    server.wait_for_termination()


def outcome(work):
    """What a call came to, as a text."""
    try:
        return work()
    except grpc.RpcError as problem:
        trailers = sorted((name, value) for name, value in problem.trailing_metadata() or () if name.startswith('x-'))
        return f'{problem.code().name} {problem.details()} {trailers}'


def calls(channel):
    """The calls by name."""
    def method(kind, name):
        return getattr(channel, kind)(f'/{SERVICE}/{name}')

    def metadata():
        answer, call = method('unary_unary', 'Metadata').with_call(
            b'', metadata=[('x-mine', 'yes'), ('x-many-bin', bytes(range(9)))], timeout=60)
        fields = [*call.initial_metadata(), *call.trailing_metadata()]
        return answer.decode() + repr(sorted((name, value) for name, value in fields if name.startswith('x-')))

    def talk():
        asked, heard = queue.Queue(), []
        answers = method('stream_stream', 'Talk')(iter(asked.get, None), timeout=60)
        # Each is sent only after the answer to the one before.
        for word in (b'one', b'two', b'x' * 70000, b'three'):
            asked.put(word)
            heard.append(next(answers))
        asked.put(None)
        return repr([len(word) for word in heard]) + repr(heard[0]) + repr(list(answers))

    def many():
        echo = method('unary_unary', 'Echo')
        asked = [echo.future(b'%d' % number * 1000, timeout=60) for number in range(200)]
        return str(sum(call.result() == b'%d' % number * 1000 for number, call in enumerate(asked)))

    pieces = lambda: itertools.repeat(b'y' * 30000, 200)
    return {'echo': lambda: method('unary_unary', 'Echo')(b'hello', timeout=60).decode(),
            'empty': lambda: repr(method('unary_unary', 'Echo')(b'', timeout=60)),
            'large': lambda: str(len(method('unary_unary', 'Echo')(b'z' * 3_000_000, timeout=60))),
            'fail': lambda: method('unary_unary', 'Fail')(b'me', timeout=60).decode(),
            'unknown': lambda: method('unary_unary', 'Nothing')(b'', timeout=60).decode(),
            'late': lambda: method('unary_unary', 'Slow')(b'', timeout=0.5).decode(),
            'slow': lambda: method('unary_unary', 'Slow')(b'', timeout=60).decode(),
            'metadata': metadata, 'talk': talk, 'many': many,
            'break': lambda: repr(list(method('unary_stream', 'Break')(b'', timeout=60))),
            'count': lambda: str(sum(len(m) for m in method('unary_stream', 'Count')(b'2000', timeout=60))),
            'sum': lambda: method('stream_unary', 'Sum')(pieces(), timeout=60).decode()}


def ask(address, certificate, names):
    options = [('grpc.max_receive_message_length', -1), ('grpc.ssl_target_name_override', 'localhost')]
    if certificate:
        credentials = grpc.ssl_channel_credentials(open(certificate, 'rb').read())
        channel = grpc.secure_channel(address, credentials, options)
    else:
        channel = grpc.insecure_channel(address, options)
    with channel:
        known = calls(channel)
        for name in names:
            print(name, outcome(known[name]), flush=True)


if __name__ == '__main__':
    if sys.argv[1] == 'serve':
        serve(*sys.argv[2:6])
    else:
        ask(sys.argv[2], sys.argv[3], sys.argv[4:])
