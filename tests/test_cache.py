"""The page cache with PHP behind FastCGI and behind Apache: one maker, nothing stored that must not be,
nothing lost.
"""
import contextlib, hashlib, http.client, json, os, pathlib, random, re, select, shutil, socket, subprocess, threading, time
import pytest
from peers import FASTCGI, SECONDS, YOROZU, Accepting, Apache, Folder, Fpm, Process, Server, equal, free_port, get, until

ROOT = pathlib.Path(__file__).resolve().parent.parent
KEY = '"$scheme$request_method$host$request_uri"'

# What each path does. Every run leaves a line, so that runs can be counted.
PHP = r'''<?php
$path = parse_url($_SERVER['REQUEST_URI'], PHP_URL_PATH);
file_put_contents(__DIR__ . '/runs', $_SERVER['REQUEST_METHOD'] . ' ' . $_SERVER['REQUEST_URI'] . "\n",
                  FILE_APPEND | LOCK_EX);
parse_str($_SERVER['QUERY_STRING'] ?? '', $query);
if (isset($query['wait'])) usleep(1000 * (int) $query['wait']);
foreach ((array) ($query['h'] ?? []) as $field) header($field, false);
if (isset($query['status'])) http_response_code((int) $query['status']);
if (isset($query['to_itself'])) header("Location: http://$_SERVER[HTTP_HOST]/self?to_itself=1", true, 301);
if (isset($query['held'])) while (file_exists(__DIR__ . '/held')) { clearstatcache(); usleep(10000); }
if (isset($query['time'])) printf("%.6f ", microtime(true));
if (isset($query['session'])) { session_start(); echo session_id(); }
if (isset($query['login'])) echo 'user ', $_SERVER['HTTP_AUTHORIZATION'] ?? $_SERVER['PHP_AUTH_USER'] ?? $_SERVER['HTTP_X_NAME'] ?? 'nobody', "\n";
if (isset($query['reflect'])) echo $_SERVER['HTTP_X_FORWARDED_HOST'] ?? 'none', $_SERVER['HTTP_X_ORIGINAL_URL'] ?? '';
if (isset($query['body'])) echo file_get_contents('php://input');
if (isset($query['slow'])) {
    @ini_set('zlib.output_compression', 0);
    while (ob_get_level()) ob_end_flush();
    ob_implicit_flush(true);
    for ($n = 0; $n < (int) $query['slow']; $n++) { echo str_repeat("part $n ", 2000), "\n"; flush(); usleep(100000); }
}
if (isset($query['kill'])) {
    header('Content-Length: 100000');
    echo str_repeat('half ', 5000);
    while (ob_get_level()) ob_end_flush();
    flush();
    posix_kill(getmypid(), 9);
}
if (isset($query['fatal'])) {
    echo 'before';
    if ($query['fatal'] == 'late') { while (ob_get_level()) ob_end_flush(); flush(); }
    undefined_function();
}
if (isset($query['big'])) echo str_repeat(md5($_SERVER['REQUEST_URI']), (int) $query['big'] * 32);
echo 'page ', $_SERVER['REQUEST_URI'], ' ', hash('sha256', $_SERVER['REQUEST_URI']), "\n";
'''


class Site:
    """PHP, and yorozu in front of it by FastCGI or by way of Apache."""

    def __init__(self, folder, kind, more='', http='', zone='keys_zone=z:1m', in_server='', **server):
        (folder / 'www').mkdir(exist_ok=True)
        (folder / 'www').chmod(0o777)
        (folder / 'www/index.php').write_text(PHP)
        self.folder, self.kind, self.stack = folder, kind, contextlib.ExitStack()
        if kind == 'fastcgi':
            self.php = self.stack.enter_context(Fpm(folder, children=8))
            to = f'{FASTCGI} {folder}/www/index.php; fastcgi_pass unix:{self.php.socket};'
        else:
            self.php = self.stack.enter_context(Apache(folder, folder / 'www'))
            to = f'rewrite ^(.*)$ /index.php$1 break; proxy_pass http://127.0.0.1:{self.php.port}; ' \
                'proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $host;'
        conf = f'''{kind}_cache_path {folder}/pages levels=1:2 {zone}; {http}
            server {{ listen 127.0.0.1:$port; server_name site.example; {in_server}
              location / {{ {to} {kind}_cache z; {kind}_cache_key {KEY};
                {kind}_cache_lock on; add_header X-Cache $upstream_cache_status always;
                add_header X-Detail $cache_detail always; {more.replace('CACHE', kind + '_cache')} }} }}'''
        self.server = self.stack.enter_context(Server(folder, conf, **server))
        self.port = self.server.port

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stack.close()

    def get(self, path, method='GET', body=None, **fields):
        return get(self.port, path, method, body, **{'Host': 'site.example', **fields})

    @contextlib.contextmanager
    def held(self):
        """PHP makes no page whose path has `held` as long as this goes on."""
        file = self.folder / 'www/held'
        file.touch()
        yield
        file.unlink()

    def runs(self, path=None):
        file = self.folder / 'www/runs'
        lines = file.read_text().splitlines() if file.exists() else []
        if self.kind == 'proxy':
            lines = [line.replace(' /index.php/', ' /', 1) for line in lines]
        return len([line for line in lines if path is None or line.endswith(' ' + path)])


def both(test, **more):
    for kind in ('fastcgi', 'proxy'):
        with Folder() as folder, Site(folder, kind, **more) as site:
            test(site)
            assert 'panic' not in site.server.log(), site.server.log()


def crowd(port, path, count):
    """`count` clients, connected beforehand, ask at once; their answers."""
    clients = []
    for _ in range(count):
        client = socket.create_connection(('127.0.0.1', port))
        client.setblocking(False)
        clients.append(client)
    poll, answers = select.epoll(), {}
    request = f'GET {path} HTTP/1.1\r\nHost: site.example\r\nConnection: close\r\n\r\n'.encode()
    for client in clients:
        client.send(request)
        poll.register(client, select.EPOLLIN)
        answers[client.fileno()] = b''
    files = {client.fileno(): client for client in clients}
    while files:
        assert (found := poll.poll(SECONDS)), f'{len(files)} of {count} clients have no whole answer'
        for number, _ in found:
            piece = files[number].recv(1 << 20)
            answers[number] += piece
            if not piece:
                poll.unregister(number)
                files.pop(number).close()
    return [answer.partition(b'\r\n\r\n')[::2] for answer in answers.values()]


# --- one maker -----------------------------------------------------------------------------------

