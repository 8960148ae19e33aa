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

# Bound, not connected to: a port may be held by a process that does not listen.
free_port() { # first
    php -r 'for ($port = $argv[1]; $port <= min(65535, $argv[1] + 50); $port++)
        if (@stream_socket_server("tcp://127.0.0.1:$port")) { echo $port; exit; }
        exit(1);' -- "$1"
}

# Writes what is made of a template, with what the owner changed in it since the last start. Where both
# changed the same lines, the owner's file stays as it is.
write() { # file < content
    local file=$1 name=${1##*/} mine
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
    if [ -n "$old" ] && [ "$old" != "$port" ]; then
        find "$data/cache" -mindepth 1 -delete
    fi
    echo "$port" >"$data/port"
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
        mariadb-install-db --no-defaults --datadir="$folder" --user=$db_user --skip-test-db \
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

start_redis() {
    step "starting Redis"
    mkdir -p "$sockets/redis"
    is_root && chown $php_user "$sockets/redis"
    # A cache: nothing is written to disk, the least used goes when it is full, no TCP.
    start redis "$sockets/redis/redis.sock" $(command_as_php) redis-server --port 0 \
        --unixsocket "$sockets/redis/redis.sock" --unixsocketperm 700 --save '' --appendonly no \
        --dir "$sockets/redis" --daemonize no --maxmemory "${size_redis}mb" --maxmemory-policy allkeys-lru
    wait_for redis 20 answers redis
}

command_as_php() {
    is_root && echo setpriv --reuid "$(id -u $php_user)" --regid "$(id -g $php_user)" --clear-groups
}

sql() { mariadb --no-defaults --socket="$sockets/db/db.sock" "$@"; }

make_site() {
    www=$data/www
    local password
    if [ ! -e "$data/db-password" ]; then
        (umask 077; random_word >"$data/db-password"; random_word >"$data/admin-password")
    fi
    [ -e "$data/purge-token" ] || (umask 077; random_word >"$data/purge-token")
    password=$(cat "$data/db-password")
    if [ ! -e "$www/.complete" ]; then
        step "copying WordPress"
        rm -rf "$www"
        mkdir -p "$www"
        # Debian links parts of it to other packages: take the files themselves.
        cp -RL /usr/share/wordpress/. "$www/" 2>"$data/log/copy.out"
        [ -e "$www/wp-load.php" ] || die "copying WordPress failed: $(tail -n 1 "$data/log/copy.out")"
        rm -f "$www/wp-config.php"
        mkdir -p "$www/wp-content/uploads"
        is_root && chown -R $php_user "$www/wp-content"
        touch "$www/.complete"
    fi
    write "$www/wp-config.php" < <(
    sed -e "s|@PASSWORD@|$password|" -e "s|@SOCKET@|$sockets/db/db.sock|" \
        -e "s|@ADDRESS@|http://127.0.0.1:$port|" -e "s|@REDIS@|$sockets/redis/redis.sock|" \
        -e "s|@TOKEN@|$(cat "$data/purge-token")|" "$here/stack/wp-config.php")
    cp "$here/stack/object-cache.php" "$www/wp-content/object-cache.php"
    rm -rf "$www/wp-content/plugins/yorozu"
    mkdir -p "$www/wp-content/plugins"
    cp -R "$here/wordpress/yorozu" "$www/wp-content/plugins/yorozu"
    [ -e "$data/keys.php" ] || { echo '<?php'; for key in AUTH SECURE_AUTH LOGGED_IN NONCE; do
        printf "define('%s_KEY', '%s');\ndefine('%s_SALT', '%s');\n" \
            $key "$(random_word)" $key "$(random_word)"
    done; } >"$data/keys.php"
    cp "$data/keys.php" "$www/wp-keys.php"
    is_root && chown $php_user "$www/wp-config.php" "$www/wp-keys.php"
    chmod 640 "$www/wp-config.php" "$www/wp-keys.php"
    [ -e "$data/installed" ] || install_wordpress
    [ -e "$data/plugin" ] && return
    in_wordpress "activating the plugin" 'require ABSPATH . "wp-admin/includes/plugin.php";
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
    sql -e "CREATE DATABASE IF NOT EXISTS wordpress;
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

start_yorozu() {
    local preset=$here/presets
    # The preset as it is, with this site's user, paths, name and port.
    write "$data/conf/nginx.conf" < <(
    sed -e "s|/var/log/yorozu|$data/log|" -e "s|/run/yorozu.pid|$data/yorozu-server.pid|" \
        -e "s|/var/cache/yorozu|$data/cache|" -e "s|\.\./mime.types|$data/conf/mime.types|" \
        -e "s|\.\./visitor.conf|$data/conf/visitor.conf|" -e "s|^user .*|user $php_user;|" \
        -e "s|memory=64m|memory=${size_pages}m|" \
        "$preset/wordpress/nginx.conf")
    write "$data/conf/wordpress.conf" < <(
    sed -e "s|/var/log/yorozu/www.example.com|$data/log/site|" -e "s|/var/www/html|$www|" \
        -e "s|listen 80;|listen 127.0.0.1:$port;|" -e "s|www.example.com|127.0.0.1|" \
        -e "s|\.\./fastcgi_params|$data/conf/fastcgi_params|" \
        -e "s|://\$host\$uri/|://\$host:$port\$uri/|" \
        -e "s|/run/php/wordpress.sock|$php_socket|" \
        -e "s|# \(location = /.purge .*token=\)[^;]*|\1$(cat "$data/purge-token")|" \
        "$preset/wordpress/wordpress.conf")
    write "$data/conf/mime.types" <"$preset/mime.types"
    write "$data/conf/fastcgi_params" <"$preset/fastcgi_params"
    write "$data/conf/visitor.conf" <"$preset/visitor.conf"
    step "starting yorozu"
    start yorozu '' "$yorozu" -p "$data/" -e "$data/log/error.log" -c "$data/conf/nginx.conf" -g 'daemon off;'
    wait_for yorozu 30 curl -sf -o /dev/null --max-time 20 "http://127.0.0.1:$port/"
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
}
