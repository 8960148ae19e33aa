"""The manual pages: yorozu(8) from the program's own help, yorozu-directives(5) from its rows."""
import re, subprocess

HEAD = '.\\" Made by packaging/manual.py.\n.TH {name} {section} "{date}" "yorozu {version}" "{about}"\n.nh\n.ad l\n'
FILES = {
    '/etc/yorozu/nginx.conf': 'the configuration that the service serves',
    '/etc/default/yorozu': 'names another one, such as /etc/nginx/nginx.conf',
    '/usr/share/yorozu': 'sites and configurations to start from',
    '/var/log/yorozu': 'logs',
    '/var/cache/yorozu': 'stored pages',
    '/usr/share/doc/yorozu/docs': 'the handbook',
}
SIGNALS = {
    'HUP': 'reads the configuration again; a broken one is refused, and the one before stays',
    'USR1': 'opens the logs again',
    'QUIT': 'ends when what is under way is finished',
    'TERM, INT': 'ends at once',
    'USR2': 'starts the program again beside this one, with the same sockets',
    'WINCH': 'finishes, while the new program serves alone',
}
STATES = ('same', 'differs', 'no effect', 'refused', 'own')


def escaped(text):
    """Text as roff takes it."""
    text = text.replace('\\', '\\e').replace('-', '\\-').replace("'", '\\(aq').replace('`', '\\(ga').replace('^', '\\(ha').replace('~', '\\(ti')
    text = text.replace('…', '...').replace('“', '"').replace('”', '"').replace('×', 'x')
    return re.sub(r'^([.])', r'\\&\1', text, flags=re.M)


def marked(text):
    """A cell of Markdown: code is bold, stressed words are in italics."""
    out = ''
    for piece in re.split(r'(`[^`]+`|(?<![\w*])\*[^*]+\*(?!\w))', text.replace('\\|', '|')):
        if piece.startswith('`') and len(piece) > 1:
            out += f'\\fB{escaped(piece[1:-1])}\\fR'
        elif piece.startswith('*') and len(piece) > 2:
            out += f'\\fI{marked(piece[1:-1])}\\fR'
        else:
            out += escaped(piece)
    # A line that begins with a dot or a quote would be a command.
    return f'\\&{out}' if out[:1] in '.\'' or out.startswith('\\(aq') else out


def said_by(program, *words):
    done = subprocess.run([program, *words], check=True, capture_output=True, text=True)
    return done.stdout or done.stderr


def options(help_text):
    """The lines `  -c filename   : what` of a help, as paragraphs; a line without a colon goes on with the next one."""
    out, name = [], ''
    for line in help_text.splitlines():
        if not line.startswith('  ') or line.startswith('   ') and ':' not in line:
            continue
        before, colon, after = line.partition(' : ')
        name += before.strip()
        if colon:
            out.append(f'.TP\n\\fB{escaped(name)}\\fR\n{escaped(after.strip())}')
            name = ''
    return '\n'.join(out)


def paragraphs(table):
    return '\n'.join(f'.TP\n\\fB{escaped(name)}\\fR\n{escaped(text)}' for name, text in table.items())


def program(path, version, date):
    """yorozu(8)."""
    sections = [HEAD.format(name='YOROZU', section=8, date=date, version=version, about='System administration'),
                '.SH NAME\nyorozu \\- web server with a page cache that reads nginx.conf']
    usage = said_by(path, '-h')
    commands = list(dict.fromkeys(re.findall(r'^  ([a-z]+) ', usage, re.M)))
    synopsis = [usage.splitlines()[0]] + [said_by(path, word, '-h').splitlines()[0] for word in commands]
    lines = '\n.br\n'.join(escaped(line.removeprefix('Usage: ')) for line in synopsis)
    sections += [f'.SH SYNOPSIS\n{lines}',
                 '.SH DESCRIPTION\nServes sites as a configuration in the language of nginx says, PHP\\(aqs pages from a cache in memory and on '
                 'disk. Without one of the commands it starts the server.',
                 f'.SH OPTIONS\n{options(usage.partition("Options:")[2])}']
    for word in commands:
        text = said_by(path, word, '-h')
        about = ' '.join(line for line in text.splitlines()[1:] if line and not line.startswith(' ') and not line.endswith(':'))
        sections.append(f'.SH YOROZU {word.upper()}\n{escaped(about)}\n{options(text)}')
    sections += [f'.SH SIGNALS\n{paragraphs(SIGNALS)}', f'.SH FILES\n{paragraphs(FILES)}',
                 '.SH EXIT STATUS\n0, or 1 with the reason on standard error.',
                 '.SH SEE ALSO\n.BR yorozu\\-directives (5)']
    return '\n'.join(sections) + '\n'


def directives(path, version, date):
    """yorozu-directives(5)."""
    text = said_by(path, '--directives')
    out = [HEAD.format(name='YOROZU-DIRECTIVES', section=5, date=date, version=version, about='File formats'),
           '.SH NAME\nyorozu-directives \\- what stands in the configuration of yorozu',
           '.SH DESCRIPTION\nA directive does what nginx documents under its name, but for what is said here. Behind each name stand where it '
           'may stand and its default. One is the \\fBsame\\fR as in nginx, \\fBdiffers\\fR as its text says, has \\fBno effect\\fR, is '
           '\\fBrefused\\fR, or yorozu\\(aqs \\fBown\\fR.']
    for line in text.splitlines():
        if line.startswith('## '):
            out.append(f'.SH {escaped(line[3:].upper())}')
            continue
        cells = [cell.strip() for cell in re.split(r'(?<!\\)\|', line)[1:-1]]
        if len(cells) == 5 and cells[1] in STATES:
            name, beside, contexts, default, about = cells
            value = f'; default {marked(default)}' if default else ''
            out.append(f'.TP\n{marked(name)} \\(en {escaped(beside)}\n{marked(contexts)}{value}.\n.br\n{marked(about)}')
    return '\n'.join(out) + '\n\n.SH SEE ALSO\n.BR yorozu (8)\n'.replace('\n\n', '\n')
