//! The conformance harness: [`check`] runs one [`Case`] through an executor and compares every element of every output
//! with the twin. An executor passes when it passes every case of [`Op::all_cases`].
//!
//! # The bound
//!
//! `truth` is the twin in f64; `plain` is the twin in f32 (in bf16 ops with the intermediates rounded that kernels hold
//! in bf16, see [`Real::held_in`]), stored in the operand's dtype. Both start from the same inputs, rounded to the
//! operands' dtypes. For an element `t` of the truth, a result `r` is accepted when
//!
//! `|r - t| <= 2 max|plain - truth| + u |t| + 2 e`
//!
//! where the maximum is over the tensor (so: at most twice as bad as the plain computation), `u |t|` is one rounding to
//! the operand's dtype, and `e` is what any order of summation in f32 may cost this element, derived by running the twin
//! on [`Tracked`]; its factor 2 leaves room for formulas that differ by a rounding here and there. Ops that are
//! [`crate::OpSpec::exact`] must give the plain result's bits. A result in f64 is computed in f64: there the plain
//! computation is the truth's own, and `e` what summation in f64 may cost.
//!
//! Two things the bound alone lets pass are looked at apart: elements that nobody wrote (buffers start as NaN), and
//! rounding that is biased, such as truncation: over at least [`BIAS_ELEMENTS`] bf16 elements, the mean error in units of
//! the last place, away from zero, may differ from the plain result's by at most [`BIAS_ULPS`]. Truncation is off by 0.5;
//! unbiased errors of up to a whole place average to less than 0.05 (one standard deviation) over so many.

pub use crate::memory::Memory;

use crate::case::Fill;
use crate::{Case, Op, Real, RefIo, Tracked, TrackedWide};
use megatrain_base::{Access, DType, Element, Span, Tensor, bf16};
use std::collections::HashMap;

/// Fewest bf16 elements whose mean error says something about the rounding.
pub const BIAS_ELEMENTS: usize = 512;
/// Largest difference between the mean errors, in units of the last place.
pub const BIAS_ULPS: f64 = 0.25;

/// A passed case.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// The op's name.
    pub op: &'static str,
    /// The case's name.
    pub case: String,
    /// What was compared.
    pub outputs: Vec<OutputReport>,
}

/// One compared output.
#[derive(Clone, PartialEq, Debug)]
pub struct OutputReport {
    /// The operand's name.
    pub operand: &'static str,
    /// Elements compared.
    pub elements: usize,
    /// The largest error as a share of its bound: at most 1 (0 for exact ops).
    pub worst_share: f64,
}

/// Runs a case: fills the inputs, poisons the outputs, calls `run`, compares.
///
/// The executor finds the inputs in the memory it is handed, one buffer a region, and leaves the outputs there: through
/// [`Memory::operands`], or by copying the bytes of its regions to a device and back.
///
/// # Errors
/// What is wrong, with the op, the case, the operand, the element, what it is and what it should have been.
pub fn check(case: &Case, run: impl FnOnce(&Op, &mut Memory) -> Result<(), String>) -> Result<Report, String> {
    let op = &case.op;
    let fail = |what: String| format!("{} ({}): {what}", op.name(), case.name);
    op.check().map_err(|e| fail(e.to_string()))?;
    let inputs = fill(case).map_err(fail)?;

    let mut memory = Memory::default();
    for (t, _) in op.operands() {
        memory.reserve(t.span.region, t.span.end_bytes() as usize);
    }
    for (t, access) in op.operands() {
        if access.reads() {
            store(&inputs[&t.span], &t, &mut memory);
        }
    }
    run(op, &mut memory).map_err(|e| fail(format!("the executor failed: {e}")))?;

    let mut outputs = Vec::new();
    let (truth, plain, tracked) = (twin::<f64>(op, &inputs), twin::<f32>(op, &inputs), twin::<Tracked>(op, &inputs));
    for ((t, access), &operand) in op.operands().into_iter().zip(op.operand_names()) {
        let fail = |what: String| fail(format!("operand {operand}: {what}"));
        if !memory.guards_whole(t.span.region) {
            return Err(fail("bytes before or behind the buffer were written".into()));
        }
        if access == Access::Read {
            let mut before = Memory::default();
            before.reserve(t.span.region, t.span.end_bytes() as usize);
            store(&inputs[&t.span], &t, &mut before);
            if before.bytes(t.span.region) != memory.bytes(t.span.region) {
                return Err(fail("the op only reads it, but it was changed".into()));
            }
            continue;
        }
        let got = load(&t, &memory);
        let (plain, errors): (Vec<f64>, Vec<f64>) = match t.dtype {
            DType::F64 => (truth.get(&t), twin::<TrackedWide>(op, &inputs).get(&t).iter().map(|x| x.error()).collect()),
            dtype => (
                plain.get(&t).iter().map(|x| rounded(x.f64(), dtype)).collect(),
                tracked.get(&t).iter().map(|x| x.error()).collect(),
            ),
        };
        let worst_share = if op.exact() {
            compare_bits(&t, &got, &plain).map_err(fail)?;
            0.0
        } else {
            compare(&t, &got, &truth.get(&t), &plain, &errors).map_err(fail)?
        };
        outputs.push(OutputReport { operand, elements: got.len(), worst_share });
    }
    Ok(Report { op: op.name(), case: case.name.clone(), outputs })
}

