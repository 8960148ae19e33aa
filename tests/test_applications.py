"""uwsgi and SCGI with a real application server: uWSGI with Python, asked by yorozu and by nginx."""
import hashlib, os
from peers import NGINX, Folder, Process, Server, equal, free_port, get

# What it was told, and a digest of the content that it read as far as CONTENT_LENGTH.
APPLICATION = '''
import hashlib

def application(environ, start_response):
    path = environ['PATH_INFO']
    body = environ['wsgi.input'].read(int(environ.get('CONTENT_LENGTH') or 0))
    if path == '/redirect':
        start_response('302 Found', [('Location', '/elsewhere')])
        return []
    if path == '/long':
        start_response('200 OK', [('Content-Type', 'text/plain')])
        return (b'%07d\\n' % number for number in range(100000))
    names = ('REQUEST_METHOD', 'PATH_INFO', 'QUERY_STRING', 'HTTP_X_ONE', 'HTTP_COOKIE', 'SERVER_NAME', 'CONTENT_TYPE')
    told = ' '.join(environ.get(name, '-') for name in names)
    text = '%s %d %s' % (told, len(body), hashlib.sha256(body).hexdigest())
    start_response('201 Made', [('Content-Type', 'text/plain'), ('Content-Length', str(len(text)))])
    return [text.encode()]
'''
PARAMS = '''REQUEST_METHOD $request_method; REQUEST_URI $request_uri; PATH_INFO $document_uri; QUERY_STRING $query_string;
    CONTENT_TYPE $content_type; CONTENT_LENGTH $content_length; SERVER_PROTOCOL $server_protocol; SERVER_NAME $server_name;
    SERVER_PORT $server_port; REMOTE_ADDR $remote_addr; SCRIPT_NAME ""'''


class Uwsgi(Process):
    """uWSGI with Python at two addresses, one for each protocol."""

    def __init__(self, folder):
        self.addresses = {kind: f'127.0.0.1:{free_port()}' for kind in ('uwsgi', 'scgi')}
        (folder / 'application.py').write_text(APPLICATION)
        user = ['--uid', 'www-data', '--gid', 'www-data'] if os.geteuid() == 0 else []
        super().__init__(['uwsgi', '--plugin', 'python3', '--master', '--die-on-term', '--processes', '2', *user,
                          '--socket', self.addresses['uwsgi'], '--scgi-socket', self.addresses['scgi'], '--wsgi-file',
                          folder / 'application.py'], folder / 'uwsgi.out')
        self.wait_for(lambda: 'spawned uWSGI worker 2' in (folder / 'uwsgi.out').read_text())


def configuration(addresses):
    params = [line.strip() for line in PARAMS.split(';')]
    # SCGI's own length is the first of its headers; a second one is not allowed.
    places = ''.join(f'''location /{kind}/ {{ rewrite ^/{kind}(.*) $1 break; {kind}_pass {address};
        {' '.join(f'{kind}_param {param};' for param in params if kind == 'uwsgi' or 'LENGTH' not in param)} }}
        location /live/{kind}/ {{ rewrite ^/live/{kind}(.*) $1 break; {kind}_pass {address}; {kind}_request_buffering off;
        {' '.join(f'{kind}_param {param};' for param in params if kind == 'uwsgi' or 'LENGTH' not in param)} }}'''
        for kind, address in addresses.items())
    return f'server {{ listen 127.0.0.1:$port; server_name example.org; client_max_body_size 0; {places} }}'


def answer(port, path, method='GET', body=None, **fields):
    got = get(port, path, method, body, **fields)
    return got.status, got.reason, got.headers['Content-Type'], got.headers['Location'], got.content


def test_an_application_is_told_and_answers_the_same_as_behind_nginx():
    large = os.urandom(3_000_000)
    digest = hashlib.sha256(large).hexdigest().encode()
    with Folder() as folder, Uwsgi(folder) as uwsgi:
        conf = configuration(uwsgi.addresses)
        with Server(folder, conf) as server, Server(folder, conf, NGINX) as nginx:
            for kind in uwsgi.addresses:
                both = lambda *words, **fields: [answer(s.port, f'/{kind}{words[0]}', *words[1:], **fields)
                                                 for s in (server, nginx)]
                for path, method, body in [('/a%20b?q=1', 'GET', None), ('/head', 'HEAD', None), ('/a', 'POST', 'text'),
                                           ('/a', 'POST', large), ('/redirect', 'GET', None), ('/long', 'GET', None)]:
                    ours, theirs = both(path, method, body, X_One='1', Cookie='a=b')
                    equal(ours, theirs, f'{kind} {method} {path}')
                    assert body is not large or digest in ours[4], ours
                    assert path != '/long' or len(ours[4]) == 800_000, len(ours[4])
                # A body that is sent on while it arrives.
                equal(answer(server.port, f'/live/{kind}/a', 'POST', large)[4].split()[-1], digest)
            assert 'panic' not in server.log()
