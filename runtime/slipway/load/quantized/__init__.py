"""Checkpoints whose matrices are stored in fewer bits: what they hold, in two forms that every scheme reads."""
