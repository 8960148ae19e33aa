"""What applications, visitors and files may say to the gateways and handlers that the other classes leave out: answers over
uwsgi and SCGI, cookies of `sticky`, places in FLV and MP4 files, and databases of `geoip2`.

Each gets an answer that is HTTP; of upstreams the next client gets its own; nothing ends the server, and memory stays within bounds.
"""
import asyncio, pathlib, re
from peers import YOROZU, Folder, Server
from videos import Track, movie
from .answers import Attack
from .fastcgi_forms import HEAD, heads
from .origins import Closing, HttpOrigin, ScgiOrigin, UwsgiOrigin, answer, echo
from .tried import ROUNDS
from .wire import SECONDS, Client, head

LANES = 8
MODES = ('kept', 'live', 'cached', 'head')
# Of what a server holds beyond what it needs for a request.
MEMORY = 32 << 20

PARAMS = ' '.join(f'$_param {name} ${value};' for name, value in (
    ('REQUEST_METHOD', 'request_method'), ('REQUEST_URI', 'request_uri'), ('CONTENT_LENGTH', 'content_length')))


def gateways(ports):
    places = ''
    for kind, port in ports.items():
        asks = f'{kind}_pass 127.0.0.1:{port}; ' + PARAMS.replace('$_', f'{kind}_')
        asks += 'scgi_param SCGI 1;' if kind == 'scgi' else ''
        cached = f'''{kind}_cache {kind}; {kind}_cache_key $request_uri; {kind}_cache_valid any 1m;
          add_header X-Cache $upstream_cache_status always;'''
        for lane in range(LANES):
            for mode, more in (('kept', ''), ('head', ''), ('live', f'{kind}_buffering off;'), ('cached', cached)):
                places += f'location /{kind}/{mode}/{lane}/ {{ {asks} {more} }}\n'
    caches = ' '.join(f'{kind}_cache_path $dir/cache/{kind} keys_zone={kind}:1m;' for kind in ports)
    return f'{caches} server {{ listen 127.0.0.1:$port; {places} }}'


async def answers(tried):
    """Heads of CGI as uwsgi and SCGI send them: without records around, up to the end of the connection."""
    # What speaks HTTP there is understood, as by nginx.
    forms = [form for form in heads(bytes) if 'answer_of_HTTP' not in form.name]
    forms += [type(forms[0])(f'torn-{cut:03}', (HEAD + b'hello')[:cut], 'either', b'hello') for cut in range(len(HEAD) + 5)]
    for form in forms:
        form.closes = True
    attacks = {kind: Attack(tried, forms) for kind in ('uwsgi', 'scgi')}
    own = lambda request: Closing(HEAD + echo(request))
    uwsgi, scgi = (kind(attacks[name].respond(own)) for name, kind in (('uwsgi', UwsgiOrigin), ('scgi', ScgiOrigin)))
    async with uwsgi, scgi:
        with Folder() as folder, Server(folder, gateways({'uwsgi': uwsgi.port, 'scgi': scgi.port})) as server:
            await asyncio.gather(*(attack.lane(server.port, kind, lane, range(lane, len(forms), LANES))
                                   for kind, attack in attacks.items() for lane in range(LANES)))
            for origin in (uwsgi, scgi):
                tried.check('the upstream', not origin.broken, f'was sent what it cannot read: {origin.broken[:3]}')
            tried.alive(server)


COOKIES = ['', 'x', '"', '""', ';', '=', ',', '%00', '%s%s%s%n', '../../a', 'a' * 31, 'a' * 32, 'a' * 33, 'f' * 4000, '\t', '\xff\xfe',
           '0' * 32, '127.0.0.1', 'unix:/a', '-1', str(1 << 64), 'route', 'route.b', 'B', 'a b', "' or 1", '${srv}', 'a, b']


