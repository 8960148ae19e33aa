//! Applications that `yorozu serve` knows: how a folder shows which it holds, which of its folders visitors see, and the
//! preset that serves it.

use std::path::{Path, PathBuf};

/// How pages of an application may be kept without a word from its owner.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Pages {
    /// So long: what is private there is known well enough.
    Kept(&'static str),
    /// Only if the owner says so.
    Asked,
    /// There are none that PHP makes.
    Files,
}

/// An application and its preset.
#[derive(Debug)]
pub(super) struct Application {
    pub(super) name: &'static str,
    /// Below its folder: all files of one of these lists show it.
    shown_by: &'static [&'static [&'static str]],
    /// Where its public files are, below its folder; the first that is there.
    roots: &'static [&'static str],
    /// Lines of a `server`.
    pub(super) rules: &'static str,
    pub(super) pages: Pages,
    /// Memory of a process of PHP until it has been measured, in MB.
    pub(super) process_mb: u64,
}

const FRONT_CONTROLLER: &str =
    include_str!("../../../../presets/applications/front-controller.conf");
const SITE: &str = include_str!("../../../../presets/applications/php-site.conf");

/// The first that is shown counts: particular ones before those built with the same framework.
static APPLICATIONS: &[Application] = &[
    Application {
        name: "WordPress",
        shown_by: &[&["wp-load.php", "wp-settings.php"], &["web/wp/wp-load.php"]],
        roots: &["web", "."],
        rules: include_str!("../../../../presets/applications/wordpress.conf"),
        pages: Pages::Kept("10m"),
        process_mb: 64,
    },
    framework("Statamic", &[&["artisan", "vendor/statamic"], &["please"]]),
    framework("Flarum", &[&["flarum", "extend.php"]]),
    framework("October CMS", &[&["artisan", "modules/system"]]),
    framework("Laravel", &[&["artisan", "bootstrap/app.php"]]),
    framework("Sylius", &[&["bin/console", "config/packages/_sylius.yaml"]]),
    framework("Symfony", &[&["bin/console", "config/bundles.php"], &["symfony.lock"]]),
    Application {
        name: "Drupal",
        shown_by: &[
            &["core/lib/Drupal.php"],
            &["web/core/lib/Drupal.php"],
            &["includes/bootstrap.inc", "modules/system"],
            // Backdrop.
            &["core/includes/bootstrap.inc", "core/modules/system"],
        ],
        roots: &["web", "docroot", "."],
        rules: include_str!("../../../../presets/applications/drupal.conf"),
        pages: Pages::Asked,
        process_mb: 64,
    },
    Application {
        name: "MediaWiki",
        shown_by: &[&["load.php", "includes/WebStart.php"]],
        roots: &["."],
        rules: include_str!("../../../../presets/applications/mediawiki.conf"),
        pages: Pages::Asked,
        process_mb: 64,
    },
    Application {
        name: "DokuWiki",
        shown_by: &[&["doku.php", "lib/exe"]],
        roots: &["."],
        rules: include_str!("../../../../presets/applications/dokuwiki.conf"),
        pages: Pages::Asked,
        process_mb: 32,
    },
    Application {
        name: "Nextcloud",
        shown_by: &[&["remote.php", "ocs/v2.php", "status.php"]],
        roots: &["."],
        rules: include_str!("../../../../presets/applications/nextcloud.conf"),
        pages: Pages::Asked,
        process_mb: 96,
    },
    Application {
        name: "Joomla",
        shown_by: &[
            &["administrator/index.php", "libraries/src"],
            &["administrator/index.php", "libraries/joomla"],
        ],
        roots: &["."],
        rules: include_str!("../../../../presets/applications/joomla.conf"),
        pages: Pages::Asked,
        process_mb: 48,
    },
    Application {
        name: "Moodle",
        shown_by: &[
            &["pluginfile.php", "lib/moodlelib.php"],
            &["public/pluginfile.php", "public/lib/moodlelib.php"],
        ],
        roots: &["public", "."],
        rules: include_str!("../../../../presets/applications/moodle.conf"),
        pages: Pages::Asked,
        process_mb: 80,
    },
    Application {
        name: "phpMyAdmin",
        shown_by: &[
            &["libraries/classes/Sql.php", "url.php"],
            &["show_config_errors.php", "url.php"],
        ],
        roots: &["public", "."],
        rules: include_str!("../../../../presets/applications/phpmyadmin.conf"),
        pages: Pages::Asked,
        process_mb: 48,
    },
    Application {
        name: "Kirby",
        shown_by: &[&["kirby/bootstrap.php"]],
        roots: &["public", "."],
        rules: include_str!("../../../../presets/applications/kirby.conf"),
        pages: Pages::Asked,
        process_mb: 32,
    },
    Application {
        name: "Magento",
        shown_by: &[&["bin/magento", "pub/index.php"]],
        roots: &["pub"],
        rules: include_str!("../../../../presets/applications/magento.conf"),
        pages: Pages::Asked,
        process_mb: 128,
    },
    Application {
        name: "OpenCart",
        shown_by: &[&["system/framework.php", "catalog/controller"]],
        roots: &["."],
        rules: include_str!("../../../../presets/applications/opencart.conf"),
        pages: Pages::Asked,
        process_mb: 40,
    },
    Application {
        name: "phpBB",
        shown_by: &[&["viewtopic.php", "ucp.php"]],
        roots: &["."],
        rules: include_str!("../../../../presets/applications/phpbb.conf"),
        pages: Pages::Asked,
        process_mb: 40,
    },
    Application {
        name: "FreshRSS",
        shown_by: &[&["p/i/index.php", "constants.php"]],
        roots: &["p"],
        rules: SITE,
        pages: Pages::Asked,
        process_mb: 40,
    },
    framework("CakePHP", &[&["bin/cake"], &["config/bootstrap.php", "webroot/index.php"]]),
    framework("CodeIgniter", &[&["spark", "app/Config/App.php"]]),
    framework("Craft CMS", &[&["craft", "config/general.php"]]),
    // Whatever has its one script in a folder of its own: nothing else of PHP runs there.
    framework(
        "a PHP application",
        &[
            &["public/index.php"],
            &["web/index.php"],
            &["webroot/index.php"],
            &["public_html/index.php", "vendor/autoload.php"],
        ],
    ),
    Application {
        name: "PHP scripts",
        shown_by: &[&["index.php"]],
        roots: &["."],
        rules: SITE,
        pages: Pages::Asked,
        process_mb: 40,
    },
    Application {
        name: "files",
        shown_by: &[&["."]],
        roots: &["public", "dist", "build", "_site", "."],
        rules: include_str!("../../../../presets/applications/files.conf"),
        pages: Pages::Files,
        process_mb: 0,
    },
];

