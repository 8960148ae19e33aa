//! How severe a message is.

/// Severity; a log takes its level and everything more severe.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Level {
    Emerg,
    Alert,
    Crit,
    Error,
    Warn,
    Notice,
    Info,
    Debug,
}

impl Level {
    const NAMES: [(&'static str, Self); 8] = [
        ("emerg", Self::Emerg),
        ("alert", Self::Alert),
        ("crit", Self::Crit),
        ("error", Self::Error),
        ("warn", Self::Warn),
        ("notice", Self::Notice),
        ("info", Self::Info),
        ("debug", Self::Debug),
    ];

    /// As in the log.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize].0
    }

    /// The next level of less weight.
    pub fn below(self) -> Self {
        Self::NAMES.get(self as usize + 1).map_or(self, |(_, level)| *level)
    }

    pub fn parse(text: &[u8]) -> Option<Self> {
        Self::NAMES.into_iter().find(|(name, _)| name.as_bytes() == text).map(|(_, level)| level)
    }
}
