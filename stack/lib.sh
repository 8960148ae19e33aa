# The steps of stack/run, in its order. Sourced; needs $here.

step() { printf '  %s\n' "$*" >&"${terminal:-2}"; }
die() { printf 'make run: %s\n' "$*" >&"${terminal:-2}"; exit 1; }
is_root() { [ "$(id -u)" -eq 0 ]; }

. "$here/stack/prepare.sh"
. "$here/stack/tls.sh"

# --- folders and users -----------------------------------------------------------------------

may_enter() { # user folder
    runuser -u "$1" -- test -x "$2" 2>/dev/null
}

choose_folders() {
    local id
    id=$(printf '%s' "$here" | cksum | cut -d ' ' -f 1)
    data=${YOROZU_DATA:-$here/.yorozu}
    if is_root; then
        db_user=mysql php_user=www-data
        # Often a folder of root alone (libpam-tmpdir), where the database and PHP could not write.
        unset TMPDIR
        mkdir -p "$data" || die "cannot make the folder $data"
        if ! may_enter $db_user "$data" || ! may_enter $php_user "$data"; then
            [ -z "${YOROZU_DATA:-}" ] || die "users $db_user and $php_user may not enter $data"
            rmdir "$data" 2>/dev/null
            data=/var/lib/yorozu/$id
            step "the users of MariaDB and PHP may not enter the clone: the site goes to $data"
        fi
        sockets=/run/yorozu-$id
    else
        db_user=$(id -un) php_user=$db_user
        sockets=${XDG_RUNTIME_DIR:-/tmp}/yorozu-$(id -u)-$id
    fi
    # A site in another folder has its own sockets, though the clone is the same.
    [ -z "${YOROZU_DATA:-}" ] || sockets=$sockets-$(printf %s "$YOROZU_DATA" | cksum | cut -d ' ' -f 1)
    # Names of sockets may have 107 bytes at most, the clone's path may be longer: hence a folder apart.
    mkdir -p -m 755 "$data" "$sockets" || die "cannot make the folders $data and $sockets"
    [ -O "$sockets" ] || die "$sockets belongs to another user"
    mkdir -p "$data"/{conf,log,cache,tmp,written} || die "cannot make folders in $data"
    ! is_disk_full || die "the disk of $data is full"
}

# By its command line: the number may be another process's by now. One that ended has none, though its number
# is there until its parent asks.
is_of_site() { # pid
    tr '\0' ' ' <"/proc/${1:-none}/cmdline" | grep -qF -e "$data" -e "$sockets"
} 2>/dev/null

take_lock() {
    exec 9>"$data/lock"
    flock -n 9 || die "it runs already (lock $data/lock)"
    # What a killed run left behind would hold the database.
    local file pid
    for file in "$data"/*.pid; do
        [ -e "$file" ] || continue
        pid=$(cat "$file")
        if is_of_site "$pid"; then
            step "ending $(basename "$file" .pid) of an earlier run"
            kill "$pid" 2>/dev/null
            for _ in $(seq 100); do is_of_site "$pid" || break; sleep 0.1; done
            kill -9 -- "-$pid" 2>/dev/null
        fi
        rm -f "$file"
    done
}

# Writes what is made of a template, with what the owner changed in it since the last start. Where both
# changed the same lines, the owner's file stays as it is.
write() { # file < content
    local file=$1 name=${1##*/} mine
    case $file in "$data"/node*) name=${file#"$data"/} name=${name//\//-} ;; esac
    local before=$data/written/$name new=$data/tmp/$name
    (umask 077 && cat >"$new") || die "cannot write $new"
    if [ -e "$file" ] && [ -e "$before" ] && ! cmp -s "$file" "$before"; then
        if ! mine=$(diff3 -m "$file" "$before" "$new"; status=$?; echo .; exit $status); then
            step "your changes to $file meet this start's in the same lines: yours stay, remove it to have it written"
            rm -f "$new"
            return
        fi
        step "keeping your changes to $file"
        printf %s "${mine%.}" >"$file"
    else
        # It may hold a password.
        (umask 027 && cat "$new" >"$file")
    fi || die "cannot write $file"
    mv "$new" "$before"
}

