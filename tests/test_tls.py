"""TLS and HTTP/2 with real clients: curl, OpenSSL (through Python), h2load; nginx beside."""
import http.client, os, pathlib, signal, socket, ssl, struct, subprocess
from openssl import certificate, openssl
from peers import NGINX, Folder, Process, Server, equal, free_port, until

ROOT = pathlib.Path(__file__).resolve().parent.parent


def curl(port, path='/', *options, name='localhost', scheme='https'):
    done = subprocess.run(['curl', '-sk', '--max-time', '20', '--resolve', f'{name}:{port}:127.0.0.1',
                           *map(str, options), f'{scheme}://{name}:{port}{path}'], capture_output=True)
    return done.stdout.decode('latin-1') if done.returncode == 0 else f'curl: {done.returncode}'


def context(maximum=None, **client):
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    if maximum:
        made.maximum_version = maximum
    return made


def ask(port, used, session=None, name='localhost'):
    """One request on a new connection: the answer's text, the certificate, the session."""
    with socket.create_connection(('127.0.0.1', port), timeout=60) as plain:
        with used.wrap_socket(plain, server_hostname=name, session=session) as connection:
            connection.sendall(f'GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n'.encode())
            text = b''
            while part := connection.recv(65536):
                text += part
            return text.decode('latin-1'), connection.getpeercert(True), connection.session


def der(folder, name):
    return ssl.PEM_cert_to_DER_cert((folder / f'{name}.crt').read_text())


def test_a_server_speaks_no_version_that_its_neighbour_agreed_on():
    with Folder() as folder:
        certificate(folder, 'localhost')
        files = f'ssl_certificate {folder}/localhost.crt; ssl_certificate_key {folder}/localhost.key;'
        servers = ''.join(f'server {{ listen 127.0.0.1:$port ssl; server_name {name}.test; http2 {name}; {files} return 200 $server_protocol; }}'
                          for name in ('on', 'off'))
        with Server(folder, servers) as server:
            def said(name, host):
                return curl(server.port, '/', '--http2', '-H', f'Host: {host}', '-o', folder / 'body', '-w', '%{http_version} %{http_code}', name=name)
            equal(said('off.test', 'off.test'), '1.1 200')
            equal(said('on.test', 'on.test'), '2 200')
            equal(said('on.test', 'off.test'), '2 421')
            assert 'the negotiated protocol is disabled' in server.log(), server.log()


VARIABLES = '$scheme $https $ssl_protocol $ssl_cipher $ssl_curve [$ssl_server_name] $ssl_session_reused' \
    ' $ssl_client_verify [$ssl_client_s_dn] [$ssl_client_i_dn] [$ssl_client_s_dn_legacy]' \
    ' [$ssl_client_serial] [$ssl_client_fingerprint] [$ssl_client_v_start] [$ssl_client_v_end]' \
    ' $ssl_client_escaped_cert [$ssl_client_v_remain]'


def pair(folder, conf):
    """The same configuration in yorozu and in nginx."""
    return Server(folder, conf), Server(folder, conf, program=NGINX)


def test_variables_and_client_certificates_are_nginx_s():
    with Folder() as folder:
        for name, options in (('localhost', {}), ('ca', {'subject': '/C=XX/O=An Authority/CN=ca'}),
                              ('client', {'signer': 'ca', 'subject': '/O=Some, Inc./OU=x/CN=client'}),
                              ('other', {})):
            certificate(folder, name, **options)
        def conf(verify):
            return f'''server {{ listen 127.0.0.1:$port ssl; server_name localhost;
                ssl_certificate {folder}/localhost.crt; ssl_certificate_key {folder}/localhost.key;
                ssl_client_certificate {folder}/ca.crt; ssl_verify_client {verify};
                ssl_protocols TLSv1.2 TLSv1.3; ssl_session_cache none;
                error_page 495 496 =403 /refused;
                location / {{ return 200 "{VARIABLES}"; }}
                location /refused {{ return 403 "$status $ssl_client_verify"; }} }}'''
        shown = ['--cert', folder / 'client.crt', '--key', folder / 'client.key']
        stranger = ['--cert', folder / 'other.crt', '--key', folder / 'other.key']
        for verify in ('off', 'optional', 'on', 'optional_no_ca'):
            here, there = pair(folder, conf(verify))
            with here, there:
                for options in ([], shown, stranger, ['--tls-max', '1.2'], [*shown, '--tls-max', '1.2'],
                                ['--tls-max', '1.2', '--ciphers', 'ECDHE-ECDSA-AES128-GCM-SHA256']):
                    got, wanted = (curl(server.port, '/', *options) for server in (here, there))
                    if verify == 'optional_no_ca' and options == stranger:
                        # OpenSSL 3.0 and later name the same reason with another word.
                        got, wanted = (text.replace('self signed', 'self-signed') for text in (got, wanted))
                    # The second in which a server is asked decides about the day.
                    days = [text.rpartition('[')[2] for text in (got, wanted)]
                    assert set(days) <= {'29]', '30]'} or days[0] == days[1], days
                    got, wanted = (text.rpartition('[')[0] or text for text in (got, wanted))
                    equal(got, wanted, f'{verify} {options}')


