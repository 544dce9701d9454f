"""Helm as the tests call it, and the values and golden files of the charts."""
