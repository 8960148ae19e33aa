#!/usr/bin/env python3
"""Certificates of clients: who is let in, and what variables say of them; Debian's nginx beside.

  tests/client_certificates.py [NAME ...]     runs the tests whose names contain one of NAME
"""
import socket, ssl, sys
from certificates import *
from peers import NGINX, Folder, Server, run

def asked(port, host, certificate):
    """What a client with a certificate is told; the name of the failure without an answer."""
    used = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    used.check_hostname, used.verify_mode = False, ssl.CERT_NONE
    used.set_ciphers('DEFAULT:@SECLEVEL=0')
    try:
        if certificate:
            used.load_cert_chain(certificate)
        with socket.create_connection(('127.0.0.1', port), timeout=20) as plain, \
                used.wrap_socket(plain, server_hostname=host) as connection:
            connection.sendall(f'GET / HTTP/1.0\r\nHost: {host}\r\n\r\n'.encode())
            answer = b''
            while part := connection.recv(65536):
                answer += part
            return answer.partition(b'\r\n\r\n')[2].decode('latin-1')
    except OSError as problem:
        return type(problem).__name__


NUMERIC, TELETEX, VISIBLE, UNIVERSAL, BMP, BITS = 18, 20, 26, 28, 30, 3


def subjects():
    """Names that have something to escape, to decode, or to mistake."""
    texts = ['bob', 'bob/CN=admin', 'bob,CN=admin', 'bob+CN=admin', 'bob\nX: y', 'a\rb', 'a\0b', '\x1b[31m', 'a=b', '"a"', 'a;b<c>d',
             'back\\slash', 'back\\x2fslash', ' both ', ' ', '  ', '#number', '#', 'a#', '##', 'trailing ', '\x7f', 'Jürgen', 'ü',
             '日本語', '😀', 'a\u2028b', '%0a', '', '~!@$%^&*()_-{}[]|:?.', "it's", ' #', '# ', '\\', ',', '\x80\x9f']
    for text in texts:
        yield name(attribute('CN', text))
        yield name('O=Some', attribute('CN', text), 'C=XX')
        yield name(attribute('CN', text.encode('utf-16-be'), BMP))
        yield name(attribute('CN', text.encode('utf-32-be'), UNIVERSAL))
        yield name(attribute('CN', text.encode('latin-1', 'replace'), TELETEX))
        yield name([attribute('CN', text), attribute('O', text)], attribute('1.2.3.4', text))
    # Bytes that are no text of their kind.
    for tag in (UTF8, PRINTABLE, IA5, TELETEX, NUMERIC, BMP, UNIVERSAL):
        for content in (b'\xff\xfe\xfd\xfc', b'\xc3', b'\xd8\x00', b'\xd8\x00\x00a', b'\x00\x11\x00\x00', b'\0\0\0', b'', b'ab*&@'):
            yield name(attribute('CN', content, tag))
    yield name(attribute('2.5.4.45', b'\x04\xab\xc0', BITS))
    yield name(attribute('2.5.4.45', b'\x00', BITS))
    yield name(attribute('CN', tlv(UTF8, b'inside'), 0x30))
    yield name()
    yield name([attribute('CN', 'a'), attribute('O', 'b'), attribute('C', 'XX')], [attribute('emailAddress', 'a@b', IA5), attribute('CN', 'c')])
    yield name(*(attribute('CN', f'{number}') for number in range(40)))
    yield name(attribute('CN', 'long' * 5000))
    # Every kind of attribute that has a name, and some without.
    arcs = [f'2.5.4.{number}' for number in range(110)] + [f'0.9.2342.19200300.100.1.{number}' for number in range(60)] \
        + [f'1.2.840.113549.1.9.{number}' for number in range(12)] + [f'1.3.6.1.4.1.311.60.2.1.{number}' for number in range(5)] \
        + ['1.2.3', '2.999.1', '1.3.6.1.4.1.99999.1.2', '0.0.1', f'2.25.{2 ** 127}']
    for at in range(0, len(arcs), 5):
        yield name(*(attribute(arc, 'x') for arc in arcs[at:at + 5]))


def test_names_are_written_as_by_nginx():
    with Folder() as folder:
        key = Key(folder, 'server')
        (folder / 'server.crt').write_text(Certificate('CN=localhost', key).pem)
        conf = f'''server {{ listen 127.0.0.1:$port ssl; ssl_certificate {folder}/server.crt; ssl_verify_client optional_no_ca;
            ssl_certificate_key {folder}/server.key; error_page 495 =200 /; return 200
            "[$ssl_client_s_dn] [$ssl_client_i_dn] [$ssl_client_s_dn_legacy] [$ssl_client_i_dn_legacy] $ssl_client_serial"; }}'''
        issuers = [Certificate('CN=a/b,c', key), Certificate(name([attribute('O', 'ü'), attribute('CN', 'x')]), key)]
        wrong = []
        with Server(folder, conf) as here, Server(folder, conf, program=NGINX) as there:
            for number, subject in enumerate(subjects()):
                found = Certificate(subject, key, issuer=issuers[number % 2], serial=(number - 100) * 7 ** (number % 40))
                (folder / 'client.pem').write_text(found.pem + key.path.read_text())
                got, nginx = (asked(server.port, 'localhost', folder / 'client.pem') for server in (here, there))
                if got != nginx:
                    wrong.append(f'{subject}: {got}, nginx {nginx}')
        assert not wrong, '\n' + '\n'.join(wrong)


if __name__ == '__main__':
    sys.exit(run({name: test for name, test in globals().items() if name.startswith('test_')},
                 sys.argv[1:]))