def test_certificates_by_name_and_by_what_the_client_can():
    with Folder() as folder:
        for name, kind in (('default', 'ec'), ('a.example', 'ec'), ('a-rsa', 'rsa'), ('b.example', 'rsa')):
            certificate(folder, name, kind)
        lines = lambda name: f'ssl_certificate {folder}/{name}.crt; ssl_certificate_key {folder}/{name}.key;'
        conf = f'''
            server {{ listen 127.0.0.1:$port ssl; {lines('default')} return 200 default; }}
            server {{ listen 127.0.0.1:$port ssl; server_name a.example; {lines('a.example')} {lines('a-rsa')}
                      return 200 a; }}
            server {{ listen 127.0.0.1:$port ssl; server_name *.b.example b.example; {lines('b.example')}
                      return 200 b; }}
            server {{ listen 127.0.0.1:$port ssl; server_name no.example; ssl_reject_handshake on; }}
            server {{ listen 127.0.0.1:$port ssl; server_name v.example; return 200 v;
                      ssl_certificate {folder}/$ssl_server_name.v.crt;
                      ssl_certificate_key {folder}/$ssl_server_name.v.key; }}'''
        certificate(folder, 'v.example.v')
        with Server(folder, conf) as server:
            for name, file in (('x.example', 'default'), ('a.example', 'a.example'), ('A.Example', 'a.example'),
                               ('b.example', 'b.example'), ('www.b.example', 'b.example'),
                               ('v.example', 'v.example.v')):
                equal(ask(server.port, context(), name=name)[1], der(folder, file), name)
            only_rsa = context(ssl.TLSVersion.TLSv1_2)
            only_rsa.set_ciphers('ECDHE-RSA-AES128-GCM-SHA256')
            equal(ask(server.port, only_rsa, name='a.example')[1], der(folder, 'a-rsa'))
            try:
                ask(server.port, context(), name='no.example')
                assert False, 'the handshake was not rejected'
            except ssl.SSLError as problem:
                assert 'UNRECOGNIZED_NAME' in str(problem), problem


def test_sessions_are_resumed_by_tickets_and_from_the_cache_and_over_a_reload():
    with Folder() as folder:
        certificate(folder, 'localhost')
        for tickets, cache in (('on', 'none'), ('off', 'shared:S:1m')):
            conf = f'''server {{ listen 127.0.0.1:$port ssl; ssl_session_cache {cache};
                ssl_certificate {folder}/localhost.crt; ssl_certificate_key {folder}/localhost.key;
                ssl_session_tickets {tickets}; return 200 "reused: $ssl_session_reused"; }}'''
            with Server(folder, conf, main='worker_processes 2;') as server:
                for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
                    used = context(version)
                    text, _, session = ask(server.port, used)
                    assert text.endswith('reused: .'), text
                    for _ in range(4):
                        text, _, session = ask(server.port, used, session)
                        assert text.endswith('reused: r'), (tickets, version, text)
                os.kill(server.pid, signal.SIGHUP)
                until('the reload', lambda: 'reconfigured' in server.log())
                assert ask(server.port, used, session)[0].endswith('reused: r'), tickets


def test_ticket_keys_from_files_serve_several_machines():
    with Folder() as folder:
        certificate(folder, 'localhost')
        (folder / 'key').write_bytes(os.urandom(80))
        conf = f'''server {{ listen 127.0.0.1:$port ssl; ssl_session_ticket_key {folder}/key;
            ssl_certificate {folder}/localhost.crt; ssl_certificate_key {folder}/localhost.key;
            return 200 "reused: $ssl_session_reused"; }}'''
        with Server(folder, conf) as one, Server(folder, conf) as two:
            used = context()
            _, _, session = ask(one.port, used)
            assert ask(two.port, used, session)[0].endswith('reused: r')


def test_a_reload_brings_new_certificates_and_drops_no_connection():
    with Folder() as folder:
        certificate(folder, 'localhost')
        conf = f'''server {{ listen 127.0.0.1:$port ssl; return 200 ok;
            ssl_certificate {folder}/localhost.crt; ssl_certificate_key {folder}/localhost.key; }}'''
        with Server(folder, conf) as server:
            kept = http.client.HTTPSConnection('127.0.0.1', server.port, context=context(), timeout=60)
            kept.request('GET', '/')
            equal(kept.getresponse().read(), b'ok')
            old = der(folder, 'localhost')
            certificate(folder, 'localhost')
            os.kill(server.pid, signal.SIGHUP)
            until('the new certificate', lambda: ask(server.port, context())[1] != old)
            equal(ask(server.port, context())[1], der(folder, 'localhost'))
            kept.request('GET', '/')
            equal(kept.getresponse().read(), b'ok')
            # One that cannot be used leaves the old one in place.
            (folder / 'localhost.crt').write_text('nonsense')
            os.kill(server.pid, signal.SIGHUP)
            until('the refusal', lambda: 'cannot load certificate' in server.log())
            equal(ask(server.port, context())[0][-2:], 'ok')


