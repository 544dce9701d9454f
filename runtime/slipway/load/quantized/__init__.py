"""Checkpoints whose matrices are stored in fewer bits: two forms for every scheme to read."""
