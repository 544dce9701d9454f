"""Tests against a real cluster, and the ground that they stand on."""
