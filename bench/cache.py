"""Rows about the page cache: stampede, expiry, restart, and the cost of a hit against the number of pages."""
import json, os, pathlib, re, select, signal, socket, statistics, subprocess, sys, threading, time

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent / 'tests')]
from clients import fail, hits_during
from measure import cpu_seconds, process_tree, resident_kilobytes
from peers import free_port

PAGE_BYTES = 2000
MOST = 1_000_000
# Pages the figure is taken from, whatever else is stored.
HOT = 100


class Origin:
    """An nginx that makes any page at once, to fill caches with; on the client's core."""

    def __init__(self, folder):
        self.folder, self.port = folder / 'origin', free_port()
        self.folder.mkdir()
        user = 'user root;' if os.geteuid() == 0 else ''
        (self.folder / 'conf').write_text(f"""
            {user} daemon off; pid {self.folder}/pid; error_log {self.folder}/log;
            events {{ worker_connections 4096; }}
            http {{ access_log off; keepalive_requests 1000000000;
              map $uri $group {{ "~(?<last>[0-9][0-9])$" "g$last"; default few; }}
              server {{ listen 127.0.0.1:{self.port}; add_header Cache-Control max-age=86400;
                add_header Surrogate-Key $group;
                location / {{ return 200 "{'x' * PAGE_BYTES}"; }} }} }}""")
        self.process = subprocess.Popen(['taskset', '-c', '1', '/usr/sbin/nginx', '-c', self.folder / 'conf',
                                         '-e', self.folder / 'log'])
        listens(self.port)

    def stop(self):
        self.process.terminate()
        self.process.wait()


def listens(port, seconds=20):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(('127.0.0.1', port)) == 0:
                return
        time.sleep(0.001)
    fail(f'nothing listens on {port}')


class Cache:
    """One server with a cache before PHP and before the origin."""

    def __init__(self, name, program, folder, php_socket, origin):
        self.name, self.program, self.folder, self.port = name, program, folder / f'{name}-cache', free_port()
        (self.folder / 'logs').mkdir(parents=True)
        self.runs = self.folder / 'runs'
        (self.folder / 'page.php').write_text(
            f"<?php file_put_contents('{self.runs}', '.', FILE_APPEND | LOCK_EX);"
            "usleep(1000 * (int) ($_GET['wait'] ?? 0)); echo str_repeat('x', 16000);")
        self.runs.touch()
        self.folder.chmod(0o777), self.runs.chmod(0o666)
        user = 'user root;' if os.geteuid() == 0 else ''
        memory = ' memory=64m' if name == 'yorozu' else ''
        presets = HERE.parent / 'presets'
        (self.folder / 'nginx.conf').write_text(f"""
            {user} daemon off; worker_processes 1; pid {self.folder}/pid; error_log {self.folder}/logs/error.log;
            worker_rlimit_nofile 8192;
            events {{ worker_connections 4096; }}
            http {{ access_log off; keepalive_requests 1000000000;
              fastcgi_cache_path {self.folder}/php levels=1:2 keys_zone=php:10m inactive=1d{memory};
              proxy_cache_path {self.folder}/many levels=2:2 keys_zone=many:200m inactive=1d
                loader_files=10000 loader_sleep=1ms loader_threshold=1s{memory};
              upstream origin {{ server 127.0.0.1:{origin.port}; keepalive 64; }}
              server {{ listen 127.0.0.1:{self.port} backlog=4096;
                include {presets}/fastcgi_params; fastcgi_param SCRIPT_FILENAME {self.folder}/page.php;
                fastcgi_cache php; fastcgi_cache_key $request_uri; fastcgi_cache_lock on;
                location /plain {{ fastcgi_pass unix:{php_socket}; fastcgi_cache_valid 1h; }}
                location /second {{ fastcgi_pass unix:{php_socket}; fastcgi_cache_valid 1s;
                  fastcgi_cache_use_stale updating; fastcgi_cache_background_update on; }}
                add_header X-Cache $upstream_cache_status;
                location /many {{ proxy_pass http://origin; proxy_http_version 1.1;
                  proxy_set_header Connection ""; proxy_cache many;
                  proxy_cache_key $scheme$request_method$host$request_uri; }} }} }}""")
        self.start()

    def start(self):
        self.process = subprocess.Popen(['taskset', '-c', '0', self.program, '-p', f'{self.folder}/', '-c',
                                         self.folder / 'nginx.conf'], stdout=subprocess.DEVNULL,
                                        stderr=open(self.folder / 'logs/stderr', 'a'))
        listens(self.port)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)

    def kill(self):
        """Ends all its processes at once, with nothing saved, and waits until none of them listens any more."""
        tree = process_tree(self.process.pid)
        for pid in tree:
            os.kill(pid, signal.SIGKILL)
        self.process.wait()
        while any(os.path.exists(f'/proc/{pid}') for pid in tree):
            time.sleep(0.01)

    def ask(self, path):
        with socket.create_connection(('127.0.0.1', self.port)) as client:
            client.sendall(f'GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n'.encode())
            answer = b''
            while piece := client.recv(1 << 20):
                answer += piece
        if not answer.startswith(b'HTTP/1.1 200 '):
            fail(f'{self.name} answers {path} with {answer[:80]!r}')
        return answer

    def count_runs(self):
        return self.runs.stat().st_size


