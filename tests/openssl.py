"""Keys and certificates, made by OpenSSL's command line."""
import subprocess


def openssl(*arguments):
    subprocess.run(['openssl', *map(str, arguments)], check=True, capture_output=True)


def certificate(folder, name, kind='ec', subject=None, signer=None):
    """A key and a certificate, of its own or of `signer`; as the tutorials make them."""
    key = ['ec', '-pkeyopt', 'ec_paramgen_curve:P-256'] if kind == 'ec' else ['rsa:2048']
    subject = subject or f'/CN={name}'
    made = ['-nodes', '-keyout', folder / f'{name}.key', '-subj', subject]
    if signer is None:
        openssl('req', '-x509', '-newkey', *key, *made, '-days', 30, '-out', folder / f'{name}.crt')
        return
    openssl('req', '-newkey', *key, *made, '-out', folder / f'{name}.csr')
    (folder / 'v3').write_text('basicConstraints=CA:FALSE\nextendedKeyUsage=clientAuth,serverAuth\n')
    openssl('x509', '-req', '-in', folder / f'{name}.csr', '-CA', folder / f'{signer}.crt', '-CAkey',
            folder / f'{signer}.key', '-CAcreateserial', '-days', 30, '-extfile', folder / 'v3',
            '-out', folder / f'{name}.crt')


def authority(folder):
    """An authority, a server's certificate for origin.example and a client's, in PEM files."""
    def openssl(*words):
        subprocess.run(['openssl', *map(str, words)], check=True, capture_output=True, cwd=folder)
    openssl('req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-keyout', 'ca.key', '-out', 'ca.pem',
            '-subj', '/CN=authority', '-days', '2')
    for name in ('origin.example', 'client.example'):
        openssl('req', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes',
                '-keyout', f'{name}.key', '-out', f'{name}.csr', '-subj', f'/CN={name}')
        (folder / 'ext').write_text(f'subjectAltName=DNS:{name}')
        openssl('x509', '-req', '-in', f'{name}.csr', '-CA', 'ca.pem', '-CAkey', 'ca.key',
                '-CAcreateserial', '-out', f'{name}.pem', '-days', '2', '-extfile', 'ext')
    openssl('pkcs8', '-topk8', '-in', 'client.example.key', '-passout', 'pass:secret', '-out', 'encrypted.key')
    (folder / 'passwords').write_text('wrong\nsecret\n')
