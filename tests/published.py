"""A site as the published configurations have it: a folder, PHP and certificates, asked by curl."""
import subprocess
from peers import ROOT

PARAMS = ROOT / 'presets/fastcgi_params'


class Site:
    """Certificates, a folder and PHP, as every configuration here has them."""

    def __init__(self, folder):
        self.folder, self.www = folder, folder / 'www'
        self.www.mkdir()
        folder.chmod(0o755)
        subprocess.run(['openssl', 'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256',
                        '-nodes', '-days', '2', '-subj', '/CN=localhost', '-keyout', folder / 'key',
                        '-out', folder / 'crt'], check=True, capture_output=True)
        (self.www / 'index.php').write_text('''<?php
            if (isset($_GET['cookie'])) setcookie('tracking', 'abc');
            if (isset($_GET['dies'])) { http_response_code(500); exit; }
            header('Cache-Control: no-cache'); header('X-Made: php');
            echo 'made ', hrtime(true), ' for ', $_COOKIE['wordpress_logged_in_x'] ?? 'everybody';''')
        for name, text in {'style.css': 'body{}' * 400, 'image.png': 'image', 'page.txt': 'text'}.items():
            (self.www / name).write_text(text)


class Answer:
    def __init__(self, head, body):
        lines = head.replace('\r', '').strip().split('\n')
        self.status, self.version, self.body = int(lines[0].split()[1]), lines[0].split()[0], body
        self.fields = {}
        for line in lines[1:]:
            name, _, value = line.partition(': ')
            self.fields.setdefault(name.lower(), []).append(value)

    def field(self, name):
        return ', '.join(self.fields.get(name, [])) or None


def ask(folder, url, *options):
    head = folder / 'head'
    done = subprocess.run(['curl', '-sk', '--max-time', '60', '-D', head, *map(str, options), url],
                          capture_output=True)
    assert done.returncode == 0, f'{url}: {done.returncode} {done.stderr}'
    return Answer(head.read_bytes().decode('latin-1').split('\r\n\r\n')[-2], done.stdout)
