"""Certificates of clients: which are let in, and what variables say of them; Debian's nginx beside."""
import functools, http.client, os, signal, socket, ssl, subprocess
from concurrent.futures import ThreadPoolExecutor
from certificates import *
from peers import NGINX, Folder, Server, until

ROOT = (authority(), usage('keyCertSign', 'cRLSign'))
LEAF = (usage('digitalSignature'), purpose('clientAuth'))


class Case:
    """A client's certificates beside what is trusted, and whether nginx takes them for good. `stricter`: why we do not
    where nginx does; `wider`: why we do where nginx does not; `word`: our reason where both do not."""

    def __init__(self, about, trusted, chain, wanted, stricter=None, wider=None, word=None, depth=1, crl=None,
                 besides=()):
        self.about, self.trusted, self.chain, self.wanted = about, trusted, chain, wanted
        self.stricter, self.wider, self.word, self.depth, self.crl = stricter, wider, word, depth, crl
        self.besides = besides

    def complaint(self, asking, got, nginx):
        """What is wrong with an answer, if anything is."""
        good = 'in SUCCESS'
        if (nginx == good) != self.wanted:
            return 'nginx does not do what the table says'
        if self.wider:
            return None if got == good else 'it is not taken'
        if self.stricter:
            # A server that takes any certificate reports what is wrong with it, and lets it in.
            is_refused = got.startswith('out FAILED:') or (asking == 'optional_no_ca' and got.startswith('in FAILED:'))
            return None if is_refused and got.endswith(self.word or '') else 'it is not refused so'
        if self.word:
            return None if nginx.startswith('out') and got == self.word else 'it is not refused so'
        return None if got == nginx else 'it is not as nginx'


# OpenSSL tries the first issuer that a name leads to, if no identifiers of keys say otherwise; the library tries all.
FIRST = 'the first issuer by name is not the only one'
# Of several faults OpenSSL names the last it comes to, the library the first.
NO_PURPOSE = 'out FAILED:unsuitable certificate purpose'


