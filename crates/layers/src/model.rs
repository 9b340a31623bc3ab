//! [`units`]: the pieces of a model that travel to the device one by one, in forward order.

use crate::{Init, ModelConfig, block_for};
use megatrain_base::SlabLayout;

/// What a unit is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum UnitKind {
    /// The embedding table: tensor [`UnitKind::EMBED`].
    Embedding,
    /// A block, by number.
    Block(usize),
    /// Final norm and vocabulary projection.
    Head,
    /// A tied model's embedding table, which is its vocabulary projection too, with the final norm. Unit 0.
    EmbeddingHead,
}

impl UnitKind {
    /// Index of the embedding table in the layouts of [`UnitKind::Embedding`] and [`UnitKind::EmbeddingHead`].
    pub const EMBED: usize = 0;

    /// Index of the final norm's weight in this unit's layout, if it has one.
    pub const fn final_norm(self) -> Option<usize> {
        match self {
            UnitKind::Head => Some(0),
            UnitKind::EmbeddingHead => Some(1),
            UnitKind::Embedding | UnitKind::Block(_) => None,
        }
    }

    /// Index of the vocabulary projection `[V, D]` in this unit's layout, if it has one.
    pub const fn projection(self) -> Option<usize> {
        match self {
            UnitKind::Head => Some(1),
            UnitKind::EmbeddingHead => Some(Self::EMBED),
            UnitKind::Embedding | UnitKind::Block(_) => None,
        }
    }
}

/// A unit: its weights and what they start as.
#[derive(Clone, PartialEq, Debug)]
pub struct UnitSpec {
    /// What it is.
    pub kind: UnitKind,
    /// Names, shapes and places of its weights.
    pub layout: SlabLayout,
    /// What each tensor of the layout starts as in a new model.
    pub inits: Vec<Init>,
}

/// The units of a model in forward order: embedding (with the head, if tied), blocks, head (if untied).
pub fn units(config: &ModelConfig) -> Vec<UnitSpec> {
    const EMBED: &str = "model.embed_tokens.weight";
    const NORM: &str = "model.norm.weight";
    let (table, normal) = ([config.vocab, config.hidden], Init::Normal(config.init_std));
    let block = block_for(config);
    let mut units = Vec::with_capacity(config.layers + 2);

    let mut layout = SlabLayout::new();
    layout.push(EMBED, table, true);
    if config.tied {
        layout.push(NORM, [config.hidden], false);
        units.push(UnitSpec { kind: UnitKind::EmbeddingHead, layout, inits: vec![normal, Init::Ones] });
    } else {
        units.push(UnitSpec { kind: UnitKind::Embedding, layout, inits: vec![normal] });
    }
    units.extend((0..config.layers).map(|i| UnitSpec {
        kind: UnitKind::Block(i),
        layout: block.layout(i),
        inits: block.inits(),
    }));
    if !config.tied {
        let mut layout = SlabLayout::new();
        layout.push(NORM, [config.hidden], false);
        layout.push("lm_head.weight", table, true);
        units.push(UnitSpec { kind: UnitKind::Head, layout, inits: vec![Init::Ones, normal] });
    }
    units
}
