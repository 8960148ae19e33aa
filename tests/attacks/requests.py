"""Requests that two readers could understand differently, to six kinds of locations, each beside Debian's nginx.

Behind each follows a request of its own on the same connection. Nothing in them may be taken for a request that is none,
whatever their outcome; where the statuses are not nginx's, the reason stands here.
"""
import asyncio, collections, fnmatch, re
from peers import NGINX, Folder, Server
from . import request_forms
from .origins import FastcgiOrigin, HttpOrigin, answer, echo
from .request_forms import ENDS, OLD, REFUSED, TAKEN
from .tried import ROUNDS
from .wire import Broken, Client, together

PLACES = ('kept', 'live', 'fcgi', 'flive', 'return', 'deny')

# Patterns of case names, and why yorozu does not answer them as nginx 1.22 does.
STRICTER = {
    'length-*-Content-Length:5\\r:*': 'a bare CR is refused',
    'coding-*-Transfer-Encoding:chunked\\r:*': 'a bare CR is refused',
    'field-*-X:_y\\r:*': 'a bare CR is refused',
    'chunk-*\\n*': 'a bare LF ends no line of the chunked framing, as in nginx since 1.29.4',
    'chunk-*-5\\r\\nhell\\r\\n*': 'a bare LF ends no line of the chunked framing, as in nginx since 1.29.4',
    'chunk-*-5_5*': 'a chunk size is one number',
    'chunk-*-000000000000000*': 'a chunk size has few digits',
    'host-*': 'a Host that is not an authority is refused',
    'line-*-CONNECT*': 'a target that is not an authority is 400 before the method is 405',
    'line-*-POST_%T:*': 'a refusal always has a head',
}
# Where it takes what nginx does not: why nothing comes of it.
LAXER = {
    'host-*-Host:\\ta.test*': 'a tab is white space around a value (RFC 9110, section 5.5)',
    'host-*-|http://*': 'the authority is that of the target (RFC 9112, section 3.2.2)',
    'host-*-Host:_\\r\\n|http://*': 'the authority is that of the target (RFC 9112, section 3.2.2)',
    'length-*\\t*': 'a tab is white space around a value (RFC 9110, section 5.5)',
    'coding-*\\t*': 'a tab is white space around a value (RFC 9110, section 5.5)',
    'chunk-*:return': 'content that is not read is judged after the answer; the connection ends then',
    'chunk-*-fffffff\\r*': 'a chunk beyond client_max_body_size is refused when it comes, not when it is announced',
    'name-*-HTTP/1.0_length:f*': 'an answer of FastCGI is sent with its length, so that HTTP/1.0 need not close',
}


def configuration(http, fastcgi):
    asks = 'fastcgi_pass fcgi; fastcgi_keep_conn on; fastcgi_param REQUEST_METHOD $request_method; ' \
        'fastcgi_param REQUEST_URI $request_uri; fastcgi_param CONTENT_LENGTH $content_length;'
    return f'''
    client_header_timeout 1s; client_body_timeout 1s; keepalive_timeout 1s; lingering_timeout 1s;
    upstream http {{ server 127.0.0.1:{http}; keepalive 8; }}
    upstream fcgi {{ server 127.0.0.1:{fastcgi}; keepalive 8; }}
    server {{ listen 127.0.0.1:$port backlog=2048; server_name a.test; add_header X-Read $request_uri always;
      proxy_http_version 1.1; proxy_set_header Connection "";
      location /kept/ {{ proxy_pass http://http; }}
      location /live/ {{ proxy_pass http://http; proxy_request_buffering off; proxy_buffering off; }}
      location /fcgi/ {{ {asks} }}
      location /flive/ {{ {asks} fastcgi_request_buffering off; fastcgi_buffering off; }}
      location /return/ {{ return 200 "$request_method $request_uri"; }}
      location /deny/ {{ deny all; }} }}'''


def rendered(form, target):
    hidden = request_forms.HIDDEN.replace(b'%S', target + b'-hidden')
    data = form.data.replace(request_forms.HIDDEN, hidden).replace(b'%T', target).replace(b'%S',
        target + b'-hidden')
    body = hidden if form.data.endswith(request_forms.HIDDEN) else b''
    length = len(data) - data.index(b'\r\n\r\n') - 4 if body else 0
    return data.replace(b'%H', str(length).encode()), form.content.replace(request_forms.HIDDEN, hidden)


class Outcome:
    """What a client got: status, the target that the server read, and the first line of what was answered."""

    def __init__(self):
        self.answers, self.broken, self.was_reset = [], None, False

    @property
    def statuses(self):
        return [status for status, _, _ in self.answers]

    def took(self, target):
        return any(target == read for _, read, _ in self.answers)

    def __repr__(self):
        return f'{self.answers}' + (f' broken: {self.broken}' if self.broken else '') + (' reset' if self.was_reset else '')


async def sent(port, data, method):
    """Sends the bytes and reads all answers."""
    outcome = Outcome()
    async with await Client.to(port, data) as client:
        try:
            first = True
            while (answer := await client.answer(method if first else 'GET')) is not None:
                line = answer.body.split(b'\n')[0].decode('latin1') if answer.status == 200 else ''
                outcome.answers.append((answer.status, answer.field('x-read') or '', line[:200]))
                first = False
        except Broken as problem:
            outcome.broken = str(problem)
        except (TimeoutError, ConnectionError) as problem:
            outcome.broken = repr(problem)
        outcome.was_reset = client.was_reset
    return outcome