def cases(folder):
    keys = {label: Key(folder, label, kind) for label, kind in (
        ('root', 'ec'), ('middle', 'ec'), ('second', 'ec'), ('third', 'ec'), ('leaf', 'ec'), ('other', 'ec'), ('rsa', 'rsa'),
        ('rsa-leaf', 'rsa'), ('ed', 'ed'), ('ed-leaf', 'ed'), ('small', 'small'), ('p384', 'p384'), ('p521', 'p521'),
        ('pss', 'pss'))}
    key = keys.__getitem__
    new = Certificate
    root = new('CN=Root', key('root'), *ROOT)
    leaf = lambda issuer, *extensions, **more: new('CN=client', key('leaf'), *(extensions or LEAF), issuer=issuer, **more)
    middle = lambda *extensions, issuer=root, label='middle', **more: new(
        f'CN={label}', key(label), *(extensions or ROOT), issuer=issuer, **more)
    stranger = new('CN=Stranger', key('other'), *ROOT)
    out = []
    case = lambda *arguments, **more: out.append(Case(*arguments, **more))

    def by_root(about, wanted, *extensions, stricter=None, word=None, **more):
        signer = new('CN=Root', key('root'), *extensions, **more)
        case(f'root: {about}', [signer], [leaf(signer)], wanted, stricter=stricter, word=word)

    def by_middle(about, wanted, *extensions, stricter=None, word=None, **more):
        signer = middle(*extensions, **more)
        case(f'intermediate: {about}', [root], [leaf(signer), signer], wanted, stricter=stricter, word=word)

    def leaves(about, wanted, *extensions, stricter=None, word=None, **more):
        case(f'leaf: {about}', [root], [leaf(root, *extensions, **more)], wanted, stricter=stricter, word=word)

    leaves('valid', True)
    leaves('no extensions but that it is not an authority', True, authority(ca=False))
    leaves('expired', False, days=(-9, -1))
    leaves('not yet valid', False, days=(1, 9))
    leaves('for servers', False, purpose('serverAuth'))
    leaves('for servers and clients', True, purpose('serverAuth', 'clientAuth'))
    leaves('for any purpose', False, purpose('any'))
    leaves('for clients, critical', True, purpose('clientAuth', critical=True))
    for use in USES:
        leaves(f'usage {use}', use in ('digitalSignature', 'keyAgreement'), usage(use))
    leaves('usage of nothing', False, usage())
    leaves('an authority itself', True, authority())
    leaves('an authority itself, pathlen', True, authority(3))
    leaves('an authority itself, for servers', False, authority(), purpose('serverAuth'))
    leaves('an authority itself, expired', False, authority(), days=(-9, -1))
    leaves('an authority itself, signed with another key', False, authority(), signer=key('other'))
    leaves('an authority itself, unknown critical extension', False, authority(), extension('1.2.3.4', b'\x05\0', critical=True))
    case('an authority itself, by an intermediate', [root], [leaf(c := middle(authority(0)), authority()), c], True)
    case('an authority itself, the signer is unknown', [root], [leaf(stranger, authority())], False)
    leaves('netscape type client', True, netscape(0))
    leaves('netscape type server', False, netscape(1))
    leaves('unknown extension', True, extension('1.2.3.4', b'\x05\0'))
    leaves('unknown critical extension', False, extension('1.2.3.4', b'\x05\0', critical=True))
    plain = lambda issuer, **more: new('CN=client', key('leaf'), issuer=issuer, version=1, **more)
    leaves('version 1 with extensions', True, version=1)
    case('version 1', [root], [plain(root)], True)
    case('version 1, long', [root], [new(name('CN=' + 'x' * 300), key('rsa'), issuer=root, version=1)], True)
    case('version 1, expired', [root], [plain(root, days=(-9, -1))], False)
    case('version 1, signed with another key', [root], [plain(root, signer=key('other'))], False)
    case('version 1, signed with SHA-1', [root], [plain(root, digest='sha1')], False)
    case('version 1, by an intermediate', [root], [plain(c := middle()), c], True)
    case('version 1, the signer is unknown', [root], [plain(stranger)], False)
    case('version 1, in a list', [root], [c := plain(root)], False, crl=revocations(root, c.serial))
    case('version 1, not in a list', [root], [plain(root)], True, crl=revocations(root))
    leaves('signed with SHA-1', False, digest='sha1')
    leaves('signed with another key', False, signer=key('other'))
    leaves('dates after 2050', True, days=(-2, 365 * 40))
    leaves('dates without end', True, days=(-2, (datetime.datetime(9999, 12, 30, tzinfo=datetime.timezone.utc) - NOW).days))
    leaves('began before 1970', True, days=(-365 * 60, 30), stricter='times begin in 1970')
    leaves('policies', True, *LEAF, extension('2.5.29.32', tlv(0x30, tlv(0x30, oid('1.2.3.4')))))
    leaves('critical policies', True, *LEAF, extension('2.5.29.32', tlv(0x30, tlv(0x30, oid('1.2.3.4'))), critical=True),
           stricter='policies')
    leaves('twice the same extension', False, usage('digitalSignature'), usage('keyCertSign'))
    leaves('many names', True, *LEAF, alternatives((HOST, b'a.example'), (MAIL, b'a@b'), (URI, b'urn:x'), (DIRECTORY, name('CN=x'))))
    leaves('negative serial', True, serial=-77)
    case('leaf: small key', [root], [new('CN=client', key('small'), *LEAF, issuer=root)], False,
         word='SSLError')
    for kind, digest in (('rsa', 'sha384'), ('rsa', 'sha512'), ('pss', 'sha256'), ('p384', 'sha256'), ('p384', 'sha384'),
                         ('p521', 'sha256'), ('p521', 'sha512'), ('ec', 'sha384'), ('ec', 'sha512')):
        signer = new('CN=Root', key('root' if kind == 'ec' else kind), *ROOT, digest=digest)
        case(f'{kind} and {digest}', [signer], [leaf(signer, *LEAF, digest=digest)], True)
    for kind in ('p384', 'p521', 'pss'):
        case(f'client with {kind}', [root], [new('CN=client', key(kind), *LEAF, issuer=root)], True)
    for kind in ('rsa', 'ed'):
        signer = new('CN=Root', key(kind), *ROOT)
        case(f'{kind}: root and leaf', [signer], [new('CN=client', key(f'{kind}-leaf'), *LEAF, issuer=signer)], True)
        case(f'{kind}: signed by another kind of key', [root], [new('CN=client', key(kind), *LEAF, issuer=root)], True)

    by_root('no usage', True, authority())
    by_root('expired', False, *ROOT, days=(-9, -1))
    by_root('not yet valid', False, *ROOT, days=(1, 9))
    by_root('no authority', False, authority(ca=False))
    by_root('no extensions', False)
    by_root('extensions that say nothing of authority', False, usage('digitalSignature'), word=NO_PURPOSE)
    by_root('usage keyCertSign and nothing of authority', True, usage('keyCertSign'), stricter='basicConstraints')
    by_root('usage without keyCertSign', False, authority(), usage('digitalSignature', 'cRLSign'))
    by_root('for servers', False, *ROOT, purpose('serverAuth'))
    by_root('for clients', True, *ROOT, purpose('clientAuth'))
    by_root('for any purpose', False, *ROOT, purpose('any'))
    by_root('pathlen 0, nothing below', True, authority(0), usage('keyCertSign'))
    by_root('unknown critical extension', False, *ROOT, extension('1.2.3.4', b'\x05\0', critical=True))
    by_root('version 1', True, version=1, stricter='version 1')
    by_root('signed itself with another key', True, *ROOT, signer=key('other'), stricter='own signature')

    by_middle('valid', True)
    by_middle('expired', False, days=(-9, -1))
    by_middle('not yet valid', False, days=(1, 9))
    by_middle('no authority', False, authority(ca=False))
    by_middle('no extensions but a name', False, alternatives((HOST, b'a.example')))
    by_middle('usage without keyCertSign', False, authority(), usage('digitalSignature'))
    by_middle('for servers', False, *ROOT, purpose('serverAuth'))
    by_middle('for mail', False, *ROOT, purpose('emailProtection'))
    by_middle('for clients', True, *ROOT, purpose('clientAuth'))
    by_middle('for any purpose', False, *ROOT, purpose('any'))
    by_middle('pathlen 0, nothing below', True, authority(0), usage('keyCertSign'))
    by_middle('unknown critical extension', False, *ROOT, extension('1.2.3.4', b'\x05\0', critical=True))
    by_middle('signed with SHA-1', False, digest='sha1')
    by_middle('signed with another key', False, signer=key('other'))
    by_middle('version 1', True, version=1, stricter='version 1')

    # Lengths.
    one = middle()
    two = middle(issuer=one, label='second')
    three = middle(issuer=two, label='third')
    for depth in (0, 1, 2, 3):
        for chain, count in (([leaf(root)], 0), ([leaf(one), one], 1), ([leaf(two), two, one], 2),
                             ([leaf(three), three, two, one], 3)):
            case(f'depth {depth}: {count} between', [root], chain, count <= depth, depth=depth)
    ladder = [root]
    for number in range(6):
        ladder.append(new(f'CN=step {number}', key(['middle', 'second'][number % 2]), *ROOT, issuer=ladder[-1]))
    for count in (5, 6):
        case(f'depth 9: {count} between', [root], [leaf(ladder[count]), *ladder[count:0:-1]], True, depth=9,
             stricter='longer than the library looks' if count > 5 else None)
    for pathlen in (0, 1):
        signer = new('CN=Root', key('root'), authority(pathlen), usage('keyCertSign'))
        below = middle(issuer=signer)
        deep = middle(issuer=below, label='second')
        case(f'root pathlen {pathlen}, one below', [signer], [leaf(below), below], pathlen >= 1, depth=9)
        case(f'root pathlen {pathlen}, two below', [signer], [leaf(deep), deep, below], False, depth=9)
        signer = middle(authority(pathlen), usage('keyCertSign'))
        below = middle(issuer=signer, label='second')
        case(f'intermediate pathlen {pathlen}, one below', [root], [leaf(below), below, signer], pathlen >= 1, depth=9)

    # What is sent, and what is trusted besides.
    case('chain with the root', [root], [leaf(one), one, root], True)
    case('chain in another order', [root], [leaf(two), one, two], True, depth=3)
    case('chain with unrelated ones', [root], [leaf(one), stranger, one, middle(issuer=stranger, label='third')], True)
    case('chain with its intermediate missing', [root], [leaf(one)], False)
    case('chain with its first intermediate missing', [root], [leaf(two), two], False, depth=3)
    case('intermediate trusted beside the root', [root, one], [leaf(one)], True)
    case('intermediate trusted alone', [one], [leaf(one)], False)
    case('two roots', [stranger, root], [leaf(root)], True)
    case('the signer is unknown', [root], [leaf(stranger)], False)
    case('the root that is sent is unknown', [root], [leaf(stranger), stranger], False)
    renewed = new('CN=Root', key('root'), *ROOT, days=(-9, -1))
    case('expired root beside its renewed one', [renewed, root], [leaf(root)], True)
    same_name = new('CN=Root', key('other'), *ROOT)
    case('two roots of one name', [same_name, root], [leaf(root)], False, wider=FIRST)
    case('root of the same name and another key', [same_name], [leaf(root)], False)
    cross = new('CN=middle', key('middle'), *ROOT, issuer=stranger)
    case('cross-signed, by the known', [root], [leaf(one), one], True)
    case('cross-signed, by the other', [stranger], [leaf(cross), cross], True)
    case('cross-signed, both sent', [root], [leaf(one), cross, one], False, wider=FIRST)
    case('cross-signed, both sent, the known first', [root], [leaf(one), one, cross], True)
    rolled = new('CN=Root', key('other'), *ROOT, issuer=root)
    new_root = new('CN=Root', key('other'), *ROOT)
    case('a new key signed by the old one', [root], [leaf(new_root), rolled], False, wider=FIRST)
    case('root of other letters', [new(name('CN=ROOT'), key('root'), *ROOT)], [leaf(root)], True, stricter='letters')
    case('root of other kind of text', [new(name(attribute('CN', 'Root', PRINTABLE)), key('root'), *ROOT)], [leaf(root)], True,
         stricter='kind of text')
    old = new('CN=Root', key('rsa'), *ROOT, digest='sha1')
    first = new('CN=Root', key('root'), *ROOT, *identified(b'first', b'first'))
    second = new('CN=Root', key('other'), *ROOT, *identified(b'second', b'second'))
    for issuer, identifier in ((first, b'first'), (second, b'second')):
        case(f'two roots of one name, {identifier}', [first, second], [leaf(issuer, *LEAF, *identified(issuer=identifier))], True)
    case('identifier of another key', [first], [leaf(first, *LEAF, *identified(issuer=b'second'))], False,
         wider='identifiers are hints, the signature counts')
    case('root in ssl_trusted_certificate', [stranger], [leaf(one), one], True, besides=[root])
    case('intermediate in ssl_trusted_certificate', [root], [leaf(one)], True, besides=[one])
    case('shown itself, in ssl_trusted_certificate', [root], [c := new('CN=client', key('leaf'), *LEAF)], True, besides=[c])
    case('many unrelated ones', [root], [leaf(one), *(
        new(f'CN=x {number}', key('other'), *ROOT, issuer=stranger) for number in range(14)), one], True)
    case('too many unrelated ones', [root], [leaf(one), *(
        new(f'CN=x {number}', key('other'), *ROOT, issuer=stranger) for number in range(20)), one], True,
        stricter='sixteen are looked at')
    case('root signed itself with SHA-1', [old], [leaf(old)], True)
    case('root signed itself with SHA-1, intermediate too', [old], [leaf(middle(issuer=old, digest='sha1')),
                                                                     middle(issuer=old, digest='sha1')], False,
         word='out FAILED:certificate signature failure')

    # Certificates that signed themselves.
    for about, extensions, wanted in (
            ('no authority', (authority(ca=False), *LEAF), True), ('an authority', (authority(),), True),
            ('only to sign', ROOT, False), ('for servers', (authority(), purpose('serverAuth')), False),
            ('unknown critical extension', (extension('1.2.3.4', b'\x05\0', critical=True),), False)):
        own = new('CN=client', key('leaf'), *extensions)
        case(f'own signature, trusted, {about}', [own], [own], wanted)
        case(f'own signature, not trusted, {about}', [root], [own], False)
    pinned = new('CN=client', key('leaf'), authority(ca=False), *LEAF)
    case('trusted, expired', [c := new('CN=client', key('leaf'), authority(ca=False), *LEAF, days=(-9, -1))], [c], False)
    case('trusted, not yet valid', [c := new('CN=client', key('leaf'), authority(ca=False), *LEAF, days=(1, 9))], [c], False)
    case('trusted, version 1', [c := new('CN=client', key('leaf'), version=1)], [c], True)
    case('another of the same name and key', [pinned], [new('CN=client', key('leaf'), authority(ca=False), *LEAF)], False)
    case('a trusted client signs another', [pinned], [new('CN=admin', key('other'), *LEAF, issuer=pinned)], False,
         word=NO_PURPOSE)
    case('a trusted client signs another, sent too', [pinned], [new('CN=admin', key('other'), *LEAF, issuer=pinned), pinned],
         False, word=NO_PURPOSE)
    case('a trusted client signs an authority', [pinned], [
        new('CN=admin', key('second'), *LEAF, issuer=(c := new('CN=middle', key('middle'), *ROOT, issuer=pinned))), c], False,
        depth=9, word=NO_PURPOSE)
    signed = leaf(root)
    case('trusted, signed by an unknown', [signed], [signed], False)
    case('the name of the root', [root], [new('CN=Root', key('leaf'), *LEAF, issuer=root)], False)

    # Constraints on names.
    host = (HOST, b'example')
    for about, tree, subject, more, wanted, stricter in (
            ('host inside', [host], 'CN=client', [alternatives((HOST, b'a.example'))], True, None),
            ('host outside', [host], 'CN=client', [alternatives((HOST, b'a.test'))], False, None),
            ('host, none named', [host], 'CN=client', [], True, None),
            ('host in the common name outside', [host], 'CN=a.test', [], False, None),
            ('host in the common name inside', [host], 'CN=a.example', [], True, 'common name'),
            ('mail in the subject, hosts inside', [host], name('CN=a', 'emailAddress=a@test'), [], True, 'mail'),
            ('mail inside', [(MAIL, b'example')], 'CN=client', [alternatives((MAIL, b'a@example'))], True, 'mail'),
            ('mail outside', [(MAIL, b'example')], 'CN=client', [alternatives((MAIL, b'a@test'))], False, None),
            ('mail in the subject outside', [(MAIL, b'example')], name('CN=a', 'emailAddress=a@test'), [], False, None),
            ('mail in the subject inside', [(MAIL, b'example')], name('CN=a', 'emailAddress=a@example'), [], True, 'mail'),
            ('subject inside', [(DIRECTORY, name('O=Partner'))], name('O=Partner', 'CN=a'), [], True, 'subjects'),
            ('subject outside', [(DIRECTORY, name('O=Partner'))], name('O=Other', 'CN=a'), [], False, None),
            ('address outside', [(ADDRESS, bytes([10, 0, 0, 0, 255, 0, 0, 0]))], 'CN=a',
             [alternatives((ADDRESS, bytes([11, 0, 0, 1])))], False, None),
            ('address inside', [(ADDRESS, bytes([10, 0, 0, 0, 255, 0, 0, 0]))], 'CN=a',
             [alternatives((ADDRESS, bytes([10, 0, 0, 1])))], True, None)):
        signer = new('CN=Root', key('root'), *ROOT, constraints(tree))
        client = lambda issuer: new(subject, key('leaf'), *LEAF, *more, issuer=issuer)
        case(f'names, root: {about}', [signer], [client(signer)], wanted, stricter=stricter)
        signer = middle(*ROOT, constraints(tree))
        case(f'names, intermediate: {about}', [root], [client(signer), signer], wanted, stricter=stricter)
    signer = new('CN=Root', key('root'), *ROOT, constraints(excluded=[host]))
    case('names: excluded host', [signer], [leaf(signer, *LEAF, alternatives((HOST, b'a.example')))], False,
         word='out FAILED:permitted subtree violation')
    case('names: other host', [signer], [leaf(signer, *LEAF, alternatives((HOST, b'a.test')))], True)

    # Lists of revoked certificates.
    good, bad = leaf(root), leaf(root)
    listed = revocations(root, bad.serial)
    case('list: not in it', [root], [good], True, crl=listed)
    case('list: in it', [root], [bad], False, crl=listed)
    case('list: empty', [root], [good], True, crl=revocations(root))
    case('list: expired', [root], [good], False, crl=revocations(root, days=(-9, -1)))
    case('list: expired, in it', [root], [bad], False, crl=revocations(root, bad.serial, days=(-9, -1)))
    case('list: not yet valid', [root], [good], False, crl=revocations(root, days=(1, 9)))
    case('list: an expired and a current one', [root], [good], True,
         crl=revocations(root, days=(-9, -1)) + revocations(root, number=2))
    case('list: an older one without it', [root], [bad], False,
         crl=revocations(root, days=(-3, 9)) + revocations(root, bad.serial, number=2))
    case('list: of another authority', [root], [good], False, crl=revocations(stranger))
    case('list: of the same name, another key', [root], [good], False, crl=revocations(same_name))
    case('list: with SHA-1', [new('CN=Root', key('rsa'), *ROOT)], [leaf(new('CN=Root', key('rsa'), *ROOT))], True,
         crl=revocations(new('CN=Root', key('rsa'), *ROOT), digest='sha1'), stricter='SHA-1')
    for about, list, wanted in (('not in it', revocations(root, bad.serial, version=1), True),
                                ('in it', revocations(root, good.serial, version=1), False),
                                ('empty', revocations(root, version=1), True),
                                ('expired', revocations(root, days=(-9, -1), version=1), False),
                                ('not yet valid', revocations(root, days=(1, 9), version=1), False),
                                ('of the same name, another key', revocations(same_name, version=1), False),
                                ('many', revocations(root, *range(10 ** 6, 10 ** 6 + 5000), version=1), True)):
        case(f'list of version 1: {about}', [root], [good], wanted, crl=list)
    no_lists = new('CN=Root', key('root'), authority(), usage('keyCertSign'))
    case('list: by one that may not sign any', [no_lists], [leaf(no_lists)], False, crl=revocations(no_lists))
    below = leaf(one)
    case('list: none of the intermediate', [root], [below, one], False, crl=revocations(root))
    case('list: none of the root', [root], [below, one], False, crl=revocations(one))
    case('list: of both', [root], [below, one], True, crl=revocations(root) + revocations(one))
    case('list: of both, client in it', [root], [below, one], False, crl=revocations(root) + revocations(one, below.serial))
    case('list: of both, intermediate in it', [root], [below, one], False, crl=revocations(root, one.serial) + revocations(one))
    case('list: root in its own', [root], [good], False, crl=revocations(root, root.serial))
    own = new('CN=client', key('leaf'), authority())
    case('list: none of one that signed itself', [own], [own], False, crl=revocations(root))
    case('list: of one that signed itself', [own], [own], True, crl=revocations(own))
    case('list: of one that signed itself, in it', [own], [own], False, crl=revocations(own, own.serial))
    case('list of version 1: of one that signed itself', [own], [own], True, crl=revocations(own, version=1))
    case('list of version 1: of one that signed itself, in it', [own], [own], False, crl=revocations(own, own.serial, version=1))
    case('list: of one that signed itself, expired', [own], [own], False, crl=revocations(own, days=(-9, -1)))
    case('list: unknown signer', [root], [leaf(stranger)], False, crl=listed)
    case('list: unknown root', [root], [leaf(stranger), stranger], False, crl=listed)
    case('list: own signature', [root], [new('CN=client', key('leaf'), *LEAF)], False, crl=listed)
    return out


