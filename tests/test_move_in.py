"""docs/page-cache.md, by its own commands but for those of apt and systemd: a site of Debian's nginx with a certificate of certbot's gets a page cache, and goes back."""
import os, pathlib, re, select, shutil, subprocess, sys
import pytest
from handbook import blocks
from issuer import Issuer
from peers import NGINX, ROOT, YOROZU, Fpm, equal, until

PAGE = ROOT / 'docs/page-cache.md'
COPY = pathlib.Path('/etc/yorozu/site')
NAME, OTHER = 'www.example.com', 'example.com'
SITE = f'''server {{
    listen 80;
    listen [::]:80;
    server_name {OTHER} {NAME};
    root /var/www/shop;
    index index.php;
    location / {{ try_files $uri $uri/ /index.php?$args; }}
    location ~ \\.php$ {{
        include snippets/fastcgi-php.conf;
        fastcgi_pass unix:/run/php/php.sock;
    }}
}}
'''
# Who is logged in sees their name; what the page says is in a file.
SCRIPT = '''<?php
if (isset($_GET['track'])) setcookie('visit', '1');
echo $_SERVER['HTTPS'] ?? 'plain', ' ', file_get_contents('/var/www/text'), ' ', $_COOKIE['wordpress_logged_in_x'] ?? 'all';
'''
# What the package's unit does where systemd runs; here it does not.
SYSTEMCTL = '''#!/bin/sh
. /etc/default/yorozu
case "$*" in
"disable --now nginx") nginx -s quit; while [ -e /run/nginx.pid ]; do sleep 0.05; done ;;
"disable --now yorozu") /usr/lib/yorozu/signal QUIT; while [ -e /run/nginx.pid ]; do sleep 0.05; done ;;
"enable --now nginx") nginx ;;
"enable --now yorozu") yorozu -c "$CONF" ;;
"reload yorozu") /usr/lib/yorozu/signal HUP ;;
*) echo "systemctl $*: not known" >&2; exit 1 ;;
esac
'''


