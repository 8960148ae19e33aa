"""Ways to name another host, port, scheme, URL or method than those of the key: an application that believes them must not
have its answer stored for everybody; and a page that redirects to itself is not stored.

The origin shows in its page whatever the request said. The next client must find nothing of it.
"""
from peers import Folder, Server
from .origins import FastcgiOrigin, HttpOrigin, answer
from .wire import ask, together

PLACES = ('host', 'http_host', 'default', 'fcgi', 'path')
HOST = 'victim.test'

# What says another host, and what says another part of the URL, each with a value that does.
FIELDS = {
    'X-Forwarded-Host': ('evil.test', 'victim.test:1234', 'victim.test, evil.test', 'evil.test, victim.test',
                         'VICTIM.test', 'victim.test.', 'victim.test:80', 'victim.test, victim.test'),
    'X-Host': ('evil.test',),
    'X-Backend-Host': ('evil.test',),
    'X-Envoy-Original-Host': ('evil.test',),
    'Disguised-Host': ('evil.test',),
    'X-Forwarded-Server': ('evil.test',),
    'X-HTTP-Host-Override': ('evil.test',),
    'X-Original-Host': ('evil.test',),
    'Forwarded': ('host=evil.test', 'for=1.1.1.1;host=evil.test;proto=https', 'for=1.1.1.1, host="evil.test"',
                  'proto=https', 'HOST=evil.test', 'for="a,b;host=evil.test"'),
    'X-Forwarded-Proto': ('https', 'HTTPS', 'https, http', 'HTTP', 'http, http'),
    'X-Forwarded-Protocol': ('https',),
    'X-Forwarded-Scheme': ('https',),
    'X-Url-Scheme': ('https',),
    'X-Scheme': ('https',),
    'X-Forwarded-Ssl': ('on', 'off', '0'),
    'X-Forwarded-Https': ('on',),
    'Front-End-Https': ('on',),
    # As CDNs have them; plugins of WordPress look at them.
    'CloudFront-Forwarded-Proto': ('https',),
    'CF-Visitor': ('{"scheme":"https"}',),
    'X-Forwarded-Port': ('1234', '443'),
    'X-Forwarded-Prefix': ('/evil',),
    'X-Forwarded-Path': ('/evil',),
    'X-Forwarded-Uri': ('/evil',),
    'X-Original-URL': ('/evil',),
    'X-Original-URI': ('/evil',),
    'X-Original-Scheme': ('https',),
    'X-Original-Method': ('DELETE',),
    'X-Rewrite-URL': ('/evil',),
    'X-HTTP-Method-Override': ('DELETE',),
    'X-HTTP-Method': ('DELETE',),
    'X-Method-Override': ('DELETE',),
    'Origin': ('http://evil.test', 'null, http://evil.test', 'http://VICTIM.test', 'http://victim.test:80'),
    # Which part of a page is made, or how, and for whom.
    'RSC': ('1',),
    'Next-Router-State-Tree': ('evil',),
    'Next-Url': ('/evil',),
    'X-Nextjs-Data': ('1',),
    'X-Now-Route-Matches': ('1=evil',),
    'X-Matched-Path': ('/evil',),
    'X-Invoke-Status': ('500',),
    'X-Middleware-Subrequest': ('evil',),
    'X-Middleware-Rewrite': ('/evil',),
    'X-Nuxt-No-Ssr': ('1',),
    'Surrogate-Capability': ('evil="ESI/1.0"',),
    'X-Inertia': ('true',),
    'Turbo-Frame': ('evil',),
    'X-Accel-Mapping': ('/=/evil',),
    'X-Sendfile-Type': ('X-Accel-Redirect',),
    'Script-Name': ('/evil',),
    'X-ATT-DeviceId': ('evil',),
    'Remote-User': ('evil',),
    'X-Auth-Request-User': ('evil',),
    'X-Api-Key': ('evil',),
    'Cart-Token': ('evil',),
}
# What every reasonable client or proxy sends: their pages are stored.
HARMLESS = [{}, {'X-Forwarded-Host': 'victim.test'}, {'X-Forwarded-Proto': 'http'},
            {'Origin': 'http://victim.test'}, {'X-Forwarded-For': '1.1.1.1'},
            {'Forwarded': 'for=1.1.1.1;host=victim.test;proto=http'}, {'User-Agent': 'x'},
            {'Forwarded': 'for=1.1.1.1'}, {'X-Requested-With': 'com.example.app'}]
