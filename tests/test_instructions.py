"""Instructions and allocations of a request: more of them than tests/instructions says, and the test fails.

  pytest tests/test_instructions.py --accept [-k NAME]     writes what is measured to tests/instructions

callgrind counts what the server executes outside of the kernel, for REQUESTS requests on one connection that is kept. From run
to run that differs by less than half a per cent. The build is that of all tests, which is not
optimised: what is judged is what is done for a request (one look-up more, a copy, a poll), not how well it was compiled. Allocations are the
calls of the allocator, which are as many in either build. Lines of the access log are written many at once: in this build each write is
waited for, which costs more the busier the machine is.
"""
import collections, pathlib, platform, re, shutil, socket, ssl, subprocess, threading
import pytest
from attacks import h2wire
from attacks.origins import records
from peers import ROOT, YOROZU, Accepting, Folder, Server, free_port, until

pytestmark = pytest.mark.skipif(not shutil.which('valgrind'), reason='valgrind is not there')
FIGURES = ROOT / 'tests/instructions'
# Chosen: above what differs from run to run, below what one part of a request costs.
TOLERANCE = 0.03
# The first requests fill what is remembered. Of some rounds the least is judged: on a busy machine what comes in one piece may come in two.
WARM, ROUNDS, REQUESTS = 50, 4, 50
# What the program's allocator calls.
ALLOCATORS = 'mi_malloc_aligned', 'mi_zalloc_aligned', 'mi_realloc_aligned'
Cost = collections.namedtuple('Cost', 'instructions allocations')
PAGE = b'<p>page</p>\n' * 1365
SMALL = b'small\n'

CONFIGURATION = '''
    log_format main '$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" '
                    '"$http_user_agent" "$http_x_forwarded_for"';
    keepalive_requests 1000000;
    fastcgi_cache_path $dir/cache levels=1:2 keys_zone=pages:1m memory=16m;
    fastcgi_cache_key "$scheme://$request_method$host$request_uri";
    upstream web { server 127.0.0.1:@WEB@; keepalive 4; keepalive_requests 1000000; }
    upstream php { server 127.0.0.1:@PHP@; keepalive 4; keepalive_requests 1000000; }
    server {
        listen 127.0.0.1:$port;
        listen 127.0.0.1:@TLS@ ssl;
        listen 127.0.0.1:@H2@ http2;
        ssl_certificate @DIR@/cert.pem;
        ssl_certificate_key @DIR@/key.pem;
        server_name localhost;
        @METRICS@
        root @DIR@/www;
        index index.php;
        access_log $dir/logs/access.log main buffer=64k;
        add_header X-Cache $upstream_cache_status always;
        gzip on;
        location ~ /\\. { deny all; }
        location / { try_files $uri $uri/ /index.php?$args; }
        location /proxy/ { proxy_pass http://web/; proxy_http_version 1.1; proxy_set_header Connection ""; }
        set $do_not_cache 0;
        if ($http_cookie ~ "wordpress_logged_in_(.*)") { set $do_not_cache 1; }
        location ~ [^/]\\.php(/|$) {
            fastcgi_split_path_info ^(.+?\\.php)(/.*)$;
            include @PARAMS@;
            fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;
            fastcgi_keep_conn on;
            fastcgi_pass php;
            fastcgi_cache pages;
            fastcgi_cache_valid 200 1h;
            fastcgi_cache_bypass $do_not_cache $arg_small;
            fastcgi_no_cache $do_not_cache $arg_small;
            fastcgi_cache_use_stale updating error timeout;
            fastcgi_cache_lock on;
        }
    }'''


# Everything is counted: what shows it, with a console that has no viewer, and the zones of server and location.
METRICS = 'location = /metrics { prometheus all; } location /console/ { console; } status_zone $server_name;', 'status_zone php;'


class Origin(Accepting):
    """Answers whatever is asked, once it was read."""

    def serve(self, connection):
        reader = connection.makefile('rb')
        while answer := self.answer(reader):
            connection.sendall(answer)


class Web(Origin):
    def answer(self, reader):
        line = reader.readline()
        while reader.readline().strip():
            pass
        head = f'HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(PAGE)}\r\n\r\n'
        return line and head.encode() + PAGE


