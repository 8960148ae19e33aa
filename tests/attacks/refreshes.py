"""Stored pages that are refreshed, and requests that go on elsewhere: what one visitor sends or gets on the way reaches no other.

Four kinds: 304s and refreshes that a visitor with things of his own sets off; refreshes and subrequests of requests with
content, which may announce no content that they do not send; pages of uncached locations that a cached one leads to; and
many that may not store, while one page expires.
"""
import asyncio, contextlib, itertools, re
from peers import Folder, Server
from .origins import FastcgiOrigin, HttpOrigin, answer
from .wire import SECONDS, Broken, Client, ask, head, together

TOKEN = 'a-secret-of-sixteen-bytes-or-more'
# Requests while the page is expired: method, content, fields.
VISITORS = {
    'plain': ('GET', b'', {}),
    'authorization': ('GET', b'', {'Authorization': 'Bearer bob'}),
    'basic': ('GET', b'', {'Authorization': 'Basic Ym9iOmJvYg=='}),
    'no_cache cookie': ('GET', b'', {'Cookie': 'session=bob'}),
    'another host': ('GET', b'', {'X-Forwarded-Host': 'bob.test'}),
    'another scheme': ('GET', b'', {'X-Forwarded-Proto': 'bob'}),
    'forwarded': ('GET', b'', {'Forwarded': 'host=bob.test'}),
    'another URL': ('GET', b'', {'X-Original-URL': '/bob'}),
    'another method': ('GET', b'', {'X-HTTP-Method-Override': 'BOB'}),
    'content': ('GET', b'bob=1', {}),
    'chunks': ('GET', b'5\r\nbob=1\r\n0\r\n\r\n', {'Transfer-Encoding': 'chunked'}),
    'HEAD': ('HEAD', b'', {'X-Own': 'bob'}),
    'HEAD, the new validator': ('HEAD', b'', {'If-None-Match': '"v2"'}),
    'HEAD, the old validator': ('HEAD', b'', {'If-None-Match': '"v1"'}),
    'HEAD, any validator': ('HEAD', b'', {'If-None-Match': '*'}),
    'HEAD, a late date': ('HEAD', b'', {'If-Modified-Since': 'Tue, 01 Jan 2030 00:00:00 GMT'}),
    'the new validator': ('GET', b'', {'If-None-Match': '"v2"'}),
    'any validator': ('GET', b'', {'If-None-Match': '*'}),
    'a late date': ('GET', b'', {'If-Modified-Since': 'Tue, 01 Jan 2030 00:00:00 GMT'}),
    'If-Match': ('GET', b'', {'If-Match': '"bob"'}),
    'authorization, the new validator': ('GET', b'',
                                         {'Authorization': 'Bearer bob', 'If-None-Match': '"v2"'}),
    'content, the new validator': ('GET', b'bob=1', {'If-None-Match': '"v2"'}),
    'a range': ('GET', b'', {'Range': 'bytes=0-1', 'If-Range': '"bob"'}),
}
# How an expired page is refreshed, and where the new version shows.
MODES = ('plain', 'updating', 'swr', 'methodless')
KINDS = ('proxy', 'fastcgi')


class Versions:
    """An origin whose pages have a version each, known to conditional requests; a 304 names the visitor."""

    def __init__(self):
        self.version = {}

    def respond(self, request):
        page = request.target.partition('?')[0]
        version = self.version.get(page, 'v1')
        fields = {'ETag': f'"{version}"', 'Cache-Control': 'max-age=1' +
                  (', stale-while-revalidate=60' if '/swr/' in page else ''),
                  'Last-Modified': 'Sat, 01 Jan 2022 00:00:00 GMT'}
        said = [f'{name} {value}' for name, value in request.fields if 'bob' in value.lower()]
        if said:
            fields.update({'X-User': 'bob', 'Link': '<//bob.test/>; rel=preload',
                           'Content-Security-Policy': 'default-src bob.test'})
        asked = request.field('if-none-match') or request.field('http_if_none_match') or ''
        since = request.field('if-modified-since') or request.field('http_if_modified_since') or ''
        if f'"{version}"' in asked or asked == '*' or (not asked and since):
            return '304 Not Modified', fields, ''
        return '200 OK', fields, f'{page} {version}' + (' for bob' if said or request.body else '')

    def http(self, request):
        status, fields, body = self.respond(request)
        given = answer(body, status, fields, length=not status.startswith('304'))
        return given[:given.index(b'\r\n\r\n') + 4] if request.method == 'HEAD' else given

    def fastcgi(self, request):
        status, fields, body = self.respond(request)
        head = ''.join(f'{name}: {value}\r\n' for name, value in {'Status': status, **fields}.items())
        return f'{head}\r\n{body}'.encode()


