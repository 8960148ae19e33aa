"""Real peers for the tests: PHP-FPM, Apache with PHP, memcached, and the servers under test."""
import contextlib, http.client, itertools, os, pathlib, random, shutil, signal, socket, subprocess, tempfile, threading, time

ROOT = pathlib.Path(__file__).resolve().parent.parent
YOROZU = os.environ.get('YOROZU', str(ROOT / 'target/debug/yorozu'))
NGINX = '/usr/sbin/nginx'
# Nothing here waits longer for what is to come about. It decides nothing where all is well.
SECONDS = 60
# Followed by the script's name.
FASTCGI = f'include {ROOT}/presets/fastcgi_params; fastcgi_param SCRIPT_FILENAME'


def equal(got, wanted, what=''):
    assert got == wanted, f'{what}: got {got!r}, wanted {wanted!r}'


def get(port, path='/', method='GET', body=None, **fields):
    """Asks over a new connection; an answer of http.client, with its `content`."""
    connection = http.client.HTTPConnection('127.0.0.1', port, timeout=SECONDS)
    connection.request(method, path, body, {n.replace('_', '-'): v for n, v in fields.items()})
    answer = connection.getresponse()
    answer.content = answer.read()
    connection.close()
    return answer


class Ports:
    """A block of ports that is this process's own as long as it holds the first of them. They are below those of
    crates/testkit/src/server.rs, which are below those the system gives out by itself."""
    FIRST, BLOCKS, SIZE = 10000, 25, 400
    mine = None

    def __init__(self):
        self.pid = os.getpid()
        for number in random.sample(range(self.BLOCKS), self.BLOCKS):
            self.claim, first = socket.socket(), self.FIRST + number * self.SIZE
            try:
                self.claim.bind(('127.0.0.1', first))
                break
            except OSError:
                self.claim.close()
        else:
            raise OSError('no block of ports is free')
        # Unbound ports come again only after all others.
        self.numbers = itertools.cycle(range(first + 1, first + self.SIZE))

    @classmethod
    def of_this_process(cls):
        if cls.mine is None or cls.mine.pid != os.getpid():
            cls.mine = cls()
        return cls.mine


def free_port():
    """A port that is given once, and on which nothing listens."""
    for port in Ports.of_this_process().numbers:
        with socket.socket() as probe:
            try:
                probe.bind(('127.0.0.1', port))
                return port
            except OSError:
                pass


def until(what, condition, seconds=SECONDS, told=lambda: ''):
    """Waits for what comes about elsewhere; `told` says what is there instead. Half of the time at most goes into looking, as that
    is taken from what is waited for."""
    begun = time.monotonic()
    end = begun + seconds
    while not (found := condition()):
        now = time.monotonic()
        assert now < end, f'waited in vain for {what} {told()}'
        time.sleep(min(max(0.01, now - begun), 0.5))
        begun = time.monotonic()
    return found


def listens(port, host='127.0.0.1'):
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


class Accepting:
    """A port of this machine, with each of whose connections `serve` of a subclass is called in a thread of its own."""

    def __init__(self):
        self.listener = socket.create_server(('127.0.0.1', 0), backlog=1024)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # Wakes the thread that accepts.
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


class Folder:
    """A folder that every user may enter, gone at the end."""

    def __init__(self):
        self.path = pathlib.Path(tempfile.mkdtemp(prefix='yorozu-peers.'))
        self.path.chmod(0o755)

    def __enter__(self):
        return self.path

    def __exit__(self, *_):
        shutil.rmtree(self.path, ignore_errors=True)


