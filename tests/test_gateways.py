"""The gateways with real peers: memcached filled by PHP, PHP-FPM, Apache with PHP."""
import base64, calendar, concurrent.futures, gzip, hashlib, http.client, json, os, pathlib, random, re, signal, socket
import struct, subprocess, threading, time
from openssl import authority
from peers import FASTCGI, NGINX, Accepting, Apache, Folder, Fpm, Memcached, Server, equal, free_port, get, until

ROOT = pathlib.Path(__file__).resolve().parent.parent


def php(folder, script, **settings):
    file = folder / 'script.php'
    file.write_text('<?php\n' + script)
    options = [word for name, value in settings.items() for word in ('-d', f'{name}={value}')]
    done = subprocess.run(['php8.2', *options, file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def many(count, work, threads=50):
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, range(count)))


# --- memcached -----------------------------------------------------------------------------------

# The published configuration, with the fallback every such site needs.
S3 = '''
server {
    listen 127.0.0.1:$port;
    location / {
        set $memcached_key $uri;
        memcached_pass MEMCACHED;
        default_type text/html;
        error_page 404 502 504 = @fallback;
    }
    location @fallback { FASTCGI WWW/page.php; fastcgi_pass unix:SOCKET; }
}
'''

# An application as the post describes it: it writes each finished page under its URI.
PAGE = '''<?php
$page = str_repeat('<p>' . $_SERVER['DOCUMENT_URI'] . '</p>', 500);
$cache = new Memcached();
$cache->setOption(Memcached::OPT_COMPRESSION, false);
$cache->addServer('127.0.0.1', PORT);
$cache->set($_SERVER['DOCUMENT_URI'], $page, 60);
header('X-Made: php');
echo $page;
'''


def test_pages_come_from_memcached_and_else_from_php():
    with Folder() as folder, Memcached(folder) as memcached, Fpm(folder) as fpm:
        (folder / 'page.php').write_text(PAGE.replace('PORT', str(memcached.port)))
        conf = S3.replace('FASTCGI', FASTCGI).replace('WWW', str(folder))
        conf = conf.replace('SOCKET', str(fpm.socket))
        conf = conf.replace('MEMCACHED', f'127.0.0.1:{memcached.port}')
        with Server(folder, conf) as server:
            first, second = get(server.port, '/a b'.replace(' ', '%20')), get(server.port, '/a%20b')
            equal((first.status, first.headers['X-Made']), (200, 'php'))
            # The application's key has a space, which the protocol cannot carry; nginx escapes it.
            equal(second.headers['X-Made'], 'php', 'a key that only PHP can spell')
            first, second = get(server.port, '/page'), get(server.port, '/page')
            equal((first.headers['X-Made'], second.headers['X-Made']), ('php', None))
            equal((second.content, second.headers['Content-Type']), (first.content, 'text/html'))
            equal(len(get(server.port, '/page', 'HEAD').content), 0)
            equal(get(server.port, '/page', 'POST', 'x').status, 405)
            before = memcached.stat('total_connections')
            answers = many(2000, lambda _: get(server.port, '/page').content == first.content, 100)
            assert all(answers)
            opened = memcached.stat('total_connections') - before
            assert opened <= 8, f'{opened} connections for 2,000 requests'
            memcached.kill()
            equal(get(server.port, '/page').headers['X-Made'], 'php', 'memcached is dead')
            memcached.again()
            equal(get(server.port, '/page').headers['X-Made'], 'php', 'and empty when it is back')
            equal(get(server.port, '/page').headers['X-Made'], None, 'and used again')
            assert 'panic' not in server.log()


def test_a_value_may_be_stored_gzipped():
    with Folder() as folder, Memcached(folder) as memcached:
        page = b'<p>compressed</p>' * 200
        stored = gzip.compress(page)
        with socket.create_connection(('127.0.0.1', memcached.port)) as connection:
            connection.sendall(b'set /z 2 0 %d\r\n%s\r\n' % (len(stored), stored))
            equal(connection.recv(64), b'STORED\r\n')
        conf = 'server { listen 127.0.0.1:$port; location / { set $memcached_key $uri; ' \
            f'memcached_gzip_flag 2; memcached_pass 127.0.0.1:{memcached.port}; }} }}'
        with Server(folder, conf) as server:
            answer = get(server.port, '/z')
            equal(answer.headers['Content-Encoding'], 'gzip')
            equal(gzip.decompress(answer.content), page)


