"""The real images, built from the Containerfile of this tree and kept in the machine's container storage."""

from e2e.images.build import TARGETS, ImagesUnavailable, build, missing

__all__ = ["TARGETS", "ImagesUnavailable", "build", "missing"]
