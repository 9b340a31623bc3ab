//! The tokenizer of a model directory: its `tokenizer.json`, with begin and end tokens as its other files ask.

use super::special::Special;
use super::{Piece, TextTokenizer};
use crate::error::{self, Error};
use std::path::Path;

/// A model's own tokenizer.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    vocab_size: usize,
    /// Put in front of every text.
    begin: Option<i32>,
    bos_id: Option<i32>,
    eos_id: Option<i32>,
    stop_ids: Vec<i32>,
}

impl Tokenizer {
    /// Loads `tokenizer.json`, and from `tokenizer_config.json`, `generation_config.json` and `config.json`, where they
    /// are, the begin and end tokens. Truncation and padding that the file asks for are off: packing does both.
    ///
    /// A text gets a begin token where `add_bos_token` is true, none where it is false; where that key is absent, as
    /// `tokenizer.json` itself would do. The end token of documents is `tokenizer_config.json`'s `eos_token`, else the
    /// first id of `generation_config.json` or `config.json`.
    pub fn load(model_dir: impl AsRef<Path>) -> Result<Tokenizer, Error> {
        let dir = model_dir.as_ref();
        let path = dir.join("tokenizer.json");
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                let problem = "there is no tokenizer.json; make one, for example in Python: \
                               AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)";
                return Err(error::file(dir, problem));
            }
            Err(e) => return Err(error::io(&path, "reading")(e)),
        };
        let mut inner = tokenizers::Tokenizer::from_bytes(&bytes)
            .map_err(|e| error::file(&path, format!("not a tokenizer that can be read: {e}")))?;
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|e| error::file(&path, format!("truncation cannot be turned off: {e}")))?;

        let vocab_size = inner.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1);
        if vocab_size == 0 || vocab_size > i32::MAX as usize {
            return Err(error::file(&path, "the vocabulary is empty or its ids are out of range"));
        }
        let special = Special::read(dir)?;
        let resolve = |token: &Option<String>, key: &str| -> Result<Option<i32>, Error> {
            let Some(token) = token else { return Ok(None) };
            let id = inner.token_to_id(token).map(|id| Some(id as i32));
            let problem = || format!("\"{key}\" is \"{token}\", which tokenizer.json does not have");
            id.ok_or_else(|| error::file(dir.join("tokenizer_config.json"), problem()))
        };
        let own_begin = own_begin(&inner, &path)?;
        let bos_id = resolve(&special.bos_token, "bos_token")?.or(special.bos_id).or(own_begin);
        let eos_id = resolve(&special.eos_token, "eos_token")?.or(special.eos_ids.first().copied());
        let begin = match special.add_bos {
            Some(false) => None,
            Some(true) if bos_id.is_none() => {
                let problem = "\"add_bos_token\" is true, but no file names the begin token; add \"bos_token\"";
                return Err(error::file(dir.join("tokenizer_config.json"), problem));
            }
            Some(true) => bos_id,
            None => own_begin,
        };
        let mut stop_ids: Vec<i32> = eos_id.into_iter().collect();
        stop_ids.extend(special.eos_ids.iter().filter(|&&id| Some(id) != eos_id));
        // What it adds is known now; what else it does is to take white space out of the places of tokens.
        inner.with_post_processor(None::<tokenizers::PostProcessorWrapper>);
        Ok(Tokenizer { inner, vocab_size, begin, bos_id, eos_id, stop_ids })
    }
}

/// The token that `tokenizer.json`'s own post-processing puts in front of a text, if it does.
fn own_begin(inner: &tokenizers::Tokenizer, path: &Path) -> Result<Option<i32>, Error> {
    let encode = |special| {
        let encoding =
            inner.encode_fast("a", special).map_err(|e| error::file(path, format!("encoding failed: {e}")))?;
        Ok::<_, Error>(encoding.get_ids().to_vec())
    };
    let (plain, full) = (encode(false)?, encode(true)?);
    Ok((full.len() > plain.len() && full[1..].starts_with(&plain)).then(|| full[0] as i32))
}

impl TextTokenizer for Tokenizer {
    fn encode(&self, text: &str) -> Result<Vec<i32>, Error> {
        let encoding =
            self.inner.encode_fast(text, false).map_err(|e| Error::Invalid(format!("encoding a text failed: {e}")))?;
        let ids = encoding.get_ids().iter().map(|&id| id as i32);
        // A text that spells its own begin token gets no second one.
        let begin = self.begin.filter(|&begin| encoding.get_ids().first() != Some(&(begin as u32)));
        Ok(begin.into_iter().chain(ids).collect())
    }

    fn pieces(&self, text: &str) -> Result<Vec<Piece>, Error> {
        let encoding =
            self.inner.encode(text, false).map_err(|e| Error::Invalid(format!("encoding a text failed: {e}")))?;
        let pieces = encoding.get_ids().iter().zip(encoding.get_offsets());
        Ok(pieces.map(|(&id, &(start, end))| Piece { id: id as i32, start, end }).collect())
    }

    fn begin_id(&self) -> Option<i32> {
        self.begin
    }

    fn special_tokens(&self) -> Vec<(i32, String)> {
        let added = self.inner.get_added_tokens_decoder().into_iter().filter(|(_, token)| token.special);
        let mut tokens: Vec<_> = added.map(|(id, token)| (id as i32, token.content)).collect();
        tokens.sort();
        tokens
    }

    fn decode(&self, ids: &[i32]) -> Result<String, Error> {
        let ids: Vec<u32> = ids.iter().filter_map(|&id| u32::try_from(id).ok()).collect();
        self.inner.decode(&ids, true).map_err(|e| Error::Invalid(format!("decoding tokens failed: {e}")))
    }

    fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    fn bos_id(&self) -> Option<i32> {
        self.bos_id
    }

    fn eos_id(&self) -> Option<i32> {
        self.eos_id
    }

    fn stop_ids(&self) -> &[i32] {
        &self.stop_ids
    }
}
