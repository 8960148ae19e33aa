"""A real browser over the WebDriver protocol: Debian's chromium, nothing installed besides."""
import base64, contextlib, json, shutil, subprocess, tempfile, urllib.error, urllib.request
from peers import free_port, until

TAB, ENTER, SPACE = '\ue004', '\ue007', ' '  # WebDriver, section 17.4.2
ELEMENT = 'element-6066-11e4-a52e-4f735466cecf'  # WebDriver, section 11: the web element identifier
ARGUMENTS = ['--headless=new', '--no-sandbox', '--disable-gpu', '--no-first-run',
             '--disable-background-networking', '--disable-component-update', '--disable-sync',
             '--disable-dev-shm-usage', '--window-size=1280,1000']


class Browser:
    def __init__(self, *arguments):
        """Without arguments of its own it speaks no HTTP/3."""
        port = free_port()
        self.profile = tempfile.mkdtemp(prefix='yorozu-browser.')
        self.driver = subprocess.Popen(['chromedriver', f'--port={port}'],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.base = f'http://127.0.0.1:{port}'
        self.wait(lambda: self.call('GET', '/status')['ready'], 'chromedriver')
        options = {'args': [*ARGUMENTS, f'--user-data-dir={self.profile}', *(arguments or ['--disable-quic'])]}
        session = self.call('POST', '/session', {'capabilities': {'alwaysMatch': {
            'browserName': 'chrome', 'goog:chromeOptions': options}}})
        self.session = '/session/' + session['sessionId']

    def call(self, method, path, data=None):
        body = None if data is None else json.dumps(data).encode()
        request = urllib.request.Request(self.base + path, body, {'Content-Type': 'application/json'},
                                         method=method)
        try:
            with urllib.request.urlopen(request, timeout=90) as answer:
                return json.load(answer)['value']
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)['value']['message']) from None

    def wait(self, condition, what):
        def holds():
            # As long as a page is loaded, much of it is not there.
            with contextlib.suppress(OSError, RuntimeError):
                return condition()
        return until(what, holds)

    def open(self, url):
        self.call('POST', self.session + '/url', {'url': url})

    def url(self):
        return self.call('GET', self.session + '/url')

    def run(self, script, *arguments):
        return self.call('POST', self.session + '/execute/sync',
                         {'script': script, 'args': list(arguments)})

    def find(self, selector):
        return self.wait(lambda: self.call('POST', self.session + '/element', {
            'using': 'css selector', 'value': selector})[ELEMENT], selector)

    def type(self, selector, text):
        element = self.find(selector)
        self.call('POST', f'{self.session}/element/{element}/value', {'text': text})

    def click(self, selector):
        element = self.find(selector)
        self.run('arguments[0].scrollIntoView({block: "center"})', {ELEMENT: element})
        self.call('POST', f'{self.session}/element/{element}/click', {})

    def press(self, *keys):
        """Keys of a keyboard, each pressed and let go: they go to what has the focus."""
        each = [{'type': kind, 'value': key} for key in keys for kind in ('keyDown', 'keyUp')]
        self.call('POST', self.session + '/actions', {'actions': [{'type': 'key', 'id': 'keyboard', 'actions': each}]})

    def resize(self, width, height, is_phone=False):
        """The window's inside, as it is laid out."""
        self.call('POST', self.session + '/goog/cdp/execute', {
            'cmd': 'Emulation.setDeviceMetricsOverride',
            'params': {'width': width, 'height': height, 'deviceScaleFactor': 1, 'mobile': is_phone}})

    def text(self, selector='body'):
        element = self.find(selector)
        return self.call('GET', f'{self.session}/element/{element}/text')

    def screenshot(self, path):
        with open(path, 'wb') as file:
            file.write(base64.b64decode(self.call('GET', self.session + '/screenshot')))

    def close(self):
        try:
            self.call('DELETE', self.session)
        finally:
            self.driver.terminate()
            self.driver.wait(60)
            shutil.rmtree(self.profile, ignore_errors=True)
