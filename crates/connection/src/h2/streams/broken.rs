//! How clients break the rules of streams.

use crate::fields::OTHER_LENGTH;
use yorozu_wire::h2::frame::{Broken, Code};

pub(super) const TOO_LARGE_WINDOW: &str = "client violated flow control: too large window";

pub(super) fn too_large_window() -> Broken {
    Broken::Connection(Code::FLOW_CONTROL_ERROR, TOO_LARGE_WINDOW)
}

pub(super) fn idle(what: &'static str) -> Broken {
    let text = match what {
        "DATA" => "DATA frame for a stream that was not begun",
        "RST_STREAM" => "RST_STREAM frame for a stream that was not begun",
        _ => "WINDOW_UPDATE frame for a stream that was not begun",
    };
    Broken::Connection(Code::PROTOCOL_ERROR, text)
}

pub(super) fn other_length() -> Broken {
    Broken::Stream(Code::PROTOCOL_ERROR, OTHER_LENGTH)
}