def test_php_and_the_server_agree_on_the_servers_of_a_key():
    """Three memcached servers; PHP's client with the same list finds the same server."""
    keys = [f'/page/{number}' for number in range(400)]
    with Folder() as folder, Memcached(folder) as a, Memcached(folder) as b, Memcached(folder) as c:
        servers = [a, b, c]
        added = ''.join(f"$m->addServer('127.0.0.1', {s.port}, {w});"
                        for s, w in zip(servers, (1, 2, 1)))
        php(folder, f'''$m = new Memcached();
            $m->setOption(Memcached::OPT_LIBKETAMA_COMPATIBLE, true);
            $m->setOption(Memcached::OPT_COMPRESSION, false);
            {added}
            for ($n = 0; $n < 400; $n++) $m->set("/page/$n", "page $n") or exit(1);''')
        held = [s.stat('curr_items') for s in servers]
        assert sum(held) == 400 and min(held) > 40 and held[1] > max(held[0], held[2]), held
        conf = 'upstream caches { hash $memcached_key ketama; ' + ''.join(
            f'server 127.0.0.1:{s.port} weight={w} max_fails=1 fail_timeout=2s;'
            for s, w in zip(servers, (1, 2, 1))) + '''}
            server { listen 127.0.0.1:$port; add_header X-Peer $upstream_addr always;
              location / { set $memcached_key $uri; memcached_pass caches;
                error_page 404 502 504 = @fallback; }
              location @fallback { return 200 fallback; } }'''
        with Server(folder, conf) as server:
            def ask():
                answers = many(400, lambda n: get(server.port, keys[n]), 20)
                assert all(answer.status == 200 for answer in answers)
                return [(answer.content, answer.headers['X-Peer']) for answer in answers]
            before = ask()
            equal([content for content, _ in before], [f'page {n}'.encode() for n in range(400)])
            b.kill()
            for (old, peer), (content, now) in zip(before, ask()):
                if peer == f'127.0.0.1:{b.port}':
                    equal(content, b'fallback', 'a key of the dead server')
                else:
                    equal((content, now), (old, peer), 'a key of another server')
            b.again()
            time.sleep(2.1)
            ask()
            after = ask()
            equal([peer for _, peer in after], [peer for _, peer in before], 'all keys are back')


def test_hash_and_consistent_choose_as_nginx_does():
    with Folder() as folder, Memcached(folder) as a, Memcached(folder) as b, Memcached(folder) as c:
        for method in ('hash $uri', 'hash $uri consistent'):
            conf = f'upstream caches {{ {method}; ' + ''.join(
                f'server 127.0.0.1:{s.port} weight={w};' for s, w in ((a, 1), (b, 3), (c, 2))) + '''}
                server { listen 127.0.0.1:$port; add_header X-Peer $upstream_addr always;
                  location / { set $memcached_key $uri; memcached_pass caches; } }'''
            with Server(folder, conf) as ours, Server(folder, conf, NGINX) as theirs:
                for number in range(300):
                    path = f'/{number}'
                    peers = {get(server.port, path).headers['X-Peer'] for server in (ours, theirs)}
                    assert len(peers) == 1, (method, path, peers)


# --- Apache --------------------------------------------------------------------------------------

def test_apache_with_php_behind_the_proxy():
    with Folder() as folder:
        www = folder / 'www'
        (www / 'sub').mkdir(parents=True)
        (www / 'index.php').write_text('<?php header("X-Host: ".$_SERVER["HTTP_HOST"]); '
            'header("X-For: ".($_SERVER["HTTP_X_FORWARDED_FOR"] ?? "")); '
            'echo str_repeat("page ", 4000), file_get_contents("php://input");')
        (www / 'sub/index.html').write_text('sub')
        with Apache(folder, www) as apache:
            conf = f'''
                proxy_cache_path $dir/cache keys_zone=z:1m;
                upstream apache {{ server 127.0.0.1:{apache.port}; keepalive 8; }}
                server {{ listen 127.0.0.1:$port;
                  location / {{ proxy_pass http://apache; proxy_set_header Host $host;
                    proxy_redirect http://$host/ /;
                    proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; }}
                  location /cached/ {{ proxy_pass http://apache/; proxy_cache z;
                    proxy_cache_valid 1h; add_header X-Cache $upstream_cache_status; }} }}'''
            with Server(folder, conf) as server:
                answer = get(server.port)
                equal(answer.status, 200)
                equal(answer.content, b'page ' * 4000)
                equal((answer.headers['X-Host'], answer.headers['X-For']), ('127.0.0.1',) * 2)
                equal(get(server.port, '/', 'POST', 'x' * 100_000).content[-100_000:], b'x' * 100_000)
                equal(get(server.port, '/sub').headers['Location'], f'http://127.0.0.1:{server.port}/sub/')
                equal(get(server.port, '/sub/').content, b'sub')
                equal(get(server.port, '/none').status, 404)
                equal(get(server.port, '/', 'HEAD').content, b'')
                caches = [get(server.port, '/cached/').headers['X-Cache'] for _ in range(2)]
                equal(caches, ['MISS', 'HIT'])
                # 50 clients do not need 50 connections each time.
                assert all(many(500, lambda _: get(server.port).status == 200))
            assert 'segfault' not in (folder / 'apache.log').read_text()


