"""The CustomResourceDefinition of serving profiles: fields of a service's spec, with their rules."""

from __future__ import annotations

from slipway.args.openapi import Node
from slipway.service.crd.definition import column, definition, lay
from slipway.service.crd.rules import CROSS_FIELD
from slipway.service.crd.structure import class_text, object_node
from slipway.service.crd.variables import variable_rules
from slipway.service.fields import camel
from slipway.service.profile import PARTS, PROFILE_KIND, ServingProfile

PLURAL = "servingprofiles"


def profile_definition() -> Node:
    """Of the whole cluster, as `kubectl apply` takes it."""
    columns = [
        column("VENDOR", ".spec.devices.vendor", "Whose devices its services have; none run on CPU."),
        column("RESOURCE", ".spec.devices.resource", "What they ask for, if not for the vendor's usual one."),
        column("IMAGE", ".spec.runtime.image", "What serves where it is not the operator's own."),
        column("AGE", ".metadata.creationTimestamp", "", type="date"),
    ]
    return definition(PROFILE_KIND, PLURAL, "slipprofile", "Cluster", columns, profile_schema())


def profile_schema() -> Node:
    """The schema of one profile, with the rules that concern its parts alone."""
    spec = object_node(ServingProfile, without=frozenset({"name"}))
    root: Node = {
        "type": "object",
        "description": class_text(ServingProfile),
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
        },
    }
    parts = {camel(part) for part in PARTS}
    for rule in (*CROSS_FIELD, *variable_rules()):
        _, _, below = rule.place.partition("spec.")
        if below.partition(".")[0].removesuffix("[]") in parts:
            lay(root, rule)
    return root
