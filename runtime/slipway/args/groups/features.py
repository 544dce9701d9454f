"""Features that this release does not have yet, where several arguments ask for the same one."""

from __future__ import annotations

from slipway.args.declare import Unbuilt

MULTIMODAL = Unbuilt("multimodal input")
SEVERAL_HOSTS = Unbuilt("ranks on several hosts")
TENSOR_PARALLEL = Unbuilt("tensor parallelism")
