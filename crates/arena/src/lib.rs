//! Host memory planned, printed, checked and committed once
