//! Documents that share a sequence do not see each other: what stands in one changes no bit of the other's loss, logits or
//! gradients.

use megatrain_base::DType;
use megatrain_cpu::{ExecutorOptions, Mode};
use megatrain_data::Sequence;
use megatrain_planner::Settings;
use megatrain_tests::batch::{document, micro};
use megatrain_tests::golden::Golden;
use megatrain_tests::rig::{Optim, Rig};

const PLACES: usize = 24;

/// One sequence of two documents.
fn packed([mut first, second]: [Sequence; 2]) -> Sequence {
    first.tokens.extend(second.tokens);
    first.targets.extend(second.targets);
    first.doc_lens.extend(second.doc_lens);
    first
}

/// meta-pytorch/torchtune#892, axolotl-ai-cloud/axolotl#3796
#[test]
fn another_document_changes_no_bit() {
    for golden in Golden::all() {
        for dtype in [DType::F32, DType::Bf16] {
            let v = golden.config().vocab as i32;
            let executor =
                ExecutorOptions { mode: Mode::Inline, poison: true, threads: 1, ..ExecutorOptions::default() };
            let rig = Rig::new(&golden.source, Settings::new(dtype, PLACES, 1), executor);
            // Nothing of A is a target, so all loss and all gradients are B's. Its tokens are B's or not.
            let others = [3, 11].map(|factor| document((0..9).map(|i| (i * factor + 2) % v).collect(), 9));
            let b = document((0..12).map(|i| (i * 5 + 3) % v).collect(), 1);
            for a_is_first in [true, false] {
                let order = |a: &Sequence| if a_is_first { [a.clone(), b.clone()] } else { [b.clone(), a.clone()] };
                let batches = others.each_ref().map(|a| micro(&[packed(order(a))], PLACES));
                assert_eq!(batches[0].target_count, 10, "twelve tokens, one masked, none across the border");
                let start = if a_is_first { 9 } else { 0 };
                assert_eq!(
                    batches[0].positions[start..start + 12],
                    (0..12).collect::<Vec<_>>()[..],
                    "positions begin anew"
                );
                let [one, two] = batches.each_ref().map(|batch| {
                    let result = rig.step(std::slice::from_ref(batch), Optim::lr(0.0));
                    let gradients: Vec<_> =
                        rig.tensors().map(|(_, t)| (t.name.clone(), rig.gradient(&t.name))).collect();
                    (result.loss_sum(), result.grad_norm(), gradients)
                });
                let case = format!("{} {dtype}, A first: {a_is_first}", golden.name);
                assert!(one.0 > 0.0 && one.1 > 0.0, "{case}");
                assert_eq!((one.0.to_bits(), one.1.to_bits()), (two.0.to_bits(), two.1.to_bits()), "{case}");
                for ((name, one), (_, two)) in one.2.iter().zip(&two.2) {
                    let same = one.iter().zip(two).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "{case}: gradient of {name}");
                }
                for row in start..start + 12 {
                    assert_eq!(rig.logits(&batches[0], row), rig.logits(&batches[1], row), "{case}: logits of {row}");
                }
            }
        }
    }
}
