"""Nodes behind one Redis, each with its own network, and the origin that they share."""
import collections, contextlib, http.client, http.server, itertools, json, os, signal, socket, subprocess, threading, time
from peers import SECONDS, Accepting, Folder, Process, Server, free_port, listens, until

# A page's version at the origin is how often it changed; and how often it was asked for.
VERSIONS, ASKED = collections.Counter(), collections.Counter()
# What a POST to a page that is "held" waits for at the origin.
HELD = threading.Event()
SECRET = 'a secret of more than sixteen bytes'
TOKEN = 'a-token-of-sixteen-bytes'


class Origin(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_POST(self):
        self.rfile.read(int(self.headers.get('Content-Length', 0)))
        if 'held' in self.path:
            HELD.wait(SECONDS)
        self.do_GET()

    def do_GET(self):
        ASKED[self.path] += 1
        if VERSIONS[self.path] < 0:
            # It fails.
            self.close_connection = True
            return
        text = str(VERSIONS[self.path]).encode()
        if 'slow' in self.path:
            time.sleep(0.5)
        if 'long' in self.path:
            text += b' ' * 5000
        self.send_response(200)
        if 'varied' in self.path:
            self.send_header('Vary', 'Accept-Language')
            text += self.headers['Accept-Language'].encode()
        if 'private' in self.path or 'ends' in self.path and VERSIONS[self.path]:
            self.send_header('Set-Cookie', 'a=b')
        self.send_header('Content-Type', 'text/plain')
        life = 20 if 'ends' in self.path else 1 if 'brief' in self.path else 3600
        self.send_header('Cache-Control', f'max-age={life}' + ', stale-if-error=60' * ('brief' in self.path))
        self.send_header('Surrogate-Key', f'all page{self.path.replace("/", "-")}')
        self.send_header('Content-Length', str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


class Origins(http.server.ThreadingHTTPServer):
    daemon_threads, request_queue_size = True, 100

    def handle_error(self, *_):
        """A node that is killed breaks its connections."""


@contextlib.contextmanager
def origin(address='127.0.0.1'):
    server = Origins((address, 0), Origin)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()


class Redis(Process):
    def __init__(self, folder, *options, port=None, program='redis-server'):
        self.port = port or free_port()
        self.folder = folder / f'redis-{self.port}'
        self.folder.mkdir()
        super().__init__([program, '--port', self.port, '--bind', '127.0.0.1', '--dir', self.folder, '--save', '',
                          '--unixsocket', self.folder / 'socket', '--unixsocketperm', '777', *options],
                         self.folder / 'out')
        self.wait_for(self.answers)
        self.folder.chmod(0o755)

    def answers(self):
        try:
            return self.ask('PING') == 'PONG'
        except OSError:
            return False

    def again(self):
        self.start()
        self.wait_for(self.answers)

    def ask(self, *words):
        with socket.create_connection(('127.0.0.1', self.port), SECONDS) as connection:
            return ask(connection.makefile('rwb'), *words)

    def entries(self, stream='yorozu'):
        return [(name.decode(), dict(zip(fields[::2], fields[1::2])))
                for name, fields in self.ask('XRANGE', stream, '-', '+')]


def ask(stream, *words):
    words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    stream.write(b'*%d\r\n' % len(words) + b''.join(b'$%d\r\n%s\r\n' % (len(word), word) for word in words))
    stream.flush()
    return reply(stream)


def reply(stream):
    line = stream.readline().rstrip(b'\r\n')
    if not line:
        raise OSError('closed')
    kind, rest = line[:1], line[1:].decode()
    if kind == b'$':
        return None if rest == '-1' else stream.read(int(rest) + 2)[:-2]
    if kind == b'*':
        return None if rest == '-1' else [reply(stream) for _ in range(int(rest))]
    return int(rest) if kind == b':' else rest


class Network:
    """How a node is reached and what it reaches: itself, the origin, Redis."""
    BINDS, REDIS = '127.0.0.1', ()
    host = origin = '127.0.0.1'
    prefix = ()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Proxy(Accepting, Network):
    """A network between a node and Redis, which can be cut: nothing passes then, and nothing is closed."""

    def __init__(self, folder, port):
        self.to, self.tier, self.is_cut = port, f'127.0.0.1:{port}', threading.Event()
        super().__init__()
        self.redis = f'127.0.0.1:{self.port}'

    def serve(self, near):
        while self.is_cut.is_set():
            time.sleep(0.005)
        try:
            far = socket.create_connection(('127.0.0.1', self.to))
        except OSError:
            near.close()
            return
        far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for one, other in ((near, far), (far, near)):
            threading.Thread(target=self.carry, args=(one, other), daemon=True).start()

    def carry(self, one, other):
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                while self.is_cut.is_set():
                    time.sleep(0.005)
                other.sendall(data)
        for each in one, other:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def ip(*words, of=None):
    """A command of `ip`, in the network namespace of a process."""
    inside = ['nsenter', f'--net=/proc/{of}/ns/net'] if of else []
    done = subprocess.run([*inside, 'ip', *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, (words, done.stderr)


class Line:
    """The line from the switch to a node. While it is cut packets are lost both ways, and nobody is told."""

    def __init__(self, name):
        self.name = name
        self.clear()

    def set(self):
        ip('link', 'set', self.name, 'nomaster')

    def clear(self):
        ip('link', 'set', self.name, 'master', 'switch')


class Namespace(Network):
    """A network namespace for a node: one line to Redis, which can be cut, and one to the clients and the origin."""
    REDIS_HOST = '10.77.0.1'
    BINDS, REDIS = '0.0.0.0', ('--bind', '0.0.0.0', '--protected-mode', 'no')
    numbers = itertools.count(2)

    def __init__(self, folder, port):
        number = next(self.numbers)
        self.holder = Process(['unshare', '--net', 'sleep', 'infinity'], folder / f'namespace-{number}.out')
        of = self.holder.pid
        own = os.readlink('/proc/self/ns/net')
        until('the namespace', lambda: os.readlink(f'/proc/{of}/ns/net') != own)
        self.prefix = ['nsenter', f'--net=/proc/{of}/ns/net']
        self.redis = self.tier = f'{self.REDIS_HOST}:{port}'
        self.origin, self.host = f'10.78.{number}.1', f'10.78.{number}.2'
        for name, address in ('line', f'10.77.0.{number}'), ('front', self.host):
            ip('link', 'add', 'name', f'{name}{number}', 'type', 'veth', 'peer', 'name', name, 'netns', of)
            ip('addr', 'add', f'{address}/24', 'dev', name, of=of)
            ip('link', 'set', name, 'up', of=of)
            ip('link', 'set', f'{name}{number}', 'up')
        ip('link', 'set', 'lo', 'up', of=of)
        ip('addr', 'add', f'{self.origin}/24', 'dev', f'front{number}')
        self.is_cut = Line(f'line{number}')

    def __exit__(self, *_):
        self.holder.stop()


NODE = '''
    proxy_cache_path $dir/cache keys_zone=pages:1m memory=4m @SHARED@;
    gzip on; gzip_types text/plain; gzip_min_length 1000; gzip_proxied any;
    cache_purge_bus @BUS@;
    server {
        listen @HOST@:$port;
        server_name site.example;
        location / {
            proxy_pass http://@ORIGIN@:@WEB@;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_cache pages;
            proxy_cache_key $uri;
            proxy_cache_lock on;
            proxy_cache_use_stale updating;
            proxy_cache_background_update on;
            proxy_cache_purge PURGE from @ORIGIN@;
            add_header X-Cache $upstream_cache_status;
        }
        location = /.purge { cache_purge_api token=@TOKEN@; }
        location = /.metrics { prometheus all; }
    }'''


class Node(Server):
    """A node of a site."""

    def __init__(self, folder, web, bus, name, http=NODE, network=Network(), **more):
        self.name, self.host = name, network.host
        if 'node=' not in bus:
            bus += f' node={name}'
        http = http.replace('@SHARED@', '').replace('@BUS@', bus).replace('@WEB@', str(web)).replace('@TOKEN@', TOKEN)
        http = http.replace('@HOST@', network.host).replace('@ORIGIN@', network.origin)
        super().__init__(folder, http, main='worker_processes 2;', prefix=network.prefix, wait=False, **more)
        self.wait_for(self.serves)

    def serves(self, starts=1):
        """The master listens before the server process serves, which says so."""
        return listens(self.port, self.host) and self.log().count('start worker threads') >= starts

    def ask(self, path, method='GET', body=None, headers=()):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=SECONDS)
        try:
            connection.request(method, path, body, {'Host': 'site.example', **dict(headers)})
            answer = connection.getresponse()
            return answer, answer.read().decode(errors='replace')
        finally:
            connection.close()

    def page(self, path):
        """The version that this node shows, and how it came by it."""
        answer, text = self.ask(path)
        return int(text), answer.headers['X-Cache']

    def purge(self, path):
        """What was said of the other nodes."""
        answer, text = self.ask(path, 'PURGE')
        assert answer.status in (200, 412), (answer.status, text)
        return answer.headers['X-Purge-Bus']

    def purge_by_api(self, *batches):
        answer, text = self.ask('/.purge', 'POST', json.dumps(batches), {'Authorization': f'Bearer {TOKEN}'})
        assert answer.status == 200, (answer.status, text)
        return json.loads(text)

    def metric(self, name, of='purge_bus'):
        _, text = self.ask('/.metrics')
        return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f'yorozu_{of}_{name}'))

    def shared(self, outcome):
        return self.metric(f'total{{zone="pages",outcome="{outcome}"}}', 'cache_shared')

    def knows_of(self):
        """Nodes whose entries it has read and done, itself among them."""
        path = self.folder / 'cache/yorozu.bus'
        return path.read_text().count('\nrun ') if path.exists() else 0

    def again(self):
        lines = self.log().count('start worker threads')
        # Threads of a process may outlive the one that the system lists.
        until('the end of its sockets', lambda: not listens(self.port, self.host))
        self.start()
        self.wait_for(lambda: self.serves(lines + 1))

    def reload(self):
        lines = self.log().count('reconfigured')
        os.kill(self.pid, signal.SIGHUP)
        until('the reload', lambda: self.log().count('reconfigured') > lines)

    def becomes(self, path, version):
        until(f'{path} at version {version} on {self.name}', lambda: self.page(path)[0] >= version)

    def says(self, text, count=1):
        until(f'a line with "{text}" on {self.name}', lambda: self.log().count(text) >= count)


GONE = 'its place in the stream is gone'

# A node that hears nothing for a while takes Redis for silent. Where that is not what a test is about it waits for longer than a
# machine stands still; the tests that have a shorter time, or the usual one, say so.
PATIENT = 'timeout=10s&start_timeout=10s'
USUAL, SHORT = 'redis://127.0.0.1:@REDIS@', 'redis://127.0.0.1:@REDIS@?timeout=200ms'
BUS = f'{USUAL}?{PATIENT}'


@contextlib.contextmanager
def site(names='abc', bus=BUS, redis=(), http=NODE, shared='', network=Proxy, **more):
    """Nodes of one Redis, each behind a network of its own."""
    VERSIONS.clear(), ASKED.clear()
    with Folder() as folder, origin(network.BINDS) as web, Redis(folder, *network.REDIS, *redis) as server, \
            contextlib.ExitStack() as stack:
        (folder / 'secret').write_text(SECRET + '\n')
        (folder / 'secret').chmod(0o644)
        nodes = []
        for name in names:
            way = stack.enter_context(network(folder, server.port))
            text = bus.replace('127.0.0.1:@REDIS@', way.redis).replace('@SECRET@', str(folder / 'secret'))
            tier = f'shared={shared.replace("127.0.0.1:@REDIS@", way.tier)}' if shared else ''
            node = stack.enter_context(Node(folder, web, text, name, http.replace('@SHARED@', tier), way, **more))
            node.way = way
            nodes.append(node)
        server.web, server.root = web, folder
        for before, node in enumerate(reversed(nodes)):
            # What is made before a node has read that another one came counts as older than that.
            until('the others', lambda: node.knows_of() > before)
        yield server, nodes


def warm(nodes, *paths):
    for node in nodes:
        for path in paths:
            until('a hit', lambda: node.page(path)[1] == 'HIT')
