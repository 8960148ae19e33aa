# What stands before the site: Debian's packages and yorozu itself. The build goes on while packages are installed.
# Sourced by stack/lib.sh; needs $here.

packages="php8.2-fpm php8.2-opcache php8.2-cli php8.2-mysql php8.2-gd php8.2-mbstring php8.2-xml
php8.2-curl php8.2-redis php-apcu redis-server mariadb-server wordpress wordpress-theme-twentytwentythree curl openssl"
# Cargo fetches crates over TLS: authorities' certificates are only recommended by what it is linked with.
compiler_packages="rustc-web cargo-web gcc libc6-dev ca-certificates"
rust_minimum=87   # of 1.x; Cargo.toml's rust-version

# --- what is there ---------------------------------------------------------------------------

missing_packages() {
    local name
    for name in $packages "$@"; do
        dpkg-query -W -f '${db:Status-Status}\n' "$name" 2>/dev/null | grep -qx installed || echo "$name"
    done
}

is_rust_recent() {
    local version
    version=$("$1" --version 2>/dev/null | sed -n 's/^rustc 1\.\([0-9]*\)\..*/\1/p')
    [ -n "$version" ] && [ "$version" -ge $rust_minimum ]
}

PATH="$PATH:${HOME-}/.cargo/bin"

has_rust() { is_rust_recent rustc && command -v cargo >/dev/null && command -v cc >/dev/null; }

# A profile is of one compiler: another one may refuse to read it.
profiles=$here/target/profiles
built=$here/target/release/yorozu

# Only of use where there is no compiler: cargo knows better.
is_built() {
    [ -x "$built" ] &&
        [ -z "$(find "$here/Cargo.toml" "$here/Cargo.lock" "$here/crates" -newer "$built" -print -quit)" ]
}

# --- the build -------------------------------------------------------------------------------

compiler() { rustc -vV | cksum | cut -d ' ' -f 1; }

# The names of functions are those of a compiler and of the dependencies' versions: another profile says nothing here.
lock_sum() { cksum <"$here/Cargo.lock" | cut -d ' ' -f 1; }
named() { echo "$(compiler)-$(lock_sum)"; }

# What `make profile` left, if it was with this compiler; else the profile that ships, if it fits.
profile() {
    local own packed unpacked
    own=$(find "$profiles" -name "$(compiler)-*.profdata" 2>/dev/null)
    [ -z "$own" ] || { echo "$own"; return; }
    packed=$here/bench/profile/$(named).profdata.gz
    [ -f "$packed" ] || return 0
    # Another content has another path, so that cargo builds again.
    unpacked=$profiles/shipped-$(cksum <"$packed" | cut -d ' ' -f 1).profdata
    [ -f "$unpacked" ] || { mkdir -p "$profiles" && gzip -dc "$packed" >"$unpacked.new" && mv "$unpacked.new" "$unpacked"; } || return 0
    echo "$unpacked"
}

compile_with() { # flag-of-rustc-or-nothing options-of-cargo...
    local flag=$1
    shift
    # Not set where there is no flag: an empty RUSTFLAGS would hide those of cargo's own configuration.
    (cd "$here" && { [ -z "$flag" ] || export RUSTFLAGS="${RUSTFLAGS-} $flag"; } &&
        cargo build --release --locked "$@") </dev/null
}

compile() { # options-of-cargo...
    local found
    found=$(profile)
    compile_with "${found:+-Cprofile-use=$found}" "$@" && part_lines
}

# Names and lines go to a file beside the program, where gdb, perf and backtraces find them.
part_lines() {
    [ -x "$built" ] && readelf -SW "$built" 2>/dev/null | grep -q '\.debug_line' || return 0
    # Cargo puts its own file back whenever it is asked.
    (cd "${built%/*}" && objcopy --only-keep-debug yorozu yorozu.debug && chmod -x yorozu.debug &&
        objcopy --strip-all --add-gnu-debuglink=yorozu.debug yorozu yorozu.small && mv yorozu.small yorozu)
}

# --- packages --------------------------------------------------------------------------------