# Stored pages hold links with the port.
forget_pages_of_other_address() {
    local old
    old=$(cat "$data/port" 2>/dev/null)
    local now="$port${tls_port:+ $tls_port}"
    if [ -n "$old" ] && [ "$old" != "$now" ]; then
        find "$data/cache" "$data"/node?/cache -mindepth 1 -delete 2>/dev/null
    fi
    echo "$now" >"$data/port"
}

# --- memory ------------------------------------------------------------------------------------

# Sizes in MB by the rule of the published tuning guide: everything together takes 75 % of the memory, so
# that nothing is ever swapped; its figures for 2 GB grow and shrink with the machine. What PHP's
# children share out among them is what the others leave: the guide's 20 children take 25 MB each.
compute_sizes() {
    local limit
    memory=$(($(awk '/^MemTotal:/ { print $2 }' /proc/meminfo) / 1024))
    # A container's own bound, if it has one.
    limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null)
    if [[ "$limit" =~ ^[0-9]+$ ]] && [ $((limit / 1048576)) -lt "$memory" ]; then
        memory=$((limit / 1048576))
    fi
    memory=${YOROZU_MEMORY:-$memory}
    local cores budget others
    cores=$(nproc)
    budget=$((memory * 75 / 100))
    # A quarter in chunks of 128 MB, as InnoDB takes it; more than 4 GB is for a site that was measured.
    size_innodb=$(between 128 $((memory / 4 / 128 * 128)) 4096)
    size_queries=$(between 16 $((memory / 16)) 128)
    size_opcache=128
    size_redis=$(between 32 $((memory / 32)) 512)
    size_pages=$(between 16 $((memory / 32)) 1024)
    others=$((size_innodb + size_queries + size_opcache + size_redis + size_pages + 128))
    size_child=25
    php_children=$(between 2 $(((budget - others) / size_child)) $((cores * 10)))
    step "memory $memory MB, 75 % of it $budget MB: MariaDB $size_innodb + $size_queries, opcache $size_opcache,\
 Redis $size_redis, pages $size_pages, PHP $php_children x $size_child"
}

between() { # least wanted most
    if [ "$2" -lt "$1" ]; then echo "$1"; elif [ "$2" -gt "$3" ]; then echo "$3"; else echo "$2"; fi
}

# --- the site ----------------------------------------------------------------------------------

as_php() { if is_root; then runuser -u $php_user -- "$@"; else "$@"; fi; }

random_word() { head -c 18 /dev/urandom | base64 | tr '+/' 'xy'; }

start_database() {
    local folder=$data/mariadb
    if [ ! -e "$folder/ready" ]; then
        step "making the database"
        rm -rf "$folder"
        mkdir -p "$folder"
        is_root && chown $db_user "$folder"
        # --force: without it a machine whose own name resolves to nothing is refused. Nobody comes by a host's name here.
        mariadb-install-db --no-defaults --datadir="$folder" --user=$db_user --skip-test-db --force \
            --auth-root-authentication-method=socket >"$data/log/mariadb-install.out" 2>&1 ||
            die "mariadb-install-db failed, see $data/log/mariadb-install.out"
        touch "$folder/ready"
    fi
    step "starting MariaDB"
    mkdir -p "$sockets/db"
    is_root && chown $db_user "$sockets/db"
    local program
    program=$(command -v mariadbd) || program=/usr/sbin/mariadbd
    start mariadb "$sockets/db/db.sock" "$program" --no-defaults --user=$db_user --datadir="$folder" \
        --socket="$sockets/db/db.sock" --pid-file="$folder/mariadb.pid" --skip-networking \
        --character-set-server=utf8mb4 --max-connections=64 --key-buffer-size=32M \
        --innodb-buffer-pool-size="${size_innodb}M" --innodb-log-file-size="$((size_innodb / 4))M" \
        --innodb-flush-method=O_DIRECT --innodb-flush-log-at-trx-commit=2 --thread-cache-size=16 \
        --query-cache-type=ON --query-cache-size="${size_queries}M" --query-cache-limit=256K \
        --query-cache-min-res-unit=2K --max-heap-table-size=64M --tmp-table-size=64M
    # After a kill or a power cut it recovers first, which may take minutes.
    wait_for mariadb 600 mariadb-admin --no-defaults --socket="$sockets/db/db.sock" ping
}

