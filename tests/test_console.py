"""The console: who may look, what each miss is put down to, what viewers cost; its page in a real browser."""
import contextlib, http.client, json, os, select, shutil, signal, socket, subprocess, threading, time, urllib.parse, zlib
import pytest
from browser import ENTER, SPACE, TAB, Browser
from monitoring import EVICTING, Viewer, evict, evicting, origin, samples
from peers import YOROZU, Folder, Server, equal, free_port, listens, until

in_a_browser = pytest.mark.skipif(not shutil.which('chromedriver'), reason='chromedriver is not there')

SITE = '''
    map $arg_x $endless { default ""; ~^(?:(?:a+)+)+[!.]$ 1; }
    proxy_cache_path $dir/cache keys_zone=pages:1m memory=4m;
    upstream web { server 127.0.0.1:@WEB@; }
    map $arg_skip $skip { 1 1; }
    server {
        listen 127.0.0.1:$port;
        server_name localhost site.example;
        location / {
            proxy_pass http://web;
            proxy_cache pages;
            proxy_cache_key $uri$is_args$args;
            proxy_cache_valid 200 1h;
            proxy_cache_lock on;
            proxy_cache_bypass $arg_bypass;
            proxy_no_cache $arg_forbidden;
            proxy_cache_methods GET;
        }
        location /head/ { proxy_pass http://web; proxy_cache pages; proxy_cache_convert_head off; proxy_cache_valid 200 1h; proxy_cache_key $uri; }
        location /min/ { proxy_pass http://web; proxy_cache pages; proxy_cache_min_uses 2; proxy_cache_valid 200 1h; }
        location /short/ { proxy_pass http://web; proxy_cache pages; proxy_cache_valid 200 1s; }
        location /plain/ { proxy_pass http://web; }
        location /tags/ { proxy_pass http://web; proxy_cache pages; proxy_cache_valid 200 1h; proxy_buffer_size 64k; proxy_buffers 4 64k; }
        location /gone/ { proxy_pass http://127.0.0.1:1; }
        location /none/ { proxy_pass http://web; proxy_cache pages; }
        location /lock/ {
            proxy_pass http://web; proxy_cache pages; proxy_cache_valid 200 1h;
            proxy_cache_lock on; proxy_cache_lock_timeout 100ms;
        }
        location /led/ { internal; proxy_pass http://web; proxy_cache pages; proxy_cache_valid 200 1h; proxy_cache_key same; }
        location = /who { return 204; }
        location /permission { auth_request /who; auth_request_set $who known; proxy_set_header X-Who $who; proxy_pass http://web; proxy_cache pages; proxy_cache_valid 200 1h; }
        location /undecided { proxy_pass http://web; proxy_cache pages; proxy_cache_valid 200 1h; proxy_no_cache $endless; }
        location /dry { proxy_pass http://web; proxy_cache pages; proxy_cache_valid 200 1h; proxy_cache_dry_run on; }
        location /leads { proxy_pass http://web; proxy_cache pages; proxy_cache_valid 200 1h; proxy_cache_key same; }
        location /offset/ { proxy_pass http://web; proxy_cache pages; proxy_cache_valid 200 1h; proxy_cache_max_range_offset 2; }
        location /complete/ {
            proxy_pass http://web; proxy_cache pages; proxy_cache_key $uri; proxy_cache_complete_partial on;
            proxy_set_header Range $http_range;
        }
        location /metrics { prometheus all; }
        location /console/ { console @CONSOLE@; }
    }'''


def site(folder, web, console='', http=SITE, **more):
    return Server(folder, http.replace('@WEB@', str(web)).replace('@CONSOLE@', console), **more)


def ask(server, path, method='GET', body=None, host=None, **headers):
    connection = http.client.HTTPConnection('127.0.0.1', server.port, timeout=60)
    headers = {name.replace('_', '-'): value for name, value in headers.items()}
    connection.request(method, path, body, headers={'Host': host or f'localhost:{server.port}'} | headers)
    answer = connection.getresponse()
    answer.text = answer.read().decode()
    connection.close()
    return answer


def figures(server, **headers):
    return json.loads(ask(server, '/console/figures', **headers).text)


def reasons(server):
    """The names of all reasons, by number."""
    return {str(one['id']): one['name'] for one in json.loads(ask(server, '/console/about').text)['reasons']}