def test_a_thousand_clients_cost_one_run():
    def check(site):
        path = '/crowd?wait=300&h[]=Cache-Control:max-age=60'
        answers = crowd(site.port, path, 1000)
        equal(site.runs(path), 1, 'runs of PHP')
        heads, bodies = zip(*answers)
        equal(len(set(bodies)), 1)
        assert path.encode() in bodies[0]
    both(check)


def test_waiters_read_along():
    def check(site):
        path = '/along?slow=8&h[]=Cache-Control:max-age=60'
        seen = []
        def read():
            client = socket.create_connection(('127.0.0.1', site.port))
            client.sendall(f'GET {path} HTTP/1.1\r\nHost: site.example\r\nConnection: close\r\n\r\n'.encode())
            first, out = None, b''
            while piece := client.recv(65536):
                out += piece
                if first is None and b'part 0' in out:
                    first = time.monotonic()
            seen.append((first, time.monotonic(), hashlib.sha256(
                b''.join(line for line in out.partition(b'\r\n\r\n')[2].split(b'\n') if b'part' in line)).digest()))
        threads = [threading.Thread(target=read) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        equal(site.runs(path), 1, 'runs of PHP')
        for first, last, _ in seen:
            assert last - first > 0.3, f'the first byte came {last - first:.3f} s before the last'
        assert b'part 7' in site.get(path).content
        equal(site.get(path).headers['X-Cache'], 'HIT')
    both(check)


def test_who_must_ask_for_itself_reads_along_with_nobody():
    def check(site):
        # `no-cache` with a validator is stored, and asked for at each use; PHP answers with the name it was asked by.
        path = '/own?login=1&slow=4&h[]=Cache-Control:no-cache&h[]=ETag:%22x%22'
        answers = {}
        def read(name):
            answers[name] = site.get(path, **({} if name == 'nobody' else {'X-Name': name})).content.decode()
        maker = threading.Thread(target=read, args=('alice',))
        maker.start()
        until('the maker', lambda: site.runs(path))
        others = [threading.Thread(target=read, args=(name,)) for name in ('bob', 'nobody', 'carol')]
        for thread in others:
            thread.start()
        for thread in (maker, *others):
            thread.join()
        for name, text in answers.items():
            equal(text.split()[1], name)
    both(check, more='CACHE_revalidate on;')


def test_a_body_beyond_memory_is_read_along_too():
    def check(site):
        path = '/large?big=900&slow=3&h[]=Cache-Control:max-age=60'
        answers = crowd(site.port, path, 30)
        equal(site.runs(path), 1, 'runs of PHP')
        whole = site.get(path)
        equal(whole.headers['X-Cache'], 'HIT')
        wanted = whole.content
        assert len(wanted) > 900_000
        for head, body in answers:
            if b'chunked' in head:
                plain, rest = b'', body
                while rest:
                    size, _, rest = rest.partition(b'\r\n')
                    if not int(size, 16):
                        break
                    plain, rest = plain + rest[:int(size, 16)], rest[int(size, 16) + 2:]
                body = plain
            assert body == wanted, (len(body), len(wanted))
    both(check, zone='keys_zone=z:1m memory=1m')


class Origin(Accepting):
    """A scripted origin that counts how many requests it has at once. It answers each after some seconds, or once all of `wanted` have come:
    with the same bytes, or as a function of the connection and the number of the request does."""

    def __init__(self, answer, seconds=0, wanted=1):
        self.wanted, self.has_all, self.lock = wanted, threading.Event(), threading.Lock()
        self.answer, self.seconds = answer, seconds
        self.now = self.most = self.total = 0
        super().__init__()

    def serve(self, client):
        with client:
            client.recv(65536)
            with self.lock:
                self.now, self.total = self.now + 1, self.total + 1
                number = self.total
                self.most = max(self.most, self.now)
                if self.total >= self.wanted:
                    self.has_all.set()
            self.has_all.wait(60)
            time.sleep(self.seconds)
            with self.lock:
                self.now -= 1
            if callable(self.answer):
                self.answer(client, number)
            else:
                client.sendall(self.answer)


def locked(origin, more=''):
    return f'''proxy_cache_path $dir/pages keys_zone=z:1m; server {{ listen 127.0.0.1:$port;
        location / {{ proxy_pass http://127.0.0.1:{origin.port}; proxy_cache z; proxy_cache_lock on;
          proxy_cache_key $uri; proxy_cache_valid 200 1m; {more} }} }}'''


def test_a_maker_that_fails_is_followed_by_one_waiter_at_a_time():
    with Folder() as folder, Origin(b'', 0.02) as origin, Server(folder, locked(origin)) as server:
        crowd(server.port, '/', 60)
        equal((origin.most, origin.total), (1, 60), 'requests at once and in all')


def test_no_request_waits_for_a_page_that_may_not_be_stored():
    page = b'HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nContent-Length: 2\r\n\r\nhi'
    with Folder() as folder, Origin(page, 0.2) as origin, Server(folder, locked(origin)) as server:
        crowd(server.port, '/', 20)
        assert origin.total == 20 and origin.most > 1, f'{origin.most} at once, {origin.total} in all'


def test_waiters_have_patience_for_lock_timeout():
    page = b'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi'
    more = 'proxy_cache_lock_timeout 300ms; proxy_cache_lock_age 10s;'
    with Folder() as folder, Origin(page, wanted=5) as origin, Server(folder, locked(origin, more)) as server:
        crowd(server.port, '/', 5)
        equal((origin.most, origin.total), (5, 5), 'each goes by itself once its patience is over')
    more = 'proxy_cache_lock_timeout 60s; proxy_cache_lock_age 300ms;'
    with Folder() as folder, Origin(page, 0.5, wanted=2) as origin, Server(folder, locked(origin, more)) as server:
        begun = time.monotonic()
        crowd(server.port, '/', 12)
        most = 1 + (time.monotonic() - begun) / 0.3
        assert 2 <= origin.total <= most, f'{origin.total} makers: one more after each age'


def test_who_waits_long_has_the_page_that_was_made_meanwhile():
    # What was stored seconds after their requests began is not a page of the future.
    page = b'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi'
    for age, seconds in ((60, 3), (1, 3.5)):
        more = f'proxy_cache_lock_age {age}s; proxy_cache_lock_timeout 60s;'
        with Folder() as folder, Origin(page, seconds) as origin, Server(folder, locked(origin, more)) as server:
            begun = time.monotonic()
            crowd(server.port, '/', 12)
            assert origin.total <= 1 + (time.monotonic() - begun) / age, f'{origin.total} makers, {more}'


@pytest.mark.parametrize('second', ['same', 'short', 'other', 'longer', 'none'])
@pytest.mark.parametrize('is_announced', [True, False], ids=['length', 'chunked'])
@pytest.mark.parametrize('end', ['closed', 'stalled'])
def test_a_body_that_stops_arriving_takes_none_along_who_reads_it(end, is_announced, second):
    """It is made again, and goes on where that begins with what was read; for the client whose request made it, too."""
    text, is_read, is_over = random.Random(4).randbytes(100_000), threading.Event(), threading.Event()
    other = {'same': text, 'short': text[:20_000], 'other': text[:20_000] + b'!' + text[20_001:], 'longer': text + b'!', 'none': None}[second]

    def answer(client, number):
        body = text if number == 1 else other
        if body is None:
            return
        chunk = b'' if is_announced else b'%x\r\n' % len(body)
        length = f'Content-Length: {len(body)}' if is_announced else 'Transfer-Encoding: chunked'
        client.sendall(f'HTTP/1.1 200 OK\r\n{length}\r\nConnection: close\r\n\r\n'.encode() + chunk + body[:50_000])
        if number > 1:
            client.sendall(body[50_000:] + (b'' if is_announced else b'\r\n0\r\n\r\n'))
        else:
            (is_read if end == 'closed' else is_over).wait(60)

    patience = '60s' if end == 'closed' else '1s'
    more = f'proxy_cache_lock_age 60s; proxy_cache_lock_timeout {patience};'
    with Folder() as folder, Origin(answer) as origin, Server(folder, locked(origin, more)) as server, \
            contextlib.ExitStack() as stack:
        readers = [stack.enter_context(socket.create_connection(('127.0.0.1', server.port), 60)) for _ in range(3)]
        found = [b''] * 3
        for reader in readers:
            reader.sendall(b'GET / HTTP/1.0\r\nHost: site.example\r\n\r\n')
        for number, reader in enumerate(readers):
            while len(found[number].partition(b'\r\n\r\n')[2]) < 50_000:
                piece = reader.recv(65536)
                assert piece, found[number][:200]
                found[number] += piece
        is_read.set()
        until('the second request', lambda: origin.total == 2)
        goes_on = second == 'same' or second == 'longer' and not is_announced
        if not goes_on:
            is_over.set()
        for reader, out in zip(readers, found):
            while piece := reader.recv(65536):
                out += piece
            equal(out.partition(b'\r\n\r\n')[2] == (other if goes_on else text[:50_000]), True, f'{len(out)} bytes')
        is_over.set()


def test_a_refresh_is_not_tied_to_the_client_who_caused_it():
    def check(site):
        path = tagged('/tied', 'x') + '&held=1'
        equal(state(site, path), 'MISS')
        purge(site, '--soft', '--tag', 'x')
        with site.held(), socket.create_connection(('127.0.0.1', site.port)) as client:
            client.sendall(f'GET {path} HTTP/1.1\r\nHost: site.example\r\n\r\n'.encode())
            assert b'X-Cache: STALE' in client.recv(65536)
            client.close()
            until('the refresh to begin', lambda: site.runs(path) == 2)
        until('the refresh', lambda: state(site, path) == 'HIT')
        equal(site.runs(path), 2)
    both(check, more='CACHE_background_update on; CACHE_valid 200 1m;', zone='keys_zone=z:1m')


def test_hot_pages_are_made_anew_before_they_expire():
    def check(site):
        # A machine that stood still for a moment lets a page expire; a server that waits for that does so each time.
        for number in range(6):
            path = f'/hot{number}?wait=200&h[]=Cache-Control:max-age=2'
            site.get(path)
            seen, end = set(), time.monotonic() + 5
            while time.monotonic() < end:
                seen.add(site.get(path).headers['X-Cache'])
            if seen == {'HIT'}:
                break
        equal(seen, {'HIT'}, 'no request waits')
        assert site.runs(path) >= 3, site.runs(path)
    both(check, more='CACHE_early_refresh on;')


# --- what must not be stored ------------------------------------------------------------------------

# Each: path, fields of the first request, and the reason; cached generously by the configuration.
NEVER = [
    ('/c?h[]=Set-Cookie:a=b', {}, 'set-cookie'),
    ('/s?session=1', {}, None),
    ('/p?h[]=Cache-Control:private', {}, 'private'),
    ('/n?h[]=Cache-Control:no-store', {}, 'no-store'),
    ('/v?h[]=Vary:*', {}, 'vary'),
    ('/a?login=1', {'Authorization': 'Basic dTpw'}, 'authorization'),
    ('/a?login=1&h[]=Cache-Control:max-age=60', {'Authorization': 'Basic dTpw'}, 'authorization'),
    ('/account.php/x.css?session=1', {}, None),
    ('/account.php%2Fx.css?session=1', {}, None),
    ('/r?reflect=1', {'X-Forwarded-Host': 'evil.example'}, 'split'),
    ('/r?reflect=2', {'X-Original-URL': '/admin'}, 'split'),
    ('/r?reflect=3', {'X-HTTP-Method-Override': 'DELETE'}, 'split'),
    ('/e?status=400', {}, 'no-lifetime'),
    ('/e?status=429', {}, 'no-lifetime'),
    ('/e?status=431', {}, 'no-lifetime'),
]


def test_what_is_one_visitors_or_one_requests_is_not_stored():
    def check(site):
        for path, fields, why in NEVER:
            first = site.get(path, **fields)
            if why:
                equal(first.headers['X-Detail'], why, path)
            again = site.get(path)
            equal(again.headers['X-Cache'], 'MISS', f'{path} {fields}')
        equal(site.get('/b?body=1', 'GET', 'evil').headers['X-Detail'], 'body')
        assert b'evil' not in site.get('/b?body=1').content
        # Redirects to themselves would be loops for everybody.
        equal(site.get('/self?to_itself=1').headers['X-Detail'], 'loop')
        own = f'/loop?status=301&h[]=Location:http://site.example/other'
        equal(site.get(own).status, 301)
        equal(site.get(own).headers['X-Cache'], 'HIT', 'a redirect elsewhere is stored')
    both(check, more='CACHE_valid any 1m; CACHE_valid 200 301 1m;')


def test_the_host_is_the_keys_whatever_its_spelling():
    def check(site):
        ask = lambda host: site.get('/host', Host=host).headers['X-Cache']
        equal([ask('Site.Example'), ask('site.example'), ask('SITE.EXAMPLE')], ['MISS', 'HIT', 'HIT'])
        equal(ask('other.example'), 'MISS')
        equal(site.get('/host', Host='site.example\t').status in (200, 400), True)
        for broken in ('a b', 'a/b', 'a@b'):
            equal(site.get('/host', Host=broken).status, 400, broken)
    both(check, more='CACHE_valid any 1m;')


def test_a_head_beyond_the_origins_bounds_leaves_nothing():
    with Folder() as folder, Site(folder, 'proxy', more='CACHE_valid any 1m;',
                                  http='large_client_header_buffers 4 32k;') as site:
        equal(site.get('/big', Cookie='x' * 12000).status, 400, 'Apache takes no such field')
        equal((site.get('/big').status, site.get('/big').headers['X-Cache']), (200, 'HIT'))


def test_partial_output_is_never_stored():
    def check(site):
        for path in ('/kill?kill=1', '/fatal?fatal=early', '/fatal?fatal=late'):
            if site.kind == 'proxy' and 'late' in path:
                continue  # Apache says nothing of how its PHP ended
            for _ in range(2):
                try:
                    answer = site.get(path)
                    # PHP answers a fatal error with 500 by itself, if nothing was sent before.
                    assert answer.status in (500, 502) or 'early' not in path, (path, answer.status)
                except (http.client.IncompleteRead, ConnectionError):
                    pass
            equal(site.runs(path), 2, path)
        # A client that leaves does not cut the page short.
        path = '/left?slow=4'
        with socket.create_connection(('127.0.0.1', site.port)) as client:
            client.sendall(f'GET {path} HTTP/1.1\r\nHost: site.example\r\n\r\n'.encode())
            client.recv(100)
        until('the page', lambda: site.get(path).headers['X-Cache'] == 'HIT')
        assert b'part 3' in site.get(path).content
        equal(site.runs(path), 1)
    both(check, more='CACHE_valid 200 1m;')


# --- explained ------------------------------------------------------------------------------------------

def asks(site, *words):
    command = [YOROZU, '-p', f'{site.server.folder}/', '-c', site.server.folder / 'nginx.conf', 'cache', *words]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    return done.stdout, done.stderr, done.returncode


def test_the_running_server_explains_itself():
    def check(site):
        url = f'http://site.example:{site.port}'

        def rows(*words):
            out, error, status = asks(site, 'explain', *words)
            equal((error, status), ('', 0))
            return dict(line.split(None, 1) for line in out.splitlines())
        equal(rows(f'{url}/a')['answer'], "fetched from upstream (MISS): nothing is stored under the key")
        equal(site.runs(), 0, 'nothing is asked of PHP')
        site.get('/a')
        found = rows(f'{url}/a')
        equal((found['answer'], found['tier'], found['zone']), ('the stored page (HIT)', 'memory', 'z'))
        equal(found['key'], 'httpGETsite.example/a')
        until('the file', lambda: pathlib.Path(found['file']).exists())
        assert found['fresh'].startswith(('for 59 s', 'for 60 s')), found
        found = rows('-H', 'Cookie: skip=1', f'{url}/a')
        equal(found['answer'], "fetched from upstream (BYPASS)")
        assert 'cache_bypass" is "1"' in found['bypass'], found
        assert 'cache_methods' in rows('-X', 'POST', f'{url}/a')['answer']
        out, _, _ = asks(site, 'ls', '--prefix', 'httpGETsite.example/')
        head, line = out.splitlines()
        equal((head.split(), [*line.split()[:2], line.split()[-1]]), (['ZONE', 'STATE', 'STATUS', 'SIZE', 'KEY'], ['z', 'fresh', 'httpGETsite.example/a']))
        page = json.loads(asks(site, 'ls', '--json')[0])
        equal((page['zone'], page['state'], page['status'], page['key']), ('z', 'fresh', 200, 'httpGETsite.example/a'))
        out, _, _ = asks(site, 'stat')
        head, line = out.splitlines()
        equal((head.split()[0], line.split()[:2]), ('ZONE', ['z', '1']))
        equal(json.loads(asks(site, 'stat', '--json')[0])['zones']['z']['memory']['pages'], 1)
        equal(dict(json.loads(asks(site, 'explain', '--json', f'{url}/a')[0]))['tier'], 'memory')
        for words, expected, wanted in ((['ls', 'none'], 'is unknown, expected one of: z', 1), (['explain', 'a'], 'expected http://', 2),
                                        (['flush'], 'unknown command "flush"', 2)):
            out, error, status = asks(site, *words)
            assert status == wanted and expected in error and '[emerg]' not in error, error
        # The socket is not everybody's.
        socket_path = pathlib.Path(f'{site.server.folder}/pid.sock')
        equal(socket_path.stat().st_mode & 0o777, 0o600)
        equal(site.get('/cache/stat').headers['X-Cache'], 'MISS', 'and not on the site')
        status = site.get('/a', Cookie='skip=1').headers
        equal(status['Cache-Status'], 'edge; fwd=bypass; fwd-status=200; stored')
        assert site.get('/a').headers['Cache-Status'].startswith('edge; hit; ttl=')
        equal(site.get('/c?h[]=Set-Cookie:a=b').headers['Cache-Status'],
              'edge; fwd=uri-miss; fwd-status=200; detail=set-cookie')
    both(check, more='CACHE_valid 200 1m; CACHE_bypass $cookie_skip; CACHE_status edge;')


# --- purge -----------------------------------------------------------------------------------------------

def purge(site, *words):
    command = [YOROZU, '-p', f'{site.server.folder}/', '-c', site.server.folder / 'nginx.conf', 'purge', '--json', *words]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def state(site, path, **fields):
    return site.get(path, **fields).headers['X-Cache']


def test_purge_by_the_third_party_modules_location():
    """The published configuration: a location for purges, which plugins ask by GET."""
    def check(site):
        for path in ('/a', '/blog/1', '/blog/2', '/blog2'):
            state(site, path)
            equal(state(site, path), 'HIT')
        equal(site.get('/purge/a').status, 200)
        equal(site.get('/purge/a').status, 412, 'it is not there any more')
        equal((state(site, '/a'), state(site, '/blog/1')), ('MISS', 'HIT'))
        equal(site.get('/purge/blog/*').status, 200)
        equal([state(site, path) for path in ('/blog/1', '/blog/2', '/blog2')], ['MISS', 'MISS', 'HIT'])
        # Not everybody may, though the configuration says nothing about it.
        answer = site.get('/purge/blog2', X_Real_IP='203.0.113.5')
        equal((answer.status, state(site, '/blog2')), (403, 'HIT'))
        assert 'purge refused' in site.server.log()
    for kind in ('fastcgi', 'proxy'):
        server = f'set_real_ip_from 127.0.0.1; real_ip_header X-Real-IP; location ~ /purge(/.*) {{ ' \
            f'{kind}_cache_purge z "$scheme$request_method$host$1"; }}'
        with Folder() as folder, Site(folder, kind, more='CACHE_valid 200 1m;', in_server=server) as site:
            check(site)


def test_purge_by_a_method_and_by_a_flag():
    def check(site):
        for path in ('/a', '/b', '/c'):
            site.get(path)
            site.get(path, 'HEAD')
        equal(site.get('/a', 'PURGE').status, 200)
        equal((state(site, '/a'), state(site, '/b')), ('MISS', 'HIT'))
        equal(site.get('/x', 'PURGE').status, 412)
        equal(site.get('/b', 'PURGE', X_Real_IP='203.0.113.5').status, 403)
    both(check, more='CACHE_valid 200 1m; CACHE_purge PURGE from 127.0.0.0/8;',
         in_server='set_real_ip_from 127.0.0.1; real_ip_header X-Real-IP;')
    def flags(site):
        state(site, '/a?x'), state(site, '/b?x')
        equal((site.get('/a?x', 'PURGE').status, state(site, '/a?x')), (204, 'MISS'))
        equal(site.get('/z', 'PURGE').status, 404)
        equal(site.get('/*', 'PURGE').status, 204)
        equal((state(site, '/a?x'), state(site, '/b?x')), ('MISS', 'MISS'))
    both(flags, more='CACHE_valid 200 1m; CACHE_purge $purges;', http='map $request_method $purges { PURGE 1; default 0; }')


def test_all_variants_of_a_page_go_together():
    def check(site):
        path = '/v?h[]=Vary:X-Kind'
        ask = lambda kind, method='GET': site.get(path, method, X_Kind=kind).headers['X-Cache']
        equal([ask(kind) for kind in 'abcabc'], ['MISS'] * 3 + ['HIT'] * 3)
        ask('a', 'HEAD')
        assert purge(site, f'http://site.example:{site.port}{path}')['purged'] >= 3
        equal([ask(kind) for kind in 'abc'], ['MISS'] * 3)
        equal(ask('a', 'HEAD'), 'MISS')
    both(check, more='CACHE_valid 200 1m;')


def test_what_is_explained_comes_true():
    """Of each state of a page, and each kind of request: what `explain` says is what the next such request gets."""
    states = {
        'missing': '/missing?h[]=Cache-Control:no-store',
        'fresh': '/fresh?h[]=Cache-Control:max-age=600',
        # Stored, as an absolute time, and over.
        'expired': '/expired?h[]=X-Accel-Expires:@1',
        'strict': '/strict?h[]=Cache-Control:max-age=1,must-revalidate',
        'window': '/window?h[]=Cache-Control:max-age=1,stale-while-revalidate=600',
        'purged': '/purged?h[]=Cache-Control:max-age=600&h[]=Surrogate-Key:p',
    }
    requests = ({}, {'Authorization': 'Basic eA=='}, {'Cookie': 'skip=1'}, {'X-Forwarded-Host': 'other.example'})
    seen = set()

    def answer(site, path, fields):
        words = [word for name, value in fields.items() for word in ('-H', f'{name}: {value}')]
        out, error, status = asks(site, 'explain', *words, f'http://site.example:{site.port}{path}')
        equal((error, status), ('', 0))
        return re.search(r'^answer +(.*)', out, re.M)[1]

    def check(site):
        cases = [(name, path.replace('?', f'/{number}?'), fields)
                 for name, path in states.items() for number, fields in enumerate(requests)]
        for name, own, _ in cases:
            site.get(own)
        for name, own, fields in cases:
            if name in ('strict', 'window'):
                until('the expiry', lambda: '(HIT)' not in answer(site, own, {}))
            if name == 'purged':
                equal(purge(site, '--soft', '--tag', 'p')['purged'] > 0, True)
            said = answer(site, own, fields)
            got = state(site, own, **fields)
            word = re.search(r'[(]([A-Z]+)[)]', said)
            equal(word and word[1], got, f'{name} {fields} {said}')
            seen.add((name, got))
    for more in ('', 'CACHE_use_stale updating;', 'CACHE_background_update on;', 'CACHE_use_stale updating; CACHE_background_update on;'):
        both(check, more=f'CACHE_bypass $cookie_skip; {more}')
    for wanted in (('fresh', 'HIT'), ('fresh', 'BYPASS'), ('missing', 'MISS'), ('expired', 'EXPIRED'), ('expired', 'STALE'),
                   ('strict', 'EXPIRED'), ('window', 'EXPIRED'), ('window', 'STALE'), ('purged', 'STALE')):
        assert wanted in seen, (wanted, seen)


def test_uses_that_are_too_few_are_explained():
    def check(site):
        for use in (1, 2):
            out, _, _ = asks(site, 'explain', f'http://site.example:{site.port}/a')
            assert f'use {use} of 3' in out, out
            equal(site.get('/a').headers.get('X-Cache'), 'MISS')
        assert '(MISS)' in asks(site, 'explain', f'http://site.example:{site.port}/a')[0]
        equal(state(site, '/a'), 'MISS')
    both(check, more='CACHE_valid 200 1m; CACHE_min_uses 3;')


def tagged(path, *tags):
    return f'{path}?h[]=Surrogate-Key:{"%20".join(tags)}'


def test_purge_by_tag_prefix_host_and_all_from_the_shell():
    def check(site):
        url = f'http://site.example:{site.port}'
        one, two = tagged('/1', 'post-1', 'home'), tagged('/2', 'post-2', 'home')
        for path in (one, two, '/3'):
            answer = site.get(path)
            equal(answer.headers['Surrogate-Key'], None, 'it is for the server alone')
        site.get(one, Host='other.example')
        equal(purge(site, '--tag', 'post-1', '--host', 'site.example')['tags'], {'post-1': 1})
        equal((state(site, one), state(site, two), state(site, one, Host='other.example')), ('MISS', 'HIT', 'HIT'))
        equal(purge(site, '--tag', 'home')['purged'], 3, 'on every host')
        equal((state(site, one), state(site, two), state(site, '/3')), ('MISS', 'MISS', 'HIT'))
        equal(purge(site, f'{url}/1*', f'{url}/none')['urls'], {f'{url}/1*': 1, f'{url}/none': 0})
        equal((state(site, one), state(site, two)), ('MISS', 'HIT'))
        state(site, two)
        equal(purge(site, f'//site.example:{site.port}{two}')['purged'], 1, 'with any scheme')
        state(site, two)
        assert purge(site, '--all')['purged'] >= 3
        equal((state(site, two), state(site, '/3')), ('MISS', 'MISS'))
        assert 'tags       post-2 home' in asks(site, 'explain', f'{url}{two}')[0]
    both(check, more='CACHE_valid 200 1m;')


TOKEN = 'a-token-of-the-site'


def test_a_site_purges_its_own_pages_with_its_token_and_by_its_answers():
    def check(site):
        def batch(token=TOKEN, host='site.example', **content):
            return site.get('/.purge', 'POST', json.dumps(content), Host=host, Authorization=f'Bearer {token}')
        one, two = tagged('/1', 'post-1', 'home'), tagged('/2', 'post-2', 'home')
        def fill():
            for path in (one, two, '/3'):
                site.get(path)
            site.get(one, Host='other.example')
        fill()
        answer = batch(tags=['post-1', 'none'], urls=['/3', 'http://site.example/4'])
        counts = json.loads(answer.content)
        equal((answer.status, counts['purged'], counts['tags']), (200, 2, {'post-1': 1, 'none': 0}))
        equal([state(site, path) for path in (one, two, '/3')], ['MISS', 'HIT', 'MISS'])
        equal(state(site, one, Host='other.example'), 'HIT', 'another site')
        for refused in (batch(token='another-token-0000', tags=['home']), batch(urls=['http://other.example/1']),
                        batch(all=True)):
            equal(refused.status, 403, refused.content)
        equal(batch(tags='home').status, 400)
        equal([site.get('/.purge', method).status for method in ('GET', 'PUT')], [403, 403])
        figures = json.loads(site.get('/.purge', Authorization=f'Bearer {TOKEN}').content)['zones']['z']
        assert figures['memory']['pages'] >= 2 and figures['disk']['pages_max'] == 8128, figures
        # Soft and hard in one request; what is refused keeps nothing else from being purged.
        several = json.dumps([{'tags': ['post-2'], 'soft': True}, {'tags': ['post-1']}])
        answer = site.get('/.purge', 'POST', several, Host='site.example', Authorization=f'Bearer {TOKEN}')
        equal([one['purged'] for one in json.loads(answer.content)], [1, 1])
        equal([state(site, path) for path in (one, two)], ['MISS', 'STALE'])
        until('the refresh', lambda: state(site, two) == 'HIT')
        equal([state(site, path) for path in (one, two)], ['HIT', 'HIT'])
        # The answer to a POST, say, by which a page was changed.
        fill()
        answer = site.get('/save?h[]=X-Accel-Purge:tag%3Dhome,%20url%3D/3', 'POST', 'x')
        equal((answer.status, answer.headers['X-Accel-Purge']), (200, None))
        equal([state(site, path) for path in (one, two, '/3')], ['MISS'] * 3)
        equal(state(site, one, Host='other.example'), 'HIT', 'another site')
        site.get('/save?h[]=X-Accel-Purge:url%3Dhttp://other.example/1,what', 'POST', 'x')
        assert 'X-Accel-Purge: invalid "what"' in site.server.log()
    both(check, more='CACHE_valid 200 1m;', in_server=f'location = /.purge {{ cache_purge_api token={TOKEN}; }}')


def test_a_soft_purge_answers_once_more():
    def check(site):
        path = tagged('/soft', 'x') + '&held=1'
        site.get(path)
        equal(purge(site, '--soft', '--tag', 'x')['purged'], 1)
        with site.held():
            equal(state(site, path), 'STALE', 'no request waits')
        until('the refresh', lambda: state(site, path) == 'HIT')
        equal(site.runs(path), 2)
        purge(site, '--soft', '--tag', 'x')
        site.server.kill()
        site.server.start()
        site.server.wait_for(lambda: socket.socket().connect_ex(('127.0.0.1', site.port)) == 0)
        equal(state(site, path), 'MISS', 'it does not come back')
    both(check, more='CACHE_valid 200 1m;')


def test_a_page_that_was_begun_before_its_purge_is_not_stored():
    def check(site):
        path = tagged('/late', 'late') + '&wait=400'
        for words in (['--tag', 'late'], [f'http://site.example:{site.port}{path}'], [f'http://site.example:{site.port}/la*'], ['--all']):
            runs = site.runs(path)
            maker = threading.Thread(target=site.get, args=(path,))
            maker.start()
            until('the maker', lambda: site.runs(path) == runs + 1)
            purge(site, *words)
            maker.join()
            equal(state(site, path), 'MISS', words)
            purge(site, '--all')
    both(check, more='CACHE_valid 200 1m;')


def test_who_reads_along_with_a_purged_page_gets_all_of_it():
    def check(site):
        path, found = tagged('/along', 'along') + '&slow=6', []
        def ask():
            found.append(site.get(path))
        threads = [threading.Thread(target=ask) for _ in range(4)]
        threads[0].start()
        until('the maker', lambda: site.runs(path) == 1)
        for thread in threads[1:]:
            thread.start()
        time.sleep(0.2)  # They read; nothing shows it.
        purge(site, '--all')
        for thread in threads:
            thread.join()
        equal({(answer.status, len(answer.content)) for answer in found}, {(200, len(found[0].content))})
        assert found[0].content.endswith(b'\n') and b'part 5' in found[0].content
        equal(state(site, path), 'MISS')
    both(check, more='CACHE_valid 200 1m;')


def test_purged_pages_stay_purged_after_a_crash():
    """Also those whose files were not read since the start."""
    pages = [tagged(f'/page{number}', f'tag-{number % 10}') for number in range(100)]
    slow = 'keys_zone=z:1m loader_files=1 loader_sleep=1s'
    with Folder() as folder, Site(folder, 'fastcgi', more='CACHE_valid 200 1h;', zone=slow) as site:
        def again():
            site.server.kill()
            site.server.start()
            site.server.wait_for(lambda: socket.socket().connect_ex(('127.0.0.1', site.port)) == 0)
        for page in pages:
            site.get(page)
        until('the files', lambda: len([f for f in (folder / 'pages').glob('*/*/*') if f.is_file()]) == 100)
        again()
        purge(site, '--tag', 'tag-3')
        purge(site, f'http://site.example:{site.port}/page11*')
        again()
        gone = [state(site, page) == 'MISS' for number, page in enumerate(pages) if number % 10 == 3 or number == 11]
        assert all(gone), gone
        equal(state(site, pages[12]), 'HIT')


# --- a purge and a disk that takes nothing -----------------------------------------------------------------

PURGES = f'''location = /.purge {{ cache_purge_api token={TOKEN}; }}
    location ~ /purge(/.*) {{ fastcgi_cache_purge z "$scheme$request_method$host$1"; }}'''


def ways_to_purge(site):
    """Of each way to purge: its name, a page that it means, and what does it; that says its status and text."""
    url = f'http://site.example:{site.port}'

    def shell(*words):
        command = [YOROZU, '-p', f'{site.server.folder}/', '-c', site.server.folder / 'nginx.conf', 'purge', *words]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        return 200 if done.returncode == 0 else 500, done.stderr

    def request(*words, **fields):
        answer = site.get(*words, **fields)
        return answer.status, answer.content.decode()

    def api(content):
        return request('/.purge', 'POST', json.dumps(content), Authorization=f'Bearer {TOKEN}')

    for name, act in (('a URL', lambda path, tag: shell(url + path)),
                      ('a prefix', lambda path, tag: shell(f'{url}/{tag}*')),
                      ('a tag', lambda path, tag: shell('--tag', tag)),
                      ('softly', lambda path, tag: shell('--soft', '--tag', tag)),
                      ('with the token', lambda path, tag: api({'urls': [path]})),
                      ('a list with the token', lambda path, tag: api([{'tags': ['none']}, {'tags': [tag]}])),
                      ('a location', lambda path, tag: request('/purge' + path.replace('?', '%3F'))),
                      ('a method', lambda path, tag: request(path, 'PURGE')),
                      ('all', lambda path, tag: shell('--all'))):
        tag = name.replace(' ', '-')
        path = tagged(f'/{tag}', tag)
        yield name, path, lambda act=act, path=path, tag=tag: act(path, tag)


def again(site):
    site.server.kill()
    site.server.start()
    site.server.wait_for(lambda: socket.socket().connect_ex(('127.0.0.1', site.port)) == 0)


def fill(site, paths):
    for path in paths:
        site.get(path)
    pages = site.folder / 'pages'
    until('the files', lambda: len([file for file in pages.glob('*/*/*') if file.is_file()]) == len(paths))


def test_a_purge_that_may_not_outlast_the_server_says_so():
    if os.geteuid():
        return print('        not run: needs root to mount')
    more = 'CACHE_valid 200 1h; CACHE_purge PURGE from 127.0.0.0/8;'
    with Folder() as folder, Site(folder, 'fastcgi', more=more, in_server=PURGES) as site:
        ways, problem = list(ways_to_purge(site)), 'Read-only file system'
        fill(site, [path for _, path, _ in ways])
        subprocess.run(['mount', '--bind', folder / 'pages', folder / 'pages'], check=True)
        subprocess.run(['mount', '-o', 'remount,ro,bind', folder / 'pages'], check=True)
        for way, path, act in ways:
            equal(state(site, path), 'HIT', way)
            # Where nothing more is found the file of before is still there.
            for time in 'first', 'second':
                status, text = act()
                equal(status, 500, f'{way}, the {time} time: {text}')
                assert 'may be back after a restart' in text, f'{way}: {text}'
                assert way in ('a location', 'a method') or problem in text, f'{way}: {text}'
            assert state(site, path) != 'HIT', f'{way}: not even the running server knows'
        answer = site.get('/save?h[]=X-Accel-Purge:tag%3Dx', 'POST', 'x')
        equal(answer.status, 200)
        until('the log', lambda: 'X-Accel-Purge: purged pages may be back after a restart' in site.server.log())
        subprocess.run(['umount', folder / 'pages'], check=True)
        for way, path, act in ways:
            status, text = act()
            assert status != 500, f'{way}: {text}'
        again(site)
        equal([way for way, path, _ in ways if state(site, path) == 'HIT'], [])


def test_a_purge_on_a_full_disk_outlasts_the_server():
    if os.geteuid():
        return print('        not run: needs root to mount')
    more = 'CACHE_valid 200 1h; CACHE_purge PURGE from 127.0.0.0/8;'
    with Folder() as folder:
        (folder / 'pages').mkdir()
        subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=256k', 'tmpfs', folder / 'pages'], check=True)
        with Site(folder, 'fastcgi', more=more, in_server=PURGES) as site, open(folder / 'pages/filler', 'ab', 0) as filler:
            ways = list(ways_to_purge(site))
            fill(site, [path for _, path, _ in ways])
            for way, path, act in ways:
                with contextlib.suppress(OSError):
                    while True:
                        filler.write(bytes(4096))
                equal(state(site, path), 'HIT', way)
                status, text = act()
                assert status in (200, 204), f'{way}: {status} {text}'
            again(site)
            equal([way for way, path, _ in ways if state(site, path) == 'HIT'], [])
        subprocess.run(['umount', '-l', folder / 'pages'], check=True)


# --- nothing lost, nothing torn ------------------------------------------------------------------------

def page_of(path):
    """What PHP makes of a path, without asking it."""
    big = int(dict(part.split('=') for part in path.partition('?')[2].split('&')).get('big', 0))
    return (hashlib.md5(path.encode()).hexdigest() * 32 * big).encode() + \
        f'page {path} {hashlib.sha256(path.encode()).hexdigest()}\n'.encode()


def load(site, paths, seconds, wrong, is_over=threading.Event()):
    """Clients that ask for random pages and compare every one; a server that dies is not an error. Some seconds, or until it is
    over: of a server that is not there much would be asked in vain."""
    end = time.monotonic() + seconds
    def client():
        while time.monotonic() < end and not is_over.is_set():
            path = random.choice(paths)
            try:
                answer = site.get(path)
            except (OSError, http.client.HTTPException):
                continue
            if answer.status != 200 or answer.content != page_of(path):
                wrong.append((path, answer.status, len(answer.content)))
    threads = [threading.Thread(target=client) for _ in range(4)]
    for thread in threads:
        thread.start()
    return threads


def test_kill_9_under_load_loses_and_tears_nothing():
    paths = [f'/page{n}?big={n % 40}' for n in range(300)]
    with Folder() as folder, Site(folder, 'fastcgi', more='CACHE_valid 200 1h; gzip on;', zone='keys_zone=z:1m memory=2m') as site:
        wrong = []
        for round in range(6):
            is_killed = threading.Event()
            threads = load(site, paths, 60, wrong, is_killed)
            time.sleep(random.uniform(0.3, 0.9))  # the kill comes at any time
            settled = [path for path in paths[:20] if site.get(path).headers['X-Cache'] == 'HIT']
            before = site.runs()
            site.server.kill()
            is_killed.set()
            for thread in threads:
                thread.join()
            site.server.start()
            site.server.wait_for(lambda: socket.socket().connect_ex(('127.0.0.1', site.port)) == 0)
            again = [site.get(path).headers['X-Cache'] for path in settled]
            # What was a hit shortly before may be on its way to the disk, and no more than that.
            assert again.count('HIT') >= len(settled) - 8, (round, again)
            equal(wrong, [])
        site.php.stop()
        answers = [site.get(path) for path in paths]
        hits = [path for path, answer in zip(paths, answers) if answer.status == 200]
        assert len(hits) > 250, f'{len(hits)} of {len(paths)} pages are left though PHP is dead'
        for path, answer in zip(paths, answers):
            assert answer.status == 502 or answer.content == page_of(path), path
        equal(list((folder / 'pages').glob('tmp.*')), [])


def test_kill_9_under_purges_brings_nothing_back():
    """After a purge was acknowledged no older page is served, however often the server is killed."""
    pages = [(f'g{n % 5}', tagged(f'/page{n}', 'all', f'g{n % 5}') + '&time=1') for n in range(200)]
    purges = f'location = /.purge {{ cache_purge_api token={TOKEN}; }}'
    with Folder() as folder, Site(folder, 'fastcgi', more='CACHE_valid 200 1h;', in_server=purges) as site:
        floor, wrong, done = {f'g{n}': 0.0 for n in range(5)}, [], []

        def read(way, group, path):
            after = floor[group]
            with contextlib.suppress(OSError, http.client.HTTPException):
                answer = site.get(path)
                if answer.status == 200 and float(answer.content.split()[0]) < after:
                    wrong.append((way, path, after, answer.content, answer.headers['X-Cache']))

        def client(is_killed):
            while not is_killed.is_set():
                read('under load', *random.choice(pages))

        def purger(is_killed):
            while not is_killed.is_set():
                groups = list(floor) if random.random() < 0.3 else [random.choice(list(floor))]
                begun, tags = time.time(), ['all'] if len(groups) > 1 else groups
                with contextlib.suppress(OSError, http.client.HTTPException):
                    answer = site.get('/.purge', 'POST', json.dumps({'tags': tags}), Authorization=f'Bearer {TOKEN}')
                    if answer.status == 200:
                        done.append(json.loads(answer.content)['purged'])
                        for group in groups:
                            floor[group] = max(floor[group], begun)
                time.sleep(random.uniform(0, 0.1))

        for _ in range(8):
            is_killed = threading.Event()
            threads = [threading.Thread(target=client, args=(is_killed,)) for _ in range(4)]
            threads.append(threading.Thread(target=purger, args=(is_killed,)))
            for thread in threads:
                thread.start()
            time.sleep(random.uniform(0.3, 1.1))  # the kill comes at any time
            site.server.kill()
            is_killed.set()
            for thread in threads:
                thread.join()
            site.server.start()
            site.server.wait_for(lambda: socket.socket().connect_ex(('127.0.0.1', site.port)) == 0)
            for page in pages:
                read('after the start', *page)
            equal(wrong, [])
        assert max(done) > 32, 'some purges leave their files to the manager'


def test_the_folder_may_be_removed_under_load():
    paths = [f'/page{n}?big=2' for n in range(100)]
    with Folder() as folder, Site(folder, 'fastcgi', more='CACHE_valid 200 1h;') as site:
        wrong = []
        threads = load(site, paths, 3, wrong)
        for _ in range(5):
            time.sleep(0.3)
            shutil.rmtree(folder / 'pages', ignore_errors=True)
        for thread in threads:
            thread.join()
        equal(wrong, [])

        def is_said():
            # Under load a new page may bring the folder back before its manager looks.
            shutil.rmtree(folder / 'pages', ignore_errors=True)
            return 'was removed: its pages are dropped' in site.server.log()

        until('the line', is_said)
        site.get('/new?big=1')
        until('a new file', lambda: any(path.is_file() for path in (folder / 'pages').glob('*/*/*')))


def test_a_full_disk_is_said_and_pages_are_served():
    if os.geteuid():
        return print('        not run: needs root for a file system of its own')
    with Folder() as folder:
        (folder / 'pages').mkdir()
        if subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=512k', 'tmpfs', folder / 'pages']).returncode:
            return print('        not run: no file system may be mounted here')
        try:
            paths = [f'/page{n}?big=40' for n in range(60)]
            with Site(folder, 'fastcgi', more='CACHE_valid 200 1h;') as site:
                for path in paths + paths:
                    equal(site.get(path).content, page_of(path), path)
                until('the line', lambda: 'No space left on device' in site.server.log())
                equal(site.runs(), 60, 'memory holds what the disk cannot')
                site.server.kill()
                site.server.start()
                site.server.wait_for(lambda: socket.socket().connect_ex(('127.0.0.1', site.port)) == 0)
                for path in paths:
                    equal(site.get(path).content, page_of(path), path)
        finally:
            subprocess.run(['umount', '-l', folder / 'pages'], check=True)


def test_two_servers_on_one_folder_are_warned_and_serve_whole_pages():
    paths = [f'/page{n}?big={n % 10}' for n in range(50)]
    with Folder() as folder, Site(folder, 'fastcgi', more='CACHE_valid 200 1h;') as site:
        conf = (site.server.folder / 'nginx.conf').read_text()
        port = free_port()
        other = folder / 'other'
        (other / 'logs').mkdir(parents=True)
        conf = conf.replace(f':{site.port};', f':{port};').replace(f'{site.server.folder}/pid', f'{other}/pid')
        (other / 'nginx.conf').write_text(conf.replace(f'{site.server.folder}/logs', f'{other}/logs'))
        second = Process([YOROZU, '-p', f'{other}/', '-c', other / 'nginx.conf'], other / 'out')
        with second:
            second.wait_for(lambda: socket.socket().connect_ex(('127.0.0.1', port)) == 0)
            until('the warning', lambda: 'is used by another process' in (other / 'logs/error.log').read_text())
            assert 'is used by another process' not in site.server.log()
            wrong = []
            class Second:
                get = staticmethod(lambda path: get(port, path, Host='site.example'))
            threads = load(site, paths, 1.5, wrong) + load(Second, paths, 1.5, wrong)
            for thread in threads:
                thread.join()
            equal(wrong, [])
