//! Distances between computations, and how large rounding can make them.

use megatrain_layers::ModelConfig;

/// Unit roundoff of f32.
pub const U32: f64 = f32::EPSILON as f64 / 2.0;

/// `|a - b| / |b|` in the Euclidean norm; 0 where both are 0.
///
/// # Panics
/// If the lengths differ.
pub fn distance(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
    let apart = norm(&mut a.iter().zip(b).map(|(&a, &b)| a as f64 - b as f64));
    if apart == 0.0 { 0.0 } else { apart / norm(&mut b.iter().map(|&b| b as f64)) }
}

/// How far two f32 computations of the same values may be apart, in [`distance`], when each value is the end of `n`
/// roundings in a row.
///
/// Rounding errors are at most [`U32`] each and independent of one another, so `n` of them add up to `sqrt(n) u` rather
/// than `n u` (Higham and Mary, "A New Approach to Probabilistic Rounding Error Analysis", 2019). Both computations have
/// them, which would make `sqrt(2 n) u`; that errors are uniform, with a root mean square of `u / sqrt(3)`, takes that
/// below `sqrt(n) u`.
pub fn rounding(n: usize) -> f64 {
    (n as f64).sqrt() * U32
}

/// Fails, naming `what`, if `a` is further from `b` than `bound`. Returns the distance.
///
/// # Panics
/// If it is.
pub fn assert_near(what: &str, a: &[f32], b: &[f32], bound: f64) -> f64 {
    let apart = distance(a, b);
    assert!(apart <= bound, "{what}: {apart:.2e} apart, more than {bound:.2e}");
    apart
}

/// Relative difference of two numbers.
pub fn relative(a: f64, b: f64) -> f64 {
    if a == b { 0.0 } else { (a - b).abs() / b.abs() }
}

/// Roundings in a row from the embedding to a logit: in each block the inner dimensions of its norms, products and
/// attention over `tokens` keys, and one for each other op; then the final norm and the projection.
pub fn forward_roundings(config: &ModelConfig, tokens: usize) -> usize {
    let heads = config.heads * config.head_dim;
    let attention = config.hidden + config.hidden + 2 * config.head_dim + 2 * tokens + heads;
    let mlp = config.hidden + config.hidden + config.intermediate;
    config.layers * (attention + mlp + 12) + 2 * config.hidden
}

/// To a loss: through the sum over the vocabulary.
pub fn loss_roundings(config: &ModelConfig, tokens: usize) -> usize {
    forward_roundings(config, tokens) + config.vocab
}

/// To a gradient: there, and back through two products for each one before.
pub fn gradient_roundings(config: &ModelConfig, tokens: usize) -> usize {
    loss_roundings(config, tokens) + 2 * forward_roundings(config, tokens)
}
