"""Visitors who ask for one page at the same moment, some of them with things of their own: no visitor gets what was made for
another one, unless the page may be everybody's."""
import asyncio, dataclasses, re
from peers import Folder, Server
from .origins import Closing, FastcgiOrigin, HttpOrigin, answer
from .tried import ROUNDS
from .wire import ask, together

VISITORS = {
    'ann': {},
    'ben': {},
    'session': {'Cookie': 'session=s'},
    'bearer': {'Authorization': 'Bearer b'},
    'unstored': {'X-No-Cache': '1'},
    'bypass': {'X-Bypass': '1'},
    'german': {'Accept-Language': 'de'},
    'themed': {'Cookie': 'theme=dark'},
    'forwarded': {'X-Forwarded-Host': 'evil.test'},
    'content': {'Content-Length': '5'},
}


@dataclasses.dataclass
class Kind:
    """Of an answer: whether it may be shared, also if it was made for a request with Authorization, and what it varies on."""
    name: str
    fields: dict
    status: str = '200 OK'
    is_shared: bool = True
    is_public: bool = False
    varies: str = ''


KINDS = [
    Kind('plain', {}),
    Kind('max-age', {'Cache-Control': 'max-age=60'}),
    Kind('public', {'Cache-Control': 'public, max-age=60'}, is_public=True),
    Kind('s-maxage', {'Cache-Control': 's-maxage=60'}, is_public=True),
    Kind('must-revalidate', {'Cache-Control': 'max-age=60, must-revalidate'}, is_public=True),
    Kind('x-accel-expires', {'X-Accel-Expires': '60'}, is_public=True),
    Kind('private', {'Cache-Control': 'private, max-age=60'}, is_shared=False),
    Kind('no-store', {'Cache-Control': 'no-store'}, is_shared=False),
    Kind('no-cache', {'Cache-Control': 'no-cache'}, is_shared=False),
    Kind('expired', {'Cache-Control': 'max-age=0'}, is_shared=False),
    Kind('x-accel-expires-0', {'X-Accel-Expires': '0'}, is_shared=False),
    Kind('set-cookie', {'Cache-Control': 'max-age=60', 'Set-Cookie': 'id=VISITOR'}, is_shared=False),
    Kind('vary-all', {'Cache-Control': 'max-age=60', 'Vary': '*'}, is_shared=False),
    Kind('vary-cookie', {'Cache-Control': 'max-age=60', 'Vary': 'Cookie'}, varies='Cookie'),
    Kind('vary-language', {'Cache-Control': 'max-age=60', 'Vary': 'Accept-Language'},
         varies='Accept-Language'),
    Kind('vary-authorization', {'Cache-Control': 'public, max-age=60', 'Vary': 'Authorization'},
         is_public=True, varies='Authorization'),
    Kind('not found', {}, '404 Not Found'),
    Kind('unauthorized', {'Cache-Control': 'max-age=60'}, '401 Unauthorized'),
    Kind('failure', {}, '500 Internal Server Error', is_shared=False),
]
FRAMINGS = ('length', 'chunked', 'close', 'fastcgi')
SPEEDS = ('fast', 'slow head', 'slow content')


def may_share(kind, maker, reader):
    """Whether the answer that was made for one visitor may go to another."""
    if maker == reader:
        return True
    if reader in ('session', 'bypass') or maker in ('session', 'unstored', 'forwarded',
                                                    'content') or not kind.is_shared:
        return False
    if maker == 'bearer' and not kind.is_public:
        return False
    return not kind.varies or VISITORS[maker].get(kind.varies) == VISITORS[reader].get(kind.varies)


def page(visitor, target):
    """Each line names the visitor it was made for, so that a mixture shows."""
    return ''.join(f'{visitor} {target} {line}\n' for line in range(150)).encode()


def pieces(request, kind, framing, visitor):
    body = page(visitor, request.target)
    fields = {name: value.replace('VISITOR', visitor) for name, value in kind.fields.items()}
    if framing == 'fastcgi':
        head = ''.join(f'{name}: {value}\r\n' for name, value in [('Status', kind.status), *fields.items()])
        return head.encode() + b'Content-Type: text/plain\r\n\r\n' + body
    if framing == 'length':
        return answer(body, kind.status, fields)
    if framing == 'close':
        return Closing(answer(body, kind.status, fields, length=False))
    chunks = b''.join(b'%x\r\n%s\r\n' % (len(body[at:at + 1000]), body[at:at + 1000])
                      for at in range(0, len(body), 1000))
    return answer(b'', kind.status, {**fields, 'Transfer-Encoding': 'chunked'},
                  length=False) + chunks + b'0\r\n\r\n'


