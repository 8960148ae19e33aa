"""What a hit costs as the configuration, or the request, grows."""
import time

from clients import wrk
from servers import Server

BOTH = ('nginx', 'yorozu')


class Scaled(Server):
    """A page cache with `count` of something more."""

    path = '/page'

    def __init__(self, name, behind, folder, what, count):
        self.what, self.count = what, count
        super().__init__(name, behind, folder)

    def write_configuration(self):
        numbers = range(self.count)
        more = dict(locations=lambda n: f'location /l{n}/ {{ return 204; }}',
                    regexes=lambda n: f'location ~ ^/r{n}/x {{ return 204; }}').get(self.what)
        inside = '\n'.join(map(more, numbers)) if more else ''
        beside = '\n'.join(f'server {{ listen 127.0.0.1:{self.port}; server_name s{n}.example; return 204; }}'
                           for n in numbers) if self.what == 'servers' else ''
        (self.folder / 'conf/nginx.conf').write_text(f"""
            {'user root;' if self.peers.is_root else ''} worker_processes 1; pid {self.folder}/pid;
            error_log {self.folder}/logs/error.log; events {{ worker_connections 1024; }}
            http {{
                access_log off;
                keepalive_requests 1000000000;
                server_names_hash_max_size 65536;
                proxy_cache_path {self.folder}/cache keys_zone=pages:10m{' memory=64m' if self.name == 'yorozu' else ''};
                {beside}
                server {{
                    listen 127.0.0.1:{self.port};
                    server_name asked.example;
                    {inside}
                    location / {{
                        proxy_pass http://127.0.0.1:{self.peers.web_port};
                        proxy_cache pages;
                        proxy_cache_valid 1d;
                    }}
                }}
            }}""")

    def warm(self):
        # The named server is no default one: with the name it is found among all.
        self.answers(' 200', self.url(), None) if self.what != 'servers' else self.answers(' 204', self.url(), None)


class Chart:
    def __init__(self, title, what, counts):
        self.title, self.what, self.counts = title, what, counts

    def measure(self, bench, folder, arguments):
        """For each server the points: a count, and CPU in microseconds of each round."""
        series = {name: [] for name in BOTH}
        for count in self.counts:
            sub = folder / f'{self.what}-{count}-{time.monotonic_ns()}'
            sub.mkdir()
            servers = {name: Scaled(name, bench.peers, sub, self.what, count) for name in BOTH}
            fields = [f'X-Field-{number}: value' for number in range(count)] if self.what == 'fields' else []
            found = {name: [] for name in BOTH}
            for server in servers.values():
                wrk(server, 1, 'Host: asked.example', *fields)
            for _ in range(arguments.rounds):
                for name, server in servers.items():
                    result = wrk(server, arguments.seconds, 'Host: asked.example', *fields)
                    found[name].append(result['cpu'] / result['requests'] * 1e6)
            for name, server in servers.items():
                series[name].append((count, found[name]))
                server.stop()
        return series


CHARTS = {
    'scale-locations': Chart('prefix locations', 'locations', (1, 10, 100, 1000)),
    'scale-regexes': Chart('regex locations', 'regexes', (1, 10, 100, 1000)),
    'scale-servers': Chart('server names', 'servers', (1, 10, 100, 1000)),
    'scale-fields': Chart("fields of the client's request", 'fields', (1, 4, 16, 64)),
}