def crowd(port, path, count):
    """Seconds each of `count` clients waited that were connected before they all asked at once."""
    request = f'GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n'.encode()
    clients = [socket.create_connection(('127.0.0.1', port)) for _ in range(count)]
    poll, begun, times, failed = select.epoll(), {}, [], 0
    for client in clients:
        client.setblocking(False)
        poll.register(client, select.EPOLLIN)
    for client in clients:
        begun[client.fileno()] = (client, time.monotonic(), [0])
        client.send(request)
    while begun:
        for number, _ in poll.poll():
            client, since, got = begun[number]
            piece = client.recv(1 << 20)
            got[0] += len(piece)
            if not piece:
                times.append(time.monotonic() - since)
                failed += got[0] < 16000
                poll.unregister(number)
                client.close()
                del begun[number]
    return times, failed


def line(title, cells, wanted=''):
    return title, cells.get('nginx', '-'), cells['yorozu'], wanted


def stampede_row(caches, rounds):
    cells = {}
    for cache in caches:
        slowest, runs, failed = [], 0, 0
        for number in range(rounds):
            before = cache.count_runs()
            times, bad = crowd(cache.port, f'/plain?wait=300&round={number}', 1000)
            slowest.append(max(times))
            runs, failed = max(runs, cache.count_runs() - before), failed + bad
        cells[cache.name] = f'{runs} run(s) of PHP, slowest {1000 * statistics.median(slowest):.0f} ms, {failed} failed'
    return [line('1,000 clients for one missing page that takes 300 ms', cells, 'wanted: 1 run, under 400 ms')]


def expiry_row(caches, rounds, seconds):
    cells = {}
    for cache in caches:
        p99 = {'/plain': [], '/second': []}
        for path in p99:
            cache.ask(path)
        for _ in range(rounds):
            for path, found in p99.items():
                out = subprocess.run(['taskset', '-c', '1', 'wrk', '-t1', '-c50', f'-d{max(3, seconds)}s', '--latency',
                                      f'http://127.0.0.1:{cache.port}{path}'], capture_output=True, text=True).stdout
                number, unit = re.search(r'\n\s+99%\s+([\d.]+)(us|ms|s)', out).groups()
                found.append(float(number) * {'us': 0.001, 'ms': 1, 's': 1000}[unit])
        plain, second = (statistics.median(found) for found in p99.values())
        cells[cache.name] = f'p99 {plain:.2f} ms, expiring {second:.2f} ms: {second / plain:.2f}'
    return [line('a page that expires each second against one that does not, 50 keep-alive clients', cells,
                 'wanted: at most 2')]