async def respond(request):
    """/framing/kind/speed/first"""
    _, framing, kind, speed, *_ = request.target.split('/')
    visitor = request.field('x-request-id') or request.field('http_x_request_id')
    kind, speed = KINDS[int(kind)], SPEEDS[int(speed)]
    if speed == 'slow head':
        await asyncio.sleep(0.04)
    whole = pieces(request, kind, framing, visitor)
    # What FastCGI sends is framed by its origin as a whole.
    if speed == 'slow content' and framing != 'fastcgi':
        request.writer.write(whole[:len(whole) // 2])
        await asyncio.sleep(0.04)
        return type(whole)(whole[len(whole) // 2:])
    return whole


def configuration(http, fastcgi):
    def cached(kind):
        return f'''{kind}_cache {kind}; {kind}_cache_key $scheme$host$request_uri; {kind}_cache_lock on; {kind}_cache_valid 200 404 1m;
            {kind}_cache_bypass $cookie_session $http_x_bypass; {kind}_no_cache $cookie_session $http_x_no_cache;'''
    params = ' '.join(f'fastcgi_param {name} {value};' for name, value in (
        ('REQUEST_METHOD', '$request_method'), ('REQUEST_URI', '$request_uri'),
        ('CONTENT_LENGTH', '$content_length')))
    return f'''proxy_cache_path $dir/cache/p keys_zone=proxy:4m; fastcgi_cache_path $dir/cache/f keys_zone=fastcgi:4m;
    upstream http {{ server 127.0.0.1:{http}; keepalive 32; }} upstream fcgi {{ server 127.0.0.1:{fastcgi}; keepalive 32; }}
    server {{ listen 127.0.0.1:$port backlog=2048; proxy_http_version 1.1; proxy_set_header Connection "";
      location / {{ proxy_pass http://http; {cached('proxy')} }}
      location /fastcgi/ {{ fastcgi_pass fcgi; fastcgi_keep_conn on; {params} {cached('fastcgi')} }} }}'''


async def crowd(tried, port, framing, kind, speed, first):
    """One visitor comes first, the others while the page is made; then all come again."""
    target = f'/{framing}/{kind}/{speed}/{first}'
    others = [name for name in VISITORS if name != first]

    async def visit(name, wave):
        case = f'{KINDS[kind].name}, {SPEEDS[speed]}, {framing}, first {first}, then {name}, {wave}'
        if not tried.wants(case):
            return
        body = b'hello' if name == 'content' else b''
        got = await ask(port, target, body=body, fields={**VISITORS[name], 'X-Request-Id': name})
        if not tried.check(case, got is not None and got.status == int(KINDS[kind].status[:3]),
                           f'got {got!r}'[:300]):
            return
        found = re.fullmatch(rb'(\w+) .*\n', got.body[:got.body.find(b'\n') + 1])
        maker = found[1].decode() if found else ''
        tried.check(case, maker in VISITORS and got.body == page(maker, target),
                    f'a broken page: {got.body[:80]!r}')
        tried.check(case, maker not in VISITORS or may_share(KINDS[kind], maker, name),
                    f'got the page of {maker}')
        cookie = got.field('set-cookie')
        tried.check(case, cookie in (None, f'id={name}'), f'got the cookie {cookie}')
    begun = asyncio.create_task(visit(first, 'making'))
    await asyncio.sleep(0.005)
    await asyncio.gather(begun, *[visit(name, 'making') for name in others])
    for name in (*others, first):
        await visit(name, 'again')


async def run(tried):
    http, fastcgi = HttpOrigin(respond), FastcgiOrigin(respond)
    async with http, fastcgi:
        with Folder() as folder, Server(folder, configuration(http.port, fastcgi.port)) as server:
            share = 3 if ROUNDS < 1000 else 1
            crowds = [crowd(tried, server.port, FRAMINGS[(kind + speed + at) % len(FRAMINGS)], kind, speed,
                            first)
                      for kind in range(len(KINDS)) for speed in range(len(SPEEDS))
                      for at, first in enumerate(VISITORS) if (kind + speed + at) % share == 0]
            await together(crowds, 24)
            for origin in (http, fastcgi):
                tried.check('the upstream', not origin.broken,
                            f'was sent what it cannot read: {origin.broken[:3]}')
            tried.alive(server)
