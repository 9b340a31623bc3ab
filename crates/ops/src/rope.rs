//! Rotary position embedding (Su et al. 2021, arXiv 2104.09864) in the half-split layout of Hugging Face: within a head, element `i`
//! pairs with `i + head_dim / 2` and turns by `position * inv_freq[i]`, `inv_freq[i] = theta^(-2i / head_dim)`, possibly scaled.

op! {
    /// Rotates query and key heads in place; value heads are left alone.
    Rope = "rope" {
        /// `[tokens, (heads + 2 kv_heads) * head_dim]`
        update qkv,
        /// `[tokens]` i32: position within the document
        read positions,
    }
    scalars {
        /// Query heads.
        heads: u32,
        /// Key and value heads.
        kv_heads: u32,
        /// Elements a head; even.
        head_dim: u32,
        /// Frequencies.
        rope: RopeParams,
        /// Rotate backwards: the gradient of the rotation.
        inverse: bool,
    }
}

/// How the frequencies come about.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RopeParams {
    /// Base of the geometric series.
    pub theta: f64,
    /// Change for long contexts.
    pub scaling: RopeScaling,
}

/// Frequency scaling for long contexts, named as in Hugging Face's `rope_scaling.rope_type`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum RopeScaling {
    /// None.
    Default,
    /// Every frequency divided by `factor`.
    Linear {
        /// Divisor.
        factor: f64,
    },
    /// Llama 3.1: low frequencies divided by `factor`, high ones kept, a linear blend between.
    Llama3 {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Wavelengths above `original_context / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original_context / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context length of the pretraining.
        original_context: f64,
    },
}

impl RopeParams {
    /// `inv_freq[0..head_dim / 2]` in f64.
    pub fn inv_freq(&self, head_dim: u32) -> Vec<f64> {
        (0..head_dim / 2)
            .map(|i| {
                let freq = self.theta.powf(-2.0 * i as f64 / head_dim as f64);
                match self.scaling {
                    RopeScaling::Default => freq,
                    RopeScaling::Linear { factor } => freq / factor,
                    RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                        let wavelength = 2.0 * std::f64::consts::PI / freq;
                        if wavelength > original_context / low_freq_factor {
                            freq / factor
                        } else if wavelength < original_context / high_freq_factor {
                            freq
                        } else {
                            let blend = (original_context / wavelength - low_freq_factor)
                                / (high_freq_factor - low_freq_factor);
                            (1.0 - blend) * freq / factor + blend * freq
                        }
                    }
                }
            })
            .collect()
    }
}

impl crate::OpSpec for Rope {
    fn check(&self) -> Result<(), crate::OpError> {
        Ok(())
    }
    fn flops(&self) -> f64 {
        0.0
    }
    fn reference<R: crate::Real>(&self, _io: &mut crate::RefIo<R>) {
        todo!()
    }
    fn cases() -> Vec<crate::Case> {
        Vec::new()
    }
}
