"""Compressed forms of stored pages by ranges, conditions and methods: every answer is the whole, or the part that it says,
of one form of the page, and that form is one that the client takes."""
import itertools, re, subprocess, zlib
from peers import Folder, Server
from .origins import HttpOrigin, answer
from .wire import Client, ask, head, together

TEXT = ''.join(f'line {number}: {number * 7919 % 10007} and so on\n' for number in range(900)).encode()
DATE = 'Sat, 01 Jan 2022 00:00:00 GMT'
# Of each page: what it says beside its text. `packed` comes compressed from the upstream.
PAGES = {
    'strong': {'ETag': '"strong"', 'Last-Modified': DATE, 'Accept-Ranges': 'bytes'},
    'weak': {'ETag': 'W/"weak"', 'Last-Modified': DATE, 'Accept-Ranges': 'bytes'},
    'bare': {},
    'dated': {'Last-Modified': DATE, 'Accept-Ranges': 'bytes'},
    'packed': {'ETag': '"packed"', 'Content-Encoding': 'gzip', 'Vary': 'Accept-Encoding',
               'Accept-Ranges': 'bytes'},
    'file': None,
}
CODINGS = ['', 'identity', 'gzip', 'br', 'zstd', 'gzip, br', 'br, gzip, zstd', 'deflate', '*', 'gzip;q=0',
           'identity;q=0, gzip', '*;q=0', 'gzip;q=0.5, br;q=0.1', 'GZIP', 'x-gzip', 'gzip;q=0, *',
           'br;q=0, gzip', 'gzip;q=x', 'gzip;;q=1', 'gzip, identity;q=0', ',,gzip,,', 'zstd;q=1.0, br;q=0.9',
           'gzip;q=1.001', 'gzipp']
RANGES = ['', 'bytes=0-0', 'bytes=5-99', 'bytes=-7', 'bytes=100-', 'bytes=0-0,5-9', 'bytes=999999-',
          'bytes=2-1', 'bytes=0-999999', 'items=0-1']
# What it is compared with: the validator of the plain form, that of the coded one, a wrong one.
CONDITIONS = [(), ('If-Range', 'same'), ('If-Range', 'other'), ('If-Range', DATE), ('If-None-Match', 'same'),
              ('If-None-Match', 'other'), ('If-None-Match', '*'), ('If-Modified-Since', DATE),
              ('If-Match', 'other'), ('If-Range', 'plain')]


def packed(text):
    coder = zlib.compressobj(wbits=31)
    return coder.compress(text) + coder.flush()


def respond(request):
    name = request.target.strip('/').split('/')[0]
    body = packed(TEXT) if name == 'packed' else TEXT
    return answer(body, fields={'Content-Type': 'text/plain', 'Cache-Control': 'max-age=60', **PAGES[name]})


def configuration(port, folder):
    return f'''
    proxy_cache_path $dir/cache/z keys_zone=z:1m;
    server {{ listen 127.0.0.1:$port; root {folder}/www; default_type text/plain;
      gzip on; gzip_types *; gzip_proxied any; gzip_vary on; brotli on; brotli_types *; zstd on; zstd_types *;
      proxy_http_version 1.1; proxy_set_header Connection "";
      location / {{ proxy_pass http://127.0.0.1:{port}; proxy_cache z; proxy_cache_key $request_uri; }}
      location /file {{ }} }}'''


def weights(field):
    """What a client takes; `None` for all, as where the field is not understood."""
    found = {}
    for item in field.lower().split(','):
        name, *parameters = [part.strip() for part in item.split(';')]
        weight = [part[2:] for part in parameters if part.startswith('q=')]
        try:
            found[name.removeprefix('x-')] = float(weight[0]) if weight else 1.0
        except ValueError:
            found[name.removeprefix('x-')] = None
    return found


def takes(field, coding):
    taken = weights(field)
    weight = taken.get(coding, taken.get('*', 0.0 if coding != 'identity' else 1.0))
    return weight is None or weight > 0


class Page:
    """The forms of one page that were seen whole: by coding and validator."""

    def __init__(self, server, name):
        self.server, self.name, self.forms = server, name, {}

    def plain(self, coding, body):
        if coding in (None, 'identity'):
            return body
        if coding == 'gzip':
            return zlib.decompress(body, 31)
        # The tool that knows the others; it asks for this one alone.
        done = subprocess.run(['curl', '-sS', '--compressed', '-H', f'Accept-Encoding: {coding}',
                               f'http://127.0.0.1:{self.server.port}/{self.name}'], capture_output=True)
        return done.stdout

    async def learn(self, tried):
        for coding in CODINGS:
            for _ in range(2):  # The second time the form is a stored one.
                got = await ask(self.server.port, f'/{self.name}', fields={'Accept-Encoding': coding}
                                if coding else {})
                key = got.field('content-encoding'), got.field('etag')
                known = self.forms.setdefault(key, got.body)
                tried.check(f'{self.name}: {coding}', known == got.body
                            or key[1] in (None, 'W/"weak"', 'W/"strong"'), 'two forms with one validator')
        for (coding, _), body in self.forms.items():
            tried.check(f'{self.name}: {coding}', self.plain(coding, body) == TEXT, 'is another page')

    def etag(self, coding):
        """The validator of the form that such a client gets."""
        return next((etag for (found, etag) in self.forms if found == coding), None)