async def sticky(tried):
    """Cookies that name no peer, another group's, or too much; sessions that an upstream invents without end."""
    def respond(request):
        fields = [('Set-Cookie', f'session={request.target}; path=/')] if 'learn' in request.target else []
        return answer(f'{request.target}', fields=fields)
    async with HttpOrigin(respond) as first, HttpOrigin(respond) as second:
        def group(name, how):
            return (f'upstream {name} {{ {how} server 127.0.0.1:{first.port} route=a; server 127.0.0.1:{second.port} route=b; }}\n')
        names = {'cookie': 'sticky cookie srv;', 'route': 'sticky route $cookie_srv $arg_srv;',
                 'learn': 'sticky learn create=$upstream_cookie_session lookup=$cookie_srv zone=sessions:64k;'}
        http = ''.join(group(name, how) for name, how in names.items())
        http += 'server { listen 127.0.0.1:$port; large_client_header_buffers 4 16k; keepalive_requests 10000;'
        http += ''.join(f'location /{name} {{ proxy_pass http://{name}; }}' for name in names) + '}'
        with Folder() as folder, Server(folder, http) as server:
            for name in names:
                values = COOKIES + [''.join(tried.random.choices('abcdef0123456789.;="%', k=40)) for _ in range(ROUNDS)]
                for number, value in enumerate(values):
                    for line in (f'srv={value}', f'srv={value}; srv=a', f'srv=b; srv={value}', f'x{value}; srv'):
                        case = f'cookie {name} {number} {line[:24]!r}'
                        if tried.wants(case):
                            await tried.attempt(case, own(server, f'/{name}/{number}', {'Cookie': line}))
            case = 'more sessions than the zone holds'
            if tried.wants(case):
                before = resident(server)
                async with await Client.to(server.port) as client:
                    for number in range(3000):
                        client.send(head(f'/learn/{number:x}{"s" * 500}'))
                        got = await client.answer('GET')
                        if not tried.check(case, got is not None and got.status == 200, f'got {got}'):
                            break
                grown = resident(server) - before
                tried.check(case, grown < MEMORY, f'grew by {grown} bytes')
            tried.alive(server)


async def own(server, target, fields):
    """Asks for what says its own target."""
    async with await Client.to(server.port) as client:
        client.send(head(target, fields=fields))
        got = await client.answer('GET')
        assert got is not None and got.status == 200 and got.body == target.encode(), f'got {got}'


def resident(server):
    status = pathlib.Path(f'/proc/{server.serving_pid}/status').read_text()
    return int(re.search(r'VmRSS:\s+(\d+)', status)[1]) << 10


TIMES = ['', '0', '-0', '-1', '0.001', '1', '1.5', '1e3', '.5', '5.', '1.5.5', ' 1', '+1', '0x1', 'nan', 'inf', '1000000', str(1 << 31), str(1 << 32),
         str(1 << 63), str(1 << 64), '9' * 40, '0.' + '9' * 40, '%00', '1%26', '1,5', '1;2']


def broken_movies(tried):
    """A movie with bytes of it lost, doubled, or replaced by what a reader could trust too much."""
    tracks = [Track(tried.random, number, True, True, False) for number in (1, 2)]
    whole = movie(tried.random, tracks)
    numbers = [bytes(4), b'\0\0\0\1', b'\0\0\0\7', b'\x7f\xff\xff\xff', b'\xff\xff\xff\xff', b'\x80\0\0\0']
    names = [b'moov', b'mvhd', b'trak', b'tkhd', b'mdia', b'mdhd', b'minf', b'stbl', b'stts', b'stss', b'ctts', b'stsc', b'stsz', b'stco', b'co64', b'mdat']
    for name in names:
        at = whole.find(name)
        if at < 4:
            continue
        for number in numbers:
            yield f'size of {name.decode()} {number.hex()}', whole[:at - 4] + number + whole[at:]
            yield f'entries of {name.decode()} {number.hex()}', whole[:at + 8] + number + whole[at + 12:]
        yield f'{name.decode()} of 64 bits', whole[:at - 4] + b'\0\0\0\1' + name + b'\xff' * 8 + whole[at + 12:]
        yield f'without {name.decode()}', whole[:at] + b'free' + whole[at + 4:]
        yield f'ends in {name.decode()}', whole[:at + 9]
        yield f'{name.decode()} twice', whole[:at - 4] + whole[at - 4:at + 40] + whole[at - 4:]
    for number in range(ROUNDS):
        data = bytearray(whole)
        for _ in range(tried.random.randint(1, 6)):
            at = tried.random.randrange(len(data) - 4)
            data[at:at + 4] = tried.random.choice(numbers)
        yield f'random {number}', bytes(data)


