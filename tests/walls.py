#!/usr/bin/env python3
"""Which room of the server may import which.

    tests/walls.py         checks, and prints how many files break the rules
    tests/walls.py list    each import that breaks them

A room is a set of files. The arrows between rooms that the house should have are in `MAY_IMPORT`. What
breaks them today is counted, file to file, in `BROKEN`; so are the files that import one another in a
circle. Both numbers may only fall, and whoever makes one fall writes the lower one here.
"""
import pathlib, re, sys

ROOT = pathlib.Path(__file__).resolve().parent.parent / 'crates/server/src'

# A file's room is that of the first pattern which matches its path.
ROOMS = [
    (r'^lib\.rs$|^testing\.rs$|^find_config/|^(filters|phases|handlers|config)/mod\.rs$', 'assembly'),
    (r'^config/(block|check|compiled|cycles|findings|load|manual|registry|shared_sockets|tests|unsupported|visitors)\.rs$',
     'assembly'),
    (r'^(process|control)/', 'assembly'),
    (r'^(connection|tls|listen)/', 'connection'),
    (r'^cache/|^handlers/(gateway|fastcgi|proxy|memcached|upstream)/', 'gateway'),
    (r'^(phases|filters|handlers)/|^logging/access\.rs$', 'modules'),
    (r'^(faults|limits|tasks)\.rs$|^(config|exchange|logging)/', 'kernel'),
]
MAY_IMPORT = {
    'kernel': set(),
    'modules': {'kernel'},
    'gateway': {'kernel'},
    'connection': {'kernel'},
    'assembly': {'kernel', 'modules', 'gateway', 'connection'},
}
# Imports, file to file, that break the table; and files in the largest circle.
BROKEN, CIRCLE = 203, 114

USE = re.compile(r'\buse\s+((?:crate|super|self)\b[^;]*);')
PATH = re.compile(r'\b(?:crate|super)(?:::\w+)+')
TESTS = re.compile(r'^#\[cfg\(test\)\]\n(?:#\[[^\n]*\n)*mod tests \{', re.M)


def room_of(file):
    return next(room for pattern, room in ROOMS if re.search(pattern, file))


def module_of(file):
    """The module's path of a file, without `crate`: connection/h2/mod.rs is (connection, h2)."""
    parts = file.removesuffix('.rs').split('/')
    return tuple(parts[:-1] if parts[-1] in ('mod', 'lib') else parts)


def unfolded(tree):
    """The paths of a use tree: `a::{b, c::{d, self}}` is a::b, a::c::d and a::c."""
    tree = tree.strip()
    head, brace, rest = tree.partition('{')
    if not brace:
        yield re.sub(r'\s+as\s+\w+$', '', tree).replace(' ', '')
        return
    depth, piece = 0, ''
    for letter in rest[:rest.rindex('}')] + ',':
        if letter == ',' and depth == 0:
            if piece.strip():
                yield from ((head.strip() + path).removesuffix('::self') for path in unfolded(piece))
            piece = ''
        else:
            depth += {'{': 1, '}': -1}.get(letter, 0)
            piece += letter


def absolute(path, module):
    names = path.split('::')
    at = list(module)
    if names[0] == 'crate':
        at, names = [], names[1:]
    elif names[0] == 'self':
        names = names[1:]
    while names and names[0] == 'super':
        at, names = at[:-1], names[1:]
    return tuple(at + names)


def imports():
    """Each file with the files it imports."""
    files = sorted(str(path.relative_to(ROOT)) for path in ROOT.rglob('*.rs'))
    by_module = {module_of(file): file for file in files}
    found = {}
    for file in files:
        text = re.sub(r'//[^\n]*', '', (ROOT / file).read_text())
        tests = TESTS.search(text)
        text = text[:tests.start()] if tests else text
        paths = [path for use in USE.findall(text) for path in unfolded(use)]
        paths += PATH.findall(USE.sub('', text))
        found[file] = set()
        for path in paths:
            target = absolute(path, module_of(file))
            while target not in by_module and target:
                target = target[:-1]
            if by_module[target] != file:
                found[file].add(by_module[target])
    return found


def circles(graph):
    """The strongly connected parts, largest first (Tarjan)."""
    number, low, stack, parts = {}, {}, [], []

    def visit(node):
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in graph[node]:
            if other not in number:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], number[other])
        if low[node] == number[node]:
            at = stack.index(node)
            parts.append(stack[at:])
            del stack[at:]

    sys.setrecursionlimit(10_000)
    for node in graph:
        if node not in number:
            visit(node)
    return sorted(parts, key=len, reverse=True)


def main():
    graph = imports()
    broken = [(file, other) for file, others in graph.items() for other in sorted(others)
              if room_of(other) != room_of(file) and room_of(other) not in MAY_IMPORT[room_of(file)]]
    if sys.argv[1:] == ['list']:
        for file, other in broken:
            print(f'{room_of(file)} -> {room_of(other)}: {file} imports {other}')
    circle = len(circles(graph)[0])
    print(f'walls: {len(broken)} imports break them, the largest circle has {circle} files')
    wrong = 0
    for what, now, kept in (('imports that break the walls', len(broken), BROKEN),
                            ('files in the largest circle', circle, CIRCLE)):
        if now > kept:
            print(f'walls: {now} {what}, {kept} are allowed (tests/walls.py list)')
            wrong = 1
        elif now < kept:
            print(f'walls: only {now} {what}: write that into tests/walls.py in place of {kept}')
            wrong = 1
    sys.exit(wrong)


main()