def test_a_websocket_carries_bytes_both_ways():
    with Folder() as folder:
        class Origin(Accepting):
            def serve(self, near):
                head = b''
                while b'\r\n\r\n' not in head:
                    head += near.recv(4096)
                key = [line for line in head.decode().splitlines()
                       if line.lower().startswith('sec-websocket-key')][0].split(': ')[1]
                near.sendall(b'HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n'
                             b'Connection: Upgrade\r\nX-Key: %s\r\n\r\nhello' % key.encode())
                while piece := near.recv(65536):
                    near.sendall(piece[::-1])
                near.close()
        conf = f'''map $http_upgrade $connection_upgrade {{ default upgrade; '' close; }}
            server {{ listen 127.0.0.1:$port; location / {{ proxy_http_version 1.1;
              proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $connection_upgrade;
              proxy_pass http://127.0.0.1:{Origin().port}; }} }}'''
        with Server(folder, conf) as server:
            client = socket.create_connection(('127.0.0.1', server.port), timeout=60)
            client.sendall(b'GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: upgrade\r\n'
                           b'Sec-WebSocket-Key: k\r\n\r\n')
            answer = b''
            while not answer.endswith(b'hello'):
                answer += client.recv(4096)
            assert b'101 Switching' in answer and b'X-Key: k' in answer and b'Connection: upgrade' in answer
            for size in (1, 1000, 100_000):
                sent = os.urandom(size)
                threading.Thread(target=client.sendall, args=(sent,)).start()
                got = b''
                while len(got) < size:
                    got += client.recv(65536)
                if size <= 1000:
                    equal(got, sent[::-1])
            client.close()


def test_tls_towards_the_upstream():
    with Folder() as folder:
        authority(folder)
        backend = f'''server {{ listen 127.0.0.1:$port ssl; ssl_certificate {folder}/origin.example.pem;
            ssl_certificate_key {folder}/origin.example.key; ssl_client_certificate {folder}/ca.pem;
            ssl_verify_client optional; keepalive_timeout 60; ssl_protocols TLSv1.2 TLSv1.3;
            location / {{ add_header X-Connection $connection;
              add_header X-Resumed $ssl_session_reused;
              return 200 "$ssl_protocol $ssl_server_name $ssl_client_verify $http_host"; }}
            location /body {{ client_max_body_size 0; proxy_pass http://127.0.0.1:1; }}
            location /large {{ root {folder}; }} }}'''
        (folder / 'large').write_bytes(os.urandom(3_000_000))
        with Server(folder, backend, NGINX) as origin:
            at = f'127.0.0.1:{origin.port}'
            identity = f'''proxy_ssl_certificate {folder}/client.example.pem;
                proxy_ssl_certificate_key {folder}/encrypted.key; proxy_ssl_password_file {folder}/passwords;'''
            verified = f'proxy_ssl_verify on; proxy_ssl_trusted_certificate {folder}/ca.pem;'
            with Server(folder, f'''upstream o {{ server {at}; keepalive 4; keepalive_ready 1; }}
                server {{ listen 127.0.0.1:$port;
                location / {{ proxy_pass https://o; }}
                location /verified {{ proxy_pass https://o; {verified} proxy_ssl_name origin.example; }}
                location /other {{ proxy_pass https://o; {verified} proxy_ssl_name other.example; }}
                location /sni {{ proxy_pass https://o; proxy_ssl_server_name on; proxy_ssl_name origin.example; }}
                location /client {{ proxy_pass https://o; {identity} }}
                location /old {{ proxy_pass https://o; proxy_ssl_protocols TLSv1.2;
                  proxy_ssl_ciphers HIGH:!aNULL; }}
                location /plain {{ proxy_pass http://{at}; }}
                location /spelled {{ set $at {at}; proxy_pass https://$at; }} }}''') as server:
                said = lambda path: get(server.port, path).content.decode()
                equal(said('/'), 'TLSv1.3  NONE o')
                equal(said('/verified'), 'TLSv1.3  NONE o')
                equal(get(server.port, '/other').status, 502)
                assert 'does not match "other.example"' in server.log(), server.log()
                equal(said('/sni'), 'TLSv1.3 origin.example NONE o')
                equal(said('/client'), 'TLSv1.3  SUCCESS o')
                equal(said('/old'), 'TLSv1.2  NONE o')
                equal(get(server.port, '/plain').status, 400)
                equal(said('/spelled'), f'TLSv1.3  NONE {at}')
                connections = {get(server.port, '/').headers['X-Connection'] for _ in range(10)}
                # Places that want a connection ready do not drive out the one that is in use, though `keepalive` has no room for all.
                equal(len(connections), 1)
                equal(hashlib.sha256(get(server.port, '/large').content).digest(),
                      hashlib.sha256((folder / 'large').read_bytes()).digest())
                # A connection opened for one name is not used for another.
                equal(get(server.port, '/other').status, 502)


