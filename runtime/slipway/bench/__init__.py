"""Measurements: of any OpenAI server over HTTP, and of an engine in this process without a server."""
