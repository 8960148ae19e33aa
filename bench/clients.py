"""Clients that load a server from the other core; each gives requests, requests/s, p99 in ms, errors, CPU seconds."""
import os, pathlib, re, subprocess, sys, threading, time

from measure import cpu_seconds

ROOT = pathlib.Path(__file__).resolve().parent.parent

PAGE_BYTES = 16059


def fail(text):
    sys.exit(f'bench: {text}')


def client(*command):
    return subprocess.run(['taskset', '-c', '1', *map(str, command)], capture_output=True, text=True)


def milliseconds(text):
    match = re.match(r'([\d.]+)(us|ms|s|m)$', text)
    if not match:
        fail(f'no time: "{text}"')
    number, unit = match.groups()
    return float(number) * {'us': 0.001, 'ms': 1, 's': 1000, 'm': 60000}[unit]


def find(pattern, out, server):
    """What a client printed; a client that printed something else is shown, not guessed about."""
    match = re.search(pattern, out)
    if not match:
        state = server.process.poll()
        fail(f'{server.name} ({"running" if state is None else f"ended, status {state}"}): no "{pattern}" in:\n{out}')
    return match.group(1)


def wrk(server, seconds, *headers, path=None, clients=100, script=None, whole=False, tls=False):
    """Keep-alive clients, or with `Connection: close` new ones; `whole`: PHP's own time counts, too."""
    roots = [server.process.pid, *([server.behind.pid] if whole and server.behind else [])]
    before = cpu_seconds(*roots)
    options = [part for header in headers for part in ('-H', header)]
    options += ['-s', script] if script else []
    done = client('wrk', '-t1', f'-c{clients}', f'-d{seconds}s', '--timeout', '20s', '--latency', *options,
                  server.url(path, tls))
    out = done.stdout + done.stderr
    cpu = cpu_seconds(*roots) - before
    requests = int(find(r'(\d+) requests in', out, server))
    rate = float(find(r'Requests/sec:\s+([\d.]+)', out, server))
    p99 = milliseconds(find(r'\n\s+99%\s+(\S+)', out, server))
    errors = sum(map(int, re.findall(r'(?:connect|read|write|timeout) (\d+)', out)))
    errors += sum(map(int, re.findall(r'Non-2xx or 3xx responses: (\d+)', out)))
    return dict(requests=max(requests, 1), rate=rate, p99=p99, errors=errors, cpu=cpu)


def hits_during(purge, port, script, seconds, *options):
    """Hits per second of wrk's requests, while `purge` is called a hundred times a second with a number that grows; `None`:
    while nothing is."""
    stop = threading.Event()

    def purges():
        # A client like wrk: not on the server's core.
        os.sched_setaffinity(threading.get_native_id(), {1})
        number = 0
        while not stop.wait(0.01):
            number += 1
            purge(number)
    thread = threading.Thread(target=purges)
    if purge:
        thread.start()
    out = subprocess.run(['taskset', '-c', '1', 'wrk', '-t1', *options, f'-d{seconds}s', '-s', script,
                          f'http://127.0.0.1:{port}'], capture_output=True, text=True).stdout
    stop.set()
    if purge:
        thread.join()
    assert 'Non-2xx' not in out, out
    return float(re.search(r'Requests/sec:\s+([\d.]+)', out)[1])


def h2load(server, seconds, *options):
    """HTTP/2 clients: 100 connections, 10 streams each."""
    before = cpu_seconds(server.process.pid)
    out = client('h2load', '-t1', '-c100', '-m10', f'-D{seconds}', *options, server.url(tls=True)).stdout
    cpu = cpu_seconds(server.process.pid) - before
    requests = int(find(r'(\d+) succeeded', out, server))
    errors = sum(map(int, re.findall(r'(\d+) (?:failed|errored|timeout)', out)))
    errors += sum(map(int, re.findall(r'(\d+) [345]xx', out)))
    rate = float(find(r'finished in [^,]+, ([\d.]+) req/s', out, server))
    p99 = milliseconds(find(r'time for request:\s+\S+\s+(\S+)', out, server))
    return dict(requests=max(requests, 1), rate=rate, p99=p99, errors=errors, cpu=cpu)


def h2_handshakes(server, seconds):
    """HTTP/2 clients, a new connection for each page: 100 at a time, again and again. The client has no session to resume."""
    before, begun = cpu_seconds(server.process.pid), time.monotonic()
    requests = errors = 0
    while time.monotonic() < begun + seconds:
        out = client('h2load', '-t1', '-c100', '-n100', '-m1', server.url(tls=True)).stdout
        requests += int(find(r'(\d+) succeeded', out, server))
        errors += sum(map(int, re.findall(r'(\d+) (?:failed|errored|timeout)', out)))
        errors += sum(map(int, re.findall(r'(\d+) [345]xx', out)))
    rate = requests / (time.monotonic() - begun)
    cpu = cpu_seconds(server.process.pid) - before
    return dict(requests=max(requests, 1), rate=rate, p99=None, errors=errors, cpu=cpu)


