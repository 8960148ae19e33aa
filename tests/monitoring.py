"""What a server shows of itself, read by tests: samples of its metrics and events of its console."""
import contextlib, http.client, http.server, json, re, socket, threading, time, urllib.parse
from peers import Server, equal, listens, until

SAMPLE = re.compile(r'^(\w+)(?:\{(.*)\})? (\S+)$')
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Origin(http.server.BaseHTTPRequestHandler):
    """Says in the query what it answers: wait=seconds, pair (when another one is there, too), h=Name:value, status=, tags=count, kb=,
    upgrade."""
    protocol_version = 'HTTP/1.1'
    pair = threading.Barrier(2, timeout=60)

    def do_GET(self):
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query, keep_blank_values=True)
        time.sleep(float(query.get('wait', ['0'])[0]))
        if 'pair' in query:
            self.pair.wait()
        if 'upgrade' in query:
            self.wfile.write(b'HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n')
            self.close_connection = True
            return
        self.rfile.read(int(self.headers.get('Content-Length', 0)))
        self.send_response(int(query.get('status', ['200'])[0]))
        for field in query.get('h', []):
            self.send_header(*field.split(':', 1))
        if 'tags' in query:
            self.send_header('Cache-Tag', ' '.join(f't{number}' for number in range(int(query['tags'][0]))))
        page = b'page\n' + bytes(1024 * int(query.get('kb', ['0'])[0]))
        self.send_header('Content-Length', str(len(page)))
        self.end_headers()
        if self.command != 'HEAD':
            self.wfile.write(page)

    do_POST = do_HEAD = do_GET

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def origin():
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Origin)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()


CACHED = '''
    proxy_cache_path $dir/cache keys_zone=pages:1m memory=4m;
    upstream web { server 127.0.0.1:@WEB@; }
    status_zone_limit 50;
    server {
        listen 127.0.0.1:$port;
        server_name site.example;
        status_zone $server_name;
        location / {
            status_zone pages;
            proxy_pass http://web;
            proxy_http_version 1.1;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection $http_connection;
            proxy_cache pages;
            proxy_cache_key $uri;
            proxy_cache_valid 200 1h;
            proxy_cache_lock on;
            proxy_cache_bypass $arg_bypass;
            proxy_cache_purge PURGE from 127.0.0.1;
            add_header X-Saved $cache_saved;
            add_header X-Cache $upstream_cache_status;
        }
        location /metrics { status_zone off; prometheus all; allow 127.0.0.1; deny all; }
        location /api { api; }
        location /status { vhost_traffic_status_display; }
    }'''


def site(folder, web, http=CACHED, **more):
    return Server(folder, http.replace('@WEB@', str(web)), **more)


def get(server, path, method='GET', **headers):
    connection = http.client.HTTPConnection('127.0.0.1', server.port, timeout=60)
    headers = {name.replace('_', '-'): value for name, value in headers.items()}
    connection.request(method, path, headers={'Host': 'site.example'} | headers)
    answer = connection.getresponse()
    answer.text = answer.read().decode()
    connection.close()
    return answer


def samples(text):
    """Each sample of a report: its name and labels, and its value."""
    found = {}
    for line in text.splitlines():
        if line and not line.startswith('#'):
            name, labels, value = SAMPLE.match(line).groups()
            key = name, *sorted(LABEL.findall(labels or ''))
            assert key not in found, f'{line} stands there twice'
            found[key] = float(value)
    return found


# A zone for each cause of an eviction, and what its pages are.
EVICTING = {
    'damaged': ('1m', '', []),
    'memory': ('1m', 'memory=256k', [f'/{number}?kb=16' for number in range(40)]),
    'max-size': ('1m', 'max_size=64k', [f'/{number}?kb=16' for number in range(10)]),
    'keys': ('8k', '', [f'/{number}' for number in range(40)]),
    'names': ('8k', 'memory=128k', [f'/{number}?{"x" * 4000}' for number in range(10)]),
    'min-free': ('1m', 'min_free=999999g', ['/a']),
    'inactive': ('1m', 'inactive=1s', ['/a']),
}


def evicting(web):
    zones = ''.join(f'proxy_cache_path $dir/cache/{name} keys_zone={name}:{keys} {words};' for name, (keys, words, _) in EVICTING.items())
    places = ''.join(f'location /{name}/ {{ proxy_pass http://127.0.0.1:{web}; proxy_cache {name}; proxy_cache_valid 200 1h; }}' for name in EVICTING)
    return f'''{zones} server {{ listen 127.0.0.1:$port; server_name site.example; {places}
        location /metrics {{ prometheus all; }} location /api/ {{ api; }} location /console/ {{ console; }} }}'''


def evict(server):
    """Makes each zone evict pages for its cause."""
    get(server, '/damaged/a')
    pages = lambda: [path for path in (server.folder / 'cache/damaged').iterdir() if 'yorozu' not in path.name and 'tmp' not in path.name]
    until('a file', pages)
    # What was read is in memory: only a new process looks at the file.
    server.stop()
    path, = pages()
    path.write_bytes(path.read_bytes().replace(b'page', b'pace'))
    server.start()
    server.wait_for(lambda: listens(server.port))
    equal(get(server, '/damaged/a').text, 'page\n')
    for name, (_, _, paths) in EVICTING.items():
        for path in paths:
            equal(get(server, f'/{name}{path}').status, 200, path)


class Viewer:
    """An open stream of events, read by lines."""

    def __init__(self, server, path='/console/events', unix=None):
        if unix:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.connect(str(unix))
        else:
            self.socket = socket.create_connection(('127.0.0.1', server.port))
        self.socket.settimeout(60)
        self.socket.sendall(f'GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n'.encode())
        self.reader = self.socket.makefile('rb')
        self.status = int(self.reader.readline().split()[1])
        while self.reader.readline().strip():
            pass

    def next(self, kind):
        """The value of the next event of a kind."""
        name = None
        for line in self.reader:
            if line.startswith(b'event: '):
                name = line[7:].strip().decode()
            elif line.startswith(b'data: ') and name == kind:
                return json.loads(line[6:])
        raise AssertionError(f'the stream ended before {kind}')

    def lines(self, count):
        found = []
        while len(found) < count:
            found += self.next('requests')['lines']
        return found

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()
        self.reader.close()
