//! Stateless layer templates with hand-derived backward passes