def fill(cache, first, last):
    """Has the pages from `first` to below `last` made."""
    script = cache.folder / 'fill.lua'
    script.write_text(f"""
        local n, last = {first} - 1, {last}
        function request()
            n = n + 1
            if n >= last then n = {first} end
            return wrk.format("GET", "/many/" .. n)
        end""")
    while True:
        rate = subprocess.run(['taskset', '-c', '1', 'wrk', '-t1', '-c64', f'-d{max(1, (last - first) // 8000)}s', '-s', script,
                               f'http://127.0.0.1:{cache.port}'], capture_output=True, text=True).stdout
        asked = int(re.search(r'(\d+) requests in', rate)[1])
        first += asked
        if first >= last:
            return
        script.write_text(script.read_text().replace(re.search(r'local n, last = (\d+)', script.read_text())[1], str(first - 1), 1))


def hit_cost(cache, seconds):
    """CPU in us per hit on one of the hot pages."""
    script = cache.folder / 'hot.lua'
    script.write_text(f'local n = 0\nfunction request() n = (n + 1) % {HOT} return wrk.format("GET", "/many/" .. n) end')
    before = cpu_seconds(cache.process.pid)
    out = subprocess.run(['taskset', '-c', '1', 'wrk', '-t1', '-c50', f'-d{seconds}s', '-s', script,
                          f'http://127.0.0.1:{cache.port}'], capture_output=True, text=True).stdout
    requests = int(re.search(r'(\d+) requests in', out)[1])
    return (cpu_seconds(cache.process.pid) - before) * 1e6 / requests


def entries_rows(caches, rounds, seconds):
    counts = [100, 1000, 10_000, 100_000, MOST]
    series = {cache.name: [] for cache in caches}
    have = 0
    for count in counts:
        for cache in caches:
            fill(cache, have, count)
        have = count
        found = {cache.name: [] for cache in caches}
        for _ in range(rounds):
            for cache in caches:
                found[cache.name].append(hit_cost(cache, seconds))
        for name, costs in found.items():
            series[name].append((count, costs))
    first, resident = {}, {}
    for cache in caches:
        cache.stop()
        begun = time.monotonic()
        cache.start()
        cache.ask('/many/77')
        first[cache.name] = f'{1000 * (time.monotonic() - begun):.0f} ms'
        empty = resident_kilobytes(cache.process.pid) * 1024
        # The folder is read meanwhile (nginx begins a minute after the start); it is let finish.
        time.sleep(90)
        last, end = 0, time.monotonic() + 300
        while time.monotonic() < end:
            time.sleep(5)
            now = resident_kilobytes(cache.process.pid) * 1024
            if now == last:
                break
            last = now
        grown = resident_kilobytes(cache.process.pid) * 1024 - empty
        resident[cache.name] = f'{grown / MOST:.0f} bytes' if grown > 0 else '-'
    return series, [line(f'start with {MOST:,} pages on disk: until the first hit', first,
                         'wanted: under 1 s'),
                    line('resident memory for each of them once they are known', resident,
                         'wanted: under 200'),
                    *large_purge_rows(caches[-1])]


def large_purge_rows(cache):
    """Purges of a tenth of the pages and of all, and a start right behind that."""
    def seconds(work):
        begun = time.monotonic()
        count = work()
        return time.monotonic() - begun, count

    def start():
        cache.kill()
        cache.start()
        if b'X-Cache: HIT' in cache.ask('/many/77'):
            fail('a purged page is back')

    tenth, of_tags = seconds(lambda: purge(cache, tags=[f'g{number:02}' for number in range(10)]))
    rest, of_all = seconds(lambda: purge(cache, all=True))
    again, _ = seconds(start)
    return [line(f'purge by tag of {of_tags:,} among {MOST:,} pages, then of all {of_all:,}: until it has answered',
                 {'yorozu': f'{1000 * tenth:.0f} ms, {1000 * rest:.0f} ms'}),
            line('kill -9 right behind that, and a start: until the first new page', {'yorozu': f'{1000 * again:.0f} ms'})]