HOSTS = ['victim.test:1234', 'victim.test:443', 'VICTIM.TEST', 'victim.test.', 'Victim.Test.:1234',
         'evil.test']


def attacks():
    """Name, target (%P its path), Host and further fields."""
    for name, values in FIELDS.items():
        for value in values:
            yield f'{name}: {value}', '%P', HOST, [(name, value)]
        yield f'{name.lower()} and an absolute target', 'http://victim.test%P', 'evil.test', [(name,
            values[0])]
        yield f'{name.upper()}, and it without harm', '%P', HOST, [(name, 'victim.test'), (name, values[0])]
    # PHP cannot tell these from those with hyphens.
    for name in ('X_Forwarded_Host', 'X-Forwarded_Host', 'x_forwarded_proto', 'X_Original_URL'):
        value = {'o': 'https', 'L': '/evil'}.get(name[-1], 'evil.test')
        yield f'{name}', '%P', HOST, [(name, value)]
    for host in HOSTS:
        yield f'Host: {host}', '%P', host, []
        yield f'an absolute target, {host}', f'http://{host}%P', HOST, []
    yield 'an absolute target and another Host', 'http://victim.test%P', 'evil.test', []
    yield 'an absolute target and Host with a port', 'http://victim.test%P', 'victim.test:1234', []
    yield 'user information', 'http://evil@victim.test%P', HOST, []
    yield 'another scheme', 'https://victim.test%P', HOST, []
    yield 'X-Forwarded-Host, no Host', 'http://victim.test%P', None, [('X-Forwarded-Host', 'evil.test')]
    yield 'an empty Host', 'http://victim.test%P', '', [('X-Forwarded-Host', 'evil.test')]
    yield 'Host twice', '%P', HOST, [('Host', 'evil.test')]


def shown(request):
    """A page made of all that a request says, as HTTP or as CGI."""
    own = ('x-mark', 'http_x_mark', 'connection', 'http_connection')
    said = [f'{name}: {value}' for name, value in request.fields if name.lower() not in own]
    return f'{request.method} {request.target}\n' + '\n'.join(said) + '\n'


def location_of(request):
    """The `Location` that the path asks for, with the request's own URL in it."""
    kind = request.target.split('redirect-')[1].split('-')[0]
    host = request.field('http_host') or request.field('host') or ''
    target = request.target
    forms = {'full': f'http://{HOST}{target}', 'path': target, 'scheme': f'//{HOST}{target}',
             'echo': f'http://{host}{target}', 'fragment': f'{target}#top',
             'capitals': f'HTTP://{HOST.upper()}{target}', 'port': f'http://{HOST}:80{target}',
             'dot': f'http://{HOST}.{target}', 'empty': '', 'last': target.rpartition('/')[2],
             'here': './' + target.rpartition('/')[2], 'up': '..' + target, 'dots': '/x/..' + target,
             'slash': '/.' + target, 'canonical': f'http://{HOST}{target}',
             'query': '?' + target.partition('?')[2]}
    return forms[kind], kind, host


def respond(request):
    fields = {'Cache-Control': 'max-age=60', 'Content-Type': 'text/plain'}
    status, body = '200 OK', shown(request)
    if 'redirect-' in request.target:
        where, kind, host = location_of(request)
        # As applications do that know their own name.
        if kind != 'canonical' or host != HOST:
            number = request.target.split('redirect-')[1].split('-')[1]
            fields['Location'], status = where, f'{number} Moved'
    return body, status, fields


def of_http(request):
    body, status, fields = respond(request)
    return answer(body, status, fields)


def of_fastcgi(request):
    body, status, fields = respond(request)
    return ''.join(f'{name}: {value}\r\n' for name,
                   value in {'Status': status, **fields}.items()).encode('latin1') + \
        b'\r\n' + body.encode('latin1')


