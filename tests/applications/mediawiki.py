"""MediaWiki, as its release has it, with SQLite, short URLs and a namespace that members alone read."""
import hashlib
from applications import PASSWORD, SECRET, USER, WORD, Application, has

NAME = USER.capitalize()
SETTINGS = r"""
# A cache of files where its own settings propose it; short URLs, and uploads of any kind and size, as its handbook has them.
$wgCacheDirectory = "$IP/cache";
$wgArticlePath = '/wiki/$1';
$wgEnableUploads = true;
$wgFileExtensions[] = 'zip';
$wgVerifyMimeType = false;
$wgMaxUploadSize = 1 << 30;
# Nobody but members reads what is in "Private".
define( 'NS_PRIVATE', 3000 );
$wgExtraNamespaces[NS_PRIVATE] = 'Private';
$wgHooks['getUserPermissionsErrors'][] = static function ( $title, $user, $action, &$result ) {
	if ( $title->getNamespace() === NS_PRIVATE && !$user->isRegistered() ) {
		$result = 'badaccess-group0';
		return false;
	}
};
"""


class MediaWiki(Application):
    found = 'MediaWiki'
    folder = 'mediawiki'
    pages = ['/', '/wiki/Main_Page', '/index.php/Main_Page', '/index.php?title=Main_Page&action=history', '/index.php?title=Main_Page&action=raw', '/wiki/Special:RecentChanges',
             '/index.php?title=Special:RecentChanges&feed=atom', '/wiki/Special:AllPages', '/wiki/Special:UserLogin', '/load.php?lang=en&modules=skins.vector.styles.legacy&only=styles&skin=vector',
             '/load.php?lang=en&modules=startup&only=scripts&raw=1&skin=vector', '/api.php?action=query&meta=siteinfo|userinfo&format=json', '/rest.php/v1/page/Main_Page', '/opensearch_desc.php']
    marks = [f'"wgUserName":"{NAME}"', f'"name":"{NAME}"', 'Log out']
    runs = r'/(index|api|load|rest|thumb|thumb_handler|img_auth|opensearch_desc|mw-config/index)\.php'

    def install(self, visitor):
        page = visitor.get('/mw-config/index.php')
        for step in ({}, {}, {'DBType': 'sqlite', 'sqlite_wgSQLiteDataDir': str(self.site.parent / 'data')},
                     {'config_wgSitename': 'A wiki', 'config__AdminName': NAME, 'config__AdminPassword': PASSWORD, 'config__AdminPasswordConfirm': PASSWORD, 'config__SkipOptional': 'skip'}, {}, {}):
            page = visitor.submit(page, step, button='submit-continue')
        # What the last page has for a download is to be put into the folder.
        settings = has(visitor.get('/mw-config/index.php?localsettings=1'), '$wgSitename')
        (self.site / 'LocalSettings.php').write_text(settings.text + SETTINGS)

    def prepare(self):
        data = self.site.parent / 'data'
        data.mkdir()
        data.chmod(0o777)

    def log_in(self, visitor):
        page = visitor.submit('/wiki/Special:UserLogin', {'wpName': NAME, 'wpPassword': PASSWORD}, button='wploginattempt')
        has(page, f'"wgUserName":"{NAME}"')

    def saved(self, owner, title, text):
        page = owner.submit(f'/index.php?title={title}&action=edit', {'wpTextbox1': text, 'wpSummary': 'As it is'}, button='wpSave')
        has(page, text)
        return f'/wiki/{title}'

    def write(self, owner):
        return [self.saved(owner, title, WORD) for title in ('Main_Page', 'Garden/Plants', 'Template:Bed', 'Notes.log', 'C%2B%2B', 'Index.php', '.hidden')]

    def keep(self, owner):
        paths = [self.saved(owner, 'Private:Notes', SECRET)]
        has(owner.submit('/wiki/Special:EditWatchlist/raw', {'wpTitles': f'The {SECRET} of oaks'}), 'updated')
        return paths + ['/index.php?title=Private:Notes&action=raw', '/api.php?action=parse&page=Private:Notes&format=json', '/rest.php/v1/page/Private:Notes',
                        '/index.php?title=Private:Notes&action=edit', '/api.php?action=query&list=watchlistraw&format=json']

    def search(self):
        return f'/index.php?search={WORD}&fulltext=1'

    def upload(self, owner, name, content):
        name = name.capitalize()
        page = owner.submit('/wiki/Special:Upload', {'wpDestFile': name, 'wpIgnoreWarning': '1'}, {'wpUploadFile': (name, content)}, button='wpUpload')
        digest = hashlib.md5(name.encode()).hexdigest()
        path = f'/images/{digest[0]}/{digest[:2]}/{name}'
        has(page, path)
        return path

    def log_out(self, owner):
        owner.submit('/wiki/Special:UserLogout', {}, button='wpEditToken')
