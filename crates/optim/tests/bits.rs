//! Bit equality: instruction sets, thread counts, split against whole masters, slabs against tensors.

mod common;

use common::{Words, bits, halves, joined, on_threads, to_bf16};
use megatrain_base::SlabLayout;
use megatrain_optim::{
    AdamW, CHUNK_ELEMS, Grad, Isa, OptimError, Params, SquareSum, StepScalars, Weights, update, update_f32,
    update_slab, update_slab_with, update_split,
};

/// Odd, so that every vector width leaves a tail; three chunks.
const LEN: usize = 2 * CHUNK_ELEMS + 12_345;

fn scalars(step: u64) -> StepScalars {
    StepScalars::new(&AdamW { weight_decay: 0.1, ..AdamW::default() }, 1e-2, step, 0.75).unwrap()
}

/// Every combination of special values stands somewhere, at places that reach all vector lanes and the tail.
fn special(words: &mut Words, len: usize, nonnegative: bool) -> Vec<f32> {
    let values = [0.0, -0.0, 1e-45, 1.1e-38, 1e-30, 1.0, 255.5, 1e18, 3.3e38, f32::MAX, f32::INFINITY, f32::NAN];
    (0..len)
        .map(|_| {
            let x = match words.next() % 3 {
                0 => values[(words.next() % values.len() as u64) as usize],
                1 => words.unit(),
                // Any magnitude: a uniform exponent.
                _ => f32::from_bits((words.next() as u32) & 0x7f7f_ffff),
            };
            if nonnegative || words.next() & 1 == 0 { x.abs() } else { -x }
        })
        .collect()
}

struct Case {
    w: Vec<f32>,
    m: Vec<f32>,
    v: Vec<f32>,
    g: Vec<f32>,
}

impl Case {
    fn special(seed: u64) -> Case {
        let mut words = Words(seed);
        let w = special(&mut words, LEN, false);
        Case {
            w,
            m: special(&mut words, LEN, false),
            v: special(&mut words, LEN, true),
            g: special(&mut words, LEN, false),
        }
    }

    fn usual(seed: u64) -> Case {
        let mut words = Words(seed);
        let w = words.units(LEN);
        let m = words.units(LEN).iter().map(|x| x * 0.1).collect();
        let v = words.units(LEN).iter().map(|x| x * x * 0.01).collect();
        Case { w, m, v, g: words.units(LEN) }
    }

    /// Bits of (weights, m, v) after three updates, and the result of each.
    fn run(&self, isa: Isa, split: bool, bf16: bool) -> (Vec<u32>, Vec<u32>, Vec<u32>, String) {
        let (mut w, mut m, mut v) = (self.w.clone(), self.m.clone(), self.v.clone());
        let (mut hi, mut lo) = halves(&w);
        let narrow = to_bf16(&self.g);
        let mut said = String::new();
        for step in 1..4 {
            let weights = if split { Weights::Split { hi: &mut hi, lo: &mut lo } } else { Weights::F32(&mut w) };
            let g = if bf16 { Grad::Bf16(&narrow) } else { Grad::F32(&self.g) };
            let result = update(isa, &scalars(step), true, Params { weights, m: &mut m, v: &mut v, g });
            said += &format!("{result:?}\n");
        }
        (if split { joined(&hi, &lo) } else { bits(&w) }, bits(&m), bits(&v), said)
    }
}