/// What an operand holds, as it can be stored in its dtype.
#[derive(Clone, Debug)]
enum Values {
    Floats(Vec<f64>),
    Ints(Vec<i32>),
}

fn compare_bits(t: &Tensor, got: &[f64], plain: &[f64]) -> Result<(), String> {
    for (i, (&g, &p)) in got.iter().zip(plain).enumerate() {
        if g.to_bits() != p.to_bits() && !(g.is_nan() && p.is_nan()) {
            return Err(format!("element {} is {g:e}, must be exactly {p:e}", index(t, i)));
        }
    }
    Ok(())
}

/// Returns the largest share of the bound that was used.
fn compare(t: &Tensor, got: &[f64], truth: &[f64], plain: &[f64], errors: &[f64]) -> Result<f64, String> {
    let finite = |x: f64| if x.is_finite() { x } else { 0.0 };
    let plain_error = plain.iter().zip(truth).map(|(p, t)| finite((p - t).abs())).fold(0.0, f64::max);
    let left = got.iter().zip(truth).filter(|(g, t)| g.is_nan() && !t.is_nan()).count();
    if let Some(i) = (0..got.len()).find(|&i| got[i].is_nan() && !truth[i].is_nan()) {
        return Err(format!(
            "{left} of {} elements are NaN (never written?), the first is {}, which should be {:e}",
            got.len(),
            index(t, i),
            truth[i]
        ));
    }
    let mut worst = 0.0f64;
    let (mut bad, mut first) = (0, None);
    for (i, (&g, &want)) in got.iter().zip(truth).enumerate() {
        if g == want || (g.is_nan() && want.is_nan()) {
            continue;
        }
        let rounding = t.dtype.unit_roundoff() * want.abs() + smallest_subnormal(t.dtype) / 2.0;
        let bound = 2.0 * plain_error + rounding + 2.0 * errors[i];
        let error = (g - want).abs();
        // An infinite truth makes the bound infinite, too: nothing but itself is near it.
        if want.is_finite() && error <= bound {
            worst = worst.max(error / bound);
        } else {
            bad += 1;
            first.get_or_insert((i, error, bound));
        }
    }
    if let Some((i, error, bound)) = first {
        return Err(format!(
            "{bad} of {} elements are wrong, the first is {}: it is {:e}, should be {:e}, off by {error:e}, allowed {bound:e} \
             (plain computation: {:e})",
            got.len(),
            index(t, i),
            got[i],
            truth[i],
            plain[i],
        ));
    }
    if t.dtype == DType::Bf16 {
        let (ours, plains) = (mean_error(got, truth), mean_error(plain, truth));
        if let (Some(ours), Some(plains)) = (ours, plains)
            && (ours - plains).abs() > BIAS_ULPS
        {
            return Err(format!(
                "the rounding is biased: elements are {ours:+.3} units of the last place away from zero on average, \
                 {plains:+.3} when rounded to nearest"
            ));
        }
    }
    Ok(worst)
}

/// The mean error away from zero in units of bf16's last place, each clamped to one unit; `None` for too few elements.
fn mean_error(values: &[f64], truth: &[f64]) -> Option<f64> {
    let errors: Vec<f64> = values
        .iter()
        .zip(truth)
        .filter(|(v, t)| v.is_finite() && t.is_finite() && t.abs() > f32::MIN_POSITIVE as f64)
        .map(|(v, t)| ((v - t) * t.signum() / (2f64.powf(t.abs().log2().floor()) / 128.0)).clamp(-1.0, 1.0))
        .collect();
    (errors.len() >= BIAS_ELEMENTS).then(|| errors.iter().sum::<f64>() / errors.len() as f64)
}

/// `[row, column]` of an element.
fn index(t: &Tensor, mut at: usize) -> String {
    let mut out = Vec::new();
    for &dim in t.shape.dims().iter().rev() {
        out.insert(0, at % dim as usize);
        at /= dim as usize;
    }
    format!("{out:?}")
}

fn smallest_subnormal(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::from_bits(1),
        DType::Bf16 => 2f64.powi(-133),
        _ => 2f64.powi(-149),
    }
}

/// Runs a twin on these inputs.
fn twin<R: Real>(op: &Op, inputs: &HashMap<Span, Values>) -> RefIo<R> {
    let mut io = RefIo::new();
    for (t, access) in op.operands() {
        if access.reads() {
            match &inputs[&t.span] {
                Values::Floats(values) => io.set(&t, values.iter().map(|&x| R::of(x)).collect()),
                Values::Ints(values) => io.set_ints(&t, values.clone()),
            }
        }
    }
    op.reference(&mut io);
    io
}