@functools.cache
def client(certificate):
    """What a client with a certificate says: to read a key takes as long as to use it."""
    used = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    used.check_hostname, used.verify_mode = False, ssl.CERT_NONE
    used.set_ciphers('DEFAULT:@SECLEVEL=0')
    if certificate:
        used.load_cert_chain(certificate)
    return used


def asked(port, host, certificate):
    """The answer to a client with a certificate; the name of the failure without an answer."""
    try:
        used = client(certificate)
        with socket.create_connection(('127.0.0.1', port), timeout=60) as plain, \
                used.wrap_socket(plain, server_hostname=host) as connection:
            connection.sendall(f'GET / HTTP/1.0\r\nHost: {host}\r\n\r\n'.encode())
            answer = b''
            while part := connection.recv(65536):
                answer += part
            return answer.partition(b'\r\n\r\n')[2].decode('latin-1')
    except OSError as problem:
        return type(problem).__name__


ASKING = ('on', 'optional_no_ca')


def test_paths_are_judged_as_by_nginx_or_stricter():
    with Folder() as folder:
        key = Key(folder, 'server')
        (folder / 'server.crt').write_text(Certificate('CN=localhost', key).pem)
        conf = ''
        table = cases(folder)
        for number, case in enumerate(table):
            (folder / f'{number}.pem').write_text(
                ''.join(found.pem for found in case.chain) + case.chain[0].key.path.read_text())
            (folder / f'{number}.ca').write_text(''.join(found.pem for found in case.trusted))
            (folder / f'{number}.more').write_text(''.join(found.pem for found in case.besides))
            if case.crl:
                (folder / f'{number}.crl').write_text(case.crl)
            for asking in ASKING:
                conf += f'''server {{ listen 127.0.0.1:$port ssl; server_name {number}.{asking}; ssl_verify_client {asking};
                    ssl_certificate {folder}/server.crt; ssl_certificate_key {folder}/server.key; ssl_verify_depth {case.depth};
                    ssl_client_certificate {folder}/{number}.ca; {f'ssl_crl {folder}/{number}.crl;' if case.crl else ''}
                    {f'ssl_trusted_certificate {folder}/{number}.more;' if case.besides else ''}
                    error_page 495 496 = /out; location / {{ return 200 "in $ssl_client_verify"; }}
                    location /out {{ return 200 "out $ssl_client_verify"; }} }}\n'''
        with Server(folder, conf) as here, Server(folder, conf, program=NGINX) as there:
            def complaint(number, case, asking):
                got, nginx = (asked(server.port, f'{number}.{asking}', folder / f'{number}.pem') for server in (here, there))
                nginx = nginx.replace('self signed', 'self-signed')
                why = case.complaint(asking, got, nginx)
                return f'{case.about} ({asking}): {got}, nginx {nginx}: {why}' if why else None
            with ThreadPoolExecutor(4) as several:
                asks = [(number, case, asking) for number, case in enumerate(table) for asking in ASKING]
                wrong = list(filter(None, several.map(lambda ask: complaint(*ask), asks)))
        assert not wrong, '\n' + '\n'.join(wrong)


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
        with Server(folder, conf) as here, Server(folder, conf, program=NGINX) as there:
            def difference(number, subject):
                found = Certificate(subject, key, issuer=issuers[number % 2], serial=(number - 100) * 7 ** (number % 40))
                shown = folder / f'{number}.pem'
                shown.write_text(found.pem + key.path.read_text())
                got, nginx = (asked(server.port, 'localhost', shown) for server in (here, there))
                return None if got == nginx else f'{subject}: {got}, nginx {nginx}'
            with ThreadPoolExecutor(4) as several:
                wrong = list(filter(None, several.map(lambda ask: difference(*ask), enumerate(subjects()))))
        assert not wrong, '\n' + '\n'.join(wrong)