async def videos(tried):
    """Places that no file has, and files that are not what they are called."""
    with Folder() as folder:
        www = folder / 'www'
        www.mkdir()
        movies = dict(enumerate(broken_movies(tried)))
        for number, (_, data) in movies.items():
            (www / f'{number}.mp4').write_bytes(data)
        good = b'FLV\1\5\0\0\0\x09' + bytes(4) + bytes(range(256)) * 40
        for name, data in (('good', good), ('empty', b''), ('short', good[:5]), ('text', b'x' * 3000)):
            (www / f'{name}.flv').write_bytes(data)
            (www / f'{name}.mp4').write_bytes(data)
        (www / 'folder.flv').mkdir()
        http = f'''server {{ listen 127.0.0.1:$port; root {www}; location ~ \\.flv$ {{ flv; }} location ~ \\.mp4$ {{ mp4; mp4_max_buffer_size 1m; }} }}'''
        with Server(folder, http) as server:
            before = resident(server)
            asked = [(f'{name}.{kind}?{args}', f'{name}.{kind} {args}') for name in ('good', 'empty', 'short', 'text', 'folder', 'nothing')
                     for kind in ('flv', 'mp4') for time in TIMES
                     for args in (f'start={time}', f'start=1&end={time}', f'start={time}&start=1')]
            asked += [(f'{number}.mp4?{args}', f'{what} {args}') for number, (what, _) in movies.items()
                      for args in ('start=0.5', 'start=0.1&end=0.9', 'end=0.3', 'start=1000')]
            gate = asyncio.Semaphore(32)
            await asyncio.gather(*(part(tried, server, gate, target, case) for target, case in asked if tried.wants(case)))
            grown = resident(server) - before
            tried.check('all videos', grown < 2 * MEMORY, f'grew by {grown} bytes')
            tried.alive(server)


async def part(tried, server, gate, target, case):
    async def asked(fields):
        async with gate, await Client.to(server.port) as client:
            client.send(head('/' + target.replace(' ', '%20'), fields=fields))
            got = await client.answer('GET')
            assert got is not None and got.status in (200, 206, 301, 400, 403, 404, 416, 500), f'got {got}'
    await tried.attempt(case, asked({}))
    await tried.attempt(case, asked({'Range': 'bytes=0-9'}))


def field(kind, size, content=b''):
    """A value of a MaxMind database: its control byte, more of its size, its content."""
    first = min(size, 29)
    more = bytes([size - 29]) if size >= 29 else b''
    return (bytes([(kind << 5) | first]) if kind < 8 else bytes([first, kind - 7])) + more + content


def text(value):
    return field(2, len(value), value.encode())