def test_a_reload_reads_keys_that_are_root_s_alone():
    if os.geteuid() != 0:
        return print('not run: only root has what is root\'s alone')
    with Folder() as folder:
        folder.chmod(0o755)
        certificate(folder, 'localhost')
        (folder / 'localhost.key').chmod(0o600)
        conf = f'''server {{ listen 127.0.0.1:$port ssl; location / {{ root {folder}; }}
            ssl_certificate {folder}/localhost.crt; ssl_certificate_key {folder}/localhost.key; }}'''
        with Server(folder, conf, user='www-data') as server:
            old = der(folder, 'localhost')
            certificate(folder, 'localhost')
            (folder / 'localhost.key').chmod(0o600)
            os.kill(server.pid, signal.SIGHUP)
            until('the new certificate', lambda: ask(server.port, context())[1] != old)
            # The workers may not read them.
            equal(curl(server.port, '/localhost.crt', '-o', '/dev/null', '-w', '%{http_code}'), '200')
            equal(curl(server.port, '/localhost.key', '-o', '/dev/null', '-w', '%{http_code}'), '403')


def test_keys_with_passwords_and_files_that_do_not_fit():
    with Folder() as folder:
        certificate(folder, 'localhost')
        certificate(folder, 'other')
        openssl('pkcs8', '-topk8', '-v2', 'aes256', '-in', folder / 'localhost.key', '-out',
                folder / 'locked.key', '-passout', 'pass:second')
        (folder / 'words').write_text('first\nsecond\n')
        conf = lambda key: f'''server {{ listen 127.0.0.1:$port ssl; return 200 ok;
            ssl_certificate {folder}/localhost.crt; ssl_certificate_key {folder}/{key};
            ssl_password_file {folder}/words; }}'''
        with Server(folder, conf('locked.key')) as server:
            equal(curl(server.port), 'ok')
        refused = Server(folder, conf('other.key'), wait=False)
        refused.process.wait(60)
        assert 'cannot use certificate key' in (refused.folder / 'out').read_text()


def test_keys_open_in_every_form_that_openssl_writes():
    forms = [(kind, cipher, is_traditional) for kind in ('rsa', 'ec') for cipher in ('aes128', 'aes192', 'aes256', 'des3')
             for is_traditional in (True, False)]
    with Folder() as folder:
        for kind in ('rsa', 'ec'):
            certificate(folder, kind, kind)
        (folder / 'passwords').write_text('wrong\nalso wrong\nsecret\n')
        (folder / 'wrong').write_text('wrong\n')
        servers = ''
        for number, (kind, cipher, is_traditional) in enumerate(forms):
            into = folder / f'{number}.key'
            if is_traditional:
                openssl(kind, '-in', folder / f'{kind}.key', f'-{cipher}', '-traditional' if kind == 'rsa' else '-param_enc',
                        *([] if kind == 'rsa' else ['named_curve']), '-passout', 'pass:secret', '-out', into)
            else:
                more = ['-v2prf', 'hmacWithSHA1'] if cipher == 'aes256' else []
                openssl('pkcs8', '-topk8', '-in', folder / f'{kind}.key', '-v2', cipher, *more, '-passout', 'pass:secret', '-out', into)
            label = b'Proc-Type: 4,ENCRYPTED' if is_traditional else b'BEGIN ENCRYPTED PRIVATE KEY'
            assert label in into.read_bytes(), (kind, cipher, into.read_text())
            server = f'''server {{ listen 127.0.0.1:$port ssl; server_name n{number}; ssl_certificate {folder}/{kind}.crt;
                ssl_certificate_key {into}; ssl_password_file {folder}/PASSWORDS; return 200 $server_name; }}\n'''
            servers += server.replace('PASSWORDS', 'passwords')
            for program in (None, NGINX):
                refused = Server(folder, server.replace('PASSWORDS', 'wrong'), program, wait=False)
                refused.process.wait(60)
                assert 'cannot load certificate key' in (refused.folder / 'out').read_text(), (kind, cipher, is_traditional)
        here, there = pair(folder, servers)
        with here, there:
            for number, form in enumerate(forms):
                for server in (here, there):
                    answer = ask(server.port, context(), name=f'n{number}')
                    assert answer[0].endswith(f'\r\n\r\nn{number}') and answer[1] == der(folder, form[0]), form


def test_a_key_for_all_servers_is_opened_with_the_passwords_of_each():
    with Folder() as folder:
        certificate(folder, 'localhost')
        openssl('pkcs8', '-topk8', '-v2', 'aes256', '-in', folder / 'localhost.key', '-out',
                folder / 'locked.key', '-passout', 'pass:second')
        (folder / 'words').write_text('first\nsecond\n')
        here, there = pair(folder, f'''ssl_certificate {folder}/localhost.crt; ssl_certificate_key {folder}/locked.key;
            server {{ listen 127.0.0.1:$port ssl; return 200 ok; ssl_password_file {folder}/words; }}''')
        with here, there:
            for server in (here, there):
                equal(curl(server.port), 'ok')


