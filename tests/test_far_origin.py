"""A far origin behind presets/edge: what saves its round trips; and how much, with FIGURES=1.

An origin is as far as wanted that answers when it is told to. The figures are those of docs/benchmarks.md: 140 ms between two
network namespaces, three layouts, nginx and yorozu side by side. That line is the kernel's netem where it has one, else a relay
of this program between two TUN devices: every packet waits half the round trip, the first one of a connection too.
"""
import concurrent.futures, ctypes, fcntl, heapq, http.server, os, re, select, struct, subprocess, threading, time
import pytest
from peers import NGINX, ROOT, YOROZU, Apache, Folder, Server, equal, get, until

def configuration(program):
    """The preset; nginx gets it without what it does not have."""
    text = (ROOT / 'presets/edge/nginx.conf').read_text()
    http = text[text.index('http {') + 6:text.rindex('}')]
    http = http.replace('include ../', f'include {ROOT}/presets/')
    http = re.sub(r'access_log .*;', '', http)
    http = http.replace('/var/cache/yorozu/edge', '$dir/cache/edge')
    http = http.replace('listen 80;', 'listen $port;')
    http = http.replace('proxy_cache_valid 200 301 10m;', 'proxy_cache_valid 200 301 2s;')
    if program == NGINX:
        http = http.replace(' memory=256m', '')
        http = re.sub(r'keepalive_ready \d+;|proxy_cache_(early_refresh|status) on;', '', http)
    return http


class Origin(http.server.ThreadingHTTPServer):
    """Numbers its connections and its answers; none comes before it `may_answer`."""

    def __init__(self):
        super().__init__(('127.0.0.1', 0), Handler)
        self.connections, self.asked, self.may_answer = [], [], threading.Event()
        self.may_answer.set()

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.may_answer.set()
        self.shutdown()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def setup(self):
        super().setup()
        self.server.connections.append(self)

    def do_GET(self):
        self.server.asked.append(self.server.connections.index(self))
        page = f'page {len(self.server.asked)}'.encode()
        self.server.may_answer.wait()
        self.send_response(200)
        self.send_header('Content-Length', str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *_):
        pass


def edge(folder, origin):
    http = configuration(YOROZU).replace('origin.example.com:80', f'127.0.0.1:{origin.server_port}')
    return Server(folder, http.replace('lock_timeout 30s', 'lock_timeout 300s'), main='worker_processes 1;')


def crowd(server, path):
    """What fifty visitors get at one time: what the cache did, and the page."""
    with concurrent.futures.ThreadPoolExecutor(50) as pool:
        answers = [*pool.map(lambda _: get(server.port, path), range(50))]
    return {(answer.getheader('X-Cache'), answer.content) for answer in answers}


def test_a_page_that_nobody_has_asked_for_costs_one_round_trip():
    """Its connection was made before."""
    with Origin() as origin, Folder() as folder, edge(folder, origin) as server:
        until('connections made ready', lambda: len(origin.connections) >= 8)
        ready = len(origin.connections)
        equal(get(server.port, '/').content, b'page 1')
        assert origin.asked[0] < ready, (origin.asked, ready)


def test_of_a_crowd_for_a_page_one_asks():
    with Origin() as origin, Folder() as folder, edge(folder, origin) as server:
        origin.may_answer.clear()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answers = pool.submit(crowd, server, '/')
            until('a request', lambda: origin.asked)
            origin.may_answer.set()
            equal({page for _, page in answers.result()}, {b'page 1'})
        equal(len(origin.asked), 1)


def test_no_request_waits_at_expiry():
    with Origin() as origin, Folder() as folder, edge(folder, origin) as server:
        equal(get(server.port, '/').content, b'page 1')
        time.sleep(2.1)  # its lifetime is what is tested
        origin.may_answer.clear()
        found = crowd(server, '/')
        assert {page for _, page in found} == {b'page 1'} and {cache for cache, _ in found} <= {'STALE', 'UPDATING'}, found
        until('a request for the new one', lambda: len(origin.asked) == 2)
        origin.may_answer.set()
        until('the new one', lambda: get(server.port, '/').content == b'page 2')