# A request for each reason: its name, and the method, path, fields and body. Those before it prepare it.
MISSES = [
    ('uri-miss', 'GET', '/new', {}),
    ('uncached', 'GET', '/plain/a', {}),
    ('bypass', 'GET', '/new?bypass=1', {}),
    ('method', 'POST', '/new', {}),
    ('vary-miss', 'GET', '/vary?h=Vary:Accept-Language', {'Accept-Language': 'de'}),
    ('set-cookie', 'GET', '/cookie?h=Set-Cookie:a=b', {}),
    ('vary', 'GET', '/star?h=Vary:*', {}),
    ('x-accel-expires', 'GET', '/accel?h=X-Accel-Expires:0', {}),
    ('no-store', 'GET', '/store?h=Cache-Control:no-store', {}),
    ('no-cache', 'GET', '/nocache?h=Cache-Control:no-cache', {}),
    ('private', 'GET', '/private?h=Cache-Control:private', {}),
    ('no-lifetime', 'GET', '/none/a', {}),
    ('expired', 'GET', '/expired?h=Expires:Thu,%2001%20Jan%201970%2000:00:01%20GMT', {}),
    ('authorization', 'GET', '/authorization', {'Authorization': 'Basic YTpi'}),
    ('forbidden', 'GET', '/forbidden?forbidden=1', {}),
    ('min-uses', 'GET', '/min/a', {}),
    ('split', 'GET', '/split', {'X-Forwarded-Host': 'evil.example'}),
    ('unknown-header', 'GET', '/short/unknown', {'X-Odd': '1'}),
    ('loop', 'GET', '/loop?status=301&h=Location:%23top&h=Cache-Control:max-age=60', {}),
    ('tags', 'GET', '/tags/a?tags=4097', {}),
    ('redirected', 'GET', '/leads?h=X-Accel-Redirect:/led/a', {}),
    ('permission', 'GET', '/permission', {}),
    ('cookie', 'GET', '/cookies', {'Cookie': 'cart=1'}),
    ('dry-run', 'GET', '/dry', {}),
    ('undecided', 'GET', '/undecided?x=' + 'a' * 40, {}),
    ('range-offset', 'GET', '/offset/a', {'Range': 'bytes=3-'}),
    ('head', 'HEAD', '/head/a', {}),
    ('partial', 'GET', '/part?status=206&h=Content-Range:bytes%200-4/9&h=Cache-Control:max-age=60', {}),
    ('body', 'GET', '/body', {'Content-Length': '1'}),
    ('partial-miss', 'GET', '/complete/a?status=206&h=ETag:%22a%22&h=Content-Range:bytes%205-9/10&h=Cache-Control:max-age=60', {}),
]


def miss_by_each_reason(server):
    """Makes them, and those that take two requests; the names."""
    ask(server, '/vary?h=Vary:Accept-Language', Accept_Language='en')
    ask(server, '/complete/a?status=206&h=ETag:%22a%22&h=Content-Range:bytes%200-4/10&h=Cache-Control:max-age=60', Range='bytes=0-4')
    ask(server, '/cookies?h=X-Accel-Cookies:cart')
    ask(server, '/dry')
    for name, method, path, fields in MISSES:
        body = b'x' if name in ('body', 'method') else None
        ask(server, path, method, body, **{key.replace('-', '_'): value for key, value in fields.items()})
    ask(server, '/short/a')
    time.sleep(1.1)  # its lifetime, a second, is what is tested
    ask(server, '/short/a')
    first = threading.Thread(target=ask, args=(server, '/lock/a?pair'))
    first.start()
    ask(server, '/lock/a?pair')
    first.join()
    return [name for name, *_ in MISSES] + ['stale', 'lock-timeout']


def test_each_miss_has_one_reason():
    with Folder() as folder, origin() as web, site(folder, web) as server, Viewer(server) as viewer:
        viewer.next('figures')
        wanted = miss_by_each_reason(server)
        names = reasons(server)
        equal(sorted(wanted), sorted(names.values()), 'there is a request for each reason')
        found = lambda: {names[id] for id in figures(server)['reasons']}
        until(f'all reasons; missing at first: {sorted(set(wanted) - found())}', lambda: set(wanted) <= found())
        counted = samples(ask(server, '/metrics').text)
        forwards = {'uri-miss', 'vary-miss', 'stale', 'bypass', 'method', 'partial-miss'}
        for name in sorted(set(wanted) - {'uncached'}):
            family = 'yorozu_cache_forwarded_total' if name in forwards else 'yorozu_cache_not_stored_total'
            label = name.replace('partial-miss', 'partial')
            assert counted[family, ('reason', label), ('zone', 'pages')] >= 1, name
        before = figures(server)['reasons']
        ask(server, '/new')
        ask(server, '/new')
        until('the hits', lambda: figures(server)['answers']['HIT'] >= 2)
        equal(figures(server)['reasons'], before, 'a hit has no reason')


def test_who_may_look_is_who_was_let_in():
    token = 'correct-horse-battery-staple'
    with Folder() as folder, origin() as web:
        (folder / 'token').write_text(token + '\n')
        status = lambda server, path='/console/figures', **more: ask(server, path, **more).status
        with site(folder, web) as server:
            equal(status(server), 200, 'this machine')
            equal(status(server, X_Forwarded_For='10.0.0.1'), 403, 'through a proxy')
            equal(status(server, host='evil.example'), 403, 'a name that was bound to this address')
            equal(status(server, host='site.example'), 200, 'a name of its own')
            equal(status(server, '/console/'), 200, 'the page itself')
            equal(status(server, '/console/nothing'), 404)
            equal(status(server, method='DELETE'), 405)
        with site(folder, web, f'token={folder}/token write=on') as server:
            equal(status(server), 403, 'without the token')
            equal(status(server, Authorization='Bearer ' + token), 200, 'with it')
            equal(status(server, Authorization='Bearer ' + token[:-1]), 403)
            login = lambda said, **more: ask(server, '/console/login', 'POST', said, Sec_Fetch_Site='same-origin', **more)
            equal(login('wrong').status, 403)
            answer = login(token)
            equal(answer.status, 204)
            cookie = answer.headers['Set-Cookie']
            assert token not in cookie and 'HttpOnly; SameSite=Strict; Path=/console/' in cookie, cookie
            cookie = cookie.split(';')[0]
            equal(status(server, Cookie=f'a=b; {cookie}'), 200, 'with the cookie')
            equal(status(server, Cookie=cookie[:-1]), 403)
            equal(login('x' * 70_000).status, 413, 'content without end')
            assert token not in server.log(), 'the log has the token'
            for query in ({'token': token}, {'access_token': token}, {'Authorization': f'Bearer {token}'}):
                equal(status(server, '/console/figures?' + urllib.parse.urlencode(query)), 403, 'a token in a URL')
        with site(folder, web, http=SITE.replace('location /console/', 'location /console')) as server:
            redirect = ask(server, '/console')
            equal((redirect.status, redirect.headers['Location']), (301, f'http://localhost:{server.port}/console/'))
        rules = SITE.replace('console @CONSOLE@;', 'console; allow 10.0.0.0/8; deny all;')
        with site(folder, web, http=rules) as server:
            equal(status(server), 403, 'allow and deny')
        (folder / 'short').write_text('short\n')
        for words, why in [(f'token={folder}/short', '16 are needed'), (f'token={folder}/none', 'cannot read the token'),
                           ('write=yes', 'invalid parameter'), ('write=on write=off', 'invalid parameter')]:
            said = refused(folder, words)
            assert why in said, said


