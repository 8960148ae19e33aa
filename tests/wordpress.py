"""The real WordPress of `make run`, for tests."""
import http.client, os, pathlib, re, shutil, signal, subprocess, sys, tempfile, time, traceback
from peers import YOROZU, free_port, until

ROOT = pathlib.Path(__file__).resolve().parent.parent


class Answer:
    def __init__(self, response, body):
        self.status, self.body = response.status, body
        self.fields = {name.lower(): value for name, value in response.getheaders()}

    @property
    def cache(self):
        return self.fields.get('x-cache')


class Site:
    """stack/run in a folder of its own."""

    def __init__(self, data=None, **environment):
        self.environment = environment
        self.folder = pathlib.Path(data or tempfile.mkdtemp(prefix='yorozu-site.'))
        self.folder.chmod(0o755)
        self.start()

    def start(self):
        self.port = free_port()
        own = {'YOROZU_DATA': str(self.folder), 'YOROZU_PORT': str(self.port)}
        environment = os.environ | own | self.environment
        self.out = self.folder / 'run.out'
        self.process = subprocess.Popen(['make', '-C', ROOT, 'run'], env=environment,
                                        stdin=subprocess.DEVNULL, stdout=open(self.out, 'w'),
                                        stderr=subprocess.STDOUT, start_new_session=True)
        end = time.monotonic() + 300
        while 'WordPress is at' not in self.out.read_text():
            assert self.process.poll() is None, self.out.read_text()
            assert time.monotonic() < end, self.out.read_text()
            time.sleep(0.05)
        self.url = re.search(r'http://127.0.0.1:\d+', self.out.read_text()).group(0)
        self.port = int(self.url.rpartition(':')[2])

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)

    def restart(self):
        self.stop()
        self.start()

    def end(self):
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def get(self, path, method='GET', body=None, **fields):
        connection = http.client.HTTPConnection('127.0.0.1', self.port, timeout=60)
        headers = {name.replace('_', '-'): value for name, value in fields.items()}
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        answer = Answer(response, response.read())
        connection.close()
        return answer

    def php_runs(self):
        return (self.folder / 'log/php-access.log').read_text().count('\n')

    def log(self):
        return (self.folder / 'log/site.access.log').read_text()

    def script(self, name, text):
        (self.folder / 'www' / name).write_text(text)

    def php(self, code):
        """What PHP prints that runs in WordPress, as the site's own user."""
        user = ['runuser', '-u', 'www-data', '--'] if os.geteuid() == 0 else []
        text = ("$_SERVER['HTTP_HOST'] = '127.0.0.1'; require '%s/www/wp-load.php'; "
                "add_filter('pre_wp_mail', '__return_true'); %s" % (self.folder, code))
        done = subprocess.run([*user, 'php', '-d', 'display_errors=stderr', '-r', text], capture_output=True,
                              text=True, timeout=120)
        assert done.returncode == 0 and not done.stderr, done.stderr + done.stdout
        return done.stdout

    def yorozu(self, *words, is_failing=False):
        """What the command line says, of a server that runs."""
        command = [YOROZU, '-p', f'{self.folder}/', '-c', 'conf/nginx.conf', *words]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
        assert (done.returncode != 0) == is_failing, done.stdout
        return done.stdout

    def explain(self, path):
        return self.yorozu('cache', 'explain', self.url + path)

    def pid(self, name='yorozu'):
        return int((self.folder / f'{name}.pid').read_text())

    def supervisor(self):
        """stack/run, of which `process` is the make."""
        status = pathlib.Path(f'/proc/{self.pid()}/stat').read_text()
        return int(status.rpartition(')')[2].split()[1])

    def kill(self, *names):
        """What was said so far, to be given to `said`."""
        before = len(self.out.read_text())
        for name in names:
            os.kill(self.pid(name), signal.SIGKILL)
        return before

    def said(self, line, since=0):
        """The line that matches, once there is one."""
        until(f'"{line}" in {self.out.read_text()[since:]}',
              lambda: re.search(line, self.out.read_text()[since:]))
        return re.search(line, self.out.read_text()[since:])

    @property
    def password(self):
        return (self.folder / 'admin-password').read_text().strip()


def equal(got, expected, what=''):
    assert got == expected, f'{what}: got {got!r}, expected {expected!r}'


def log_in(browser, site):
    browser.open(site.url + '/wp-login.php')
    browser.find('#user_login')
    browser.run('document.querySelector("#user_login").value = "admin";'
                'document.querySelector("#user_pass").value = arguments[0]', site.password)
    browser.click('#wp-submit')
    browser.wait(lambda: '/wp-admin/' in browser.url(), 'the dashboard')


def main(names):
    """Runs the `test_…` among `names`, those of which the arguments name a part, on one site."""
    wanted = sys.argv[1:]
    tests = [(name, test) for name, test in names.items() if name.startswith('test_')
             and (not wanted or any(word in name for word in wanted))]
    site, failed = Site(), 0
    try:
        for name, test in tests:
            try:
                test(site)
                print(f'ok     {name}', flush=True)
            except Exception:
                failed += 1
                print(f'FAILED {name}\n{traceback.format_exc()}', flush=True)
    finally:
        site.end()
    print(f'{len(tests) - failed} passed, {failed} failed')
    sys.exit(failed > 0)