# --- figures -----------------------------------------------------------------------------------------------

ROUND_TRIP = 0.140
NEAR, FAR = f'yz-near-{os.getpid()}', f'yz-far-{os.getpid()}'
NEAR_IP, FAR_IP = '10.99.7.1', '10.99.7.2'
PAGE_BYTES = 26422


def sh(*command, **more):
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True, **more)


def within(namespace):
    return ['ip', 'netns', 'exec', namespace]


class Line:
    """Two namespaces and the way between them."""

    def __enter__(self):
        self.relay = None
        for namespace in (NEAR, FAR):
            sh('ip', 'netns', 'add', namespace)
            sh('ip', '-n', namespace, 'link', 'set', 'lo', 'up')
            # A connection that was idle sends on as fast as before; a setting of the origin's machine.
            sh(*within(namespace), 'sysctl', '-q', '-w', 'net.ipv4.tcp_slow_start_after_idle=0')
        if not self.netem():
            self.tun()
        return self

    def netem(self):
        sh('ip', '-n', NEAR, 'link', 'add', 'line', 'type', 'veth', 'peer', 'name', 'line', 'netns', FAR)
        for namespace, address in ((NEAR, NEAR_IP), (FAR, FAR_IP)):
            sh('ip', '-n', namespace, 'addr', 'add', f'{address}/24', 'dev', 'line')
            sh('ip', '-n', namespace, 'link', 'set', 'line', 'up')
            delay = ['tc', '-n', namespace, 'qdisc', 'add', 'dev', 'line', 'root', 'netem', 'delay',
                     f'{ROUND_TRIP / 2 * 1000:.0f}ms', 'limit', '100000']
            if subprocess.run(delay, capture_output=True).returncode:
                sh('ip', '-n', NEAR, 'link', 'del', 'line')
                return False
        self.kind = 'netem'
        return True

    def tun(self):
        ready, told = os.pipe()
        for namespace, own, other in ((NEAR, NEAR_IP, FAR_IP), (FAR, FAR_IP, NEAR_IP)):
            sh('ip', '-n', namespace, 'tuntap', 'add', 'line', 'mode', 'tun')
            sh('ip', '-n', namespace, 'addr', 'add', own, 'peer', other, 'dev', 'line')
            sh('ip', '-n', namespace, 'link', 'set', 'line', 'up')
        self.relay = os.fork()
        if self.relay == 0:
            try:
                relay(told)
            finally:
                os._exit(1)
        os.read(ready, 1)
        self.kind = 'a delaying relay'

    def __exit__(self, *_):
        if self.relay:
            os.kill(self.relay, 9)
            os.waitpid(self.relay, 0)
        for namespace in (NEAR, FAR):
            subprocess.run(['ip', 'netns', 'del', namespace], capture_output=True)


def open_tun(namespace):
    back = os.open('/proc/self/ns/net', os.O_RDONLY)
    enter(os.open(f'/run/netns/{namespace}', os.O_RDONLY))
    device = os.open('/dev/net/tun', os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, 0x400454ca, struct.pack('16sH', b'line', 0x0001 | 0x1000))
    enter(back)
    return device


def enter(namespace):
    if ctypes.CDLL(None, use_errno=True).setns(namespace, 0):
        raise OSError(ctypes.get_errno(), 'setns')


def relay(told):
    """Carries packets between the two devices, each after half a round trip."""
    near, far = open_tun(NEAR), open_tun(FAR)
    os.write(told, b'.')
    other, waiting, number = {near: far, far: near}, [], 0
    while True:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, device, packet = heapq.heappop(waiting)
            try:
                os.write(device, packet)
            except (BlockingIOError, OSError):
                pass
        pause = max(0, waiting[0][0] - time.monotonic()) if waiting else None
        for device in select.select([near, far], [], [], pause)[0]:
            try:
                while packet := os.read(device, 65536):
                    number += 1
                    heapq.heappush(waiting, (time.monotonic() + ROUND_TRIP / 2, number, other[device], packet))
            except BlockingIOError:
                pass