def versions_configuration(http, fastcgi):
    def place(kind, mode):
        asks = f'proxy_pass http://http; proxy_cache_convert_head {"off" if mode == "methodless" else "on"};' if kind == 'proxy' else \
            'fastcgi_pass 127.0.0.1:%d; fastcgi_param REQUEST_METHOD $request_method; fastcgi_param REQUEST_URI $request_uri; ' \
            'fastcgi_param CONTENT_LENGTH $content_length;' % fastcgi
        stale = f'{kind}_cache_use_stale updating; {kind}_cache_background_update on;' if mode == 'updating' else \
            f'{kind}_cache_background_update on;' if mode == 'swr' else ''
        method = '' if mode == 'methodless' else '$request_method'
        return f'''location /{kind}/{mode}/ {{ {asks} {kind}_cache {kind}; {kind}_cache_key {method}$scheme$host$request_uri;
            {kind}_cache_revalidate on; {stale} {kind}_no_cache $cookie_session; add_header X-Cache $upstream_cache_status; }}'''
    places = '\n'.join(place(kind, mode) for kind in KINDS for mode in MODES)
    return f'''proxy_cache_path $dir/cache/p keys_zone=proxy:1m; fastcgi_cache_path $dir/cache/f keys_zone=fastcgi:1m;
    upstream http {{ server 127.0.0.1:{http}; keepalive 64; }}
    server {{ listen 127.0.0.1:$port; server_name a.test; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $host;
      {places} }}'''


async def refreshed(tried, port, versions, number, kind, mode, name, changes):
    """A page expires, changes or not, one visitor asks for it, and then everybody."""
    case = f'{name}, {"a new version" if changes else "still good"}:{kind}:{mode}'
    if not tried.wants(case):
        return
    path = f'/{kind}/{mode}/{number}'
    await ask(port, path)
    if changes:
        versions.version[path] = 'v2'
    await asyncio.sleep(1.1)
    method, content, fields = VISITORS[name]
    await ask(port, path, method, content, fields=fields)
    states = []
    # A refresh in the background ends meanwhile, on a busy machine later.
    end = asyncio.get_running_loop().time() + SECONDS
    while len(states) < 3 or changes and b' v2' not in got.body and asyncio.get_running_loop().time() < end:
        if states:
            await asyncio.sleep(0.05)
        got = await ask(port, path)
        states.append(f'{got.status} {got.field("x-cache")} {got.field("etag")} {got.body!r}')
        others = [f'{key}: {value}' for key, value in got.fields if 'bob' in value] + re.findall(r'for bob',
            got.body.decode())
        tried.check(case, got.status == 200 and not others, f'everybody got {got.status} {others}')
        tried.check(case, got.field('etag') == f'"{got.body.decode().split()[1]}"',
                    f'a body under the validator of another: {states}')
    if changes:
        tried.check(case, b' v2' in got.body, f'the old page stays: {states}')


async def versions_class(tried):
    versions = Versions()
    http, fastcgi = HttpOrigin(versions.http), FastcgiOrigin(versions.fastcgi)
    async with http, fastcgi:
        with Folder() as folder, Server(folder, versions_configuration(http.port, fastcgi.port)) as server:
            combinations = itertools.product(KINDS, MODES, VISITORS, (False, True))
            await together([refreshed(tried, server.port, versions, number, *words) for number,
                            words in enumerate(combinations)], 400)
            tried.check('the upstream', not http.broken, f'was sent what it cannot read: {http.broken[:3]}')
            tried.alive(server)