class Php(Origin):
    STDIN = 5

    def answer(self, reader):
        kind, content, text = None, b'', b''
        while kind != self.STDIN or content:
            head = reader.read(8)
            if not head:
                return None
            kind, content = head[1], reader.read(int.from_bytes(head[4:6]) + head[6])
            text += content
        body = SMALL if b'small=1' in text else PAGE
        return records(b'Content-Type: text/html; charset=UTF-8\r\nX-Powered-By: PHP\r\n\r\n' + body)


class Http1:
    """A connection of HTTP/1.1, and what one request on it gives."""

    def __init__(self, port, tls=None, fields=''):
        self.fields = fields
        self.socket = socket.create_connection(('127.0.0.1', port))
        if tls:
            self.socket = tls.wrap_socket(self.socket, server_hostname='localhost')

    def ask(self, path):
        self.socket.sendall(f'GET {path} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: instructions\r\n{self.fields}\r\n'.encode())
        answer = b''
        while b'\r\n\r\n' not in answer:
            answer += self.received()
        head, _, body = answer.partition(b'\r\n\r\n')
        assert b' 200 ' in head, head
        length = int(re.search(rb'content-length: (\d+)', head, re.I)[1])
        while len(body) < length:
            body += self.received()
        return body

    def received(self):
        piece = self.socket.recv(1 << 20)
        assert piece, 'the connection ended'
        return piece


class Http2:
    """The same of HTTP/2, without TLS."""

    def __init__(self, port):
        self.socket = socket.create_connection(('127.0.0.1', port))
        self.reader, self.stream = self.socket.makefile('rb'), -1
        # More than all answers take: the client says nothing about windows later.
        wide = (4).to_bytes(2) + (1 << 30).to_bytes(4)
        self.socket.sendall(h2wire.PREFACE + h2wire.frame(h2wire.SETTINGS, content=wide)
                            + h2wire.frame(h2wire.WINDOW_UPDATE, content=(1 << 30).to_bytes(4)))

    def ask(self, path):
        self.stream += 2
        self.socket.sendall(h2wire.headers(self.stream, h2wire.request(path, authority='localhost')))
        body, flags, stream = b'', 0, 0
        while stream != self.stream or not flags & h2wire.END_STREAM:
            head = self.reader.read(9)
            length, kind, flags, stream = int.from_bytes(head[:3]), head[3], head[4], int.from_bytes(head[5:])
            content = self.reader.read(length)
            body += content if kind == h2wire.DATA else b''
            assert kind not in (h2wire.RST_STREAM, h2wire.GOAWAY), content
            if kind == h2wire.SETTINGS and not flags & h2wire.ACK:
                self.socket.sendall(h2wire.frame(h2wire.SETTINGS, h2wire.ACK))
        return body


