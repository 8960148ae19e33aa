#!/usr/bin/env python3
"""The published configuration for 10,000 requests a second: TLS, HTTP/2, a microcache, pages without PHP.

  tests/published.py [NAME ...]     runs the tests whose names contain one of NAME
"""
import gzip, pathlib, subprocess, sys, time
from peers import NGINX, Folder, Fpm, Server, free_port, run, until

ROOT = pathlib.Path(__file__).resolve().parent.parent
PARAMS = ROOT / 'presets/fastcgi_params'


def equal(got, wanted, what=''):
    assert got == wanted, f'{what}: got {got!r}, wanted {wanted!r}'


class Site:
    """Certificates, a folder and PHP, as every configuration here has them."""

    def __init__(self, folder):
        self.folder, self.www = folder, folder / 'www'
        self.www.mkdir()
        folder.chmod(0o755)
        subprocess.run(['openssl', 'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256',
                        '-nodes', '-days', '2', '-subj', '/CN=localhost', '-keyout', folder / 'key',
                        '-out', folder / 'crt'], check=True, capture_output=True)
        (self.www / 'index.php').write_text('''<?php
            if (isset($_GET['cookie'])) setcookie('tracking', 'abc');
            if (isset($_GET['dies'])) { http_response_code(500); exit; }
            header('Cache-Control: no-cache'); header('X-Made: php');
            echo 'made ', hrtime(true), ' for ', $_COOKIE['wordpress_logged_in_x'] ?? 'everybody';''')
        for name, text in {'style.css': 'body{}' * 400, 'image.png': 'image', 'page.txt': 'text'}.items():
            (self.www / name).write_text(text)


class Answer:
    def __init__(self, head, body):
        lines = head.replace('\r', '').strip().split('\n')
        self.status, self.version, self.body = int(lines[0].split()[1]), lines[0].split()[0], body
        self.fields = {}
        for line in lines[1:]:
            name, _, value = line.partition(': ')
            self.fields.setdefault(name.lower(), []).append(value)

    def field(self, name):
        return ', '.join(self.fields.get(name, [])) or None


def ask(folder, url, *options):
    head = folder / 'head'
    done = subprocess.run(['curl', '-sk', '--max-time', '20', '-D', head, *map(str, options), url],
                          capture_output=True)
    assert done.returncode == 0, f'{url}: {done.returncode} {done.stderr}'
    return Answer(head.read_bytes().decode('latin-1').split('\r\n\r\n')[-2], done.stdout)


PUBLISHED = r'''
    log_not_found off;
    port_in_redirect off;
    keepalive_requests 100;
    client_body_buffer_size 10K;
    client_header_buffer_size 4k;
    client_max_body_size 50m;
    large_client_header_buffers 2 4k;
    client_body_timeout 10;
    client_header_timeout 10;
    send_timeout 2;
    reset_timedout_connection on;
    tcp_nodelay on;
    tcp_nopush on;
    sendfile on;
    gzip on;
    gzip_http_version 1.0;
    gzip_proxied any;
    gzip_min_length 1100;
    gzip_types text/plain text/css application/json application/x-javascript text/xml application/xml application/xml+rss text/javascript application/javascript image/svg+xml;
    gzip_disable msie6;
    gzip_vary on;
    open_file_cache max=10000 inactive=20s;
    open_file_cache_valid 30s;
    open_file_cache_min_uses 2;
    open_file_cache_errors on;
    fastcgi_read_timeout 300;
    include MIME;
    upstream php-fpm {
        server unix:SOCKET;
    }
    fastcgi_cache_path $dir/cache levels=1:2 keys_zone=microcache:10m max_size=1024m inactive=1h;

    server {
        listen 127.0.0.1:$port;
        server_name localhost;
        rewrite ^(.*) https://$host$1 permanent;
    }

    server {
        listen 127.0.0.1:SECURE ssl http2;
        ssl_certificate CRT;
        ssl_certificate_key KEY;
        server_name localhost;
        root WWW;
        index index.php;
        location / { try_files $uri $uri/ /index.php?$args; }

        location ~ \.php$ {
            fastcgi_buffers 8 256k;
            fastcgi_buffer_size 128k;
            fastcgi_intercept_errors on;
            include PARAMS;
            try_files $uri =404;
            fastcgi_split_path_info ^(.+\.php)(/.+)$;
            fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;
            fastcgi_pass php-fpm;
            fastcgi_index index.php;
            fastcgi_cache microcache;
            fastcgi_cache_key $scheme$host$request_uri$request_method;
            fastcgi_cache_valid 200 301 302 30s;
            fastcgi_cache_use_stale updating error timeout invalid_header http_500;
            fastcgi_pass_header Set-Cookie;
            fastcgi_pass_header Cookie;
            fastcgi_ignore_headers Cache-Control Expires Set-Cookie;
        }

        location ~* ^.+\.(ogg|ogv|svg|svgz|eot|otf|woff|mp4|ttf|rss|atom|jpg|jpeg|gif|png|ico|zip|tgz|gz|rar|bz2|doc|xls|exe|ppt|tar|mid|midi|wav|bmp|rtf)$ {
            expires max;
            add_header Cache-Control "public";
        }
        location ~* ^.+\.(css|js)$ {
            expires     1y;
            add_header Cache-Control "max-age=31600000, public";
        }
    }
'''


