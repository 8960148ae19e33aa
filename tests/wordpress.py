"""The real WordPress of `make run`, for tests."""
import fcntl, http.client, os, pathlib, re, shutil, signal, subprocess, tempfile, time, urllib.parse
from peers import ROOT, YOROZU, command_of, equal, free_port, until

# Runs a command where no name of this machine is known, as far as that is allowed.
NAMELESS = ['unshare', '-m', 'sh', '-c', 'mount --bind /dev/null /etc/hosts; exec "$@"', 'sh'] if os.geteuid() == 0 else []
# What an installation leaves; the rest is made at every start.
INSTALLED = ('mariadb', 'www', 'db-password', 'admin-password', 'keys.php', 'installed', 'plugin')
# Each run of PHP leaves a line: what it was asked for.
COUNTING = '<?php @file_put_contents(__DIR__ . "/../runs", ($_SERVER["REQUEST_URI"] ?? "") . "\n", FILE_APPEND | LOCK_EX);'


class Answer:
    def __init__(self, response, body):
        self.status, self.body = response.status, body
        self.fields = {name.lower(): value for name, value in response.getheaders()}

    @property
    def cache(self):
        return self.fields.get('x-cache')


class Site:
    """stack/run in a folder of its own."""

    def __init__(self, archive=None, data=None, prefix=(), **environment):
        """Begins with what `archive` has of an installed one, or is `data` itself; without both it installs WordPress."""
        self.prefix, self.environment = prefix, environment
        self.last_line = 'WordPress is at .*\n'
        self.folder = pathlib.Path(data or tempfile.mkdtemp(prefix='yorozu-site.'))
        self.folder.chmod(0o755)
        if archive:
            subprocess.run(['tar', '-C', self.folder, '-xf', archive], check=True)
            (self.folder / 'runs').touch()
            (self.folder / 'runs').chmod(0o666)
            (self.folder / 'www/count.php').write_text(COUNTING)
            (self.folder / 'www/.user.ini').write_text(f'auto_prepend_file = {self.folder}/www/count.php\n')
        self.start()

    def start(self, port=None):
        self.port = port or free_port()
        # Of a small machine, so that the database makes no log of 1 GB.
        own = {'YOROZU_DATA': str(self.folder), 'YOROZU_PORT': str(self.port), 'YOROZU_MEMORY': '2048'}
        environment = os.environ | own | self.environment
        # Not in the folder, whose disk may be full.
        self.out = pathlib.Path(f'{self.folder}.out')
        self.process = subprocess.Popen([*self.prefix, 'make', '-C', ROOT, 'run'], env=environment,
                                        stdin=subprocess.DEVNULL, stdout=open(self.out, 'w'),
                                        stderr=subprocess.STDOUT, start_new_session=True)

        def has_begun():
            assert self.process.poll() is None, self.out.read_text()
            return re.search(self.last_line, self.out.read_text())
        until(f'"{self.last_line}"', has_begun, 600, told=self.out.read_text)
        self.url = re.search(r'WordPress is at (http://127.0.0.1:\d+)', self.out.read_text())[1]
        self.port = int(self.url.rpartition(':')[2])
        # With YOROZU_TLS=1.
        self.secure = (re.findall(r'https://127.0.0.1:\d+', self.out.read_text()) or [None])[0]
        self.served = self.folder / 'yorozu'

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(300)

    def restart(self):
        self.stop()
        self.start()

    def end(self):
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.out.unlink()

    def get(self, path, method='GET', body=None, port=None, **fields):
        connection = http.client.HTTPConnection('127.0.0.1', port or self.port, timeout=60)
        headers = {name.replace('_', '-'): value for name, value in fields.items()}
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        answer = Answer(response, response.read())
        connection.close()
        return answer

    def php_runs(self):
        """How many requests PHP had, but for those of wp-cron, which WordPress asks for by itself and awaits no answer of."""
        lines = (self.folder / 'runs').read_text().splitlines(keepends=True)
        return sum(line.endswith('\n') and '/wp-cron.php' not in line for line in lines)

    def log(self):
        return self.out.read_text()

    def last_errors(self):
        """The end of what it says; and where it panicked, without the frames of libraries."""
        out = self.out.read_text()
        panics = re.findall(r'panicked at .*\n.*|^ +at \./crates/.*', out, re.M)
        return '\n'.join([*out.splitlines()[-20:], *panics[:20], ''])

    def script(self, name, text):
        """Writes a file of PHP, which sees it at once: by itself it looks at one again after two seconds."""
        file = self.folder / 'www' / name
        file.write_text(text)
        # Also one that had its name before.
        (self.folder / 'www/seen.php').write_text('<?php opcache_invalidate($_GET["file"], true); echo "seen";')
        equal(self.get(f'/seen.php?file={file}', 'POST').body, b'seen')

    def php(self, code, before=''):
        """What PHP prints that runs in WordPress, as the site's own user; `before` runs before WordPress is there."""
        user = ['runuser', '-u', 'www-data', '--'] if os.geteuid() == 0 else []
        text = ("%s $_SERVER['HTTP_HOST'] = '127.0.0.1'; require '%s/www/wp-load.php'; "
                "add_filter('pre_wp_mail', '__return_true'); %s" % (before, self.folder, code))
        # WordPress is compiled once, not for every question.
        compiled = self.folder / 'compiled'
        compiled.mkdir(exist_ok=True)
        compiled.chmod(0o777)
        settings = ('display_errors=stderr', 'opcache.enable_cli=1', 'opcache.file_cache_only=1', f'opcache.file_cache={compiled}')
        options = [word for setting in settings for word in ('-d', setting)]
        done = subprocess.run([*user, 'php', *options, '-r', text], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0 and not done.stderr, done.stderr + done.stdout
        return done.stdout

    def yorozu(self, *words, is_failing=False):
        """What the command line says, of a server that runs."""
        command = [YOROZU, '-p', f'{self.served}/', '-c', 'conf/nginx.conf', *words]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
        assert (done.returncode != 0) == is_failing, done.stdout
        return done.stdout

    def explain(self, path):
        return self.yorozu('cache', 'explain', self.url + path)

    def pid(self, name):
        """Of a process that stack/run started; of the server's master or PHP-FPM's, which `yorozu serve` did."""
        if name == 'server':
            return int((self.served / 'pid').read_text())
        if name == 'php-fpm':
            of_serve = (int(pid) for pid in subprocess.check_output(['pgrep', '-P', str(self.pid('yorozu'))], text=True).split())
            return next(pid for pid in of_serve if 'php-fpm: master' in command_of(pid))
        return int((self.folder / f'{name}.pid').read_text())

    def supervisor(self):
        """stack/run, of which `process` is the make."""
        status = pathlib.Path(f'/proc/{self.pid("yorozu")}/stat').read_text()
        return int(status.rpartition(')')[2].split()[1])

    def kill(self, *names):
        """What was said so far, to be given to `said`."""
        before = len(self.out.read_text())
        for name in names:
            os.kill(self.pid(name), signal.SIGKILL)
        return before

    def said(self, line, since=0):
        """The line that matches, once there is one."""
        text = lambda: self.out.read_text()[since:]
        return until(f'"{line}"', lambda: re.search(line, text()), told=text)

    @property
    def password(self):
        return (self.folder / 'admin-password').read_text().strip()


def log_in(browser, site, address=None):
    browser.open((address or site.url) + '/wp-login.php')
    browser.find('#user_login')
    browser.run('document.querySelector("#user_login").value = "admin";'
                'document.querySelector("#user_pass").value = arguments[0]', site.password)
    browser.click('#wp-submit')
    browser.wait(lambda: '/wp-admin/' in browser.url(), 'the dashboard')


class Visitor:
    """A browser without scripts: it keeps cookies and follows no redirect."""

    def __init__(self, site):
        self.site, self.cookies = site, {}

    def ask(self, path, method='GET', body=None, **fields):
        connection = http.client.HTTPConnection('127.0.0.1', self.site.port, timeout=60)
        if self.cookies:
            fields['Cookie'] = '; '.join(f'{name}={value}' for name, value in self.cookies.items())
        if isinstance(body, dict):
            body, fields['Content-Type'] = urllib.parse.urlencode(body), 'application/x-www-form-urlencoded'
        connection.request(method, path, body, fields)
        response = connection.getresponse()
        answer = Answer(response, response.read())
        connection.close()
        for line in response.headers.get_all('Set-Cookie') or ():
            name, _, value = line.partition(';')[0].partition('=')
            if re.search(r'expires=[^;]*(19\d\d|20[01]\d|202[0-5])|max-age=0', line, re.I):
                self.cookies.pop(name, None)
            else:
                self.cookies[name] = value
        return answer

    def log_in(self):
        self.ask('/wp-login.php')
        self.ask('/wp-login.php', 'POST', {'log': 'admin', 'pwd': self.site.password, 'testcookie': '1'})
        assert any(name.startswith('wordpress_logged_in') for name in self.cookies), self.cookies
        return self


def installed(archive):
    """Installs a WordPress from nothing, where no name of this machine is known, unless another process has done so; the archive of what
    others need to have it, too."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with open(archive.with_suffix('.lock'), 'w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            for old in archive.parent.glob('wordpress-*.tar'):
                # A run that is under way has a younger one.
                if time.time() - old.stat().st_mtime > 3600:
                    old.unlink()
            site = Site(prefix=NAMELESS)
            equal((site.get('/').status, site.get('/').cache), (200, 'HIT'), 'the front page')
            site.stop()
            part = archive.with_suffix('.part')
            subprocess.run(['tar', '-C', site.folder, '-cf', part, *INSTALLED], check=True)
            shutil.rmtree(site.folder)
            site.out.unlink()
            part.rename(archive)
    return archive
