//! Host memory in four steps, each of them once: plan, print, check, commit.
//!
//! A [`Plan`] names every region with its exact size and allocates nothing. Printing it shows where the bytes go.
//! [`Plan::check`] compares it with what the machine allows ([`Limits`]) and refuses what cannot fit, before anything
//! is allocated. [`Plan::commit`] maps, places and touches all of it and returns an [`Arena`], which never grows.
//!
//! Absent on purpose: growing, freeing one region, sharing space between regions, rounding to anything but pages, and
//! any knowledge of GPUs (a [`Pinner`] brings that in) or of what the bytes mean (executors make the typed views).
//!
//! Linux only: limits come from `/proc` and cgroups, placement from sysfs and `mbind`.

mod arena;
mod cgroup;
mod check;
mod commit;
mod error;
mod limits;
pub mod numa;
mod pin;
mod plan;
mod region;
mod sys;
mod table;
mod touch;

pub use arena::Arena;
pub use check::Refusal;
pub use commit::{CommitOptions, Numa, PinFailure};
pub use error::Error;
pub use limits::{Bound, Limits, Resource};
pub use pin::{LockPages, Pinner};
pub use plan::{Backing, Kind, Plan, Reservation};
pub use region::RegionRef;
pub use touch::Progress;

/// The README's code, compiled and run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
