"""One site's means to purge, tried on another site's pages: the token, and the field of its own answers. The sites share a
zone; also where the token's server is the default one, or has a port to itself."""
import json
from peers import Folder, Server, free_port
from .origins import HttpOrigin, answer
from .wire import ask

TOKEN = 'a-secret-of-sixteen-bytes-or-more'
PAGES = ('/1', '/2', '/dir/3')
TAGS = ('home', 'b.test', 'home x')

# Bodies that would reach b.test, were the host not that of the token's server.
REACHING = [
    {'tags': ['home'], 'host': 'b.test'}, {'tags': ['home'], 'host': 'B.TEST'},
    {'tags': ['home'], 'host': 'b.test.'}, {'tags': ['home'], 'host': '*'}, {'tags': ['home'], 'host': ''},
    {'tags': ['home'], 'host': None}, {'tags': ['home'], 'host': 'b.test:80'},
    {'tags': ['home'], 'host': 'a.test\0b.test'}, {'tags': ['home'], 'host': 'a.test,b.test'},
    {'tags': ['\0home']}, {'tags': ['b.test\0home']}, {'tags': ['b.test home']}, {'tags': ['']},
    {'tags': ['*']}, {'tags': ['home', 'home'] * 50}, {'all': True}, {'all': True, 'soft': True},
    {'all': True, 'host': 'b.test'}, {'all': True, 'zone': 'z'},
    {'tags': ['home'], 'zone': 'z', 'host': 'b.test'}, [{'tags': ['home'], 'host': 'b.test'}],
    [{'tags': ['home']}, {'tags': ['home'], 'host': 'b.test'}], [{'tags': ['x']}, {'all': True}],
]
URLS = ['http://b.test/1', 'HTTP://B.TEST/1', '//b.test/1', '///b.test/1', 'http:///1', '///1',
        'http://a.test@b.test/1', 'http://a.test:80@b.test/1', 'http://a.test\\b.test/1',
        'http://a.test#b.test/1', 'http://a.test?b.test/1', '//a.test//b.test/1', 'b.test/1//a.test/',
        'http:b.test//a.test/1', 'http://b.test/1//a.test', '*', '/*', 'http://*', 'http*', '//*',
        'http://a.test*', 'http://b.test*', '//b.test*', 'http://[a.test]b.test/1',
        'http://a.test/1 HTTP/1.1\r\nHost: b.test\r\nX: ', 'http://a.test/1?\r\nHost: b.test\r\n\r\n',
        'http://b.test:80/1', 'http://b.test./1', 'http://a.test%00b.test/1', '/\\b.test/1', '/..//b.test/1',
        'http://a.testb.test/1', 'http://a.test.b.test/1', '', '/', '//', 'x://b.test/1',
        'http://a.test\t@b.test/1', 'http:/b.test/1', 'http//b.test/1', '//a.test:80b.test/1']
FIELDS = ['tag=home', 'url=/1', 'url=//b.test/1', 'url=http://b.test/1', 'url=/*', 'url=//*', 'url=*', 'all',
          'tag=home, soft', 'tag=*', 'tag=', 'host=b.test, tag=home', 'url=http://a.test@b.test/1',
          'url=///1', 'url=//b.test*', 'tag=home;host=b.test', 'zone=z, all']
# How a request may reach the token's server: Host, target before the path, version.
WAYS = [('a.test', '', '1.1'), ('', '', '1.1'), (None, '', '1.0'), ('b.test', 'http://a.test', '1.1'),
        ('a.test', 'http://b.test', '1.1'), ('A.TEST.', '', '1.1'), ('a.test:80', '', '1.1'),
        ('unknown.test', '', '1.1'), ('..', '', '1.1'), ('', 'http://a.test', '1.1'), ('b.test.', '', '1.1'),
        ('.b.test', '', '1.1'), ('B.TEST', '', '1.1'), ('x@b.test', '', '1.1'), ('b.test:81', '', '1.1'),
        ('127.0.0.1', '', '1.1')]


def respond(request):
    wanted = request.field('x-do')
    fields = {'Cache-Control': 'max-age=600', 'Surrogate-Key': ' '.join(TAGS),
              **({'X-Accel-Purge': wanted} if wanted else {})}
    return answer(f'{request.field("host")} {request.target}', fields=fields)


