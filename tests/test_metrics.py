"""Metrics: what is counted is what happened, bounded, in forms that Prometheus itself reads."""
import http.client, http.server, json, re, shutil, socket, subprocess, threading, time, urllib.parse
import pytest
from monitoring import CACHED, EVICTING, evict, evicting, get, origin, samples, site
from peers import ROOT, YOROZU, Folder, Process, equal, free_port, listens, until

PROMETHEUS, PROMTOOL, EXPORTER = map(shutil.which, ('prometheus', 'promtool', 'prometheus-nginx-exporter'))


class Figures:
    """The metrics at a moment."""

    def __init__(self, server):
        self.found = samples(get(server, '/metrics').text)

    def __call__(self, metric, /, **labels):
        return self.found.get((metric, *sorted(labels.items())), 0)

    def sum(self, metric, /, **labels):
        wanted = set(labels.items())
        return sum(value for (found, *pairs), value in self.found.items() if found == metric and wanted <= set(pairs))


def checked(text):
    """Prometheus' own checker finds nothing wrong with a report, nor are there two samples of one series, which it does not look for."""
    assert PROMTOOL, 'promtool is missing: it is in the package prometheus'
    done = subprocess.run([PROMTOOL, 'check', 'metrics'], input=text, text=True, capture_output=True)
    assert done.returncode == 0, f'{done.stdout}{done.stderr}{text}'
    return samples(text)


def logged(server, count):
    """A request is counted when its answer was sent: all are, once this many are. Scrapes are in no location's zone."""
    until(f'{count} requests', lambda: Figures(server).sum('yorozu_location_requests_total') >= count)


def test_what_the_cache_does_is_counted_by_reason():
    with Folder() as folder, origin() as web, site(folder, web) as server:
        load = ['/a?wait=0.3', '/a', '/a', '/b?h=Set-Cookie:a=b', '/c?h=Cache-Control:no-store', '/a?bypass=1']
        begun = time.monotonic()
        statuses = [get(server, path).headers.get('X-Cache') for path in load]
        equal(statuses, ['MISS', 'HIT', 'HIT', 'MISS', 'MISS', 'BYPASS'])
        get(server, '/a', 'POST')
        # The answer to the bypass took the page's place.
        equal(get(server, '/a').headers['X-Cache'], 'HIT')
        get(server, '/a', 'PURGE')
        logged(server, 9)
        figures = Figures(server)
        responses = lambda status: figures('yorozu_cache_responses_total', zone='pages', status=status)
        equal([responses(word) for word in ('hit', 'miss', 'bypass', 'stale')], [3, 3, 1, 0])
        forwarded = lambda reason: figures('yorozu_cache_forwarded_total', zone='pages', reason=reason)
        equal([forwarded(word) for word in ('uri-miss', 'bypass', 'method', 'stale')], [3, 1, 1, 0])
        not_stored = lambda reason: figures('yorozu_cache_not_stored_total', zone='pages', reason=reason)
        equal([not_stored(word) for word in ('set-cookie', 'no-store', 'vary')], [1, 1, 0])
        equal(figures('yorozu_purges_total', zone='pages', kind='page'), 1)
        equal(figures('yorozu_purged_pages_total', zone='pages'), 1)
        # Each hit saves what the page took to be made.
        assert 0.6 <= figures('yorozu_saved_seconds_total', zone='pages') <= 3 * (time.monotonic() - begun)
        equal(figures('yorozu_upstream_requests_total', upstream='web'), 5)
        equal(figures('yorozu_upstream_seconds_count', upstream='web'), 5)
        assert figures('yorozu_upstream_seconds_sum', upstream='web') >= 0.3
        equal(figures('yorozu_upstream_seconds_bucket', upstream='web', le='+Inf'), 5)
        assert figures('yorozu_upstream_seconds_bucket', upstream='web', le='0.25') < 5
        equal(figures('yorozu_request_seconds_count', zone='site.example', cache='hit'), 3)
        equal(figures('yorozu_location_request_seconds_count', zone='pages', cache='miss'), 3)