def test_times_in_an_answer_are_those_of_its_end():
    with Folder() as folder, Fpm(folder) as fpm:
        page = folder / 'page.php'
        page.write_text('<?php usleep(2500000); echo "<!--#echo var=\'date_gmt\' -->";')
        conf = f'''server {{ listen 127.0.0.1:$port; expires 10s; userid on; userid_expires 60s; gzip on; ssi on;
            location / {{ {FASTCGI} {page}; fastcgi_pass unix:{fpm.socket};
                add_header X-Link "$secure_link"; secure_link $arg_code,$arg_until; secure_link_md5 "$arg_until"; }} }}'''
        with Server(folder, conf) as ours, Server(folder, conf, NGINX) as theirs:
            def seen(server):
                until = int(time.time()) + 1
                code = base64.urlsafe_b64encode(hashlib.md5(str(until).encode()).digest()).decode().rstrip('=')
                answer = get(server.port, f'/?until={until}&code={code}')
                date = lambda text, form='%a, %d %b %Y %H:%M:%S GMT': calendar.timegm(time.strptime(text, form))
                told = date(answer.headers['Date'])
                cookie = re.search('expires=([^;]*)', answer.headers['Set-Cookie']).group(1)
                link = answer.headers['X-Link']
                return (date(answer.headers['Expires']) - told, date(cookie, '%a, %d-%b-%y %H:%M:%S GMT') - told,
                        date(answer.content.decode(), '%A, %d-%b-%Y %H:%M:%S GMT') - told, link)
            # A second may end between one and the other.
            for after_expiry, after_cookie, after_ssi, link in (seen(ours), seen(theirs)):
                assert after_expiry in (9, 10) and after_cookie in (59, 60, 61) and after_ssi in (0, 1), \
                    (after_expiry, after_cookie, after_ssi)
                equal(link, '0', 'the link is over')


# --- uploads ---------------------------------------------------------------------------------------

CHECK = '''<?php
$files = [];
foreach ($_FILES as $name => $file) $files[$name] = hash_file('sha256', $file['tmp_name']);
header('Content-Type: application/json');
$raw = $_FILES ? '' : hash('sha256', file_get_contents('php://input'));
echo json_encode(['length' => $_SERVER['CONTENT_LENGTH'] ?? null, 'files' => $files, 'raw' => $raw]);
'''


def multipart(files):
    boundary = b'yorozu-boundary'
    parts = [b'--%s\r\nContent-Disposition: form-data; name="%s"; filename="%s.bin"\r\n'
             b'Content-Type: application/octet-stream\r\n\r\n%s\r\n' % (boundary, name, name, data)
             for name, data in files.items()]
    return b''.join(parts) + b'--%s--\r\n' % boundary, 'multipart/form-data; boundary=yorozu-boundary'


