//! [`ConfigError`]: a model configuration that cannot be used, and why.

/// A model configuration that cannot be used. Every variant names the key of `config.json` to look at.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum ConfigError {
    /// The document is not a JSON object.
    #[error("the model configuration is not a JSON object: a Hugging Face config.json is expected")]
    NotAnObject,
    /// Neither key that says what the model is.
    #[error("the model configuration has neither `model_type` nor `architectures`; known model types: {known}")]
    NoModelType {
        /// The model types there are templates for.
        known: String,
    },
    /// No template for this model.
    #[error("{key} `{given}` is not supported; known: {known}")]
    Unknown {
        /// `model_type` or `architectures`.
        key: &'static str,
        /// Its value.
        given: String,
        /// What would be accepted.
        known: String,
    },
    /// A value of the wrong type or out of range.
    #[error("`{key}` is {given}, expected {expected}")]
    Invalid {
        /// The key, with its parents: `rope_scaling.factor`.
        key: String,
        /// Its value as JSON; `missing` if there is none.
        given: String,
        /// What would be accepted.
        expected: String,
    },
    /// A setting that asks for something the templates do not compute.
    #[error("`{key}` = {given} is not supported: {why}")]
    Unsupported {
        /// The key, with its parents.
        key: String,
        /// Its value as JSON.
        given: String,
        /// What is supported instead.
        why: String,
    },
}
