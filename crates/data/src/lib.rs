//! Tokenizer, documents, packing and batches
