"""What ships: the presets with real PHP-FPM. No page of one visitor is shown to another."""
import asyncio, contextlib, gzip, http.client, re, ssl, subprocess, sys, types, urllib.parse
import pytest
from attacks import h3wire
from handbook import inlined
from issuer import Issuer, is_issued
from peers import NGINX, ROOT, YOROZU, Folder, Fpm, Memcached, Server, equal, free_port, until
from published import PARAMS, Site, ask

sys.path.insert(0, str(ROOT / 'packaging'))
import cookies

# WordPress in short: what it knows of a visitor stands on every page, by PHP's own reading of the request.
PAGE = r'''<?php
    $known = preg_grep('/^(wordpress_(logged_in|sec)_|wordpress_[0-9a-f]{32}|wp-postpass_|comment_author_'
        . '|woocommerce_|wp_woocommerce_session_|PHPSESSID)/', array_keys($_COOKIE));
    $known = $known || in_array('own', $_COOKIE);
    $is_public = !$known && $_SERVER['REQUEST_METHOD'] === 'GET' && !isset($_SERVER['HTTP_AUTHORIZATION'])
        && !preg_grep('/^(preview|add-to-cart|_wpnonce)$/', array_keys($_GET));
    if (isset($_GET['status'])) http_response_code((int) $_GET['status']);
    if (isset($_GET['cookie'])) setcookie('tracking', 'abc');
    if (isset($_GET['forbids'])) header('Cache-Control: no-store, private');
    if (isset($_GET['dies'])) { http_response_code(500); exit; }
    header('Content-Type: text/html; charset=utf-8'); header('X-Made: php');
    header('X-Told: ' . $_SERVER['REQUEST_URI'] . ' ' . $_SERVER['QUERY_STRING']);
    $page = ($is_public ? 'public' : 'private') . ' made ' . hrtime(true) . str_repeat(' text', 400);
    echo $page;
    PUBLISH
'''
# As the application of the preset "memcached" does it, and the plugin of "supercache".
INTO_MEMCACHED = r'''if ($is_public && !$_GET) {
    $pages = new Memcached(); $pages->setOption(Memcached::OPT_COMPRESSION, false);
    $pages->addServer('127.0.0.1', PORT); $pages->set(KEY, $page, 600); }'''.replace(
    'KEY', re.search(r'^#   \$cache->set\((.*), \$page, 600\);', (ROOT / 'presets/memcached/nginx.conf').read_text(), re.M)[1])
INTO_FILES = r'''if ($is_public && !$_GET && substr($_SERVER['REQUEST_URI'], -1) === '/') {
    $host = $_SERVER['SERVER_NAME'];
    $folder = __DIR__ . "/wp-content/cache/supercache/$host" . rawurldecode($_SERVER['REQUEST_URI']);
    mkdir($folder, 0777, true); file_put_contents("$folder/index.html", $page); }'''

HASH = '0123456789abcdef0123456789abcdef'
KNOWN = [f'wordpress_logged_in_{HASH}=admin%7C1', f'wordpress_sec_{HASH}=admin%7C1', f'wordpress_{HASH}=admin%7C1',
         f'wp-postpass_{HASH}=%24P%24B', f'comment_author_{HASH}=Me', f'comment_author_email_{HASH}=me%40example.com',
         'woocommerce_items_in_cart=1', f'woocommerce_cart_hash={HASH}', 'woocommerce_recently_viewed=1%7C2',
         f'wp_woocommerce_session_{HASH}=t_1', 'PHPSESSID=abcdef']
# PHP reads them as the names above.
DISGUISED = [f'wordpress.logged.in_{HASH}=1', f'wordpress logged_in_{HASH}=1', f'comment[author_{HASH}=Me',
             f'wp-postpass.{HASH}=1', 'wp woocommerce session_x=1']
UNKNOWN = ['wordpress_test_cookie=WP%20Cookie%20check', 'ref=wordpress_logged_in_', 'my_PHPSESSID=1',
           'not_comment_author_x=1', 'ref=a.wp-postpass_x', '_pk_id.1.1fff=1', 'wp_lang=en.US', 'pll_language=en']
# Each as the only cookie, behind another one with and without a space, and in a field of its own.
SPELLINGS = [lambda cookie: [cookie], lambda cookie: ['a=b; ' + cookie], lambda cookie: ['a=b;' + cookie],
             lambda cookie: ['a=b', cookie]]


