"""The servers that are measured, each with its configuration, and what stands behind them."""
import os, pathlib, re, shutil, signal, socket, struct, subprocess, sys, time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path += [str(HERE), str(ROOT / 'tests')]
from clients import PAGE_BYTES, fail
from peers import free_port

IMAGES, IMAGE_BYTES = 15, 105_000
FILES = {'file-16k': 16 * 1024, 'file-1m': 1024 * 1024}
IS_ROOT = os.geteuid() == 0
NGINX, YOROZU = '/usr/sbin/nginx', ROOT / 'target/release/yorozu'


def start(core, *command, log=None):
    out = open(log, 'w') if log else subprocess.DEVNULL
    # A new session: Apache ends its whole process group when it ends.
    return subprocess.Popen(['taskset', '-c', str(core), *map(str, command)], stdout=out, stderr=out, start_new_session=True)


def wait_for(port):
    end = time.monotonic() + 20
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(('127.0.0.1', port)) == 0:
                return
        if time.monotonic() > end:
            fail(f'nothing listens on {port}')
        time.sleep(0.02)


def certificate(folder, kind):
    """A key, a certificate, and both in one file."""
    options = ['ec', '-pkeyopt', 'ec_paramgen_curve:P-256'] if kind == 'ec' else ['rsa:2048']
    name = folder / kind
    subprocess.run(['openssl', 'req', '-x509', '-newkey', *options, '-nodes', '-days', '2', '-subj', '/CN=localhost',
                    '-keyout', f'{name}.key', '-out', f'{name}.crt'], check=True, stderr=subprocess.DEVNULL)
    pathlib.Path(f'{name}.pem').write_text(pathlib.Path(f'{name}.crt').read_text()
                                           + pathlib.Path(f'{name}.key').read_text())


class Server:
    """One server on its own ports, pinned to core 0."""

    path = '/'
    process = behind = None

    def __init__(self, name, behind, folder):
        self.name, self.peers = name, behind
        self.folder = folder / f'{name}-{type(self).__name__}'
        self.port, self.port_tls, self.port_rsa = free_port(), free_port(), free_port()
        for sub in ('logs', 'cache', 'conf', 'www'):
            (self.folder / sub).mkdir(parents=True)
        self.behind = behind.php
        self.write_configuration()
        self.process = start(0, *self.command(), log=self.folder / 'logs/stderr')
        self.warm()

    def command(self):
        program = NGINX if self.name == 'nginx' else YOROZU
        return [program, '-p', f'{self.folder}/', '-c', 'conf/nginx.conf', '-g', 'daemon off;']

    def fill(self, source, target, **more):
        """A configuration with the names between at signs replaced."""
        text, peers = (HERE / source).read_text(), self.peers
        names = dict(USER='user root;' if IS_ROOT else '', PORT=self.port, TLS=self.port_tls, RSA=self.port_rsa,
                     FOLDER=self.folder, WWW=peers.folder, PARAMS=ROOT / 'presets/fastcgi_params', WEB=peers.web_port,
                     PHP=peers.php_socket, MEMCACHED=peers.memcached_port, KEYS=peers.folder) | more
        for name, value in names.items():
            text = text.replace(f'@{name}@', str(value))
        (self.folder / 'conf' / target).write_text(text)

    def url(self, path=None, tls=False):
        scheme, port = ('https', self.port_tls) if tls else ('http', self.port)
        return f'{scheme}://127.0.0.1:{port}{path or self.path}'

    def warm(self):
        """Waits until what is measured is there."""
        self.answers(' 200', self.url(), PAGE_BYTES)

    def answers(self, wanted, url, size):
        """Waits until a page comes with `wanted` in its head."""
        end, answer = time.monotonic() + 30, ''
        while time.monotonic() < end:
            if self.process.poll() is not None:
                fail(f'{self.name} ended: {(self.folder / "logs/stderr").read_text().strip()}')
            answer = subprocess.run(['curl', '-sk', '-D-', '-o', self.folder / 'page', url],
                                    capture_output=True, text=True).stdout
            if wanted in answer:
                got = (self.folder / 'page').stat().st_size
                if size and got != size:
                    fail(f'{self.name} answers {got} bytes instead of {size}')
                return
            time.sleep(0.05)
        fail(f'{self.name} does not answer with "{wanted}": {answer}')

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(20)


