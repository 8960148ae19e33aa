"""What a server costs: CPU time and memory of its whole process tree, from /proc."""
import os, pathlib, re

TICKS = os.sysconf('SC_CLK_TCK')


def process_tree(root):
    children = {}
    for entry in os.listdir('/proc'):
        if entry.isdigit():
            try:
                fields = pathlib.Path(f'/proc/{entry}/stat').read_text().rpartition(')')[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry))
    tree, todo = [], [root]
    while todo:
        pid = todo.pop()
        tree.append(pid)
        todo.extend(children.get(pid, []))
    return tree


def cpu_seconds(*roots):
    """User and system time of processes and all below them, threads included."""
    total = 0
    for pid in (pid for root in roots for pid in process_tree(root)):
        try:
            fields = pathlib.Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def resident_kilobytes(root):
    """Resident memory that belongs to a process tree alone: what processes share is counted once."""
    total = 0
    for pid in process_tree(root):
        try:
            rollup = pathlib.Path(f'/proc/{pid}/smaps_rollup').read_text()
        except OSError:
            continue
        total += int((re.search(r'Pss:\s+(\d+)', rollup) or [0, 0])[1])
    return total


def open_files(root):
    """File descriptors of a process tree."""
    count = 0
    for pid in process_tree(root):
        try:
            count += len(os.listdir(f'/proc/{pid}/fd'))
        except OSError:
            continue
    return count