class Answer:
    def __init__(self, response):
        self.status, self.body, self.fields = response.status, response.read(), response.headers
        self.cache, self.is_public = self.fields.get('X-Cache'), b'public' in self.body


def get(base, path, cookies=(), method='GET', body=None, **fields):
    url = urllib.parse.urlsplit(base)
    trusting = ssl._create_unverified_context()
    connection = (http.client.HTTPConnection(url.hostname, url.port, timeout=60) if url.scheme == 'http'
                  else http.client.HTTPSConnection(url.hostname, url.port, timeout=60, context=trusting))
    with contextlib.closing(connection):
        connection.putrequest(method, path, skip_accept_encoding=True)
        lines = [('Cookie', cookie) for cookie in cookies] + [(n.replace('_', '-'), v) for n, v in fields.items()]
        if body is not None:
            lines.append(('Content-Length', str(len(body))))
        for name, value in lines:
            connection.putheader(name, value)
        connection.endheaders(body)
        return Answer(connection.getresponse())


def configuration(name, site, php):
    """The http part of a preset for this machine, and the port of its TLS."""
    secure, presets = free_port(), ROOT / 'presets'
    site_file = presets / f'sites/{name}.conf'
    text = (presets / 'nginx.conf' if site_file.exists() else presets / name / 'nginx.conf').read_text()
    text = text[text.index('http {') + 6:text.rindex('}')]
    if site_file.exists():
        text = text.replace('include conf.d/*.conf;', 'include conf.d/php-fpm.conf;\ninclude conf.d/letsencrypt.conf;').replace('include sites-enabled/*;', f'include sites/{name}.conf;')
        text = re.sub(r'listen \[::\]:.*\n', '', inlined(text))
    for old, new in {'https://acme-v02.api.letsencrypt.org/directory': 'https://127.0.0.1:1/directory',
                     '/var/lib/yorozu': '$dir/state', 'include ../': f'include {ROOT}/presets/', 'listen 80;': 'listen 127.0.0.1:$port;',
                     'listen 443 ssl;': f'listen 127.0.0.1:{secure} ssl;',
                     'listen 443 quic reuseport;': f'listen 127.0.0.1:{secure} quic reuseport;', 'www.example.com;': 'localhost;',
                     '/etc/ssl/www.example.com.crt': site.folder / 'crt',
                     '/etc/ssl/www.example.com.key': site.folder / 'key', '/var/www/html': site.www,
                     '/var/cache/yorozu': '$dir/cache', '/var/log/yorozu': '$dir/logs',
                     '/run/php/php-fpm.sock': php.socket}.items():
        text = text.replace(old, str(new))
    return text, secure


class Preset:
    """A preset with PHP behind it; pages are asked of `base`."""

    def __init__(self, name, **more):
        self.name, self.stack, self.more = name, contextlib.ExitStack(), more
        self.changes = more.pop('changes', {})

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            self.folder = stack.enter_context(Folder())
            self.php, self.site = stack.enter_context(Fpm(self.folder)), Site(self.folder)
            self.www = self.site.www
            text, secure = configuration(self.name, self.site, self.php)
            for old, new in self.changes.items():
                assert old in text, f'the preset {self.name} has no {old}'
                text = text.replace(old, new)
            text, publish = self.peers(stack, text)
            for script in ('index.php', 'wp-login.php'):
                (self.www / script).write_text(PAGE.replace('PUBLISH', publish))
            self.server = stack.enter_context(Server(self.folder, text, **self.more))
            self.stack = stack.pop_all()
        self.plain, self.secure = f'http://localhost:{self.server.port}', f'https://localhost:{secure}'
        self.base = self.secure if self.name in ('microcache', 'wordpress-https') else self.plain
        return self

    def __exit__(self, *_):
        self.stack.close()

    def peers(self, stack, text):
        """Starts what the preset needs beside PHP; what it is called, and how a page gets there."""
        if self.name == 'memcached':
            port = stack.enter_context(Memcached(self.folder)).port
            return text.replace('127.0.0.1:11211', f'127.0.0.1:{port}'), INTO_MEMCACHED.replace('PORT', str(port))
        if self.name == 'supercache':
            self.www.chmod(0o777)
            return text, INTO_FILES
        if self.name == 'edge':
            origin = stack.enter_context(Server(self.folder, f"""server {{ listen 127.0.0.1:$port; location / {{
                include {PARAMS}; fastcgi_param SCRIPT_FILENAME {self.www}/index.php;
                fastcgi_pass unix:{self.php.socket}; }} }}""", program=NGINX))
            return text.replace('origin.example.com:80', f'127.0.0.1:{origin.port}'), ''
        return text, ''

    def get(self, path, *args, **fields):
        return get(self.base, path, *args, **fields)


