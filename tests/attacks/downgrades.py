"""Requests of HTTP/2 and HTTP/3 whose fields would be another request as HTTP/1 or FastCGI; those of HTTP/2 beside Debian's
nginx.

Behind each follows a usual request on the same connection, or on the next one if that has ended. The upstream sees one
request at most for each, with no field that was none.
"""
import collections, re
from peers import NGINX, Folder, Server
from . import h3wire
from .h2wire import CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PADDED, Connection, frame, headers, literals, request
from .origins import FastcgiOrigin, HttpOrigin, answer, echo
from .tried import ROUNDS
from .wire import together

PLACES = ('http', 'live', 'fcgi', 'return')
REFUSED, TAKEN, EITHER = 'refused', 'taken', 'either'
HIDDEN = b'GET %T-hidden HTTP/1.1\r\nHost: a.test\r\n\r\n'


class Http2:
    """Requests as HTTP/2 writes them, on stream 1."""

    @staticmethod
    def get(fields):
        return headers(1, fields)

    @staticmethod
    def post(fields, *data, trailers=None):
        """A request with content."""
        frames = [headers(1, fields, end=False)]
        for at, piece in enumerate(data):
            is_last = at == len(data) - 1 and trailers is None
            frames.append(frame(DATA, END_STREAM if is_last else 0, 1, piece))
        if trailers is not None:
            frames.append(headers(1, trailers))
        return b''.join(frames)


class Http3:
    """And as HTTP/3 does: the stream ends behind it."""

    @staticmethod
    def get(fields):
        return h3wire.headers(fields)

    @staticmethod
    def post(fields, *data, trailers=None):
        content = b''.join(h3wire.frame(h3wire.DATA, piece) for piece in data)
        return h3wire.headers(fields) + content + (b'' if trailers is None else h3wire.headers(trailers))


def of_fields(name, kind, change):
    """A form whose request has its fields changed."""
    return name, kind, b'', lambda wire, target: wire.get(change(request(target)))


def injections():
    """Bytes that end a line of HTTP/1, in each place."""
    for label, end in (('CRLF', b'\r\n'), ('LF', b'\n'), ('CR', b'\r'), ('NUL', b'\0')):
        inside = b'a' + end + b'X-Injected: 1' + end + end + HIDDEN
        for place in (':path', ':authority', ':method', ':scheme'):
            def change(fields, place=place, end=end):
                target = dict(fields)[':path'].encode()
                more = end + b'X-Injected: 1' + end + end + HIDDEN.replace(b'%T', target)
                own = {':path': target + b' HTTP/1.1' + more, ':authority': b'a.test' + more,
                       ':method': b'GET ' + target + b' HTTP/1.1' + more, ':scheme': b'http' + more}
                return [(name, own[name] if name == place else value) for name, value in fields]
            yield of_fields(f'{label} in {place}', REFUSED, change)
        for where, field in (('a value', ('x', inside)), ('a name', (b'x' + end + b'x-injected', '1')),
                             ('a name before', (end + b'x-injected', '1')),
                             ('a value before', ('x', end + b'X-Injected: 1')),
                             ('a value behind', ('x', b'a' + end)), ('a cookie', ('cookie', inside)),
                             ('authorization', ('authorization', inside)),
                             ('host', ('host', b'a.test' + end + b'X-Injected: 1')),
                             ('content-type', ('content-type', inside)),
                             ('user-agent', ('user-agent', inside))):
            yield of_fields(f'{label} in {where}', REFUSED, lambda fields, field=field: [*fields, field])
    for name in (b'x: y', b'x injected', b'X-Upper', b'', b':', b'x:', b'x\t', b'x\x7f', b'x\x01', b'(x)',
                 b'"x"', b'x\xff'):
        kind = EITHER if name in (b'(x)', b'"x"') else REFUSED
        yield of_fields(f'the name {name!r}', kind, lambda fields, name=name: [*fields, (name, 'y')])
    for value in (b' y', b'y ', b'\ty', b'y\t', b'\x01', b'\x7f', b'\x1f', b'\xff', b''):
        yield of_fields(f'the value {value!r}', EITHER, lambda fields, value=value: [*fields, ('x', value)])