def test_an_authority_that_verifies_nobody_is_warned_of():
    with Folder() as folder:
        people(folder)
        old = Certificate('CN=Old', Key(folder, 'old'), version=1)
        (folder / 'p.ca').write_text((folder / 'p.ca').read_text() + old.pem)
        with Server(folder, site(folder, ['a'])) as server:
            text = 'clients are not verified by the certificate of "CN=Old": it is not an X.509 version 3 certificate'
            until('the warning', lambda: text in server.log())


# The servers of one socket: what each asks for, and whose certificates it takes.
SERVERS = {'a': ('optional', 'p'), 'b': ('on', 'q'), 'c': ('on', 'p'), 'off': ('off', None), 'any': ('optional_no_ca', None)}


def meeting(sni, host, shown):
    """What is to come of it when a client that named `sni` asks `host`, in words of the page below."""
    shaking = sni if sni in SERVERS else 'a'
    shown = shown if SERVERS[shaking][0] != 'off' else None
    said = lambda server: 'NONE' if not shown else 'SUCCESS' if SERVERS[server][1] == shown \
        else 'FAILED:unable to verify the first certificate'
    asking = SERVERS[host][0]
    if asking == 'off':
        return f'{host} {said(shaking) if SERVERS[shaking][0] != "off" else "NONE"}'
    if sni and shaking != host:
        return '421'
    is_good = said(host) == 'SUCCESS' or (asking != 'on' and said(host) == 'NONE') or asking == 'optional_no_ca'
    return f'{host} {said(host)}' if is_good else f'400 {said(host)}'


