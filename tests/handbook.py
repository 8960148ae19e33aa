"""What the pages of the handbook and the presets say, as tests take it."""
import re
from peers import ROOT


def blocks(path, heading=None):
    """The indented blocks of a page, or of what stands below one of its headings, each a text."""
    text = path.read_text()
    if heading:
        text = re.search(rf'^## {re.escape(heading)}$(.*?)(?=^## |\Z)', text, re.M | re.S)[1]
    found, block = [], []
    for line in text.splitlines() + ['.']:
        if line.startswith('    '):
            block.append(line[4:])
        elif line.strip() or not block:
            if block:
                found.append('\n'.join(block).strip())
            block = []
        else:
            block.append('')
    return found


def inlined(text):
    """A configuration with what it includes of the presets."""
    return re.sub(r'^(.*?)\binclude ([a-z_./-]+);', lambda found: found[1] + inlined((ROOT / 'presets' / found[2]).read_text()), text, flags=re.M)
