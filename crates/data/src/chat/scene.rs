//! One conversation on its way to tokens: laid out whole, or cut to a length.

use super::locate::{Locator, message_value};
use super::mask::Mask;
use super::template::{Template, Variables};
use super::{ChatEncoder, Laid, Notes, SkipReason, TrainOn};
use crate::conversation::{Message, Role};
use minijinja::Value;
use std::cell::Cell;
use std::ops::Range;

/// What all steps need.
pub(super) struct Scene<'a> {
    pub encoder: &'a ChatEncoder,
    pub template: &'a Template,
    pub variables: &'a Variables,
    /// What is known of the conversation already.
    pub notes: Notes,
}

impl Scene<'_> {
    /// Renders and encodes all of `messages` and finds what is learnt.
    pub fn lay_out(&self, messages: &[Message], wanted: &[bool]) -> Result<Laid, SkipReason> {
        if let Some(c) = messages.iter().find_map(|m| m.content.find(self.template.reserved())) {
            return Err(SkipReason::Text(format!("byte {c} of a message is U+FDD0 or U+FDD1, which is no character")));
        }
        let values: Vec<Value> = messages.iter().map(|message| message_value(message, &message.content)).collect();
        let full = self.template.render(&values, false, self.variables).map_err(|e| self.encoder.refused(e))?;
        let pieces = self.encoder.pieces(&full.text)?;
        let begin = self.encoder.begin(&pieces);
        let mut laid = Laid { values, full, pieces, begin, learn: Vec::new(), notes: self.notes };
        let (mask, altered_turns) = {
            let locator = self.locator(messages, &laid);
            let spans = self.spans(&locator, wanted).map_err(SkipReason::Unlocatable)?;
            (Mask::new(&laid.pieces, &spans), locator.altered_turns.get())
        };
        laid.notes.straddling = mask.straddling;
        laid.notes.altered_turns = altered_turns;
        laid.learn = match self.encoder.options.train_on {
            TrainOn::Everything => mask.learn.iter().map(|left_out| !left_out).collect(),
            _ => mask.learn,
        };
        Ok(laid)
    }

    fn locator<'a>(&'a self, messages: &'a [Message], laid: &'a Laid) -> Locator<'a> {
        Locator {
            template: self.template,
            tokenizer: &*self.encoder.tokenizer,
            variables: self.variables,
            messages,
            values: &laid.values,
            full: &laid.full,
            pieces: &laid.pieces,
            altered_turns: Cell::new(0),
        }
    }

    /// The bytes that are learnt; where everything is, those that are not.
    fn spans(&self, locator: &Locator, wanted: &[bool]) -> Result<Vec<Range<usize>>, String> {
        match self.encoder.options.train_on {
            TrainOn::Everything if !wanted.contains(&false) => Ok(Vec::new()),
            TrainOn::Everything => locator.wanted(&wanted.iter().map(|wanted| !wanted).collect::<Vec<_>>()),
            _ => locator.wanted(wanted),
        }
    }

    /// Cuts behind the last turn of the assistant that fits and has something learnt before its end; if there is none, at
    /// `max` tokens.
    pub fn cut_right(&self, messages: &[Message], mut laid: Laid, max: usize) -> Result<Laid, SkipReason> {
        let room = max.saturating_sub(usize::from(laid.begin.is_some()));
        let mut keep = None;
        {
            let locator = self.locator(messages, &laid);
            for k in (0..messages.len()).filter(|&k| messages[k].role == Role::Assistant) {
                let spans = locator.message(k).map_err(SkipReason::Unlocatable)?;
                let Some(end) = spans.last().map(|span| span.end) else { continue };
                let tokens = laid.pieces.partition_point(|piece| piece.start < end);
                if tokens > room {
                    break;
                }
                keep = keep.max(Some(tokens));
            }
        }
        let learnt = |tokens: &usize| laid.learn.iter().take(*tokens).skip(1).any(|&learn| learn);
        let keep = match keep.filter(learnt) {
            Some(tokens) => {
                laid.notes.cut_right = 1;
                tokens
            }
            None => {
                laid.notes.cut_inside = 1;
                room
            }
        };
        laid.pieces.truncate(keep);
        laid.learn.truncate(keep);
        if !laid.learn.contains(&true) {
            let problem = format!("the first text to be learnt begins behind the {max} tokens that are allowed");
            return Err(SkipReason::NoTargets(problem));
        }
        Ok(laid)
    }

    /// Leaves out as few of the earliest turns as possible. `tokens` is the whole's length, for the message.
    pub fn cut_left(
        &self,
        messages: &[Message],
        wanted: &[bool],
        tokens: usize,
        max: usize,
    ) -> Result<Laid, SkipReason> {
        let system = messages.iter().take_while(|message| message.role == Role::System).count();
        let begins: Vec<usize> = (system + 1..messages.len())
            .filter(|&k| messages[k].role == Role::User && wanted[k..].contains(&true))
            .collect();
        let from = |k: usize| -> Result<Laid, SkipReason> {
            let messages: Vec<Message> = [&messages[..system], &messages[k..]].concat();
            let wanted: Vec<bool> = [&wanted[..system], &wanted[k..]].concat();
            self.lay_out(&messages, &wanted)
        };
        // The fewest turns left out that make it fit, by bisection: fewer turns are never more tokens.
        let (mut low, mut high, mut best) = (0, begins.len(), None);
        while low < high {
            let middle = (low + high) / 2;
            let laid = from(begins[middle])?;
            if laid.len() <= max {
                best = Some(laid);
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        let mut laid = best.ok_or(SkipReason::TooLong { tokens, max })?;
        laid.notes.cut_left = 1;
        Ok(laid)
    }
}