def test_the_published_configuration_does_what_it_does_in_nginx():
    with Folder() as folder, Fpm(folder) as fpm:
        site = Site(folder)
        for program in (None, NGINX):
            secure = free_port()
            conf = PUBLISHED
            for name, value in {'SOCKET': fpm.socket, 'SECURE': secure, 'CRT': folder / 'crt', 'KEY': folder / 'key',
                                'WWW': site.www, 'PARAMS': PARAMS, 'MIME': ROOT / 'presets/mime.types'}.items():
                conf = conf.replace(name, str(value))
            with Server(folder, conf, program=program) as server:
                base = f'https://localhost:{secure}'
                moved = ask(folder, f'http://localhost:{server.port}/some/page')
                equal((moved.status, moved.field('location')), (301, 'https://localhost/some/page'))
                first = ask(folder, f'{base}/')
                equal((first.status, first.version), (200, 'HTTP/2'))
                equal(ask(folder, f'{base}/').body, first.body, 'the microcache')
                assert ask(folder, f'{base}/?other').body != first.body
                style = ask(folder, f'{base}/style.css', '-H', 'Accept-Encoding: gzip')
                equal(style.field('content-encoding'), 'gzip')
                equal(style.field('cache-control'), 'max-age=31536000, max-age=31600000, public')
                equal(ask(folder, f'{base}/image.png').field('expires'), 'Thu, 31 Dec 2037 23:55:55 GMT')
                equal(ask(folder, f'{base}/?dies').status, 500)
                equal(ask(folder, f'{base}/none.php').status, 404)


def preset(name, site, fpm):
    """The http part of a preset for this machine, and the port of its TLS."""
    secure = free_port()
    text = (ROOT / f'presets/{name}/nginx.conf').read_text()
    http = text[text.index('http {') + 6:text.rindex('}')]
    for old, new in {'../mime.types': ROOT / 'presets/mime.types', '../fastcgi_params': PARAMS,
                     'listen 80;': 'listen 127.0.0.1:$port;', 'listen 443 ssl;': f'listen 127.0.0.1:{secure} ssl;',
                     'www.example.com;': 'localhost;', '/etc/ssl/www.example.com.crt': site.folder / 'crt',
                     '/etc/ssl/www.example.com.key': site.folder / 'key', '/var/www/html': site.www,
                     '/var/cache/yorozu': '$dir/cache', '/var/log/yorozu': '$dir/logs',
                     '/run/php/php-fpm.sock': fpm.socket}.items():
        http = http.replace(old, str(new))
    return http, secure


