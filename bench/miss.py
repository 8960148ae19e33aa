"""What a visitor waits for when a page is not stored: the real WordPress of `make run`, behind Debian's nginx and behind yorozu."""
import asyncio, os, pathlib, signal, statistics, subprocess, sys, time

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent / 'tests')]
from clients import fail
from peers import free_port, until
from wordpress import Site

# Visitors at the same time.
CROWDS = 1, 10, 50
# Pages for each round, server and crowd, at least; each is asked for once.
PAGES = 60
NUMBER = iter(range(1 << 60))


class Front:
    """A server before the PHP of a site, which compresses pages and stores them."""

    def __init__(self, name, program, site):
        self.name, self.port, self.folder = name, free_port(), site.folder / f'front-{name}'
        self.folder.mkdir()
        self.folder.chmod(0o777)
        user = 'user www-data;' if os.geteuid() == 0 else ''
        memory = ' memory=64m' if name == 'yorozu' else ''
        (self.folder / 'nginx.conf').write_text(f"""
            {user} daemon off; worker_processes 1; pid {self.folder}/pid; error_log {self.folder}/error.log;
            events {{ worker_connections 4096; }}
            http {{ access_log off; gzip on; gzip_comp_level 5;
              client_body_temp_path {self.folder}/body; proxy_temp_path {self.folder}/proxy; fastcgi_temp_path {self.folder}/fastcgi;
              uwsgi_temp_path {self.folder}/uwsgi; scgi_temp_path {self.folder}/scgi;
              fastcgi_cache_path {self.folder}/pages levels=1:2 keys_zone=pages:10m inactive=1h{memory};
              server {{ listen 127.0.0.1:{self.port} backlog=1024; root {site.folder}/www; index index.php;
                location / {{ try_files $uri $uri/ /index.php?$args; }}
                location ~ \\.php$ {{
                  include {HERE.parent}/presets/fastcgi_params; fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;
                  fastcgi_pass unix:{site.served}/php.sock;
                  fastcgi_cache pages; fastcgi_cache_key $request_uri; fastcgi_cache_valid 200 1h;
                  add_header X-Cache $upstream_cache_status; }} }} }}""")
        self.process = subprocess.Popen([program, '-p', f'{self.folder}/', '-c', self.folder / 'nginx.conf', '-e',
                                         self.folder / 'error.log'], stdout=subprocess.DEVNULL)
        until(f'{name} to listen', lambda: self.process.poll() is not None or (self.folder / 'pid').exists())

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


async def ask(front, host):
    """Seconds until the first byte of a page that nobody has asked for, and until its last."""
    reader, writer = await asyncio.open_connection('127.0.0.1', front.port)
    target = f'/?miss={next(NUMBER)}'
    begun = time.monotonic()
    writer.write(f'GET {target} HTTP/1.1\r\nHost: {host}\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n'.encode())
    first = await reader.read(1)
    at_first = time.monotonic() - begun
    answer = first + await reader.read()
    at_last = time.monotonic() - begun
    writer.close()
    head = answer.partition(b'\r\n\r\n')[0].lower()
    if not (head.startswith(b'http/1.1 200 ') and b'x-cache: miss' in head and b'content-encoding: gzip' in head):
        fail(f'{front.name} answers {target} with {head!r}')
    return at_first, at_last


async def crowd(front, host, count, pages):
    """The same of a number of visitors, each of whom asks for one page after the other."""
    found = []

    async def visitor(share):
        for _ in range(share):
            found.append(await ask(front, host))
    await asyncio.gather(*(visitor(pages // count) for _ in range(count)))
    return found


def cell(times):
    of = lambda part: 1000 * sorted(times)[min(len(times) - 1, int(len(times) * part))]
    return f'{of(0.5):.0f} ms, {of(0.99):.0f} ms'


def lines(programs, rounds):
    """The rows: for each crowd the first byte and the last, median and p99."""
    site, fronts = Site(), []
    try:
        for name, program in programs.items():
            fronts.append(Front(name, program, site))
        host, out = f'127.0.0.1:{site.port}', []
        for front in fronts:
            asyncio.run(crowd(front, host, 4, 16))
        for count in CROWDS:
            found = {front.name: [] for front in fronts}
            for number in range(rounds):
                # Alternate who goes first, so that drift of the machine hits all.
                for front in fronts[::1 if number % 2 == 0 else -1]:
                    found[front.name] += asyncio.run(crowd(front, host, count, max(PAGES, count)))
            for what, place in (('first', 0), ('last', 1)):
                nginx, yorozu = ([times[place] for times in found[name]] for name in ('nginx', 'yorozu'))
                visitors = 'one visitor' if count == 1 else f'{count} visitors at once'
                ratio = statistics.median(yorozu) / statistics.median(nginx)
                out.append((f'a page of WordPress that is not stored, gzip, {visitors}: until its {what} byte, median and p99',
                            cell(nginx), f'{cell(yorozu)} **{ratio:.2f}**', 'wanted: not slower' if place == 0 else ''))
        return out
    finally:
        for front in fronts:
            front.stop()
        site.end()