def test_what_only_looks_like_this_machine_is_not():
    with Folder() as folder, origin() as web:
        proxied = SITE.replace('listen 127.0.0.1:$port', 'listen 127.0.0.1:$port proxy_protocol', 1)
        passes = '%s set_real_ip_from 127.0.0.1; real_ip_header proxy_protocol; location /console/'

        def through(server, line):
            with socket.create_connection(('127.0.0.1', server.port), 60) as connection:
                connection.sendall(f'{line}\r\nGET /console/figures HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n'.encode())
                return int(connection.makefile('rb').readline().split()[1])
        with site(folder, web, http=proxied, wait=False) as server:
            server.wait_for(lambda: listens(server.port))
            for line in ('PROXY TCP4 203.0.113.8 127.0.0.1 1 2', 'PROXY UNKNOWN'):
                equal(through(server, line), 403, line)
        for rule, wanted in [('deny 10.66.66.66;', 403), ('deny 10.66.66.66; allow 203.0.113.0/24;', 200)]:
            with site(folder, web, http=proxied.replace('location /console/', passes % rule), wait=False) as server:
                server.wait_for(lambda: listens(server.port))
                equal(through(server, 'PROXY TCP4 203.0.113.8 127.0.0.1 1 2'), wanted, rule)
        (folder / 'users').write_text('a:{PLAIN}a\n')
        either = f'; satisfy any; allow 127.0.0.1; deny all; auth_basic a; auth_basic_user_file {folder}/users'
        with site(folder, web, either) as server:
            equal([ask(server, '/console/figures', host=host).status for host in ('evil.example', 'site.example')], [403, 200])
        with site(folder, web, 'write=on') as server:
            # A proxy here that says nothing of whom it passes on.
            answer = ask(server, '/console/purge', 'POST', '{"all": true}', Authorization='Bearer anything')
            equal((answer.status, json.loads(ask(server, '/console/about').text)['write']), (403, False))
        with site(folder, web) as server:
            equal([ask(server, '/console/' + path, Sec_Fetch_Site='cross-site').status for path in ('events', 'explain')], [403, 403])


def refused(folder, words):
    conf = folder / 'refused.conf'
    conf.write_text(f'events {{}} http {{ server {{ listen {free_port()}; location / {{ console {words}; }} }} }}')
    done = subprocess.run([YOROZU, '-t', '-p', folder, '-c', conf], capture_output=True, text=True)
    assert done.returncode, done.stderr
    return done.stderr


def test_no_other_site_can_purge_through_a_browser():
    with Folder() as folder, origin() as web, site(folder, web, 'write=on; allow 127.0.0.1') as server:
        url = f'http://localhost:{server.port}/page'
        order = json.dumps({'urls': [url]})
        post = lambda path, body, **headers: ask(server, path, 'POST', body, **headers)
        ask(server, '/page')
        for headers in [{}, {'Sec_Fetch_Site': 'cross-site'}, {'Sec_Fetch_Site': 'same-site'}, {'Sec_Fetch_Site': 'none'},
                        {'Origin': 'http://evil.example'}, {'Origin': 'null'}, {'Origin': f'http://localhost:{server.port + 1}'},
                        {'Sec_Fetch_Site': 'cross-site', 'Origin': f'http://localhost:{server.port}'}]:
            for path, body in [('purge', order), ('warm', url)]:
                equal(post(f'/console/{path}', body, **headers).status, 403, headers)
        equal(ask(server, f'/console/purge?{urllib.parse.urlencode({"url": url})}').status, 405, 'a GET')
        equal(figures(server)['caches']['pages']['memory']['pages'], 1)
        own = {'Origin': f'http://localhost:{server.port}'}
        equal(json.loads(post('/console/purge', order, **own).text)['purged'], 1)
        equal(json.loads(post('/console/warm', url, **own).text), {'status': 200, 'cache': 'MISS'})
        equal(json.loads(post('/console/purge', order, Sec_Fetch_Site='same-origin').text)['purged'], 1)
        equal(post('/console/purge', '{"url": 1}', **own).status, 400)
        answer = post('/console/warm', url.partition('/page')[0].rstrip('/') + '/console/events', **own)
        assert answer.status == 400 and 'has no end' in answer.text, (answer.status, answer.text)
    with Folder() as folder, origin() as web, site(folder, web) as server:
        for path in ['purge', 'warm']:
            answer = ask(server, f'/console/{path}', 'POST', order, Sec_Fetch_Site='same-origin')
            equal(answer.status, 403, 'read-only')
            assert 'write=on' in answer.text, answer.text