def pseudo_fields():
    def without(*names):
        return lambda fields: [field for field in fields if field[0] not in names]

    def instead(name, value):
        return lambda fields: [(key, value if key == name else old) for key, old in fields]

    def more(*added):
        return lambda fields: [*fields, *added]
    for name in (':method', ':scheme', ':path'):
        yield of_fields(f'no {name}', REFUSED, without(name))
        yield of_fields(f'{name} twice', REFUSED, lambda fields,
                        name=name: [*fields, (name, dict(fields)[name])])
        yield of_fields(f'empty {name}', EITHER if name == ':scheme' else REFUSED, instead(name, ''))
        yield of_fields(f'{name} behind fields', REFUSED,
                        lambda fields, name=name: [*without(name)(fields), ('x', 'y'),
                                                   (name, dict(fields)[name])])
    yield of_fields('no authority at all', REFUSED, without(':authority'))
    yield of_fields('host alone', EITHER, lambda fields: [*without(':authority')(fields), ('host', 'a.test')])
    yield of_fields(':authority twice', REFUSED, more((':authority', 'b.test')))
    yield of_fields('host as :authority', EITHER, more(('host', 'a.test')))
    yield of_fields('another host', EITHER, more(('host', 'evil.test')))
    yield of_fields('host twice', REFUSED, lambda fields: [*without(':authority')(fields), ('host', 'a.test'),
                                                           ('host', 'b.test')])
    for authority in ('', 'user@a.test', 'a.test/x', 'a.test?x', 'a b', 'a.test,b.test', '..', 'a.test:x',
                      'a.test:', '/', 'a#b', 'a\\b'):
        kind = REFUSED if authority in ('a.test/x', 'a b', '..', '/', '') else EITHER
        yield of_fields(f'the authority {authority!r}', kind, instead(':authority', authority))
    for path in ('x', '*', 'http://a.test/x', '//a', '?x', '/ x', '/x HTTP/1.1', '/\tx', '/x#y', '/\x7f',
                 '/\xff', ' /x', '', '..', '/x\x0b'):
        kind = REFUSED if path in ('x', '*', '?x', '/ x', '/x HTTP/1.1', '/\tx', ' /x', '', '..', '/\x7f',
                                   '/x\x0b') else EITHER
        yield of_fields(f'the path {path!r}', kind, instead(':path', path))
    for method in ('GET ', ' GET', 'GE T', 'get', 'GET\t', 'GET /x', 'CONNECT', 'PRI', 'G:T', '(GET)',
                   'GET\xff', 'TRACE', 'FOO'):
        kind = EITHER if method in ('TRACE', 'FOO', 'PRI', '(GET)', 'CONNECT', 'G:T') else REFUSED
        yield of_fields(f'the method {method!r}', kind, instead(':method', method))
    for scheme in ('https', 'ftp', 'http ', 'http://a', 'HTTP', 'http://evil/x?'):
        yield of_fields(f'the scheme {scheme!r}', EITHER, instead(':scheme', scheme))
    for name in (':status', ':protocol', ':x', ':path ', ':PATH'):
        yield of_fields(f'the field {name!r}', REFUSED, more((name, 'x')))


def connection_fields():
    for name, value in (('connection', 'close'), ('connection', 'x-injected'), ('keep-alive', '1'),
                        ('proxy-connection', 'close'), ('transfer-encoding', 'chunked'),
                        ('transfer-encoding', 'identity'), ('upgrade', 'h2c'), ('upgrade', 'websocket'),
                        ('transfer-encoding', ''), ('te', 'gzip'), ('te', 'trailers, gzip')):
        yield of_fields(f'{name}: {value}', REFUSED if name == 'transfer-encoding' else EITHER,
                        lambda fields, name=name, value=value: [*fields, (name, value)])
        yield (f'{name}: {value} with content', REFUSED if name == 'transfer-encoding' else EITHER,
               b'0\r\n\r\n' + HIDDEN, lambda wire, target, name=name, value=value: wire.post(
                   request(target, 'POST', fields=[(name, value)]),
                   b'0\r\n\r\n' + HIDDEN.replace(b'%T', target.encode())))
    yield of_fields('te: trailers', TAKEN, lambda fields: [*fields, ('te', 'trailers')])
    yield of_fields('http2-settings', TAKEN, lambda fields: [*fields, ('http2-settings', 'AAMAAABk')])
    yield of_fields('expect', TAKEN, lambda fields: [*fields, ('expect', '100-continue')])
    yield of_fields('cookies', TAKEN, lambda fields: [*fields, ('cookie', 'a=b'), ('cookie', 'c=d')])