# --- whose page is whose ---------------------------------------------------------------------------------

CACHING = ['wordpress', 'wordpress-https', 'microcache', 'edge', 'memcached', 'supercache']


def is_kept_apart(preset, number, what, **request):
    """Neither does what a visitor got reach the others, nor what they got him."""
    first, second = f'/first-{number}/', f'/second-{number}/'
    query = request.pop('query', '')
    assert not preset.get(first + query, **request).is_public, what
    shared = preset.get(first)
    assert shared.is_public, f'{what}: a page of one visitor is shown to another'
    equal(preset.get(first).body, shared.body, f'{what}: nothing was stored')
    shared = preset.get(second)
    assert not preset.get(second + query, **request).is_public, f'{what}: a shared page is shown to one visitor'
    if query:
        assert not preset.get(second + query, **request).is_public, what
    equal(preset.get(second).body, shared.body, f'{what}: the shared page is gone')


@pytest.mark.parametrize('name', CACHING)
def test_known_visitors_are_kept_apart(name):
    with Preset(name) as preset:
        for number, cookie in enumerate(KNOWN + DISGUISED):
            for index, spelled in enumerate(SPELLINGS):
                is_kept_apart(preset, f'{number}-{index}', f'{name}: {spelled(cookie)}', cookies=spelled(cookie))
        shared = preset.get('/shared/')
        for cookie in UNKNOWN:
            equal(preset.get('/shared/', [cookie]).body, shared.body, f'{name}: {cookie} is no login')


def test_visitors_of_each_application_are_kept_apart_and_harmless_cookies_share():
    names = {(kind != 'harmless', name) for _, rows in cookies.applications() for kind, name, _ in rows}
    with Preset('microcache') as preset:
        shared = preset.get('/shared/')
        for number, (is_personal, name) in enumerate(sorted(names)):
            name = name.replace('{hash}', HASH).replace('*', HASH)
            if is_personal:
                is_kept_apart(preset, number, name, cookies=[f'_ga=1; {name}=own'])
            else:
                equal(preset.get('/shared/', [f'{name}=1; a=b;  {name}=1']).body, shared.body, name)
        for name in ('sbjs_session', '_parsely_session', 'pys_start_session', 'csrfToken', 'sessions', 'my_session_x'):
            for cookie in (f'{name}=1', f'_ga=1; {name}=1', f'a=b;{name}=1'):
                equal(preset.get('/shared/', [cookie]).body, shared.body, cookie)


@pytest.mark.parametrize('name', CACHING)
def test_other_requests_are_kept_apart(name):
    requests = [dict(method='POST', body=b'x'), dict(method='PUT', body=b'x'), dict(Authorization='Basic eDp4'),
                dict(query='?preview=true'), dict(query='?p=1&preview=true'), dict(query='?add-to-cart=17'),
                dict(query='?a=b&_wpnonce=0123456789')]
    with Preset(name) as preset:
        for number, request in enumerate(requests):
            is_kept_apart(preset, number, f'{name}: {request}', **request)


@pytest.mark.parametrize('name', CACHING)
def test_private_addresses_are_not_stored(name):
    with Preset(name) as preset:
        for path in ('/cart/', '/checkout/order-pay/7/', '/my-account/', '/shop/cart/', '/wp-admin/x/',
                     '/wp-login.php', '/?wc-ajax=get_refreshed_fragments', '/?unapproved=1&moderation-hash=abc'):
            assert preset.get(path).body != preset.get(path).body, f'{name}: {path} was stored'
        for path in ('/cartography/', '/my-accountant/', '/checkouts/'):
            if preset.get(path).status == 200:
                equal(preset.get(path).body, preset.get(path).body, f'{name}: {path} is for everybody')


def test_every_preset_with_a_cache_is_tested_here():
    found = {path.parent.name for path in (ROOT / 'presets').glob('*/nginx.conf')} | {path.stem for path in (ROOT / 'presets/sites').iterdir()}
    equal(found - {'cluster', 'upload'}, set(CACHING))
    assert 'cache' not in (ROOT / 'presets/upload/nginx.conf').read_text().replace('open_file_cache', '')