def test_what_must_not_be_stored_is_no_miss_of_the_cache():
    """The ratio of what could be stored: passes are left out once, also where their answers say no-store."""
    with Folder() as folder, origin() as web, site(folder, web) as server:
        for path in ('/a', '/a', '/b?h=Set-Cookie:a=b', '/c?h=Cache-Control:private', '/a?bypass=1&h=Cache-Control:no-store'):
            get(server, path)
        logged(server, 5)
        figures = Figures(server)
        equal(figures('yorozu_cache_unstorable_total', zone='pages'), 2)
        equal(figures.sum('yorozu_cache_not_stored_total', zone='pages'), 3)
        document = (ROOT / 'docs/metrics.md').read_text()
        assert '- sum(rate(yorozu_cache_unstorable_total' in document
        able = figures.sum('yorozu_cache_responses_total') - figures('yorozu_cache_responses_total', zone='pages', status='bypass') - 2
        equal((figures('yorozu_cache_responses_total', zone='pages', status='hit'), able), (1, 2))


def test_purges_are_counted_by_what_they_name():
    with Folder() as folder, origin() as web, site(folder, web) as server:
        purge = lambda *words: subprocess.run([YOROZU, '-p', server.folder, '-c', server.folder / 'nginx.conf', 'purge', *words],
                                              check=True, capture_output=True)
        counted = lambda: {kind: Figures(server)('yorozu_purges_total', zone='pages', kind=kind) for kind in ('page', 'prefix', 'tag', 'all')}
        get(server, '/a')
        equal(get(server, '/a', 'PURGE').status, 200)
        purge('--host', 'site.example', '--tag', 'a')
        purge(f'http://site.example:{server.port}/*')
        purge('--all')
        equal(counted(), {'page': 1, 'prefix': 1, 'tag': 1, 'all': 1})


def test_pages_that_go_are_counted_by_cause():
    with Folder() as folder, origin() as web, site(folder, web, evicting(web)) as server:
        evict(server)

        def evicted():
            found = {name: {} for name in EVICTING}
            for (metric, *labels), value in Figures(server).found.items():
                if metric == 'yorozu_cache_evicted_total':
                    found[dict(labels)['zone']][dict(labels)['cause']] = value
            return found
        until('each cause', lambda: all(causes[name] for name, causes in evicted().items()))
        found = evicted()
        for name, causes in found.items():
            equal(set(causes), set(EVICTING), 'all causes are there')
            others = {cause for cause, count in causes.items() if count} - {name}
            equal(others, set(), f'other causes in {found}')
        api, console = (json.loads(get(server, path).text) for path in ('/api/9/http/caches', '/console/figures'))
        equal({name: zone['yorozu']['evicted'] for name, zone in api.items()}, found)
        equal({name: zone['evicted'] for name, zone in console['caches'].items()},
              {name: {name: causes[name]} for name, causes in found.items()})


def test_a_page_that_is_made_again_is_not_evicted():
    conf = CACHED.replace('$arg_bypass', '1')
    with Folder() as folder, origin() as web, site(folder, web, conf) as server:
        for _ in range(20):
            equal(get(server, '/a').headers['X-Cache'], 'BYPASS')
        logged(server, 20)
        until('one stored page', lambda: Figures(server)('yorozu_cache_entries', zone='pages', tier='disk') == 1)
        figures = Figures(server)
        equal(figures('yorozu_cache_stored_total', zone='pages'), 20)
        equal(figures.sum('yorozu_cache_evicted_total'), 0)


def test_saved_time_is_said_and_kept_over_a_restart():
    with Folder() as folder, origin() as web, site(folder, web) as server:
        equal(get(server, '/a?wait=0.3').headers.get('X-Saved'), None)
        saved = get(server, '/a').headers['X-Saved']
        assert re.fullmatch(r'0\.[3-9]\d\d|[1-9]\d*\.\d{3}', saved), saved
        until('a file', lambda: any(path.is_file() and 'yorozu' not in path.name for path in (server.folder / 'cache').rglob('*')))
        server.stop()
        server.start()
        server.wait_for(lambda: listens(server.port) and get(server, '/a').headers['X-Cache'] == 'HIT')
        equal(get(server, '/a').headers['X-Saved'], saved)
        logged(server, 2)
        assert Figures(server)('yorozu_saved_seconds_total', zone='pages') >= 0.6