def lengths():
    def said(value, *data, trailers=None):
        return lambda wire, target: wire.post(request(target, 'POST', fields=[('content-length', value)]),
                                   *[piece.replace(b'%T', target.encode()) for piece in data],
                                   trailers=trailers)
    yield 'the right length', TAKEN, b'hello', said('5', b'hello')
    yield 'in pieces', TAKEN, b'hello', said('5', b'he', b'', b'llo', b'')
    yield 'no length', TAKEN, b'hello', lambda wire, target: wire.post(request(target, 'POST'), b'hello')
    # An empty frame is not a chunk: as one it would be the last, and the next would begin another request.
    yield 'no length, the end in a separate frame', TAKEN, b'hello', lambda wire, target: wire.post(
        request(target, 'POST'), b'hello', b'')
    yield 'no length, empty frames', TAKEN, b'hello', lambda wire, target: wire.post(
        request(target, 'POST'), b'', b'he', b'', b'', b'llo', b'')
    yield 'no length, one empty frame', TAKEN, b'', lambda wire, target: wire.post(request(target, 'POST'), b'')
    yield 'no content', TAKEN, b'', lambda wire, target: wire.get(request(target, 'POST'))
    # Sent on without a buffer it is a request without content, which it stays.
    yield 'length 0 of 5', EITHER, b'', said('0', b'hello')
    yield 'a request behind a length of 0', EITHER, b'', said('0', HIDDEN)
    for value in ('4', '6', '500', '-5', '+5', 'x', '5, 5', '5,6', '', '0x5', '5.0', '18446744073709551621',
                  '5 5'):
        yield f'length {value!r} of 5', REFUSED, b'', said(value, b'hello')
    yield 'a request behind the length', REFUSED, b'', said('5', b'hello' + HIDDEN)
    yield 'a request behind it, apart', REFUSED, b'', said('5', b'hello', HIDDEN)
    yield 'less, and trailers', REFUSED, b'', said('500', b'hello', trailers=[('x', 'y')])
    yield 'length without DATA', REFUSED, b'', lambda wire, target: wire.get(
        request(target, 'POST', fields=[('content-length', '5')]))
    for pair in (('5', '5'), ('5', '6'), ('0', '5')):
        yield f'lengths {pair}', REFUSED, b'', lambda wire, target, pair=pair: wire.post(
            request(target, 'POST', fields=[('content-length', value) for value in pair]), b'hello')
    yield 'GET with content', TAKEN, HIDDEN, lambda wire, target: wire.post(request(target),
        HIDDEN.replace(b'%T', target.encode()))
    yield 'a request as content', TAKEN, HIDDEN, lambda wire, target: wire.post(request(target, 'POST'),
        HIDDEN.replace(b'%T', target.encode()))
    yield 'chunks as content', TAKEN, b'0\r\n\r\n' + HIDDEN, lambda wire, target: wire.post(
        request(target, 'POST'), b'0\r\n\r\n' + HIDDEN.replace(b'%T', target.encode()))


def trailers():
    for label, fields in (('usual', [('x', 'y')]), ('a length', [('content-length', '500')]),
                          ('a coding', [('transfer-encoding', 'chunked')]),
                          ('a host', [('host', 'evil.test')]), ('authorization', [('authorization', 'x')]),
                          ('none', []), (':path', [(':path', '/x')]), (':method', [(':method', 'PUT')]),
                          ('CRLF', [('x', 'a\r\nX-Injected: 1')]), ('a name', [('x\r\nx-injected', '1')]),
                          ('upper case', [('X', 'y')]), ('x-injected', [('x-injected', '1')])):
        yield (f'trailers: {label}', EITHER, b'hello',
               lambda wire, target, fields=fields: wire.post(request(target, 'POST'), b'hello', trailers=fields))