def h3load(server, seconds, streams=10):
    """HTTP/3 clients of our own: 100 connections, 10 streams each; or `new`: one request each, from 10 clients."""
    before = cpu_seconds(server.process.pid)
    done = client(ROOT / 'target/release/yorozu-h3load', server.port_tls, server.path, 10 if streams == 'new' else 100, streams,
                  seconds)
    cpu = cpu_seconds(server.process.pid) - before
    out = done.stdout + done.stderr
    number = lambda name: float(find(name + r' ([\d.]+)', out, server))
    requests = int(number('requests'))
    return dict(requests=max(requests, 1), rate=number('rate'), p99=number('p99'), errors=int(number('errors')), cpu=cpu)


def at_rate(server, seconds, rates, paths=('/',)):
    """HTTP/1.1 clients that ask `rates` times a second, one rate after the other, whatever the answers
    take: 50 connections."""
    log, uris = server.folder / 'rate.log', server.folder / 'uris'
    uris.write_text(''.join(f'{server.url(path)}\n' for path in paths))
    before = cpu_seconds(server.process.pid)
    requests, errors, times, each = 0, 0, [], max(1, seconds // len(rates))
    for rate in rates:
        log.unlink(missing_ok=True)
        out = client('h2load', '--h1', '-t1', '-c50', f'--rps={rate // 50}', f'-D{each}', f'--log-file={log}',
                     '-i', uris).stdout
        requests += int(find(r'(\d+) succeeded', out, server))
        errors += sum(map(int, re.findall(r'(\d+) [345]xx', out)))
        times += [int(line.split()[2]) / 1000 for line in log.read_text().splitlines()]
    cpu = cpu_seconds(server.process.pid) - before
    times.sort()
    return dict(requests=max(requests, 1), rate=requests / (each * len(rates)),
                p99=times[len(times) * 99 // 100] if times else 0, errors=errors, cpu=cpu)


def handshakes(server, seconds, kind, key='ec'):
    """One client, a new TLS connection and a page each time; `-new` or `-reuse` of the session."""
    before = cpu_seconds(server.process.pid)
    port = server.port_tls if key == 'ec' else server.port_rsa
    out = client('openssl', 's_time', kind, '-www', server.path, '-connect', f'127.0.0.1:{port}',
                 '-time', str(seconds)).stdout
    cpu = cpu_seconds(server.process.pid) - before
    # The last line of each part: with -reuse the first part only makes the session.
    parts = re.findall(r'(\d+) connections in (\d+) real seconds, (\d+) bytes read', out)
    if not parts:
        fail(f'{server.name}: openssl s_time says {out}')
    count, time_, size = parts[-1]
    errors = 0 if int(size) > PAGE_BYTES else int(count)
    return dict(requests=max(int(count), 1), rate=int(count) / max(int(time_), 1), p99=None, errors=errors, cpu=cpu)


def ab(server, clients, requests, path=None, options=''):
    """A new connection per request; failures of any kind are errors."""
    before = cpu_seconds(server.process.pid)
    done = client('bash', '-c', f'ulimit -n 40000; exec ab -q -c {clients} -n {requests} {options} {server.url(path)}')
    cpu = cpu_seconds(server.process.pid) - before
    number = lambda name: int((re.search(name + r':\s+(\d+)', done.stdout) or [0, 0])[1])
    complete = number('Complete requests')
    errors = requests - complete + number('Failed requests') + number('Non-2xx responses')
    rate = float((re.search(r'Requests per second:\s+([\d.]+)', done.stdout) or [0, 0])[1])
    p99 = float((re.search(r'99%\s+(\d+)', done.stdout) or [0, 0])[1])
    return dict(requests=max(complete, 1), rate=rate, p99=p99, errors=errors, cpu=cpu)


def upload_script(server):
    """A multipart body of 1 MB, for wrk."""
    script = server.folder / 'upload.lua'
    script.write_text("""
        local edge = "yorozu-boundary"
        wrk.method = "POST"
        wrk.headers["Content-Type"] = "multipart/form-data; boundary=" .. edge
        wrk.body = "--" .. edge .. '\\r\\nContent-Disposition: form-data; name="f"; filename="f.bin"' ..
            "\\r\\nContent-Type: application/octet-stream\\r\\n\\r\\n" .. string.rep("x", 1048576) ..
            "\\r\\n--" .. edge .. "--\\r\\n"
    """)
    return script


def fill_script(server):
    """A different page for each request, in each coding, for wrk."""
    script = server.folder / 'fill.lua'
    script.write_text("""
        local codings, count = {"gzip", "br", "zstd", "identity"}, 0
        request = function()
            count = count + 1
            return wrk.format(nil, "/page-" .. count .. "/", {["Accept-Encoding"] = codings[count % 4 + 1]})
        end
    """)
    return script


def ab_upload(server):
    """The published upload test: 3 clients, each request 10 images of 100 KB."""
    body = server.folder / 'ten'
    edge = 'yorozu-boundary'
    part = (f'--{edge}\r\nContent-Disposition: form-data; name="{{}}"; filename="i.jpg"\r\n'
            f'Content-Type: image/jpeg\r\n\r\n{"x" * 102400}\r\n')
    body.write_text(''.join(part.format(f'f{number}') for number in range(10)) + f'--{edge}--\r\n')
    return ab(server, 3, 300, '/upload/ten.php',
              f"-k -p {body} -T 'multipart/form-data; boundary={edge}'")