class Attack:
    def __init__(self, tried):
        self.tried, self.servers, self.seen = tried, (), collections.defaultdict(list)

    def notes(self, answered):
        """What an upstream answers, which is noted by the case it belongs to."""
        def respond(request):
            found = re.match(r'.*?(/[a-z]+/[yn]\d+)', request.target)
            self.seen[found[1] if found else None].append(request)
            return answered(echo(request))
        return respond

    async def one(self, number, form, place):
        case = f'{form.name}:{place}'
        if not self.tried.wants(case):
            return
        outcomes, targets, contents = [], [], []
        for name, server in zip('yn', self.servers):
            target = f'/{place}/{name}{number}'
            data, content = rendered(form, target.encode())
            targets.append(target)
            contents.append(content)
            behind = f'GET {target}-behind HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n'.encode()
            method = 'HEAD' if b'HEAD' in data[:8] else 'GET'
            outcomes.append(sent(server.port, data + behind, method))
        ours, theirs = await asyncio.gather(*outcomes)
        for problem in self.judged(form, place, targets[0], ours, contents[0]):
            self.tried.failed(case, f'{problem}: {ours!r}'[:700])
        if form.kind is None:
            # What is hidden in a body names its own target.
            seen = [[request.body.replace(target.encode(), b'TARGET') for request in self.seen[target]
                     if request.target == target] for target in targets]
            self.tried.check(case, not all(seen) or seen[0] == seen[1], f'contents {seen}, {form.data!r}')
        elif differ(ours, theirs, targets) and not allowed(case, ours, theirs):
            logged = [line for line in self.servers[0].log().splitlines() if targets[0] in line]
            self.tried.failed(case, f'{ours!r}, and nginx {theirs!r}; the log: {logged}'[:900])

    def judged(self, form, place, target, ours, content):
        """What is wrong with an outcome, whatever nginx does."""
        behind, also = f'{target}-behind', [f'{target}{end}' for end in form.also]
        rightly = {target, behind, *also}
        for status, read, line in ours.answers:
            read = normal(read)
            if form.kind and f'{target}-' in read and read not in rightly:
                yield f'a request that is none was read: {read}'
            if line and status == 200 and read.startswith(target) and read not in line:
                yield f'{read} got the answer {line!r}'
        if (ours.broken or '').startswith('no head') != (form.kind == OLD) and form.kind:
            yield 'no HTTP'
        seen = self.seen[target]
        targets = [request.target for request in seen]
        if len(targets) != len(set(targets)):
            yield f'the upstream was asked twice: {targets}'
        for request in seen:
            if form.kind and f'{target}-' in request.target and request.target not in rightly:
                yield f'the upstream saw {request.method} {request.target}'
            if form.kind and f'{target}-' not in request.target and request.body != content:
                yield f'the upstream saw the content {request.body[:60]!r}'
        went_on = ours.took(behind)
        if form.kind == TAKEN and not went_on:
            yield 'the request behind it was not answered'
        if form.kind in (REFUSED, ENDS, OLD) and went_on:
            yield 'the request behind it was answered'
        if form.kind == REFUSED and place not in ('return', 'deny') and not all(s >= 400
            for s in ours.statuses):
            yield 'it was taken'
        if form.kind == REFUSED and seen:
            yield f'the upstream saw it: {targets}'


def normal(target):
    """A target as the origin got it."""
    return re.sub('^https?://[^/]*', '', target, flags=re.I)


def differ(ours, theirs, targets):
    """Not the same statuses, or not both with the request behind."""
    went_on = [outcome.took(f'{targets[index]}-behind') for index, outcome in enumerate((ours, theirs))]
    return went_on[0] != went_on[1] or ours.statuses != theirs.statuses


def allowed(case, ours, theirs):
    is_laxer = all(s < 400 for s in ours.statuses) and any(s >= 400 for s in theirs.statuses)
    known = LAXER if is_laxer else {**STRICTER, **LAXER}
    return any(fnmatch.fnmatchcase(case, pattern) for pattern in known)


async def run(tried):
    attack = Attack(tried)
    fields = b'Content-Type: text/plain\r\n\r\n'
    http = HttpOrigin(attack.notes(answer))
    fastcgi = FastcgiOrigin(attack.notes(lambda content: fields + content))
    async with http, fastcgi:
        conf = configuration(http.port, fastcgi.port)
        with Folder() as folder, Server(folder, conf) as yorozu, Server(folder, conf, NGINX) as nginx:
            attack.servers = (yorozu, nginx)
            known = request_forms.all_forms()
            more = [request_forms.random_form(tried.random, number, known) for number in range(ROUNDS)]
            forms = list(enumerate(known + more))
            await together([attack.one(number, form, place) for number, form in forms for place in PLACES],
                           256)
            for origin in (http, fastcgi):
                tried.check('the upstream', not origin.broken,
                            f'was sent what it cannot read: {origin.broken[:3]}')
            tried.alive(yorozu)
