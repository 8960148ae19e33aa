//! What applications behind a gateway interface have in common, by whatever protocol they are asked: parameters, and
//! an answer with the head of a CGI program.

pub mod codec;
pub mod head;
pub mod params;

use bytes::Bytes;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::template::Template;

/// Room for a request before it has to grow; chosen: most are shorter.
pub const REQUEST_BYTES: usize = 2048;

/// `*_param name value [if_not_empty]`
#[derive(Clone, Debug)]
pub struct Param {
    pub name: Bytes,
    pub value: Template,
    pub is_if_not_empty: bool,
}

impl Setting for Param {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let is_if_not_empty = match args.word(2) {
            b"" => false,
            b"if_not_empty" => true,
            other => return Err(args.invalid_parameter(other)),
        };
        Ok(Self {
            name: args.words[0].clone(),
            value: Template::compile(args.word(1), args.env)?,
            is_if_not_empty,
        })
    }
}
