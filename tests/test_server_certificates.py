"""Certificates of servers behind a gateway (`proxy_ssl_verify`): which are believed, and for which names; Debian's nginx beside."""
import http.client
from concurrent.futures import ThreadPoolExecutor
from certificates import *
from peers import NGINX, Folder, Server

ROOT = (authority(), usage('keyCertSign', 'cRLSign'))
NAMED = 'a.example'


class Case:
    """A server's certificates beside what is trusted, and whether nginx believes them. `stricter`: why we do not where nginx
    does; `wider`: why we do where nginx does not. `said`: what the log says where they are not believed."""

    def __init__(self, about, trusted, chain, wanted, name=NAMED, stricter=None, wider=None, depth=1, crl=None, said=None,
                 more=''):
        self.about, self.trusted, self.chain, self.wanted, self.name = about, trusted, chain, wanted, name
        self.stricter, self.wider, self.depth, self.crl, self.said, self.more = stricter, wider, depth, crl, said, more

    def complaint(self, got, nginx):
        if (nginx == 200) != self.wanted:
            return 'nginx does not do what the table says'
        wanted = 502 if self.stricter else 200 if self.wider else nginx
        return None if got == wanted else f'{wanted} is wanted'


def cases(folder):
    keys = {label: Key(folder, label, kind) for label, kind in (
        ('root', 'ec'), ('middle', 'ec'), ('leaf', 'ec'), ('other', 'ec'), ('rsa', 'rsa'), ('ed', 'ed'), ('p384', 'p384'))}
    key = keys.__getitem__
    new = Certificate
    root = new('CN=Root', key('root'), *ROOT)
    stranger = new('CN=Stranger', key('other'), *ROOT)
    middle = new('CN=middle', key('middle'), *ROOT, issuer=root)
    host = lambda *names: alternatives(*((HOST, name.encode()) for name in names))
    leaf = lambda *extensions, subject='CN=server', issuer=root, **more: new(subject, key('leaf'), *extensions, issuer=issuer, **more)
    named = lambda *extensions, **more: leaf(host(NAMED), *extensions, **more)
    out = []
    case = lambda *arguments, **more: out.append(Case(*arguments, **more))
    leaves = lambda about, wanted, found, **more: case(about, [root], [found], wanted, **more)
    NO_NAME = f'upstream SSL certificate does not match "{NAMED}" while'

    leaves('valid', True, named())
    leaves('expired', False, named(days=(-9, -1)), said='upstream SSL certificate verify error: (10:certificate has expired) while')
    leaves('not yet valid', False, named(days=(1, 9)))
    leaves('for clients', False, named(purpose('clientAuth')))
    leaves('for servers', True, named(purpose('serverAuth')))
    leaves('for any purpose', False, named(purpose('any')))
    for use in USES:
        leaves(f'usage {use}', use == 'digitalSignature', named(usage(use)))
    leaves('netscape type server', True, named(netscape(1)))
    leaves('netscape type client', False, named(netscape(0)))
    leaves('an authority itself', True, named(authority()))
    leaves('unknown critical extension', False, named(extension('1.2.3.4', b'\x05\0', critical=True)))
    leaves('signed with another key', False, named(signer=key('other')))
    leaves('signed with SHA-1', False, named(digest='sha1'))
    case('by an intermediate', [root], [named(issuer=middle), middle], True)
    case('by an intermediate, too deep', [root], [named(issuer=middle), middle], False, depth=0)
    case('by an intermediate that is missing', [root], [named(issuer=middle)], False)
    case('intermediate trusted alone', [middle], [named(issuer=middle)], False)
    case('the signer is unknown', [root], [named(issuer=stranger)], False,
         said='upstream SSL certificate verify error: (')
    for kind in ('rsa', 'ed', 'p384'):
        leaves(f'key {kind}', True, new('CN=server', key(kind), host(NAMED), issuer=root))
        leaves(f'key {kind}, TLS 1.2', True, new('CN=server', key(kind), host(NAMED), issuer=root), more='proxy_ssl_protocols TLSv1.2;')

    # Certificates of the first version, and those that signed themselves.
    old = leaf(subject=f'CN={NAMED}', version=1)
    leaves('version 1', True, old)
    leaves('version 1, TLS 1.2', True, old, more='proxy_ssl_protocols TLSv1.2;')
    leaves('version 1, RSA, TLS 1.2', True, new(f'CN={NAMED}', key('rsa'), issuer=root, version=1),
           more='proxy_ssl_protocols TLSv1.2;')
    leaves('version 1, another name', False, leaf(subject='CN=b.example', version=1), said=NO_NAME)
    for about, extensions, version in (('version 1', (), 1), ('an authority', (authority(), host(NAMED)), 3),
                                       ('no authority', (authority(ca=False), host(NAMED)), 3)):
        own = new(f'CN={NAMED}', key('leaf'), *extensions, version=version)
        case(f'own signature, trusted, {about}', [own], [own], True)
        case(f'own signature, not trusted, {about}', [root], [own], False,
             said='upstream SSL certificate verify error: (18:self-signed certificate) while')
        case(f'own signature, trusted, {about}, another name', [own], [own], False, name='b.example',
             said='upstream SSL certificate does not match "b.example" while')

    # Names.
    for about, names, asked, wanted in (
            ('one of several', ('x.example', NAMED), NAMED, True), ('other letters', ('A.Example',), NAMED, True),
            ('asked with other letters', (NAMED,), 'A.EXAMPLE', True), ('star', ('*.example.org',), 'a.example.org', True),
            ('star, two labels', ('*.example.org',), 'a.b.example.org', False), ('star, no label', ('*.example.org',), 'example.org', False),
            ('another', ('b.example',), NAMED, False), ('longer', ('a.example.org',), NAMED, False)):
        leaves(f'name: {about}', wanted, leaf(host(*names)), name=asked)
        common = names[-1]
        leaves(f'common name: {about}', wanted, leaf(subject=f'CN={common}'), name=asked)
    leaves('name: common one beside alternatives', False, leaf(host('b.example'), subject=f'CN={NAMED}'), said=NO_NAME)
    leaves('common name: beside an alternative that is no host', True,
           leaf(alternatives((MAIL, b'a@b')), subject=f'CN={NAMED}'))
    leaves('common name: the last of two', True, leaf(subject=name('CN=x', f'CN={NAMED}')))
    leaves('common name: not the organisation', False, leaf(subject=name(f'O={NAMED}', 'CN=x')))
    leaves('no name at all', False, leaf(subject=name('O=x')), said=NO_NAME)
    leaves('address: as common name', True, leaf(subject='CN=10.0.0.1'), name='10.0.0.1')
    leaves('address: as alternative name', False, leaf(alternatives((ADDRESS, bytes([10, 0, 0, 1])))), name='10.0.0.1',
           wider='an address is compared with addresses')
    leaves('address: another', False, leaf(alternatives((ADDRESS, bytes([10, 0, 0, 2])))), name='10.0.0.1')
    tree = new('CN=Tree', key('root'), *ROOT, constraints([(HOST, b'example')]))
    for about, found, wanted, stricter in (
            ('inside', leaf(host(NAMED), issuer=tree), True, None), ('outside', leaf(host('a.test'), issuer=tree), False, None),
            ('common name outside', leaf(subject='CN=a.test', issuer=tree), False, None),
            ('common name inside', leaf(subject=f'CN={NAMED}', issuer=tree), True, 'common names under constraints')):
        case(f'constraints: {about}', [tree], [found], wanted, stricter=stricter, name='a.test' if 'outside' in about else NAMED)

    # Lists of revoked certificates, of both versions.
    good, bad = named(), named()
    for version in (1, 2):
        listed = revocations(root, bad.serial, version=version)
        leaves(f'list of version {version}: not in it', True, good, crl=listed)
        leaves(f'list of version {version}: in it', False, bad, crl=listed,
               said='upstream SSL certificate verify error: (23:certificate revoked) while')
        leaves(f'list of version {version}: expired', False, good, crl=revocations(root, days=(-9, -1), version=version))
        below = named(issuer=middle)
        both = revocations(root, version=version) + revocations(middle, version=version)
        case(f'list of version {version}: of both', [root], [below, middle], True, crl=both)
        case(f'list of version {version}: none of the intermediate', [root], [below, middle], False,
             crl=revocations(root, version=version))
    leaves('list: of another authority', False, good, crl=revocations(stranger))
    return out


