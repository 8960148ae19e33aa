"""Answers of upstreams that two readers could understand differently, and what the next clients get.

Each answer comes over a kept connection, to one client after the other. Whatever its outcome, the next request on the
client's connection and the next one on the upstream's get their own answers; and what is stored is what was sent.
"""
import asyncio, fcntl, itertools, re, sys, termios
from peers import Folder, Server
from . import answer_forms, fastcgi_forms
from .answer_forms import EITHER, FAILURE, WHOLE
from .origins import BEGIN, PARAMS, STDIN, Closing, FastcgiOrigin, HttpOrigin, answer, echo, record, records
from .tried import ROUNDS
from .wire import SECONDS, Broken, Client, head

# Upstream groups, each with one kept connection, so that the next request is on the same one.
LANES = 16
MODES = ('kept', 'live', 'cached', 'head')


def configuration(http, fastcgi):
    groups, places = '', ''
    fastcgi_params = 'fastcgi_keep_conn on; fastcgi_param REQUEST_METHOD $request_method; ' \
        'fastcgi_param REQUEST_URI $request_uri; fastcgi_param CONTENT_LENGTH $content_length;'
    for lane in range(LANES):
        for kind, port in (('proxy', http), ('fastcgi', fastcgi)):
            groups += f'upstream {kind}{lane} {{ server 127.0.0.1:{port}; keepalive 1; }}\n'
            asks = f'proxy_pass http://proxy{lane};' if kind == 'proxy' else f'fastcgi_pass fastcgi{lane}; {fastcgi_params}'
            # Forms that may promise more than they bring are given up soon; what is whole is waited for, as what the next client asks for.
            for name, more in ('v', f'{kind}_read_timeout 1s;'), ('w', ''), ('next', ''):
                places += f'''location /{kind}/kept/{lane}/{name} {{ {asks} {more} }}
                  location /{kind}/head/{lane}/{name} {{ {asks} {more} }}
                  location /{kind}/live/{lane}/{name} {{ {asks} {more} {kind}_buffering off; }}
                  location /{kind}/cached/{lane}/{name} {{ {asks} {more} {kind}_cache {kind}; {kind}_cache_key $request_uri;
                    {kind}_cache_valid any 1m; add_header X-Cache $upstream_cache_status always; }}\n'''
    return f'''{groups}
    proxy_cache_path $dir/cache/p keys_zone=proxy:1m; fastcgi_cache_path $dir/cache/f keys_zone=fastcgi:1m;
    server {{ listen 127.0.0.1:$port; proxy_http_version 1.1; proxy_set_header Connection ""; {places} }}'''


class Attack:
    def __init__(self, tried, forms):
        self.tried, self.forms, self.late = tried, forms, {}

    def respond(self, own):
        """The answer that the target names by its number; to others their own."""
        def answered(request):
            found = re.search(r'/[vw](\d+)$', request.target)
            if not found:
                return own(request)
            form = self.forms[int(found[1])]
            if form.late:
                self.late[request.target] = request.writer
            return Closing(form.data) if form.closes else form.data
        return answered

    async def send_late(self, target, form):
        """Over the connection of the first answer, until the server has it: else it raced the next request, and had
        a right to win."""
        writer = self.late.pop(target, None)
        if writer is None:
            return
        writer.write(form.late)
        async with asyncio.timeout(SECONDS):
            while unacknowledged(writer):
                await asyncio.sleep(0.001)

    async def lane(self, port, kind, lane, numbers):
        for number in numbers:
            for mode in MODES:
                form = self.forms[number]
                case = f'{form.name}:{kind}:{mode}'
                if self.tried.wants(case):
                    self.case, self.form = case, form
                    await self.one(port, case, form, f'/{kind}/{mode}/{lane}/', number)

    async def one(self, port, case, form, place, number):
        method = 'HEAD' if '/head/' in place else 'GET'
        client = await Client.to(port)
        target, first = f'{place}{"w" if form.kind == WHOLE else "v"}{number}', True
        for _ in range(2 if '/cached/' in place else 1):
            client, got = await self.asked(port, client, method, target)
            self.judge(case, form, method, got, first)
            first = False
            if client:
                await self.send_late(target, form)
            for step in range(2):
                is_kept = client is not None
                if client is None:
                    client = await Client.to(port)
                own = f'{place}next-{number}-{step}'
                client, got = await self.asked(port, client, 'GET', own)
                if is_kept and (got is None or isinstance(got, ConnectionError)):
                    # A server may close a connection between two requests, whatever came before.
                    client, got = await self.asked(port, await Client.to(port), 'GET', own)
                wanted = f'GET {own} 0\n'.encode()
                is_own = not isinstance(got,
                                        Exception) and got is not None and got.status == 200 and got.body == wanted
                self.tried.check(case, is_own, f'the next client got {shown(got)}')
        if client:
            client.close()

    async def asked(self, port, client, method, target):
        """The answer, or what was wrong with it, and the connection if it goes on."""
        client.send(head(target, method))
        try:
            got = await client.answer(method)
        except (Broken, TimeoutError, ConnectionError) as problem:
            got = problem
        ended = got is None or isinstance(got, Exception) or (got.field('connection')
            or '').lower() == 'close'
        if ended:
            client.close()
        return (None if ended else client), got

    def judge(self, case, form, method, got, first):
        def check(holds, what):
            self.tried.check(case, holds, f'{what}: {shown(got)}')
        if got is None or isinstance(got, Exception):
            # It may break off; it may not be something else than HTTP.
            is_torn = got is None or isinstance(got, ConnectionError) or re.search('bytes of|without end',
                str(got))
            return check(form.kind in (EITHER, None) and is_torn, 'no answer')
        check(not got.field('x-unasked'), 'an answer without a request')
        check('interim' not in (got.field('set-cookie') or ''), 'a field of an interim answer')
        check(got.status >= 200, 'an interim answer as the last one')
        if method == 'HEAD' or form.kind is None:
            return None
        if got.status >= 500:
            return check(form.kind != WHOLE, 'no answer')
        check(form.kind != FAILURE, 'it was taken')
        if form.kind == WHOLE:
            return check(got.body == form.content, 'another content')
        # Without a length, or with one that is not understood, the body ends with the connection.
        return check(got.body == form.content or got.body in form.data or got.status not in (200, 206),
                     'another content')


