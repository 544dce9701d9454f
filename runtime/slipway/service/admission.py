"""What the API server checks of a document under a policy, in CEL.

`slipway.service.bounds` becomes variables and validations of a ValidatingAdmissionPolicy. The values of the
policy are variables too, which the chart's template sets, so that these expressions are the same in every
cluster. For each bound a variable is the text of what it does not admit; the bound holds where that is empty.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from slipway.args.declare import Argument, Kind
from slipway.args.schema import CAMEL
from slipway.service.bounds import BOUNDS, FILE_ROOTS, Bound
from slipway.service.companions import OURS
from slipway.service.crd.rules import listed, quoted
from slipway.service.fit_pod import FIT
from slipway.service.labels import PROFILE
from slipway.service.policy import CODE_ARGUMENTS, FILE, NAMELESS, NO_FILES, TEMPLATE
from slipway.service.policy_values import KEYS, ONLY_WIDEN, Policy

Node = dict[str, Any]

UNSET = {key: json.dumps(getattr(Policy(), name)) for key, name in KEYS.items()}
"""What each setting is in CEL where the chart has no value for it."""
LIVES = {"name": "lives", "expression": "!has(object.metadata.deletionTimestamp)"}
"""What is being deleted may lose its finalizers, whatever it asked for."""
OF_DOCUMENT = {
    "name": "of-its-document",
    "expression": f"!({quoted(PROFILE)} in object.metadata.?annotations.orValue({{}}))",
}
"""What a profile says is whoever's who runs the cluster; no document can bear this annotation."""
OF_OURS = {"app.kubernetes.io/managed-by": "slipway"}
"""Labels of the pods of services, and of those that ask before a rollout whether a model fits."""
BOUNDING = [key for key, name in KEYS.items() if name not in ONLY_WIDEN]


def policies() -> dict[str, Node]:
    """By the kind of objects: which are matched, the settings, of which the template makes variables, each
    with its value where the chart has none, more variables, and validations."""
    return {"inferenceservices": _of_services(), "pods": _of_pods()}


def _of_services() -> Node:
    return {
        "matchConstraints": {"resourceRules": [_written("slipway.dev", "*", "inferenceservices")]},
        "matchConditions": [LIVES],
        "settings": UNSET,
        "variables": [
            _variable("engine", "object.spec.?engine.orValue({})"),
            _variable("bounded", " || ".join(f"size(variables.{key}) > 0" for key in BOUNDING)),
            *_files(),
            *(_variable(_name(bound), _refused(bound)) for bound in BOUNDS),
        ],
        "validations": [*_arguments(), *map(_validation, BOUNDS), _validation_of_files()],
    }


def _of_pods() -> Node:
    """Of our containers the images, and the account, where no profile brings them. What a mesh adds is its
    own affair, and what a document brings is bounded there."""
    return {
        "matchConstraints": {
            "objectSelector": {"matchLabels": OF_OURS},
            "resourceRules": [_written("", "v1", "pods")],
        },
        "matchConditions": [LIVES, OF_DOCUMENT],
        "settings": {key: UNSET[key] for key in ("images", "serviceAccounts")},
        "variables": [
            _variable(
                "named",
                "(object.spec.containers + object.spec.?initContainers.orValue([]))"
                f".filter(one, one.name in {listed((*OURS, FIT))}).map(one, one.image)"
                " + object.spec.?volumes.orValue([]).filter(one, has(one.image))"
                ".map(one, one.image.reference)",
            ),
            _variable("refusedImages", f"variables.named.filter(v, !({_image('images')})).join(', ')"),
            _variable(
                "refusedAccounts",
                "[object.spec.?serviceAccountName.orValue('default')]"
                f".filter(v, !({_named(('default',), 'serviceAccounts')})).join(', ')",
            ),
        ],
        "validations": [_validation(bound) for bound in BOUNDS if bound.title in ("images", "accounts")],
    }