def unsigned(kind, value):
    content = value.to_bytes((value.bit_length() + 7) // 8)
    return field(kind, len(content), content)


def table(*pairs):
    return field(7, len(pairs)) + b''.join(text(name) + value for name, value in pairs)


RECORD = table(('country', table(('iso_code', text('XX')))))


def database(record=RECORD, nodes=1, width=24, format=2, tree=None, ip=4, languages=field(11, 0), **more):
    """One node, both of whose branches lead to the record."""
    metadata = {'binary_format_major_version': unsigned(5, format), 'binary_format_minor_version': unsigned(5, 0),
                'build_epoch': unsigned(9, 1), 'database_type': text('T'), 'description': table(),
                'ip_version': unsigned(5, ip), 'languages': languages, 'node_count': unsigned(6, nodes),
                'record_size': unsigned(5, width), **more}
    tree = tree if tree is not None else 2 * (nodes + 16).to_bytes(width // 8 or 1)
    entries = [(name, value) for name, value in metadata.items() if value is not None]
    return tree + bytes(16) + record + b'\xab\xcd\xefMaxMind.com' + table(*entries)


def databases(tried):
    """Whole ones, and ones that lead a reader astray."""
    pointer = lambda to: bytes([0x20 | to >> 8, to & 255])
    yield 'as it should be', database()
    yield 'no file of the kind', b'x' * 1000
    yield 'empty', b''
    yield 'a marker alone', b'\xab\xcd\xefMaxMind.com'
    yield 'a pointer to itself', database(record=pointer(0))
    yield 'pointers in a circle', database(record=pointer(2) + pointer(0))
    yield 'a value that points to its map', database(record=field(7, 1) + text('country') + pointer(0))
    yield 'a key that is a pointer', database(record=field(7, 1) + pointer(0) + text('x'))
    yield 'a pointer beyond the end', database(record=bytes([0x38, 0xff, 0xff, 0xff, 0xff]))
    yield 'maps in maps', database(record=(field(7, 1) + text('a')) * 20000 + text('end'))
    yield 'arrays in arrays', database(record=field(11, 1) * 50000)
    yield 'a map that is longer than the file', database(record=bytes([0xff, 0xff, 0xff, 0xff]))
    yield 'a text that is longer than the file', database(record=bytes([0x5f, 0xff, 0xff, 0xff]))
    yield 'an array of 16 millions', database(record=bytes([0x1f, 4, 0xff, 0xff, 0xff]))
    for kind in range(16):
        yield f'a value of type {kind}', database(record=field(kind, 3, b'abc'))
        yield f'a country of type {kind}', database(record=field(7, 1) + text('country') + field(kind, 3, b'abc'))
        yield f'a code of type {kind}', database(record=table(('country', field(7, 1) + text('iso_code') + field(kind, 8, bytes(8)))))
    for nodes in (0, 2, 1000, (1 << 32) - 1):
        yield f'{nodes} nodes', database(nodes=nodes, tree=bytes(6))
    for width in (0, 1, 8, 24, 28, 32, 33, 255, 65535):
        yield f'records of {width} bits', database(width=width, tree=bytes(8))
    for format in (0, 1, 3, 65535):
        yield f'format {format}', database(format=format)
    for ip in (0, 5, 6, 65535):
        yield f'addresses of version {ip}', database(ip=ip)
    yield 'a tree that leads to itself', database(tree=bytes(6))
    yield 'a tree that leads beyond the end', database(tree=b'\xff' * 6)
    for name in ('node_count', 'record_size', 'ip_version', 'binary_format_major_version', 'languages'):
        yield f'without {name}', database(**{name: None})
        yield f'{name} is a text', database(**{name: text('x')})
    whole = database()
    for cut in range(0, len(whole), 7):
        yield f'ends after {cut}', whole[:cut]
    for number in range(ROUNDS):
        data = bytearray(whole)
        for _ in range(tried.random.randint(1, 4)):
            data[tried.random.randrange(len(data))] = tried.random.randrange(256)
        yield f'random {number}', bytes(data)


async def geoip2(tried):
    """Databases that are none, or whose trees, pointers and sizes lead nowhere: refused, or nothing is found."""
    with Folder() as folder:
        accepted, gate = {}, asyncio.Semaphore(4)

        async def tested(number, case, data):
            place = folder / f'{number}'
            place.mkdir()
            (place / 'a.mmdb').write_bytes(data)
            (place / 'conf').write_text(f'''pid {place}/pid; error_log {place}/error.log; events {{ }}
              http {{ access_log off; {variable(number, place)} server {{ listen 127.0.0.1:1; }} }}''')
            async with gate:
                process = await asyncio.create_subprocess_exec(YOROZU, '-t', '-p', f'{place}/', '-c', str(place / 'conf'),
                    stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE)
                try:
                    async with asyncio.timeout(SECONDS):
                        _, said = await process.communicate()
                except TimeoutError:
                    process.kill()
                    await process.wait()
                    return tried.failed(case, '-t does not end')
            tried.check(case, process.returncode in (0, 1) and b'panic' not in said, f'-t: {process.returncode} {said[-300:]}')
            if process.returncode == 0:
                accepted[number] = case, place

        forms = [(number, case, data) for number, (case, data) in enumerate(databases(tried)) if tried.wants(case)]
        await asyncio.gather(*(tested(*form) for form in forms))
        refused = {case for number, case, _ in forms if number not in accepted}
        tried.check('as it should be', 'as it should be' not in refused, 'was refused')
        if not accepted:
            return
        http = ''.join(variable(number, place) for number, (_, place) in accepted.items())
        http += 'server { listen 127.0.0.1:$port;'
        http += ''.join(f'location = /{number} {{ return 200 "[$code{number}]"; }}' for number in accepted) + '}'
        with Server(folder, http) as server:
            for number, (case, _) in accepted.items():
                await tried.attempt(case, code(server, number, case))
            tried.alive(server)


def variable(number, place):
    return f'geoip2 {place}/a.mmdb {{ $code{number} default=none country iso_code; }}\n'


async def code(server, number, case):
    async with await Client.to(server.port) as client:
        client.send(head(f'/{number}'))
        got = await client.answer('GET')
        assert got is not None and got.status == 200, f'got {got}'
        assert case != 'as it should be' or got.body == b'[XX]', f'got {got.body}'


async def run(tried):
    for family in (answers, sticky, videos, geoip2):
        await family(tried)