#[test]
fn all_instruction_sets_give_the_same_bits() {
    for (seed, case) in [Case::special(1), Case::special(2), Case::usual(3)].into_iter().enumerate() {
        for (split, bf16) in [(false, false), (false, true), (true, false), (true, true)] {
            let reference = case.run(Isa::PORTABLE, split, bf16);
            assert_eq!(reference.3.contains("NotStorable"), seed < 2, "{}", reference.3);
            for isa in Isa::available() {
                assert!(case.run(isa, split, bf16) == reference, "{isa}, case {seed}, split {split}, bf16 {bf16}");
            }
        }
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let case = Case::special(4);
    let norm = |threads| on_threads(threads, || SquareSum::of(Grad::F32(&Words(5).units(3 * LEN))));
    let (reference, sum) = (on_threads(1, || case.run(Isa::best(), true, true)), norm(1));
    for threads in [2, 3] {
        assert!(on_threads(threads, || case.run(Isa::best(), true, true)) == reference, "{threads} threads");
        assert_eq!(norm(threads).sum.to_bits(), sum.sum.to_bits(), "{threads} threads");
    }
}

/// With equal gradients the two memory forms of a master hold the same number, step after step.
#[test]
fn split_masters_equal_whole_ones() {
    let case = Case::usual(6);
    let narrow = to_bf16(&case.g);
    let (mut hi, mut lo) = halves(&case.w);
    let (mut w, mut m, mut v) = (case.w.clone(), case.m.clone(), case.v.clone());
    let (mut m2, mut v2) = (m.clone(), v.clone());
    for step in 1..6 {
        update_f32(&scalars(step), true, &mut w, &mut m, &mut v, Grad::Bf16(&narrow)).unwrap();
        update_split(&scalars(step), true, &mut hi, &mut lo, &mut m2, &mut v2, Grad::Bf16(&narrow)).unwrap();
    }
    assert!(joined(&hi, &lo) == bits(&w) && bits(&m) == bits(&m2) && bits(&v) == bits(&v2));
}

#[test]
fn bf16_gradients_are_widened_exactly() {
    let case = Case::usual(7);
    let narrow = to_bf16(&case.g);
    let wide: Vec<f32> = narrow.iter().map(|g| g.to_f32()).collect();
    let rounded = Case { g: wide, ..case };
    for isa in Isa::available() {
        assert!(rounded.run(isa, false, false) == rounded.run(isa, false, true), "{isa}");
        let (a, b) = (SquareSum::of_with(isa, Grad::F32(&rounded.g)), SquareSum::of_with(isa, Grad::Bf16(&narrow)));
        assert_eq!(a.sum.to_bits(), b.sum.to_bits(), "{isa}");
    }
}

fn layout() -> SlabLayout {
    let mut layout = SlabLayout::new();
    layout.push("norm.weight", [300u64], false);
    layout.push("q.weight", [400u64, 300], true);
    layout.push_adjacent("k.weight", [33u64, 300], true);
    layout.push("q.bias", [77u64], false);
    layout
}

/// A slab updates as its tensors do one by one, and its padding keeps even NaN bits.
#[test]
fn a_slab_is_its_tensors_and_padding_stays() {
    let layout = layout();
    let len = layout.len_elems() as usize;
    let padding = f32::from_bits(0x7fc1_2345);
    let mut words = Words(8);
    let mut slab = || {
        let mut slab = vec![padding; len];
        for t in &layout.tensors {
            slab[t.offset_elems as usize..][..t.shape.elems() as usize].fill_with(|| words.unit());
        }
        slab
    };
    let (w, m, g) = (slab(), slab(), slab());
    let v: Vec<f32> = m.iter().map(|m| if m.is_nan() { padding } else { m * m }).collect();
    let (mut want_w, mut want_m, mut want_v) = (w.clone(), m.clone(), v.clone());
    let mut sums = Vec::new();
    for t in &layout.tensors {
        let range = t.offset_elems as usize..(t.offset_elems + t.shape.elems()) as usize;
        let grad = Grad::F32(&g[range.clone()]);
        let (w, m, v) = (&mut want_w[range.clone()], &mut want_m[range.clone()], &mut want_v[range]);
        update_f32(&scalars(2), t.decay, w, m, v, grad).unwrap();
        sums.push(SquareSum::of(grad));
    }
    for isa in Isa::available() {
        let (mut w, mut m, mut v) = (w.clone(), m.clone(), v.clone());
        let params = Params { weights: Weights::F32(&mut w), m: &mut m, v: &mut v, g: Grad::F32(&g) };
        update_slab_with(isa, &layout, &scalars(2), params).unwrap();
        assert!(bits(&w) == bits(&want_w) && bits(&m) == bits(&want_m) && bits(&v) == bits(&want_v), "{isa}");
    }
    let whole = SquareSum::of_slab(&layout, Grad::F32(&g)).unwrap();
    let parts = SquareSum::total(sums);
    // Another order of a few f64 additions.
    assert!(whole.nonfinite == 0 && (whole.sum - parts.sum).abs() <= 8.0 * f64::EPSILON * parts.sum);

    let (mut hi, mut lo) = halves(&w);
    let (mut m, mut v) = (m.clone(), v.clone());
    update_slab(&layout, &scalars(2), Weights::Split { hi: &mut hi, lo: &mut lo }, &mut m, &mut v, Grad::F32(&g))
        .unwrap();
    assert!(joined(&hi, &lo) == bits(&want_w));
}

#[test]
fn wrong_lengths_and_layouts_are_errors_and_write_nothing() {
    let s = scalars(1);
    let length = |r: Result<(), OptimError>, wrong: &str| match r {
        Err(OptimError::Length { what, expected: 8, got: 7 }) => assert!(what.contains(wrong), "{what}"),
        other => panic!("{wrong}: {other:?}"),
    };
    let (mut a, mut b, mut c) = (vec![1f32; 8], vec![0f32; 8], vec![0f32; 8]);
    let (mut hi, mut lo) = (vec![0x3f80u16; 8], vec![0u16; 8]);
    let g = vec![1f32; 8];
    length(update_f32(&s, true, &mut a[..7], &mut b, &mut c, Grad::F32(&g)), "weight");
    length(update_f32(&s, true, &mut a, &mut b, &mut c[..7], Grad::F32(&g)), "second moments");
    length(update_f32(&s, true, &mut a, &mut b, &mut c, Grad::F32(&g[..7])), "gradient");
    length(update_split(&s, true, &mut hi[..7], &mut lo, &mut b, &mut c, Grad::F32(&g)), "high");
    length(update_split(&s, true, &mut hi, &mut lo[..7], &mut b, &mut c, Grad::F32(&g)), "low");
    assert!(a == [1.0; 8] && b == [0.0; 8] && c == [0.0; 8] && hi == [0x3f80; 8] && lo == [0; 8]);
    update_f32(&s, true, &mut [], &mut [], &mut [], Grad::F32(&[])).unwrap();
    assert_eq!(SquareSum::of(Grad::F32(&[])), SquareSum::default());

    let mut layout = layout();
    let len = layout.len_elems() as usize;
    let slab = |layout: &SlabLayout, len: usize| {
        let (mut w, mut m, mut v, g) = (vec![1f32; len], vec![0f32; len], vec![0f32; len], vec![1f32; len]);
        let result = update_slab(layout, &s, Weights::F32(&mut w), &mut m, &mut v, Grad::F32(&g));
        assert!(result.is_ok() || w.iter().all(|&w| w == 1.0));
        assert_eq!(result.is_err(), SquareSum::of_slab(layout, Grad::F32(&g)).is_err());
        result
    };
    slab(&layout, len).unwrap();
    assert!(matches!(slab(&layout, len - 1), Err(OptimError::Length { .. })));
    layout.tensors[2].offset_elems -= 1;
    assert!(matches!(slab(&layout, len), Err(OptimError::Layout { tensor, .. }) if tensor == "k.weight"));
    layout.tensors[2].offset_elems = u64::MAX;
    assert!(matches!(slab(&layout, len), Err(OptimError::Layout { tensor, .. }) if tensor == "k.weight"));
}