def site(folder, order=SERVERS, more=''):
    conf = ''
    for host in order:
        asking, authority = SERVERS[host]
        trusted = f'ssl_client_certificate {folder}/{authority}.ca;' if authority else ''
        conf += f'''server {{ listen 127.0.0.1:$port ssl; http2 on; server_name {host}.test; ssl_verify_client {asking}; {trusted}
            ssl_certificate {folder}/server.crt; ssl_certificate_key {folder}/server.key; {more}
            error_page 495 496 =400 /refused; error_page 421 =421 /misdirected;
            location / {{ return 200 "{host} $ssl_client_verify"; }} location /reused {{ return 200 "$ssl_session_reused"; }}
            location /refused {{ return 400 "400 $ssl_client_verify"; }} location /misdirected {{ return 421 421; }} }}\n'''
    return conf


def people(folder):
    """A server's certificate, two authorities, and a client of each."""
    key, made = Key(folder, 'server'), {}
    (folder / 'server.crt').write_text(Certificate('CN=localhost', key).pem)
    for label in 'pq':
        made[label] = signer = Certificate(f'CN=authority {label}', Key(folder, f'{label}-ca'), *ROOT)
        made[f'client {label}'] = client = Certificate(f'CN=client {label}', Key(folder, label), *LEAF, issuer=signer)
        (folder / f'{label}.ca').write_text(signer.pem)
        (folder / f'{label}.pem').write_text(client.pem + client.key.path.read_text())
    return made


