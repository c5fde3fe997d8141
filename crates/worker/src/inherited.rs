//! The descriptor that a driver may leave open for events.

#![allow(unsafe_code, reason = "no safe call takes a descriptor that this process was given by number")]

use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

/// Where drivers open a channel for events, behind stdin, stdout and stderr.
const EVENTS_FD: RawFd = 3;

/// The channel for events, if descriptor 3 is open. To be called before this process opens anything, since what it
/// opens first would get that number.
pub fn events_channel() -> Option<OwnedFd> {
    // SAFETY: the descriptor is only copied. The copy asks the kernel whether it is open, which says so if it is not,
    // and nothing is read or written before there is a copy that is this process's own.
    let inherited = unsafe { BorrowedFd::borrow_raw(EVENTS_FD) };
    inherited.try_clone_to_owned().ok()
}
