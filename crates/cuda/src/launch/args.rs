//! [`Args`]: kernel arguments by value.

use std::ffi::c_void;

/// Arguments in the order of a kernel's declaration. Each starts on an 8-byte word.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Args {
    words: Vec<u64>,
    starts: Vec<usize>,
}

impl Args {
    /// None yet.
    pub fn new() -> Self {
        Args::default()
    }

    fn push(mut self, words: impl IntoIterator<Item = u64>) -> Self {
        self.starts.push(self.words.len());
        self.words.extend(words);
        self
    }

    /// A device address.
    pub fn pointer(self, address: u64) -> Self {
        self.push([address])
    }

    /// A size as `int64_t`.
    pub fn long(self, value: usize) -> Self {
        self.push([value as u64])
    }

    /// A size as `int`.
    pub fn int(self, value: u32) -> Self {
        self.push([u64::from(value)])
    }

    /// A condition as `int`.
    pub fn flag(self, value: bool) -> Self {
        self.int(u32::from(value))
    }

    /// A `float`.
    pub fn float(self, value: f32) -> Self {
        self.int(value.to_bits())
    }

    /// A struct of `len` doubles, zeros behind the given ones.
    ///
    /// # Panics
    /// If there are more.
    pub fn doubles(self, values: &[f64], len: usize) -> Self {
        assert!(values.len() <= len, "{} doubles for {len}", values.len());
        let zeros = std::iter::repeat_n(0, len - values.len());
        self.push(values.iter().map(|x| x.to_bits()).chain(zeros))
    }

    /// Number of arguments.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Pointers to the arguments, as a launch takes them; valid while `self` is neither changed nor dropped.
    ///
    /// Values shorter than a word lie in its low bytes: every host of an NVIDIA GPU is little-endian.
    pub(crate) fn pointers(&self) -> Vec<*mut c_void> {
        self.starts.iter().map(|&start| (&raw const self.words[start]).cast_mut().cast()).collect()
    }
}
