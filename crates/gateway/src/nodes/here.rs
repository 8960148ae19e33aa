//! A purge on this node, whoever wants it: viewers are told each.

use yorozu_cache::{Making, Purge, PurgeMode, StoreError, Zone};
use yorozu_kernel::live::viewers;

/// Who wants a purge.
#[derive(Clone, Copy, Debug)]
pub enum By<'a> {
    /// An operator, on this node or another one.
    Operator,
    /// A request that changed the page: what the making comes to stays. That nothing was stored is no news.
    Change(Option<&'a Making>),
}

/// Purges, and tells viewers what that found; how many stored responses each matched. Blocks.
///
/// # Errors
/// Neither could the files be removed nor the purge noted; viewers are not told.
pub fn purge(
    zone: &Zone,
    purges: &[Purge],
    mode: PurgeMode,
    by: By<'_>,
) -> Result<Vec<usize>, StoreError> {
    let (spared, is_news_anyway) = match by {
        By::Operator => (None, true),
        By::Change(spared) => (spared, false),
    };
    let counts = zone.purge_but(purges, mode, spared)?;
    if is_news_anyway || counts.iter().any(|count| *count > 0) {
        let found = purges.iter().zip(&counts);
        let shown = found.filter(|(purge, count)| **count > 0 || !purge.is_beside());
        let (purges, counts): (Vec<_>, Vec<_>) =
            shown.map(|(purge, count)| (purge.clone(), *count)).unzip();
        viewers::tell_purges(&purges, &counts, mode);
    }
    Ok(counts)
}