# --- content that is announced ----------------------------------------------------------------------

def content_configuration(ports):
    """A site for each place, with connections of its own."""
    sites = ''.join(content_site(f's{number}.test', f'u{number}', port) for number, port in enumerate(ports))
    return f'''proxy_cache_path $dir/cache/p keys_zone=z:1m;
    client_body_buffer_size 4k; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $host; {sites}'''


def content_site(name, group, port):
    cached = 'proxy_cache z; proxy_cache_key $host$uri;'
    text = f'''
    upstream u {{ server 127.0.0.1:{port}; keepalive 4; }}
    server {{ listen 127.0.0.1:$port; server_name {name};
      location /updating {{ proxy_pass http://u; {cached} proxy_cache_use_stale updating; proxy_cache_background_update on; }}
      location /locked {{ proxy_pass http://u; {cached} proxy_cache_use_stale updating; proxy_cache_lock on; }}
      location /swr {{ proxy_pass http://u; {cached} proxy_cache_background_update on; }}
      location /early {{ proxy_pass http://u; {cached} proxy_cache_early_refresh 100; }}
      location /soft {{ proxy_pass http://u; {cached} }}
      location = /.purge {{ cache_purge_api token={TOKEN}; }}
      location /slice {{ slice 100; proxy_set_header Range $slice_range; proxy_pass http://u; }}
      location /stored-slice {{ slice 100; proxy_set_header Range $slice_range; proxy_pass http://u; {cached} proxy_cache_valid 206 1s; }}
      location /accel {{ proxy_pass http://u; proxy_request_buffering off; }}
      location /buffered-accel {{ proxy_pass http://u; }}
      location /fail {{ proxy_pass http://u; proxy_request_buffering off; error_page 502 = /b/fallback; }}
      location /named {{ proxy_pass http://u/fail; proxy_request_buffering off; error_page 502 = @named; }}
      location /intercepted {{ proxy_pass http://u; proxy_request_buffering off; proxy_intercept_errors on; error_page 500 = /b/other; }}
      location /mirror {{ mirror /m; mirror_request_body off; proxy_pass http://u; }}
      location /mirror-live {{ mirror /m; proxy_request_buffering off; proxy_pass http://u; }}
      location = /m {{ internal; proxy_pass http://u/mirrored; }}
      location /auth {{ auth_request /a; proxy_pass http://u; }}
      location /auth-live {{ auth_request /a; proxy_request_buffering off; proxy_pass http://u; }}
      location = /a {{ internal; proxy_pass http://u/authorise; }}
      location /ssi {{ ssi on; ssi_types *; proxy_pass http://u; }}
      location /addition {{ addition_types *; add_after_body /b/after; add_before_body /b/before; proxy_pass http://u; }}
      location /e413 {{ client_max_body_size 10; proxy_pass http://u; error_page 413 = /b/e413; }}
      location /e403 {{ deny all; error_page 403 = /b/e403; }}
      location /return {{ return 418; error_page 418 = @named; }}
      location @named {{ proxy_pass http://u; }}
      location /without {{ proxy_pass http://u; proxy_pass_request_body off; }}
      location /set {{ proxy_pass http://u; proxy_set_body "abc"; }}
      location /again {{ proxy_pass http://twice; proxy_next_upstream error non_idempotent http_500; }}
      location /again-live {{ proxy_pass http://twice; proxy_next_upstream error non_idempotent http_500; proxy_request_buffering off; }}
      location /b/ {{ proxy_pass http://u; }} }}
    upstream twice {{ server 127.0.0.1:{port} max_fails=0; server 127.0.0.1:{port} max_fails=0; keepalive 4; }}'''
    return re.sub(r'upstream (u|twice)|http://(u|twice)', lambda found: f'{found[0]}{group}', text)


CACHED = ('/updating', '/locked', '/swr', '/early', '/soft', '/stored-slice')
PLAIN = ('/slice', '/accel', '/buffered-accel', '/fail', '/named', '/intercepted', '/mirror', '/mirror-live',
         '/auth', '/auth-live', '/ssi', '/addition', '/e413', '/e403', '/return', '/without', '/set',
         '/again', '/again-live')