def warnings(folder, http):
    """What `-t` says of a configuration, and whether it is taken."""
    (folder / 'logs').mkdir(exist_ok=True)
    (folder / 'nginx.conf').write_text(f"pid {folder}/pid; error_log {folder}/logs/error.log; events {{}} http {{\n"
                                       f"{http.replace('$port', '8080').replace('$dir', str(folder))} }}")
    done = subprocess.run([YOROZU, '-t', '-p', f'{folder}/', '-c', folder / 'nginx.conf'], capture_output=True, text=True)
    equal(done.returncode, 0, done.stderr)
    return [line for line in done.stderr.splitlines() if '[warn]' in line]


def test_t_is_silent_about_the_presets_and_names_each_cookie_that_is_taken_out():
    visitors = (ROOT / 'presets/visitor.conf').read_text()
    names = {'wordpress.logged.in.': 'wordpress_logged_in_*', 'wp-postpass.': 'wp-postpass_*', 'comment.author.': 'comment_author_*',
             'woocommerce.items.in.cart=': 'woocommerce_items_in_cart', 'wp.woocommerce.session.': 'wp_woocommerce_session_*',
             'edd.session.': 'edd_session_*', 'PHPSESSID=': 'PHPSESSID'}
    with Folder() as folder:
        site = Site(folder)
        php = types.SimpleNamespace(socket=folder / 'none.sock')
        for name in CACHING:
            text, _ = configuration(name, site, php)
            text = text.replace('origin.example.com', '127.0.0.1')
            equal(warnings(folder, text), [], name)
            if name in ('memcached', 'supercache'):
                continue
            for part, cookie in names.items():
                less = re.sub(rf'(?<=[(|]){re.escape(part)}(?=[|)])', 'none', visitors)
                assert less != visitors, part
                (folder / 'visitor.conf').write_text(less)
                said = warnings(folder, text.replace(visitors, less).replace(f'{ROOT}/presets/visitor.conf', f'{folder}/visitor.conf'))
                equal([f'"{cookie}"' in line and '_no_cache' in line for line in said], [True], f'{name}: {said}')


def test_sites_stand_beside_one_another():
    with Folder() as folder:
        site, php = Site(folder), types.SimpleNamespace(socket=folder / 'none.sock')
        text, _ = configuration('wordpress', site, php)
        for name in ('wordpress', 'wordpress-https'):
            more = re.sub(r'listen \[::\]:.*\n', '', inlined(f'include sites/{name}.conf;')).replace('listen ', 'listen 127.0.0.1:').replace('www.example.com;', f'{name}.example;')
            text += more.replace('/var/www/html', str(site.www)).replace('/var/log/yorozu', str(folder / 'logs'))
        equal(warnings(folder, text), [])


def test_what_sets_a_cookie_or_forbids_it_is_not_stored():
    for name in ('wordpress', 'microcache', 'edge'):
        with Preset(name) as preset:
            for query in ('?cookie', '?forbids', '?status=302', '?status=307', '?status=500', '?status=503'):
                first, second = preset.get('/' + query), preset.get('/' + query)
                assert first.body != second.body , f'{name}: {query} was stored'


# --- the preset for WordPress ----------------------------------------------------------------------------

def test_wordpress_makes_robots_txt_and_what_is_missing():
    with Preset('wordpress') as preset:
        equal(preset.get('/robots.txt').fields['X-Made'], 'php')
        equal([preset.get(path).fields['X-Made'] for path in ('/missing.png', '/wp-sitemap.xml')], ['php'] * 2)
        (preset.www / 'robots.txt').write_text('a file')
        equal(preset.get('/robots.txt').body, b'a file')


def test_wordpress_stores_pages_for_ten_minutes_and_what_is_not_there_for_one():
    lifetime = lambda answer: int(answer.fields['Cache-Status'].split('ttl=')[1].split(';')[0])
    with Preset('wordpress') as preset:
        for status, seconds in ((200, 600), (301, 600), (404, 60), (410, 60)):
            preset.get(f'/?status={status}')
            stored = preset.get(f'/?status={status}')
            equal((stored.status, stored.cache), (status, 'HIT'))
            assert seconds - 60 <= lifetime(stored) <= seconds, stored.fields['Cache-Status']