# The object cache of WordPress: nothing is written to disk, the least used goes when it is full, no TCP. What nodes share has a
# Redis of its own, where purges must not be pushed out.
start_redis() { # name megabytes policy
    local folder=$sockets/$1
    step "starting Redis${4:+ $4}"
    mkdir -p "$folder"
    is_root && chown $php_user "$folder"
    start "$1" "$folder/redis.sock" $(command_as_php) redis-server --port 0 \
        --unixsocket "$folder/redis.sock" --unixsocketperm 700 --save '' --appendonly no \
        --dir "$folder" --daemonize no --maxmemory "$2mb" --maxmemory-policy "$3"
    wait_for "$1" 20 answers "$1"
}

command_as_php() {
    is_root && echo setpriv --reuid "$(id -u $php_user)" --regid "$(id -g $php_user)" --clear-groups
}

# WORDPRESS names one that is not Debian's: for the first start, which copies it.
choose_wordpress() {
    wordpress=${WORDPRESS:-/usr/share/wordpress}
    [ -z "${WORDPRESS:-}" ] && return
    [ -e "$wordpress/wp-load.php" ] ||
        die "WORDPRESS is \"$wordpress\": a folder with WordPress (wp-load.php) was expected"
    [ ! -e "$data/www/.complete" ] || step "WORDPRESS counts at the first start: the site in $data/www stays as it is"
}

sql() { mariadb --no-defaults --socket="$sockets/db/db.sock" "$@"; }

make_site() {
    www=$data/www
    local password token
    if [ ! -e "$data/db-password" ]; then
        (umask 077; random_word >"$data/db-password"; random_word >"$data/admin-password")
    fi
    for token in purge-token console-token; do
        [ -e "$data/$token" ] || (umask 077; random_word >"$data/$token")
    done
    password=$(cat "$data/db-password")
    if [ ! -e "$www/.complete" ]; then
        step "copying WordPress"
        rm -rf "$www"
        mkdir -p "$www"
        # Debian links parts of it to other packages: take the files themselves.
        cp -RL "$wordpress/." "$www/" 2>"$data/log/copy.out"
        [ -e "$www/wp-load.php" ] || die "copying WordPress failed: $(tail -n 1 "$data/log/copy.out")"
        rm -f "$www/wp-config.php" "$www/wp-content/object-cache.php"
        mkdir -p "$www/wp-content/uploads"
        is_root && chown -R $php_user "$www/wp-content"
        touch "$www/.complete"
    fi
    write "$www/wp-config.php" < <(
    # Every user of the machine sees the arguments of commands: secrets go in by standard input.
    sed -f /dev/stdin -e "s|@SOCKET@|$sockets/db/db.sock|" \
        -e "s|@ADDRESS@|http://127.0.0.1:$port|" -e "s|@TLS_PORT@|$tls_port|" -e "s|@REDIS@|$sockets/redis/redis.sock|" \
        "$here/stack/wp-config.php" <<<"s|@PASSWORD@|$password|; s|@TOKEN@|$(cat "$data/purge-token")|")
    cp "$here/stack/object-cache.php" "$www/wp-content/object-cache.php"
    rm -rf "$www/wp-content/plugins/yorozu"
    mkdir -p "$www/wp-content/plugins"
    cp -R "$here/wordpress/yorozu" "$www/wp-content/plugins/yorozu"
    [ -e "$data/keys.php" ] || (umask 077; { echo '<?php'; for key in AUTH SECURE_AUTH LOGGED_IN NONCE; do
        printf "define('%s_KEY', '%s');\ndefine('%s_SALT', '%s');\n" \
            $key "$(random_word)" $key "$(random_word)"
    done; } >"$data/keys.php")
    chmod 600 "$data/keys.php"
    (umask 077; cp "$data/keys.php" "$www/wp-keys.php")
    as_php test -w "$www/wp-content" ||
        step "PHP may not write to $www/wp-content: nothing can be uploaded, and objects are not kept between requests"
    is_root && chown $php_user "$www/wp-config.php" "$www/wp-keys.php"
    chmod 640 "$www/wp-config.php" "$www/wp-keys.php"
    [ -e "$data/installed" ] || install_wordpress
    [ -e "$data/plugin" ] && return
    in_wordpress "activating the plugin" 'require_once ABSPATH . "wp-admin/includes/plugin.php";
        $problem = activate_plugin("yorozu/yorozu.php", "", false, true);
        if (is_wp_error($problem)) { fwrite(STDERR, $problem->get_error_message()); exit(1); }'
    touch "$data/plugin"
    is_activated=1
}

