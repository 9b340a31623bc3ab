//! Updates of a whole unit: walks the tensors of a [`SlabLayout`] over slabs that share its element offsets.

use crate::adamw::{cut, run};
use crate::{Grad, Isa, OptimError, Params, StepScalars, Weights};
use megatrain_base::SlabLayout;
use std::ops::Range;

/// The element range of each tensor, checked to be in address order, disjoint and inside the slab.
pub(crate) fn tensor_ranges(layout: &SlabLayout) -> Result<Vec<Range<usize>>, OptimError> {
    let mut end = 0u64;
    layout
        .tensors
        .iter()
        .map(|tensor| {
            let start = tensor.offset_elems;
            let stop = start.checked_add(tensor.shape.elems());
            match stop.filter(|&stop| start >= end && stop <= layout.len_elems()) {
                Some(stop) => {
                    end = stop;
                    Ok(start as usize..stop as usize)
                }
                None => Err(OptimError::Layout { tensor: tensor.name.clone(), offset: start }),
            }
        })
        .collect()
}

/// Updates every tensor of a slab, decaying those whose [`decay`](megatrain_base::SlabTensor::decay) says so. All
/// buffers are whole slabs of `layout.len_elems()` elements; padding is neither read nor written.
///
/// # Errors
/// [`OptimError::Length`] and [`OptimError::Layout`] before anything is written; [`OptimError::NotStorable`], naming
/// the tensor, after everything storable is.
pub fn update_slab(
    layout: &SlabLayout,
    scalars: &StepScalars,
    weights: Weights<'_>,
    m: &mut [f32],
    v: &mut [f32],
    g: Grad<'_>,
) -> Result<(), OptimError> {
    update_slab_with(Isa::best(), layout, scalars, Params { weights, m, v, g })
}

/// [`update_slab`] with the given instructions.
///
/// # Errors
/// As [`update_slab`].
pub fn update_slab_with(
    isa: Isa,
    layout: &SlabLayout,
    scalars: &StepScalars,
    params: Params<'_>,
) -> Result<(), OptimError> {
    params.check_len(layout.len_elems() as usize)?;
    let split = params.is_split();
    let mut pieces = Vec::new();
    let (mut rest, mut at) = (params, 0);
    for (index, range) in tensor_ranges(layout)?.into_iter().enumerate() {
        let (_padding, from_tensor) = rest.split_at(range.start - at);
        let (tensor, behind) = from_tensor.split_at(range.len());
        cut(&mut pieces, index, layout.tensors[index].decay, tensor);
        (rest, at) = (behind, range.end);
    }
    run(isa, scalars, split, pieces, |index| Some(layout.tensors[index].name.clone()))
}