BIG = bytes(range(256)) * 2


async def content_answers(request):
    """Answers before it reads the content, as servers do that discard it."""
    path = request.target
    fields = {'Cache-Control': 'max-age=1' + (', stale-while-revalidate=60' if path.startswith('/swr')
                                              else '')}
    found = re.fullmatch(r'bytes=(\d+)-(\d+)', request.field('range') or '')
    if found:
        first, last = int(found[1]), min(int(found[2]), len(BIG) - 1)
        fields.update({'Content-Range': f'bytes {first}-{last}/{len(BIG)}', 'ETag': '"a"'})
        return answer(BIG[first:last + 1], '206 Partial Content', fields)
    if 'fail' in path:
        await asyncio.sleep(0.05)
        return None
    if path.startswith('/again') or path.startswith('/intercepted'):
        return answer('again', '500 Internal Server Error')
    if 'accel' in path:
        fields['X-Accel-Redirect'] = '/b/after'
    body = '<!--# include virtual="/b/included" --> <!--# include virtual="/b/more" -->' if path.startswith('/ssi') else f'answer to {path}'
    return answer(body, fields=fields)


async def content_class(tried):
    async with contextlib.AsyncExitStack() as stack:
        places = CACHED + PLAIN
        origins = [await stack.enter_async_context(HttpOrigin(content_answers, early=True)) for _ in places]
        with Folder() as folder, Server(folder,
                                        content_configuration([origin.port for origin in origins])) as server:
            sites = [Site(tried, server.port, f's{number}.test', origin, place)
                     for number, (origin, place) in enumerate(zip(origins, places))]
            await asyncio.gather(*[site.all() for site in sites])
            tried.alive(server)


class Site:
    """A place, its upstream, and what is sent there."""

    def __init__(self, tried, port, host, origin, place):
        self.tried, self.port, self.host, self.origin, self.place = tried, port, host, origin, place

    async def ask(self, target, *words, **more):
        return await ask(self.port, target, *words, host=self.host, **more)

    async def all(self):
        methods = ('GET',) if self.place in CACHED else ('GET', 'POST')
        for method, framing, size in itertools.product(methods, ('length', 'chunked'), (100, 20000)):
            case = f'{method} with {size} bytes, {framing}:{self.place}'
            if self.tried.wants(case):
                await self.announced(case, method, framing, size)

    async def announced(self, case, method, framing, size):
        path = self.place
        if path in CACHED:
            await self.ask(path)
        if path == '/soft':
            await self.ask('/.purge', 'POST', b'{"urls": ["/soft"], "soft": true}',
                           fields={'Authorization': f'Bearer {TOKEN}'})
        elif path in CACHED and path != '/early':
            await asyncio.sleep(1.02)
        seen, broken = len(self.origin.seen), len(self.origin.broken)
        await self.send(case, path, method, framing, size)
        for step in range(3):
            target = f'/b/next-{method}-{framing}-{size}-{step}'
            try:
                got = await self.ask(target)
                self.tried.check(case, got and got.body == f'answer to {target}'.encode(),
                                 f'the next client got {got!r}')
            except (Broken, TimeoutError, ConnectionError) as problem:
                self.tried.failed(case, f'the next client got {problem!r}')
        taken = [request.target for request in self.origin.seen[seen:] if b'HTTP/1.1' in request.body]
        self.tried.check(case, not taken, f'the upstream took a request for content of {taken}')
        self.tried.check(case, len(self.origin.broken) == broken,
                         f'the upstream cannot read {self.origin.broken[broken:]}')

    async def send(self, case, path, method, framing, size):
        body = b'A' * size if framing == 'length' else b'%x\r\n%s\r\n0\r\n\r\n' % (size, b'A' * size)
        field = ('Transfer-Encoding', 'chunked') if framing == 'chunked' else ('Content-Length', str(size))
        try:
            async with await Client.to(self.port) as client:
                client.send(head(path, method, self.host, [field, ('Connection', 'close')]))
                # The content comes apart from the head, so that it may be sent on as it comes.
                await asyncio.sleep(0.01)
                client.send(body)
                await client.rest()
        except TimeoutError:
            self.tried.failed(case, 'no answer')
        except ConnectionError:
            pass