def test_plain_http_on_a_tls_port_gets_a_page_that_says_so():
    with Folder() as folder:
        certificate(folder, 'localhost')
        conf = f'''server {{ listen 127.0.0.1:$port ssl; server_tokens off; return 200 ok;
            ssl_certificate {folder}/localhost.crt; ssl_certificate_key {folder}/localhost.key; }}'''
        here, there = pair(folder, conf)
        with here, there:
            got, wanted = (curl(server.port, '/', '-i', scheme='http') for server in (here, there))
            assert got.startswith('HTTP/1.1 400 ') and 'sent to HTTPS port' in got, got
            strip = lambda text: [line for line in text.splitlines() if not line.startswith(('Date:', 'Server:', 'Content-Length:'))
                                  and '<hr>' not in line]
            equal(strip(got), strip(wanted))


def test_client_certificates_as_tutorials_make_them():
    with Folder() as folder:
        certificate(folder, 'localhost')
        certificate(folder, 'ca', 'rsa', subject='/CN=ca')
        certificate(folder, 'middle', 'rsa', signer='ca')
        # Of X.509's first version: without a file of extensions.
        openssl('req', '-newkey', 'rsa:2048', '-nodes', '-keyout', folder / 'old.key', '-subj', '/CN=old',
                '-out', folder / 'old.csr')
        openssl('x509', '-req', '-in', folder / 'old.csr', '-CA', folder / 'ca.crt', '-CAkey', folder / 'ca.key',
                '-set_serial', '77', '-days', '30', '-out', folder / 'old.crt')
        certificate(folder, 'good', signer='ca')
        (folder / 'forbidden').write_text('basicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\n')
        openssl('x509', '-req', '-in', folder / 'good.csr', '-CA', folder / 'ca.crt', '-CAkey', folder / 'ca.key',
                '-set_serial', '78', '-days', '30', '-extfile', folder / 'forbidden', '-out', folder / 'server.crt')
        # Signed by one that may not sign.
        openssl('x509', '-req', '-in', folder / 'good.csr', '-CA', folder / 'middle.crt', '-CAkey',
                folder / 'middle.key', '-set_serial', '79', '-days', '30', '-out', folder / 'below.crt')
        (folder / 'below.crt').write_text((folder / 'below.crt').read_text() + (folder / 'middle.crt').read_text())
        openssl('x509', '-req', '-in', folder / 'good.csr', '-CA', folder / 'ca.crt', '-CAkey', folder / 'ca.key',
                '-set_serial', '80', '-days', '-1', '-out', folder / 'past.crt')
        certificate(folder, 'lost', signer='ca')
        for name in ('index', 'serial', 'number'):
            (folder / name).write_text('' if name == 'index' else '01\n')
        (folder / 'ca.conf').write_text(f'''[ca]\ndefault_ca = a\n[a]\ndatabase = {folder}/index\n
            serial = {folder}/serial\ncrlnumber = {folder}/number\ndefault_md = sha256\ndefault_crl_days = 1\n
            [extensions]\nauthorityKeyIdentifier = keyid\n''')
        authority = ['-config', folder / 'ca.conf', '-keyfile', folder / 'ca.key', '-cert', folder / 'ca.crt']
        for name in ('old', 'lost'):
            openssl('ca', *authority, '-revoke', folder / f'{name}.crt')
        openssl('ca', *authority, '-gencrl', '-crlexts', 'extensions', '-out', folder / 'crl')
        # Of the first version, which it makes if it gets no extensions.
        (folder / 'ca.conf').write_text((folder / 'ca.conf').read_text().replace('crlnumber', '#'))
        openssl('ca', *authority, '-gencrl', '-out', folder / 'old-crl')
        def conf(crl):
            return f'''server {{ listen 127.0.0.1:$port ssl; ssl_client_certificate {folder}/ca.crt; {crl}
                ssl_certificate {folder}/localhost.crt; ssl_certificate_key {folder}/localhost.key;
                ssl_verify_client optional_no_ca; ssl_verify_depth 2; error_page 495 =200 /;
                return 200 "$ssl_client_verify"; }}'''
        for crl in ('', f'ssl_crl {folder}/crl;', f'ssl_crl {folder}/old-crl;'):
            here, there = pair(folder, conf(crl))
            with here, there:
                for name, key in (('good', 'good'), ('lost', 'lost'), ('old', 'old'), ('ca', 'ca'), ('server', 'good'),
                                  ('below', 'good'), ('past', 'good'), ('localhost', 'localhost')):
                    shown = ['--cert', folder / f'{name}.crt', '--key', folder / f'{key}.key']
                    got, wanted = (curl(server.port, '/', *shown) for server in (here, there))
                    is_same = got == wanted or (got.startswith('FAILED') and wanted.startswith('FAILED'))
                    assert is_same and got, f'{name} {crl}: {got}, nginx says {wanted}'
                    if name in ('good', 'ca'):
                        equal(got, 'SUCCESS', name)
                    if name in ('lost', 'old'):
                        equal(got, 'FAILED:certificate revoked' if crl else 'SUCCESS', name)


