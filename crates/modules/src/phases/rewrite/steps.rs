//! The steps of a block: as they are written, and as a location or a server has them.

use super::{Instruction, InstructionDraft};
use yorozu_kernel::config::directive::ValueError;
use yorozu_kernel::config::place::{ModuleConf, Place, place};
use yorozu_kernel::config::settings::{Compiling, ModuleDraft};

/// The steps of one block, which stay where they stand.
#[derive(Clone, Default)]
pub struct Steps(pub Vec<InstructionDraft>);

/// The steps of a location, or of a server.
#[derive(Debug, Default)]
pub struct Script(pub Vec<Instruction>);

impl Script {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl ModuleDraft for Steps {
    type Conf = Script;

    const STAYS: bool = true;

    fn place() -> &'static Place {
        place!()
    }

    fn inherit(&mut self, _outer: &Self) {}

    fn compile(&self, _at: &Compiling<'_>) -> Result<Script, ValueError> {
        unreachable!("steps have blocks inside, which the loader compiles with them")
    }
}

impl ModuleConf for Script {
    fn place() -> &'static Place {
        Steps::place()
    }
}

/// Where the steps of a server lie, among the settings that it has outside of its locations.
pub fn server_script() -> &'static Place {
    place!()
}
