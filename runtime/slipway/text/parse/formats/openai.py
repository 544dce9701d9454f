"""gpt-oss: messages to functions, among others."""

from __future__ import annotations

from slipway.text.parse.harmony import HARMONY

FORMATS = {"openai": HARMONY}
