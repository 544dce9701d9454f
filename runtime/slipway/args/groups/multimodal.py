"""Arguments of images, videos and sound."""

from __future__ import annotations

from slipway.args.declare import Disposition, Json, Key, Unbuilt, arg, group
from slipway.args.groups.features import MULTIMODAL

OWN_PROCESSOR = "there is no multimodal input yet, and with it the model's own processor will say so"


@group("MultiModalConfig")
class MultiModal:
    """Input that is not text."""

    disable_image_processor: bool = arg(False, disposition=Disposition.WARN, reason=OWN_PROCESSOR)
    """Old switch to use no image processor."""

    disable_mm_preprocessor_cache: bool = arg(
        False, negatable=True, unbuilt=Unbuilt("multimodal input", tunes=True)
    )
    """Keep no preprocessed images."""

    image_feature_size: int | None = arg(minimum=1, disposition=Disposition.WARN, reason=OWN_PROCESSOR)
    """Old number of tokens that an image takes."""

    image_input_shape: str | None = arg(disposition=Disposition.WARN, reason=OWN_PROCESSOR)
    """Old shape of the largest image."""

    image_input_type: str | None = arg(
        choices=("pixel_values", "image_features"),
        disposition=Disposition.WARN,
        reason=OWN_PROCESSOR,
    )
    """Old choice of what an image is given as."""

    image_processor: str | None = arg(disposition=Disposition.WARN, reason=OWN_PROCESSOR)
    """Old repository id or path of the image processor."""

    image_processor_revision: str | None = arg(disposition=Disposition.WARN, reason=OWN_PROCESSOR)
    """Old branch, tag or commit of the image processor."""

    image_token_id: int | None = arg(minimum=0, disposition=Disposition.WARN, reason=OWN_PROCESSOR)
    """Old token id that stands for an image."""

    limit_mm_per_prompt: Json = arg(
        {},
        pairs=True,
        keys={
            "image": Key("int", minimum=0, aliases=("images",)),
            "video": Key("int", minimum=0, aliases=("videos",)),
            "audio": Key("int", minimum=0, aliases=("audios",)),
        },
        open_keys=False,
        unbuilt=Unbuilt("multimodal input", asks=lambda limits: any(limits.values())),
    )
    """Most items of each kind in a prompt: a JSON object, or image=16,video=2."""

    mm_cache_preprocessor: bool = arg(
        False,
        disposition=Disposition.WARN,
        reason="there is no multimodal input yet, and so nothing to keep",
    )
    """Old switch for the cache of preprocessed images."""

    mm_processor_kwargs: Json | None = arg(unbuilt=MULTIMODAL)
    """Settings for the model's processor of images and videos, such as num_crops."""
