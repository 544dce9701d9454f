"""The argument schema: every argument of `slipway serve`, declared once."""

from slipway.args.errors import ArgumentError
from slipway.args.resolved import Resolved, resolve

__all__ = ["ArgumentError", "Resolved", "resolve"]