def configuration(port, own):
    place = f'''location / {{ proxy_pass http://127.0.0.1:{port}; proxy_cache z; proxy_cache_key $scheme://$host$request_uri;
        proxy_set_header Host $host; add_header X-Cache $upstream_cache_status; }}'''
    token = f'location = /.purge {{ cache_purge_api token={TOKEN}; }}'
    return f'''proxy_cache_path $dir/cache/z keys_zone=z:1m memory=8m;
    server {{ listen 127.0.0.1:$port default_server; server_name a.test; {token} {place} }}
    server {{ listen 127.0.0.1:$port; server_name b.test; {place} }}
    server {{ listen 127.0.0.1:{own}; server_name a.test; {token} {place} }}'''


class Attack:
    def __init__(self, tried, port, own):
        self.tried, self.port, self.own = tried, port, own

    async def states(self, host):
        return [(await ask(self.port, path, host=host)).field('x-cache') for path in PAGES]

    async def spared(self, case, port, way, target, **more):
        """Whether the pages of b.test are still there after a request."""
        if not self.tried.wants(case):
            return
        host, before, version = way
        for site in ('a.test', 'b.test'):
            await self.states(site)
        got = await ask(port, before + target, host=host, version=version, **more)
        states = await self.states('b.test')
        status = got.status if got else None
        self.tried.check(case, states == ['HIT'] * len(PAGES),
                         f"{status} {got and got.body[:120]}: b.test's pages are {states}")

    async def by_token(self, label, port, way, said):
        await self.spared(f'token {way} {label} {json.dumps(said)}', port, way, '/.purge', method='POST',
                          body=json.dumps(said).encode(), fields={'Authorization': f'Bearer {TOKEN}'})

    async def by_answer(self, label, port, way, said):
        await self.spared(f'answer {way} {label} {said}', port, way, f'/do{self.tried.cases}',
                          fields={'X-Do': said})

    async def reaches_its_own(self):
        """Else nothing here would show anything."""
        for said in ({'tags': ['home']}, {'urls': ['/1', '/2', '/dir/*']},
                     {'tags': ['home'], 'host': 'a.test'}):
            case = f'its own pages {json.dumps(said)}'
            if self.tried.wants(case):
                await self.states('a.test')
                await ask(self.port, '/.purge', 'POST', json.dumps(said).encode(), 'a.test',
                          {'Authorization': f'Bearer {TOKEN}'})
                states = await self.states('a.test')
                self.tried.check(case, 'HIT' not in states, f'are {states}')

    async def wrong_tokens(self):
        for said in ('', 'Bearer', 'Bearer ', f'Bearer {TOKEN}x', f'Bearer {TOKEN[:-1]}', f'bearer {TOKEN}',
                     f'Basic {TOKEN}', TOKEN, f'Bearer  {TOKEN}', f'Bearer {TOKEN.upper()}',
                     f'Bearer {TOKEN}, Bearer x'):
            case = f'token {said!r}'
            if self.tried.wants(case):
                await self.states('a.test')
                got = await ask(self.port, '/.purge', 'POST', b'{"tags": ["home"]}', 'a.test',
                                {'Authorization': said} if said else {})
                self.tried.check(case, got.status in (401, 403)
                                 and await self.states('a.test') == ['HIT'] * len(PAGES),
                                 f'{got.status} {got.body}')


async def run(tried):
    own = free_port()
    async with HttpOrigin(respond) as origin:
        with Folder() as folder, Server(folder, configuration(origin.port, own)) as server:
            attack = Attack(tried, server.port, own)
            await attack.reaches_its_own()
            await attack.wrong_tokens()
            for said in [*REACHING, *({'urls': [url]} for url in URLS), {'urls': URLS}]:
                await attack.by_token('', server.port, WAYS[0], said)
            for way in WAYS[1:]:
                for said in ({'tags': ['home']}, {'tags': ['home'], 'host': 'b.test'}, {'urls': ['/1']},
                             {'urls': ['http://b.test/1']}, {'all': True}):
                    await attack.by_token('', server.port, way, said)
            for way in (('b.test', '', '1.1'), *WAYS[1:]):
                for said in ({'tags': ['home']}, {'urls': ['/1']}, {'urls': ['//b.test/1']}):
                    await attack.by_token('own port', own, way, said)
            for said in FIELDS:
                await attack.by_answer('', server.port, WAYS[0], said)
            for way in WAYS[1:]:
                if way[0] not in ('b.test.', 'B.TEST', 'b.test:81') and 'b.test' not in way[1]:
                    for said in ('tag=home', 'url=/1', 'url=//b.test/1'):
                        await attack.by_answer('', server.port, way, said)
            tried.alive(server)