def sh(script):
    done = subprocess.run(['bash', '-e', '-o', 'pipefail', '-c', script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, f'{script}\n{done.stdout}'
    return done.stdout


def ask(path='/', *words):
    """Status of the cache, and the page."""
    told = sh(f'curl -s --cacert /run/root.pem -D /run/head https://{NAME}{path} {" ".join(words)}; echo; grep -i ^cache-status /run/head || true')
    page, _, status = told.partition('\n')
    return page, status.strip().partition(': ')[2]


def error_log():
    return pathlib.Path('/var/log/nginx/error.log').read_text()


def edit(change):
    file = COPY / 'sites-enabled/shop'
    text = change(file.read_text())
    assert text != file.read_text()
    file.write_text(text)


@pytest.mark.skipif(os.geteuid() != 0, reason='needs root for a machine of its own')
@pytest.mark.skipif(not shutil.which('certbot'), reason='certbot is not here')
def test_a_site_moves_in_and_could_leave(tmp_path):
    done = subprocess.run(['unshare', '--net', '--mount', '--pid', '--fork', '--kill-child', '--mount-proc', sys.executable, '-B', __file__, str(tmp_path)], capture_output=True, text=True, env=os.environ | {'YOROZU': YOROZU})
    assert done.returncode == 0, done.stdout + done.stderr


def machine(base):
    """This machine, but for its network and its processes; its changes are in a folder of memory, and end with it."""
    sh(f'ip link set lo up; mount -t tmpfs tmpfs {base}; mount -t tmpfs tmpfs /run')
    for name in ('etc', 'var', 'usr'):
        sh(f'mkdir -p {base}/{name}/upper {base}/{name}/work; mount -t overlay overlay -o lowerdir=/{name},upperdir={base}/{name}/upper,workdir={base}/{name}/work /{name}')
    pathlib.Path('/etc/hosts').write_text(f'127.0.0.1 localhost {NAME} {OTHER}\n')


def package():
    """What the package installs."""
    shutil.rmtree('/etc/yorozu', ignore_errors=True)
    for part in ('etc', 'usr'):
        shutil.copytree(ROOT / 'packaging/yorozu' / part, f'/{part}', dirs_exist_ok=True)
    for path in filter(pathlib.Path.is_file, (ROOT / 'presets').iterdir()):
        shutil.copy(path, '/etc/yorozu')
    pathlib.Path('/var/cache/yorozu').mkdir(exist_ok=True)
    shutil.copy(YOROZU, '/usr/sbin/yorozu')
    systemctl = pathlib.Path('/usr/local/bin/systemctl')
    systemctl.write_text(SYSTEMCTL)
    systemctl.chmod(0o755)


def site_of_nginx(base, issuer):
    """As Debian and certbot leave it."""
    pathlib.Path('/var/www/shop').mkdir(parents=True, exist_ok=True)
    pathlib.Path('/var/www/shop/index.php').write_text(SCRIPT)
    pathlib.Path('/var/www/text').write_text('first')
    for old in pathlib.Path('/etc/nginx/sites-enabled').iterdir():
        old.unlink()
    pathlib.Path('/etc/nginx/sites-available/shop').write_text(SITE)
    os.symlink('/etc/nginx/sites-available/shop', '/etc/nginx/sites-enabled/shop')
    sh(NGINX)
    os.environ['REQUESTS_CA_BUNDLE'] = str(issuer.certificate)
    sh(f'certbot --nginx --non-interactive --agree-tos -m ann@{NAME} --server https://localhost:{issuer.port}/dir -d {NAME} -d {OTHER} --redirect')
    shutil.copy(issuer.root(), '/run/root.pem')


def renew():
    """Has the certificate renewed; whether that is the one that is shown."""
    sh('certbot renew --force-renewal --non-interactive --no-random-sleep-on-renew')
    serial = lambda of: sh(f'{of} | openssl x509 -noout -serial')
    file = serial(f'cat /etc/letsencrypt/live/{NAME}/cert.pem')
    until('the new certificate', lambda: serial(f'openssl s_client -connect {NAME}:443 -servername {NAME} </dev/null 2>/dev/null') == file)


def move_in(base):
    machine(base)
    sockets = pathlib.Path('/run/php')
    sockets.mkdir()
    with Issuer(base, 80, 443) as issuer, Fpm(sockets):
        site_of_nginx(base, issuer)
        equal(ask()[0], 'on first all')
        before = sh('find /etc/nginx -type f | sort | xargs sha256sum')

        package()
        sh(blocks(PAGE, 'Copy the configuration')[0].replace('apt install ./yorozu_*.deb', 'true'))
        conf, mode, lines, switch = blocks(PAGE, 'Add the cache')
        # As it says: the site's own names.
        (COPY / 'conf.d/page-cache.conf').write_text(conf.replace(f'server_name {NAME};', f'server_name {OTHER} {NAME};'))
        sh(mode)
        edit(lambda text: text.replace('root /var/www/shop;', f'root /var/www/shop;\n{lines}', 1))
        told = sh(switch)
        warned = [line for line in told.splitlines() if '[warn]' in line and 'ssl_protocols' not in line]
        equal(warned, [], 'what -t says of the page as it stands')

        # Nothing comes from the cache, and what would have is known.
        assert ask()[1].endswith('stored'), ask()
        equal(ask(), ('on first all', 'yorozu; fwd=bypass; fwd-status=200; detail=dry-run'))
        assert 'dry run' not in error_log()
        pathlib.Path('/var/www/text').write_text('second')
        equal(ask()[0], 'on second all')
        equal(ask('/', '-b wordpress_logged_in_x=ann'), ('on second ann', 'yorozu; fwd=bypass; fwd-status=200; detail=forbidden'))
        log, stored = blocks(PAGE, 'Try it first')[0].split('\n')
        assert f'https://GET{NAME}/' in sh(stored)
        with subprocess.Popen(['bash', '-c', f'exec {log}'], stdout=subprocess.PIPE, text=True) as live:
            until('a line of the log', lambda: ask() and select.select([live.stdout], [], [], 0.2)[0])
            line = live.stdout.readline()
            live.kill()
        assert 'BYPASS' in line and 'dry-run' in line, line
        until('the difference', lambda: re.search(rf"dry run: would have been a hit, but the stored response differs from the upstream's, .*request: \"GET / HTTP/.*host: \"{NAME}\"", error_log()))

        renewal = blocks(PAGE, 'Certificates from certbot')[0].replace('certbot renew --dry-run', '')
        sh(renewal)
        renew()

        edit(lambda text: re.sub(r'.*fastcgi_cache_dry_run.*\n', '', text))
        reload, purge, _, cron = blocks(PAGE, 'Switch it on')
        shown = sh(f'export CURL_CA_BUNDLE=/run/root.pem\n{reload}')
        said = [line.partition(': ')[2] for line in shown.splitlines() if line.lower().startswith('cache-status')]
        wanted = re.findall(r'cache-status +# (.*)', reload)
        # A reload takes effect a moment after the command: the first may still be of the dry run.
        assert len(said) == 2 and (said[0] == wanted[0] or 'dry-run' in said[0]), (said, wanted)
        until('a hit', lambda: ask()[1].startswith('yorozu; hit; ttl='))
        assert wanted[1].startswith('yorozu; hit; ttl='), wanted
        equal(ask()[0], 'on second all')
        pathlib.Path('/var/www/text').write_text('third')
        equal(ask()[0], 'on second all')
        sh(purge)
        equal(ask()[0], 'on third all')
        edit(lambda text: text.replace('root /var/www/shop;', f'root /var/www/shop;\n{cron}', 1))
        sh('yorozu -t -q -c /etc/yorozu/site/nginx.conf')
        equal(ask('/', '-b wordpress_logged_in_x=ann')[0], 'on third ann')
        told = sh("curl -s -H 'Host: %s' -H 'Authorization: Bearer a-secret-of-sixteen-bytes-or-more' -d '{\"urls\": [\"https://%s/\"]}' http://127.0.0.1:8081/.purge" % (NAME, NAME))
        assert '"purged":1' in told.replace(' ', ''), told

        back, certbot = blocks(PAGE, 'The way back')
        sh(back)
        sh(certbot)
        equal(sh('find /etc/nginx -type f | sort | xargs sha256sum'), before)
        equal(ask(), ('on third all', ''))
        renew()
        sh('nginx -s stop')


if __name__ == '__main__':
    move_in(pathlib.Path(sys.argv[1]))