class Process:
    """A program of ours; it ends with its `with` block."""

    def __init__(self, command, out, **more):
        self.command, self.out, self.more = [str(word) for word in command], out, more
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL,
                                        stdout=open(self.out, 'a'), stderr=subprocess.STDOUT,
                                        start_new_session=True, **self.more)

    def wait_for(self, condition):
        def ready():
            assert self.process.poll() is None, f'{self.command}: {self.out.read_text()}'
            return condition()
        until(self.command[0], ready)
        return self

    @property
    def pid(self):
        return self.process.pid

    def kill(self):
        """All its processes, at once; what is no child of ours is waited for as well."""
        os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
        until('the end of all processes', lambda: not in_group(self.pid))

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                pass
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class Memcached(Process):
    def __init__(self, folder, *options):
        self.port = free_port()
        user = ['-u', 'nobody'] if os.geteuid() == 0 else []
        super().__init__(['memcached', '-l', '127.0.0.1', '-p', self.port, '-U', '0', '-m', '64',
                          *user, *options], folder / f'memcached-{self.port}.out')
        self.wait_for(lambda: listens(self.port))

    def again(self):
        self.start()
        self.wait_for(lambda: listens(self.port))

    def ask(self, text):
        with socket.create_connection(('127.0.0.1', self.port)) as connection:
            connection.sendall(text.encode() + b'\r\n')
            out = b''
            while not out.endswith((b'END\r\n', b'STORED\r\n', b'OK\r\n')):
                out += connection.recv(65536)
            return out.decode()

    def stat(self, name):
        lines = dict(line.split()[1:3] for line in self.ask('stats').splitlines()[:-1])
        return int(lines[name])


class Fpm(Process):
    """PHP-FPM on a Unix socket."""

    def __init__(self, folder, children=4, **settings):
        self.socket = folder / 'php.sock'
        lines = ['[global]', f'error_log = {folder}/fpm.log', 'daemonize = no', '[www]',
                 f'listen = {self.socket}', 'listen.mode = 0666', 'pm = static',
                 f'pm.max_children = {children}', 'listen.backlog = 1024']
        if os.geteuid() == 0:
            lines += ['user = www-data', 'group = www-data']
        lines += [f'php_admin_value[{name}] = {value}' for name, value in settings.items()]
        (folder / 'fpm.conf').write_text('\n'.join(lines) + '\n')
        program = shutil.which('php-fpm8.2') or '/usr/sbin/php-fpm8.2'
        super().__init__([program, '--nodaemonize', '--fpm-config', folder / 'fpm.conf'],
                         folder / 'fpm.out')
        self.wait_for(self.listens)

    def listens(self):
        """Whether it accepts connections: the socket is there some time before."""
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.socket)) == 0


class Apache(Process):
    """Apache with PHP inside."""

    def __init__(self, folder, www, address='127.0.0.1', port=None, prefix=(), modules=(), more=''):
        self.port = port or free_port()
        place = '/usr/lib/apache2/modules'
        loaded = '\n'.join(f'LoadModule {name}_module {place}/mod_{name}.so' for name in ('mpm_prefork', 'authz_core', 'dir', 'mime', *modules))
        (folder / 'apache.conf').write_text(f'''
ServerRoot {folder}
ServerName origin.example
PidFile {folder}/apache.pid
Listen {address}:{self.port}
{'User www-data' if os.geteuid() == 0 else ''}
{'Group www-data' if os.geteuid() == 0 else ''}
ErrorLog {folder}/apache.log
DefaultRuntimeDir {folder}
Mutex file:{folder}
{loaded}
LoadModule php_module {place}/libphp8.2.so
TypesConfig /etc/mime.types
<FilesMatch "\\.php$">
    SetHandler application/x-httpd-php
</FilesMatch>
StartServers 8
MinSpareServers 8
MaxSpareServers 64
MaxRequestWorkers 64
KeepAlive On
KeepAliveTimeout 60
MaxKeepAliveRequests 0
DocumentRoot {www}
# What others have left in a folder above decides nothing.
<Directory />
    AllowOverride None
</Directory>
<Directory {www}>
    Require all granted
    DirectoryIndex index.php index.html
</Directory>
{more}
''')
        super().__init__([*prefix, '/usr/sbin/apache2', '-f', folder / 'apache.conf',
                          '-DFOREGROUND'], folder / 'apache.out')
        if not prefix:
            self.wait_for(lambda: listens(self.port))


