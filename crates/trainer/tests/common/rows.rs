//! Rows of things that are wrong, run one by one; all that fail are reported together.

use super::Scene;

/// What is wrong, how it comes about, the arguments, and what the error must contain (`@`: the scene's directory).
pub type Row<'a> = (&'static str, fn(&Scene), &'a str, &'static [&'static str]);

/// Nothing but the flags is wrong.
pub const AS_IS: fn(&Scene) = |_| {};

/// Never to be read by anybody.
pub const FORBIDDEN: [&str; 3] = ["panicked", "internal error", "called `"];

/// Runs every row inside this process and reports all that fail.
pub fn check(rows: &[Row]) {
    let mut failures = String::new();
    for (what, spoil, args, wanted) in rows {
        let scene = Scene::new();
        spoil(&scene);
        let error = scene.run(args).err().unwrap_or_else(|| "it succeeded".into());
        let missing: Vec<_> = wanted.iter().map(|w| scene.fill(w)).filter(|w| !error.contains(w)).collect();
        let forbidden = FORBIDDEN.iter().any(|f| error.contains(f)) || !error.starts_with("error: ");
        let saved = super::opens(&scene.path("out/model"));
        if !missing.is_empty() || forbidden || saved {
            failures += &format!("\n{what} ({args}): lacks {missing:?}, saved a model: {saved}\n    {error}\n");
        }
    }
    assert!(failures.is_empty(), "{failures}");
}
