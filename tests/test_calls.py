"""gRPC with its own server and client, and nginx as an upstream of HTTP/2; beside nginx where it can do the same."""
import concurrent.futures, os, pathlib, subprocess, sys
import openssl
from peers import NGINX, Folder, Process, Server, equal, free_port, get, until

PEERS = pathlib.Path(__file__).resolve().parent / 'calls_peers.py'
CALLS = ('echo', 'empty', 'large', 'fail', 'unknown', 'late', 'metadata', 'talk', 'many', 'break', 'count', 'sum')


def python():
    """A Python that has grpcio; Debian's has it, another that comes first in PATH may not."""
    for program in (sys.executable, '/usr/bin/python3'):
        if subprocess.run([program, '-c', 'import grpc'], capture_output=True).returncode == 0:
            return program
    return None


class Service(Process):
    """gRPC's server, without TLS and with it."""

    def __init__(self, folder):
        openssl.authority(folder)
        self.ports = free_port(), free_port()
        super().__init__([python(), PEERS, 'serve', *map(str, self.ports), folder / 'origin.example.pem',
                          folder / 'origin.example.key'], folder / 'grpc.out')
        self.wait_for(lambda: 'serving' in (folder / 'grpc.out').read_text())


def ask(port, *calls, authority=''):
    """What calls came to, by name."""
    done = subprocess.run([python(), PEERS, 'ask', f'127.0.0.1:{port}', authority, *calls], capture_output=True, text=True,
                          timeout=600)
    assert done.returncode == 0, done.stderr
    return dict(line.split(' ', 1) for line in done.stdout.splitlines())


def listening(server, rest=''):
    """As nginx of Debian says it, too."""
    return f'server {{ listen 127.0.0.1:$port http2; client_max_body_size 0; grpc_set_header X-Set set; {server} }} {rest}'


def test_calls_come_to_the_same_as_without_a_proxy_and_behind_nginx():
    with Folder() as folder, Service(folder) as service:
        plain, encrypted = service.ports
        conf = listening('location / { grpc_pass grpc://app; }',
                         f'upstream app {{ server 127.0.0.1:{plain}; keepalive 20; }}')
        secure = listening(f'''location / {{ grpc_pass grpcs://127.0.0.1:{encrypted}; grpc_ssl_name origin.example;
            grpc_ssl_verify on; grpc_ssl_trusted_certificate {folder}/ca.pem; }}''')
        wanted = ask(plain, *CALLS)
        wanted['metadata'] = wanted['metadata'].replace("'yes', None", "'yes', 'set'")
        with Server(folder, conf) as server, Server(folder, conf, NGINX) as nginx, Server(folder, secure) as tls:
            for one in (server, nginx, tls):
                equal(ask(one.port, *CALLS), wanted)
            for one in (server, tls):
                assert 'panic' not in one.log() and '[error]' not in one.log(), one.log()


def test_calls_at_the_same_time_do_not_disturb_each_other():
    with Folder() as folder, Service(folder) as service:
        conf = listening('location / { grpc_pass app; }',
                         f'upstream app {{ server 127.0.0.1:{service.ports[0]}; keepalive 4; }}')
        with Server(folder, conf) as server, concurrent.futures.ThreadPoolExecutor(6) as pool:
            for found in pool.map(lambda _: ask(server.port, 'many', 'talk', 'sum', 'many', 'count'), range(6)):
                equal((found['many'], found['sum'], found['count']), ('200', '6000000', '2006890'))
            assert '[error]' not in server.log(), server.log()


def test_what_a_client_gets_where_there_is_no_server():
    unavailable = '''error_page 502 504 = /unavailable; location = /unavailable { internal; default_type application/grpc;
        add_header grpc-status 14; add_header grpc-message "not there"; return 204; }'''
    with Folder() as folder:
        conf = listening(f'location / {{ grpc_pass 127.0.0.1:{free_port()}; }} {unavailable}')
        with Server(folder, conf) as server, Server(folder, conf, NGINX) as nginx:
            for one in (server, nginx):
                equal(ask(one.port, 'echo'), {'echo': 'UNAVAILABLE not there []'})


def test_nginx_as_an_upstream_of_http_2():
    large = os.urandom(3_000_000)
    backend = '''
        log_format of_connections "$connection";
        server { listen 127.0.0.1:$port http2; access_log $dir/logs/connections.log of_connections; client_max_body_size 0; keepalive_requests 100000; root $dir;
            location /store { dav_methods PUT; create_full_put_path on; client_body_temp_path $dir/body; }
            location /head { return 200 "$request_uri $http_host $scheme $http_x_one $server_protocol"; } }'''
    with Folder() as folder, Server(folder, backend, NGINX, user='root') as origin:
        (origin.folder / 'large').write_bytes(large)
        (origin.folder / 'store').mkdir()
        os.chmod(origin.folder / 'store', 0o777)
        with Server(folder, f'''upstream o {{ server 127.0.0.1:{origin.port}; keepalive 40; }}
                proxy_cache_path $dir/cache keys_zone=z:1m;
                server {{ listen 127.0.0.1:$port; client_max_body_size 0; proxy_http_version 2;
                location / {{ proxy_pass http://o; proxy_set_header Host a.example; proxy_set_header X-One 1; }}
                location /live/ {{ proxy_pass http://o/; proxy_request_buffering off; proxy_buffering off; }}
                location /cached/ {{ proxy_pass http://o/; proxy_cache z; proxy_cache_valid 1h; add_header X-Cache $upstream_cache_status; }}
                }}''') as server:
            equal(get(server.port, '/head?q=1').content.decode(), '/head?q=1 a.example http 1 HTTP/2.0')
            def have(path):
                found = get(server.port, path)
                assert (found.status, found.content) == (200, large), (path, found.status, len(found.content))
                return found
            for path in ('/large', '/live/large', '/cached/large'):
                have(path)
            # A page is stored behind its answer.
            until('the page from the cache', lambda: have('/cached/large').headers['X-Cache'] == 'HIT')
            equal(get(server.port, '/cached/large', Range='bytes=5-9').content, large[5:10])
            for path in ('/store/a', '/live/store/b'):
                assert get(server.port, path, 'PUT', large).status in (201, 204), path
                equal((origin.folder / 'store' / path[-1]).read_bytes(), large, path)
            equal(get(server.port, '/large', 'HEAD').headers['Content-Length'], str(len(large)))
            equal(get(server.port, '/nothing').status, 404)
            with concurrent.futures.ThreadPoolExecutor(20) as pool:
                answers = list(pool.map(lambda number: get(server.port, f'/head?{number}').status, range(1000)))
            equal(set(answers), {200})
            lines = (origin.folder / 'logs/connections.log').read_text().split()
            assert len(lines) > 1000 and len(set(lines)) < 100, (len(lines), len(set(lines)))
            assert '[error]' not in server.log().replace('open()', ''), server.log()
