"""What some tests need of PyPI, where Debian has nothing: fetched once, into target."""
import fcntl, pathlib, subprocess, sys

PLACE = pathlib.Path(__file__).resolve().parent.parent / f'target/python-{sys.version_info[0]}.{sys.version_info[1]}'
# QUIC and HTTP/3 of another making, with QPACK's dynamic table; a client of it may break every rule.
AIOQUIC = 'aioquic==1.7.2'


def need_aioquic():
    """Why there is no aioquic; nothing if there is."""
    # Before the versions that Debian has of what it needs.
    sys.path.insert(0, str(PLACE))
    # Written last.
    whole = PLACE / AIOQUIC
    if whole.exists():
        return None
    PLACE.mkdir(parents=True, exist_ok=True)
    # Others may want it at the same moment.
    with open(PLACE / 'lock', 'w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if whole.exists():
            return None
        done = subprocess.run([sys.executable, '-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', '--target',
                               PLACE, AIOQUIC], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode == 0:
            whole.touch()
            return None
    return f'{AIOQUIC} cannot be installed: {" ".join(done.stderr.split())[-300:]}'