def framing():
    def torn(_, target):
        block = literals(request(target))
        return frame(HEADERS, END_STREAM, 1, block[:9]) + frame(CONTINUATION, 0, 1, block[9:20]) + \
            frame(CONTINUATION, END_HEADERS, 1, block[20:])
    yield 'CONTINUATION', TAKEN, b'', torn
    yield 'CONTINUATION of another stream', REFUSED, b'', lambda _, target: frame(HEADERS, END_STREAM, 1,
        literals(request(target))) + \
        frame(CONTINUATION, END_HEADERS, 3, literals([('x-injected', '1')]))
    yield 'DATA in a block', REFUSED, b'', lambda _, target: frame(HEADERS, 0, 1,
        literals(request(target))) + frame(DATA, 0, 1, b'x')
    yield 'stream 0', REFUSED, b'', lambda _, target: headers(0, request(target))
    yield 'stream 2', REFUSED, b'', lambda _, target: headers(2, request(target))
    yield 'DATA behind the end', EITHER, b'', lambda _, target: headers(1, request(target)) + frame(DATA,
        END_STREAM, 1, b'x')
    yield 'HEADERS behind the end', EITHER, b'', lambda _, target: headers(1, request(target)) * 2
    yield 'padding beyond the frame', REFUSED, b'', lambda _, target: frame(
        HEADERS, END_HEADERS | END_STREAM | PADDED, 1, b'\xff' + literals(request(target))[:99])
    yield 'a block torn off', REFUSED, b'', lambda _, target: frame(HEADERS, END_HEADERS | END_STREAM, 1,
        literals(request(target))[:-1])
    yield 'an unknown index', REFUSED, b'', lambda _, target: frame(HEADERS, END_HEADERS | END_STREAM, 1,
        literals(request(target)) + b'\xfe')
    yield 'index 0', REFUSED, b'', lambda _, target: frame(HEADERS, END_HEADERS | END_STREAM, 1,
                                                        literals(request(target)) + b'\x80')
    yield 'an endless number', REFUSED, b'', lambda _, target: frame(
        HEADERS, END_HEADERS | END_STREAM, 1, literals(request(target)) + b'\x7f' + b'\xff' * 20)
    yield 'a table too large', REFUSED, b'', lambda _, target: frame(
        HEADERS, END_HEADERS | END_STREAM, 1, b'\x3f\xe1\xff\xff\x7f' + literals(request(target)))
    yield 'an unknown frame', TAKEN, b'', lambda _, target: frame(200, 255, 1, b'x') + headers(1,
        request(target))
    yield 'padded', TAKEN, b'hello', lambda _, target: headers(1, request(target, 'POST'), end=False) + frame(
        DATA, END_STREAM | PADDED, 1, b'\3hello' + b'x' * 3)
    yield 'trailers without END_STREAM', REFUSED, b'', lambda _, target: Http2.post(
        request(target, 'POST'), b'hello', trailers=[])[:-9] + headers(1, [('x', 'y')], end=False)


def framing_of_http3():
    head = lambda target: h3wire.get(target)
    post = lambda target: h3wire.headers(request(target, 'POST'))
    data = h3wire.frame(h3wire.DATA, b'hello')
    yield 'unknown frames', TAKEN, b'hello', lambda _, target: h3wire.frame(33, b'x') + post(target) + h3wire.frame(
        33) + data + h3wire.frame(0x1f * 9 + 33, HIDDEN)
    yield 'a length of more bytes than it needs', TAKEN, b'hello', lambda _, target: post(
        target) + b'\0\xc0' + (5).to_bytes(7) + b'hello'
    yield 'DATA first', REFUSED, b'', lambda _, target: data + head(target)
    yield 'a third section', REFUSED, b'', lambda _, target: post(target) + data + h3wire.headers([('x', 'y')]) * 2
    yield 'DATA behind trailers', REFUSED, b'', lambda _, target: post(target) + h3wire.headers([('x', 'y')]) + data
    for kind in (2, 3, 4, 5, 6, 7, 8, 9, 13):
        yield f'a frame of type {kind}', REFUSED, b'', lambda _, target, kind=kind: h3wire.frame(kind, b'\0') + head(target)
    yield 'a frame without its end', REFUSED, b'', lambda _, target: head(target)[:-1]
    yield 'content without its end', REFUSED, b'', lambda _, target: post(target) + data[:-1]
    yield 'a section torn off', REFUSED, b'', lambda _, target: h3wire.frame(
        h3wire.HEADERS, h3wire.section(request(target))[:-1])
    for label, rest in (('an unknown index', b'\xff\x24'), ('an entry of an empty table', b'\x80'),
                        ('one behind the base', b'\x10'), ('an endless number', b'\xff' * 20),
                        ('a wrong code', b'\x51\x81\x18')):
        yield label, REFUSED, b'', lambda _, target, rest=rest: h3wire.frame(
            h3wire.HEADERS, h3wire.section(request(target)) + rest)
    yield 'no head', REFUSED, b'', lambda _, target: b''


