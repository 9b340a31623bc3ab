//! Who may speak after whom. What breaks the rules is skipped and said, never repaired: only a person knows what was meant.

use super::{Fault, fault};
use crate::conversation::{Message, Role};

/// The rules: at most one system message, and that first; then the user begins; user and tools alternate with the
/// assistant, except that several tools may answer in a row; the assistant has the last word.
pub(super) fn check(messages: &[Message]) -> Result<(), Fault> {
    let wrong = |reason: String| fault("turns out of order", reason);
    let turns = match messages.first() {
        Some(first) if first.role == Role::System => &messages[1..],
        _ => messages,
    };
    // The number of the first of `turns`, counted from 1.
    let first = messages.len() - turns.len() + 1;
    let mut before = None;
    for (i, message) in turns.iter().enumerate() {
        let number = first + i;
        match (before, message.role) {
            (_, Role::System) => return wrong(format!("message {number} is a system message, but not the first")),
            (None, Role::User) | (Some(Role::User | Role::Tool), Role::Assistant) => {}
            (Some(Role::Assistant), Role::User | Role::Tool) | (Some(Role::Tool), Role::Tool) => {}
            (None, role) => {
                return wrong(format!("message {number}, the first, is the {role}'s; the user must begin"));
            }
            (Some(before), role) if before == role => {
                return wrong(format!("messages {} and {number} are both the {role}'s; join them", number - 1));
            }
            (Some(before), role) => {
                let after = format!("message {number} is the {role}'s, after the {before}'s");
                return wrong(format!("{after}; the assistant must come between"));
            }
        }
        before = Some(message.role);
    }
    match before {
        Some(Role::Assistant) => Ok(()),
        None => fault("no answer", "there is no assistant message to learn"),
        Some(role) => {
            fault("no answer", format!("the last message is the {role}'s; the assistant must have answered it"))
        }
    }
}
