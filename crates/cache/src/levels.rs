//! Where files lie in the folder of a zone, and what they are called.

use crate::index::Digest;
use base16ct::lower;
use std::path::{Path, PathBuf};

/// Folder depth: up to three levels of one or two hexadecimal digits each.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Levels {
    digits: [u8; 3],
}

impl Levels {
    /// Reads `1:2` and the like; nothing is no level.
    pub fn parse(text: &str) -> Option<Self> {
        let mut digits = [0; 3];
        if text.is_empty() {
            return Some(Self { digits });
        }
        for (count, level) in text.split(':').enumerate() {
            *digits.get_mut(count)? = match level {
                "1" => 1,
                "2" => 2,
                _ => return None,
            };
        }
        Some(Self { digits })
    }

    /// `c/29/b7f54b2df7773722d382f4809d65029c` for levels `1:2`: digits are taken from the end.
    pub(crate) fn path(self, root: &Path, digest: &Digest) -> PathBuf {
        let name = lower::encode_string(digest);
        let mut path = root.to_owned();
        let mut end = name.len();
        for digits in self.digits.into_iter().filter(|digits| *digits > 0) {
            let start = end - usize::from(digits);
            path.push(&name[start..end]);
            end = start;
        }
        path.push(name);
        path
    }

    pub(crate) fn depth(self) -> usize {
        self.digits.iter().filter(|digits| **digits > 0).count()
    }
}

pub(crate) fn parse_digest(name: &str) -> Option<Digest> {
    let mut digest = [0; 16];
    lower::decode(name, &mut digest).is_ok_and(|bytes| bytes.len() == 16).then_some(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_lie_where_nginx_lays_them() {
        // The example of nginx's documentation of proxy_cache_path.
        let digest = parse_digest("b7f54b2df7773722d382f4809d65029c").unwrap();
        let path = |levels: &str| {
            let levels = Levels::parse(levels).unwrap();
            levels.path(Path::new("/c"), &digest).display().to_string()
        };
        assert_eq!(path("1:2"), "/c/c/29/b7f54b2df7773722d382f4809d65029c");
        assert_eq!(path("2:1:2"), "/c/9c/2/50/b7f54b2df7773722d382f4809d65029c");
        let flat = Levels::default().path(Path::new("/c"), &digest);
        assert_eq!(flat, Path::new("/c/b7f54b2df7773722d382f4809d65029c"));
        assert_eq!(Levels::parse(""), Some(Levels::default()));
        assert_eq!(Levels::parse("3"), None);
        assert_eq!(Levels::parse("1:1:1:1"), None);
    }
}
