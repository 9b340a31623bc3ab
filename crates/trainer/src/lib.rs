//! Configuration, training loop, metrics and the megatrain command
