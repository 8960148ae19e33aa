"""What of others is in the program: their licences (DEP-5) and a bill of materials (CycloneDX)."""
import datetime, json, pathlib, re, subprocess, tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = 'x86_64-unknown-linux-gnu'
# Files of a crate that a licence may stand in.
LICENCES = ('LICENSE', 'LICENCE', 'COPYING', 'UNLICENSE', 'COPYRIGHT', 'NOTICE')
# Those that Debian has.
WORDS = {
    'CC0-1.0': 'Dedicated to the public domain: /usr/share/common-licenses/CC0-1.0 on Debian systems.',
    'Apache-2.0': 'On Debian systems the whole text is in /usr/share/common-licenses/Apache-2.0.',
}


def cargo(*words):
    return subprocess.run(['cargo', *words], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def used():
    """The crates of others that are compiled into the program, by name and version, each as cargo describes it."""
    # What runs while it is built is in it, too: macros and build scripts write code.
    tree = cargo('tree', '--locked', '--package', 'yorozu', '--target', TARGET, '--edges', 'normal,build', '--prefix', 'none',
                 '--format', '{p}')
    wanted = {tuple(line.split()[:2]) for line in tree.splitlines() if line}
    metadata = json.loads(cargo('metadata', '--locked', '--format-version', '1', '--filter-platform', TARGET))
    crates = [one for one in metadata['packages'] if one['source'] and (one['name'], f'v{one["version"]}') in wanted]
    return sorted(crates, key=lambda one: (one['name'], one['version']))


def texts(crate):
    """The files of a crate that say its licence."""
    folder = pathlib.Path(crate['manifest_path']).parent
    return [path for path in sorted(folder.rglob('*')) if path.is_file() and path.name.upper().startswith(LICENCES)
            and path.suffix not in ('.rs', '.go', '.py', '.h')]


def copyrights(crate):
    """The lines in which its authors say so."""
    found = []
    for path in texts(crate):
        for line in path.read_text(errors='replace').splitlines():
            line = line.strip(' #*/').replace('\t', ' ')
            if re.match(r'(Copyright|\(c\)|©) .*(\d{4}|\w+@)', line, re.I) and 'yyyy' not in line and line not in found:
                found.append(line)
    return found or [f'{one}' for one in crate['authors']] or [f'the authors of {crate["name"]}']


def expression(crate):
    return (crate['license'] or 'see its files').replace('/', ' OR ')


def licence_texts(crates):
    """Texts of licences that files of the crates hold, by name."""
    found = dict(WORDS)
    marks = {'MIT': 'Permission is hereby granted, free of charge', 'ISC': 'Permission to use, copy, modify, and',
             'BSD-3-Clause': 'Redistribution and use in source and binary forms', 'Zlib': "This software is provided 'as-is'",
             'Unicode-3.0': 'UNICODE LICENSE V3', 'Unlicense': 'This is free and unencumbered software'}
    for crate in crates:
        for name, mark in marks.items():
            if name in found or name not in expression(crate):
                continue
            for path in texts(crate):
                text = path.read_text(errors='replace')
                if mark in text and len(text) < 6000:
                    found[name] = text[text.index(mark):]
                    break
    return found


def as_field(text):
    """A text as a field of several lines takes it: an empty line is a dot."""
    return '\n'.join(f' {line.rstrip()}' if line.strip() else ' .' for line in text.strip().splitlines())


def copyright_file():
    """debian/copyright of the program."""
    crates = used()
    out = ['Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: yorozu\n'
           'Comment: the stanzas of cargo/NAME are of the crates that are compiled into the program.',
           'Files: *\nCopyright: 2026 the authors of yorozu\nLicense: Apache-2.0 or Expat']
    names = {'Apache-2.0', 'MIT'}
    for crate in crates:
        said = expression(crate)
        names |= set(re.findall(r'[A-Z][\w.-]+', said)) - {'OR', 'AND', 'WITH', 'LLVM-exception'}
        lines = '\n           '.join(copyrights(crate))
        short = re.sub(r'\b(OR|AND|WITH)\b', lambda word: word[1].lower(), re.sub(r'[()]', '', said))
        short = re.sub(r'\bMIT\b(?!-)', 'Expat', short)
        out.append(f'Files: cargo/{crate["name"]}-{crate["version"]}/*\nCopyright: {lines}\nLicense: {short}')
    known = licence_texts(crates)
    for name in sorted(names):
        words = known.get(name, f'Its text is at https://spdx.org/licenses/{name}.html; each crate has it.')
        out.append(f'License: {"Expat" if name == "MIT" else name}\n{as_field(words)}')
    return '\n\n'.join(out) + '\n'


def bill(version, seconds):
    """A bill of materials: CycloneDX 1.5, as JSON."""
    checksums = {(one['name'], one['version']): one.get('checksum')
                 for one in tomllib.loads((ROOT / 'Cargo.lock').read_text())['package']}
    components = []
    for crate in used():
        name, number = crate['name'], crate['version']
        one = {'type': 'library', 'name': name, 'version': number, 'purl': f'pkg:cargo/{name}@{number}', 'bom-ref': f'{name}@{number}',
               'licenses': [{'expression': expression(crate)}]}
        if checksum := checksums.get((name, number)):
            one['hashes'] = [{'alg': 'SHA-256', 'content': checksum}]
        components.append(one)
    moment = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime('%Y-%m-%dT%H:%M:%SZ')
    return json.dumps({'bomFormat': 'CycloneDX', 'specVersion': '1.5', 'version': 1, 'metadata': {
        'timestamp': moment, 'component': {'type': 'application', 'name': 'yorozu', 'version': version, 'bom-ref': 'yorozu'}},
        'components': components}, indent=1) + '\n'