def asked(port, number):
    connection = http.client.HTTPConnection('127.0.0.1', port, timeout=60)
    connection.request('GET', f'/{number}/')
    return connection.getresponse().status


def written(folder, table):
    """The files of a table; the configurations of those that are asked, and of those that ask."""
    origin, conf = 'ssl_ciphers DEFAULT:@SECLEVEL=0; server { listen 127.0.0.1:$port; }\n', ''
    for number, case in enumerate(table):
        (folder / f'{number}.crt').write_text(''.join(found.pem for found in case.chain))
        (folder / f'{number}.ca').write_text(''.join(found.pem for found in case.trusted))
        if case.crl:
            (folder / f'{number}.crl').write_text(case.crl)
        address = f'127.0.{2 + number // 200}.{1 + number % 200}'
        origin += f'''server {{ listen {address}:$port ssl; ssl_certificate {folder}/{number}.crt;
            ssl_certificate_key {case.chain[0].key.path}; location / {{ return 200 ok; }} }}\n'''
        conf += f'''location /{number}/ {{ proxy_pass https://{address}:@ORIGIN@; proxy_ssl_verify on; proxy_ssl_name {case.name};
            proxy_ssl_trusted_certificate {folder}/{number}.ca; proxy_ssl_verify_depth {case.depth}; {case.more}
            {f'proxy_ssl_crl {folder}/{number}.crl;' if case.crl else ''} }}\n'''
    return origin, conf


def test_servers_are_believed_as_by_nginx_or_stricter():
    with Folder() as folder:
        table = cases(folder)
        origin, conf = written(folder, table)
        with Server(folder, origin, program=NGINX) as behind:
            conf = f'server {{ listen 127.0.0.1:$port; {conf.replace("@ORIGIN@", str(behind.port))} }}'
            with Server(folder, conf) as here, Server(folder, conf, program=NGINX) as there:
                def complaint(number, case):
                    got, nginx = (asked(server.port, number) for server in (here, there))
                    why = case.complaint(got, nginx)
                    return f'{case.about}: {got}, nginx {nginx}: {why}' if why else None
                with ThreadPoolExecutor(4) as several:
                    wrong = list(filter(None, several.map(lambda ask: complaint(*ask), enumerate(table))))
                log = here.log()
                for number, case in enumerate(table):
                    lines = [line for line in log.splitlines() if f'"GET /{number}/ ' in line]
                    if case.said and not any(case.said in line for line in lines):
                        wrong.append(f'{case.about}: the log says {lines}')
        assert not wrong, '\n' + '\n'.join(wrong)