const fn framework(
    name: &'static str,
    shown_by: &'static [&'static [&'static str]],
) -> Application {
    Application {
        name,
        shown_by,
        roots: &["public", "web", "webroot", "public_html", "."],
        rules: FRONT_CONTROLLER,
        pages: Pages::Asked,
        process_mb: 40,
    }
}

impl Application {
    fn is_in(&self, folder: &Path) -> bool {
        self.shown_by.iter().any(|files| files.iter().all(|file| folder.join(file).exists()))
    }

    /// The folder of what visitors see: that has an index, or is the application's own.
    fn root(&self, folder: &Path) -> PathBuf {
        let has_index = |root: &&&str| {
            ["index.php", "index.html"].iter().any(|index| folder.join(root).join(index).is_file())
        };
        let found = self.roots.iter().find(has_index).copied().unwrap_or(".");
        if found == "." { folder.to_owned() } else { folder.join(found) }
    }

    /// Whether PHP makes its pages.
    pub(super) fn runs_php(&self) -> bool {
        self.pages != Pages::Files
    }
}

/// What a folder holds.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) application: &'static Application,
    /// What visitors see.
    pub(super) root: PathBuf,
}

/// Looks at a folder, and at the one above it where that holds an application whose public folder this is.
pub(super) fn look(folder: &Path) -> Found {
    let last = &APPLICATIONS[APPLICATIONS.len() - 1];
    let generic = APPLICATIONS.len() - 3;
    let above = folder.parent().and_then(|parent| {
        let found = APPLICATIONS[..generic].iter().find(|one| one.is_in(parent))?;
        (found.root(parent) == folder).then_some(found)
    });
    let here = || APPLICATIONS.iter().find(|one| one.is_in(folder)).unwrap_or(last);
    match above {
        Some(application) => Found { application, root: folder.to_owned() },
        None => {
            let application = here();
            Found { application, root: application.root(folder) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A folder with these files, gone with the value.
    struct Folder(PathBuf);

    impl Folder {
        fn with(files: &[&str]) -> Self {
            let name = format!("yorozu-serve-{}-{:x}", std::process::id(), fastrand::u64(..));
            let folder = std::env::temp_dir().join(name);
            for file in files {
                let path = folder.join(file);
                fs::create_dir_all(path.parent().expect("below the folder")).expect("a folder");
                fs::write(path, "").expect("a file");
            }
            Self(folder)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn folders_show_what_they_hold() {
        for (files, name, root) in [
            (&["wp-load.php", "wp-settings.php", "index.php"][..], "WordPress", ""),
            (&["web/wp/wp-load.php", "web/index.php"], "WordPress", "web"),
            (&["artisan", "bootstrap/app.php", "public/index.php"], "Laravel", "public"),
            (&["artisan", "vendor/statamic/x", "public/index.php"], "Statamic", "public"),
            (&["bin/console", "config/bundles.php", "public/index.php"], "Symfony", "public"),
            (&["web/core/lib/Drupal.php", "web/index.php"], "Drupal", "web"),
            (&["core/lib/Drupal.php", "index.php"], "Drupal", ""),
            (&["load.php", "includes/WebStart.php", "index.php"], "MediaWiki", ""),
            (&["doku.php", "lib/exe/fetch.php"], "DokuWiki", ""),
            (&["remote.php", "ocs/v2.php", "status.php", "index.php"], "Nextcloud", ""),
            (&["administrator/index.php", "libraries/src/x", "index.php"], "Joomla", ""),
            (&["pluginfile.php", "lib/moodlelib.php", "index.php"], "Moodle", ""),
            (&["show_config_errors.php", "url.php", "index.php"], "phpMyAdmin", ""),
            (&["kirby/bootstrap.php", "index.php"], "Kirby", ""),
            (&["bin/magento", "pub/index.php", "index.php"], "Magento", "pub"),
            (&["public/index.php", "src/x.php"], "a PHP application", "public"),
            (&["index.php", "about.php"], "PHP scripts", ""),
            (&["index.html"], "files", ""),
            (&["dist/index.html"], "files", "dist"),
            (&["notes.txt"], "files", ""),
        ] {
            let folder = Folder::with(files);
            let found = look(&folder.0);
            assert_eq!(
                (found.application.name, found.root),
                (name, folder.0.join(root)),
                "{files:?}"
            );
        }
    }

    #[test]
    fn a_public_folder_is_known_by_the_one_above_it() {
        let folder = Folder::with(&["artisan", "bootstrap/app.php", "public/index.php"]);
        let found = look(&folder.0.join("public"));
        assert_eq!((found.application.name, found.root), ("Laravel", folder.0.join("public")));
    }
}