BOTH = injections, pseudo_fields, connection_fields, lengths, trailers


def all_forms(*families):
    for family in families:
        for form in family():
            yield (f'{family.__name__}: {form[0]}', *form[1:])


def random_forms(random, count):
    names = [b':path', b':method', b':authority', b':scheme', b'x', b'host', b'cookie', b'content-length',
             b'transfer-encoding', b'te']
    pieces = [b'\r\n', b'\n', b'\r', b'\0', b' ', b'\t', b':', b'/', b'?', b'#', b'@', b'\x7f', b'\x01',
              b'\xff', b'%0d%0a', b'HTTP/1.1', b'X-Injected: 1']
    for index in range(count):
        changes = [(random.choice(names), random.choice(pieces), random.random())
                   for _ in range(random.randint(1, 3))]

        def change(fields, changes=changes):
            out = [(name.encode(), value.encode()) for name, value in fields]
            for name, piece, at in changes:
                known = [position for position, (key, _) in enumerate(out) if key == name]
                if not known:
                    out.append((name, piece))
                for position in known:
                    value = out[position][1]
                    cut = int(at * (len(value) + 1))
                    out[position] = (name, value[:cut] + piece + value[cut:])
            return out
        yield of_fields(f'random-{index}', None, change)


class Attack:
    def __init__(self, tried):
        self.tried, self.seen, self.servers = tried, collections.defaultdict(list), ()

    def notes(self, answered):
        def respond(request):
            found = re.match(r'.*?(/[a-z]+/[ynq]\d+)', request.target)
            self.seen[found[1] if found else None].append(request)
            return answered(echo(request))
        return respond

    async def one(self, index, form, place):
        name, kind, content, frames = form
        case = f'{name}:{place}'
        if not self.tried.wants(case):
            return
        took = []
        for initial, server in zip('yn', self.servers):
            target = f'/{place}/{initial}{index}'
            got, behind = await self.sent(server.port, frames(Http2, target), target)
            took.append(got)
            if initial == 'y':
                self.judge(case, kind, place, target, got, behind, content)
        if kind == REFUSED and took[0] and not took[1]:
            self.tried.failed(case, 'taken, and refused by nginx')

    async def one_of_http3(self, index, form, place):
        name, kind, content, frames = form
        case = f'HTTP/3: {name}:{place}'
        if not self.tried.wants(case):
            return
        target = f'/{place}/q{index}'
        got, behind = await self.sent_by_http3(self.servers[0].port, frames(Http3, target), target)
        self.judge(case, kind, place, target, got, behind, content)

    async def sent(self, port, data, target):
        """What came of the request, and of the one behind it."""
        async with await Connection.to(port, first=data + headers(5, request(f'{target}-behind'))) as connection:
            got = await connection.answer(1)
            behind = await connection.answer(5)
        if behind is None:
            async with await Connection.to(port, first=headers(1, request(f'{target}-behind'))) as connection:
                behind = await connection.answer(1)
        return self.is_taken(target, got), behind

    async def sent_by_http3(self, port, data, target):
        async with await h3wire.Connection.to(port) as connection:
            first, second = connection.ask(data), connection.ask(h3wire.get(f'{target}-behind'))
            got, behind = await connection.content(first), await connection.content(second)
        if behind is None:
            async with await h3wire.Connection.to(port) as connection:
                behind = await connection.content(connection.ask(h3wire.get(f'{target}-behind')))
        return self.is_taken(target, got), behind

    def is_taken(self, target, got):
        return got is not None and got.startswith((b'GET ', b'POST ', b'returned')) or bool(
            [one for one in self.seen[target] if one.target == target])

    def judge(self, case, kind, place, target, got, behind, content):
        for problem in self.judged(kind, place, target, got, behind, content.replace(b'%T', target.encode())):
            self.tried.failed(case, f'{problem}'[:400])

    def judged(self, kind, place, target, got, behind, content):
        own = b'returned' if place == 'return' else f'GET {target}-behind 0\n'.encode()
        if behind != own:
            yield f'the next client got {behind!r}'
        if kind == TAKEN and not got:
            yield 'not taken'
        if kind == REFUSED and got and place != 'return':
            yield 'taken'
        seen = self.seen[target]
        if len([one for one in seen if one.target == f'{target}-behind']) > 2 or len(seen) > 4:
            yield f'the upstream saw {[one.target for one in seen]}'
        for one in seen:
            if 'hidden' in one.target and kind is not None or one.field('x-injected') or one.field('http_x_injected'):
                yield f'the upstream saw {one.method} {one.target} {one.fields}'
            if one.target == target and kind is not None and one.body != content:
                yield f'the upstream saw the content {one.body!r}'
            if one.field('host') == 'evil.test':
                yield 'a trailer or another host became the host'


