"""`yorozu serve` of a folder, for the tests."""
import contextlib, os, pathlib, subprocess
from peers import SECONDS, YOROZU, command_of, free_port, until


class Served:
    """`yorozu serve` of a folder; it ends with its `with` block."""

    def __init__(self, base, site, *options, program=YOROZU, env=(), **more):
        self.base, self.out = base, base / f'out-{free_port()}'
        self.port = free_port()
        own = [] if {'--listen', '--domain'} & set(options) and '--tls' not in options else ['--port', str(self.port)]
        environment = os.environ | {'XDG_STATE_HOME': str(base / 'state'), **dict(env)}
        self.process = subprocess.Popen([program, 'serve', str(site), *own, *options], stdin=subprocess.DEVNULL, stdout=open(self.out, 'w'), stderr=subprocess.STDOUT, env=environment, **more)

    def __enter__(self):
        until('its address', lambda: 'Ctrl-C ends it' in self.told() or self.process.poll() is not None, told=self.told)
        assert self.process.poll() is None, self.told()
        return self

    def told(self):
        return self.out.read_text()

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(SECONDS)

    def children(self, of=None):
        """Its processes, and those of theirs."""
        found, of = [], of or self.process.pid
        for entry in pathlib.Path('/proc').iterdir():
            with contextlib.suppress(OSError, ValueError):
                stat = (entry / 'stat').read_text().rsplit(')', 1)[1].split()
                if int(stat[1]) == of and stat[0] != 'Z':
                    found += [int(entry.name), *self.children(int(entry.name))]
        return found

    def fpm(self):
        return next(pid for pid in self.children() if 'php-fpm: master' in command_of(pid))