def _written(group: str, version: str, resource: str) -> Node:
    return {
        "apiGroups": [group],
        "apiVersions": [version],
        "operations": ["CREATE", "UPDATE"],
        "resources": [resource],
    }


def _variable(name: str, expression: str) -> Node:
    return {"name": name, "expression": expression}


def _name(bound: Bound) -> str:
    return "refused" + "".join(f"{word[:1].upper()}{word[1:]}" for word in bound.title.split())


def _refused(bound: Bound) -> str:
    """What the document says and the bound does not admit, as a text."""
    texts = ", ".join(_below("object", place.split("."), bound) for place in bound.places)
    return f"[{texts}].filter(t, t != '').join(', ')"


def _below(base: str, steps: list[str], bound: Bound, letters: str = "abc") -> str:
    """The same of one place, `steps` below `base`. Items of each list have a letter of their own."""
    name, *rest = steps
    name, there, word = name.partition("!")
    found = f"{base}.?{name.rstrip('[?|]{}')}"
    if there:
        return f"({found}.hasValue() ? {_shown(f'[{_subject(bound) or quoted(word)}]', bound)} : '')"
    if name.endswith("{}"):
        return _shown(f"{found}.orValue({{}})", bound)
    if name.endswith("]"):
        items = f"{found}.orValue([])"
        item, letters = letters[0], letters[1:]
        if name.endswith("[|]"):
            items += f".filter({item}, type({item}) == {'map' if rest else 'string'})"
        if not rest:
            return _shown(items, bound)
        if name.endswith("[?]"):
            known = f"{item}.name in {listed(bound.named or bound.others)}"
            items += f".filter({item}, {known if bound.named else f'!({known})'})"
        return f"{items}.map({item}, {_below(item, rest, bound, letters)}).filter(t, t != '').join(', ')"
    if rest:
        return _below(found, rest, bound, letters)
    if bound.missing:
        return _shown(f"[{found}.orValue({quoted(bound.missing)})]", bound)
    return _shown(f"({found}.hasValue() ? [{found}.value()] : [])", bound)


def _subject(bound: Bound) -> str:
    steps = "".join(f".?{step}" for step in bound.subject.split("."))
    return f"object{steps}.orValue({quoted(bound.missing)})" if bound.subject else ""


def _shown(values: str, bound: Bound) -> str:
    """Those of a list, or keys of a map, that the bound does not admit, as a text."""
    return f"{values}.filter(v, !({_admits(bound)})).map(v, v == '' ? {quoted(NAMELESS)} : v).join(', ')"


def _admits(bound: Bound) -> str:
    """Whether the policy admits the value `v`, as slipway.service.policy has it."""
    match bound.match:
        case "image":
            return _image(bound.setting)
        case "folder":
            return _folder(f"({listed(bound.usual)} + variables.{bound.setting})")
        case "profile":
            return (
                "v in variables.profiles && (size(variables.profiles[v]) == 0 || "
                "object.metadata.namespace in variables.profiles[v])"
            )
    return _named(bound.usual, bound.setting)


def _named(usual: tuple[str, ...], setting: str) -> str:
    exact = [one for one in usual if not one.endswith("*")]
    ways = [f"v in {listed(exact)}"] if exact else []
    ways += [f"v.startsWith({quoted(one[:-1])})" for one in usual if one.endswith("*")]
    if setting:
        begins = "v.startsWith(one.substring(0, size(one) - 1))"
        ways.append(f"variables.{setting}.exists(one, one.endsWith('*') ? {begins} : v == one)")
    return " || ".join(ways) or "false"


def _folder(folders: str) -> str:
    below = "(v + '/').startsWith(one.endsWith('/') ? one : one + '/')"
    return f"!v.matches('(^|/)[.][.](/|$)') && {folders}.exists(one, {below})"


def _image(setting: str) -> str:
    whole = (
        "(!v.contains('/') ? 'docker.io/library/' + v : "
        "v.split('/')[0].matches('[.:A-Z]|^localhost$') ? v : 'docker.io/' + v)"
    )
    trimmed = "(one.endsWith('/') ? one.substring(0, size(one) - 1) : one)"
    return (
        f"variables.{setting}.map(one, {trimmed}).exists(one, {whole} == one || "
        f"[':', '/', '@'].exists(after, {whole}.startsWith(one + after)))"
    )


