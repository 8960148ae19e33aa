#!/usr/bin/env python3
"""Writes what presets, plugin and documents say of cookies, from the one table of them: packaging/cookies.py"""
import pathlib, re

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / 'crates/server/src/config/cookies.txt'
PRESET, PLUGIN, LEARNED, PAGE = (ROOT / name for name in (
    'presets/visitor.conf', 'wordpress/yorozu/includes/class-personal.php', 'wordpress/yorozu/includes/class-cookies.php', 'docs/personal-cookies.md'))
# In the preset: how a cookie begins, wherever it stands in the header.
BEGIN = r'(^|;)\s*'
INTRODUCTION = '''# Personal cookies

Made by `packaging/cookies.py` from [the table](../crates/server/src/config/cookies.txt) that `yorozu -t` tries configurations with; not edited by hand.

A page that was generated for who has a *personal* cookie may be for that visitor alone: it must neither be stored nor be replaced by a stored one. `presets/visitor.conf` leaves these
visitors out, by all of the names below. `yorozu -t` looks which application a server is for, by the files in its `root` and in the folder above, else by the words in the configuration, and names
each of its cookies that no rule covers. An application that is not here needs a rule for its own session cookie: [what to write](cache.md#an-application-of-your-own).

A *harmless* cookie changes no page. Many visitors have it, and they must share pages all the same. A `*` stands for any text, `{hash}` for 32 hexadecimal digits.

'''


def applications():
    """[(name, [(kind, name of the cookie, what it is)])], in the order of the table."""
    found = []
    for line in TABLE.read_text().splitlines():
        if line.startswith(' '):
            kind, _, rest = line.strip().partition(' ')
            if kind not in ('files', 'words', 'shared'):
                found[-1][1].append((kind, *rest.split(maxsplit=1)))
        elif line and not line.startswith('#'):
            found.append((line, []))
    return found


def expression(name):
    """A name of the table as a regular expression. What PHP reads as "_" may be a space, a dot or "[" as well."""
    end = '' if name.endswith('*') else '='
    return name.removesuffix('*').replace('_', '.').replace('*', '[^=;]*').replace('{hash}', '[0-9a-f]{32}') + end


def row(expressions, before=''):
    text = '|'.join(expressions)
    return f'"~{BEGIN}{before}{text if len(expressions) == 1 else f"({text})"}" 1;'


def shared():
    """The applications whose pages say whether they differ by its cookies."""
    texts = re.split(r'^(?=\S)', TABLE.read_text(), flags=re.M)
    return [text.splitlines()[0] for text in texts if re.search(r'^ +shared$', text, re.M)]


def preset(is_shared):
    """The rows of a map, one for each application; of $is_known_visitor also one for names that begin with anything."""
    lines, seen, open_names, harmless = [], set(), {}, []
    for application, cookies in applications():
        harmless += [name for kind, name, _ in cookies if kind == 'harmless']
        if is_shared != (application in shared()):
            continue
        own = [name for kind, name, _ in cookies if kind != 'harmless' and name not in seen]
        seen.update(own)
        open_names.update({name: application for name in own if name.startswith('*')})
        own = [name for name in own if not name.startswith('*')]
        if own:
            lines += [f'# {application.split(" / ")[-1]}: {", ".join(own)}', row([expression(name) for name in own])]
    if is_shared:
        return ''.join(f'    {line}\n' for line in lines)
    ends = tuple(name[1:] for name in open_names)
    others = [expression(name) for name in harmless if name.endswith(('*', *ends)) and not name.startswith('_')]
    lines += [f'# By the end of the name, and no harmless one ({", ".join(dict.fromkeys(open_names.values()))}): {", ".join(open_names)}',
              # Not a space less: what follows would begin with it, and be none of the harmless ones.
              row([expression(end) for end in ends], f'+(?!_|{"|".join(others)})[^=;]*')]
    return ''.join(f'    {line}\n' for line in lines)


def plugin():
    """How the names of WordPress's cookies begin. Who starts sessions of PHP knows what pages take from them."""
    names = [name.removesuffix('*') for application, cookies in applications() if application.startswith('WordPress')
             for kind, name, _ in cookies if kind != 'harmless' and '{' not in name and name != 'PHPSESSID']
    return ''.join(f"\t\t'{name}',\n" for name in names)


def harmless():
    """Names of cookies that sites of WordPress have, and no page differs by."""
    names = [name for application, cookies in applications() if application.startswith('WordPress') or application == 'Any site'
             for kind, name, _ in cookies if kind == 'harmless']
    return ''.join(f"\t\t'{name}',\n" for name in names)


def page():
    rows = ['| application | cookie | | what it is |', '| --- | --- | --- | --- |']
    for application, cookies in applications():
        for kind, name, what in cookies:
            rows.append(f'| {application} | `{name}` | {"harmless" if kind == "harmless" else "personal"} | {what} |')
    return INTRODUCTION + '\n'.join(rows) + '\n'


def between(text, begin, end, new):
    """`text` with `new` between the lines that hold `begin` and `end`."""
    found = re.fullmatch(rf'(.*?{re.escape(begin)}[^\n]*\n).*?([^\n]*{re.escape(end)}.*)', text, re.S)
    return found[1] + new + found[2]


def texts():
    """What each file should be."""
    mark = 'packaging/cookies.py'
    text = PRESET.read_text()
    for begin, is_shared in (('map $http_cookie $is_known_visitor', False), ('map $http_cookie $is_shopper', True)):
        at = text.index(begin)
        text = text[:at] + between(text[at:], f'from here on by {mark}', f'to here by {mark}', preset(is_shared))
    return {
        PRESET: text,
        PLUGIN: between(PLUGIN.read_text(), 'const COOKIES = array(', '\t);', plugin()),
        LEARNED: between(LEARNED.read_text(), 'const HARMLESS = array(', '\t);', harmless()),
        PAGE: page(),
    }


if __name__ == '__main__':
    for path, text in texts().items():
        path.write_text(text)