def test_the_state_of_a_certificate_is_asked_of_its_responder_and_sent_with_it():
    with Folder() as folder:
        certificate(folder, 'ca', 'rsa', subject='/CN=ca')
        port = free_port()
        # A certificate that names its responder, and one that the authority makes for answers.
        for name, text in (('localhost', f'authorityInfoAccess=OCSP;URI:http://127.0.0.1:{port}/\n'),
                           ('signer', 'extendedKeyUsage=OCSPSigning\n')):
            openssl('req', '-newkey', 'rsa:2048', '-nodes', '-keyout', folder / f'{name}.key', '-subj', f'/CN={name}',
                    '-out', folder / f'{name}.csr')
            (folder / 'v3').write_text(text)
            openssl('x509', '-req', '-in', folder / f'{name}.csr', '-CA', folder / 'ca.crt', '-CAkey', folder / 'ca.key',
                    '-set_serial', '4660', '-days', '30', '-extfile', folder / 'v3', '-out', folder / f'{name}.crt')
        (folder / 'index').write_text('V\t491231235959Z\t\t1234\tunknown\t/CN=localhost\n')
        def conf(more=''):
            return f'''server {{ listen 127.0.0.1:$port ssl; return 200 ok; ssl_stapling on; ssl_stapling_verify on; {more}
                ssl_trusted_certificate {folder}/ca.crt; ssl_certificate {folder}/localhost.crt;
                ssl_certificate_key {folder}/localhost.key; }}'''
        def status(server):
            done = subprocess.run(['openssl', 's_client', '-connect', f'127.0.0.1:{server.port}', '-status'],
                                  input=b'', capture_output=True)
            return done.stdout.decode('latin-1')
        responder = ['openssl', 'ocsp', '-port', port, '-index', folder / 'index', '-CA', folder / 'ca.crt',
                     '-rsigner', folder / 'signer.crt', '-rkey', folder / 'signer.key', '-nmin', '5']
        with Process(responder, folder / 'ocsp.out') as answering:
            answering.wait_for(lambda: 'waiting for OCSP' in (folder / 'ocsp.out').read_text())
            with Server(folder, conf(), main='worker_processes 2;') as server:
                until('the answer', lambda: 'Cert Status: good' in status(server))
            # A responder that the authority has not authorized is not believed.
        responder[responder.index('-rsigner') + 1] = folder / 'localhost.crt'
        responder[responder.index('-rkey') + 1] = folder / 'localhost.key'
        with Process(responder, folder / 'ocsp.out') as answering:
            answering.wait_for(lambda: 'waiting for OCSP' in (folder / 'ocsp.out').read_text())
            with Server(folder, conf()) as server:
                until('the refusal', lambda: 'OCSP_basic_verify() failed' in server.log())
                assert 'no response sent' in status(server)
        with Server(folder, conf()) as server:
            until('the failure', lambda: 'while requesting certificate status' in server.log())
            assert 'no response sent' in status(server)
        (folder / 'answer').write_bytes(b'0')
        with Server(folder, conf(f'ssl_stapling_file {folder}/answer;')) as server:
            assert 'OCSP response: no response sent' not in status(server)


def test_logs_name_the_client_of_a_proxy_whatever_is_wrong_with_its_request():
    with Folder() as folder, Server(folder, '''log_format a '$remote_addr $status'; set_real_ip_from 127.0.0.1; real_ip_header proxy_protocol;
            server { listen 127.0.0.1:$port proxy_protocol; access_log $dir/logs/a.log a; return 200; }''') as server:
        broken = (b'GET / HTTP/9.9\r\nHost: a\r\n\r\n', b'GET / HTTP/1.1\r\nHost: a b\r\n\r\n', b'GET / HTTP/1.1\r\n\r\n', b'GET / HT')
        for text in broken:
            with socket.create_connection(('127.0.0.1', server.port), timeout=60) as connection:
                connection.sendall(b'PROXY TCP4 192.0.2.7 127.0.0.1 5000 80\r\n' + text)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass
        lines = lambda: (server.folder / 'logs/a.log').read_text().splitlines()
        until('a line for each', lambda: len(lines()) == len(broken))
        equal(lines(), ['192.0.2.7 505', *['192.0.2.7 400'] * 3])
        said = [line for line in server.log().splitlines() if ' client ' in line and ' while reading ' in line]
        equal((len(said), all('client: 192.0.2.7,' in line for line in said)), (len(broken), True), said)