class UploadSite:
    """The published upload tuning: PHP-FPM on a Unix socket, bodies sent on while they arrive."""

    def __init__(self, folder, **more):
        self.fpm = Fpm(folder, children=8, upload_max_filesize='300M', post_max_size='310M',
                       memory_limit='400M', upload_tmp_dir=folder)
        (folder / 'check.php').write_text(CHECK)
        (folder / 'slow.php').write_text('<?php sleep(20);')
        folder.chmod(0o777)
        to_php = f'{FASTCGI} {folder}/check.php; fastcgi_pass unix:{self.fpm.socket};'
        self.server = Server(folder, f'''
            client_max_body_size 300m; client_body_buffer_size 8k;
            server {{ listen 127.0.0.1:$port;
              location / {{ fastcgi_request_buffering chunked; {to_php} }}
              location /late {{ client_body_timeout 1s; fastcgi_request_buffering chunked; {to_php} }}
              location /spooled {{ {to_php} }}
              location /small {{ client_max_body_size 1m; {to_php} }}
              location /full {{ client_body_temp_path {folder}/full; {to_php} }}
              location /slow {{ fastcgi_request_buffering off; {FASTCGI} {folder}/slow.php;
                fastcgi_pass unix:{self.fpm.socket}; }} }}''', **more)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.stop()
        self.fpm.stop()


def upload(port, path, files):
    body, kind = multipart(files)
    answer = get(port, path, 'POST', body, Content_Type=kind)
    equal(answer.status, 200, answer.content[:200])
    said = json.loads(answer.content)
    equal(said['length'], str(len(body)))
    for name, data in files.items():
        equal(said['files'][name.decode()], hashlib.sha256(data).hexdigest())


def test_uploads_reach_php_whole():
    with Folder() as folder, UploadSite(folder) as site:
        ten = {b'image%d' % n: os.urandom(100_000) for n in range(10)}
        for path in ('/', '/spooled'):
            many(60, lambda _: upload(site.server.port, path, ten), 20)
        equal(site.server.files(), [])


def test_a_large_upload_never_touches_the_disk():
    with Folder() as folder, UploadSite(folder) as site:
        before = site.server.resident_bytes()
        io = lambda: int(pathlib.Path(f'/proc/{site.server.serving_pid}/io').read_text()
                         .split('write_bytes: ')[1].split()[0])
        written = io()
        upload(site.server.port, '/', {b'large': random.Random(1).randbytes(60_000_000)})
        assert io() - written < 1_000_000, 'the body went to disk'
        grown = site.server.resident_bytes() - before
        assert grown < 20_000_000, f'{grown} bytes more after 60 MB'


def test_a_body_without_length_is_spooled_so_that_php_gets_one():
    with Folder() as folder, UploadSite(folder) as site:
        data = os.urandom(300_000)

        def pieces():
            for at in range(0, len(data), 7000):
                yield data[at:at + 7000]
        connection = http.client.HTTPConnection('127.0.0.1', site.server.port, timeout=60)
        connection.request('POST', '/', pieces(), {'Content-Type': 'text/x'}, encode_chunked=True)
        said = json.loads(connection.getresponse().read())
        equal(said['length'], '300000')
        equal(said['raw'], hashlib.sha256(data).hexdigest())
        equal(site.server.files(), [])


def test_uploads_that_go_wrong():
    with Folder() as folder, UploadSite(folder) as site:
        port = site.server.port
        head = 'POST {} HTTP/1.1\r\nHost: a\r\nContent-Type: text/x\r\nContent-Length: {}\r\n\r\n'

        def begin(path, length, body=b''):
            client = socket.create_connection(('127.0.0.1', port), timeout=60)
            client.sendall(head.format(path, length).encode() + body)
            return client
        # Too large: refused before the body is read.
        client = begin('/small', 50_000_000)
        assert client.recv(4096).startswith(b'HTTP/1.1 413')
        # The client stops sending: let go after client_body_timeout, without an answer.
        client = begin('/late', 1_000_000, b'x' * 1000)
        equal(client.recv(4096), b'')
        # The client goes away: PHP is released, the next request is served.
        for _ in range(20):
            begin('/', 1_000_000, b'x' * 100_000).close()
        upload(port, '/', {b'a': b'still here'})
        # PHP dies in the middle.
        client = begin('/slow', 100_000_000, b'x' * 100_000)
        site.fpm.kill()
        answer = client.recv(4096)
        assert answer.startswith(b'HTTP/1.1 502') or answer == b'', answer
        site.fpm.socket.unlink(missing_ok=True)
        site.fpm.start()
        site.fpm.wait_for(site.fpm.listens)
        upload(port, '/', {b'a': b'and again'})
        equal(site.server.files(), [])
        assert 'panic' not in site.server.log()


