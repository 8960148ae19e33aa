#!/usr/bin/env python3
"""Which crate of the server may use which, and which of its files import one another in a circle.

    tests/walls.py         checks, and prints the largest circle
    tests/walls.py list    each circle with the imports that close it

Cargo itself refuses what a crate does not name. Here the crates' dependencies are compared with the table in
ARCHITECTURE.md, and circles of files are bounded: `CIRCLE` files at most, all in one folder. What breaks the second rule
is counted in `CROSSING`. Both numbers may only fall, and a change that makes one fall writes the lower one here.
"""
import pathlib, re, sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CRATES = ROOT / 'crates'
# Files in the largest circle; and circles that cross a folder.
CIRCLE, CROSSING = 6, 0

USE = re.compile(r'\buse\s+((?:crate|super|self)\b[^;]*);')
PATH = re.compile(r'\b(?:crate|super)(?:::\w+)+')
TESTS = re.compile(r'^#\[cfg\(test\)\]\n(?:#\[[^\n]*\n)*mod tests \{', re.M)


def module_of(file):
    """The module's path of a file, without `crate`: h2/mod.rs is (h2)."""
    parts = file.removesuffix('.rs').split('/')
    return tuple(parts[:-1] if parts[-1] in ('mod', 'lib', 'main') else parts)


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


def imports(crate):
    """Each file of a crate with the files it imports."""
    root = CRATES / crate / 'src'
    files = sorted(str(path.relative_to(root)) for path in root.rglob('*.rs'))
    by_module = {module_of(file): file for file in files}
    found = {}
    for file in files:
        text = re.sub(r'//[^\n]*', '', (root / file).read_text())
        tests = TESTS.search(text)
        text = text[:tests.start()] if tests else text
        paths = [path for use in USE.findall(text) for path in unfolded(use)]
        paths += PATH.findall(USE.sub('', text))
        found[file] = set()
        for path in paths:
            target = absolute(path, module_of(file))
            while target not in by_module and target:
                target = target[:-1]
            if target and by_module[target] != file:
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


def documented():
    """What ARCHITECTURE.md says each crate of the server may use of the others."""
    rows = re.findall(r'^\| `(\w+)` \| [^|]* \| ([^|]*) \|$', (ROOT / 'ARCHITECTURE.md').read_text(), re.M)
    return {crate: set(re.findall(r'`(\w+)`', words)) for crate, words in rows if (CRATES / crate).is_dir()}


def dependencies(crate):
    """The project's crates that a crate uses, but for tests."""
    text = (CRATES / crate / 'Cargo.toml').read_text().split('[dev-dependencies]')[0]
    return set(re.findall(r'^yorozu-(\w+)\.workspace', text, re.M))


def folder(file):
    """The folder of a crate that a file lies in; a file beside `lib.rs` lies in none."""
    return file.partition('/')[0] if '/' in file else ''


def main():
    wrong = largest = crossing = 0
    for crate in sorted(path.name for path in CRATES.iterdir() if path.is_dir()):
        if documented().get(crate) != dependencies(crate):
            print(f'walls: {crate} uses {sorted(dependencies(crate))}, ARCHITECTURE.md says '
                  f'{sorted(documented().get(crate, []))}')
            wrong = 1
        graph = imports(crate)
        for circle in circles(graph):
            if len(circle) < 2:
                continue
            largest = max(largest, len(circle))
            crosses = len({folder(file) for file in circle}) > 1
            crossing += crosses
            if sys.argv[1:] == ['list']:
                print(f'{crate}: {len(circle)} files{" that cross a folder" if crosses else ""}')
                for file in sorted(circle):
                    print(f'    {file} -> {" ".join(sorted(graph[file] & set(circle)))}')
    print(f'walls: the largest circle has {largest} files, {crossing} circles cross a folder')
    for what, now, kept in (('files in the largest circle', largest, CIRCLE), ('circles cross a folder', crossing, CROSSING)):
        if now > kept:
            print(f'walls: {now} {what}, {kept} are allowed (tests/walls.py list)')
            wrong = 1
        elif now < kept:
            print(f'walls: only {now} {what}: write that into tests/walls.py in place of {kept}')
            wrong = 1
    sys.exit(wrong)


main()
