"""Certificates of an issuer (ACME): pebble, or a scripted one. Nothing waits for the end of a certificate: the issuer says that it is to be
renewed, and the server's clock is set."""
import asyncio, email.utils, http.client, json, os, pathlib, random, re, shutil, signal, socket, ssl, stat, subprocess, threading, time
import pytest
from attacks import h3wire
from clock import Clock
from issuer import IS_RECENT, PROBLEM, Issuer, Names, ScriptedIssuer, is_issued, lives, needs_recent, problem, shown
from openssl import certificate
from peers import YOROZU, Folder, Server, equal, free_port, in_group, listens, until


def details(pem, *options):
    return subprocess.run(['openssl', 'x509', '-noout', *options], input=pem, text=True, capture_output=True, check=True).stdout


def status(server):
    done = subprocess.run([YOROZU, '-p', f'{server.folder}/', '-c', server.folder / 'nginx.conf', 'acme', 'status', '--json'],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [[one['issuer'], ','.join(one['names']), one['state'], f"expires {one['expires']}" if one['expires'] else '-', one['next'],
             one['error'] or 'no error'] for one in json.loads(done.stdout)]


def fetch(port, path='/', host='a.example', method='GET', connection=None):
    connection = connection or http.client.HTTPConnection('127.0.0.1', port, timeout=60)
    connection.request(method, path, headers={'Host': host})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def conf_of(issuer, http_port, names='a.example', certificate='acme_certificate ca;', more='', block=None):
    return f'''
        {block or issuer.block()}
        server {{ listen 127.0.0.1:{http_port}; return 301 https://$host$request_uri; }}
        server {{ listen 127.0.0.1:$port ssl; server_name {names}; {certificate}
                  ssl_certificate $acme_certificate; ssl_certificate_key $acme_certificate_key;
                  {more} location / {{ return 200 hello; }} }}'''


def failures(server):
    return server.log().count('while updating certificate')


def outcome(server):
    """The first certificate's line, once an order failed. The log is asked, as each question for the status is a process."""
    until('a failure', lambda: failures(server))
    return status(server)[0]


def wait_issued(server, name, root, port=None):
    """Looks again whenever a certificate was issued: handshakes cost more than all else."""
    looked_at = []

    def look():
        count = server.log().count('certificate issued')
        if looked_at and count == looked_at[-1]:
            return None
        looked_at.append(count)
        return is_issued(port or server.port, name, root)
    try:
        return until(f'a certificate for {name}', look)
    except AssertionError:
        print([line for line in server.log().splitlines() if 'SSL handshak' not in line], status(server))
        raise


def rewrite(server, old, new):
    path = server.folder / 'nginx.conf'
    text = path.read_text()
    assert old in text, (old, text)
    path.write_text(text.replace(old, new))


def reload(server):
    count = server.log().count('reconfigured')
    os.kill(server.pid, signal.SIGHUP)
    try:
        until('a reload', lambda: server.log().count('reconfigured') > count)
    except AssertionError:
        raise AssertionError(f'no reload: {server.log()[-2000:]}') from None


def renew(issuer, server, clock):
    """Has the server renew its certificate now. It asks for the time of renewal once in a minute, by its own clock."""
    until('a time of renewal of the newest', lambda: 'renewal window' in server.log().rpartition('certificate issued')[2])
    issuer.wants_renewed(shown(server.port, 'a.example'))
    clock.set(clock.ahead + 61)
    reload(server)


def test_http_01_from_a_self_signed_certificate_to_one_that_outlives_a_restart():
    with Folder() as folder:
        http_port, port = free_port(), free_port()
        # The issuer is started later, so that its certificate has to be waited for.
        with Issuer(folder, http_port) as issuer:
            root = issuer.root()
            conf = conf_of(issuer, http_port, names='.a.example')
            with Server(folder, conf, user='www-data') as server:
                first = wait_issued(server, 'www.a.example', root)
                assert is_issued(server.port, 'a.example', root)
                log = server.log()
                assert 'no certificate yet: a self-signed one is used, acme issuer: "ca", order: "www.a.example-' in log, log
                until('the log', lambda: 'certificate issued, valid until' in server.log())
                equal(issuer.issued(), 1)
                # Tokens that are not expected, and methods but GET, are for the server itself.
                equal(fetch(http_port, '/.well-known/acme-challenge/x')[0], 301)
                until('a time of renewal', lambda: 'renewal ' in status(server)[0][4])
                [line] = status(server)
                equal(line[:3] + line[5:], ['ca', 'www.a.example,a.example', 'issued', 'no error'])
                assert line[3].startswith('expires '), line
                state = server.folder / 'state'
                equal(stat.S_IMODE(state.stat().st_mode), 0o700)
                equal({stat.S_IMODE(path.stat().st_mode) for path in state.iterdir()}, {0o600})
                if os.geteuid() == 0:
                    equal({path.owner() for path in [state, *state.iterdir()]}, {'www-data'})
                equal(sorted(path.name.split('-')[-1].split('.', 1)[-1] for path in state.glob('www*')), ['crt', 'issuer', 'key'])
                server.stop()
                server.start()
                server.wait_for(lambda: listens(server.port) and is_issued(server.port, 'a.example', root))
                equal(shown(server.port, 'a.example', root), first)
                # Also a server process that was killed finds it.
                before = server.serving_pid
                os.kill(before, signal.SIGKILL)
                until('another server process', lambda: is_issued(server.port, 'a.example', root))
                equal((shown(server.port, 'a.example', root), issuer.issued()), (first, 1))


def test_tls_alpn_01_comes_before_what_servers_want_of_clients():
    with Folder() as folder:
        http_port, port = free_port(), free_port()
        certificate(folder, 'other')
        with Issuer(folder, free_port(), port) as issuer:
            root = issuer.root()
            more = f'ssl_verify_client on; ssl_client_certificate {folder}/other.crt;'
            conf = conf_of(issuer, http_port, more=more, block=issuer.block('challenge tls-alpn;')) + f'''
                server {{ listen 127.0.0.1:$port ssl default_server; ssl_reject_handshake on; }}'''
            with Server(folder, conf, port=port) as server:
                wait_issued(server, 'a.example', root)
                assert "answered an issuer's challenge (tls-alpn-01)" in server.log(), server.log()


def test_tls_alpn_01_for_two_certificates_of_a_name():
    with Folder() as folder:
        port, other_port = free_port(), free_port()
        # It asks after a while, when both could have been ordered.
        slow = {'PEBBLE_VA_NOSLEEP': '0', 'PEBBLE_VA_SLEEPTIME': '2'}
        with Issuer(folder, free_port(), port, env=slow) as issuer:
            root = issuer.root()
            both = 'ssl_certificate $acme_certificate; ssl_certificate_key $acme_certificate_key;'
            conf = issuer.block('challenge tls-alpn;') + f''' {both}
                server {{ listen 127.0.0.1:$port ssl; server_name a.example b.example; acme_certificate ca; }}
                server {{ listen 127.0.0.1:{other_port} ssl; server_name b.example a.example; acme_certificate ca key=rsa; }}'''
            with Server(folder, conf, port=port) as server:
                for one in (port, other_port):
                    wait_issued(server, 'a.example', root, one)
                equal([line[5] for line in status(server)], ['no error'] * 2)
                equal(issuer.issued(), 2)


def test_addresses_keys_and_names_of_subjects():
    with Folder() as folder:
        http_port, tls_port = free_port(), free_port()
        with Issuer(folder, http_port, tls_port) as issuer:
            root = issuer.root()
            conf = issuer.block('common_name_in_csr on;') + issuer.block('challenge tls-alpn-01;', name='alpn',
                                                                         state='state_path off;') + f'''
                server {{ listen 127.0.0.1:{http_port}; }}
                ssl_certificate $acme_certificate; ssl_certificate_key $acme_certificate_key;
                server {{ listen 127.0.0.1:$port ssl; server_name rsa.example; acme_certificate ca key=rsa; }}
                server {{ listen 127.0.0.1:$port ssl; server_name p384.example; acme_certificate ca key=ecdsa:384; }}
                server {{ listen 127.0.0.1:$port ssl; server_name p521.example; acme_certificate ca key=ecdsa:521; }}
                server {{ listen 127.0.0.1:$port ssl; server_name ip.example; acme_certificate ca ip.example 127.0.0.1; }}
                server {{ listen 127.0.0.1:{tls_port} ssl; server_name off.example;
                          acme_certificate alpn off.example 127.0.0.1; }}'''
            with Server(folder, conf) as server:
                for name, kind in (('rsa', '2048 bit'), ('p384', 'P-384'), ('p521', 'P-521'), ('ip', 'IP Address:127.0.0.1')):
                    text = details(wait_issued(server, f'{name}.example', root), '-text')
                    assert kind in text, text
                assert 'IP Address:127.0.0.1' in details(wait_issued(server, 'off.example', root, tls_port), '-text')
                # The two issuers are accounts of their own, and one account serves all certificates of an issuer.
                equal(issuer.accounts(), 2)
                assert not list(server.folder.glob('**/off.example*'))


def test_a_client_over_quic_sees_it_too():
    if h3wire.LACKS:
        pytest.skip(h3wire.LACKS)
    from aioquic.asyncio import connect
    from aioquic.quic.configuration import QuicConfiguration

    async def shakes_hands(port, root):
        settings = QuicConfiguration(is_client=True, alpn_protocols=['h3'], server_name='a.example', cafile=str(root))
        async with connect('127.0.0.1', port, configuration=settings):
            return True

    with Folder() as folder:
        http_port = free_port()
        with Issuer(folder, http_port) as issuer:
            root = issuer.root()
            with Server(folder, conf_of(issuer, http_port, more='listen 127.0.0.1:$port quic;')) as server:
                wait_issued(server, 'a.example', root)
                assert asyncio.run(asyncio.wait_for(shakes_hands(server.port, root), 60))


def test_external_accounts():
    with Folder() as folder:
        http_port = free_port()
        key = 'zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W'
        with Issuer(folder, http_port, externalAccountBindingRequired=True, externalAccountMACKeys={'kid-1': key}) as issuer:
            root = issuer.root()
            (folder / 'eab').write_text(key + '\n')
            block = issuer.block(f'external_account_key kid-1 {folder}/eab;')
            other = issuer.block(f'external_account_key kid-2 data:{key};', name='other', state='state_path $dir/other;')
            none = issuer.block(name='none', state='state_path $dir/none;')
            conf = conf_of(issuer, http_port, block=block + other + none) + '''
                server { listen 127.0.0.1:$port ssl; server_name b.example; acme_certificate other;
                         ssl_certificate $acme_certificate; ssl_certificate_key $acme_certificate_key; }
                server { listen 127.0.0.1:$port ssl; server_name c.example; acme_certificate none;
                         ssl_certificate $acme_certificate; ssl_certificate_key $acme_certificate_key; }'''
            with Server(folder, conf) as server:
                wait_issued(server, 'a.example', root)
                until('refusals', lambda: failures(server) == 2)
                assert all(line[5] != 'no error' for line in status(server)[1:]), status(server)
                assert 'externalAccountRequired' in status(server)[2][5], status(server)
                equal(status(server)[2][4], 'not tried again before a reload')
            with Server(folder, conf_of(issuer, http_port, block=issuer.block(f'external_account_key kid-1 data:{key};'))) as server:
                wait_issued(server, 'a.example', root)


def test_profiles():
    needs_recent('profiles')
    with Folder() as folder:
        http_port = free_port()
        with Issuer(folder, http_port) as issuer:
            root = issuer.root()
            with Server(folder, conf_of(issuer, http_port, block=issuer.block('profile short require;'))) as server:
                pem = wait_issued(server, 'a.example', root)
                subprocess.run(['openssl', 'x509', '-noout', '-checkend', '3700'], input=pem, text=True, check=True)
            for word, wanted in (('', 'issued'), (' require', 'self-signed')):
                block = issuer.block(f'profile none{word};')
                with Server(folder, conf_of(issuer, http_port, block=block)) as server:
                    until('an outcome', lambda: 'certificate issued' in server.log() or failures(server))
                    equal(status(server)[0][2], wanted)
                    assert 'the issuer does not list the profile "none"' in server.log()


def test_a_renewal_fails_no_request():
    needs_recent('times of renewal')
    with Folder() as folder:
        http_port, clock = free_port(), Clock(folder)
        with Issuer(folder, http_port) as issuer:
            root = issuer.root()
            with Server(folder, conf_of(issuer, http_port), prefix=clock.prefix) as server:
                wait_issued(server, 'a.example', root)
                problems, seen, is_over = [], set(), threading.Event()

                def ask():
                    while not is_over.is_set():
                        try:
                            connection = unverified(server.port)
                            connection.connect()
                            seen.add(connection.sock.getpeercert(True))
                            for _ in range(5):
                                equal(fetch(0, connection=connection), (200, 'hello'))
                            connection.close()
                        except Exception as problem:
                            problems.append(problem)
                clients = [threading.Thread(target=ask) for _ in range(4)]
                [client.start() for client in clients]
                try:
                    for count in (2, 3):
                        renew(issuer, server, clock)
                        until('another certificate', lambda: len(seen) == count or problems)
                finally:
                    is_over.set()
                    [client.join() for client in clients]
                equal(problems, [])


def test_the_issuer_says_when_to_renew():
    needs_recent('times of renewal')
    with Folder() as folder:
        http_port = free_port()
        with Issuer(folder, http_port) as issuer:
            root = issuer.root()
            with Server(folder, conf_of(issuer, http_port)) as server:
                first = wait_issued(server, 'a.example', root)
                until('a window', lambda: 'CA suggested renewal window' in server.log())
                issuer.wants_renewed(first)
                server.stop()
                server.start()
                until('a renewal', lambda: is_issued(server.port, 'a.example', root) not in (None, first))
                # It was ordered in the place of the other one, which may be replaced once. Pebble does not find a serial
                # number whose DER begins with a zero (RFC 9773, section 4.1, wants that sent): one of 256.
                serial = details(first, '-serial').removeprefix('serial=')
                is_found = serial[0] < '8'
                equal('retrying without "replaces"' not in server.log(), is_found, server.log())


def test_a_certificate_that_is_due_as_soon_as_it_is_there_is_not_ordered_again_and_again():
    with Folder() as folder:
        http_port = free_port()
        with Issuer(folder, http_port, **lives(2000)) as issuer:
            # Nearly all of its life, and then all of it, is over.
            for seconds in (1950, 6000):
                with Server(folder, conf_of(issuer, http_port), prefix=Clock(folder, seconds).prefix) as server:
                    before = issuer.issued()
                    until('a failure', lambda: 'next attempt in' in server.log())
                    assert 'as soon as it was issued' in server.log(), server.log()
                    equal(issuer.issued(), before + 1, server.log())
                    assert 'as soon as it was issued' in status(server)[0][-1], status(server)
                    shown(server.port, 'a.example')


def test_a_certificate_that_is_good_is_not_replaced_by_one_that_is_not():
    with Folder() as folder:
        http_port = free_port()
        with Issuer(folder, http_port, validity=7200) as issuer:
            with Server(folder, conf_of(issuer, http_port)) as server:
                good = wait_issued(server, 'a.example', issuer.root())
        # Its half is over, and the next one would be, too.
        with Issuer(folder, http_port, port=issuer.port, **lives(20)) as other:
            # It does not know the account of the one before.
            [account.unlink() for account in (server.folder / 'state').glob('account*')]
            server.command = [*Clock(folder, 4000).prefix, *server.command]
            server.start()
            try:
                until('a failure', lambda: 'next attempt in' in server.log())
                assert 'is valid from' in server.log(), server.log()
                equal((other.issued(), shown(server.port, 'a.example')), (1, good))
                server.stop()
                server.start()
                until('a start', lambda: listens(server.port))
                equal(shown(server.port, 'a.example'), good)
            finally:
                server.stop()


def test_nonces_that_are_refused():
    with Folder() as folder:
        http_port = free_port()
        with Issuer(folder, http_port, reject=25) as issuer:
            root = issuer.root()
            with Server(folder, conf_of(issuer, http_port)) as server:
                # Some requests fail more often than they are repeated: a reload tries again.
                def outcome():
                    line = status(server)[0]
                    return line if line[2] == 'issued' or line[5] != 'no error' else None
                for _ in range(20):
                    line = until('an outcome', outcome)
                    if line[2] == 'issued':
                        break
                    # What one attempt left in the middle, the issuer may look at in vain before the next one is over.
                    assert re.search('badNonce|order status Invalid', line[5]), line
                    reload(server)
                wait_issued(server, 'a.example', root)


def test_names_that_are_elsewhere_keep_nothing_from_serving():
    with Folder() as folder:
        http_port, names = free_port(), Names()
        names.elsewhere['b.example'] = '127.0.0.9'
        with Issuer(folder, http_port, names=names) as issuer:
            root = issuer.root()
            conf = conf_of(issuer, http_port) + '''
                server { listen 127.0.0.1:$port ssl; server_name b.example; acme_certificate ca; return 200 b;
                         ssl_certificate $acme_certificate; ssl_certificate_key $acme_certificate_key; }'''
            with Server(folder, conf) as server:
                wait_issued(server, 'a.example', root)
                outcome(server)
                line = status(server)[1]
                assert '"b.example": ' in line[5] and line[4].startswith('next attempt '), line
                equal(line[2], 'self-signed')
                assert 'next attempt in 6' in server.log(), server.log()
                assert 'DNS:b.example' in details(shown(server.port, 'b.example'), '-text')
                equal(list((server.folder / 'state').glob('*.order')), [])
                del names.elsewhere['b.example']
                reload(server)
                wait_issued(server, 'b.example', root)
                equal(status(server)[1][5], 'no error')


def test_an_issuer_that_is_down_or_not_believed():
    with Folder() as folder:
        http_port, port, names = free_port(), free_port(), Names()
        certificate(folder, 'stranger')
        issuer = Issuer(folder, http_port, names=names, port=port)
        issuer.kill()
        conf = conf_of(issuer, http_port)
        with Server(folder, conf) as server:
            assert 'connect() to 127.0.0.1' in outcome(server)[5], status(server)
            with Issuer(folder, http_port, names=names, port=port) as issuer:
                trusted = f'ssl_trusted_certificate {issuer.certificate};'
                rewrite(server, trusted, f'ssl_trusted_certificate {folder}/stranger.crt;')
                reload(server)
                until('disbelief', lambda: 'upstream SSL certificate verify error' in server.log())
                rewrite(server, f'ssl_trusted_certificate {folder}/stranger.crt;', 'ssl_verify off;')
                reload(server)
                wait_issued(server, 'a.example', issuer.root())


def test_terms_that_are_not_agreed_to():
    with Folder() as folder:
        http_port = free_port()
        with Issuer(folder, http_port) as issuer:
            conf = conf_of(issuer, http_port, block=issuer.block('contact admin@a.example;', terms='common_name_in_csr off;'))
            with Server(folder, conf) as server:
                line = outcome(server)
                if IS_RECENT:
                    equal(line[4], 'not tried again before a reload')
                    assert 'the terms are at ' in line[5] and 'accept_terms_of_service' in line[5], line
                rewrite(server, 'common_name_in_csr off;', 'accept_terms_of_service;')
                reload(server)
                wait_issued(server, 'a.example', issuer.root())


def test_nothing_is_asked_for_that_could_not_be_kept():
    with Folder() as folder:
        http_port = free_port()
        with Issuer(folder, http_port) as issuer:
            state = folder / 'state'
            state.mkdir(mode=0o500)
            (state / 'lock').touch(0o600)
            if os.geteuid() == 0:
                for path in (state, state / 'lock'):
                    shutil.chown(path, 'www-data', 'www-data')
            block = issuer.block(state=f'state_path {state};')
            with Server(folder, conf_of(issuer, http_port, block=block), user='www-data') as server:
                assert 'failed (13: Permission denied)' in outcome(server)[5], status(server)
                equal((issuer.accounts(), issuer.issued()), (0, 0))
                state.chmod(0o700)
                reload(server)
                wait_issued(server, 'a.example', issuer.root())


def test_two_servers_share_a_folder():
    needs_recent('times of renewal')
    with Folder() as folder:
        http_port, other_port, clock = free_port(), free_port(), Clock(folder)
        with Issuer(folder, http_port) as issuer:
            root = issuer.root()
            block = issuer.block(state=f'state_path {folder}/state;')
            with Server(folder, conf_of(issuer, http_port, block=block), prefix=clock.prefix) as first:
                pem = wait_issued(first, 'a.example', root)
                with Server(folder, conf_of(issuer, other_port, block=block), prefix=clock.prefix) as second:
                    until('the lock to be seen', lambda: status(second)[0][4] == 'ordered by another process')
                    # What the first one orders the second one takes up; and it goes on when that is gone.
                    renew(issuer, first, clock)
                    until('another one', lambda: is_issued(second.port, 'a.example', root) not in (None, pem))
                    assert 'certificate issued' not in second.log()
                    rewrite(second, f'127.0.0.1:{other_port};', f'127.0.0.1:{http_port};')
                    issuer.wants_renewed(shown(second.port, 'a.example'))
                    first.kill()
                    reload(second)
                    until('its own', lambda: 'certificate issued' in second.log())
                    equal(issuer.accounts(), 1)


def test_kill_9_at_any_moment():
    draw = random.Random(int(os.environ['SEED']))
    with Folder() as folder:
        http_port = free_port()
        # It takes its time, so that most orders are interrupted somewhere.
        slow = {'PEBBLE_VA_NOSLEEP': '0', 'PEBBLE_VA_SLEEPTIME': '1'}
        with Issuer(folder, http_port, env=slow) as issuer:
            root = issuer.root()
            server = Server(folder, conf_of(issuer, http_port))
            state = server.folder / 'state'
            for round in range(8):
                time.sleep(draw.random() * 2)
                if draw.random() < 0.3:
                    # The master starts another server process.
                    os.kill(server.serving_pid, signal.SIGKILL)
                    time.sleep(draw.random())
                server.kill()
                # What has its name is whole, and certificates have their keys.
                for path in state.glob('[!.]*.crt') if state.exists() else ():
                    public = details(path.read_text(), '-pubkey')
                    keys = [key for key in state.glob(path.name[:-4] + '*key')]
                    found = [subprocess.run(['openssl', 'pkey', '-pubout', '-in', key], capture_output=True, text=True,
                                            check=True).stdout for key in keys]
                    assert public in found, (round, path, keys)
                if round % 4 == 3:
                    for path in state.glob('a.example-*'):
                        path.unlink()
                server.start()
                server.wait_for(lambda: listens(server.port))
            wait_issued(server, 'a.example', root)
            # One account, and what was ordered before a kill was taken up behind it.
            assert issuer.accounts() <= 3 and issuer.issued() <= 5, (issuer.accounts(), issuer.issued())
            server.stop()


def test_reloads_in_the_middle_of_an_order():
    with Folder() as folder:
        http_port = free_port()
        with Issuer(folder, http_port) as issuer:
            root = issuer.root()
            with Server(folder, conf_of(issuer, http_port)) as server:
                for _ in range(5):
                    reload(server)
                wait_issued(server, 'a.example', root)
                until('the log', lambda: 'certificate issued' in server.log())
                equal((issuer.accounts(), issuer.issued()), (1, 1))


def test_a_name_is_added_and_an_issuer_changed():
    with Folder() as folder:
        http_port, names = free_port(), Names()
        names.elsewhere['b.example'] = '127.0.0.9'
        with Issuer(folder, http_port, names=names) as issuer, Issuer(folder, http_port, names=names) as other:
            root = issuer.root()
            with Server(folder, conf_of(issuer, http_port)) as server:
                first = wait_issued(server, 'a.example', root)
                rewrite(server, 'server_name a.example;', 'server_name a.example b.example;')
                reload(server)
                # Meanwhile the one before does.
                equal(shown(server.port, 'a.example', root), first)
                equal(status(server)[0][2], 'of an earlier order')
                outcome(server)
                del names.elsewhere['b.example']
                reload(server)
                both = wait_issued(server, 'b.example', root)
                assert both != first and is_issued(server.port, 'a.example', root)
                # Of another issuer in the same folder there is no account, and what the first one gave is replaced.
                rewrite(server, f'localhost:{issuer.port}/', f'localhost:{other.port}/')
                reload(server)
                wait_issued(server, 'b.example', other.root())
                equal((issuer.issued(), other.issued(), other.accounts()), (2, 1, 1))


def with_scripted(work, names='a.example', answers=()):
    """A server whose issuer says what `work` has it say."""
    with Folder() as folder, ScriptedIssuer() as issuer:
        issuer.answers.update(answers)
        conf = conf_of(None, free_port(), names=names, block=issuer.block())
        with Server(folder, conf) as server:
            work(issuer, server)


def test_a_reload_does_not_shorten_what_the_issuer_wants():
    asked = []

    def limited(_):
        asked.append(time.monotonic())
        return problem('rateLimited', 429, Retry_After='4' if len(asked) == 1 else '7200')
    with Folder() as folder, ScriptedIssuer() as issuer:
        issuer.answers['/order'] = limited
        with Server(folder, conf_of(None, free_port(), block=issuer.block())) as server:
            assert 'rateLimited' in outcome(server)[5], status(server)
            # Sooner than after a minute, and not before the four seconds are over.
            [reload(server) for _ in range(3)]
            until('another order', lambda: len(asked) == 2)
            assert asked[1] - asked[0] >= 4, asked
            until('its outcome', lambda: 'next attempt in 7200 s' in server.log())
            [reload(server) for _ in range(3)]
            # What is asked in any case shows that the reloads were noticed.
            when = outcome(server)[4].removeprefix('next attempt ')
            assert when != outcome(server)[4], status(server)
            equal(len(asked), 2)


def test_what_waiting_does_not_change_is_tried_again_at_a_reload_alone():
    def work(issuer, server):
        outcome(server)
        for kind in ('rejectedIdentifier', 'caa', 'unsupportedIdentifier', 'malformed', 'badCSR'):
            refusal = problem(kind, 400, 'not here')
            issuer.answers['/order'] = issuer.order('ready') if kind == 'badCSR' else refusal
            issuer.answers['/finalize'] = refusal
            count, failed = issuer.count('/order'), failures(server)
            reload(server)
            until(kind, lambda: failures(server) > failed)
            [line] = status(server)
            equal((line[4], kind in line[5], issuer.count('/order')), ('not tried again before a reload', True, count + 1), line)
        issuer.answers['/order'] = problem('serverInternal', 500)
        reload(server)
        until('another', lambda: 'serverInternal' in server.log())
        assert status(server)[0][4].startswith('next attempt'), status(server)
    with_scripted(work)


def test_what_an_issuer_says_is_one_line_of_bounded_length():
    detail = 'x\r\n2026/01/01 00:00:00 [emerg] forged\tfield\x1b[31m' + 'y' * 500000

    def work(issuer, server):
        outcome(server)
        issuer.answers['/order'] = problem('rateLimited', 429, detail)
        reload(server)
        until('the text', lambda: 'forged' in server.log())
        [line] = status(server)
        equal((len(line), 'forged' in line[5]), (6, True), 'fields')
        log = server.log()
        assert '\n2026/01/01 00:00:00 [emerg] forged' not in log and '\x1b' not in log + line[5], log[:3000]
        assert len(line[5]) < 5000 and max(map(len, log.splitlines())) < 6000, len(line[5])
    with_scripted(work)


def test_answers_of_an_issuer_that_are_none():
    """Torn, huge and wrong ones: each is a failure, and the server goes on."""
    huge = b'{"x": "' + b'y' * (3 << 20)
    many = {f'X-{at}': 'y' * 1000 for at in range(90)}
    wrong = [None, (200, {}, b''), (200, {}, b'[' * 100000), (200, {}, huge), (200, {'Content-Length': '100'}, b'{}'),
             (200, {'Transfer-Encoding': 'chunked'}, b'zz\r\n'), (200, many, b'{}'), (302, {'Location': '/dir'}, b''),
             (302, {'Location': 'file:///etc/passwd'}, b''), (200, {'Replay-Nonce': 'a b\x7f'}, b'{}'),
             (200, {}, {'newNonce': 'x', 'newAccount': [], 'newOrder': None})]

    def work(issuer, server):
        before = server.resident_bytes()
        for path in ('/dir', '/nonce', '/account', '/order'):
            for at, answer in enumerate(wrong):
                issuer.answers = {path: (lambda _: None) if answer is None else answer}
                count = failures(server)
                reload(server)
                until(f'{path}: {at}', lambda: failures(server) > count)
            assert status(server)[0][5] != 'no error', (path, status(server))
            for file in server.folder.glob('ca/account*'):
                file.unlink()
        assert 'panic' not in server.log(), server.log()
        assert server.resident_bytes() - before < 64 << 20, server.resident_bytes() - before
        equal(fetch(server.port, connection=unverified(server.port)), (200, 'hello'))
    with_scripted(work)


def test_what_is_no_answer_of_an_issuer_is_said_clearly():
    """As of a proxy in front of it: the status, the kind of content and the address; and when it wants to be asked again."""
    page = b'<html><body>Service Unavailable</body></html>'
    in_an_hour = lambda _: (429, {'Retry-After': email.utils.formatdate(time.time() + 3600, usegmt=True), 'Content-Type': 'text/plain'}, b'slow down')
    cases = [((503, {'Retry-After': '700', 'Content-Type': 'text/html'}, page), '503 Service Unavailable with text/html', 700),
             (in_an_hour, '429 Too Many Requests with text/plain', 3600),
             ((200, {'Content-Type': 'text/html'}, page), '200 OK with text/html', 60),
             (problem('rateLimited', 429, 'too many', Retry_After='800'), '429 Too Many Requests: too many', 800)]
    for path in '/dir', '/order':
        for answer, text, pause in cases:
            def work(issuer, server):
                line = outcome(server)
                is_understood = path == '/order' and text.endswith('too many')
                expected = f'the issuer answered {text} while requesting "{issuer.uri}{path}"'
                assert ('rateLimited' if is_understood else expected) in line[5], (path, line)
                said = int(re.search('next attempt in ([0-9]+) s', server.log()).group(1))
                # A date is less than an hour away by now.
                assert pause - 60 <= said <= pause * 1.03, (said, pause)
                equal(fetch(server.port, connection=unverified(server.port)), (200, 'hello'))
            with_scripted(work, answers={path: answer})


def test_an_order_that_comes_to_nothing_says_why():
    """As far as the issuer says it; what is no certificate is none, whatever it is called."""
    reason = {'type': PROBLEM + 'serverInternal', 'detail': 'the disk is full'}

    def work(issuer, server):
        outcome(server)
        place = f'{issuer.uri}/cert'

        def order(begun, status, content=None, **more):
            done = (200, *issuer.order(status, **more)[1:])
            return {'/order': issuer.order(begun), '/finalize': issuer.order('processing'), '/order/1': done, '/cert': content}
        for name, answers, text in [
                ('before', order('pending', 'invalid', error=reason), 'the disk is full'),
                ('behind', order('ready', 'invalid', error=reason), 'the disk is full'),
                ('without a reason', order('ready', 'invalid'), 'unexpected order status Invalid'),
                ('a page', order('ready', 'valid', (200, {'Content-Type': 'text/html'}, b'<html>'), certificate=place),
                 'what the issuer sent is no certificate'),
                ('nothing', order('ready', 'valid', (200, {}, b''), certificate=place), 'what the issuer sent is no certificate')]:
            issuer.answers = answers
            for file in server.folder.glob('ca/*.order'):
                file.unlink()
            count = failures(server)
            reload(server)
            until(name, lambda: failures(server) > count)
            line = [line for line in server.log().splitlines() if 'while updating certificate' in line][-1]
            assert text in line and 'next attempt in' in line, (name, line)
            equal(fetch(server.port, connection=unverified(server.port)), (200, 'hello'))
    with_scripted(work)


UNVERIFYING = ssl._create_unverified_context()


def unverified(port):
    return http.client.HTTPSConnection('127.0.0.1', port, context=UNVERIFYING, timeout=60)


def test_an_issuer_that_does_not_answer_keeps_nothing_waiting():
    def work(issuer, server):
        issuer.answers['/order'] = issuer.hold
        reload(server)
        until('the order', lambda: issuer.count('/order') > 0)
        equal(status(server)[0][4], 'being ordered')
        equal(fetch(server.port, connection=unverified(server.port)), (200, 'hello'))
        reload(server)
        count = failures(server)
        server.process.terminate()
        server.process.wait(120)
        # Not when the issuer had had its minute.
        equal(failures(server), count, server.log())
    with_scripted(work)


def test_an_issuer_that_dies_during_a_renewal_takes_no_certificate_along():
    needs_recent('times of renewal')
    with Folder() as folder:
        http_port, clock = free_port(), Clock(folder)
        with Issuer(folder, http_port) as issuer:
            with Server(folder, conf_of(issuer, http_port), prefix=clock.prefix) as server:
                good = wait_issued(server, 'a.example', issuer.root())
                issuer.names.is_open.clear()
                renew(issuer, server, clock)
                until('a renewal', lambda: status(server)[0][4] == 'being ordered')
                issuer.kill()
                until('a failure', lambda: 'next attempt in' in server.log())
                # Also when it is over: what is there is better than nothing.
                equal((status(server)[0][2], shown(server.port, 'a.example')), ('issued', good))
                clock.set(7200)
                equal((status(server)[0][2], shown(server.port, 'a.example')), ('expired', good))
                # One that knows neither the account nor the order of the one before.
                issuer.names.is_open.set()
                with Issuer(folder, http_port, port=issuer.port, names=issuer.names, **lives(4 * 24 * 3600)) as other:
                    root = other.root()

                    def is_there():
                        reload(server)
                        return is_issued(server.port, 'a.example', root)
                    until('another one', is_there)


def test_addresses_of_ipv6():
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(('::1', 0))
        except OSError as problem:
            pytest.skip(f'this machine has no address of IPv6: {problem}')
    with Folder() as folder:
        http_port, tls_port = free_port(), free_port()
        with Issuer(folder, http_port, tls_port) as issuer:
            both = 'ssl_certificate $acme_certificate; ssl_certificate_key $acme_certificate_key;'
            conf = issuer.block() + issuer.block('challenge tls-alpn-01;', name='alpn', state='state_path $dir/alpn;') + f'''
                {both} server {{ listen [::1]:{http_port}; }}
                server {{ listen 127.0.0.1:$port ssl; acme_certificate ca [::1]; }}
                server {{ listen 127.0.0.1:$port ssl; server_name x.example; acme_certificate alpn ::1; }}
                server {{ listen [::1]:{tls_port} ssl; server_name y.example; return 200 y; acme_certificate alpn ::1; }}'''
            with Server(folder, conf) as server:
                until('both', lambda: server.log().count('certificate issued') == 2)
                for name in ('any.example', 'x.example'):
                    assert 'IP Address:0:0:0:0:0:0:0:1' in details(shown(server.port, name), '-text')


def test_metrics_say_when_each_certificate_ends():
    with Folder() as folder:
        http_port = free_port()
        with Issuer(folder, http_port) as issuer:
            root = issuer.root()
            conf = conf_of(issuer, http_port) + '''
                server { listen 127.0.0.1:$port ssl; server_name b.example; acme_certificate ca a.example b.example;
                         ssl_certificate $acme_certificate; ssl_certificate_key $acme_certificate_key; location = /metrics { prometheus all; } }'''
            with Server(folder, conf) as server:
                for name in ('a.example', 'b.example'):
                    wait_issued(server, name, root)
                text = fetch(server.port, '/metrics', 'b.example', connection=unverified(server.port))[1]
                found = re.findall(r'^yorozu_certificate_expiry_seconds\{(.*issuer.*)\} (\d+)$', text, re.M)
                equal((len(found), len({labels for labels, _ in found})), (2, 2), found)
                for labels, at in found:
                    assert 'name="a.example"' in labels and 3000 < int(at) - time.time() < 7300, found


def test_keys_of_the_operator_and_of_nginx_s_module():
    with Folder() as folder:
        http_port = free_port()
        subprocess.run(['openssl', 'ecparam', '-name', 'prime256v1', '-genkey', '-noout', '-out', folder / 'account.key'],
                       check=True, capture_output=True)
        with Issuer(folder, http_port) as issuer:
            block = issuer.block(f'account_key {folder}/account.key;', 'contact mailto:admin@a.example;')
            with Server(folder, conf_of(issuer, http_port, block=block)) as server:
                wait_issued(server, 'a.example', issuer.root())
                equal(list((server.folder / 'state').glob('account*.key')), [])
            with Server(folder, conf_of(issuer, http_port)) as server:
                wait_issued(server, 'a.example', issuer.root())
                # As nginx's module keeps it.
                state = server.folder / 'state'
                server.stop()
                for path in state.glob('*.issuer'):
                    path.unlink()
                for path in state.glob('account*'):
                    path.rename(state / f'account{path.suffix}')
                rewrite(server, 'server_name a.example;', 'server_name a.example; acme_certificate ca b.example;')
                rewrite(server, 'acme_certificate ca;', '')
                server.start()
                server.wait_for(lambda: listens(server.port) and is_issued(server.port, 'b.example', issuer.root()))
                equal((issuer.issued(), issuer.accounts()), (3, 2))


def test_what_is_said_of_configurations_is_as_nginx_s_module_says_it():
    uri = 'uri https://localhost/dir;'
    server = lambda text: 'server { listen 127.0.0.1:1; acme_certificate a %s }' % text
    block = lambda text, more=server('x;'): 'acme_issuer a { %s %s } %s' % (uri, text, more)
    with Folder() as folder:
        (folder / 'logs').mkdir()
        subprocess.run(['openssl', 'genrsa', '-out', folder / 'rsa.key', '2048'], check=True, capture_output=True)
        for http, wanted in (
                (block('account_key ecdsa; challenge http; contact me@a.example; profile x require; state_path off;'), ''),
                ('acme_shared_zone zone=a:1m; ' + block('challenge tls-alpn-01; account_key ecdsa:256;'), ''),
                ('acme_shared_zone a;', '"acme_shared_zone" must have "zone" parameter'),
                ('acme_shared_zone zone=a:b;', 'invalid zone size "a:b"'),
                ('acme_issuer a { } ', '"uri" is missing'),
                ('acme_issuer a { uri ftp://x/; }', '"uri" directive invalid value'),
                (block('') + block(''), '"acme_issuer" directive is duplicate'),
                (block('challenge http; challenge http;'), '"challenge" directive is duplicate'),
                (block('challenge dns-01;'), 'unsupported challenge: dns-01'),
                (block('account_key no-such.key;'), 'cannot load certificate key'),
                (block('account_key ecdsa:234;'), 'unsupported curve'),
                (block('account_key rsa:1024;'), 'unsupported key size'),
                (block('account_key ecdsa:384;'), 'is not supported: the ACME library signs with ECDSA over P-256 alone'),
                (block('account_key rsa;'), 'is not supported: the ACME library signs with ECDSA over P-256 alone'),
                (block(f'account_key {folder}/rsa.key;'), 'the ACME library signs with ECDSA over P-256 alone'),
                (block('preferred_chain x;'), '"preferred_chain" is not supported: the ACME library takes the chain'),
                (block('external_account_key a data:%%;'), 'invalid base64url encoded value'),
                (block('profile a b;'), 'invalid parameter "b"'),
                (block('ssl_verify maybe;'), 'invalid value "maybe" in "ssl_verify" directive'),
                (block('contact;'), 'invalid number of arguments in "contact" directive'),
                (block('gzip on;'), '"gzip" directive is not allowed here'),
                (block('nothing;'), 'unknown directive "nothing"'),
                ('uri x;', '"uri" directive is not allowed here'),
                (block('', server('www.example.*;')), 'invalid server name: unexpected character'),
                (block('', server('*.example.com;')), 'need the challenge dns-01, which is not supported'),
                (block('', server('; server_name .example..test;')), 'invalid server name or wildcard ".example..test"'),
                (block('', server(';')), 'no identifiers'),
                (block('', server('; server_name "~^a" *.a.example;')), 'no identifiers'),
                (block('', server('x key=dsa;')), 'invalid "key" value'),
                (block('', server('x key=rsa:1;')), 'unsupported key size'),
                (block('', server('x; acme_certificate a;')), '"acme_certificate" directive is duplicate'),
                (server('x;'), 'issuer "a" is missing')):
            (folder / 'conf').write_text(f'events {{}} http {{ {http} }}')
            done = subprocess.run([YOROZU, '-t', '-p', folder, '-c', folder / 'conf'], capture_output=True, text=True)
            equal(done.returncode, 1 if wanted else 0, f'{http}: {done.stderr}')
            assert wanted in done.stderr and ('[emerg]' in done.stderr) == bool(wanted), (http, done.stderr)
            if not wanted:
                assert 'is ordered and not used' in done.stderr, done.stderr
            # Nothing is made for a test.
            equal(sorted(path.name for path in folder.iterdir()), ['conf', 'logs', 'rsa.key'])


def test_t_says_where_a_certificate_is_missing():
    both = 'ssl_certificate $acme_certificate; ssl_certificate_key $acme_certificate_key;'
    issuer = 'acme_issuer a { uri https://localhost/dir; state_path off; }'
    with Folder() as folder:
        (folder / 'logs').mkdir()
        for http, wanted in ((f'server {{ listen 127.0.0.1:1 ssl; {both} }}', 'without "acme_certificate": its handshakes fail'),
                             (f'{both} server {{ listen 127.0.0.1:1 ssl; }}', 'without "acme_certificate": its handshakes fail'),
                             (f'{both} server {{ listen 127.0.0.1:1; }}', ''),
                             (f'server {{ listen 127.0.0.1:1 ssl; acme_certificate a x; {both} }}', '')):
            (folder / 'conf').write_text(f'events {{}} http {{ {issuer} {http} }}')
            done = subprocess.run([YOROZU, '-t', '-p', folder, '-c', folder / 'conf'], capture_output=True, text=True)
            equal((done.returncode, '[warn]' in done.stderr), (0, bool(wanted)), f'{http}: {done.stderr}')
            assert wanted in done.stderr, done.stderr


def test_a_new_binary_takes_over():
    needs_recent('times of renewal')
    with Folder() as folder:
        http_port = free_port()
        with Issuer(folder, http_port) as issuer:
            root = issuer.root()
            with Server(folder, conf_of(issuer, http_port)) as server:
                first = wait_issued(server, 'a.example', root)
                until('a time of renewal', lambda: 'renewal window' in server.log())
                # The other one asks, once it has the folder.
                issuer.wants_renewed(first)
                os.kill(server.pid, signal.SIGUSR2)
                until('another one', lambda: (server.folder / 'pid.oldbin').exists()
                      and 'start new binary process' in server.log() and server.log().count('start worker threads') == 2)
                os.kill(int((server.folder / 'pid.oldbin').read_text()), signal.SIGQUIT)
                until('the old one to go', lambda: not (server.folder / 'pid.oldbin').exists())
                new = int((server.folder / 'pid').read_text())
                try:
                    children = pathlib.Path(f'/proc/{new}/task/{new}/children').read_text().split()
                    is_its = lambda: any(f' {child}#{child}: certificate issued' in server.log() for child in children)
                    until('a certificate that it ordered', is_its)
                    assert is_issued(server.port, 'a.example', root)
                    equal(issuer.accounts(), 1)
                finally:
                    os.kill(new, signal.SIGTERM)
                    until('its end', lambda: not in_group(server.pid))