/// The values of every operand that the case's op reads.
fn fill(case: &Case) -> Result<HashMap<Span, Values>, String> {
    let mut inputs = HashMap::new();
    let mut made_by_ops = Vec::new();
    for (i, (t, access)) in case.op.operands().into_iter().enumerate() {
        if !access.reads() || inputs.contains_key(&t.span) {
            continue;
        }
        let given = case.fills.iter().find(|(span, _)| *span == t.span).map(|(_, fill)| fill);
        let values = match (given, t.dtype.is_float()) {
            (Some(Fill::From(op)), _) => {
                made_by_ops.push((t, op));
                continue;
            }
            (None, true) => Values::Floats(normals(i as u64, t.elems(), 1.0)),
            (Some(Fill::Normal(deviation)), true) => Values::Floats(normals(i as u64, t.elems(), *deviation as f64)),
            (Some(Fill::Values(values)), true) => Values::Floats(values.iter().map(|&x| x as f64).collect()),
            (Some(Fill::Ints(values)), false) => Values::Ints(values.clone()),
            (fill, _) => return Err(format!("the case fills {t} with {fill:?}")),
        };
        let len = match &values {
            Values::Floats(v) => v.len(),
            Values::Ints(v) => v.len(),
        };
        if len != t.elems() {
            return Err(format!("the case fills {t} with {len} elements"));
        }
        inputs.insert(t.span, stored(values, t.dtype));
    }
    let given = inputs.clone();
    for (t, op) in made_by_ops {
        op.check().map_err(|e| e.to_string())?;
        let values = twin::<f64>(op, &given).get(&t);
        inputs.insert(t.span, stored(Values::Floats(values), t.dtype));
    }
    Ok(inputs)
}

fn stored(values: Values, dtype: DType) -> Values {
    match values {
        Values::Floats(values) => Values::Floats(values.into_iter().map(|x| rounded(x, dtype)).collect()),
        ints => ints,
    }
}

/// Rounded to nearest even, as stored in `dtype`.
fn rounded(x: f64, dtype: DType) -> f64 {
    match dtype {
        DType::Bf16 => Element::to_f32(<bf16 as Element>::from_f32(x as f32)) as f64,
        _ => x as f32 as f64,
    }
}

/// Nearly normal numbers, the same on every machine: sums of twelve uniform ones (variance 1/12 each), from SplitMix64.
fn normals(seed: u64, n: usize, deviation: f64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6d65_6761_7472_6169;
    let mut uniform = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    };
    (0..n).map(|_| deviation * ((0..12).map(|_| uniform()).sum::<f64>() - 6.0)).collect()
}

fn store(values: &Values, t: &Tensor, memory: &mut Memory) {
    let bytes: Vec<u8> = match (values, t.dtype) {
        (Values::Ints(v), _) => v.iter().flat_map(|x| x.to_ne_bytes()).collect(),
        (Values::Floats(v), DType::Bf16) => {
            v.iter().flat_map(|&x| <bf16 as Element>::from_f32(x as f32).to_bits().to_ne_bytes()).collect()
        }
        (Values::Floats(v), _) => v.iter().flat_map(|&x| (x as f32).to_ne_bytes()).collect(),
    };
    let at = t.span.offset_bytes as usize;
    memory.bytes_mut(t.span.region)[at..at + bytes.len()].copy_from_slice(&bytes);
}

fn load(t: &Tensor, memory: &Memory) -> Vec<f64> {
    let bytes = &memory.bytes(t.span.region)[t.span.offset_bytes as usize..t.span.end_bytes() as usize];
    match t.dtype {
        DType::Bf16 => bytes
            .chunks_exact(2)
            .map(|b| Element::to_f32(bf16::from_bits(u16::from_ne_bytes([b[0], b[1]]))) as f64)
            .collect(),
        DType::F64 => bytes.as_chunks().0.iter().map(|&b| f64::from_ne_bytes(b)).collect(),
        _ => bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]]) as f64).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_on;

    fn twin_run(op: &Op, memory: &mut Memory) -> Result<(), String> {
        run_on(op, &memory.operands(op));
        Ok(())
    }

    #[test]
    fn every_op_has_cases_and_its_twin_passes_them() {
        let mut seen = std::collections::BTreeSet::new();
        for case in Op::all_cases() {
            let report = check(&case, twin_run).unwrap_or_else(|e| panic!("{e}"));
            assert!(!report.outputs.is_empty(), "{report:?}");
            seen.insert(report.op);
        }
        assert_eq!(seen.len(), Op::NAMES.len(), "ops with cases: {seen:?}");
    }

    #[test]
    fn writes_behind_a_buffer_are_found_whichever_it_is() {
        let case = Op::all_cases().into_iter().find(|c| c.op.name() == "rms_norm").unwrap();
        for ((t, _), name) in case.op.operands().into_iter().zip(case.op.operand_names()) {
            let error = check(&case, |op, memory| {
                twin_run(op, memory)?;
                memory.overrun(t.span.region);
                Ok(())
            })
            .unwrap_err();
            assert!(error.contains(name) && error.contains("behind the buffer"), "{error}");
        }
    }
}