class Cached(Server):
    """The published page cache; with TLS and HTTP/2 on other ports."""

    has_log = True
    listen_options = ''

    def write_configuration(self):
        shutil.copy(HERE / 'page.php', self.folder / 'www/index.php')
        # With the page 1.6 MB, as the front page of the published test.
        for number in range(IMAGES):
            (self.folder / f'www/{number}.jpg').write_bytes(os.urandom(IMAGE_BYTES))
        for name, size in FILES.items():
            (self.folder / 'www' / name).write_bytes(os.urandom(size))
        presets, published = ROOT / 'presets', ROOT / 'tests/published'
        main = (published / 'nginx.conf').read_text()
        site = (published / 'wordpress.conf').read_text()
        main = re.sub(r'^user .*;', f'user {"root" if IS_ROOT else "nobody"};', main, flags=re.M)
        main = main.replace('/var/log/yorozu', f'{self.folder}/logs')
        main = main.replace('/run/yorozu.pid', f'{self.folder}/pid')
        main = main.replace('/var/cache/yorozu', f'{self.folder}/cache')
        main = main.replace('../mime.types', f'{presets}/mime.types')
        site = site.replace('/var/log/yorozu/www.example.com', f'{self.folder}/logs/site')
        site = site.replace('/var/www/html', f'{self.folder}/www')
        site = site.replace('../fastcgi_params', f'{presets}/fastcgi_params')
        site = site.replace('unix:/run/php/wordpress.sock', f'unix:{self.peers.php_socket}')
        main, site = self.change(main, site)
        if self.name == 'nginx':
            # It has no memory tier, and of the codings only gzip.
            main = re.sub(r' memory=64m|(brotli|zstd)[^;]*;', '', main)
        (self.folder / 'conf/nginx.conf').write_text(main)
        (self.folder / 'conf/wordpress.conf').write_text(self.listening(site))

    def change(self, main, site):
        """What differs from the published configuration."""
        # A client may ask more often than a thousand times, as those of other servers may.
        main = main.replace('keepalive_timeout 65;', 'keepalive_timeout 65; keepalive_requests 1000000000;')
        types = 'text/css application/javascript'
        main = main.replace('gzip_min_length', f'brotli on; brotli_types {types}; zstd on; zstd_types {types};'
                                               ' gzip_min_length')
        if not self.has_log:
            main, site = (re.sub(r'access_log [^;]*;', 'access_log off;', text) for text in (main, site))
        return main, site

    def listening(self, site):
        start_ = re.search(r'^server \{', site, re.M).start()
        blocks = site[:start_] + site[start_:].replace('listen 80;', f'listen 127.0.0.1:{self.port}{self.listen_options};')
        for kind, port in (('ec', self.port_tls), ('rsa', self.port_rsa)):
            name = self.peers.folder / kind
            quic = '' if self.name == 'nginx' else f'listen 127.0.0.1:{port} quic; '
            blocks += site[start_:].replace(
                'listen 80;',
                f'listen 127.0.0.1:{port} ssl http2; {quic}ssl_certificate {name}.crt; ssl_certificate_key {name}.key;'
                ' ssl_protocols TLSv1.3; ssl_session_cache shared:TLS:10m; ssl_session_timeout 1h;')
        return blocks

    def warm(self):
        self.answers('X-Cache: HIT', self.url(), PAGE_BYTES)
        for port in (self.port_tls, self.port_rsa):
            self.answers('HIT', f'https://127.0.0.1:{port}/', PAGE_BYTES)


class Single(Cached):
    """The same with each datagram given to the system by itself, which is nginx's default."""

    def change(self, main, site):
        main, site = super().change(main, site)
        return main.replace('keepalive_timeout 65;', 'keepalive_timeout 65; quic_gso off;'), site


