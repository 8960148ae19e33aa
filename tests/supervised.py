#!/usr/bin/env python3
"""Runs a command within a limit of time; no process that it began outlives it.

  tests/supervised.py SECONDS REPORT COMMAND ...

REPORT gets, as JSON, its outcome: its status, whether it was late, the seconds of CPU of all its processes, and which
of them it left behind. A signal ends the command, too. Its temporary files are in a folder that goes with it.
"""
import ctypes, json, os, pathlib, resource, shutil, signal, subprocess, sys, tempfile, time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 0x40000  # unshare(2), mount(2)
SIGNALS = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def processes():
    """Parent and command line of every process."""
    found = {}
    for folder in pathlib.Path('/proc').glob('[0-9]*'):
        try:
            parent = int((folder / 'stat').read_text().rpartition(')')[2].split()[1])
            found[int(folder.name)] = parent, (folder / 'cmdline').read_bytes().replace(b'\0', b' ').decode(errors='replace')
        except (OSError, ValueError):
            pass
    return found


def below(root):
    """The processes below one, and their command lines."""
    known, found, new = processes(), {}, {root}
    while new:
        new = {pid for pid, (parent, _) in known.items() if parent in new and pid not in found}
        found |= {pid: known[pid][1] for pid in new}
    return found


def mount_for_itself():
    """What this process and those it begins mount is seen by them alone, and goes with the last of them, however they end. Who
    may not have that may not mount either."""
    system = ctypes.CDLL(None)
    if system.unshare(CLONE_NEWNS) == 0:
        system.mount(None, b'/', None, MS_REC | MS_PRIVATE, None)


class Supervised:
    def __init__(self, seconds, command):
        # What loses its parent becomes this process's child, so that it can be found and ended.
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        mount_for_itself()
        # Short: names of sockets have 107 bytes. Other users' programs write there, too.
        self.temporary = tempfile.mkdtemp(prefix='yt.', dir='/tmp')
        os.chmod(self.temporary, 0o1777)
        self.status, self.is_late, self.left = None, False, []
        self.end = time.monotonic() + seconds
        self.child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True,
                                      env=os.environ | {'TMPDIR': self.temporary}, preexec_fn=self.as_before)

    @staticmethod
    def as_before():
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def reap(self):
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.child.pid:
                self.status = os.waitstatus_to_exitcode(status)

    def wait(self, end):
        """Until the command has ended; false if the time is up or a signal says that it shall end."""
        while self.status is None:
            left = end - time.monotonic()
            if left <= 0:
                return False
            came = signal.sigtimedwait(SIGNALS, left)
            if came and came.si_signo != signal.SIGCHLD:
                return False
            self.reap()
        return True

    def run(self):
        if not self.wait(self.end):
            self.is_late = time.monotonic() >= self.end
            # As Ctrl-C would: what it can tidy up itself, it shall.
            os.killpg(self.child.pid, signal.SIGINT)
            self.wait(time.monotonic() + 10)
        self.end_the_rest()
        shutil.rmtree(self.temporary, ignore_errors=True)

    def end_the_rest(self):
        patience = time.monotonic() + 1
        while found := below(os.getpid()):
            if time.monotonic() > patience:
                self.left = self.left or sorted(line[:120] for line in found.values() if line)
                for pid in found:
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass
            signal.sigtimedwait({signal.SIGCHLD}, 0.05)
            self.reap()


def main(seconds, report, *command):
    supervised = Supervised(float(seconds), command)
    supervised.run()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    pathlib.Path(report).write_text(json.dumps({
        'status': supervised.status, 'is_late': supervised.is_late, 'left': supervised.left,
        'cpu': used.ru_utime + used.ru_stime}))


if __name__ == '__main__':
    main(*sys.argv[1:])