class Counted(Server):
    """yorozu with one worker, its instructions counted."""

    def __init__(self, folder, metrics=('', '')):
        self.counts = folder / 'counts'
        (folder / 'www').mkdir()
        (folder / 'www/index.php').touch()
        (folder / 'www/small.php').touch()
        (folder / 'www/file').write_bytes(bytes(16 * 1024))
        subprocess.run(['openssl', 'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-days', '2',
                        '-subj', '/CN=localhost', '-keyout', folder / 'key.pem', '-out', folder / 'cert.pem'],
                       check=True, stderr=subprocess.DEVNULL)
        self.tls_port, self.h2_port = free_port(), free_port()
        names = dict(WEB=Web().port, PHP=Php().port, TLS=self.tls_port, H2=self.h2_port, DIR=folder,
                     PARAMS=ROOT / 'presets/fastcgi_params', METRICS=metrics[0], ZONE=metrics[1])
        http = re.sub('@([A-Z0-9]+)@', lambda name: str(names[name[1]]), CONFIGURATION)
        super().__init__(folder, http, main='worker_processes 1; master_process off;', prefix=[
            # An instruction that copies thousands of bytes would count as thousands.
            'env', 'GLIBC_TUNABLES=glibc.cpu.x86_rep_movsb_threshold=268435456',
            'valgrind', '--tool=callgrind', '--separate-threads=yes', f'--callgrind-out-file={self.counts}',
            f'--vgdb-prefix={folder}/vgdb',
            # The clock asks for this each second, no request does: the slower the machine, the more of it would be in a round.
            '--toggle-collect=yorozu_server::live::history::keep*', '--collect-atstart=yes'])

    def dumps(self):
        return self.counts.parent.glob('counts.*')

    def tell(self, *words):
        said = subprocess.run(['vgdb', f'--vgdb-prefix={self.counts.parent}/vgdb', f'--pid={self.pid}', *words],
                              capture_output=True, text=True)
        assert said.returncode == 0, said.stderr

    def measured(self, request):
        """What one of many requests costs."""
        rounds = self.counted(request)
        # Those of now and then, where a list has to grow, are not each request's.
        allocated = min(allocations(dump) for _, dump in rounds) + REQUESTS // 10
        return Cost(min(rounds)[0] // REQUESTS, allocated // REQUESTS)

    def counted(self, request):
        """The instructions of REQUESTS requests, and what callgrind tells of them, for each round."""
        for _ in range(WARM):
            request()
        return [self.round(request) for _ in range(ROUNDS)]

    def round(self, request):
        self.tell('zero')
        for _ in range(REQUESTS):
            request()
        before = {*self.dumps()}
        self.tell('dump')
        # The worker's. What other threads do in the background they do at any time, on a busy machine in the middle of this.
        return max(total(dump) for dump in self.dumps() if dump not in before)


def total(dump):
    """The instructions of a dump, and its text."""
    text = dump.read_text()
    return int(re.search(r'^totals: (\d+)', text, re.M)[1]), text


def inclusive(dump, name):
    """Calls of the functions with this name in a dump of callgrind, and the instructions of them and all they called."""
    names, inside, calls, sums = {}, False, 0, [0, 0]
    for line in dump.splitlines():
        if named := re.match(r'(c?)fn=\((\d+)\)(?: (.*))?$', line):
            is_called, number, text = named.groups()
            names.setdefault(number, text)
            inside = is_called and re.sub(r"'\d+$", '', names[number]) == name
        elif inside and (called := re.match(r'calls=(\d+)', line)):
            calls = int(called[1])
        elif inside and calls:
            sums[0] += calls
            sums[1] += int(line.split()[1])
            calls = 0
    return sums


def allocations(dump):
    """Calls of the allocator in a dump of callgrind, which names a function once and has its number from there on."""
    count, allocators = 0, set()
    for number, name, calls in re.findall(r'^c?fn=\((\d+)\)(?: (.*))?\n(?:calls=(\d+))?', dump, re.M):
        if name in ALLOCATORS:
            allocators.add(number)
        if number in allocators and calls:
            count += int(calls)
    return count


def measured(server, path, body, connect=lambda server: Http1(server.port)):
    """What one request costs of a server."""
    connection = connect(server)

    def request():
        got = connection.ask(path)
        assert got == body, f'{len(got)} bytes came'

    return server.measured(request)


def with_tls(server):
    tls = ssl.create_default_context(cafile=server.counts.parent / 'cert.pem')
    return Http1(server.tls_port, tls)


def viewer(server, path, unix=None):
    """A viewer that reads all it is sent, there once this returns."""
    stream = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
    stream.connect(str(unix) if unix else ('127.0.0.1', server.port))
    stream.sendall(f'GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n'.encode())
    reader = stream.makefile('rb')
    status = reader.readline()
    assert b' 200 ' in status, status
    threading.Thread(target=lambda: collections.deque(reader, 0), daemon=True).start()
    return stream


VIEWERS = {
    'the console': lambda server: viewer(server, '/console/events'),
    'yorozu log --miss': lambda server: viewer(server, '/log/live?miss=1', server.folder / 'pid.sock'),
}


def test_cost_of_watched_hit(metered):
    """What a viewer costs each hit that it is not shown, or that is not in its sample: as little as counting. What is shown costs more, and is
    bounded for each second (crates/kernel/src/live/viewers.rs)."""
    for name, open_viewer in VIEWERS.items():
        connection = Http1(metered.port)

        def request():
            assert connection.ask('/') == PAGE

        request()
        opened = lambda: len([*pathlib.Path(f'/proc/{metered.pid}/fd').iterdir()])
        before = opened()
        with open_viewer(metered) as stream:
            _, dump = min(metered.counted(request))
            stream.shutdown(socket.SHUT_RDWR)
        until('that the viewer is gone', lambda: opened() <= before)
        told, telling = inclusive(dump, 'yorozu_kernel::live::tell')
        shown, showing = inclusive(dump, 'yorozu_kernel::live::viewers::tell_request::{{closure}}::{{closure}}')
        lines, writing = inclusive(dump, 'yorozu_server::live::events::request')
        figures, counting = inclusive(dump, 'yorozu_server::live::figures::of')
        # The last one is told behind its answer.
        assert told >= REQUESTS - 1, f'{told} hits were told'
        each = (telling - showing) // told
        more = each / kept()[1]['metered-hit'].instructions
        print(f'{more:+.2%} for {name}: {each} instructions a hit; {showing // max(shown, 1)} and {writing // max(lines, 1)} for one that is shown, '
              f'{counting // max(figures, 1)} for the figures of a second')
        assert more <= 0.02, f'{name}: {each} instructions a hit'


# Path, answer, and how to connect.
TESTS = {
    'hit': ('/', PAGE),
    'tls-hit': ('/', PAGE, with_tls),
    'http2-hit': ('/', PAGE, lambda server: Http2(server.h2_port)),
    'file': ('/file', bytes(16 * 1024)),
    'proxy': ('/proxy/page', PAGE),
    'php': ('/small.php?small=1', SMALL),
}


def tools():
    """What the figures depend on beside the server; the compiler's version stands in the program it made."""
    comment = subprocess.run(['readelf', '-p', '.comment', YOROZU], check=True, capture_output=True, text=True).stdout
    valgrind = subprocess.run(['valgrind', '--version'], check=True, capture_output=True, text=True).stdout
    # All that valgrind shows of a processor.
    flags = re.search(r'^flags\s*: (.*)', pathlib.Path('/proc/cpuinfo').read_text(), re.M)
    processor = 'AVX2' if flags and 'avx2' in flags[1].split() else 'no AVX2'
    return ', '.join([re.search(r'rustc version [\d.]+\S*', comment)[0].replace(' version', ''),
                      ' '.join(platform.libc_ver()), valgrind.strip().replace('-', ' '), processor])


def kept():
    """The tools the figures were measured with, and the figures."""
    lines = [line for line in FIGURES.read_text().splitlines() if not line.startswith('#')]
    figures = (line.split() for line in lines[1:])
    return lines[0], {name: Cost(int(instructions), int(allocations)) for name, instructions, allocations in figures}


def judge(name, found):
    made_with, figures = kept()
    wanted = figures[name]
    more = found.instructions / wanted.instructions - 1
    told = (f'{found.instructions} instructions and {found.allocations} allocations a request; tests/instructions says '
            f'{wanted.instructions} ({more:+.1%}) and {wanted.allocations}')
    print(told)
    how = f'pytest tests/test_instructions.py --accept -k {name}'
    assert found.allocations <= wanted.allocations, f'{told}. Find out why; if it is worth it, accept it: {how}'
    if made_with != tools():
        print(f'instructions are not compared: here is {tools()}, the figures are of {made_with}')
        return
    assert more <= TOLERANCE, f'{told}. Find out why; if it is worth it, accept it: {how}'
    is_less = more < -TOLERANCE or found.allocations < wanted.allocations
    assert not is_less, f'{told}. It became cheaper: lower the figure: {how}'


def accept(name, found):
    comments = [line for line in FIGURES.read_text().splitlines() if line.startswith('#')]
    made_with, figures = kept()
    # What other tools made is no measure for these.
    figures = (figures if made_with == tools() else {}) | {name: found}
    lines = [' '.join(map(str, [name, *figures[name]])) for name in (*TESTS, 'metered-hit') if name in figures]
    FIGURES.write_text('\n'.join([*comments, tools(), *lines]) + '\n')
    print(f'{found.instructions} instructions and {found.allocations} allocations a request')


@pytest.fixture(scope='module')
def counted():
    """One server for all: below valgrind its start takes longer than what is measured."""
    with Folder() as folder, Counted(folder) as server:
        yield server


@pytest.fixture(scope='module')
def metered(counted):
    with Folder() as folder, Counted(folder, METRICS) as server:
        yield server


@pytest.fixture
def end(request):
    return accept if request.config.option.accept else judge


@pytest.mark.parametrize('name', TESTS)
def test_cost(name, counted, end):
    end(name, measured(counted, *TESTS[name]))


@pytest.mark.parametrize('name', ['metered-hit'])
def test_cost_of_metrics(name, counted, metered, end):
    """What a hit costs when everything is counted: two per cent more at most."""
    plain, found = (measured(server, '/', PAGE) for server in (counted, metered))
    print(f'{found.instructions / plain.instructions - 1:+.2%} for metrics')
    assert found.instructions <= plain.instructions * 1.02, f'{plain} without, {found} with metrics'
    assert found.allocations == plain.allocations, f'{plain} without, {found} with metrics'
    end(name, found)
