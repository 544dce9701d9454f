"""Slipway: an inference server for language models, and the schema it shares with its operator."""

__version__ = "0.1.0"
