# A certificate for the site, by an authority of its own. Sourced by stack/lib.sh.

# Bound, not connected to: a port may be held by a process that does not listen.
free_port() { # first [with-udp]
    php -r 'for ($port = $argv[1]; $port <= min(65535, $argv[1] + 50); $port++)
        if (@stream_socket_server("tcp://127.0.0.1:$port")
            && (!isset($argv[2]) || @stream_socket_server("udp://127.0.0.1:$port", $code, $text, STREAM_SERVER_BIND))
        ) { echo $port; exit; }
        exit(1);' -- "$@"
}

# As long as browsers take one; a new one when a month is left.
certificate_days=397
renewed_before=$((30 * 24 * 3600))

# What is made has its name once it is whole: a killed run leaves nothing half made. Key and certificate lie in one file.
make_certificate() {
    tls=$data/tls
    mkdir -p -m 755 "$tls" && [ -O "$tls" ] || die "cannot make the folder $tls, or it belongs to another user"
    if [ ! -e "$tls/authority.key" ] || [ ! -e "$tls/authority.crt" ]; then
        step "making a certificate authority"
        # Who trusts it trusts it for this machine alone.
        printf '%s\n' '[req]' 'distinguished_name=name' 'x509_extensions=authority' '[name]' '[authority]' \
            'basicConstraints=critical,CA:TRUE,pathlen:0' 'keyUsage=critical,keyCertSign' 'subjectKeyIdentifier=hash' \
            'nameConstraints=critical,permitted;IP:127.0.0.1/255.255.255.255,permitted;DNS:localhost' >"$tls/authority.cnf"
        openssl_says req -x509 -config "$tls/authority.cnf" -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 \
            -subj "/CN=yorozu in $(hostname)" -keyout "$tls/new.key" -out "$tls/new.crt"
        chmod 644 "$tls/new.crt"
        rm -f "$tls/site.pem"
        mv "$tls/new.key" "$tls/authority.key"
        mv "$tls/new.crt" "$tls/authority.crt"
    fi
    if ! openssl x509 -checkend $renewed_before -noout -in "$tls/site.pem" >/dev/null 2>&1; then
        step "making a certificate for 127.0.0.1"
        printf '%s\n' 'subjectAltName=IP:127.0.0.1,DNS:localhost' 'basicConstraints=CA:FALSE' 'keyUsage=digitalSignature' \
            'extendedKeyUsage=serverAuth' >"$tls/extensions"
        openssl_says req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=127.0.0.1 -keyout "$tls/new.key" -out "$tls/new.csr"
        openssl_says x509 -req -in "$tls/new.csr" -CA "$tls/authority.crt" -CAkey "$tls/authority.key" -CAcreateserial \
            -days $certificate_days -extfile "$tls/extensions" -out "$tls/new.crt"
        (umask 077; cat "$tls/new.key" "$tls/new.crt" >"$tls/new.pem")
        mv "$tls/new.pem" "$tls/site.pem"
        rm -f "$tls"/new.*
    fi
}

openssl_says() {
    (umask 077; openssl "$@") >"$data/log/openssl.out" 2>&1 || die "openssl $1 failed: $(tail -n 1 "$data/log/openssl.out")"
}
