//! A module's settings: what one block writes, and what holds in one location.
//!
//! | value | lives | holds |
//! | --- | --- | --- |
//! | [`ModuleDraft`] | while the configuration is loaded | what one block says, or takes over from the one around it |
//! | [`ModuleDraft::Conf`] | as long as the configuration | what that comes to in a location; shared where it is the same |
//!
//! Each type has a [`Place`].

use super::block::LocationName;
use super::directive::ValueError;
use super::env::Env;
use super::place::{AnyConf, Chunks, Compiled, Place, Table};
use crate::exchange::handler::Handler;
use std::any::Any;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

/// What the compiled form depends on beside the draft.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Varies {
    /// Locations with this word share it.
    With(bool),
    /// Each location has its own.
    ByLocation,
}

/// The location whose settings are compiled.
pub struct Compiling<'a> {
    pub env: &'a Env,
    pub handler: &'a Arc<dyn Handler>,
    pub name: &'a LocationName,
}

/// What one block says about a module.
pub trait ModuleDraft: Any + Clone + Default {
    type Conf: Any + Send + Sync;

    /// Steps that stay where they stand: no inner block takes them over.
    const STAYS: bool = false;

    fn place() -> &'static Place;

    /// Takes over what the enclosing block says where this one is silent.
    fn inherit(&mut self, outer: &Self);

    /// Applies the defaults, and checks what must fit together.
    ///
    /// # Errors
    /// What is wrong with the values.
    fn compile(&self, at: &Compiling<'_>) -> Result<Self::Conf, ValueError>;

    fn varies(&self, _at: &Compiling<'_>) -> Varies {
        Varies::With(false)
    }
}

/// A [`ModuleDraft`] of some type.
pub trait AnyDraft: Any {
    fn number(&self) -> usize;
    fn stays(&self) -> bool;
    fn duplicate(&self) -> Rc<dyn AnyDraft>;
    fn inherit_from(&mut self, outer: &dyn AnyDraft);
    fn compiled(&self, at: &Compiling<'_>) -> Result<AnyConf, ValueError>;
    fn compiled_varies(&self, at: &Compiling<'_>) -> Varies;
}

impl<D: ModuleDraft> AnyDraft for D {
    fn number(&self) -> usize {
        D::place().number()
    }

    fn stays(&self) -> bool {
        D::STAYS
    }

    fn duplicate(&self) -> Rc<dyn AnyDraft> {
        Rc::new(self.clone())
    }

    fn inherit_from(&mut self, outer: &dyn AnyDraft) {
        let outer: &dyn Any = outer;
        self.inherit(outer.downcast_ref().expect("a place holds one type"));
    }

    fn compiled(&self, at: &Compiling<'_>) -> Result<AnyConf, ValueError> {
        Ok(Arc::new(self.compile(at)?))
    }

    fn compiled_varies(&self, at: &Compiling<'_>) -> Varies {
        self.varies(at)
    }
}

/// A draft that says nothing.
pub fn silent<D: ModuleDraft>() -> Rc<dyn AnyDraft> {
    Rc::new(D::default())
}

/// The drafts of one block; one that says nothing is not there, one that is taken over is shared.
#[derive(Clone, Default)]
pub struct Drafts(Table<Rc<dyn AnyDraft>>);

impl Drafts {
    /// What the block says, to be added to.
    pub fn of<D: ModuleDraft>(&mut self) -> &mut D {
        let draft = self.0.slot(D::place().number()).get_or_insert_with(silent::<D>);
        let draft: &mut dyn Any = owned(draft);
        draft.downcast_mut().expect("a place holds one type")
    }

    /// What the block says, if it says anything.
    pub fn written<D: ModuleDraft>(&self) -> Option<&D> {
        let draft: &dyn Any = &**self.0.get(D::place().number())?;
        draft.downcast_ref()
    }

    /// What the block says, which leaves it silent.
    pub fn take<D: ModuleDraft>(&mut self) -> D {
        let Some(draft) = self.0.slot(D::place().number()).take() else { return D::default() };
        let draft: Rc<dyn Any> = draft;
        draft.downcast().map(Rc::unwrap_or_clone).unwrap_or_default()
    }

    /// Takes over from the enclosing block what this one does not say.
    pub fn inherit(&mut self, outer: &Self) {
        for (number, outer) in outer.0.iter().filter(|(_, outer)| !outer.stays()) {
            match self.0.slot(number) {
                Some(draft) => owned(draft).inherit_from(&**outer),
                silent => *silent = Some(Rc::clone(outer)),
            }
        }
    }
}

/// The draft itself, or a copy of one that is shared.
fn owned(draft: &mut Rc<dyn AnyDraft>) -> &mut dyn AnyDraft {
    if Rc::get_mut(draft).is_none() {
        *draft = draft.duplicate();
    }
    Rc::get_mut(draft).expect("just made")
}

/// Compiles drafts, each once where locations share it.
#[derive(Default)]
pub struct SettingsCompiler {
    made: HashMap<(*const (), Varies), AnyConf>,
    /// Keeps the drafts alive: their addresses are the keys.
    drafts: Vec<Rc<dyn AnyDraft>>,
    chunks: Chunks,
}

impl SettingsCompiler {
    /// The settings of a location; `silent`: the draft of each module that is used where a block says nothing; `made`: what
    /// the loader compiled itself, by place.
    ///
    /// # Errors
    /// What is wrong with the values.
    pub fn compile(
        &mut self,
        drafts: &Drafts,
        silent: &[Rc<dyn AnyDraft>],
        at: &Compiling<'_>,
        made: impl IntoIterator<Item = (&'static Place, AnyConf)>,
    ) -> Result<Compiled, ValueError> {
        let one = |silent: &Rc<dyn AnyDraft>| {
            let number = silent.number();
            Ok((number, self.one(drafts.0.get(number).unwrap_or(silent), at)?))
        };
        let made = made.into_iter().map(|(place, conf)| Ok((place.number(), conf)));
        let all = silent.iter().map(one).chain(made).collect::<Result<_, ValueError>>()?;
        Ok(self.chunks.share(&all))
    }

    fn one(&mut self, draft: &Rc<dyn AnyDraft>, at: &Compiling<'_>) -> Result<AnyConf, ValueError> {
        let varies = draft.compiled_varies(at);
        if varies == Varies::ByLocation {
            return draft.compiled(at);
        }
        let key = (Rc::as_ptr(draft).cast::<()>(), varies);
        if let Some(made) = self.made.get(&key) {
            return Ok(Arc::clone(made));
        }
        let conf = draft.compiled(at)?;
        self.drafts.push(Rc::clone(draft));
        self.made.insert(key, Arc::clone(&conf));
        Ok(conf)
    }
}
