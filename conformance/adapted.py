"""Configurations of others, made such that they run here: on ports, files, certificates and origins that a test has.

A configuration is nginx.conf or a part of its `http {}`. What comes out has `$www`, `$fpm`, `$crt`, `$key`, `$dir`, `$port`, `$tls` and `$other`
in the place of what stands where the configuration comes from; `$other` is the port of an origin over HTTP.
"""
import re

try:
    import crossplane
except ImportError:
    raise SystemExit('crossplane, which reads configurations, is not there: pip install crossplane')

# What says where something is on another machine, or what only time decides, is left out.
LEFT_OUT = {'access_log', 'daemon', 'disable_symlinks', 'error_log', 'include', 'limit_conn', 'limit_conn_zone', 'limit_rate', 'limit_req', 'limit_req_zone', 'load_module', 'lock_file',
            'mail', 'open_log_file_cache', 'perl_modules', 'pid', 'proxy_bind', 'real_ip_recursive', 'resolver', 'resolver_timeout', 'set_real_ip_from', 'ssl_crl', 'ssl_dhparam', 'ssl_ecdh_curve',
            'ssl_engine', 'ssl_ocsp', 'ssl_password_file', 'ssl_session_ticket_key', 'ssl_stapling', 'ssl_stapling_file', 'ssl_stapling_verify', 'ssl_trusted_certificate', 'ssl_verify_client',
            'stream', 'thread_pool', 'timer_resolution', 'user', 'worker_cpu_affinity', 'worker_priority', 'worker_processes', 'worker_rlimit_core', 'worker_rlimit_nofile', 'working_directory'}
# Files that stand beside nginx.conf on Debian.
INCLUDED = {'mime.types', 'fastcgi_params', 'fastcgi.conf', 'proxy_params', 'scgi_params', 'uwsgi_params', 'fastcgi-php.conf', 'koi-utf', 'koi-win', 'win-utf'}
SECRETS = ('auth_basic_user_file', '$www/.htpasswd'), ('ssl_certificate', '$crt'), ('ssl_certificate_key', '$key'), ('ssl_client_certificate', '$crt'), ('root', '$www'), ('fastcgi_pass', 'unix:$fpm')
SINGLE = dict(SECRETS)


def read(file):
    """The directives of a file, as crossplane has them; none if it cannot be read."""
    found = crossplane.parse(str(file), single=True, check_ctx=False, check_args=False, strict=False)
    return found['config'][0]['parsed'] if found['status'] == 'ok' else []


def names(directives, wanted):
    """The words behind each directive of that name, wherever it stands."""
    for one in directives:
        if one['directive'] == wanted:
            yield one['args']
        yield from names(one.get('block') or [], wanted)


def listen(args):
    """Where a server listens here; what it says of sockets is left out."""
    if 'quic' in args:
        return None
    is_tls = 'ssl' in args or re.search(r'(^|:)\d*443$', args[0])
    kept = [word for word in args[1:] if word in ('default_server', 'http2')]
    return ['127.0.0.1:$tls', 'ssl', *kept] if is_tls else ['127.0.0.1:$port', *(word for word in kept if word != 'http2')]


def passed(url, upstreams):
    """Where `proxy_pass` goes here: to an upstream of the configuration, or to the origin; its path stays."""
    scheme, _, rest = url.partition('://')
    if not rest:
        # A variable has all of it, or a name is written as such.
        return 'http://127.0.0.1:$other'
    if rest.startswith('unix:'):
        return 'http://127.0.0.1:$other' + rest[5:].partition(':')[2]
    host, path = re.match(r'((?:\$\{\w+\}|\$\w+|[^/$?])*)(.*)$', rest).groups()
    return f'http://{host if host in upstreams else "127.0.0.1:$other"}{path}'


def aliased(path):
    """The end of an `alias` matters to how paths are joined."""
    captured = re.search(r'(\$\d+|\$uri|\$\w+)?(/?)$', path)
    return '$www' + (f'/{captured[1]}' if captured[1] else '') + captured[2]


