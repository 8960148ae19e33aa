"""Real peers for the tests: PHP-FPM, Apache with PHP, memcached, and the servers under test."""
import collections, contextlib, itertools, os, pathlib, random, shutil, signal, socket, subprocess, sys, tempfile, threading, time, traceback
from supervised import below, mount_for_itself

ROOT = pathlib.Path(__file__).resolve().parent.parent
YOROZU = os.environ.get('YOROZU', str(ROOT / 'target/debug/yorozu'))
NGINX = '/usr/sbin/nginx'
# How many times longer than on a quiet machine anything may take.
PATIENCE = float(os.environ.get('PATIENCE', '1'))


class Ports:
    """A block of ports that is this process's own as long as it holds the first of them. They are below those of
    crates/testkit/src/server.rs, which are below those the system gives out by itself."""
    FIRST, BLOCKS, SIZE = 10000, 50, 200
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


def until(what, condition, seconds=60):
    """Waits for what comes about elsewhere. Half of the time at most goes into looking, as that is taken from what is waited for."""
    begun = time.monotonic()
    end = begun + seconds * PATIENCE
    while not (found := condition()):
        now = time.monotonic()
        assert now < end, f'waited in vain for {what}'
        time.sleep(min(max(0.01, now - begun), 0.5))
        begun = time.monotonic()
    return found


def paced(seconds, test, tries=10):
    """What a test gives that is right as long as it goes on fast enough: a time in which it fails and took longer than `seconds` is
    not judged, for then the machine stood still, and it is repeated. It is told how often it was."""
    for number in range(tries):
        begun = time.monotonic()
        try:
            return test(number)
        except AssertionError:
            if time.monotonic() - begun <= seconds or number == tries - 1:
                raise


def listens(port, host='127.0.0.1'):
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


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
                self.process.wait(20)
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

    def __init__(self, folder, www, address='127.0.0.1', port=None, prefix=()):
        self.port = port or free_port()
        modules = '/usr/lib/apache2/modules'
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
LoadModule mpm_prefork_module {modules}/mod_mpm_prefork.so
LoadModule authz_core_module {modules}/mod_authz_core.so
LoadModule dir_module {modules}/mod_dir.so
LoadModule mime_module {modules}/mod_mime.so
LoadModule php_module {modules}/libphp8.2.so
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
<Directory {www}>
    Require all granted
    DirectoryIndex index.php index.html
</Directory>
''')
        super().__init__([*prefix, '/usr/sbin/apache2', '-f', folder / 'apache.conf',
                          '-DFOREGROUND'], folder / 'apache.out')
        if not prefix:
            self.wait_for(lambda: listens(self.port))


class Server(Process):
    """yorozu, or nginx, with a configuration; `$port` and `$dir` in it are replaced."""

    def __init__(self, folder, http, program=None, main='', port=None, prefix=(), wait=True, user='root'):
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
events {{ worker_connections 4096; }}
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


class Ignored(Exception):
    """Says why a test is not run here."""


# The status of a test that is not run here.
IGNORED = 77


def tried(name, test, out):
    """Runs a test in a new process, so that none can end or hold up the others; the child's id."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    os.dup2(out.fileno(), 1)
    os.dup2(out.fileno(), 2)
    status = 1
    try:
        mount_for_itself()
        test()
        status = 0
    except Ignored as why:
        print(' '.join(str(why).split()))
        status = IGNORED
    except BaseException:
        traceback.print_exc()
    finally:
        # What is registered to happen at the end of the program is the parent's.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def end_all(pid):
    """Ends a child, and all processes below it."""
    for late in [pid, *below(pid)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(late, signal.SIGKILL)
    os.waitpid(pid, 0)


def told(name, seconds, status, output=''):
    """Prints the outcome of a test, as tests/suite.py reads it; whether it passed."""
    print(f'{"ok    " if status == 0 else "FAILED"}  {name}  {seconds:.1f} s', flush=True)
    print(output, end='' if output.endswith('\n') or not output else '\n', flush=True)
    return status == 0


class Pace:
    """How long the machine stood still: one who sleeps a moment, again and again, and wakes half a second late says so. A test that
    failed meanwhile is not judged, but run again; one that fails by itself does so each time."""
    TRIES = 4

    def __init__(self):
        self.stood, self.last = 0, time.monotonic()

    def sleep(self, seconds=0.01):
        time.sleep(seconds)
        late, self.last = time.monotonic() - self.last - seconds, time.monotonic()
        if late > 0.5:
            self.stood += late

    def watch(self):
        """Beside what the process does."""
        def go_on():
            while True:
                self.sleep(0.05)
        threading.Thread(target=go_on, daemon=True).start()
        return self

    def is_judged(self, name, tries, before):
        """Whether a test counts that failed for this time, where before it began the machine had stood for `before`."""
        stood = self.stood - before
        if stood and tries < self.TRIES:
            print(f'the machine stood still for {stood:.1f} s while {name} failed: it is run again', flush=True)
        return not stood or tries >= self.TRIES


class Running:
    """A test that runs in a process of its own."""

    def __init__(self, name, test, tries, seconds, pace):
        self.name, self.seconds, self.begun = name, seconds * PATIENCE, time.monotonic()
        self.test, self.tries, self.pace, self.stood = test, tries + 1, pace, pace.stood
        self.out = tempfile.TemporaryFile('w+', errors='replace')
        self.pid = tried(name, test, self.out)

    def is_over(self):
        found, status = os.waitpid(self.pid, os.WNOHANG)
        self.status = os.waitstatus_to_exitcode(status) if found else None
        return found or time.monotonic() > self.begun + self.seconds

    def told(self):
        """Prints its outcome; of one that was not over in time the processes are ended."""
        late = ''
        if self.status is None:
            end_all(self.pid)
            late = f'it was not over after {self.seconds:.0f} s\n'
        with self.out as out:
            out.seek(0)
            text = out.read() + late
        if self.status == IGNORED:
            print(f'ignored {self.name}: {text.splitlines()[-1]}', flush=True)
            return 'ignored'
        if self.status != 0 and not self.pace.is_judged(self.name, self.tries, self.stood):
            return 'again'
        return 'passed' if told(self.name, time.monotonic() - self.begun, self.status, text) else 'failed'


def run(tests, names, seconds=240, at_once=1):
    """Runs functions whose names contain one of `names`, each for `seconds` at most; says how many passed. Some may run at
    once: those that mostly wait."""
    waiting = [(name, test, 0) for name, test in tests.items() if not names or any(part in name for part in names)]
    running, counts, pace = [], collections.Counter(), Pace()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                running.append(Running(*waiting.pop(0), seconds, pace))
            for one in [one for one in running if one.is_over()]:
                running.remove(one)
                outcome = one.told()
                counts[outcome] += 1
                if outcome == 'again':
                    waiting.insert(0, (one.name, one.test, one.tries))
            pace.sleep()
    except KeyboardInterrupt:
        # They were told, too.
        for one in running:
            os.waitpid(one.pid, 0)
        raise
    ignored = f', {counts["ignored"]} ignored' if counts['ignored'] else ''
    print(f'{counts["passed"]} passed, {counts["failed"]} failed{ignored}')
    return 1 if counts['failed'] or not counts.total() - counts['again'] else 0