def parts(got):
    """First and last byte, length of the whole, and the bytes of each part of a 206."""
    kind = got.field('content-type') or ''
    if not kind.startswith('multipart/byteranges'):
        found = re.fullmatch(r'bytes (\d+)-(\d+)/(\d+)', got.field('content-range') or '')
        return [(*map(int, found.groups()), got.body)] if found else []
    boundary = b'--' + kind.split('boundary=')[1].encode()
    out = []
    for piece in got.body.split(b'\r\n' + boundary)[1:-1]:
        lines, _, body = piece.partition(b'\r\n\r\n')
        found = re.search(rb'Content-Range: bytes (\d+)-(\d+)/(\d+)', lines)
        out.append((*map(int, found.groups()), body))
    return out


class Attack:
    def __init__(self, tried, server):
        self.tried, self.server = tried, server

    async def page(self, name):
        page = Page(self.server, name)
        await page.learn(self.tried)
        client = None
        for coding, span, condition, method in itertools.product(CODINGS, RANGES, CONDITIONS,
            ('GET', 'HEAD')):
            if (hash_of(coding, span, condition) % SHARE) and condition and span:
                continue
            case = f'{name}: {method} {coding!r} {span!r} {" ".join(condition)}'
            if not self.tried.wants(case):
                continue
            client = client or await Client.to(self.server.port)
            fields = [('Accept-Encoding', coding)] if coding else []
            fields += [('Range', span)] if span else []
            chosen = next((key for key in page.forms if takes(coding or 'identity', key[0] or 'identity')
                           and key[0]), (None, page.etag(None)))
            said = self.said(page, chosen, condition)
            fields += [(condition[0], said)] if condition else []
            client.send(head(f'/{name}', method, fields=fields))
            got = await client.answer(method)
            for problem in self.judged(page, got, coding, span, condition, said, method):
                self.tried.failed(case, f'{problem}: {got.status} {got.fields} {got.body[:40]!r}'[:500])
            if (got.field('connection') or '') == 'close':
                client.close()
                client = None

    def said(self, page, chosen, condition):
        if not condition or condition[1] in (DATE, '*'):
            return condition[1] if condition else ''
        return {'same': chosen[1] or '"none"', 'plain': page.etag(None) or '"none"',
                'other': '"other"'}[condition[1]]

    def judged(self, page, got, coding, span, condition, said, method):
        key = got.field('content-encoding'), got.field('etag')
        form = page.forms.get(key)
        if got.status in (200, 206):
            if form is None:
                yield f'an unknown form {key}'
                return
            if key[0] and page.name != 'packed' and not takes(coding or 'identity', key[0]):
                yield 'a form that the client does not take'
        if got.status == 200 and method == 'GET' and got.body != form:
            yield 'not the whole page'
        if got.status == 200 and got.field('content-length') not in (None, str(len(form))):
            yield f'a length that is not the {len(form)} of the form'
        if got.status == 200 and condition[:1] == ('If-None-Match',) and said in ('*', key[1]):
            yield 'not 304'
        if got.status == 206:
            yield from self.judged_parts(got, form, span, condition, said, key, method)
        if got.status == 304 and not (condition and self.matches(condition, said, page, key)):
            yield 'nothing says that the client has it'
        if got.status == 416 and not re.fullmatch(r'bytes \*/\d+', got.field('content-range') or ''):
            yield 'no length with 416'
        if got.status not in (200, 206, 304, 412, 416):
            yield 'another status'
        if got.status == 412 and condition[:1] != ('If-Match',):
            yield 'no condition has failed'

    def judged_parts(self, got, form, span, condition, said, key, method):
        if not span.startswith('bytes='):
            yield 'no range was asked for'
        # As nginx, a weak validator counts where it is the same to the byte.
        if condition[:1] == ('If-Range',) and said not in (key[1], got.field('last-modified')):
            yield f'If-Range {said} does not hold'
        for first, last, length, body in parts(got) if method == 'GET' else ():
            if length != len(form) or body != form[first:last + 1] or len(body) != last - first + 1:
                yield f'bytes {first} to {last} of {length} are not those of the form'
        if method == 'GET' and not parts(got):
            yield '206 without a range'

    @staticmethod
    def matches(condition, said, page, key):
        if condition[0] == 'If-Modified-Since':
            return PAGES.get(page.name) is None or 'Last-Modified' in PAGES[page.name]
        bare = [etag.removeprefix('W/') for _, etag in page.forms if etag]
        return condition[0] == 'If-None-Match' and (said == '*' or said.removeprefix('W/') in bare)


# Of the combinations of range and condition one in this many is tried of each coding.
SHARE = 6


def hash_of(*words):
    return zlib.crc32(repr(words).encode())


async def run(tried):
    async with HttpOrigin(respond) as origin:
        with Folder() as folder:
            (folder / 'www').mkdir()
            (folder / 'www/file').write_bytes(TEXT)
            with Server(folder, configuration(origin.port, folder)) as server:
                attack = Attack(tried, server)
                await together([attack.page(name) for name in PAGES])
                tried.alive(server)