in_wordpress() { # what code
    as_php php -d display_errors=stderr -r 'require $argv[1] . "/wp-load.php";'"$2" "$www" \
        >"$data/log/plugin.out" 2>&1 9>&- ||
        die "$1 failed: $(tail -n 1 "$data/log/plugin.out")"
}

install_wordpress() {
    step "installing WordPress"
    sql <<<"CREATE DATABASE IF NOT EXISTS wordpress;
        CREATE OR REPLACE USER wordpress@localhost IDENTIFIED BY '$password';
        GRANT ALL ON wordpress.* TO wordpress@localhost;" ||
        die "the database could not be made"
    cp "$here/stack/install.php" "$data/tmp/install.php"
    YOROZU_ADMIN=$(cat "$data/admin-password") as_php php -d display_errors=stderr \
        "$data/tmp/install.php" "$www" >"$data/log/install.out" 2>&1 9>&- ||
        die "installing WordPress failed: $(tail -n 1 "$data/log/install.out")"
    touch "$data/installed"
}

start_php() {
    step "starting PHP-FPM"
    php_socket=$sockets/php.sock
    local start=$(between 1 $((php_children * 2 / 5)) 8) spare=$(between 1 $((php_children / 2)) 10)
    write "$data/conf/php-fpm.conf" < <(
    sed -e "s|@SOCKET@|$php_socket|" -e "s|@LOG@|$data/log|" -e "s|@USER@|$php_user|" \
        -e "s|@CHILDREN@|$php_children|" -e "s|@START@|$start|" -e "s|@SPARE@|$spare|" \
        "$here/stack/php-fpm.conf" |
        if is_root; then cat; else sed -e '/^user =/d' -e '/^group =/d' -e '/^listen\.owner/d'; fi)
    local program
    program=$(command -v php-fpm8.2) || program=/usr/sbin/php-fpm8.2
    # Memory that all children share is taken before a pool is read.
    start php-fpm "$php_socket" "$program" --nodaemonize --fpm-config "$data/conf/php-fpm.conf" \
        -d opcache.memory_consumption="$size_opcache" -d opcache.interned_strings_buffer=8 \
        -d opcache.max_accelerated_files=4000 -d apc.shm_size=32M
    wait_for php-fpm 20 answers php-fpm
}

# Alone, or a balancer with its nodes behind it.
start_servers() {
    if [ "$nodes" -eq 1 ]; then
        start_site yorozu "$data" "$port"
        return
    fi
    start_redis bus "$size_pages" volatile-lru "for the nodes"
    local node lines= last=$port
    node_ports=()
    for ((node = 1; node <= nodes; node++)); do
        last=$(free_port $((last + 1))) || die "no free port for node $node"
        node_ports+=("$last")
        mkdir -p "$data/node$node"/{conf,log,cache} || die "cannot make folders in $data"
        start_site "node$node" "$data/node$node" "$last"
        lines+="server 127.0.0.1:$last; "
    done
    write "$data/conf/nginx.conf" < <(
    of_site "$data" -e '/server 10\.0\.0\.[2-9];/d' -e "s|server 10.0.0.1;|$lines|" -e "s|listen 80;|listen 127.0.0.1:$port;|" \
        -e "s|www.example.com|127.0.0.1|" "$here/presets/cluster/nginx.conf")
    step "starting the balancer"
    start_yorozu yorozu "$data" "$port"
}

of_site() { # folder options-of-sed...
    local folder=$1
    shift
    sed -e "s|/var/log/yorozu|$folder/log|" -e "s|/run/yorozu.pid|$folder/yorozu-server.pid|" -e "s|^user .*|user $php_user;|" "$@"
}