class Unlogged(Cached):
    """The same without access log."""

    has_log = False


class Crowded(Cached):
    """The same with room for ten thousand clients at once, which the published limits do not leave."""

    listen_options = ' backlog=16384'

    def change(self, main, site):
        main, site = super().change(main, site)
        main = main.replace('worker_connections 1024', 'worker_connections 12000')
        main = re.sub(r'worker_rlimit_nofile \d+', 'worker_rlimit_nofile 19000', main)
        return main, site


class Published(Cached):
    """As it was published, to the letter."""

    def change(self, main, site):
        return main, site


class Gateway(Server):
    """Upstreams of every protocol, with connections kept."""

    def write_configuration(self):
        self.fill('gateways.conf', 'nginx.conf')

    def warm(self):
        for path, size in (('/memcached/page', PAGE_BYTES), ('/proxy/page', PAGE_BYTES), ('/php/small.php', None)):
            self.answers(' 200 ', self.url(path), size)


class Floor(Server):
    """One read and one write: the bytes that yorozu sends, in the same way."""

    endings = ()

    def write_configuration(self):
        connection = 'close' if self.endings else 'keep-alive'
        answer = subprocess.run(['curl', '-si', '-H', f'Connection: {connection}', self.peers.answers_at],
                                capture_output=True).stdout
        (self.folder / 'answer').write_bytes(answer)

    def command(self):
        return [ROOT / 'target/release/yorozu-floor', self.port, self.folder / 'answer', *self.endings]


class ClosingFloor(Floor):
    endings = ('close',)


class ProxyFloor(Server):
    """Two reads and two writes, for the gateway of the same name: what yorozu sends to an upstream and to a client, nothing looked at."""

    path = '/proxy/page'

    def asked(self):
        """Where requests go, what goes there, and how many bytes come for it."""
        request = b'GET /page HTTP/1.1\r\nHost: web\r\n\r\n'
        with socket.create_connection(('127.0.0.1', self.peers.web_port)) as upstream:
            upstream.sendall(request)
            file = upstream.makefile('rb')
            head = b''.join(iter(file.readline, b'\r\n')) + b'\r\n'
        return self.peers.web_port, request, len(head) + PAGE_BYTES

    def answer(self):
        return PAGE_BYTES * b'x'

    def write_configuration(self):
        self.place, request, self.bytes = self.asked()
        content = self.answer()
        head = ('HTTP/1.1 200 OK\r\nServer: floor/0.0.0\r\nDate: Thu, 26 Nov 2026 04:00:00 GMT\r\nContent-Type: text/html; charset=UTF-8\r\n'
                f'Content-Length: {len(content)}\r\nConnection: keep-alive\r\n\r\n')
        (self.folder / 'answer').write_bytes(head.encode() + content)
        (self.folder / 'request').write_bytes(request)

    def command(self):
        return [ROOT / 'target/release/yorozu-floor', self.port, self.folder / 'answer', 'ask', self.place, self.folder / 'request', self.bytes]

    def warm(self):
        self.answers(' 200 ', self.url(), len(self.answer()))