def ab(address, path, count=50):
    """ab -c 50 -n 50 from the near side: requests/s, and the slowest in ms."""
    out = subprocess.run([*within(NEAR), 'ab', '-q', '-c', '50', '-n', str(count),
                          f'http://{address}{path}'], capture_output=True, text=True)
    number = lambda pattern: float((re.search(pattern, out.stdout) or pytest.fail(out.stdout + out.stderr)).group(1))
    failed = number(r'Failed requests:\s+(\d+)')
    non_2xx = re.search(r'Non-2xx responses:\s+(\d+)', out.stdout)
    assert not failed and not non_2xx, out.stdout
    return dict(rate=number(r'Requests per second:\s+([\d.]+)'), slowest=number(r'100%\s+(\d+)'))


def first_byte(address, path):
    out = sh(*within(NEAR), 'curl', '-s', '-o', '/dev/null', '-w', '%{time_starttransfer} %{http_code}',
             f'http://{address}{path}').stdout.split()
    assert out[1] == '200', out
    return float(out[0])


def start(folder, program, namespace, origin):
    http = configuration(program).replace('origin.example.com:80', origin)
    server = Server(folder, http, program, prefix=within(namespace), wait=False)
    server.wait_for(lambda: subprocess.run(
        [*within(namespace), 'bash', '-c', f'echo >/dev/tcp/127.0.0.1/{server.port}'],
        capture_output=True).returncode == 0)
    return server


def row(layout, name, what):
    print(f'| {layout} | {name} | {what["rate"]:.1f}/s | {what["slowest"]:.0f} ms |', flush=True)


def measure(folder, origin, apache):
    """Rows of the layouts; the seconds to a first byte with each server."""
    first = {}
    for name, program in (('nginx', NGINX), ('yorozu', YOROZU)):
        with start(folder, program, NEAR, origin) as server:
            address = f'127.0.0.1:{server.port}'
            time.sleep(1)  # connections made ready take their round trips
            first[name] = first_byte(address, '/?first')
            time.sleep(1)
            row('cache near the user, first requests', name, ab(address, '/?page'))
            row('the same, from the cache', name, ab(address, '/?page'))
            time.sleep(2.5)
            row('the same, just after expiry', name, ab(address, '/?page'))
        with start(folder, program, FAR, f'127.0.0.1:{apache.port}') as server:
            address = f'{FAR_IP}:{server.port}'
            ab(address, '/?page')
            row('cache beside the origin', name, ab(address, '/?page'))
    return first


@pytest.mark.skipif('FIGURES' not in os.environ or os.geteuid() != 0, reason='FIGURES=1 wants figures; network namespaces need root')
def test_figures_of_three_layouts():
    with Line() as line, Folder() as folder:
        www = folder / 'www'
        www.mkdir()
        (www / 'index.php').write_text(f'<?php echo str_repeat("x", {PAGE_BYTES});')
        with Apache(folder, www, address='0.0.0.0', prefix=within(FAR)) as apache:
            origin = f'{FAR_IP}:{apache.port}'
            until('Apache', lambda: subprocess.run(
                [*within(NEAR), 'curl', '-sf', '-o', '/dev/null', f'http://{origin}/'],
                capture_output=True).returncode == 0)
            print(f'\nA page of {PAGE_BYTES} bytes, {ROUND_TRIP * 1000:.0f} ms by {line.kind}, ab -c 50 -n 50\n')
            print('| layout | server | requests/s | slowest |\n| --- | --- | --- | --- |')
            row('no cache: user, line, Apache', 'Apache', ab(origin, '/?direct'))
            for name, seconds in measure(folder, origin, apache).items():
                print(f'\nfirst byte of a page nobody has asked for, {name}: {seconds * 1000:.0f} ms', end='')
            print()