def visits(preset, path, count):
    """The page as that number of visitors sees it, each from an advertisement of its own."""
    url = urllib.parse.urlsplit(preset.base)
    kind = http.client.HTTPConnection if url.scheme == 'http' else http.client.HTTPSConnection
    trusting = {} if url.scheme == 'http' else {'context': ssl._create_unverified_context()}
    seen = set()
    with contextlib.closing(kind(url.hostname, url.port, timeout=60, **trusting)) as connection:
        for number in range(count):
            connection.request('GET', f'{path}&fbclid={number}&utm_campaign={number}')
            answer = Answer(connection.getresponse())
            seen.add((answer.status, answer.fields['X-Told'], answer.body))
    return seen


def test_visits_with_tracking_arguments_are_one_page_that_shows_none_of_them():
    for name, count in (('wordpress', 1000), ('microcache', 100)):
        with Preset(name) as preset:
            [(status, told, page)] = visits(preset, '/page/?a=1', count)
            equal((status, told), (200, '/page/?a=1 a=1'))
            equal((preset.get('/page/?a=1').body, preset.get('/page/?_ga=2&a=1').body), (page, page))
            equal(preset.get('/page/?gclid=1').fields['X-Told'], '/page/')
            assert preset.get('/page/?a=1&x_utm_source=1').body != page


def test_t_tells_of_arguments_that_php_sees_and_the_key_does_not_hold():
    cleaned = 'fastcgi_param REQUEST_URI $cache_uri; fastcgi_param QUERY_STRING $cache_args;'
    with Folder() as folder:
        def told(params, key='$host$cache_uri', drops='cache_drop_args utm_*;'):
            lines = warnings(folder, f"""fastcgi_cache_path $dir/c keys_zone=c:1m; {drops} server {{ listen 127.0.0.1:$port;
                location / {{ fastcgi_cache c; fastcgi_cache_valid 1m; fastcgi_cache_key {key}; {params}
                    fastcgi_pass 127.0.0.1:1; }} }}""")
            return sum('omits arguments' in line for line in lines)
        equal([told(f'include {PARAMS}; {cleaned}'), told(f'include {PARAMS};'),
               told(f'{cleaned} fastcgi_param QUERY_STRING $args;'), told(f'include {PARAMS};', '$host$request_uri'), told(f'include {PARAMS};', drops='')],
              [0, 2, 1, 0, 0])


def test_wordpress_compresses_in_each_form():
    with Preset('wordpress') as preset:
        for path in ('/page/', '/style.css'):
            for coding in ('gzip', 'br', 'zstd'):
                answer = preset.get(path, Accept_Encoding=coding)
                equal((answer.fields['Content-Encoding'], answer.fields['Vary']), (coding, 'Accept-Encoding'), path)
        equal(preset.get('/page/', Accept_Encoding='zstd').cache, 'HIT')


def test_wordpress_lets_browsers_keep_files():
    with Preset('wordpress') as preset:
        (preset.www / 'debug.log').write_text('secret')
        (preset.www / '.well-known').mkdir()
        (preset.www / '.well-known/text').write_text('known')
        (preset.www / '.env').write_text('secret')
        said = lambda path: preset.get(path).fields.get_all('Cache-Control')
        (preset.www / 'wp-includes').mkdir()
        (preset.www / 'wp-includes/style.css').write_text('css')
        equal(said('/wp-includes/style.css?ver=6.1.1'), ['max-age=31536000', 'public, immutable'])
        equal([said(path) for path in ('/style.css', '/style.css?ver=1', '/wp-includes/style.css')], [['max-age=604800', 'public']] * 3)
        equal(said('/image.png'), ['max-age=604800', 'public'])
        # Neither pages nor what WordPress says instead of a file.
        equal([said('/page/'), said('/missing.css?ver=1')], [None] * 2)
        equal([preset.get(path).status for path in ('/debug.log', '/.env', '/.well-known/text')], [403, 403, 200])


def test_wordpress_logs_what_the_cache_did():
    with Preset('wordpress') as preset:
        for path in ('/page/', '/page/'):
            preset.get(path)
        preset.get('/page/', ['PHPSESSID=1'])
        log = preset.server.folder / 'logs/www.example.com.access.log'
        until('the last line', lambda: 'BYPASS' in log.read_text())
        equal([line.split()[-2] for line in log.read_text().splitlines()], ['MISS', 'HIT', 'BYPASS'])


def test_wordpress_takes_photographs():
    with Preset('wordpress') as preset:
        equal(preset.get('/index.php', method='POST', body=b'x' * 5_000_000).status, 200)


