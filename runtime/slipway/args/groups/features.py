"""Features that this release does not have yet, where several arguments ask for the same one."""

from __future__ import annotations

from slipway.args.declare import Unbuilt

MULTIMODAL = Unbuilt("multimodal input")