def test_the_page_asks_for_nothing_elsewhere():
    with Folder() as folder, origin() as web, site(folder, web) as server:
        for name in ['', 'console.js', 'console.css', 'uPlot.js', 'uPlot.css', 'icon.svg', 'about', 'figures']:
            answer = ask(server, '/console/' + name)
            equal(answer.status, 200, name)
            policy = answer.headers['Content-Security-Policy']
            assert policy.startswith("default-src 'self';") and 'unsafe' not in policy, policy
            equal(answer.headers['X-Content-Type-Options'], 'nosniff')
        page = ask(server, '/console/').text
        for word in ['http://', 'https://www.yorozu', '<style', ' style=', ' onclick', '//cdn', 'innerHTML']:
            assert word not in page.replace('placeholder="https://www.example.com/page/"', ''), word
        script = ask(server, '/console/console.js').text
        for word in ['innerHTML', 'outerHTML', 'insertAdjacentHTML', 'document.write', 'eval(']:
            assert word not in script, word


def test_what_is_private_is_not_shown():
    with Folder() as folder, origin() as web:
        for words, shown in [('', '?…'), ('args=on', '?key=secret')]:
            with site(folder, web, words) as server, Viewer(server) as viewer:
                viewer.next('figures')
                ask(server, '/reset?key=secret', Cookie='session=hidden', Authorization='Basic aGlkZGVu')
                [line] = viewer.lines(1)
                equal((line['path'], line['args'], line['host']), ('/reset', shown, 'localhost'))
                text = json.dumps(line) + json.dumps(figures(server))
                assert 'hidden' not in text and 'aGlkZGVu' not in text and '127.0.0.1:1' not in json.dumps(line), text
                assert ('secret' in json.dumps(line)) == bool(words), line


def test_a_filter_and_purges_are_for_their_viewers():
    with Folder() as folder, origin() as web, site(folder, web, 'write=on; allow 127.0.0.1') as server:
        with Viewer(server, '/console/events?miss=1&uri=/a') as some, Viewer(server) as all_:
            some.next('figures'), all_.next('figures')
            for path in ['/a', '/a', '/b', '/a?h=Set-Cookie:a=b']:
                ask(server, path)
            equal([line['reason'][1] for line in some.lines(2)], ['uri-miss', 'set-cookie'])
            equal([line['cache'] for line in all_.lines(4)], ['MISS', 'HIT', 'MISS', 'MISS'])
            ask(server, '/console/purge', 'POST', json.dumps({'tags': ['home'], 'host': 'site.example', 'soft': True}),
                Sec_Fetch_Site='same-origin')
            [purge] = some.next('purges')
            equal({key: purge[key] for key in ('kind', 'what', 'pages', 'soft')},
                  {'kind': 'tag', 'what': 'site.example home', 'pages': 0, 'soft': True})
        for query in ['status=9', 'reason=none', 'slow=x', 'uri=' + 'x' * 300]:
            equal(ask(server, '/console/events?' + query).status, 400, query)


def test_places_are_sixteen_and_come_back():
    with Folder() as folder, origin() as web, site(folder, web) as server, contextlib.ExitStack() as open_:
        viewers = [open_.enter_context(Viewer(server)) for _ in range(16)]
        equal([viewer.status for viewer in viewers], [200] * 16)
        equal(Viewer(server).status, 503)
        equal(ask(server, '/console/events', 'HEAD').status, 503)
        # The control socket has its own.
        with Viewer(server, '/console/events', server.folder / 'pid.sock') as own:
            own.next('figures')
        viewers[0].socket.shutdown(socket.SHUT_RDWR)
        until('a free place', lambda: Viewer(server).status == 200)
    with Folder() as folder, origin() as web, site(folder, web) as server:
        # Who wants no content takes no place.
        equal([ask(server, '/console/events', 'HEAD').status for _ in range(40)], [200] * 40)
        with Viewer(server) as viewer:
            viewer.next('figures')


def test_a_viewer_that_reads_nothing_holds_up_no_request():
    with Folder() as folder, origin() as web, site(folder, web, main='worker_processes 2;') as server:
        with Viewer(server) as idle, Viewer(server, '/log/live', server.folder / 'pid.sock') as log, Viewer(server) as busy:
            busy.next('figures')
            before = server.allocated_bytes()
            connection = http.client.HTTPConnection('127.0.0.1', server.port, timeout=60)
            for number in range(5000):
                connection.request('GET', f'/{"x" * 400}?{number % 7}', headers={'Host': 'site.example'})
                equal(connection.getresponse().read(), b'page\n')
            left_out = shown = 0
            while not left_out:
                event = busy.next('requests')
                left_out, shown = left_out + event['left_out'], shown + len(event['lines'])
                assert len(event['lines']) <= 100, len(event['lines'])
            grown = server.allocated_bytes() - before
            assert grown < 8 << 20, f'{grown} bytes'
            equal((idle.status, log.status), (200, 200))