class PhpFloor(ProxyFloor):
    path = '/php/small.php'

    def asked(self):
        names = re.findall(r'^fastcgi_param +(\S+) +([^;]+);', (ROOT / 'presets/fastcgi_params').read_text(), re.M)
        values = {name: value for name, value in names if not value.startswith('$')}
        values |= dict(REQUEST_METHOD='GET', SCRIPT_NAME=self.path, REQUEST_URI=self.path, DOCUMENT_URI=self.path, DOCUMENT_ROOT=str(self.peers.folder),
                       SERVER_PROTOCOL='HTTP/1.1', REQUEST_SCHEME='http', REMOTE_ADDR='127.0.0.1', REMOTE_PORT='40000', SERVER_ADDR='127.0.0.1',
                       SERVER_PORT=str(self.port), SERVER_NAME='', QUERY_STRING='', CONTENT_TYPE='', CONTENT_LENGTH='',
                       HTTP_HOST=f'127.0.0.1:{self.port}', SCRIPT_FILENAME=f'{self.peers.folder}/small.php')
        pairs = b''.join(struct.pack('>BI' if len(value) > 127 else '>BB', len(name), len(value) | (1 << 31 if len(value) > 127 else 0))
                         + name.encode() + value.encode() for name, value in values.items())
        # FastCGI 1.0, section 3: FCGI_BEGIN_REQUEST of a responder that keeps its connection, FCGI_PARAMS, FCGI_STDIN, FCGI_END_REQUEST.
        record = lambda kind, content: struct.pack('>BBHHBB', 1, kind, 1, len(content), 0, 0) + content
        request = record(1, struct.pack('>HB5x', 1, 1)) + record(4, pairs) + record(4, b'') + record(5, b'')
        with socket.socket(socket.AF_UNIX) as upstream:
            upstream.connect(str(self.peers.php_socket))
            upstream.sendall(request)
            file, count, kind = upstream.makefile('rb'), 0, 0
            while kind != 3:
                _, kind, _, length, padding, _ = struct.unpack('>BBHHBB', file.read(8))
                count += 8 + len(file.read(length + padding))
        return self.peers.php_socket, request, count

    def answer(self):
        return b'Hello from PHP'


class Varnish(Server):
    """Pages in memory; what it logs is written by varnishncsa, as its users do it."""

    path = '/page'
    has_log = True

    def write_configuration(self):
        self.fill('peers/varnish.vcl', 'default.vcl')

    def command(self):
        log = f'varnishncsa -n {self.folder}/run -w {self.folder}/logs/access.log &' if self.has_log else ''
        cache = (f'varnishd -F -n {self.folder}/run -a 127.0.0.1:{self.port} -f {self.folder}/conf/default.vcl'
                 ' -s malloc,256m -j none')
        # Only the shell knows both: the log begins when there is something to log.
        return ['bash', '-c', f'{cache} & cache=$!; trap "kill $cache" TERM;'
                f'until varnishadm -n {self.folder}/run ping; do sleep 0.1; done; {log} wait $cache; kill %2; wait']


class UnloggedVarnish(Varnish):
    has_log = False


class Haproxy(Server):
    """Pages in its small-object cache."""

    path = '/page'
    has_log = True

    def write_configuration(self):
        self.fill('peers/haproxy.cfg', 'haproxy.cfg',
                  LOG='log stdout format raw local0' if self.has_log else '', HTTPLOG='option httplog' if self.has_log else '')

    def command(self):
        return ['haproxy', '-db', '-f', self.folder / 'conf/haproxy.cfg']


class UnloggedHaproxy(Haproxy):
    has_log = False


class Apache(Server):
    """mod_cache_disk, mod_proxy, mod_ssl and mod_http2 under the event MPM."""

    path = '/page'
    has_log = True
    configuration = 'peers/apache.conf'

    def write_configuration(self):
        log = f'CustomLog {self.folder}/logs/access.log combined' if self.has_log else ''
        self.fill(self.configuration, 'apache.conf', LOG=log, APACHE_USER='User www-data\nGroup www-data' if IS_ROOT else '')
        # It refuses to serve as root.
        (self.folder / 'cache').chmod(0o777)

    def command(self):
        return ['/usr/sbin/apache2', '-f', self.folder / 'conf/apache.conf', '-DFOREGROUND', '-k', 'start']


class UnloggedApache(Apache):
    has_log = False


class TlsApache(Apache):
    """The page is a file: over TLS mod_cache_disk stores it again each time."""

    path = '/plain.html'


class ApachePhp(Apache):
    """mod_php, which needs a process for each client."""

    path = '/php/small.php'
    configuration = 'peers/apache-php.conf'

    def __init__(self, name, behind, folder):
        super().__init__(name, behind, folder)
        self.behind = None

    def warm(self):
        self.answers(' 200', self.url(), None)


