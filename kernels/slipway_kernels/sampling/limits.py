"""Bounds of sampling on a device. Imports no torch."""

LARGEST_VOCAB = 1 << 18
ROWS_AT_ONCE = 128
"""Rows that share the workspace's arrays of a vocabulary each: about one for each multiprocessor."""