def _validation(bound: Bound) -> Node:
    # An optional bound whose setting is given needs no other word for that the policy is set.
    ways = [f"size(variables.{bound.setting}) == 0" if bound.optional else "!variables.bounded"]
    if bound.code:
        ways.append("variables.allowCode")
    if bound.given:
        ways.append(f"size(variables.{bound.given}) == 0")
    return _checked(bound.setting, " || ".join(ways), _name(bound), bound.title, bound.why)


def _checked(setting: str, unless: str, refused: str, title: str, why: str) -> Node:
    """A validation, whose sentence names what is refused and what would admit it."""
    advice = f"policy.{setting} would admit it" if setting else "a ServingProfile may say it"
    said = f"refused by the policy: {why}; {advice}"
    return {
        "expression": f"{unless} || variables.{refused} == ''",
        "message": f"{title} {said}",
        "messageExpression": f"{quoted(title + ': ')} + variables.{refused} + {quoted(' ' + said)}",
        "reason": "Forbidden",
    }


def _arguments() -> Iterator[Node]:
    """An argument that runs code is refused where it is used."""
    for name, argument in CAMEL.items():
        if not argument.in_spec or not (argument.security_sensitive or name in CODE_ARGUMENTS):
            continue
        ways = ["variables.allowCode", f"'{name}' in variables.permittedArguments"]
        if not argument.security_sensitive:
            ways.append("!variables.bounded")
        yield {
            "expression": f"{' || '.join(ways)} || !({_asks(name, argument)})",
            "message": f"spec.engine.{name}: it runs code or reads files in the server; policy.allowCode or "
            "policy.permittedArguments would admit it",
            "reason": "Forbidden",
        }


def _asks(name: str, argument: Argument) -> str:
    """CEL that holds where a document gives the argument a value of its own."""
    value = f"variables.engine.?{name}"
    if argument.is_list:
        return f"{value}.hasValue() && type({value}.value()) == list && size({value}.value()) > 0"
    if argument.default is False:
        return f"{value}.orValue(false) == true"
    usual = json.dumps(["", *([argument.default] if argument.default else [])])
    return f"{value}.hasValue() && type({value}.value()) == string && !({value}.value() in {usual})"


def _files() -> Iterator[Node]:
    """Arguments that are files, without what is nested in them. A field that an old client sends as null
    counts as unset."""
    single = [
        (name, one) for name, one in CAMEL.items() if one.in_spec and not one.is_list and name not in NO_FILES
    ]

    def texts(names: list[str]) -> str:
        values = ", ".join(f"variables.engine.?{name}.orValue('')" for name in names)
        return f"[{values}].filter(v, type(v) == string && v != '')"

    paths = texts([name for name, one in single if one.kind is Kind.PATH])
    others = texts([name for name, one in single if one.kind is Kind.STR and not one.choices])
    yield _variable(
        "files",
        f"[object.spec.?model.?path.orValue('')].filter(v, v != '') + {paths} + "
        f"{others}.filter(v, v.matches({quoted(FILE)})) + {texts([TEMPLATE])}"
        f".filter(v, !v.contains('{{') && !v.matches({quoted(FILE)}))",
    )
    yield _variable(
        "folders",
        f"size(variables.filePaths) > 0 ? variables.filePaths : {listed(FILE_ROOTS)} + variables.mountRoots",
    )
    yield _variable(
        "refusedFiles", f"variables.files.filter(v, !({_folder('variables.folders')})).join(', ')"
    )


def _validation_of_files() -> Node:
    return _checked(
        "filePaths",
        "!variables.bounded || (variables.allowCode && size(variables.filePaths) == 0)",
        "refusedFiles",
        "files",
        "the server would read it, and could show it",
    )