def test_a_viewer_that_reads_nothing_loses_its_place():
    http_ = SITE.replace('listen 127.0.0.1:$port;', 'listen 127.0.0.1:$port sndbuf=4k; send_timeout 1s;')
    with Folder() as folder, origin() as web, site(folder, web, http=http_) as server, contextlib.ExitStack() as open_:
        def is_refused():
            idle = open_.enter_context(socket.socket())
            idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            idle.connect(('127.0.0.1', server.port))
            idle.sendall(b'GET /console/events HTTP/1.0\r\nHost: localhost\r\n\r\n')
            return idle.recv(12) == b'HTTP/1.1 503'
        until('the last place to be taken', is_refused)
        until('a free place', lambda: ask(server, '/plain/' + 'x' * 400) and Viewer(server).status == 200)


def test_events_come_as_they_happen_also_compressed():
    http_ = SITE.replace('server {', 'gzip on; gzip_types *; gzip_min_length 1; server {', 1)
    with Folder() as folder, origin() as web, site(folder, web, http=http_) as server:
        connection = http.client.HTTPConnection('127.0.0.1', server.port, timeout=60)
        connection.request('GET', '/console/events', headers={'Host': 'localhost', 'Accept-Encoding': 'gzip'})
        answer = connection.getresponse()
        equal((answer.status, answer.headers['Content-Encoding']), (200, 'gzip'))
        unpack, text = zlib.decompressobj(31), ''
        for wanted in ('event: figures', '"path":"/first"', '"path":"/second"'):
            if 'path' in wanted:
                ask(server, json.loads(f'{{{wanted}}}')['path'])
            while wanted not in text:
                piece = answer.read1(65536)
                assert piece, f'the stream ended before {wanted}'
                text += unpack.decompress(piece).decode()
        connection.close()


