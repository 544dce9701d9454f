"""The CustomResourceDefinition, made from the dataclasses of the document and the declared arguments.

`custom_resource_definition()` is what `python -m slipway.generate` writes below crds/.
"""

from slipway.service.crd.definition import custom_resource_definition, definition_text

__all__ = ["custom_resource_definition", "definition_text"]
