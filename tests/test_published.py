"""The published configurations, to the letter, beside nginx: the page cache for a PHP blog, and the one for 10,000
requests a second (TLS, HTTP/2, a microcache).
"""
from peers import NGINX, ROOT, Folder, Fpm, Server, equal, free_port
from published import PARAMS, Site, ask

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


# --- a page cache for a PHP blog -------------------------------------------------------------------------

BLOG = ROOT / 'tests/published'
BLOG_PAGE = '''<?php
    if (isset($_GET['status'])) http_response_code((int) $_GET['status']);
    echo 'made ', hrtime(true), ' for ', $_COOKIE ? key($_COOKIE) : 'everybody',
        ' ', $_SERVER['PATH_INFO'] ?? '';'''


def blog(folder, fpm, program):
    """The published text for this machine; nginx gets it without the memory tier."""
    text = (BLOG / 'nginx.conf').read_text()
    text = text[text.index('http {') + 6:text.rindex('}')]
    text = text.replace('include wordpress.conf;', (BLOG / 'wordpress.conf').read_text())
    for old, new in {'include ../': f'include {ROOT}/presets/', 'listen 80;': 'listen 127.0.0.1:$port;',
                     '/var/www/html': folder / 'www', '/var/cache/yorozu': '$dir/cache',
                     '/var/log/yorozu': '$dir/logs', '/run/php/wordpress.sock': fpm.socket,
                     **({' memory=64m': ''} if program == NGINX else {})}.items():
        text = text.replace(old, str(new))
    return text


def test_the_published_page_cache_does_what_it_does_in_nginx():
    with Folder() as folder, Fpm(folder) as fpm:
        site = Site(folder)
        (site.www / 'index.php').write_text(BLOG_PAGE)
        for name in ('.htaccess', 'uploads/x.php', 'favicon.ico', 'wp-admin/index.php'):
            (site.www / name).parent.mkdir(exist_ok=True)
            (site.www / name).write_text('text')
        for program in (None, NGINX):
            with Server(folder, blog(folder, fpm, program), program=program) as server:
                base = f'http://localhost:{server.port}'
                cached = lambda path, *options: ask(folder, base + path, *options).field('x-cache')
                first = ask(folder, f'{base}/a/page')
                equal((first.status, first.field('x-cache')), (200, 'MISS'))
                again = ask(folder, f'{base}/a/page')
                equal((again.body, again.field('x-cache')), (first.body, 'HIT'))
                for cookie in ('wordpress_logged_in_x=1', 'comment_author_x=1'):
                    own = ask(folder, f'{base}/a/page', '-b', cookie)
                    assert own.field('x-cache') == 'BYPASS' and cookie[:-2].encode() in own.body
                    assert cached(f'/for/{cookie}', '-b', cookie) == 'BYPASS'
                    equal(cached(f'/for/{cookie}'), 'MISS', 'nothing of a known visitor is stored')
                assert ask(folder, f'{base}/a/page', '-d', 'x').body != first.body
                equal(ask(folder, f'{base}/index.php/a/b').body.split()[-1], b'/a/b')
                for status in (301, 302, 404, 503):
                    equal([cached(f'/?status={status}') for _ in range(2)], ['MISS', 'HIT'], status)
                for path, status in (('/.htaccess', 403), ('/uploads/x.php', 403), ('/none.php', 404),
                                     ('/favicon.ico', 200), ('/robots.txt', 404)):
                    equal(ask(folder, base + path).status, status, path)
                admin = ask(folder, f'{base}/wp-admin')
                equal((admin.status, admin.field('location')), (301, 'http://localhost/wp-admin/'))