def configuration(http, fastcgi, listen=''):
    # A client over QUIC is waited for while it shakes hands, and until it asks, each as long as for a head. Here it computes with
    # many others on a busy machine; and its streams have their ends, so that no form waits for more.
    patient = 'client_header_timeout 60s; client_body_timeout 60s; keepalive_timeout 60s;'
    over_quic = f'server {{ {listen} {patient} {places()} }}' if listen else ''
    return f'''
    client_header_timeout 1s; client_body_timeout 1s; keepalive_timeout 2s;
    upstream http {{ server 127.0.0.1:{http}; keepalive 8; }}
    upstream fcgi {{ server 127.0.0.1:{fastcgi}; keepalive 8; }}
    server {{ listen 127.0.0.1:$port http2; {places()} }} {over_quic}'''


def places():
    return '''proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $host;
      location /http/ { proxy_pass http://http; }
      location /live/ { proxy_pass http://http; proxy_request_buffering off; proxy_buffering off; }
      location /fcgi/ { fastcgi_pass fcgi; fastcgi_keep_conn on; fastcgi_param REQUEST_METHOD $request_method;
        fastcgi_param REQUEST_URI $request_uri; fastcgi_param CONTENT_LENGTH $content_length; }
      location /return/ { return 200 returned; }'''


async def run(tried):
    attack = Attack(tried)
    http = HttpOrigin(attack.notes(answer))
    fastcgi = FastcgiOrigin(attack.notes(lambda content: b'Content-Type: text/plain\r\n\r\n' + content))
    async with http, fastcgi:
        with Folder() as folder:
            conf = configuration(http.port, fastcgi.port)
            with_quic = configuration(http.port, fastcgi.port, h3wire.listen(folder))
            with Server(folder, with_quic) as yorozu, Server(folder, conf, NGINX) as nginx:
                attack.servers = (yorozu, nginx)
                await all_of(attack)
                for origin in (http, fastcgi):
                    tried.check('the upstream', not origin.broken,
                                f'was sent what it cannot read: {origin.broken[:3]}')
                tried.alive(yorozu)


async def all_of(attack):
    random = list(random_forms(attack.tried.random, ROUNDS))
    http2 = enumerate([*all_forms(*BOTH, framing), *random])
    http3 = enumerate([*all_forms(*BOTH, framing_of_http3), *random])
    await together([attack.one(index, form, place) for index, form in http2 for place in PLACES], 100)
    if not attack.tried.lacks(h3wire.LACKS):
        await together([attack.one_of_http3(index, form, place) for index, form in http3 for place in PLACES], 30)