def test_a_proxy_in_front_says_who_the_client_is():
    with Folder() as folder:
        certificate(folder, 'localhost')
        conf = f'''set_real_ip_from 127.0.0.0/8; set_real_ip_from 192.0.2.0/24;
            server {{ listen 127.0.0.1:$port proxy_protocol; real_ip_header proxy_protocol;
              return 200 "$remote_addr $remote_port $proxy_protocol_addr $proxy_protocol_port
$proxy_protocol_server_addr $proxy_protocol_server_port $realip_remote_addr"; }}
            server {{ listen 127.0.0.1:TLS ssl proxy_protocol; return 200 "$remote_addr $proxy_protocol_addr $ssl_protocol";
              ssl_certificate {folder}/localhost.crt; ssl_certificate_key {folder}/localhost.key; }}
            server {{ listen 127.0.0.1:PLAIN; real_ip_header X-Forwarded-For; location / {{ return 200 $remote_addr; }}
              location /closed {{ deny 198.51.100.7; allow all; }} }}
            server {{ listen 127.0.0.1:PLAIN; server_name deep; real_ip_header X-Forwarded-For;
              real_ip_recursive on; return 200 $remote_addr; }}'''
        for program in (None, NGINX):
            tls, plain = free_port(), free_port()
            text = conf.replace('127.0.0.1:TLS', f'127.0.0.1:{tls}').replace('PLAIN', str(plain))
            with Server(folder, text, program=program) as server:
                def say(port, introduction, secure=False):
                    with socket.create_connection(('127.0.0.1', port), timeout=60) as connection:
                        answer = b''
                        try:
                            connection.sendall(introduction)
                            if secure:
                                connection = context().wrap_socket(connection)
                            connection.sendall(b'GET / HTTP/1.0\r\n\r\n')
                            while part := connection.recv(65536):
                                answer += part
                        except (ConnectionError, ssl.SSLError):
                            pass
                        return answer.partition(b'\r\n\r\n')[2].decode()
                line = b'PROXY TCP4 198.51.100.7 203.0.113.9 1234 443\r\n'
                binary = b'\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c' + bytes([198, 51, 100, 7, 203, 0, 113, 9, 4, 210, 1, 187])
                for introduction in (line, binary):
                    equal(say(server.port, introduction).split(),
                          '198.51.100.7 1234 198.51.100.7 1234 203.0.113.9 443 127.0.0.1'.split())
                equal(say(tls, line, secure=True), '127.0.0.1 198.51.100.7 TLSv1.3' if program is None
                      else say(tls, line, secure=True))
                assert say(tls, line, secure=True).startswith('127.0.0.1 198.51.100.7 TLS')
                equal(say(server.port, b'PROXY UNKNOWN\r\n').split()[0], '127.0.0.1')
                equal(say(server.port, b'nonsense\r\n'), '')
                forwarded = lambda name, value, path='/': curl(
                    plain, path, '-H', f'X-Forwarded-For: {value}', name=name, scheme='http')
                for name in ('localhost', 'deep'):
                    for value, shallow, deep in (('198.51.100.7', '198.51.100.7', '198.51.100.7'),
                                                 ('198.51.100.7, 192.0.2.5', '192.0.2.5', '198.51.100.7'),
                                                 ('unknown', '127.0.0.1', '127.0.0.1'),
                                                 ('unknown, 192.0.2.5', '192.0.2.5', '192.0.2.5')):
                        equal(forwarded(name, value), deep if name == 'deep' else shallow, f'{program} {name} {value}')
                assert '403' in forwarded('localhost', '198.51.100.7', '/closed')
                assert '404' in forwarded('localhost', '198.51.100.8', '/closed')


# --- HTTP/2 --------------------------------------------------------------------------------------

def site(folder, port='127.0.0.1:$port', more=''):
    certificate(folder, 'localhost')
    (folder / 'www').mkdir()
    (folder / 'www/large').write_bytes(os.urandom(5_000_000))
    (folder / 'www/page.html').write_text('<p>page</p>' * 1000)
    return f'''server {{ listen {port} ssl http2; server_name localhost; root {folder}/www; {more}
        ssl_certificate {folder}/localhost.crt; ssl_certificate_key {folder}/localhost.key;
        location /variables {{ return 200 "$http2 $server_protocol $request $http_cookie $host"; }}
        location /slow {{ limit_rate 100k; }} }}'''


def test_h2_answers_as_nginx_does():
    with Folder() as folder:
        here, there = pair(folder, site(folder))
        with here, there:
            answers = lambda *options: [curl(server.port, *options) for server in (here, there)]
            for options in (['/variables', '-H', 'Cookie: a=1; b=2'], ['/page.html'], ['/large'], ['/none'],
                            ['/page.html', '-H', 'Range: bytes=5-20'], ['/page.html', '-I']):
                got, wanted = answers(*options)
                if options[-1] == '-I' or options == ['/none']:
                    keep = lambda text: sorted(line for line in text.splitlines()
                                               if not line.startswith(('date', 'server')) and '<hr>' not in line)
                    got, wanted = keep(got), keep(wanted)
                equal(got, wanted, str(options))
            version = curl(here.port, '/page.html', '-o', '/dev/null', '-w', '%{http_version}')
            equal(version, '2')