def test_each_server_judges_by_its_own_authorities():
    with Folder() as folder:
        people(folder)
        with Server(folder, site(folder)) as server:
            def heard(sni, host, shown, version):
                name = f'{sni}.test' if sni else '127.0.0.1'
                command = ['curl', '-sk', '--max-time', '20', version, '--resolve', f'{name}:{server.port}:127.0.0.1',
                           '-H', f'Host: {host}.test', *(['--cert', folder / f'{shown}.pem'] if shown else []),
                           f'https://{name}:{server.port}/']
                return subprocess.run(list(map(str, command)), capture_output=True, text=True).stdout
            asks = [(sni, host, shown, version) for sni in (None, *SERVERS, 'unknown') for host in SERVERS
                    for shown in (None, 'p', 'q') for version in ('--http1.1', '--http2')]
            with ThreadPoolExecutor(4) as several:
                told = list(several.map(lambda ask: heard(*ask), asks))
        wrong = [f'{ask}: {got!r}, wanted {meeting(*ask[:3])!r}' for ask, got in zip(asks, told) if got != meeting(*ask[:3])]
        assert not wrong, '\n' + '\n'.join(wrong)


class Client:
    """A kept connection."""

    def __init__(self, port, certificate, name=None, session=None, version=None):
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.context.check_hostname, self.context.verify_mode = False, ssl.CERT_NONE
        self.context.load_cert_chain(certificate)
        if version:
            self.context.minimum_version = self.context.maximum_version = version
        self.certificate, self.port, self.name, self.version = certificate, port, name, version
        self.open(session)

    def open(self, session=None):
        plain = socket.create_connection(('127.0.0.1', self.port), timeout=60)
        self.connection = self.context.wrap_socket(plain, server_hostname=self.name, session=session)

    def ask(self, host, path='/'):
        self.connection.sendall(f'GET {path} HTTP/1.1\r\nHost: {host}.test\r\n\r\n'.encode())
        answer = http.client.HTTPResponse(self.connection)
        answer.begin()
        return answer.read().decode()