def words(name, args, upstreams):
    """What a directive says here; `None`: nothing."""
    if not args:
        return None if name in SINGLE or name in LEFT_OUT or name == 'include' else args
    if name == 'include':
        base = args[0].rpartition('/')[2]
        return [f'snippets/{base}' if base.startswith('fastcgi-') else base] if base in INCLUDED else None
    if name in LEFT_OUT:
        return None
    if name in SINGLE and not (name == 'ssl_client_certificate' and args[0] == 'off'):
        return [SINGLE[name]]
    if name == 'listen':
        return listen(args)
    if name == 'alias':
        return [aliased(args[0])]
    if name == 'proxy_pass':
        return [passed(args[0], upstreams)]
    if name in ('uwsgi_pass', 'scgi_pass', 'grpc_pass', 'memcached_pass'):
        return ['127.0.0.1:1']
    if name.endswith('_cache_path') and len(args) > 1:
        kept = [word for word in args[1:] if re.match(r'levels=|keys_zone=|inactive=|use_temp_path=', word)]
        return ['$dir/cache/' + (re.sub(r'\W', '', args[0]) or 'x'), *kept]
    if name.endswith('_temp_path') or name in ('proxy_store', 'fastcgi_store'):
        return None
    return args


def made(directives, upstreams, is_upstream=False):
    """The directives as they are here."""
    kept, listens = [], set()
    for one in directives:
        name, args, block = one['directive'], one['args'], one.get('block')
        if is_upstream and name == 'server':
            args = ['127.0.0.1:$other', *(word for word in args[1:] if word in ('backup', 'down') or word.startswith('weight='))]
        elif (args := words(name, args, upstreams)) is None or one['directive'] == '#':
            continue
        if name == 'listen' and (args[0] in listens or listens.add(args[0])):
            continue
        new = {'directive': name, 'args': args}
        if block is not None:
            new['block'] = made(block, upstreams, name == 'upstream')
        kept.append(new)
    return kept


def adapt(file):
    """The text of a configuration as it is here; empty if nothing is left of it."""
    directives = read(file)
    upstreams = {args[0] for args in names(directives, 'upstream') if args}
    top = made(directives, upstreams)
    http = [one for one in top if one['directive'] == 'http']
    if not http:
        http = [{'directive': 'http', 'args': [], 'block': [one for one in top if one['directive'] != 'events']}]
    for one in http:
        for server in one['block']:
            if server['directive'] == 'server' and not any(line['directive'] == 'listen' for line in server['block']):
                server['block'].insert(0, {'directive': 'listen', 'args': ['127.0.0.1:$port']})
    if not any(True for _ in names(http, 'server')):
        return ''
    return crossplane.build([{'directive': 'events', 'args': [], 'block': []}, *http], indent=1) + '\n'


def without(lines, at):
    """The lines without the directive that begins in line `at`, its block included."""
    depth, end = 0, at
    while end < len(lines):
        depth += lines[end].rstrip().endswith('{') - (lines[end].strip() == '}')
        end += 1
        if depth <= 0 and lines[end - 1].rstrip().endswith((';', '}')):
            break
    return lines[:at] + lines[end:]


def taken(text, tested):
    """What a server takes of a configuration: what it refuses is left out, one directive after the other.

    `tested` gives the configuration to it: the line, counted from 1, and the words of its refusal; `None` if it takes all.
    """
    refusals = []
    for _ in range(60):
        refusal = tested(text)
        if refusal is None:
            return text, refusals
        line, why = refusal
        refusals.append(why)
        lines = text.split('\n')
        if unknown := re.search(r'unknown "(\w+)" variable', why):
            # Said of no line.
            line = next((at for at, words in enumerate(lines, 1) if re.search(r'\$\{?' + unknown[1] + r'\b', words)), 0)
        if not line or line > len(lines):
            break
        text = '\n'.join(without(lines, line - 1))
    return '', refusals