# --- the preset for half a minute --------------------------------------------------------------------------

def test_https_redirects_to_tls_with_a_certificate_of_its_own_until_there_is_another():
    with Preset('wordpress-https') as preset:
        answer = get(preset.plain, '/a?b')
        equal((answer.status, answer.fields['Location']), (301, 'https://localhost/a?b'))
        equal(preset.get('/').status, 200)
        out = subprocess.run(['curl', '-skI', '--http2', f'{preset.secure}/'], capture_output=True, text=True).stdout
        assert out.startswith('HTTP/2 200'), out
        assert 'no certificate yet: a self-signed one is used' in preset.server.log()


def test_https_serves_pages_of_php_with_a_certificate_of_an_issuer():
    """The preset as it is, but for the issuer: pebble asks at its port for HTTP."""
    http_port = free_port()
    with Folder() as folder, Issuer(folder, http_port) as issuer:
        uri = '127.0.0.1:1/directory;'
        changes = {uri: f'localhost:{issuer.port}/dir; ssl_trusted_certificate {issuer.certificate};',
                   'server_name localhost;': 'server_name www.a.example;'}
        with Preset('wordpress-https', changes=changes, port=http_port) as preset:
            root, port = issuer.root(), int(preset.secure.rpartition(':')[2])
            until('a certificate', lambda: is_issued(port, 'www.a.example', root))
            out = [subprocess.run(['curl', '-sSi', '--cacert', root, '--resolve', f'www.a.example:{port}:127.0.0.1',
                                   f'https://www.a.example:{port}/'], capture_output=True, text=True) for _ in range(2)]
            assert all(done.stdout.startswith('HTTP/2 200') for done in out), out
            assert 'x-cache: MISS' in out[0].stdout and 'x-cache: HIT' in out[1].stdout, out
            moved = subprocess.run(['curl', '-sSI', '-H', 'Host: www.a.example', f'http://127.0.0.1:{http_port}/a?b'],
                                   capture_output=True, text=True).stdout
            assert ' 301 ' in moved and 'Location: https://www.a.example/a?b' in moved, moved


def test_microcache_is_reached_over_quic_where_it_says():
    if h3wire.LACKS:
        pytest.skip(h3wire.LACKS)
    with Preset('microcache') as preset:
        async def main():
            async with await h3wire.Connection.to(int(preset.secure.rpartition(':')[2]), name='localhost') as connection:
                return [await connection.answer(connection.ask(h3wire.get('/over-quic', authority='localhost'))) for _ in range(2)]
        said = ask(preset.folder, f'{preset.base}/').field('alt-svc')
        equal(said, 'h3=":443"; ma=86400')
        (first, content), (second, again) = asyncio.run(main())
        equal((first[b':status'], first[b'x-cache'], second[b'x-cache'], content), (b'200', b'MISS', b'HIT', again))
        equal(first[b'alt-svc'].decode(), said)


def test_microcache_speaks_tls_and_compresses():
    with Preset('microcache') as preset:
        base, folder = preset.base, preset.folder
        moved = ask(folder, f'{preset.plain}/page?a=b')
        equal((moved.status, moved.field('location')), (301, 'https://localhost/page?a=b'))
        first, second = ask(folder, f'{base}/'), ask(folder, f'{base}/')
        equal((first.version, first.field('x-cache')), ('HTTP/2', 'MISS'))
        equal((second.body, second.field('x-cache')), (first.body, 'HIT'))
        # What sets a cookie is made for each.
        with_cookie = [ask(folder, f'{base}/?cookie') for _ in range(2)]
        assert all(answer.field('set-cookie') for answer in with_cookie)
        assert with_cookie[0].body != with_cookie[1].body
        for coding in ('br', 'gzip'):
            coded = ask(folder, f'{base}/style.css', '-H', f'Accept-Encoding: {coding}')
            equal((coded.field('content-encoding'), coded.field('vary')), (coding, 'Accept-Encoding'))
        assert 'public' in ask(folder, f'{base}/image.png').field('cache-control')


# --- the preset for WP Super Cache -------------------------------------------------------------------------

def plugin_writes(site, path, text):
    """As WP Super Cache lays its files: plain and compressed, of http and of https."""
    folder = site.www / 'wp-content/cache/supercache/localhost' / path.strip('/')
    folder.mkdir(parents=True, exist_ok=True)
    for name, scheme in (('index.html', 'http'), ('index-https.html', 'https')):
        (folder / name).write_text(f'{text} {scheme}')
        (folder / f'{name}.gz').write_bytes(gzip.compress(f'{text} {scheme} zipped'.encode()))