def test_the_microcache_preset_shares_no_page_that_is_somebody_s():
    with Folder() as folder, Fpm(folder) as fpm:
        site = Site(folder)
        conf, secure = preset('microcache', site, fpm)
        with Server(folder, conf) as server:
            base = f'https://localhost:{secure}'
            moved = ask(folder, f'http://localhost:{server.port}/page?a=b')
            equal((moved.status, moved.field('location')), (301, 'https://localhost/page?a=b'))
            first = ask(folder, f'{base}/')
            equal((first.version, first.field('x-cache')), ('HTTP/2', 'MISS'))
            second = ask(folder, f'{base}/')
            equal((second.body, second.field('x-cache')), (first.body, 'HIT'))
            # A login neither gets the shared page nor leaves its own behind.
            known = ask(folder, f'{base}/', '-H', 'Cookie: wordpress_logged_in_x=eve')
            assert known.body.endswith(b'for eve') and known.field('x-cache') == 'BYPASS'
            equal(ask(folder, f'{base}/').body, first.body)
            ask(folder, f'{base}/other', '-H', 'Cookie: wordpress_logged_in_x=eve')
            assert ask(folder, f'{base}/other').body.endswith(b'everybody')
            # What sets a cookie is made for each.
            with_cookie = [ask(folder, f'{base}/?cookie') for _ in range(2)]
            assert all(answer.field('set-cookie') for answer in with_cookie)
            assert with_cookie[0].body != with_cookie[1].body
            for coding in ('br', 'gzip'):
                coded = ask(folder, f'{base}/style.css', '-H', f'Accept-Encoding: {coding}')
                equal((coded.field('content-encoding'), coded.field('vary')), (coding, 'Accept-Encoding'))
            assert 'public' in ask(folder, f'{base}/image.png').field('cache-control')


def plugin_writes(site, path, text):
    """As WP Super Cache lays its files: plain and compressed, of http and of https."""
    folder = site.www / 'wp-content/cache/supercache/localhost' / path.strip('/')
    folder.mkdir(parents=True, exist_ok=True)
    for name, scheme in (('index.html', 'http'), ('index-https.html', 'https')):
        (folder / name).write_text(f'{text} {scheme}')
        (folder / f'{name}.gz').write_bytes(gzip.compress(f'{text} {scheme} zipped'.encode()))


def test_the_supercache_preset_sends_the_plugin_s_files_without_php():
    with Folder() as folder, Fpm(folder) as fpm:
        site = Site(folder)
        plugin_writes(site, '/', 'front')
        plugin_writes(site, '/2026/11/a-post/', 'post')
        plugin_writes(site, '/%d0%bf%d0%be%d1%81%d1%82/', 'cyrillic')
        secret = site.www / 'secret'
        secret.mkdir()
        (secret / 'index.html').write_text('secret')
        conf, secure = preset('supercache', site, fpm)
        with Server(folder, conf) as server:
            bases = {'http': f'http://localhost:{server.port}', 'https': f'https://localhost:{secure}'}
            for scheme, base in bases.items():
                for path, text in (('/', 'front'), ('/2026/11/a-post/', 'post'),
                                   ('/%d0%bf%d0%be%d1%81%d1%82/', 'cyrillic')):
                    plain = ask(folder, base + path)
                    equal(plain.body.decode(), f'{text} {scheme}', path)
                    equal((plain.field('content-type'), plain.field('vary')), ('text/html', 'Accept-Encoding'))
                    zipped = ask(folder, base + path, '-H', 'Accept-Encoding: gzip')
                    equal(gzip.decompress(zipped.body).decode(), f'{text} {scheme} zipped', path)
            base = bases['http']
            by_php = lambda path, *options: ask(folder, base + path, *options).field('x-made') == 'php'
            for path, *options in (['/?p=1'], ['/', '-d', 'x'], ['/', '-H', 'Cookie: wordpress_logged_in_x=1'],
                                   ['/', '-H', 'Cookie: comment_author_x=1'], ['/unknown/'], ['/2026/11/a-post'],
                                   ['/', '-H', 'Accept: application/activity+json'], ['/index.php']):
                assert by_php(path, *options), (path, options)
            equal(ask(folder, f'{base}/page.txt').body, b'text')
            equal(ask(folder, f'{base}/wp-content/cache/supercache/localhost/index.html').status, 404)
            escaped = ask(folder, f'{base}/x/../../../../../secret/', '--path-as-is')
            assert b'secret' not in escaped.body
            # With PHP gone, what lies there is still sent.
            fpm.stop()
            equal(ask(folder, f'{base}/').body, b'front http')


if __name__ == '__main__':
    sys.exit(run({name: test for name, test in globals().items() if name.startswith('test_')},
                 sys.argv[1:]))