apt() { # status-file options...
    local file=$1
    shift
    # The machine's own upgrades may hold the lock.
    DEBIAN_FRONTEND=noninteractive apt-get -y -o DPkg::Lock::Timeout=300 -o APT::Status-Fd=3 "$@" 3>>"$file"
}

# In two steps, so that the build begins when its compiler is there.
get_packages() ( # folder compiler's-packages others
    # No service of theirs shall be started: the site has its own processes.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e $policy ]; then
        trap 'rm -f $policy' EXIT
        printf '#!/bin/sh\nexit 101\n' >$policy && chmod 755 $policy
    fi
    # What an earlier run left halfway.
    [ -z "$(dpkg --audit)" ] || { dpkg --configure -a; apt "$1/status" -f install; }
    apt "$1/status" update || exit
    [ -z "$2" ] || apt "$1/status" --no-install-recommends install $2 || exit
    : >"$1/status"
    : >"$1/compiler"
    [ -z "$3" ] || apt "$1/status" --no-install-recommends install $3
)

# --- side by side ----------------------------------------------------------------------------

declare -A jobs=()   # name -> process

start_job() { # name command...
    local name=$1
    shift
    "$@" >"$work/$name.log" 2>&1 </dev/null &
    jobs[$name]=$!
}

descendants() { # pid
    local child
    for child in $(cat /proc/"$1"/task/*/children 2>/dev/null); do
        echo "$child"
        descendants "$child"
    done
}

end_jobs() {
    local name all
    for name in "${!jobs[@]}"; do
        all="${jobs[$name]} $(descendants "${jobs[$name]}")"
        kill -TERM $all 2>/dev/null
        wait "${jobs[$name]}" 2>/dev/null
        unset "jobs[$name]"
    done
    clear_line
    [ -z "${work-}" ] || rm -rf "$work"
}

# One line for each fault: its first words, the cause that cargo names last, and where the rest is.
fault() { # name
    local words cause
    words=$(tr '\r' '\n' <"$work/$1.log" | grep -m 1 -E '^(E:|error)' || tail -n 1 "$work/$1.log")
    cause=$(awk '/^Caused by:/ { getline; sub(/^ */, ""); cause = $0 } END { print cause }' "$work/$1.log")
    words+=${cause:+: $cause}
    case $1 in
        build) printf 'the build failed: %s (all of it: %s)' "$words" "$work/$1.log" ;;
        packages) printf 'apt-get failed: %s (all of it: %s)' "$words" "$work/$1.log" ;;
    esac
}

progress_of() { # name
    local kind name percent text
    case $1 in
        build)
            # Cargo's own count, of the line it draws again and again.
            text=$(tail -c 600 "$work/build.log" | tr '\r' '\n' | grep -oE '[0-9]+/[0-9]+(:|$)' | tail -n 1)
            text=${text%:}
            printf 'yorozu: %s' "${text:+${text%/*} of ${text#*/} parts built}${text:-its libraries are fetched}" |
                sed 's|built.*|built|' ;;
        packages)
            IFS=: read -r kind name percent text < <(tail -n 1 "$work/status" 2>/dev/null)
            name=packages
            [ -e "$work/compiler" ] || name='the compiler'
            case $kind in
                dlstatus) printf '%s: %s %% fetched' "$name" "${percent%.*}" ;;
                pmstatus) printf '%s: %s %% installed' "$name" "${percent%.*}" ;;
                *) printf '%s: looked for' "$name" ;;
            esac ;;
    esac
}

clear_line() { [ ! -t 2 ] || printf '\r\033[K' >&2; }

show_jobs() {
    local line=
    for name in packages build; do
        [ -z "${jobs[$name]-}" ] || line+="${line:+; }$(progress_of $name)"
    done
    line+=" ($((SECONDS - begun)) s)"
    if [ -t 2 ]; then
        printf '\r  %.*s\033[K' "$(($(tput cols 2>/dev/null || echo 80) - 3))" "$line" >&2
    elif [ $((SECONDS - shown)) -ge 10 ]; then
        shown=$SECONDS
        step "$line"
    fi
}