# --- from a cached location to another one -------------------------------------------------------------

ENDS = ('404', '500', 'closed', 'accel', '403', 'accel-404', 'unresolved')
TO = ('uncached', 'named', 'fcgi', 'bypass', 'cached')


def redirects_configuration(http, fastcgi):
    private = {'uncached': '/private/', 'named': '@private', 'fcgi': '/fprivate/', 'bypass': '/bprivate/',
               'cached': '/cprivate/'}
    places = ''
    for kind in KINDS:
        for to, where in private.items():
            asks = f'proxy_pass http://127.0.0.1:{http};' if kind == 'proxy' else \
                f'fastcgi_pass 127.0.0.1:{fastcgi}; fastcgi_param REQUEST_METHOD $request_method; fastcgi_param REQUEST_URI $request_uri;'
            uri = where if where.startswith('@') else f'{where}$uri'
            places += f'''location /{kind}/{to}/ {{ {asks} {kind}_cache {kind}; {kind}_cache_key $host$request_uri; {kind}_cache_valid any 1s;
                {kind}_cache_use_stale updating; {kind}_cache_background_update on; {kind}_intercept_errors on;
                error_page 403 404 500 502 = {uri};
                location ~ /unresolved/ {{ set $name nowhere.invalid; {kind}_pass {'http://' if kind == 'proxy' else ''}$name:81; {kind}_cache {kind};
                  {kind}_cache_key $host$request_uri; {kind}_cache_valid any 1m; error_page 502 = {uri}; }} }}\n'''
    fcgi = f'fastcgi_pass 127.0.0.1:{fastcgi}; fastcgi_param REQUEST_METHOD $request_method; fastcgi_param REQUEST_URI /private$uri;'
    back = f'proxy_pass http://127.0.0.1:{http}/private/;'
    return f'''proxy_cache_path $dir/cache/p keys_zone=proxy:1m; fastcgi_cache_path $dir/cache/f keys_zone=fastcgi:1m;
    proxy_set_header X-Visitor $http_x_visitor;
    server {{ listen 127.0.0.1:$port; server_name a.test; {places}
      location /private/ {{ {back} }}
      location @private {{ rewrite ^ /private$uri break; proxy_pass http://127.0.0.1:{http}; }}
      location /fprivate/ {{ {fcgi} }}
      location /bprivate/ {{ {back} proxy_cache proxy; proxy_cache_key bypassed$uri; proxy_cache_valid any 1m;
        proxy_cache_bypass $http_x_visitor; proxy_no_cache $http_x_visitor; }}
      location /cprivate/ {{ {back} proxy_cache proxy; proxy_cache_key $http_x_visitor$uri; proxy_cache_valid any 1m; }} }}'''


class Leads:
    """An origin whose pages are everybody's, until they `end`; and private ones, that say whose they are."""

    def __init__(self):
        self.ended, self.asked = set(), set()

    def respond(self, request, visitor):
        if 'private' in request.target:
            return '200 OK', {'Cache-Control': 'max-age=60'}, f'private of {visitor}'
        _, kind, to, end, number = request.target.split('/')
        if request.target not in self.ended:
            return '200 OK', {}, 'page'
        if end == 'closed':
            return None, {}, ''
        if end.startswith('accel'):
            where = {'uncached': '/private/x', 'named': '@private', 'fcgi': '/fprivate/x',
                     'bypass': '/bprivate/x', 'cached': '/cprivate/x'}[to]
            return '404 Not Found' if end.endswith('404') else '200 OK', {'X-Accel-Redirect': where,
                'Cache-Control': 'max-age=60'}, 'page'
        return f'{end} x', {}, 'page'

    async def take_time(self, request):
        """The next visitors find the refresh under way, which ends after all of them."""
        if 'private' not in request.target and request.target in self.asked:
            await asyncio.sleep(0.5)
        self.asked.add(request.target)

    async def http(self, request):
        await self.take_time(request)
        status, fields, body = self.respond(request, request.field('x-visitor'))
        return status and answer(body, status, fields)

    async def fastcgi(self, request):
        await self.take_time(request)
        status, fields, body = self.respond(request, request.field('http_x_visitor'))
        head = ''.join(f'{name}: {value}\r\n' for name, value in {'Status': status, **fields}.items())
        return status and f'{head}\r\n{body}'.encode()


