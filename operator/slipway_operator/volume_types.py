"""Where a cluster does not take a type of volume, such as the image of `model.image`: who refuses it and what
to do. The refusals themselves name the type at best."""

from __future__ import annotations

import re

_ELSEWHERE = "or take the model from spec.model.pvc, spec.model.s3 or spec.model.hub"
_OF_IMAGES = {
    # Before 1.33 Pod Security does not know the type, and says "unknown".
    r'restricted volume types? [^)]*"(?:image|unknown)"': (
        "Pod Security admits volumes of images at the restricted level from Kubernetes 1.33 on. Upgrade, "
        "have the namespace's level lowered to baseline"
    ),
    # Older releases of OpenShift have no name for the type.
    r"\bimage volumes are not allowed to be used|unknown volume type for volume": (
        "OpenShift's own SecurityContextConstraints admit volumes of images from 4.22 on, and from 4.20.15 "
        "in 4.20. Upgrade, let spec.runtime.serviceAccountName use one that has image among its volumes"
    ),
    r"volume type image is not allowed|types of volumes may be used(?!.*\bimage\b)": (
        "a policy of the cluster does not list volumes of images. Have image added to the types that it lists"
    ),
    r"must specify a volume type": (
        "the API server drops volumes of images, which need the feature gate ImageVolume: it is on by "
        "default from Kubernetes 1.35. Upgrade, have the gate turned on for API server and kubelets"
    ),
    r'failed to mkdir ""': (
        "the node's container runtime mounts no volumes of images: containerd does from 2.1 on, CRI-O from "
        "1.31. Upgrade it, choose other nodes in spec.scheduling"
    ),
}
"""What the API server or a node says of a volume of an image → who refuses it, and what to do."""
_CONSTRAINED = re.compile(r"(\w+) volumes are not allowed to be used")


def volume_advice(words: str) -> str | None:
    """Who refuses the volume and what to do, in sentences without the last full stop; None where the words
    are of something else."""
    for pattern, advice in _OF_IMAGES.items():
        if re.search(pattern, words, re.DOTALL):
            return f"the image of spec.model.image cannot be mounted: {advice}, {_ELSEWHERE}"
    if match := _CONSTRAINED.search(words):
        kind = match[1]
        return (
            f"no SecurityContextConstraints that the pods may use admit {kind} volumes. Let "
            f"spec.runtime.serviceAccountName use one that has {kind} among its volumes, or remove the volume"
        )
    return None