# The preset as it is, with this site's user, paths, name and port.
start_site() { # name folder port
    local folder=$2 port=$3 preset=$here/presets conf=$2/conf
    local shared=()
    # Visitors name the balancer's port, which is not the node's: then it belongs into the key (docs/cache.md).
    [ "$1" = yorozu ] || shared=(-e '/fastcgi_cache_key/s|\$host|$http_host|'
        -e "s|memory=[0-9]*m|& shared=unix:$sockets/bus/redis.sock|"
        -e "s|^http {|&\n    include $conf/nodes.conf;|")
    write "$conf/nginx.conf" < <(
    of_site "$folder" -e "s|/var/cache/yorozu|$folder/cache|" -e "s|\.\./mime.types|$conf/mime.types|" \
        -e "s|\.\./visitor.conf|$conf/visitor.conf|" -e "s|memory=64m|memory=${size_pages}m|" "${shared[@]}" \
        "$preset/wordpress/nginx.conf")
    [ "$1" = yorozu ] || write "$conf/nodes.conf" < <(
    sed -e "s|redis://[^ ]* secret=[^ ;]*|unix:$sockets/bus/redis.sock node=$1|" -e "s|10.0.0.0/24|127.0.0.1|" \
        "$preset/cluster/nodes.conf")
    # What the preset has switched off for HTTPS is switched on where it is asked for.
    local secure=()
    [ -z "$tls_port" ] || secure=(
        -e "s|# \(listen \)443|\1127.0.0.1:$tls_port|" -e 's|# \(http2 on;\)|\1|'
        -e "s|# \(ssl_certificate[^ ]* *\)[^ ]*;|\1$data/tls/site.pem;|"
        -e "s|# \(add_header Alt-Svc 'h3=\":\)443|\1$tls_port|")
    write "$conf/wordpress.conf" < <(
    sed -e "s|/var/log/yorozu/www.example.com|$folder/log/site|" -e "s|/var/www/html|$www|" \
        -e "s|listen 80;|listen 127.0.0.1:$port;|" -e "s|www.example.com|127.0.0.1|" \
        -e "s|\.\./fastcgi_params|$conf/fastcgi_params|" -e "s|\.\./refused.conf|$conf/refused.conf|" \
        -e "s|://\$host\$uri/|://\$http_host\$uri/|" \
        -e "s|/run/php/wordpress.sock|$php_socket|" \
        "${secure[@]}" \
        -f /dev/stdin \
        -e "s|# \(location ^~ /.console/ .*token=\)[^;]*|\1$data/console-token|" \
        "$preset/wordpress/wordpress.conf" <<<"s|# \(location = /.purge .*token=\)[^;]*|\1$(cat "$data/purge-token")|")
    write "$conf/mime.types" <"$preset/mime.types"
    write "$conf/fastcgi_params" <"$preset/fastcgi_params"
    write "$conf/visitor.conf" <"$preset/visitor.conf"
    write "$conf/refused.conf" <"$preset/refused.conf"
    step "starting $1"
    start_yorozu "$1" "$folder" "$port"
}

start_yorozu() { # name folder port
    start "$1" '' "$yorozu" -p "$2/" -e "$2/log/error.log" -c "$2/conf/nginx.conf" -g 'daemon off;'
    ports[$1]=$3
    wait_for "$1" 30 curl -sf -o /dev/null --max-time 20 "http://127.0.0.1:$3/"
}

# Activating the plugin wanted a purge when there was no server to ask: WP-Cron would ask again a minute later, and
# pages just looked at would be refreshed.
purge_what_waits() {
    [ -z "${is_activated-}" ] ||
        in_wordpress "purging" 'wp_clear_scheduled_hook("yorozu_retry"); do_action("yorozu_retry");'
}

show_address() {
    printf 'WordPress is at http://127.0.0.1:%s/ - log in at /wp-admin/ as admin, password %s - Ctrl-C stops it\n' \
        "$port" "$(cat "$data/admin-password")"
    [ -z "$tls_port" ] ||
        printf 'With HTTP/2 and HTTP/3 it is at https://127.0.0.1:%s/ - its authority is %s\n' "$tls_port" "$data/tls/authority.crt"
    # For this machine alone, as the site is.
    if [ "$nodes" -eq 1 ]; then
        printf 'The console is at http://127.0.0.1:%s/.console/#token=%s\n' "$port" "$(cat "$data/console-token")"
    else
        printf 'Behind it: %sThe token for them is %s\n' "$(printf 'node%s with its console at http://127.0.0.1:%s/.console/  ' $(paste -d ' ' <(seq "$nodes") <(printf '%s\n' "${node_ports[@]}")))" "$(cat "$data/console-token")"
    fi
}
