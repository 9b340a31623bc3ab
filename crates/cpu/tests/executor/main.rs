//! The executor's modes, races, failures and refusals, on a tiny model whose arithmetic is exact.

mod failures;
mod modes;
mod races;
mod refusals;
mod tiny;