# --- limits and passwords ----------------------------------------------------------------------------

def test_limits_count_what_is_under_way_also_over_a_reload():
    with Folder() as folder, Fpm(folder, children=8) as fpm:
        runs, end = folder / 'runs', folder / 'end'
        # As long as a file says so, nothing is under way for longer.
        (folder / 'wait.php').write_text(f'<?php file_put_contents("{runs}", "x", FILE_APPEND); while (!file_exists("{end}")) '
                                         '{ usleep(10000); clearstatcache(); } echo "done";')
        runs.write_text('')
        runs.chmod(0o666)
        http = f"""limit_conn_zone $arg_who zone=who:1m; limit_conn_zone $server_name zone=all:1m;
            server {{ listen 127.0.0.1:$port; server_name a; limit_conn who 2; limit_conn all 5; limit_conn_status 429;
                location / {{ {FASTCGI} {folder}/wait.php; fastcgi_pass unix:{fpm.socket};
                    add_header X-Limit $limit_conn_status always; }} }}"""
        with Server(folder, http) as server:
            asked = lambda who: get(server.port, f'/?who={who}')
            with concurrent.futures.ThreadPoolExecutor(20) as pool:

                def statuses(names, most):
                    """What those get who ask while `most` of them are under way."""
                    end.unlink(missing_ok=True)
                    all_of = [pool.submit(asked, name) for name in names]
                    until('those that are too many', lambda: sum(one.done() for one in all_of) >= len(names) - most)
                    end.touch()
                    return sorted(one.result().status for one in all_of)
                equal(statuses('aaaa', 2), [200, 200, 429, 429])
                # An answer is read a moment before its request has ended.
                until('five of all', lambda: statuses('aabbcd', 5) == [200] * 5 + [429])
                until('the end of those', lambda: statuses('aa', 2) == [200, 200])
                until('a free place', lambda: asked('a').headers['X-Limit'] == 'PASSED')
                # What is under way counts on in the next configuration.
                runs.write_text('')
                end.unlink()
                under_way = [pool.submit(asked, 'a') for _ in range(2)]
                until('two under way', lambda: runs.read_text() == 'xx')
                os.kill(server.process.pid, signal.SIGHUP)
                until('the reload', lambda: 'reconfiguring' in server.log())
                equal(asked('a').status, 429)
                end.touch()
                equal([one.result().status for one in under_way], [200, 200])
                until('the end of these', lambda: asked('a').status == 200)
            assert 'limiting connections by zone "who"' in server.log()


def test_passwords_of_htpasswd():
    with Folder() as folder:
        users = folder / 'users'
        for number, flag in enumerate(['-m', '-B', '-s', '-d', '-2', '-5', '-p']):
            subprocess.run(['htpasswd', '-b', *(['-c'] if number == 0 else []), flag, users, f'user{flag}', 'sesame'],
                           check=True, capture_output=True)
        http = f"""server {{ listen 127.0.0.1:$port; location / {{ auth_basic realm; auth_basic_user_file {users};
            return 200 $remote_user; }} location /in {{ auth_basic realm; auth_basic_user_file {users}; alias {users}; }} }}"""
        with Server(folder, http) as server:
            def status(user, password):
                words = base64.b64encode(f'{user}:{password}'.encode()).decode()
                return get(server.port, '/in', Authorization=f'Basic {words}').status
            for flag in ['-m', '-B', '-s', '-d', '-2', '-5']:
                equal((status(f'user{flag}', 'sesame'), status(f'user{flag}', 'Sesame')), (200, 401), flag)
            # nginx takes plain text only where {PLAIN} says so.
            equal((status('user-p', 'sesame'), status('nobody', 'sesame')), (401, 401))
            assert 'user "user-p": password mismatch' in server.log() and 'user "nobody" was not found in' in server.log()


