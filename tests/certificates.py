"""Certificates and lists of revoked ones as no tool makes them: with any name, date and extension; OpenSSL signs."""
import base64, ctypes, datetime, pathlib, subprocess

NOW = datetime.datetime.now(datetime.timezone.utc)


def tlv(tag, *content):
    content = b''.join(content)
    length = len(content)
    if length < 128:
        return bytes([tag, length]) + content
    digits = length.to_bytes((length.bit_length() + 7) // 8, 'big')
    return bytes([tag, 0x80 | len(digits)]) + digits + content


def integer(number):
    return tlv(2, number.to_bytes(number.bit_length() // 8 + 1, 'big', signed=True))


def oid(text):
    first, second, *rest = map(int, text.split('.'))
    out = b''
    for arc in (first * 40 + second, *rest):
        digits = [arc & 127]
        while arc := arc >> 7:
            digits.insert(0, 0x80 | arc & 127)
        out += bytes(digits)
    return tlv(6, out)


def time(days):
    moment = NOW + datetime.timedelta(days=days)
    return tlv(24, moment.strftime('%Y%m%d%H%M%SZ').encode()) if moment.year >= 2050 \
        else tlv(23, moment.strftime('%y%m%d%H%M%SZ').encode())


KINDS = {'CN': '2.5.4.3', 'O': '2.5.4.10', 'C': '2.5.4.6', 'emailAddress': '1.2.840.113549.1.9.1'}
UTF8, PRINTABLE, IA5 = 12, 19, 22


def attribute(kind, value, tag=UTF8):
    value = value if isinstance(value, bytes) else value.encode()
    return tlv(0x30, oid(KINDS.get(kind, kind)), tlv(tag, value))


def name(*attributes):
    """Of `CN=…` texts, attributes, or lists of attributes that stand side by side."""
    sets = []
    for found in attributes:
        if isinstance(found, str):
            kind, _, text = found.partition('=')
            found = attribute(kind, text, IA5 if kind == 'emailAddress' else UTF8)
        sets.append(tlv(0x31, *(found if isinstance(found, list) else [found])))
    return tlv(0x30, *sets)


def extension(kind, value, critical=False):
    return tlv(0x30, oid(kind), b'\x01\x01\xff' if critical else b'', tlv(4, value))


def authority(pathlen=None, ca=True, critical=True):
    content = (b'\x01\x01\xff' if ca else b'') + (integer(pathlen) if pathlen is not None else b'')
    return extension('2.5.29.19', tlv(0x30, content), critical)


USES = ['digitalSignature', 'nonRepudiation', 'keyEncipherment', 'dataEncipherment', 'keyAgreement', 'keyCertSign', 'cRLSign']


def bits(numbers):
    value = sum(0x80 >> number for number in numbers)
    unused = (value & -value).bit_length() - 1 if value else 0
    return tlv(3, bytes([unused, value]) if value else b'\0')


def usage(*uses):
    return extension('2.5.29.15', bits(USES.index(use) for use in uses), critical=True)


PURPOSES = {'serverAuth': '1.3.6.1.5.5.7.3.1', 'clientAuth': '1.3.6.1.5.5.7.3.2', 'codeSigning': '1.3.6.1.5.5.7.3.3',
            'emailProtection': '1.3.6.1.5.5.7.3.4', 'any': '2.5.29.37.0'}


def purpose(*purposes, critical=False):
    return extension('2.5.29.37', tlv(0x30, *(oid(PURPOSES[found]) for found in purposes)), critical)


def netscape(*numbers):
    return extension('2.16.840.1.113730.1.1', bits(numbers))


def identified(own=None, issuer=None):
    """Identifiers of the certificate's key and its signer's."""
    return [*([extension('2.5.29.14', tlv(4, own))] if own else []),
            *([extension('2.5.29.35', tlv(0x30, tlv(0x80, issuer)))] if issuer else [])]


MAIL, HOST, DIRECTORY, URI, ADDRESS = 0x81, 0x82, 0xa4, 0x86, 0x87


def alternatives(*names):
    return extension('2.5.29.17', tlv(0x30, *(tlv(kind, value) for kind, value in names)))


def constraints(permitted=(), excluded=()):
    trees = lambda tag, names: tlv(tag, *(tlv(0x30, tlv(kind, value)) for kind, value in names)) if names else b''
    return extension('2.5.29.30', tlv(0x30, trees(0xa0, permitted), trees(0xa1, excluded)), critical=True)


SHA256 = tlv(0x30, oid('2.16.840.1.101.3.4.2.1'), b'\x05\0')
RSA_PSS = tlv(0x30, oid('1.2.840.113549.1.1.10'), tlv(
    0x30, tlv(0xa0, SHA256), tlv(0xa1, tlv(0x30, oid('1.2.840.113549.1.1.8'), SHA256)), tlv(0xa2, integer(32))))
OPTIONS = {'ec': ['EC', '-pkeyopt', 'ec_paramgen_curve:P-256'], 'ed': ['ED25519'], 'rsa': ['RSA'],
           'small': ['RSA', '-pkeyopt', 'rsa_keygen_bits:1024'], 'p384': ['EC', '-pkeyopt', 'ec_paramgen_curve:P-384'],
           'p521': ['EC', '-pkeyopt', 'ec_paramgen_curve:P-521'], 'pss': ['RSA']}
# A process for each of hundreds of signatures takes longer than all else.
LIBRARY = ctypes.CDLL('libcrypto.so.3')
for function in ('BIO_new_mem_buf', 'PEM_read_bio_PrivateKey', 'EVP_MD_CTX_new', 'EVP_get_digestbyname'):
    getattr(LIBRARY, function).restype = ctypes.c_void_p
RSA_PKCS1_PSS_PADDING = 6


def algorithm(kind, digest):
    if kind == 'ed':
        return tlv(0x30, oid('1.3.101.112'))
    if kind == 'pss':
        return RSA_PSS
    if kind in ('rsa', 'small'):
        number = {'sha1': 5, 'sha256': 11, 'sha384': 12, 'sha512': 13}[digest]
        return tlv(0x30, oid(f'1.2.840.113549.1.1.{number}'), b'\x05\0')
    return tlv(0x30, oid({'sha1': '1.2.840.10045.4.1', 'sha256': '1.2.840.10045.4.3.2', 'sha384': '1.2.840.10045.4.3.3',
                          'sha512': '1.2.840.10045.4.3.4'}[digest]))


class Key:
    def __init__(self, folder, label, kind='ec'):
        self.kind, self.path = kind, pathlib.Path(folder) / f'{label}.key'
        subprocess.run(['openssl', 'genpkey', '-algorithm', *OPTIONS[kind], '-out', self.path], check=True, capture_output=True)
        self.public = subprocess.run(['openssl', 'pkey', '-in', self.path, '-pubout', '-outform', 'DER'],
                                     check=True, capture_output=True).stdout
        text = self.path.read_bytes()
        bio = ctypes.c_void_p(LIBRARY.BIO_new_mem_buf(text, len(text)))
        self.private = ctypes.c_void_p(LIBRARY.PEM_read_bio_PrivateKey(bio, None, None, None))

    def signed(self, content, digest):
        """Content with its signature, as certificates and lists have it."""
        pointer = ctypes.c_void_p
        hashed = None if self.kind == 'ed' else pointer(LIBRARY.EVP_get_digestbyname(digest.encode()))
        context, settings = pointer(LIBRARY.EVP_MD_CTX_new()), pointer()
        assert LIBRARY.EVP_DigestSignInit(context, ctypes.byref(settings), hashed, None, self.private) == 1
        if self.kind == 'pss':
            assert LIBRARY.EVP_PKEY_CTX_set_rsa_padding(settings, RSA_PKCS1_PSS_PADDING) == 1
            assert LIBRARY.EVP_PKEY_CTX_set_rsa_pss_saltlen(settings, 32) == 1
        out, length = ctypes.create_string_buffer(1024), ctypes.c_size_t(1024)
        assert LIBRARY.EVP_DigestSign(context, out, ctypes.byref(length), content, ctypes.c_size_t(len(content))) == 1
        LIBRARY.EVP_MD_CTX_free(context)
        signature = out.raw[:length.value]
        return tlv(0x30, content, algorithm(self.kind, digest), tlv(3, b'\0' + signature))


class Certificate:
    """Of a subject and its key, signed by itself or by `issuer`."""
    numbers = iter(range(1000, 1_000_000))

    def __init__(self, subject, key, *extensions, issuer=None, days=(-2, 30), digest='sha256', version=3, serial=None,
                 signer=None):
        self.subject = subject if isinstance(subject, bytes) else name(subject)
        self.key, self.serial = key, next(self.numbers) if serial is None else serial
        by = issuer or self
        signer = signer or by.key
        content = tlv(0x30, tlv(0xa0, integer(version - 1)) if version > 1 else b'', integer(self.serial),
                      algorithm(signer.kind, digest), by.subject, tlv(0x30, *map(time, days)), self.subject, key.public,
                      tlv(0xa3, tlv(0x30, *extensions)) if extensions else b'')
        self.der = signer.signed(content, digest)
        self.pem = pem('CERTIFICATE', self.der)


def pem(label, der):
    text = base64.encodebytes(der).decode()
    return f'-----BEGIN {label}-----\n{text}-----END {label}-----\n'


def revocations(issuer, *serials, days=(-1, 1), version=2, digest='sha256', number=1):
    """A list of what `issuer` has revoked, in PEM."""
    entries = [tlv(0x30, integer(serial), time(-1)) for serial in serials]
    content = tlv(0x30, integer(1) if version == 2 else b'', algorithm(issuer.key.kind, digest), issuer.subject,
                  *map(time, days), tlv(0x30, *entries) if entries else b'',
                  tlv(0xa0, tlv(0x30, extension('2.5.29.20', integer(number)))) if version == 2 else b'')
    return pem('X509 CRL', issuer.key.signed(content, digest))