class Server(Process):
    """yorozu, or nginx, with a configuration; `$port` and `$dir` in it are replaced."""
    # Configurations and logs of those whose test has failed, by what they are.
    ended_by_failure = []

    def __init__(self, folder, http, program=None, main='', port=None, prefix=(), wait=True, user='root', connections=4096):
        program = program or YOROZU
        name = 'nginx' if 'nginx' in program else 'yorozu'
        self.folder, self.port = folder / f'{name}-{free_port()}', port or free_port()
        for sub in ('logs', 'cache', 'body', 'tmp'):
            (self.folder / sub).mkdir(parents=True)
        user = f'user {user};' if os.geteuid() == 0 else ''
        temporary = ' '.join(f'{kind}_temp_path {self.folder}/tmp/{kind};'
                             for kind in ('fastcgi', 'proxy'))
        if name == 'nginx':
            temporary += f' uwsgi_temp_path {self.folder}/tmp/u; scgi_temp_path {self.folder}/tmp/s;'
        text = f'''
{user}
daemon off;
pid {self.folder}/pid;
error_log {self.folder}/logs/error.log info;
{main}
events {{ worker_connections {connections}; }}
http {{
    access_log off;
    client_body_temp_path {self.folder}/body;
    {temporary}
    {http}
}}
'''.replace('$port', str(self.port)).replace('$dir', str(self.folder))
        (self.folder / 'nginx.conf').write_text(text)
        super().__init__([*prefix, program, '-p', f'{self.folder}/', '-c', self.folder / 'nginx.conf',
                          '-e', self.folder / 'logs/error.log'], self.folder / 'out')
        if wait:
            # The master listens before the server process serves, which says so.
            self.wait_for(lambda: listens(self.port) and (name == 'nginx' or 'start worker threads' in self.log()))

    def log(self):
        # It has the bytes of requests as they came.
        return (self.folder / 'logs/error.log').read_text(errors='replace')

    def __exit__(self, failure, *_):
        self.stop()
        if failure:
            self.ended_by_failure += [(f'{self.folder.name}: nginx.conf', (self.folder / 'nginx.conf').read_text()),
                                      (f'{self.folder.name}: error.log', '\n'.join(self.log().splitlines()[-40:]))]

    def files(self):
        """Temporary files that have a name."""
        return [path for sub in ('body', 'tmp') for path in (self.folder / sub).rglob('*')
                if path.is_file()]

    @property
    def serving_pid(self):
        """The process that serves: the master's child."""
        children = pathlib.Path(f'/proc/{self.pid}/task/{self.pid}/children')
        until('a process that serves', children.read_text)
        return int(children.read_text().split()[0])

    def resident_bytes(self, kind='VmRSS'):
        status = pathlib.Path(f'/proc/{self.serving_pid}/status').read_text()
        return int(status.split(f'{kind}:')[1].split()[0]) * 1024

    def allocated_bytes(self):
        """Without the parts of the program's file that were used so far."""
        return self.resident_bytes('RssAnon')


def children(pid):
    """The processes that one has begun, or that lost their parent below it."""
    found = set()
    for task in pathlib.Path(f'/proc/{pid}/task').iterdir():
        # A thread that ends meanwhile has left its children to another.
        with contextlib.suppress(OSError):
            found.update(map(int, (task / 'children').read_text().split()))
    return found


def command_of(pid):
    """The name and arguments of a process, each ended by a NUL; nothing once it has ended."""
    with contextlib.suppress(OSError):
        return pathlib.Path(f'/proc/{pid}/cmdline').read_text()
    return ''


def is_running(pid):
    with contextlib.suppress(OSError):
        return pathlib.Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0] != 'Z'
    return False


def below(pid):
    """A process, and all below it that have not ended."""
    found = [pid]
    for one in found:
        with contextlib.suppress(OSError):
            found += children(one)
    return found


def in_group(group):
    """The processes of a group that run."""
    found = []
    for process in pathlib.Path('/proc').glob('[0-9]*'):
        try:
            state, _, its_group = (process / 'stat').read_text().rpartition(')')[2].split()[:3]
            # The state is that of the first thread; as long as another ends, its sockets still listen.
            has_ended = state in 'ZX' and len([*(process / 'task').iterdir()]) < 2
        except OSError:
            continue
        if int(its_group) == group and not has_ended:
            found.append(int(process.name))
    return found
