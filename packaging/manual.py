"""The manual pages: yorozu(8) and those of its commands as the program writes them, yorozu-directives(5) from its rows."""
import re, subprocess

HEAD = '.\\" Made by packaging/manual.py.\n.TH {name} {section} "{date}" "yorozu {version}" "{about}"\n.nh\n.ad l\n'
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
    done = subprocess.run([*program, *words], check=True, capture_output=True, text=True)
    return done.stdout or done.stderr


def commands(program, folder):
    """The files of yorozu(8) and of the pages of its commands, which the program writes itself."""
    folder.mkdir()
    subprocess.run([*program, 'man', folder], check=True)
    return sorted(folder.iterdir())


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