def test_a_full_disk_while_a_body_is_spooled():
    if os.geteuid() != 0:
        return print('        (needs root for a small file system)')
    with Folder() as folder:
        full = folder / 'full'
        full.mkdir()
        mounted = subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=1m', 'tmpfs', full])
        if mounted.returncode:
            return print('        (mounting is not allowed here)')
        try:
            with UploadSite(folder) as site:
                answer = get(site.server.port, '/full', 'POST', b'x' * 5_000_000)
                equal(answer.status, 500)
                assert 'No space left on device' in site.server.log()
                used = subprocess.run(['df', '--output=used', full], capture_output=True, text=True)
                equal(used.stdout.split()[-1], '0', 'left on the full disk')
                upload(site.server.port, '/spooled', {b'a': b'x' * 100_000})
        finally:
            subprocess.run(['umount', '-l', full])


# --- names -----------------------------------------------------------------------------------------

class NameServer(threading.Thread):
    """Answers every A question with `addresses`, valid for a second."""

    def __init__(self, addresses):
        super().__init__(daemon=True)
        self.addresses, self.asked = addresses, 0
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(('127.0.0.1', 0))
        self.port = self.socket.getsockname()[1]
        self.start()

    def run(self):
        while True:
            question, client = self.socket.recvfrom(512)
            self.asked += 1
            end = question.index(b'\0', 12) + 5
            is_a = question[end - 4:end - 2] == b'\0\1'
            found = self.addresses if is_a else []
            answer = question[:2] + struct.pack('>HHHHH', 0x8180, 1, len(found), 0, 0) + question[12:end]
            for address in found:
                answer += b'\xc0\x0c' + struct.pack('>HHIH', 1, 1, 1, 4) + socket.inet_aton(address)
            self.socket.sendto(answer, client)


def test_names_are_resolved_while_the_server_runs():
    with Folder() as folder:
        names, port = NameServer(['127.0.0.1']), free_port()
        conf = ''.join(f'server {{ listen {ip}:{port}; return 200 {ip}; }}'
                       for ip in ('127.0.0.1', '127.0.0.2')) + f'''
            resolver 127.0.0.1:{names.port} ipv6=off;
            upstream site {{ zone site 64k; server origin.example:{port} resolve; }}
            server {{ listen 127.0.0.1:$port;
              location / {{ proxy_pass http://site; }}
              location /spelled {{ set $name origin.example; proxy_pass http://$name:{port}; }}
              location /unknown {{ set $name x; proxy_pass http://$name.nowhere; resolver_timeout 1s;
                resolver 127.0.0.1:1; }} }}'''
        with Server(folder, conf) as server:
            until('the name', lambda: get(server.port).content == b'127.0.0.1')
            equal(get(server.port, '/spelled').content, b'127.0.0.1')
            equal(get(server.port, '/unknown').status, 502)
            names.addresses = ['127.0.0.2']
            until('the new address', lambda: get(server.port).content == b'127.0.0.2')
            until('the new address, spelled', lambda: get(server.port, '/spelled').content == b'127.0.0.2')


# --- presets ---------------------------------------------------------------------------------------

def preset(name, folder, **changes):
    """The http part of a preset, with a test's paths and addresses."""
    text = (ROOT / f'presets/{name}/nginx.conf').read_text()
    http = text[text.index('http {') + 6:text.rindex('}')]
    for old, new in {'include ../': f'include {ROOT}/presets/', 'listen 80;': 'listen $port;',
                     '/var/cache/yorozu': '$dir/cache', '/var/log/yorozu': '$dir/logs',
                     '/var/www/html': str(folder), **changes}.items():
        http = http.replace(old, new)
    return http


# Its own file of hosts, which may change while it runs.
WITH_HOSTS = ['unshare', '--mount', 'sh', '-c', 'mount --bind "$0" /etc/hosts && exec "$@"']


def test_a_name_that_is_not_there_yet_keeps_no_other_site_from_its_start():
    if os.geteuid():
        return print('        not run: needs root for hosts of its own')
    with Folder() as folder:
        hosts, port = folder / 'hosts', free_port()
        hosts.write_text('127.0.0.1 localhost\n')
        conf = f'''resolve_later on;
            upstream group {{ server later-one.invalid:{port}; }}
            server {{ listen 127.0.0.1:{port}; return 200 there; }}
            server {{ listen 127.0.0.1:$port;
                location /group/ {{ proxy_pass http://group/; }}
                location /name/ {{ proxy_pass http://later-two.invalid:{port}/; }}
                location = /other {{ return 200 other; }} }}'''
        with Server(folder, conf, prefix=[*WITH_HOSTS, hosts]) as server:
            paths = '/group/', '/name/'
            equal([get(server.port, path).status for path in ('/other', *paths)], [200, 502, 502])
            for name in 'later-one.invalid', 'later-two.invalid':
                text = f'host not found in upstream "{name}:{port}": its requests are answered with 502'
                until(f'what is said of {name}', lambda: text in server.log(), told=server.log)
            # In place: it is the file that is mounted.
            with hosts.open('a') as file:
                file.write('127.0.0.1 later-one.invalid later-two.invalid\n')
            until('the names', lambda: all(get(server.port, path).content == b'there' for path in paths))


