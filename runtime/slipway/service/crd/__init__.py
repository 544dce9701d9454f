"""The CustomResourceDefinitions, made from the dataclasses of the documents and the declared arguments.

`definitions()` are what `python -m slipway.generate` writes below crds/.
"""

from slipway.args.openapi import Node
from slipway.service.crd.definition import custom_resource_definition, definition_text
from slipway.service.crd.profile import profile_definition

__all__ = ["custom_resource_definition", "definition_text", "definitions", "profile_definition"]


def definitions() -> list[Node]:
    """Of every kind that is ours."""
    return [custom_resource_definition(), profile_definition()]
