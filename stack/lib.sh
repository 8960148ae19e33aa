# The steps of stack/run, in its order. Sourced; needs $here.

step() { printf '  %s\n' "$*" >&"${terminal:-2}"; }
die() { printf 'make run: %s\n' "$*" >&"${terminal:-2}"; exit 1; }
is_root() { [ "$(id -u)" -eq 0 ]; }

. "$here/stack/prepare.sh"

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
    mkdir -p "$data"/{log,tmp} || die "cannot make folders in $data"
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

# Bound, not connected to: a port may be held by a process that does not listen.
free_port() { # first
    php -r 'for ($port = $argv[1]; $port <= min(65535, $argv[1] + 50); $port++)
        if (@stream_socket_server("tcp://127.0.0.1:$port")) { echo $port; exit; }
        exit(1);' -- "$@"
}

# --- memory ------------------------------------------------------------------------------------

# Sizes in MB by the rule of the published tuning guide: everything together takes 75 % of the memory, so
# that nothing is ever swapped; its figures for 2 GB grow and shrink with the machine. What the database and
# Redis leave is for pages and PHP, which `yorozu serve` shares out.
compute_sizes() {
    local limit
    memory=$(($(awk '/^MemTotal:/ { print $2 }' /proc/meminfo) / 1024))
    # A container's own bound, if it has one.
    limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null)
    if [[ "$limit" =~ ^[0-9]+$ ]] && [ $((limit / 1048576)) -lt "$memory" ]; then
        memory=$((limit / 1048576))
    fi
    memory=${YOROZU_MEMORY:-$memory}
    local budget
    budget=$((memory * 75 / 100))
    # A quarter in chunks of 128 MB, as InnoDB takes it; more than 4 GB is for a site that was measured.
    size_innodb=$(between 128 $((memory / 4 / 128 * 128)) 4096)
    size_queries=$(between 16 $((memory / 16)) 128)
    size_redis=$(between 32 $((memory / 32)) 512)
    # The database has 128 MB besides.
    size_site=$(between 64 $((budget - size_innodb - size_queries - 128 - size_redis)) "$memory")
    step "memory $memory MB, 75 % of it $budget MB: MariaDB $size_innodb + $size_queries + 128, Redis $size_redis,\
 pages and PHP $size_site"
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
    local password
    if [ ! -e "$data/db-password" ]; then
        (umask 077; random_word >"$data/db-password"; random_word >"$data/admin-password")
    fi
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
    # Its owner may change it. One of an earlier version names what is not there any more.
    if ! grep -qs wp-site.php "$www/wp-config.php"; then
        [ ! -e "$www/wp-config.php" ] || { mv "$www/wp-config.php" "$data/wp-config.php.old" &&
            step "wp-config.php is written by this version; what it was is $data/wp-config.php.old"; }
        cp "$here/stack/wp-config.php" "$www/wp-config.php"
    fi
    cp "$here/stack/object-cache.php" "$www/wp-content/object-cache.php"
    rm -rf "$www/wp-content/plugins/yorozu"
    mkdir -p "$www/wp-content/plugins"
    cp -R "$here/wordpress/yorozu" "$www/wp-content/plugins/yorozu"
    [ -e "$data/keys.php" ] || (umask 077; { echo '<?php'; for key in AUTH SECURE_AUTH LOGGED_IN NONCE; do
        printf "define('%s_KEY', '%s');\ndefine('%s_SALT', '%s');\n" \
            $key "$(random_word)" $key "$(random_word)"
    done; } >"$data/keys.php")
    # Every user of the machine sees the arguments of commands: secrets go in by standard input.
    (umask 077; { cat "$data/keys.php"; cat <<END
define('DB_PASSWORD', '$password');
define('DB_HOST', 'localhost:$sockets/db/db.sock');
define('WP_REDIS_SOCKET', '$sockets/redis/redis.sock');
define('SITE_ADDRESS', 'http://127.0.0.1:$port');
END
    } >"$www/wp-site.php") || die "cannot write $www/wp-site.php"
    as_php test -w "$www/wp-content" ||
        step "PHP may not write to $www/wp-content: nothing can be uploaded, and objects are not kept between requests"
    is_root && chown $php_user "$www/wp-config.php" "$www/wp-site.php"
    chmod 640 "$www/wp-config.php" "$www/wp-site.php"
    [ -e "$data/installed" ] || install_wordpress
    [ -e "$data/plugin" ] && return
    in_wordpress "activating the plugin" 'require_once ABSPATH . "wp-admin/includes/plugin.php";
        $problem = activate_plugin("yorozu/yorozu.php", "", false, true);
        if (is_wp_error($problem)) { fwrite(STDERR, $problem->get_error_message()); exit(1); }'
    touch "$data/plugin"
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

# Alone, or a balancer with its nodes behind it.
start_servers() {
    if [ "$nodes" -eq 1 ]; then
        start_site yorozu "$port" "$size_site" "${tls[@]}"
        return
    fi
    start_redis bus "$size_redis" volatile-lru "for the nodes"
    local node lines= last=$port
    for ((node = 1; node <= nodes; node++)); do
        last=$(free_port $((last + 1))) || die "no free port for node $node"
        start_site "node$node" "$last" $((size_site / nodes > 64 ? size_site / nodes : 64)) \
            --proxy 127.0.0.1 --shared "unix:$sockets/bus/redis.sock"
        lines+="server 127.0.0.1:$last; "
    done
    step "starting the balancer"
    mkdir -p "$data/balancer"
    sed -e "s|/var/log/yorozu|$data/log|" -e "s|/run/yorozu.pid|$data/balancer/pid|" -e "s|^user .*|user $php_user;|" \
        -e '/server 10\.0\.0\.[2-9];/d' -e "s|server 10.0.0.1;|$lines|" -e "s|listen 80;|listen 127.0.0.1:$port;|" \
        -e "s|www.example.com|127.0.0.1|" "$here/presets/cluster/nginx.conf" >"$data/balancer/nginx.conf"
    start balancer '' "$yorozu" -p "$data/balancer/" -e stderr -c "$data/balancer/nginx.conf" -g 'daemon off;'
    wait_until_served balancer "$port"
}

# What it says is for who looks at the terminal. PHP gets its environment: nothing of root's.
start_site() { # name port memory options...
    step "starting $1"
    shows[$1]=1
    start "$1" '' env -i PATH="$PATH" XDG_RUNTIME_DIR="${XDG_RUNTIME_DIR-}" "$yorozu" serve "$www" --state "$data/$1" --port "$2" --memory "$3m" "${@:4}"
    wait_until_served "$1" "$2"
}

wait_until_served() { # name port
    ports[$1]=$2
    wait_for "$1" 60 curl -sf -o /dev/null --max-time 20 "http://127.0.0.1:$2/"
}

show_address() {
    local secure
    if [ ${#tls[@]} -gt 0 ]; then
        read -r secure _ <"$data/yorozu/lock"
        printf 'With HTTP/2 and HTTP/3 it is at %s - its authority is %s\n' "${secure/localhost/127.0.0.1}" "$data/yorozu/tls/authority.crt"
    fi
    printf 'WordPress is at http://127.0.0.1:%s/ - log in at /wp-admin/ as admin, password %s - Ctrl-C stops it\n' \
        "$port" "$(cat "$data/admin-password")"
}