def test_supercache_sends_the_plugin_s_files_without_php():
    with Preset('supercache') as preset:
        folder = preset.folder
        for path, text in (('/', 'front'), ('/2026/11/a-post/', 'post'), ('/%d0%bf%d0%be%d1%81%d1%82/', 'cyrillic')):
            plugin_writes(preset.site, path, text)
            for scheme, base in (('http', preset.plain), ('https', preset.secure)):
                plain = ask(folder, base + path)
                equal(plain.body.decode(), f'{text} {scheme}', path)
                equal((plain.field('content-type'), plain.field('vary')), ('text/html', 'Accept-Encoding'))
                zipped = ask(folder, base + path, '-H', 'Accept-Encoding: gzip')
                equal(gzip.decompress(zipped.body).decode(), f'{text} {scheme} zipped', path)
        secret = preset.www / 'secret'
        secret.mkdir()
        (secret / 'index.html').write_text('secret')
        base = preset.plain
        for path, *options in (['/?p=1'], ['/', '-d', 'x'], ['/unknown/'], ['/2026/11/a-post'],
                               ['/', '-H', 'Accept: application/activity+json'], ['/index.php']):
            equal(ask(folder, base + path, *options).field('x-made'), 'php', (path, options))
        equal(ask(folder, f'{base}/page.txt').body, b'text')
        equal(ask(folder, f'{base}/wp-content/cache/supercache/localhost/index.html').status, 404)
        escaped = ask(folder, f'{base}/x/../../../../../secret/', '--path-as-is')
        assert b'secret' not in escaped.body
        # With PHP gone, what lies there is still sent.
        preset.php.stop()
        equal(ask(folder, f'{base}/').body, b'front http')


def test_memcached_has_pages_whose_addresses_have_escapes():
    with Preset('memcached') as preset:
        for path in ('/plain/', '/caf%C3%A9/', '/a%20b/'):
            made = get(preset.base, path)
            equal(get(preset.base, path).body, made.body, path)


# What lies in the folder of a site and is no visitor's: never handed out, and what of it is PHP never run.
HIDDEN = ['compose.yaml', 'docker-compose.prod.yml', 'Dockerfile', '.env', '.git/config', '.git/x.zip', '.htpasswd', '.user.ini', '.wp-config.php.swp', 'wp-config.php~', 'wp-config.php.bak',
          'wp-config.php.dist', 'wp-config.php.old', 'wp-config.php.orig', 'wp-config.php.save', 'wp-config.php.swp', 'dump.sql', 'dump.sql.gz',
          'debug.log', 'wp-content/debug.log', 'wp-content/cache/x.php', 'wp-content/cache/meta/wp-cache-1.meta',
          'wp-content/cache/supercache/other.example/index.html', 'wp-content/uploads/x.php', 'wp-content/uploads/x.PHP',
          'wp-content/uploads/x.phtml', 'wp-content/uploads/2026/11/x.php', 'sites/default/files/x.php']
FORMS = ['/{}', '/{}/', '/{}/y', '/{}/y.php', '/{}/y.css', '/{}%2f', '/{}?y.jpg', '//{}', '/./{}', '/x/../{}']


@pytest.mark.parametrize('name', ['wordpress', 'wordpress-https', 'microcache', 'supercache', 'upload'])
def test_no_preset_hands_out_or_runs_what_is_not_for_visitors(name):
    with Preset(name) as preset:
        for file in HIDDEN:
            (preset.www / file).parent.mkdir(parents=True, exist_ok=True)
            (preset.www / file).write_text("<?php echo 'HID', 'DEN'; // HIDDEN")
        # What is beside it is a visitor's.
        (preset.www / 'wp-content/uploads/a.jpg').write_text('picture')
        for path in ('/wp-content/uploads/a.jpg', '/.well-known/x'):
            (preset.www / path[1:]).parent.mkdir(exist_ok=True)
            (preset.www / path[1:]).write_text('picture')
            equal(get(preset.base, path).body, b'picture', path)
        asked = [spelling.format(file) for file in HIDDEN for spelling in FORMS]
        shown = [path for path in asked if b'HIDDEN' in get(preset.base, path).body]
        equal(shown, [], name)
