"""OpenCart, as its release has it, with MariaDB."""
import re, shutil
from applications import EMAIL, PASSWORD, SECRET, USER, WORD, Application, has
from peers import until


class OpenCart(Application):
    found = 'OpenCart'
    folder = 'opencart'
    # Without its page for logging in, which logs out who has done so.
    pages = ['/', '/index.php?route=common/home', '/en-gb', '/en-gb/catalog/desktops', '/en-gb/product/macbook', '/en-gb?route=product/search&search=apple',
             '/index.php?route=product/product&product_id=43', '/index.php?route=information/sitemap', '/index.php?route=common/cart.info&language=en-gb',
             '/index.php?route=information/contact', '/admin/', '/image/placeholder.png']
    marks = ['Logout', 'Annabel']
    runs = r'/(index|admin/index|cron)\.php'

    def prepare(self):
        for folder in ('', 'admin/'):
            (self.site / f'{folder}config-dist.php').rename(self.site / f'{folder}config.php')

    def install(self, visitor):
        database = {'db_driver': 'mysqli', 'db_hostname': '127.0.0.1', 'db_username': USER, 'db_password': PASSWORD, 'db_database': 'site', 'db_port': self.database.port, 'db_prefix': 'oc_'}
        # The page of its installer has a script that sends its form.
        has(visitor.post('/install/index.php?route=install/step_3.save', data={**database, 'db_ssl_key': '', 'db_ssl_cert': '', 'db_ssl_ca': '', 'username': USER, 'email': EMAIL, 'password': PASSWORD}), 'step_4')
        shutil.rmtree(self.site / 'install')
        # PHP's opcache looks at a script that it knows every two seconds: config.php was empty when the first page led to the installer.
        until('what the installer wrote', lambda: visitor.get('/', allow_redirects=False).status_code == 200)
        self.administer(visitor)
        # Short URLs, as its handbook has them, and uploads as large as PHP allows.
        has(visitor.submit(self.admin('setting/setting'), {'config_seo_url': '1', 'config_file_max_size': '300'}), 'success')

    def administer(self, visitor):
        answer = has(visitor.submit('/admin/', {'username': USER, 'password': PASSWORD}), 'user_token')
        self.token = re.search(r'user_token=(\w+)', answer.text)[1]

    def admin(self, route, more=''):
        return f'/admin/index.php?route={route}&user_token={self.token}{more}'

    def log_in(self, visitor):
        # Its author is both who runs the shop and one of its customers.
        self.administer(visitor)
        form = {'firstname': 'Annabel', 'lastname': SECRET, 'email': EMAIL, 'password': PASSWORD, 'agree': '1'}
        answer = has(visitor.submit('/index.php?route=account/register', form), 'success')
        self.customer = re.search(r'customer_token=(\w+)', answer.text)[1]

    def product(self, owner, name, status):
        form = {'product_description[1][name]': name, 'product_description[1][meta_title]': name, 'product_description[1][tag]': name, 'model': 'M', 'price': '10', 'quantity': '100', 'status': status,
                'product_seo_url[0][1]': name, 'date_available': '2020-01-01'}
        return re.search(r'"product_id":"?(\d+)', has(owner.submit(self.admin('catalog/product.form'), form), 'success').text)[1]

    def write(self, owner):
        number = self.product(owner, WORD, '1')
        # Its pretty URLs lead to the product, not to the first page.
        has(owner.get(f'/en-gb/product/{WORD}'), f'<title>{WORD}')
        return [f'/en-gb/product/{WORD}', f'/index.php?route=product/product&product_id={number}']

    def keep(self, owner):
        number = self.product(owner, SECRET, '1')
        has(owner.post('/index.php?route=checkout/cart.add&language=en-gb', data={'product_id': number, 'quantity': '1'}), 'success')
        # A product that is not sold yet.
        self.product(owner, SECRET + '-draft', '0')
        account = f'/index.php?route=account/edit&language=en-gb&customer_token={self.customer}'
        return [account, account.replace('edit', 'address.form'), '/index.php?route=checkout/cart', '/index.php?route=common/cart.info', '/en-gb?route=checkout/cart',
                self.admin('catalog/product', '&filter_name=' + SECRET), self.admin('catalog/product.form', f'&product_id={number}')]

    def search(self):
        return f'/index.php?route=product/search&search={WORD}&language=en-gb'

    def upload(self, owner, name, content):
        # What a customer sends with an order, and who runs the shop reads.
        page = owner.get('/index.php?route=product/product&product_id=42&language=en-gb')
        form = re.search(r'"(http[^"]*route=tool/upload[^"]*)', page.text)[1].replace('&amp;', '&')
        answer = has(owner.post(form, files={'file': (name, content, 'application/zip')}), 'code')
        return self.admin('tool/upload.download', '&code=' + answer.json()['code'])

    def log_out(self, owner):
        owner.get('/index.php?route=account/logout&language=en-gb&customer_token=' + self.customer)
        owner.get(self.admin('common/logout'))
