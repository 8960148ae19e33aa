//! Names and sizes of shared memory that `upstream` blocks say; threads share everything without it.

use std::collections::BTreeMap;
use yorozu_conf::value;
use yorozu_kernel::config::directive::{Args, ValueError};
use yorozu_kernel::config::place::{Place, place};
use yorozu_kernel::config::shared::Shared;
use yorozu_kernel::config::types::ZONE_BYTES_MIN;

/// Sizes in bytes by name; 0 where none was said yet.
#[derive(Debug, Default)]
pub struct Zones(BTreeMap<String, u64>);

impl Shared for Zones {
    const IS_FOR_LOADING: bool = true;

    fn place() -> &'static Place {
        place!()
    }
}

impl Zones {
    /// Reads `zone name [size]`.
    ///
    /// # Errors
    /// The name is empty, or the size is none, too small or another than before.
    pub(super) fn read(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        let name = args.text(0);
        if name.is_empty() {
            return Err(ValueError::new("invalid zone name \"\""));
        }
        let known = self.0.entry(name).or_default();
        if args.words.len() == 1 {
            return Ok(());
        }
        let (name, size) = (args.text(0), args.text(1));
        let bytes = value::size(args.word(1))
            .ok_or_else(|| ValueError(format!("invalid zone size \"{size}\"")))?;
        if bytes < ZONE_BYTES_MIN {
            return Err(ValueError(format!("zone \"{name}\" is too small")));
        }
        if *known != 0 && *known != bytes {
            return Err(ValueError(format!(
                "the size {bytes} of shared memory zone \"{name}\" conflicts with already declared size {known}"
            )));
        }
        *known = bytes;
        Ok(())
    }

    /// Checks that each zone has a size, in whichever block it stands.
    ///
    /// # Errors
    /// One has none.
    pub(super) fn check(&self) -> Result<(), ValueError> {
        match self.0.iter().find(|(_, bytes)| **bytes == 0) {
            Some((name, _)) => Err(ValueError(format!("zero size shared memory zone \"{name}\""))),
            None => Ok(()),
        }
    }
}
