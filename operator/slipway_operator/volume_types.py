"""Where a cluster does not take a type of volume: who refuses it and what to do.

The refusals themselves name the type at best.
"""

from __future__ import annotations

from slipway_operator.wordings import VOLUME_CONSTRAINED, Source, meanings


def volume_advice(words: str) -> str | None:
    """Who refuses the volume and what to do, in sentences without the last full stop; None where the words
    are of something else."""
    row, match = next(meanings(Source.VOLUME, " ".join(words.split())), (None, None))
    if row is None or match is None:
        return None
    if row is VOLUME_CONSTRAINED:
        kind = match["kind"]
        return (
            f"no SecurityContextConstraints that the pods may use admit {kind} volumes. Let "
            f"spec.runtime.serviceAccountName use one that has {kind} among its volumes, or remove the volume"
        )
    return (
        f"the image of spec.model.image cannot be mounted: {row.advice} Or take the model from "
        "spec.model.pvc, spec.model.s3 or spec.model.hub"
    )