def test_h2_many_clients_and_streams():
    with Folder() as folder, Server(folder, site(folder, more='keepalive_requests 100000;')) as server:
        out = subprocess.run(['h2load', '-n', '5000', '-c', '50', '-m', '20',
                              f'https://127.0.0.1:{server.port}/page.html'], capture_output=True, text=True).stdout
        assert '5000 succeeded, 0 failed, 0 errored, 0 timeout' in out, out
        out = subprocess.run(['h2load', '-n', '40', '-c', '4', '-m', '10',
                              f'https://127.0.0.1:{server.port}/large'], capture_output=True, text=True).stdout
        assert '40 succeeded, 0 failed' in out, out


class Frames:
    """An HTTP/2 client that can misbehave."""

    def __init__(self, port, over=lambda plain: plain):
        self.socket = over(socket.create_connection(('127.0.0.1', port), timeout=60))
        self.socket.sendall(b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n')
        self.send(4, 0, 0, b'')

    def send(self, kind, flags, stream, payload):
        self.socket.sendall(struct.pack('>I', len(payload))[1:] + bytes([kind, flags])
                            + struct.pack('>I', stream) + payload)

    def get(self, stream, path='/', end=True):
        field = lambda index, value: bytes([index, len(value)]) + value
        # Literals without indexing on the static table's names: authority 1, path 4.
        block = b'\x82\x86' + field(0x04, path.encode()) + field(0x01, b'localhost')
        self.send(1, 0x05 if end else 0x04, stream, block)

    def take(self, count):
        data = b''
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    def frame(self):
        head = self.take(9)
        length = int.from_bytes(head[:3], 'big')
        return head[3], head[4], int.from_bytes(head[5:], 'big'), self.take(length)

    def until(self, wanted):
        """Frames up to one that `wanted` likes."""
        while True:
            frame = self.frame()
            if frame[0] == 4 and not frame[1]:
                self.send(4, 1, 0, b'')
            if frame[0] == 6 and not frame[1]:
                self.send(6, 1, 0, frame[3])
            if wanted(frame):
                return frame


GOAWAY, DATA = 7, 0
PLAIN = '''server { listen 127.0.0.1:$port; http2 on; location / { return 200 ok; }
    location /php { proxy_pass http://127.0.0.1:BACK; } }'''


def test_h2_a_reload_and_a_stop_say_goaway_and_finish_what_has_begun():
    with Folder() as folder, Server(folder, PLAIN.replace('http://127.0.0.1:BACK', 'http://127.0.0.1:1')) as server:
        for number in (signal.SIGHUP, signal.SIGQUIT):
            client = Frames(server.port)
            client.get(1)
            client.until(lambda frame: frame[0] == DATA and frame[1] & 1)
            os.kill(server.pid, number)
            goaway = client.until(lambda frame: frame[0] == GOAWAY)
            equal(goaway[3][:8], struct.pack('>II', 1, 0), 'the last stream that is answered, and no error')
            # As nginx: what was on its way is not answered, and the client, who knows it, asks again elsewhere.
            try:
                client.get(3)
                client.until(lambda frame: frame[2] == 3)
                assert False, 'a stream behind the last one was answered'
            except (EOFError, ConnectionError):
                pass


def test_h2_rapid_resets_end_the_connection_and_not_the_server():
    with Folder() as folder:
        back = free_port()
        with Server(folder, PLAIN.replace('BACK', str(back))) as server, \
                socket.create_server(('127.0.0.1', back)):
            client = Frames(server.port)
            try:
                for stream in range(1, 20001, 2):
                    client.get(stream, '/php')
                    client.send(3, 0, stream, struct.pack('>I', 8))
                goaway = client.until(lambda frame: frame[0] == GOAWAY and frame[3][4:8] != bytes(4))
                equal(goaway[3][4:8], struct.pack('>I', 11), 'ENHANCE_YOUR_CALM')
            except ConnectionError:
                pass
            other = Frames(server.port)
            other.get(1)
            other.until(lambda frame: frame[0] == DATA)


def test_h2_endless_continuation_frames_are_refused():
    with Folder() as folder, Server(folder, PLAIN.replace('BACK', '1')) as server:
        client = Frames(server.port)
        before = server.resident_bytes()
        client.send(1, 0, 1, b'\x82\x86')
        try:
            for _ in range(100_000):
                client.send(9, 0, 1, b'\x00\x01a\x7f\x00' + b'x' * 127)
            assert False, 'a head without end was taken'
        except ConnectionError:
            pass
        assert server.resident_bytes() - before < 8 << 20


def test_h2_early_answers_and_bodies():
    with Folder() as folder:
        certificate(folder, 'localhost')
        conf = f'''server {{ listen 127.0.0.1:$port ssl; http2 on; client_max_body_size 1m;
            ssl_certificate {folder}/localhost.crt; ssl_certificate_key {folder}/localhost.key;
            location / {{ proxy_pass http://127.0.0.1:$port1; }} }}
            server {{ listen 127.0.0.1:$port1; client_max_body_size 0; client_body_buffer_size 16m;
              location / {{ proxy_pass http://127.0.0.1:$port1/echo; }}
              location /echo {{ return 200 "$content_length $request_method"; }} }}'''
        conf = conf.replace('$port1', str(free_port()))
        with Server(folder, conf) as server:
            body = folder / 'body'
            body.write_bytes(os.urandom(900_000))
            equal(curl(server.port, '/', '--data-binary', f'@{body}'), '900000 POST')
            equal(curl(server.port, '/', '-T', body), '900000 PUT')
            body.write_bytes(os.urandom(3_000_000))
            equal(curl(server.port, '/', '--data-binary', f'@{body}', '-o', '/dev/null', '-w', '%{http_code}'), '413')


def silent():
    """A server that takes connections and answers nothing, and its port."""
    taken = socket.create_server(('127.0.0.1', 0))
    return taken, taken.getsockname()[1]


def test_a_client_that_closes_tls_together_with_its_request_is_seen_to_leave():
    back, port = silent()
    with Folder() as folder, back:
        certificate(folder, 'localhost')
        conf = f'''log_format s "$uri $status";
            server {{ listen 127.0.0.1:$port ssl; access_log {folder}/s.log s; location / {{ proxy_pass http://127.0.0.1:{port}; }}
            ssl_certificate {folder}/localhost.crt; ssl_certificate_key {folder}/localhost.key; }}'''
        with Server(folder, conf) as server:
            for maximum in (ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2):
                path = f'/{maximum.name}'
                read, written = ssl.MemoryBIO(), ssl.MemoryBIO()
                tls = context(maximum).wrap_bio(read, written, server_hostname='localhost')
                with socket.create_connection(('127.0.0.1', server.port), timeout=60) as plain:
                    while True:
                        try:
                            tls.do_handshake()
                            break
                        except ssl.SSLWantReadError:
                            plain.sendall(written.read())
                            read.write(plain.recv(65536))
                    tls.write(f'GET {path} HTTP/1.1\r\nHost: a\r\n\r\n'.encode())
                    try:
                        tls.unwrap()
                    except ssl.SSLWantReadError:
                        pass
                    # With the client's part of the handshake, or in the same segment: the connection itself stays open.
                    plain.sendall(written.read())
                    until('the line', lambda: f'{path} 499' in (folder / 's.log').read_text())


def test_h2_bounds_are_those_of_the_server_that_the_handshake_names():
    back, port = silent()
    with Folder() as folder, back:
        certificate(folder, 'localhost')
        keys = f'ssl_certificate {folder}/localhost.crt; ssl_certificate_key {folder}/localhost.key;'
        conf = f'''{keys} http2 on;
            server {{ listen 127.0.0.1:$port ssl default_server; http2_max_concurrent_streams 1; keepalive_requests 1; }}
            server {{ listen 127.0.0.1:$port ssl; server_name localhost; location = /ok {{ return 200 ok; }}
              location / {{ proxy_pass http://127.0.0.1:{port}; }} }}'''
        with Server(folder, conf) as server:
            used = context()
            used.set_alpn_protocols(['h2'])
            client = Frames(server.port, lambda plain: used.wrap_socket(plain, server_hostname='localhost'))
            for stream, path in ((1, '/'), (3, '/'), (5, '/ok')):
                client.get(stream, path)
            frame = client.until(lambda frame: frame[0] in (3, GOAWAY) or frame[0] == DATA and frame[1] & 1)
            equal((frame[0], frame[2]), (DATA, 5), str(frame))


def test_h2_counts_what_it_sends_and_notes_what_breaks_a_stream():
    back, port = silent()
    with Folder() as folder, back:
        (folder / 'www').mkdir()
        (folder / 'www/page').write_bytes(b'x' * 40_000)
        conf = f'''log_format s "$uri $bytes_sent $body_bytes_sent";
            server {{ listen 127.0.0.1:$port; http2 on; access_log {folder}/s.log s; root {folder}/www; location = /ok {{ return 200 ok; }}
              location = /none {{ return 204; }} location /late {{ proxy_pass http://127.0.0.1:{port}; }} }}'''
        with Server(folder, conf) as server:
            client = Frames(server.port)
            for stream, path, body in ((1, '/ok', 2), (3, '/none', 0), (5, '/page', 40_000)):
                client.get(stream, path)
                count, is_last = 0, False
                while not is_last:
                    frame = client.until(lambda frame: frame[2] == stream)
                    count, is_last = count + 9 + len(frame[3]), frame[1] & 1
                until('the line', lambda: f'{path} {count} {body}\n' in (folder / 's.log').read_text())
            client.get(7, '/late')
            client.send(8, 0, 7, struct.pack('>I', (1 << 31) - 1))
            frame = client.until(lambda frame: frame[0] == 3)
            equal(frame[2:], (7, struct.pack('>I', 3)))
            wanted = 'client violated flow control: too large window (stream 7) while processing HTTP/2 connection'
            until('the line', lambda: wanted in server.log())