def purge(cache, **batch):
    """A purge over the control socket; how many pages it removed."""
    content = json.dumps(batch).encode()
    with socket.socket(socket.AF_UNIX) as control:
        control.connect(str(cache.folder / 'pid.sock'))
        control.sendall(b'POST /cache/purge HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s' % (len(content), content))
        answer = b''
        while piece := control.recv(65536):
            answer += piece
    return json.loads(answer.partition(b'\r\n\r\n')[2])['purged']


def purge_rows(cache, rounds, seconds):
    """nginx has nothing to compare with."""
    fill(cache, 0, 100_000)
    until, whole = [], []
    for number in range(rounds):
        tag = f'g{number:02}'
        thread = threading.Thread(target=lambda: (whole.append(time.monotonic()), purge(cache, tags=[tag]),
                                                  whole.append(time.monotonic())))
        cache.ask(f'/many/1{number:02}')
        begun = time.monotonic()
        thread.start()
        while b'X-Cache: HIT' in cache.ask(f'/many/1{number:02}'):
            pass
        until.append(time.monotonic() - begun)
        thread.join()
    took = statistics.median(end - start for start, end in zip(whole[::2], whole[1::2]))
    first = line('purge of a tag of 1,000 among 100,000 pages: until the first new answer, and until it has answered',
                 {'yorozu': f'{1000 * statistics.median(until):.1f} ms, {1000 * took:.0f} ms'}, 'wanted: under 5 ms')
    script = cache.folder / 'hot.lua'
    script.write_text('local n = 0\nfunction request() n = (n + 1) % 50 '
                      'return wrk.format("GET", "/many/" .. (n * 100 + n)) end')
    def hits(purging):
        tagged = lambda number: purge(cache, tags=[f'g{50 + number % 50}'])
        return hits_during(tagged if purging else None, cache.port, script, seconds, '-c50')
    hits(False)
    ratio = statistics.median(hits(True) / hits(False) for _ in range(rounds))
    return [first, line('hits per second during 100 tag purges per second, against without',
                        {'yorozu': f'{ratio:.2f}'}, 'wanted: at least 0.9')]


def restart_row(caches):
    cells = {}
    for cache in caches:
        pages = [f'/plain?page={number}' for number in range(500)]
        for page in pages:
            cache.ask(page)
        time.sleep(1)  # files are written behind the answers
        before = cache.count_runs()
        cache.kill()
        cache.start()
        begun = time.monotonic()
        for page in pages:
            cache.ask(page)
        spent = time.monotonic() - begun
        cells[cache.name] = f'{cache.count_runs() - before} run(s) of PHP, {1e6 * spent / len(pages):.0f} us a page'
    return [line('500 pages asked for once each after kill -9 and start', cells)]


def measure(results, folder, php_socket, programs, wants, rounds, seconds):
    origin, caches = Origin(folder), []
    rows = dict(stampede=lambda: stampede_row(caches, rounds), expiry=lambda: expiry_row(caches, rounds, seconds),
                restart=lambda: restart_row(caches), purge=lambda: purge_rows(caches[-1], rounds, seconds))
    try:
        for name, program in programs.items():
            caches.append(Cache(name, program, folder, php_socket, origin))
        for name in filter(wants, rows):
            results.add_line(name, rows[name]())
        if wants('entries'):
            series, lines = entries_rows(caches, rounds, seconds)
            results.add_chart('entries', 'pages stored', series)
            results.add_line('entries', lines)
    finally:
        for cache in caches:
            cache.stop()
        origin.stop()