def test_a_kept_connection_and_a_resumed_one_are_judged_by_the_server_asked():
    with Folder() as folder:
        people(folder)
        with Server(folder, site(folder, more='ssl_session_cache shared:S:1m;')) as server:
            for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
                client = Client(server.port, folder / 'p.pem', version=version)
                for host in ('a', 'any', 'c', 'off', 'a', 'any', 'b'):
                    assert client.ask(host) == meeting(None, host, 'p'), (version, host)
                session = client.connection.session
                client.connection.close()
                for host in ('c', 'b', 'a'):
                    client.open(session)
                    assert client.ask('a', '/reused') == 'r', version
                    assert client.ask(host) == meeting(None, host, 'p'), (version, host)


def test_a_reload_changes_who_is_let_in_over_a_kept_connection():
    with Folder() as folder:
        made = people(folder)
        (folder / 'list').write_text(revocations(made['p'], made['client p'].serial))
        changes = (
            # What was the first server's place is another's then.
            (site(folder, ['b', 'a', 'c']), 'b', '400 FAILED:unable to verify the first certificate'),
            (site(folder, ['a', 'b', 'c'], f'ssl_crl {folder}/list;'), 'c', '400 FAILED:certificate revoked'))
        for conf, host, wanted in changes:
            with Server(folder, site(folder, ['a', 'b', 'c'])) as server:
                client = Client(server.port, folder / 'p.pem')
                assert client.ask('a') == 'a SUCCESS'
                path = server.folder / 'nginx.conf'
                path.write_text(path.read_text().replace(
                    site(folder, ['a', 'b', 'c']).replace('$port', str(server.port)), conf.replace('$port', str(server.port))))
                os.kill(server.pid, signal.SIGHUP)
                until('the reload', lambda: 'reconfigured' in server.log())
                assert (got := client.ask(host)) == wanted, (host, got)


def test_a_name_with_a_dot_at_its_end_is_the_name_without_it():
    with Folder() as folder:
        people(folder)
        conf = f'''server {{ listen 127.0.0.1:$port ssl; ssl_reject_handshake on; }}
            server {{ listen 127.0.0.1:$port ssl; server_name a.test; ssl_certificate {folder}/server.crt;
            ssl_certificate_key {folder}/server.key; ssl_client_certificate {folder}/p.ca; ssl_verify_client on;
            return 200 "$host $ssl_client_verify"; }}'''
        with Server(folder, conf) as here, Server(folder, conf, program=NGINX) as there:
            for named in ('a.test', 'a.test.', 'A.TEST.'):
                for host in ('a', 'A'):
                    for server in (here, there):
                        client = Client(server.port, folder / 'p.pem', name=named)
                        assert client.ask(host) == 'a.test SUCCESS', (named, host)
