# The site's processes: started, watched, started again, ended. Sourced by stack/run; needs $data.

names=()                # in the order they were started
declare -A commands     # quoted, as eval reads them
declare -A sockets_of   # where it listens; empty for a port
declare -A ports        # the port, if that is where it listens
declare -A shows        # whether the terminal has what it says
declare -A pids born    # of its last start
declare -A due          # when it is started again; empty while it runs
declare -A pauses       # how long it waited for that
declare -A away_since   # when it fell; empty once it answers
longest_pause=60        # seconds; a process that was well for as long begins at the shortest again
terminal=2

say() { printf 'make run: %s\n' "$*" >&$terminal; }

# --- start and end -----------------------------------------------------------------------------

start() { # name socket-or-nothing command...
    local name=$1 socket=$2
    shift 2
    names+=("$name")
    commands[$name]=${*@Q}
    sockets_of[$name]=$socket
    pauses[$name]=0 due[$name]= away_since[$name]=
    spawn "$name"
}

spawn() { # name
    local name=$1
    # One of a killed process would pass for the new one's.
    [ -z "${sockets_of[$name]}" ] || rm -f "${sockets_of[$name]}"
    # Last words are this process's.
    : >"$data/log/$name.out"
    # A new session: Ctrl-C reaches this script alone, which ends them in order.
    if [ -n "${shows[$name]-}" ]; then
        eval "exec setsid ${commands[$name]}" >&$terminal 2>&$terminal </dev/null 9>&- 8>&- &
    else
        eval "exec setsid ${commands[$name]}" >>"$data/log/$name.out" 2>&1 </dev/null 9>&- 8>&- &
    fi
    pids[$name]=$!
    born[$name]=$SECONDS
    echo "${pids[$name]}" >"$data/$name.pid"
}

is_alive() { kill -0 "$1" 2>/dev/null; }

last_words() { # name
    tail -n 1 "$data/log/$1.out"
}

wait_for() { # name seconds command...
    local name=$1 seconds=$2
    shift 2
    local end=$((SECONDS + seconds))
    until "$@" >/dev/null 2>&1; do
        is_alive "${pids[$name]}" || die "$name ended at once: $(last_words "$name")"
        [ $SECONDS -lt $end ] || die "$name did not answer within $seconds s: $(last_words "$name")"
        sleep 0.05
    done
}

stop_all() {
    trap '' INT TERM HUP
    trap - EXIT
    local index pid name
    [ ${#names[@]} -gt 0 ] && step "stopping"
    for ((index = ${#names[@]} - 1; index >= 0; index--)); do
        name=${names[index]}
        pid=${pids[$name]}
        if [ -z "${due[$name]}" ]; then
            kill -TERM "$pid" 2>/dev/null
            for _ in $(seq 600); do is_alive "$pid" || break; sleep 0.05; done
        fi
        # Its whole group: what it leaves, too.
        kill -KILL -- "-$pid" 2>/dev/null
        wait "$pid" 2>/dev/null
        rm -f "$data/$name.pid"
    done
    names=()
}

# --- supervision -------------------------------------------------------------------------------

# Keeps every process running until a signal ends the script. It looks instead of awaiting children's ends, so
# that nothing it does meanwhile can make it miss one.
supervise() {
    local nothing name ending=
    # The shell's own notices of killed children would stand between the lines for the owner.
    terminal=8
    exec 8>&2 2>>"$data/log/run.out"
    exec {nothing}<> <(:)
    # A reader of the lines that leaves (`make run | head`) does not end the site.
    trap : PIPE
    # bash's `read -t` leaves a longer trap halfway.
    trap 'ending=130' INT
    trap 'ending=143' TERM HUP
    while [ -z "$ending" ]; do
        for name in "${names[@]}"; do
            look_after "$name"
        done
        look_at_disk
        # Sleeps without a process for it.
        read -rt 0.2 -u "$nothing"
    done
    exit "$ending"
}

look_after() { # name
    local name=$1
    if [ -n "${due[$name]}" ]; then
        [ $SECONDS -lt "${due[$name]}" ] || start_again "$name"
    elif ! is_alive "${pids[$name]}"; then
        plan_restart "$name"
    elif [ -n "${away_since[$name]}" ] && answers "$name"; then
        say "$name answers again, after $((SECONDS - away_since[$name])) s"
        away_since[$name]=
    fi
}

plan_restart() { # name
    local name=$1 pid=${pids[$1]} words pause=1
    wait "$pid"
    local status=$?
    words=$(last_words "$name")
    if [ $((SECONDS - born[$name])) -lt $longest_pause ] && [ "${pauses[$name]}" -gt 0 ]; then
        pause=$(between 1 $((pauses[$name] * 2)) $longest_pause)
    fi
    pauses[$name]=$pause
    due[$name]=$((SECONDS + pause))
    : "${away_since[$name]:=$SECONDS}"
    kill -KILL -- "-$pid" 2>/dev/null
    say "$name died ($(cause "$status")), it is started again in $pause s; its last words: ${words:-none}"
}

cause() { # status
    local signal
    if [ "$1" -gt 128 ] && signal=$(kill -l "$1" 2>/dev/null); then
        echo "signal $signal"
    else
        echo "status $1"
    fi
}

start_again() { # name
    due[$1]=
    spawn "$1"
}

answers() { # name
    if [ -n "${sockets_of[$1]}" ]; then
        [ -S "${sockets_of[$1]}" ]
    else
        (: <>"/dev/tcp/127.0.0.1/${ports[$1]}") 2>/dev/null
    fi
}

# --- the disk ----------------------------------------------------------------------------------

disk_is_full=
disk_looked_at=0

# What is left for users other than root, as MariaDB and PHP are. By a file: a signal that comes while bash reads a
# substitution may be lost.
is_disk_full() {
    local blocks size
    stat -f -c '%a %S' "$data" >"$sockets/disk" && read -r blocks size <"$sockets/disk" && [ $((blocks * size)) -lt 1048576 ]
}

# With a full disk the site goes on: stored pages are served, MariaDB refuses what it cannot write. To end it
# would save nothing, and take the pages away that are in memory alone.
look_at_disk() {
    [ $((SECONDS - disk_looked_at)) -ge 5 ] || return
    disk_looked_at=$SECONDS
    if is_disk_full; then
        [ -n "$disk_is_full" ] ||
            say "the disk of $data is full: stored pages are served, WordPress cannot write"
        disk_is_full=1
    elif [ -n "$disk_is_full" ]; then
        say "the disk of $data has space again"
        disk_is_full=
    fi
}
