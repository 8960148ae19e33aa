"""Kirby, as its starterkit has it."""
import json, re, urllib.parse
from applications import EMAIL, PASSWORD, SECRET, WORD, Application, has

NOTE, DRAFT = 'planting', 'sowing'
PIECE = 10 << 20


class Kirby(Application):
    found = 'Kirby'
    folder = 'kirby'
    pages = ['/', '/notes', '/notes/chasing-waterfalls', '/notes/tag:forest', '/photography', '/photography/trees', '/about', '/assets/css/index.css', '/assets/js/index.js']
    marks = [EMAIL, '"isLoggedIn":true']

    def prepare(self):
        # The first answer with an uploaded file is made in PHP's memory; from then on it is a file in "media".
        (self.site / '.user.ini').write_text('memory_limit = 512M\n')

    def token(self, visitor, path):
        # The first page that its panel is asked for puts its scripts into "media" and leads to itself.
        return re.search(r'"csrf":"(\w+)"', visitor.get(path).text)[1]

    def api(self, owner, method, path, **more):
        page = owner.request(method, f'/api/{path}', **more)
        assert page.status_code == 200 and page.json().get('status', 'ok') == 'ok', f'{method} {path}: {page.status_code} {page.text[:1000]}'
        return page.json()

    def install(self, visitor):
        # Its panel is made by scripts, which ask its API.
        visitor.headers['X-CSRF'] = self.token(visitor, '/panel/installation')
        self.api(visitor, 'POST', 'system/install', json={'email': EMAIL, 'password': PASSWORD, 'language': 'en', 'role': 'admin'})

    def log_in(self, visitor):
        visitor.headers['X-CSRF'] = self.token(visitor, '/panel/login')
        self.api(visitor, 'POST', 'auth/login', json={'email': EMAIL, 'password': PASSWORD, 'long': False})
        visitor.headers['X-CSRF'] = self.token(visitor, '/panel/site')
        has(visitor.get('/panel/site'), EMAIL)

    def made(self, owner, slug, word):
        self.api(owner, 'POST', 'pages/notes/children', json={'slug': slug, 'template': 'note', 'content': {'title': f'A {word}'}})
        self.api(owner, 'PATCH', f'pages/notes+{slug}', json={'date': '2026-01-01 12:00', 'text': json.dumps([{'type': 'text', 'id': 'a', 'content': {'text': f'<p>{word}</p>'}}])})

    def write(self, owner):
        self.made(owner, NOTE, WORD)
        self.api(owner, 'PATCH', f'pages/notes+{NOTE}/status', json={'status': 'listed', 'position': 1})
        has(owner.get('/notes'), WORD)
        has(owner.get(f'/notes/{NOTE}'), WORD)
        # Its names of folders are names of pages as well.
        for slug in ('content', 'site', 'kirby', 'storage', 'vendor'):
            self.api(owner, 'POST', 'site/children', json={'slug': slug, 'template': 'default', 'content': {'title': f'{WORD} {slug}'}})
            self.api(owner, 'PATCH', f'pages/{slug}/status', json={'status': 'unlisted'})
            has(owner.get(f'/{slug}'), f'{WORD} {slug}')
        return [f'/notes/{NOTE}', f'/notes/{NOTE}/', '/content', '/site', '/kirby', '/vendor']

    def keep(self, owner):
        self.made(owner, DRAFT, SECRET)
        return [f'/notes/{DRAFT}', f'/panel/pages/notes+{DRAFT}', f'/api/pages/notes+{DRAFT}']

    def search(self):
        return f'/api/site/search?q={WORD}'

    def upload(self, owner, name, content):
        place = f'pages/notes+{NOTE}/files'
        # Its panel sends what is larger than PHP takes at once in pieces.
        for begin in range(0, len(content), PIECE):
            headers = {'Upload-Id': f'{name.partition(".")[0]}pieces', 'Upload-Offset': str(begin), 'Upload-Length': str(len(content))}
            self.api(owner, 'POST', place, data={'sort': '1'}, files={'file': (f'pieces-{name}', content[begin:begin + PIECE])}, headers=headers)
        self.api(owner, 'POST', place, data={'sort': '2'}, files={'file': (name, content)})
        paths = {file['filename']: urllib.parse.urlparse(file['url']).path for file in self.api(owner, 'GET', place)['data']}
        assert owner.get(paths[f'pieces-{name}']).content == content
        return paths[name]

    def log_out(self, owner):
        self.api(owner, 'POST', 'auth/logout')