def test_what_is_shown_of_many_requests_is_of_all_of_them():
    """Not the first of each second: with 2,000 requests in one write, those at its end come as well."""
    http = SITE.replace('server_name', 'keepalive_requests 10000; server_name')
    with Folder() as folder, origin() as web, site(folder, web, http=http, main='worker_processes 1;') as server:
        ask(server, '/a?first=1')
        with Viewer(server) as viewer:
            viewer.next('figures')
            count, found, left_out = 2000, [], 0
            lines = ''.join(f'GET /a?first=1 HTTP/1.1\r\nHost: n{number}.example\r\n{"Connection: close" if number == count - 1 else "X: y"}\r\n\r\n'
                            for number in range(count))
            with socket.create_connection(('127.0.0.1', server.port)) as connection:
                threading.Thread(target=connection.sendall, args=(lines.encode(),)).start()
                equal(connection.makefile('rb').read().count(b'HTTP/1.1 200 '), count)
            while len(found) + left_out < count:
                event = viewer.next('requests')
                found += [int(line['host'][1:].split('.')[0]) for line in event['lines']]
                left_out += event['left_out']
            assert len(found) >= 50, len(found)
            assert found == sorted(found) and sum(number >= count // 2 for number in found) >= 5, found


def test_ten_thousand_hosts_take_no_more_memory():
    with Folder() as folder, origin() as web, site(folder, web) as server, Viewer(server) as viewer:
        viewer.next('figures')
        def hosts(first, end, at_once=100):
            for start in range(first, end, at_once):
                all_ = [f'GET /gone/{number} HTTP/1.1\r\nHost: host-{number}.example\r\n' for number in range(start, start + at_once)]
                with socket.create_connection(('127.0.0.1', server.port)) as connection:
                    connection.sendall('\r\n'.join([*all_, '']).encode()[:-2] + b'Connection: close\r\n\r\n')
                    equal(connection.makefile('rb').read().count(b'HTTP/1.1 502 '), at_once)

        hosts(0, 1500)
        before = server.allocated_bytes()
        hosts(1500, 10_000)
        grown = server.allocated_bytes() - before
        assert grown < 4 << 20, f'{grown} bytes more after 10,000 hosts'
        found = figures(server)
        assert len(found['pages']) <= 20 and len(json.dumps(found)) < 16_000, len(json.dumps(found))


def test_an_open_stream_keeps_nothing_from_ending():
    with Folder() as folder, origin() as web, site(folder, web) as server:
        with Viewer(server) as viewer, Viewer(server, '/log/live', server.folder / 'pid.sock') as log:
            viewer.next('figures')
            os.kill(server.pid, signal.SIGHUP)
            viewer.reader.read()
            log.reader.read()
            until('the old configuration', lambda: 'configuration 1 released' in server.log())
        with Viewer(server) as viewer:
            viewer.next('figures')
            os.kill(server.pid, signal.SIGQUIT)
            viewer.reader.read()
            server.process.wait(60)


def test_figures_are_of_what_happened():
    with Folder() as folder, origin() as web, site(folder, web) as server, Viewer(server) as viewer:
        first = viewer.next('figures')
        for path in ['/a?wait=0.3', '/a?wait=0.3', '/plain/b?wait=0.2', '/plain/b?wait=0.2']:
            ask(server, path)
        while (now := viewer.next('figures'))['requests'] < 4:
            pass
        equal(now['requests'] - first['requests'], 4, 'its own requests are no figures')
        assert now['saved_ms'] >= 290, now['saved_ms']
        equal(sum(now['times']), 4)
        micros = [page['micros'] for page in now['pages']]
        equal(micros, sorted(micros, reverse=True), 'the dearest first')
        dear, cheap = sorted(now['pages'], key=lambda page: -page['requests'])
        equal([(page['path'], page['requests']) for page in (dear, cheap)], [('/plain/b', 2), ('/a', 1)])
        assert dear['micros'] >= 390_000, now['pages']
        [peer] = now['upstreams']['web']['peers']
        equal((peer['state'], peer['requests'], peer['answers']), ('up', 3, 3))
        assert peer['micros'] >= 690_000, peer
        ask(server, '/cookie?h=Set-Cookie:a=b')
        until('what must not be stored', lambda: figures(server)['unstorable'] == 1)
        names = reasons(server)
        equal({names[id]: count for id, count in now['reasons'].items()}, {'uri-miss': 1, 'uncached': 2})


def test_figures_begin_with_the_process():
    with Folder() as folder, origin() as web, site(folder, web) as server:
        before = 1000 * time.time()
        first = figures(server)['begun']
        assert first <= before, f'it began to count {first - before} ms after it was ready'
        equal(figures(server)['begun'], first)


def control(server, *words):
    return [YOROZU, '-p', f'{server.folder}/', '-c', server.folder / 'nginx.conf', *words]


def test_the_log_tells_why_and_goes_on_after_a_reload():
    with Folder() as folder, origin() as web, site(folder, web) as server:
        with subprocess.Popen(control(server, 'log', '--miss', '--host', 'site.example'), stdout=subprocess.PIPE, text=True) as log:
            def next_line(path, **more):
                # Until it watches nothing is told.
                until('a viewer', lambda: ask(server, path, host='site.example', **more) and select.select([log.stdout], [], [], .3)[0])
                return log.stdout.readline()

            line = next_line('/a%1b?h=Set-Cookie:a=b&key=secret')
            assert 'MISS' in line and 'set-cookie' in line and '/a%1b?…' in line and 'secret' not in line, line
            ask(server, '/a', host='localhost')
            os.kill(server.pid, signal.SIGHUP)
            until('the reload', lambda: 'configuration 1 released' in server.log())
            line = next_line('/plain/b')
            while '/plain/b' not in line:
                line = log.stdout.readline()
            assert 'uncached' in line and 'localhost' not in line, line
            log.kill()
        wrong = subprocess.run(control(server, 'log', '--reason', 'none'), capture_output=True, text=True)
        assert wrong.returncode == 2 and 'invalid --reason "none"' in wrong.stderr, wrong


@pytest.mark.skipif(not shutil.which('tmux'), reason='tmux is not there')
def test_top_shows_resizes_and_leaves_the_terminal_as_it_was():
    with Folder() as folder, origin() as web, site(folder, web) as server:
        tmux = lambda *words: subprocess.run(['tmux', '-S', folder / 'tmux', '-f', '/dev/null', *words], check=True,
                                             capture_output=True, text=True, env=os.environ | {'TERM': 'screen'}).stdout
        screen = lambda: tmux('capture-pane', '-p', '-t', 'top')
        top = ' '.join(map(str, control(server, 'top')))
        tmux('new-session', '-d', '-s', 'top', '-x', '110', '-y', '40', 'sh')
        try:
            for key in ['q', 'C-c']:
                tmux('send-keys', '-t', 'top', f'echo before; stty -a | grep -o .icanon; {top}; echo after $?; stty -a | grep -o .icanon', 'Enter')
                until('the figures', lambda: 'WHY REQUESTS MISSED THE CACHE' in screen())
                for path in ['/a', '/a', '/plain/dear?wait=0.1']:
                    ask(server, path, host='site.example')
                until('what is dear', lambda: 'site.example/plain/dear' in screen() and 'No cache here' in screen())
                tmux('resize-window', '-t', 'top', '-x', '60', '-y', '12')
                until('twelve rows', lambda: len(screen().rstrip('\n').split('\n')) <= 12 and 'yorozu top' in screen())
                assert all(len(line) <= 60 for line in screen().split('\n')), screen()
                tmux('resize-window', '-t', 'top', '-x', '110', '-y', '50')
                until('fifty rows', lambda: 'UPSTREAMS' in screen() and 'PURGES' in screen())
                # A reload does not end it.
                released = server.log().count('released')
                os.kill(server.pid, signal.SIGHUP)
                until('the reload', lambda: server.log().count('released') > released)
                purge = control(server, 'purge', '--host', 'site.example', '--tag', f'after-{key}')
                until('a purge after the reload', lambda: subprocess.run(purge, check=True, capture_output=True) and
                      f'tag site.example after-{key}: 0 stored' in screen())
                tmux('send-keys', '-t', 'top', key)
                until('the end', lambda: 'after 0' in screen() and screen().count('icanon') >= 2)
                assert '-icanon' not in screen() and 'WHY REQUESTS' not in screen(), screen()
                tmux('send-keys', '-t', 'top', 'clear', 'Enter')
                until('an empty screen', lambda: 'after' not in screen())
        finally:
            tmux('kill-server')
    refused = subprocess.run([YOROZU, 'top'], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert refused.returncode and 'needs a terminal' in refused.stderr, refused


# Text whose contrast with what is behind it is below 4.5 (WCAG 2, 1.4.3).
CONTRASTS = '''
    const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => [r, g, b].map(c => c / 255).map(c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
        .reduce((sum, c, at) => sum + c * [.2126, .7152, .0722][at], 0);
    const behind = one => {
        for (; one; one = one.parentElement) {
            const found = numbers(getComputedStyle(one).backgroundColor);
            if (found.length === 3 || found[3] === 1) return light(found);
        }
        return 1;
    };
    return [...document.querySelectorAll('body *')].filter(one => one.checkVisibility() && !one.closest('.hidden, .skip')
        && [...one.childNodes].some(child => child.nodeType === 3 && child.textContent.trim())).map(one => {
        const [a, b] = [light(numbers(getComputedStyle(one).color)), behind(one)];
        const contrast = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
        return contrast < 4.5 ? `${one.outerHTML.slice(0, 80)} ${contrast.toFixed(2)}` : null;
    }).filter(Boolean);'''


def with_keys_alone(chromium, title, url):
    """From the top of the page: the order of Tab is that of the page; a reason and a question by Enter, pause by the space bar."""
    focus = lambda: chromium.run("const one = document.activeElement; return one === document.body ? '' : one.id || one.textContent.trim()")
    chromium.run('document.activeElement.blur(); scrollTo(0, 0)')
    order = chromium.run("""return [...document.querySelectorAll('a[href], button, input, select, [tabindex="0"]')].filter(one => one.checkVisibility())
        .map(one => one.id || one.textContent.trim())""")
    for name in ['span', 'theme', title, 'url', 'Explain', 'purge', 'warm', 'f-miss', 'f-reason', 'Filter', 'pause']:
        assert name in order, f'{name} cannot be reached'
    visited = []
    while len(visited) < 20:
        chromium.press(TAB)
        visited.append(focus())
        seen = chromium.run("""const one = document.activeElement, style = getComputedStyle(one);
            return one.matches(':focus-visible') && (style.outlineStyle !== 'none' && style.outlineWidth !== '0px' || one.matches('.skip'))""")
        assert seen, f'the focus is not seen on {visited[-1]}'
    equal(visited, order[:20], 'the order of Tab')

    def go_to(name):
        for _ in order:
            if focus() == name:
                return
            chromium.press(TAB)
        raise AssertionError(f'Tab does not lead to {name}')
    chromium.run('document.activeElement.blur()')
    go_to(title)
    chromium.press(ENTER)
    chromium.wait(lambda: chromium.run("return document.getElementById('f-reason').value") == 'set-cookie', 'the filter')
    equal(focus(), title, 'the focus stays')
    go_to('pause')
    for is_paused in ('true', 'false'):
        chromium.press(SPACE)
        equal(chromium.run("return document.getElementById('pause').getAttribute('aria-pressed')"), is_paused)
    chromium.run("document.activeElement.blur(); scrollTo(0, 0)")
    go_to('url')
    chromium.press(*url, ENTER)
    chromium.wait(lambda: 'the stored page (HIT)' in chromium.text('#explained'), 'what explain says')
    # Who does not see the page is told what comes of it: these are there before their text.
    equal(chromium.run("return ['answer', 'state'].map(id => document.getElementById(id).getAttribute('role'))"), ['status', 'status'])


HOSTILE = '/<img src=x onerror=document.title=1>"\'&amp;%0a/\u202e'


@in_a_browser
def test_the_page_shows_each_reason_in_a_browser():
    with Folder() as folder, origin() as web, site(folder, web, 'write=on; allow 127.0.0.1') as server, browser() as chromium:
        base = f'http://localhost:{server.port}'
        chromium.open(base + '/console/')
        chromium.wait(lambda: chromium.text('#state') == 'live', 'the figures')
        wanted = miss_by_each_reason(server)
        about = {one['name']: one['title'] for one in json.loads(ask(server, '/console/about').text)['reasons']}
        shown = lambda: chromium.run("return [...document.querySelectorAll('#reasons button')].map(one => one.textContent)")
        chromium.wait(lambda: {about[name] for name in wanted} <= set(shown()), 'each reason')
        log = lambda: chromium.run("return [...document.querySelectorAll('#log tbody tr')].map(row => row.textContent).join('\\n')")
        for name in wanted:
            assert about[name] in log(), f'{name} is not in the log'
        # What a URL holds stays text.
        ask(server, urllib.parse.quote(HOSTILE, safe="/<>=\"'&;%"))
        chromium.wait(lambda: 'onerror' in log(), 'the hostile URL')
        equal(chromium.run('return document.title'), 'yorozu console')
        equal(chromium.run("return document.querySelectorAll('main img').length"), 0)
        with_keys_alone(chromium, about['set-cookie'], f'{base}/new')
        chromium.wait(lambda: chromium.text('#state') == 'live', 'the stream')
        chromium.run("document.getElementById('url').value = ''")
        chromium.type('#url', f'{base}/new')
        chromium.click('#ask button')
        chromium.wait(lambda: 'the stored page (HIT)' in chromium.text('#explained'), 'what explain says')
        chromium.click('#purge')
        chromium.wait(lambda: chromium.text('#answer') == '1 page purged', 'the purge')
        chromium.wait(lambda: '1 page' in chromium.text('#purges'), 'the purge as it comes')
        chromium.click('#warm')
        chromium.wait(lambda: chromium.text('#answer') == 'status 200, MISS', 'the warming')
        chromium.wait(lambda: chromium.run("return document.querySelectorAll('.uplot canvas').length") == 2, 'the charts')
        unnamed = chromium.run('''return [...document.querySelectorAll('button, input, select, a, meter, [role=img]')].filter(one =>
            !(one.textContent.trim() || one.getAttribute('aria-label') || one.labels?.length)).map(one => one.outerHTML)''')
        equal(unnamed, [], 'without a name for screen readers')
        # The last is WCAG's, 1.4.10.
        for width in (1280, 390, 320):
            chromium.resize(width, 900)
            for theme in ('light', 'dark'):
                chromium.run('dress(arguments[0])', theme)
                wide = chromium.run('const page = document.documentElement; return [innerWidth, page.scrollWidth - page.clientWidth]')
                equal(wide, [width, 0], f'wider than the window, {theme}')
                equal(chromium.run(CONTRASTS), [], f'text that is hard to read: {width}, {theme}')
        # A server that comes back is watched again.
        os.kill(server.pid, signal.SIGHUP)
        until('the reload', lambda: 'configuration 1 released' in server.log())
        chromium.wait(lambda: chromium.text('#state') == 'live', 'the stream after a reload')


@in_a_browser
def test_the_page_shows_what_came_before_it_and_a_page_by_its_link_in_a_browser():
    with Folder() as folder, origin() as web, site(folder, web) as server, browser() as chromium:
        for path in ('/a', '/a', '/a', '/none/a'):
            ask(server, path)

        def counted(rows, *name):
            history = json.loads(ask(server, '/console/history').text)
            return sum(count for _, counts in history[rows] for column, count in counts if history['columns'][column] == [*name])
        until('the seconds', lambda: (counted('seconds', 'requests'), counted('seconds', 'answers', 'HIT')) == (4, 2))
        assert counted('minutes', 'requests') > 0, 'the minute'
        url = f'http://localhost:{server.port}/a'
        chromium.open(f'http://localhost:{server.port}/console/#' + urllib.parse.urlencode({'url': url}))
        chromium.wait(lambda: 'the stored page (HIT)' in chromium.text('#explained'), 'the page that the link names')
        explained = chromium.text('#explained')
        assert 'last miss' in explained and 's ago: uri-miss' in explained, explained
        chromium.wait(lambda: chromium.run('return past.length > 1'), 'the figures')
        # What the chart has for the time before: the hits, which came in one second or two, and nothing before that.
        hits = chromium.run("return past.filter(one => one.shown && !one.times).map(one => one.shown.hits)")
        assert 0 < sum(hits) <= 4 and chromium.run('return past[0].requests') == 0, hits
        # A hit every ten seconds, for three hours: what is kept of it has the same rate.
        rates = chromium.run('''
            const begun = 1e12, at = second => ({ now: begun + 1000 * second, begun, requests: second / 10, saved_ms: 0, unstorable: 0, answers: { HIT: second / 10 }, reasons: {}, times: null });
            past = [];
            for (let second = 0; second < 3 * 3600; second += 10) add(past, at(second));
            thin(past[past.length - 1].now);
            return past.slice(1).map(one => one.shown.hits)''')
        assert 360 + 110 < len(rates) < 360 + 130 and all(abs(rate - .1) < .001 for rate in rates), (len(rates), min(rates), max(rates))


@in_a_browser
def test_the_page_shows_evictions_by_cause_in_a_browser():
    with Folder() as folder, origin() as web, site(folder, web, http=evicting(web)) as server, browser() as chromium:
        evict(server)
        chromium.open(f'http://localhost:{server.port}/console/')
        rows = lambda: chromium.run("return [...document.querySelectorAll('#zones tbody tr')].map(row => [row.cells[0].textContent, row.cells[4].textContent])")
        chromium.wait(lambda: {name for name, evicted in rows() if evicted.startswith(f'{name} ')} == set(EVICTING), 'each cause')
        found = figures(server)['caches']
        assert found['memory']['memory']['bytes'] > 64 << 10, 'pages were pushed out though there was room'
        equal(dict(rows())['memory'], f"memory {found['memory']['evicted']['memory']}")


@in_a_browser
def test_the_page_asks_for_the_token_in_a_browser():
    token = 'correct-horse-battery-staple'
    with Folder() as folder, origin() as web:
        (folder / 'token').write_text(token)
        with site(folder, web, f'token={folder}/token') as server, browser() as chromium:
            base = f'http://localhost:{server.port}/console/'
            chromium.open(base)
            chromium.wait(lambda: not chromium.run("return document.getElementById('login').hidden"), 'the question')
            chromium.type('#token', 'wrong')
            chromium.click('#login button')
            chromium.wait(lambda: 'wrong' in chromium.text('#login-problem'), 'the refusal')
            chromium.open('about:blank')
            chromium.open(f'{base}#token={token}')
            chromium.wait(lambda: chromium.text('#state') == 'live', 'the figures')
            equal(chromium.url(), base)
            equal(chromium.run("return document.getElementById('purge').hidden"), True, 'read-only')
            assert token not in server.log()


@contextlib.contextmanager
def browser():
    chromium = Browser()
    try:
        yield chromium
    finally:
        chromium.close()