def unacknowledged(writer):
    """How many bytes the other side's system does not have yet; none of a connection that has ended."""
    if writer.is_closing():
        return 0
    count = fcntl.ioctl(writer.get_extra_info('socket'), termios.TIOCOUTQ, bytes(4))
    return int.from_bytes(count, sys.byteorder) + writer.transport.get_write_buffer_size()


def shown(got):
    return repr(got)[:300]


async def spoken(tried, port, attack, origin):
    """After an application's 101 a client must not come to speak FastCGI itself: it would name the script."""
    def pair(name, value):
        return bytes([len(name), len(value)]) + name + value
    params = pair(b'REQUEST_METHOD', b'GET') + pair(b'REQUEST_URI', b'/chosen-by-the-client')
    begin = bytes([0, 1, 1, 0, 0, 0, 0, 0])
    own = record(BEGIN, begin) + record(PARAMS, params) + record(PARAMS) + record(STDIN)
    for number, form in enumerate(attack.forms):
        if 'Status:_101' not in form.name:
            continue
        for mode, upgrade in itertools.product(MODES[:3], (False, True)):
            case = f'records of a client, {form.name}, {"asked for an upgrade" if upgrade else "not asked"}:{mode}'
            if tried.wants(case):
                fields = {'Connection': 'upgrade', 'Upgrade': 'x'} if upgrade else {}
                async with await Client.to(port) as client:
                    client.send(head(f'/fastcgi/{mode}/0/v{number}', fields=fields))
                    await client.head()
                    client.send(own)
                    client.writer.write_eof()
                    await client.rest()
                tried.check(case, not origin.of('chosen-by-the-client'), 'the upstream took them')
                origin.seen.clear()


def random_forms(random, forms, count):
    """Known answers with up to three places changed: of them only what comes next is judged."""
    pieces = [b'\r', b'\n', b'\r\n', b'\0', b' ', b'\t', b':', b',', b'0', b'5', b'-', b'"', b'\xff',
              b'chunked', b'0\r\n\r\n', b'Content-Length: 5\r\n', b'Transfer-Encoding: chunked\r\n',
              b'HTTP/1.1 200 OK\r\n', b'HTTP/1.1 100 x\r\n\r\n', b'304', b'204']
    for number in range(count):
        data = random.choice(forms).data or b'HTTP/1.1'
        for _ in range(random.randint(1, 3)):
            at = random.randrange(len(data) + 1)
            data = data[:at] + random.choice((b'', *pieces)) + data[at +
                random.choice((0, 0, 1, 2, random.randint(0, 20))):]
        yield answer_forms.Form(f'random-{number}', data, None, b'', True)


async def run(tried):
    http = answer_forms.all_forms()
    http += random_forms(tried.random, http, ROUNDS)
    fastcgi = fastcgi_forms.all_forms()
    fastcgi += random_forms(tried.random, fastcgi, ROUNDS)
    attacks = {'proxy': Attack(tried, http), 'fastcgi': Attack(tried, fastcgi)}
    plain = b'Content-Type: text/plain\r\n\r\n'
    of_http = HttpOrigin(attacks['proxy'].respond(lambda request: answer(echo(request))))
    of_fastcgi = FastcgiOrigin(attacks['fastcgi'].respond(lambda request: records(plain + echo(request))),
                               raw=True)
    async with of_http, of_fastcgi:
        with Folder() as folder, Server(folder, configuration(of_http.port, of_fastcgi.port)) as server:
            lanes = [attack.lane(server.port, kind, lane, range(lane, len(attack.forms), LANES))
                     for kind, attack in attacks.items() for lane in range(LANES)]
            await asyncio.gather(*lanes)
            await spoken(tried, server.port, attacks['fastcgi'], of_fastcgi)
            for origin in (of_http, of_fastcgi):
                tried.check('the upstream', not origin.broken,
                            f'was sent what it cannot read: {origin.broken[:3]}')
            tried.alive(server)