def test_the_memcached_preset():
    with Folder() as folder, Memcached(folder) as memcached, Fpm(folder) as fpm:
        (folder / 'index.php').write_text(PAGE.replace('PORT', str(memcached.port)))
        conf = preset('memcached', folder, **{'127.0.0.1:11211': f'127.0.0.1:{memcached.port}',
                                              '/run/php/php-fpm.sock': str(fpm.socket)})
        with Server(folder, conf) as server:
            # Only what the application wrote under the page's own URI comes from memcached.
            php(folder, f"""$m = new Memcached(); $m->setOption(Memcached::OPT_COMPRESSION, false);
                $m->addServer('127.0.0.1', {memcached.port}); $m->set('127.0.0.1/page', 'from memcached');""")
            equal(get(server.port, '/page').content, b'from memcached')
            made_by_php = lambda *a, **f: get(server.port, *a, **f).headers['X-Made'] == 'php'
            assert made_by_php('/other') and made_by_php('/page?query')
            assert made_by_php('/page', 'POST', 'x')
            assert made_by_php('/page', Cookie='wordpress_logged_in_x=1')


def test_compressed_forms_are_made_once_and_survive_a_kill():
    with Folder() as folder, Fpm(folder) as fpm:
        (folder / 'page.php').write_text('<?php header("Cache-Control: max-age=60"); header("ETag: \\"e\\"");'
                                         'for ($n = 0; $n < 2000; $n++) echo "<p>$n</p>";')
        conf = f"""fastcgi_cache_path {folder}/pages keys_zone=z:1m; gzip on; brotli on; zstd on; gzip_vary on;
            server {{ listen 127.0.0.1:$port; location / {{ {FASTCGI} {folder}/page.php;
              fastcgi_pass unix:{fpm.socket}; fastcgi_cache z; fastcgi_cache_key $uri;
              add_header X-Cache $upstream_cache_status; }} }}"""
        def decoded(server, coding):
            done = subprocess.run(['curl', '-s', '-D', folder / 'head', '--compressed', '-H', f'Accept-Encoding: {coding}',
                                   f'http://127.0.0.1:{server.port}/'], capture_output=True, check=True)
            return done.stdout, (folder / 'head').read_text()
        forms = lambda: sum(path.read_bytes().count(b'form') for path in (folder / 'pages').rglob('*') if path.is_file())
        plain = ''.join(f'<p>{n}</p>' for n in range(2000)).encode()
        with Server(folder, conf) as server:
            equal(get(server.port).content, plain)
            for coding in ('gzip', 'br', 'zstd'):
                body, head = decoded(server, coding)
                equal(body, plain, coding)
                assert f'Content-Encoding: {coding}' in head and 'W/"e"' in head and 'Content-Length' in head, head
            until('the forms on disk', lambda: forms() == 3)
            server.kill()
        fpm.stop()
        with Server(folder, conf) as server:
            for coding in ('zstd', 'br', 'gzip'):
                body, head = decoded(server, coding)
                equal(body, plain, coding)
                assert 'X-Cache: HIT' in head and f'Content-Encoding: {coding}' in head, head
            equal(get(server.port, '/', 'GET', None, Range='bytes=0-9').status, 200)


def test_the_upload_preset():
    with Folder() as folder, Fpm(folder, upload_tmp_dir=folder) as fpm:
        folder.chmod(0o777)
        (folder / 'check.php').write_text(CHECK)
        conf = preset('upload', folder, **{'/run/php/php-fpm.sock': str(fpm.socket)})
        with Server(folder, conf) as server:
            upload(server.port, '/check.php', {b'image%d' % n: os.urandom(100_000) for n in range(10)})
            equal(get(server.port, '/none.php').status, 404)
            equal(server.files(), [])
