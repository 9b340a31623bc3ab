//! The built-in tokenizer: one token a byte, and one that ends a text. Needs no file, yet can write the files that make
//! other programs encode equally.

use super::{Piece, TextTokenizer};
use crate::error::Error;
use serde_json::{Map, Value, json};

/// Ids 0 to 255 are the bytes of UTF-8; 256 ends a text. No begin token. 257 ids in all.
///
/// A text that spells [`ByteTokenizer::EOS`] gets the end token there, as with every `tokenizer.json`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ByteTokenizer;

impl ByteTokenizer {
    /// The spelling of the end token.
    pub const EOS: &'static str = "<|endoftext|>";
    /// The id of the end token.
    pub const EOS_ID: i32 = 256;
    /// Number of ids.
    pub const VOCAB_SIZE: usize = 257;

    /// `tokenizer.json` and `tokenizer_config.json` (name, content) of the same mapping, in the form that Hugging Face
    /// libraries read: a byte-level BPE without merges. The token of byte `b` is spelled with the letter that GPT-2's
    /// byte-level scheme gives to `b`.
    pub fn files() -> [(&'static str, Vec<u8>); 2] {
        let vocab: Map<String, Value> = (0..=255u8).map(|b| (letter(b).to_string(), Value::from(b))).collect();
        let special = json!({
            "id": Self::EOS_ID, "content": Self::EOS, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false, "special": true
        });
        let byte_level = json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false
        });
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [special], "normalizer": null,
            "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                "vocab": vocab, "merges": []
            }
        });
        let config = json!({
            "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": Self::EOS, "pad_token": Self::EOS,
            "add_bos_token": false, "clean_up_tokenization_spaces": false
        });
        let bytes = |value: &Value| format!("{value:#}\n").into_bytes();
        [("tokenizer.json", bytes(&tokenizer)), ("tokenizer_config.json", bytes(&config))]
    }
}

/// GPT-2's letter for a byte: itself where it is a visible Latin-1 character, else one of U+0100 on, in byte order.
/// Source: `bytes_to_unicode` of <https://github.com/openai/gpt-2/blob/master/src/encoder.py>.
fn letter(byte: u8) -> char {
    let visible = |b: u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if visible(byte) {
        return byte as char;
    }
    let nth = (0..byte).filter(|&b| !visible(b)).count() as u32;
    char::from_u32(0x100 + nth).expect("at most 68 beyond U+0100, all of them letters")
}

impl TextTokenizer for ByteTokenizer {
    fn encode(&self, text: &str) -> Result<Vec<i32>, Error> {
        Ok(self.pieces(text)?.into_iter().map(|piece| piece.id).collect())
    }

    fn pieces(&self, text: &str) -> Result<Vec<Piece>, Error> {
        let mut pieces = Vec::with_capacity(text.len());
        let mut at = 0;
        for (i, part) in text.split(Self::EOS).enumerate() {
            if i > 0 {
                pieces.push(Piece { id: Self::EOS_ID, start: at, end: at + Self::EOS.len() });
                at += Self::EOS.len();
            }
            for (first, c) in part.char_indices() {
                let (start, end) = (at + first, at + first + c.len_utf8());
                let bytes = part[first..].bytes().take(c.len_utf8());
                pieces.extend(bytes.map(|byte| Piece { id: i32::from(byte), start, end }));
            }
            at += part.len();
        }
        Ok(pieces)
    }

    fn begin_id(&self) -> Option<i32> {
        None
    }

    fn special_tokens(&self) -> Vec<(i32, String)> {
        vec![(Self::EOS_ID, Self::EOS.to_owned())]
    }

    fn decode(&self, ids: &[i32]) -> Result<String, Error> {
        let bytes: Vec<u8> = ids.iter().filter_map(|&id| u8::try_from(id).ok()).collect();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn vocab_size(&self) -> usize {
        Self::VOCAB_SIZE
    }

    fn bos_id(&self) -> Option<i32> {
        None
    }

    fn eos_id(&self) -> Option<i32> {
        Some(Self::EOS_ID)
    }

    fn stop_ids(&self) -> &[i32] {
        &[Self::EOS_ID]
    }
}