async def led(tried, port, leads, kind, to, end, stored, number):
    """`stored` says what is there before: nothing, the page, or its failure, expired or fresh."""
    case = f'{kind}, {end} to {to}, stored: {stored}'
    if not tried.wants(case):
        return
    path = f'/{kind}/{to}/{end}/{number}'
    if 'failure' in stored:
        leads.ended.add(path)
    if stored != 'nothing':
        await ask(port, path, fields={'X-Visitor': 'first'})
        await asyncio.sleep(0 if stored == 'fresh failure' else 1.1)
    leads.ended.add(path)
    for visitor in ('bob', 'ann', 'eve', 'bob'):
        got = await ask(port, path, fields={'X-Visitor': visitor})
        whose = re.search(rb'private of (\w+)', got.body)
        tried.check(case, not whose or whose[1].decode() == visitor, f'{visitor} got {got.body!r}')


async def redirects_class(tried):
    leads = Leads()
    http, fastcgi = HttpOrigin(leads.http), FastcgiOrigin(leads.fastcgi)
    async with http, fastcgi:
        with Folder() as folder, Server(folder, redirects_configuration(http.port, fastcgi.port)) as server:
            combinations = itertools.product(KINDS, TO, ENDS, ('nothing', 'page', 'failure', 'fresh failure'))
            await together([led(tried, server.port, leads, *words, number) for number,
                            words in enumerate(combinations)], 200)
            tried.alive(server)


# --- clients that may not store do not keep the others from it --------------------------------------------------

async def starved(tried, port, origin, name):
    """While such clients ask again and again, an expired page is refreshed for everybody."""
    case = f'claims held by: {name}'
    if not tried.wants(case):
        return
    path = f'/starved/{len(name)}{sum(name.encode())}'
    method, content, fields = VISITORS[name]
    await ask(port, path)
    await asyncio.sleep(1.05)

    async def hold():
        for _ in range(8):
            await ask(port, path, method, content, fields=fields)
    holders = [asyncio.create_task(hold()) for _ in range(3)]
    await asyncio.sleep(0.15)
    begun = len([request for request in origin.of(path) if request.method == 'GET' and not request.body])
    bodies = []
    for _ in range(6):
        bodies.append((await ask(port, path)).body)
        await asyncio.sleep(0.05)
    await asyncio.gather(*holders)
    tried.check(case, len(set(bodies)) > 1 or bodies[0] != b'1',
                f'only the old page for everybody, {begun} runs: {bodies}')


async def starvation_class(tried):
    runs = {}

    async def respond(request):
        await asyncio.sleep(0.05)
        runs[request.target] = runs.get(request.target, 0) + 1
        return answer(str(runs[request.target]), fields={'Cache-Control': 'max-age=1'})
    async with HttpOrigin(respond) as origin:
        conf = f'''proxy_cache_path $dir/cache/p keys_zone=z:1m; proxy_http_version 1.1; proxy_set_header Host $host;
            server {{ listen 127.0.0.1:$port; server_name a.test; location / {{ proxy_pass http://127.0.0.1:{origin.port};
              proxy_cache z; proxy_cache_key $host$uri; proxy_cache_use_stale updating; proxy_cache_lock on; proxy_no_cache $cookie_session; }} }}'''
        with Folder() as folder, Server(folder, conf) as server:
            names = ('authorization', 'another host', 'HEAD', 'content', 'no_cache cookie', 'forwarded')
            await together([starved(tried, server.port, origin, name) for name in names])
            tried.alive(server)


async def run(tried):
    await asyncio.gather(versions_class(tried), content_class(tried), redirects_class(tried),
                         starvation_class(tried))