class Caddy(Server):
    """Files, a reverse proxy, PHP; it has no cache."""

    path = '/proxy/page'

    def write_configuration(self):
        self.fill('peers/Caddyfile', 'Caddyfile')

    def command(self):
        return ['env', f'HOME={self.folder}', 'caddy', 'run', '--adapter', 'caddyfile', '--config',
                self.folder / 'conf/Caddyfile']


class TlsCaddy(Caddy):
    """It has no cache: the page is a file."""

    path = '/plain.html'


class Peers:
    """What stands behind the servers; on the clients' core."""

    def __init__(self, folder):
        self.folder = folder / 'peers'
        self.folder.mkdir()
        self.answers_at, self.is_root = None, IS_ROOT
        for name in ('page.html', 'plain.html'):
            (self.folder / name).write_bytes(b'x' * PAGE_BYTES)
        for name, size in FILES.items():
            (self.folder / name).write_bytes(os.urandom(size))
        (self.folder / 'small.php').write_text("<?php echo 'Hello from PHP';")
        (self.folder / 'file').write_bytes(os.urandom(16 << 20))
        (self.folder / 'download.php').write_text(
            "<?php while (ob_get_level()) ob_end_clean(); readfile(__DIR__ . '/file');")
        (self.folder / 'upload.php').write_text(
            "<?php if (!isset($_FILES['f']) || $_FILES['f']['error'] || $_FILES['f']['size'] < 1000000)"
            " http_response_code(500); echo 'stored';")
        (self.folder / 'ten.php').write_text(
            "<?php if (count($_FILES) != 10) http_response_code(500); echo 'stored';")
        for kind in ('ec', 'rsa'):
            certificate(self.folder, kind)
        self.web_port, self.memcached_port = free_port(), free_port()
        (self.folder / 'web.conf').write_text(f"""
            {'user root;' if IS_ROOT else ''} daemon off; pid {self.folder}/web.pid; error_log {self.folder}/web.log;
            events {{ worker_connections 4096; }}
            http {{ access_log off; keepalive_requests 1000000000; sendfile on; default_type text/html;
              server {{ listen 127.0.0.1:{self.web_port}; root {self.folder};
                location = /page {{ expires 1d; alias {self.folder}/page.html; }} }} }}""")
        self.php_socket = self.folder / 'php.sock'
        self.php = self.start_php()
        self.processes = [
            self.php,
            start(1, NGINX, '-c', self.folder / 'web.conf', '-e', self.folder / 'web.log'),
            start(1, 'memcached', '-l', '127.0.0.1', '-p', self.memcached_port, '-U', '0', '-t', '1',
                  *(['-u', 'root'] if IS_ROOT else [])),
        ]
        for port in (self.web_port, self.memcached_port):
            wait_for(port)
        with socket.create_connection(('127.0.0.1', self.memcached_port)) as connection:
            connection.sendall(b'set /memcached/page 0 0 %d\r\n%s\r\n' % (PAGE_BYTES, b'x' * PAGE_BYTES))
            if connection.recv(64) != b'STORED\r\n':
                fail('memcached did not store the page')

    def start_php(self):
        conf, user = self.folder / 'php-fpm.conf', 'user = root\ngroup = root\n' if IS_ROOT else ''
        conf.write_text(f'[global]\nerror_log = {self.folder}/php.log\n[www]\n{user}listen = {self.php_socket}\n'
                        'listen.mode = 0666\npm = static\npm.max_children = 64\nlisten.backlog = 1024\n'
                        'php_admin_value[upload_max_filesize] = 300M\nphp_admin_value[post_max_size] = 310M\n')
        process = start(1, '/usr/sbin/php-fpm8.2', '-R', '-F', '-y', conf)
        while not self.php_socket.exists():
            if process.poll() is not None:
                fail('php-fpm ended: ' + (self.folder / 'php.log').read_text())
            time.sleep(0.05)
        return process

    def stop(self):
        for process in self.processes:
            process.terminate()
            process.wait()
