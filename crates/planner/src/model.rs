//! [`Model`]: the templates of one model and its units.

use megatrain_base::UnitId;
use megatrain_layers::{Block, Head, ModelConfig, UnitKind, UnitSpec, block_for, units};
use std::sync::Arc;

/// Templates and units of one model.
#[derive(Clone, Debug)]
pub struct Model {
    /// Its configuration.
    pub config: ModelConfig,
    /// The block template.
    pub block: Arc<dyn Block>,
    /// The head template.
    pub head: Arc<Head>,
    /// Units in forward order.
    pub units: Arc<[UnitSpec]>,
}

impl Model {
    /// The model a configuration describes.
    pub fn new(config: &ModelConfig) -> Self {
        Model {
            config: config.clone(),
            block: block_for(config).into(),
            head: Arc::new(Head::new(config)),
            units: units(config).into(),
        }
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.config.layers
    }

    /// The unit of block `l`.
    pub fn block_unit(&self, l: usize) -> UnitId {
        self.find(|kind| *kind == UnitKind::Block(l))
    }

    /// The unit that holds the embedding table.
    pub fn embedding_unit(&self) -> UnitId {
        self.find(|kind| matches!(kind, UnitKind::Embedding | UnitKind::EmbeddingHead))
    }

    /// The unit that holds the final norm and the output matrix.
    pub fn head_unit(&self) -> UnitId {
        self.find(|kind| matches!(kind, UnitKind::Head | UnitKind::EmbeddingHead))
    }

    fn find(&self, is: impl Fn(&UnitKind) -> bool) -> UnitId {
        let index =
            self.units.iter().position(|u| is(&u.kind)).expect("a model has an embedding, its blocks and a head");
        UnitId(index as u32)
    }

    /// The unit.
    pub fn unit(&self, id: UnitId) -> &UnitSpec {
        &self.units[id.0 as usize]
    }

    /// Parameters, a tied matrix counted once.
    pub fn params(&self) -> u64 {
        self.units.iter().map(|u| u.layout.params()).sum()
    }
}
