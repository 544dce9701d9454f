"""All that `render` knows beside the document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slipway import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the place of the service offers, and what the operator has settled before."""

    cpu_image: str = f"slipway/runtime-cpu:{__version__}"
    cuda_image: str = f"slipway/runtime-cuda:{__version__}"
    kinds: frozenset[str] = frozenset()
    """Optional kinds that the cluster has, such as ServiceMonitor."""
    template: Mapping[str, Any] | None = None
    """The pinned pod template, which stands in for a newly made one."""

    def has(self, kind: str) -> bool:
        return kind in self.kinds
