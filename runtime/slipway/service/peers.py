"""Who may connect to whom, in a NetworkPolicy's words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slipway.service.forms import AddressRange


@dataclass(frozen=True, slots=True, kw_only=True)
class IpBlock:
    """Addresses outside the cluster."""

    cidr: AddressRange
    except_: tuple[AddressRange, ...] = ()
    """Ranges within that are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Pods by their labels, of this namespace or of those with labels; or a range of addresses."""

    pod_selector: Mapping[str, object] | None = None
    """Labels of the pods, as matchLabels and matchExpressions. Empty, all of the namespace."""
    namespace_selector: Mapping[str, object] | None = None
    """Labels of their namespaces. Empty, all; unset, this one."""
    ip_block: IpBlock | None = None
