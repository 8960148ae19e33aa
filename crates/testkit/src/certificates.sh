# Makes the certificates of the tests in the current folder; tls.rs says which.
key() { openssl ecparam -genkey -noout -name prime256v1 -out "$1.key"; }
# sign NAME SIGNER EXTENSION...
sign() {
    name=$1 signer=$2; shift 2
    key "$name"
    printf '%s\n' "$@" >"$name.ext"
    openssl req -new -key "$name.key" -subj "/CN=$name" -out "$name.csr"
    openssl x509 -req -in "$name.csr" -CA "$signer.pem" -CAkey "$signer.key" -days 30 \
        -extfile "$name.ext" -set_serial "0x$(openssl rand -hex 8)" -out "$name.pem"
}
key ca
openssl req -x509 -new -key ca.key -subj /CN=ca -days 30 -addext keyUsage=critical,keyCertSign,cRLSign -out ca.pem
sign server ca 'subjectAltName=DNS:localhost,DNS:a,IP:127.0.0.1'
sign client ca extendedKeyUsage=clientAuth
sign revoked ca 'subjectAltName=DNS:localhost,DNS:a,IP:127.0.0.1'
sign middle ca basicConstraints=critical,CA:TRUE keyUsage=critical,keyCertSign,cRLSign
sign deep middle 'subjectAltName=DNS:localhost,DNS:a,IP:127.0.0.1'
cat middle.pem >>deep.pem
key other
openssl req -x509 -new -key other.key -subj /CN=other -days 30 -addext subjectAltName=DNS:other -out other.pem
openssl pkcs8 -topk8 -in server.key -out locked.key -passout pass:secret -v2 aes-256-cbc
echo secret >password
echo guess >wrong
: >index.txt
echo 01 >crlnumber
cat >crl.cnf <<CNF
[ca]
default_ca=d
[d]
database=index.txt
crlnumber=crlnumber
default_md=sha256
default_crl_days=30
CNF
openssl ca -config crl.cnf -cert ca.pem -keyfile ca.key -revoke revoked.pem
openssl ca -config crl.cnf -cert ca.pem -keyfile ca.key -gencrl -out crl.pem