def test_who_waits_for_a_page_is_counted():
    with Folder() as folder, origin() as web, site(folder, web) as server:
        threads = [threading.Thread(target=get, args=(server, '/a?wait=1')) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        logged(server, 5)
        figures = Figures(server)
        equal(figures('yorozu_cache_collapsed_total', zone='pages'), 4)
        equal(figures('yorozu_cache_forwarded_total', zone='pages', reason='uri-miss'), 1)


def test_renewals_in_the_background_are_counted():
    conf = CACHED.replace('proxy_cache_valid 200 1h;', '''proxy_cache_valid 200 1s; proxy_cache_use_stale updating;
        proxy_cache_background_update on; proxy_ignore_headers Cache-Control;''')
    with Folder() as folder, origin() as web, site(folder, web, conf) as server:
        get(server, '/a')
        until('a stale answer', lambda: get(server, '/a').headers['X-Cache'] == 'STALE')
        until('its renewal', lambda: Figures(server)('yorozu_cache_refreshes_total', zone='pages') >= 1)
        equal(Figures(server)('yorozu_cache_forwarded_total', zone='pages', reason='stale') >= 1, True)


def test_a_connection_that_leaves_http_has_no_time():
    with Folder() as folder, origin() as web, site(folder, web) as server:
        with socket.create_connection(('127.0.0.1', server.port)) as client:
            client.sendall(b'GET /a?upgrade=1 HTTP/1.1\r\nHost: site.example\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n')
            assert client.recv(1000).startswith(b'HTTP/1.1 101'), 'no tunnel'
        logged(server, 1)
        figures = Figures(server)
        equal(figures('yorozu_requests_total', zone='site.example', status='1xx'), 1)
        equal(figures.sum('yorozu_location_request_seconds_count', zone='pages'), 0)


def test_only_a_final_answer_is_one():
    with Folder() as folder, origin() as web, site(folder, web) as server:
        with socket.create_connection(('127.0.0.1', server.port), 60) as client:
            client.sendall(b'POST /a HTTP/1.1\r\nHost: site.example\r\nContent-Length: 1\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n')
            reader = client.makefile('rb')
            assert reader.readline().startswith(b'HTTP/1.1 100 '), 'not asked to go on'
            client.sendall(b'x')
            assert b'\nHTTP/1.1 200 ' in reader.read(), 'no answer'
        logged(server, 1)
        figures = Figures(server)
        equal([figures('yorozu_location_requests_total', zone='pages', status=status) for status in ('1xx', '2xx')], [0, 1])
        equal(figures.sum('yorozu_location_request_seconds_count', zone='pages'), 1)


def test_both_formats_are_valid():
    with Folder() as folder, origin() as web, site(folder, web) as server:
        for path in ('/a', '/a', '/b?status=404', '/c?h=Set-Cookie:a=b'):
            get(server, path)
        logged(server, 4)
        text = get(server, '/metrics')
        equal(text.headers['Content-Type'], 'text/plain; version=0.0.4; charset=utf-8')
        checked(text.text)
        checked(get(server, '/status/format/prometheus').text)
        accept = 'application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1'
        opened = get(server, '/metrics', Accept=accept)
        equal(opened.headers['Content-Type'], 'application/openmetrics-text; version=1.0.0; charset=utf-8')
        assert opened.text.endswith('# EOF\n') and '# TYPE yorozu_requests counter\n' in opened.text
        equal(get(server, '/metrics', 'POST').status, 405)
        equal(get(server, '/metrics', 'HEAD').status, 200)


def test_hostile_names_stay_labels():
    conf = '''server { listen 127.0.0.1:$port; status_zone $http_x_zone; location / { status_zone all; return 204; }
        location /metrics { status_zone off; prometheus all; } location /api { status_zone off; api; } location /status { vhost_traffic_status_display; } }'''
    with Folder() as folder, site(folder, 0, conf) as server:
        names = ['a"b', 'a\\', 'a\\"} 1', '<script>', 'x' * 256, 'y' * 300, '\xe9', '\xe8', 'x' * 255 + 'y', 'x' * 254 + '\xc3', '{zone="a"}']
        for name in names:
            get(server, '/', X_Zone=name)
        logged(server, len(names))
        text = get(server, '/metrics').text
        checked(text)
        zones = {dict(key[1:])['zone'] for key in samples(text) if key[0] == 'yorozu_sent_bytes_total' and len(key) > 1}
        assert {'a\\"b', 'a\\\\', '<script>', 'other'} <= zones, zones
        assert all(len(zone) <= 256 for zone in zones)
        equal(Figures(server)('yorozu_requests_total', zone='other', status='2xx'), 4, 'too long, and not UTF-8')
        equal(len(json.loads(get(server, '/api/9/http/server_zones').text)), len(names) - 4 + 1)
        page = get(server, '/status').text
        assert '<script>' not in page and '&lt;script>' in page


def test_long_and_hostile_names_of_the_configuration_are_labels_of_their_own():
    long, odd = 'z' * 300, r'q\"u\\o<b>' + '\n'
    upstreams = ''.join(f'upstream {long}{end} {{ server 127.0.0.1:@WEB@; }}' for end in 'ab')
    zones = ''.join(f'proxy_cache_path $dir/cache/{at} "keys_zone={name}:1m";' for at, name in enumerate((f'{long}a', f'{long}b', odd)))
    places = ''.join(f'location /{at} {{ status_zone "{name}"; proxy_pass http://{long}{at}; proxy_cache "{name}"; }}'
                     for at, name in (('a', f'{long}a'), ('b', f'{long}b')))
    conf = f'''{upstreams} {zones} server {{ listen 127.0.0.1:$port; server_name site.example; status_zone "{odd}"; {places}
        location /odd {{ proxy_pass http://127.0.0.1:@WEB@; proxy_cache "{odd}"; }}
        location /metrics {{ prometheus all; }} location /api {{ api; }} }}'''
    with Folder() as folder, origin() as web, site(folder, web, conf) as server:
        for path in ('/a', '/b', '/b', '/odd'):
            equal(get(server, path).status, 200)
        until('all of them', lambda: sum(value for (name, *_), value in checked(get(server, '/metrics').text).items()
                                         if name == 'yorozu_cache_responses_total') == 4)
        found = checked(get(server, '/metrics').text)
        counts = {dict(labels)['upstream']: value for (name, *labels), value in found.items() if name == 'yorozu_upstream_requests_total'}
        of_long = sorted((name, count) for name, count in counts.items() if name.startswith(long[:256] + '…'))
        equal(sorted(count for _, count in of_long), [1, 2])
        assert all(len(name.encode()) < 300 for name in counts), counts
        shown = r'q\"u\\o<b>\n'
        equal(found['yorozu_requests_total', ('status', '2xx'), ('zone', shown)] >= 4, True)
        equal([(len(json.loads(get(server, path).text)), get(server, path + '/' + urllib.parse.quote(name)).status)
               for path, name in (('/api/9/http/caches', 'q"u\\o<b>\n'), ('/api/9/http/upstreams', f'{long}b'))], [(3, 200), (2, 200)])


def test_whoever_asks_however_gets_an_answer_that_fits():
    with Folder() as folder, origin() as web, site(folder, web, CACHED.replace('server {', 'gzip on; gzip_types *; gzip_min_length 1; server {', 1)) as server:
        for path in ('/metrics', '/api/9/nginx', '/api/9/http/caches/pages', '/status', '/status/format/json', '/status/format/prometheus'):
            whole = get(server, path)
            equal(whole.status, 200, path)
            head = get(server, path, 'HEAD')
            equal((head.status, head.text, head.headers['Content-Type']), (200, '', whole.headers['Content-Type']), path)
            for method in ('POST', 'PUT', 'DELETE', 'OPTIONS'):
                equal(get(server, path, method).status, 405, f'{method} {path}')
            # They change all the time and have no validators: only what any answer fits is answered by its head alone.
            equal([get(server, path, **field).status for field in ({'If_None_Match': '"a"'}, {'If_None_Match': '*'}, {'Range': 'bytes=0-3'},
                   {'If_Modified_Since': 'Fri, 01 Jan 2100 00:00:00 GMT'})], [200, 304, 200, 200], path)
            assert 'ETag' not in whole.headers and 'Last-Modified' not in whole.headers
            done = subprocess.run(['curl', '-s', '--compressed', '-H', 'Host: site.example', f'http://127.0.0.1:{server.port}{path}'], capture_output=True)
            equal(done.stdout[:20], whole.text.encode()[:20], path)


def test_clients_of_nginxs_api_and_of_stub_status_understand_it():
    """nginx's own exporter, in both of its ways."""
    if not EXPORTER:
        pytest.skip('prometheus-nginx-exporter is not there')
    conf = CACHED.replace('location /metrics', 'location /stub { stub_status; } location /metrics', 1)
    with Folder() as folder, origin() as web, site(folder, web, conf) as server:
        for path in ('/a', '/a', '/b?status=404'):
            get(server, path)
        logged(server, 3)
        for words, wanted in [(('-nginx.scrape-uri', f'http://127.0.0.1:{server.port}/stub'), {'nginx_up': 1}),
                              (('-nginx.plus', '-nginx.scrape-uri', f'http://127.0.0.1:{server.port}/api'), {
                                  'nginxplus_up': 1, 'nginxplus_server_zone_responses{code="4xx",server_zone="site.example"}': 1,
                                  'nginxplus_location_zone_requests{location_zone="pages"}': 3,
                                  f'nginxplus_upstream_server_requests{{server="127.0.0.1:{web}",upstream="web"}}': 2})]:
            port = free_port()
            with Process([EXPORTER, *words, '-web.listen-address', f'127.0.0.1:{port}'], folder / f'exporter-{port}.out') as exporter:
                exporter.wait_for(lambda: listens(port))
                connection = http.client.HTTPConnection('127.0.0.1', port, timeout=60)
                connection.request('GET', '/metrics')
                text = connection.getresponse().read().decode()
                found = dict(line.rsplit(' ', 1) for line in text.splitlines() if not line.startswith('#'))
                equal({name: float(found.get(name, 'nan')) for name in wanted}, wanted, f'{text}{exporter.out.read_text()}')
                # What it calls its metrics we call them, too.
                names = {name for name in found if name.startswith('nginx_')}
                assert names <= {name for name, *_ in samples(get(server, '/metrics').text)}, names


def test_an_address_that_is_there_twice_is_one_peer():
    conf = CACHED.replace('server 127.0.0.1:@WEB@;', 'server 127.0.0.1:@WEB@; server 127.0.0.1:@WEB@ down; server 127.0.0.1:@WEB@ backup;')
    with Folder() as folder, origin() as web, site(folder, web, conf) as server:
        # Samples that are there twice fail where they are read.
        figures = Figures(server)
        peer = f'127.0.0.1:{web}'
        equal([figures(f'yorozu_upstream_peer_{what}', upstream='web', peer=peer) for what in ('up', 'active')], [1, 0])
        equal(len(json.loads(get(server, '/api/9/http/upstreams/web').text)['peers']), 3)


def test_a_zone_of_the_host_is_that_of_each_request():
    conf = '''server { listen 127.0.0.1:$port; server_name first.example; status_zone $host; location / { status_zone all; return 204; }
        location /metrics { status_zone off; prometheus all; } }'''
    with Folder() as folder, site(folder, 0, conf) as server:
        for host in ('a.example', 'A.example:80', 'b.example', 'a.example'):
            get(server, '/', Host=host)
        with socket.create_connection(('127.0.0.1', server.port)) as client:
            client.sendall(b'GET / HTTP/1.0\r\n\r\n')
            assert b' 204 ' in client.recv(1000)
        logged(server, 5)
        figures = Figures(server)
        count = lambda zone: figures('yorozu_requests_total', zone=zone, status='2xx')
        # Without a host it is that of the server.
        equal([count(zone) for zone in ('a.example', 'b.example', 'first.example')], [3, 1, 1])


def test_ten_thousand_hosts_take_no_more_memory():
    conf = '''status_zone_limit 20; server { listen 127.0.0.1:$port; keepalive_requests 100000; status_zone $http_x_zone;
        location / { status_zone $http_x_zone; return 204; } location /metrics { status_zone off; prometheus all; } }'''
    with Folder() as folder, site(folder, 0, conf, main='worker_processes 1;') as server:
        connection = http.client.HTTPConnection('127.0.0.1', server.port, timeout=60)

        def ask(numbers):
            for number in numbers:
                connection.request('GET', '/', headers={'Host': f'h{number}.example', 'X-Zone': f'h{number}.example'})
                connection.getresponse().read()
        ask(range(1000))
        before = server.allocated_bytes()
        ask(range(1000, 11000))
        grown = server.allocated_bytes() - before
        assert grown < 256 * 1024, f'{grown} bytes more'
        logged(server, 11000)
        figures = Figures(server)
        equal(figures('yorozu_requests_total', zone='other', status='2xx'), 11000 - 20)
        zones = {dict(key[1:]).get('zone') for key in figures.found if key[0] == 'yorozu_requests_total'}
        # 20, the rest, and what has no zone.
        assert len(zones) <= 22, zones


def test_a_reload_and_more_workers_count_on():
    with Folder() as folder, origin() as web, site(folder, web, main='worker_processes 2;') as server:
        for _ in range(20):
            get(server, '/a')
        logged(server, 20)
        text = (server.folder / 'nginx.conf').read_text()
        (server.folder / 'nginx.conf').write_text(text.replace('worker_processes 2', 'worker_processes 4'))
        server.process.send_signal(1)
        until('the reload', lambda: 'configuration 1 released' in server.log())
        for _ in range(20):
            get(server, '/a')
        until('all of them', lambda: Figures(server)('yorozu_cache_responses_total', zone='pages', status='hit') == 39)


def test_the_api_has_nginxs_shape():
    with Folder() as folder, origin() as web, site(folder, web) as server:
        for path in ('/a', '/a', '/b?status=404'):
            get(server, path)
        logged(server, 3)
        value = lambda path: json.loads(get(server, f'/api/{path}').text)
        equal(value(''), list(range(1, 10)))
        equal(value('9'), ['connections', 'http', 'nginx', 'processes', 'resolvers', 'slabs', 'ssl', 'workers'])
        equal(value('9/http/'), ['caches', 'limit_conns', 'limit_reqs', 'location_zones', 'requests', 'server_zones', 'upstreams'])
        equal([value('9/' + path) for path in ('slabs', 'resolvers', 'http/limit_reqs', 'http/limit_conns', 'workers')], [{}] * 4 + [[]])
        cache = value('9/http/caches/pages')
        equal((cache['hit']['responses'], cache['miss']['responses'], cache['miss']['responses_written']), (1, 2, 1))
        equal(set(cache) - {'yorozu'}, {'size', 'cold', 'hit', 'stale', 'updating', 'revalidated', 'miss', 'expired', 'bypass'})
        zone = value('9/http/location_zones/pages')
        equal((zone['requests'], zone['responses']['codes']), (3, {'200': 2, '404': 1}))
        connections = value('9/connections')
        equal(set(connections), {'accepted', 'dropped', 'active', 'idle'})
        # Of the connections so far only the one that asks is there.
        equal((connections['dropped'], connections['active'], connections['idle']), (0, 1, 0))
        assert connections['accepted'] >= 3 + 2, connections
        requests = value('9/http/requests')
        equal(set(requests), {'total', 'current'})
        equal(requests['current'], 1)
        assert requests['total'] >= 3 + 2, requests
        equal(set(value('9/ssl')), {'handshakes', 'handshakes_failed', 'handshake_timeout', 'session_reuses'})
        peer, = value('9/http/upstreams/web')['peers']
        equal((peer['server'], peer['state'], peer['requests'], peer['fails']), (f'127.0.0.1:{web}', 'up', 2, 0))
        equal(value('9/http/caches?fields='), ['pages'])
        equal(set(value('9/http/caches?fields=size,cold')['pages']), {'size', 'cold'})
        equal(set(value('9/nginx?fields=version,pid')), {'version', 'pid'})
        for path, status, code in [('9/none', 404, 'PathNotFound'), ('9/http/caches/none', 404, 'CacheNotFound'), ('99', 404, 'UnknownVersion'),
                                   ('9/nginx/more', 404, 'PathNotFound'), ('9/http/upstreams/none', 404, 'UpstreamNotFound')]:
            answer = get(server, f'/api/{path}')
            error = json.loads(answer.text)
            equal((answer.status, error['error']['status'], error['error']['code']), (status, status, code), path)
            equal(set(error), {'error', 'request_id', 'href'})
        for method, code in (('POST', 'MethodDisabled'), ('DELETE', 'MethodDisabled'), ('PUT', 'MethodNotAllowed')):
            answer = get(server, '/api/9/http/caches/pages', method)
            equal((answer.status, json.loads(answer.text)['error']['code']), (405, code))


def test_handshakes_and_certificates_are_shown():
    with Folder() as folder:
        subprocess.run(['openssl', 'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-days', '2',
                        '-subj', '/CN=site.example', '-keyout', folder / 'key', '-out', folder / 'crt'], check=True, capture_output=True)
        tls = free_port()
        conf = f'''server {{ listen 127.0.0.1:$port; listen 127.0.0.1:{tls} ssl; server_name site.example;
            ssl_certificate {folder}/crt; ssl_certificate_key {folder}/key;
            location /metrics {{ prometheus all; }} location /api {{ api; }} }}'''
        with site(folder, 0, conf) as server:
            done = subprocess.run(['curl', '-sk', f'https://127.0.0.1:{tls}/metrics'], capture_output=True, text=True)
            assert done.returncode == 0, done
            subprocess.run(['curl', '-sk', '--tls-max', '1.1', '--ciphers', 'DEFAULT@SECLEVEL=0', f'https://127.0.0.1:{tls}/'], capture_output=True)
            figures = Figures(server)
            left = figures('yorozu_certificate_expiry_seconds', name='site.example') - time.time()
            assert 86400 < left <= 2 * 86400, left
            equal(figures('yorozu_tls_handshakes_total', outcome='full'), 1)
            equal(figures('yorozu_tls_handshakes_total', outcome='failed'), 1)
            equal(json.loads(get(server, '/api/9/ssl').text)['handshakes'], 1)


def test_lines_that_are_lost_are_counted():
    conf = '''server { listen 127.0.0.1:$port; location / { access_log /dev/full; return 204; }
        location /metrics { prometheus all; } }'''
    with Folder() as folder, site(folder, 0, conf) as server:
        for _ in range(3):
            get(server, '/')
        until('the lost lines', lambda: Figures(server)('yorozu_log_lines_lost_total') == 3)


def test_what_is_refused_is_refused():
    cases = {
        'location / { prometheus none; }': 'unknown template "none", expected "all"',
        'location / { api write=on; }': '"write=on" is not supported: there is nothing to write',
        'location / { prometheus all; api; }': '"api" cannot be in a location that has another handler',
        'location / { proxy_pass http://127.0.0.1:1; prometheus all; }': '"prometheus" cannot be in a location that has another handler',
        'location / { prometheus all; stub_status; }': '"stub_status" cannot be in a location that has another handler',
        'status_zone "";': 'empty zone name',
        'error_log memory:1;': 'invalid buffer size "1"',
        'error_log memory:x;': 'invalid buffer size "x"',
    }
    for text, wanted in cases.items():
        status, said = t_says(f'http {{ server {{ listen 127.0.0.1:{free_port()}; {text} }} }}')
        assert status == 1 and wanted in said, f'{text}: {said}'


def t_says(text):
    """What `-t` says of a configuration, and its status."""
    with Folder() as folder:
        (folder / 'logs').mkdir()
        (folder / 'nginx.conf').write_text(f'pid {folder}/pid;\n{"" if "events" in text else "events {}"}\n{text}')
        done = subprocess.run([YOROZU, '-t', '-p', folder, '-c', folder / 'nginx.conf'], capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr


def test_the_error_log_in_memory_can_be_read():
    conf = 'server { listen 127.0.0.1:$port; location / { root /nonexistent; } }'
    with Folder() as folder, site(folder, 0, conf, main='error_log memory:8k info;') as server:
        said = lambda: subprocess.run([YOROZU, '-p', server.folder, '-c', server.folder / 'nginx.conf', 'log', '--error'],
                                      capture_output=True, text=True)
        get(server, '/first')
        text = said()
        assert text.returncode == 0 and '/nonexistent/first" failed (2: No such file' in text.stdout, text
        server.process.send_signal(1)
        until('the reload', lambda: 'configuration 1 released' in server.log())
        assert '/nonexistent/first' in said().stdout, 'a reload keeps it'
        for number in range(100):
            get(server, f'/{number}')
        text = said().stdout
        assert '/first' not in text and '/99" failed' in text and len(text) <= 8192


def test_prometheus_scrapes_it():
    assert PROMETHEUS, 'the package prometheus is missing'
    port = free_port()
    document = (ROOT / 'docs/metrics.md').read_text()
    scrape = re.findall(r'```yaml\n(scrape_configs:.*?)```', document, re.S)[0]
    with Folder() as folder, origin() as web, site(folder, web) as server:
        for path in ('/a', '/a', '/b?status=404', '/c?h=Set-Cookie:a=b'):
            get(server, path)
        scrape = scrape.replace('www.example.com', f'127.0.0.1:{server.port}').replace('scheme: https', 'scheme: http')
        assert str(server.port) in scrape and 'scheme: http\n' in scrape, scrape
        (folder / 'prometheus.yml').write_text(f'global: {{ scrape_interval: 1s }}\n{scrape}')
        command = [PROMETHEUS, f'--config.file={folder}/prometheus.yml', f'--storage.tsdb.path={folder}/data', f'--web.listen-address=127.0.0.1:{port}']
        with Process(command, folder / 'prometheus.out') as prometheus:
            def asked(path):
                connection = http.client.HTTPConnection('127.0.0.1', port, timeout=60)
                connection.request('GET', path)
                answer = connection.getresponse()
                return answer.status, answer.read()
            prometheus.wait_for(lambda: listens(port) and asked('/-/ready')[0] == 200)

            def value(query):
                found = json.loads(asked('/api/v1/query?' + urllib.parse.urlencode({'query': query}))[1])
                equal(found['status'], 'success', found)
                return [float(one['value'][1]) for one in found['data']['result']]
            until('a scrape', lambda: value('up') == [1])
            until('its figures', lambda: value('yorozu_cache_responses_total{zone="pages",status="hit"}') == [1])
            equal(value('sum(yorozu_cache_not_stored_total{reason="set-cookie"})'), [1])
            for panel, query in queries():
                value(query)
    print(f'{len(list(queries()))} queries of the dashboard')


def queries():
    """The dashboard's queries."""
    dashboard = json.loads((ROOT / 'console/grafana.json').read_text())
    for panel in dashboard['panels']:
        for target in panel.get('targets', []):
            query = target['expr'].replace('$__rate_interval', '5m').replace('$job', '.*').replace('$zone', '.*').replace('$cache', '.*')
            yield panel['title'], query


def test_the_dashboard_knows_the_metrics():
    with Folder() as folder, origin() as web, site(folder, web) as server:
        for path in ('/a', '/a'):
            get(server, path)
        logged(server, 2)
        text = get(server, '/metrics').text
        there = {re.sub(r'$', '', name) for name in re.findall(r'^# TYPE (\w+)', text, re.M)}
        # Of a server without certificates these are missing.
        there |= {'yorozu_certificate_expiry_seconds'}
        used = set()
        for panel, query in queries():
            names = {re.sub(r'_(bucket|sum|count)$', '', name) for name in re.findall(r'\b(?:yorozu|nginx)_\w+', query)}
            assert names, f'{panel}: {query}'
            assert names <= there, f'{panel}: {names - there}'
            used |= names
        document = (ROOT / 'docs/metrics.md').read_text()
        unsaid = {name for name in there if f'`{name}`' not in document and f'`{name}{{' not in document}
        assert not unsaid, f'docs/metrics.md lacks {unsaid}'
        assert len(used) > 12, used


def test_configurations_of_the_document_load():
    document = (ROOT / 'docs/metrics.md').read_text()
    blocks = re.findall(r'```nginx\n(.*?)```', document, re.S)
    assert len(blocks) >= 3
    with Folder() as folder:
        subprocess.run(['openssl', 'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-days', '2',
                        '-subj', '/CN=a', '-keyout', folder / 'key', '-out', folder / 'crt'], check=True, capture_output=True)
        for block in blocks:
            block = re.sub(r'/var/(log|cache)/\w+', str(folder), block)
            status, said = t_says(block)
            equal((status, 'warn' in said), (0, False), f'{block}{said}')


def test_a_log_line_is_json():
    document = (ROOT / 'docs/metrics.md').read_text()
    format_, = re.findall(r'log_format json.*?;\n', document, re.S)
    for preset in ('nginx.conf', 'cluster/nginx.conf'):
        assert format_ in (ROOT / 'presets' / preset).read_text(), preset
    conf = CACHED.replace('server {\n', f'{format_} server {{ access_log $dir/logs/json.log json;\n', 1)
    with Folder() as folder, origin() as web, site(folder, web, conf) as server:
        for path in ('/a', '/a"?x=\\"', '/b?h=Set-Cookie:a=b', '/a'):
            get(server, path.replace('"', '%22').replace('\\', '%5C'), User_Agent='"\\\t')
        log = server.folder / 'logs/json.log'
        until('four lines', lambda: log.exists() and log.read_text().count('\n') == 4)
        first, _, cookie, hit = map(json.loads, log.read_text().splitlines())
        equal((first['cache'], cookie['detail'], hit['cache'], hit['agent']), ('MISS', 'set-cookie', 'HIT', '"\\\t'))
        assert float(hit['saved']) >= 0
