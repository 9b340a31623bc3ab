//! Hugging Face model directories in and out