def configuration(http, fastcgi):
    key = '$scheme$request_method$host$request_uri'
    report = 'add_header X-Cache $upstream_cache_status always; add_header X-Detail $cache_detail always;'
    proxied = f'proxy_pass http://127.0.0.1:{http}; proxy_cache z; {report}'
    return f'''
    proxy_cache_path $dir/cache/p keys_zone=z:1m; fastcgi_cache_path $dir/cache/f keys_zone=f:1m;
    underscores_in_headers on; proxy_http_version 1.1; proxy_set_header Connection "";
    server {{ listen 127.0.0.1:$port; server_name {HOST};
      location /host/ {{ {proxied} proxy_cache_key {key}; proxy_set_header Host $host; }}
      location /http_host/ {{ {proxied} proxy_cache_key {key}; proxy_set_header Host $http_host; }}
      location /path/ {{ {proxied} proxy_cache_key $request_uri; proxy_set_header Host $host; }}
      location /default/ {{ {proxied} proxy_set_header Host $http_host; }}
      location /fcgi/ {{ fastcgi_pass 127.0.0.1:{fastcgi}; fastcgi_param REQUEST_METHOD $request_method; fastcgi_param REQUEST_URI $request_uri;
        fastcgi_param SERVER_NAME $host; fastcgi_cache f; fastcgi_cache_key {key}; {report} }} }}'''


async def poisoned(tried, port, number, attack, place):
    name, target, host, fields = attack
    case = f'{name}:{place}'
    if not tried.wants(case):
        return
    path = f'/{place}/p{number}'
    for _ in range(2):
        await ask(port, target.replace('%P', path), host=host, fields=fields)
    usual = (await ask(port, f'/{place}/usual', host=HOST)).body.replace(b'/usual', f'/p{number}'.encode())
    for _ in range(2):
        got = await ask(port, path, host=HOST)
        tried.check(case, got.status == 200 and got.body == usual,
                    f'a visitor got {got.status} {got.body[:300]!r}')
    tried.check(case, got.field('x-cache') == 'HIT', f'not stored for visitors any more: {got.fields}')


async def stored(tried, port, number, fields, place):
    case = f'harmless {fields}:{place}'
    if not tried.wants(case):
        return
    path = f'/{place}/h{number}'
    await ask(port, path, host=HOST, fields=fields)
    got = await ask(port, path, host=HOST)
    tried.check(case, got.field('x-cache') == 'HIT', f'not stored: {got.fields}')


async def redirected(tried, port, kind, status, host, place):
    case = f'redirect {kind} {status} asked at {host}:{place}'
    if not tried.wants(case):
        return
    path = f'/{place}/redirect-{kind}-{status}-{host}' + ('?a=b' if kind in ('query', 'full', 'last') else '')
    await ask(port, path, host=host)
    got = await ask(port, path, host=HOST)
    if kind == 'canonical':
        tried.check(case, got.status == 200,
                    f'a visitor of the right name got {got.status} {got.field("location")}')
    else:
        tried.check(case, got.field('x-cache') != 'HIT', f'stored: {got.status} {got.field("location")}')


async def run(tried):
    http, fastcgi = HttpOrigin(of_http), FastcgiOrigin(of_fastcgi)
    async with http, fastcgi:
        with Folder() as folder, Server(folder, configuration(http.port, fastcgi.port)) as server:
            port, work = server.port, []
            for place in PLACES:
                work += [poisoned(tried, port, number, attack, place) for number,
                         attack in enumerate(attacks())]
                work += [stored(tried, port, number, fields, place) for number, fields in enumerate(HARMLESS)]
                for kind in ('full', 'path', 'scheme', 'fragment', 'capitals', 'port', 'dot', 'query', 'echo',
                             'empty', 'last', 'here', 'up', 'dots', 'slash'):
                    work += [redirected(tried, port, kind, status, HOST, place)
                             for status in (301, 302, 303, 307, 308)]
                for host in ('victim.test:1234', 'victim.test:80', 'VICTIM.TEST', 'victim.test.',
                             'victim.test:', HOST):
                    work += [redirected(tried, port, 'canonical', status, host, place)
                             for status in (301, 302, 308)]
            await together(work, 32)
            tried.alive(server)