# Installs and builds, until both are done or one has failed.
do_jobs() { # is-to-be-built compiler's-packages other-packages
    local name status begun=$SECONDS shown=$SECONDS is_pending=$1
    # A job of a script does not hear Ctrl-C.
    [ -n "$(trap -p INT)" ] || trap 'end_jobs; exit 130' INT
    [ -n "$(trap -p TERM)" ] || trap 'end_jobs; exit 143' TERM HUP
    work=$(mktemp -d "${TMPDIR:-/tmp}/yorozu.XXXXXX") || die "cannot make a folder below ${TMPDIR:-/tmp}"
    [ -n "$2" ] || : >"$work/compiler"
    [ -z "$2" ] || step "installing $(echo $2)"
    [ -z "$3" ] || step "installing $(echo $3)"
    [ -z "$2$3" ] || start_job packages get_packages "$work" "$2" "$3"
    while :; do
        if [ -n "$is_pending" ] && { [ -z "$2" ] || [ -e "$work/compiler" ]; }; then
            is_pending=
            is_rust_recent rustc ||
                fail_jobs "$old_rust, Debian's rustc-web is older: install it from rust-lang.org"
            step "building yorozu$([ -x "$built" ] || echo ', which takes some minutes the first time')"
            start_job build env CARGO_TERM_PROGRESS_WHEN=always CARGO_TERM_PROGRESS_WIDTH=120 CARGO_TERM_COLOR=never \
                bash -c 'here=$1; . "$here/stack/lib.sh"; compile --bin yorozu' bash "$here"
        fi
        for name in "${!jobs[@]}"; do
            kill -0 "${jobs[$name]}" 2>/dev/null && continue
            wait "${jobs[$name]}"
            status=$?
            unset "jobs[$name]"
            [ $status -eq 0 ] || fail_jobs "$(fault "$name")"
        done
        [ ${#jobs[@]} -gt 0 ] || [ -n "$is_pending" ] || break
        show_jobs
        sleep 0.2
    done
    clear_line
    rm -rf "$work"
    work=
}

fail_jobs() { # words
    # What they said stays for readers.
    work=
    end_jobs
    die "$1"
}

needs_root() { # words
    is_root || die "$1"
}

install_packages() {
    command -v dpkg-query >/dev/null || die "this needs Debian's packages (dpkg-query was not found)"
    local missing
    missing=$(missing_packages | xargs)
    [ -z "$missing" ] && return
    needs_root "packages are missing: run as root: apt-get install $missing"
    do_jobs '' '' "$missing"
}

old_rust="Rust 1.$rust_minimum or newer is needed"

find_rust() {
    has_rust && return
    needs_root "$old_rust: run as root: apt-get install $compiler_packages"
    do_jobs '' "$compiler_packages" ''
    is_rust_recent rustc || die "$old_rust, Debian's rustc-web is older: install it from rust-lang.org"
}

# YOROZU names a binary that is there already; without it one is to be built (0).
choose_yorozu() {
    yorozu=${YOROZU:-$built}
    [ -x "$yorozu" ] || [ -z "${YOROZU:-}" ] ||
        die "YOROZU is \"$yorozu\": the path of an executable file was expected"
    [ -z "${YOROZU:-}" ] && { has_rust || ! is_built; }
}

find_yorozu() {
    choose_yorozu || return 0
    find_rust
    do_jobs 1 '' ''
}

# Both halves of what a first start waits for.
prepare() {
    local compiler= missing to_build=
    command -v dpkg-query >/dev/null || die "this needs Debian's packages (dpkg-query was not found)"
    missing=$(missing_packages | xargs)
    if choose_yorozu; then
        to_build=1
        has_rust || compiler=$compiler_packages
    fi
    [ -z "$missing" ] || needs_root "packages are missing: run as root: apt-get install $(echo $compiler $missing)"
    [ -z "$compiler" ] || needs_root "$old_rust: run as root: apt-get install $compiler"
    [ -z "$to_build$missing" ] || do_jobs "$to_build" "$compiler" "$missing"
}
