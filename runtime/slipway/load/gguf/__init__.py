"""GGUF: one file with metadata, tokenizer and (quantized) weights."""
