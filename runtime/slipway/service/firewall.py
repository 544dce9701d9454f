"""Which environment variables a document may set: what the registry of variables says, enforced."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from slipway import envs
from slipway.envs import InvalidEnvironment, Variable
from slipway.service.devices import kind
from slipway.service.fields import InvalidService, camel
from slipway.service.pod_parts import EnvVar
from slipway.service.policy_values import starts
from slipway.service.spec import ServiceSpec

FETCH_SECRET = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
"""Keys of the Secret that spec.model.s3 names, which are also the variables that `slipway fetch` reads."""
FROM_SECRETS = {"HF_TOKEN": "hubToken", "HUGGING_FACE_HUB_TOKEN": "hubToken", "VLLM_API_KEY": "apiKey"}
"""Variables that have a place of their own in spec.secrets."""
FROM_A_SECRET = "its value belongs into a Secret, named here with `secret: {name, key}`"


def check_env(spec: ServiceSpec, permitted: Collection[str] = ()) -> None:
    """Raises InvalidService at the first entry of spec.env that may not stand there.

    `permitted` are names, or with a star beginnings of names, that whoever runs the cluster allows beside the
    usual ones.
    """
    for index, entry in enumerate(spec.env):
        path = f"spec.env[{index}]"
        _check_source(entry, path)
        if entry.name in FETCH_SECRET and spec.model.s3 and spec.model.s3.secret:
            raise InvalidService(path, f"{entry.name} is what spec.model.s3.secret sets. Keep one of them.")
        if variable := envs.BY_NAME.get(entry.name):
            _check_known(variable, entry, spec, permitted, path)
        elif entry.name.startswith(envs.PREFIXES):
            near = envs.near_names(entry.name)
            advice = f"Did you mean {' or '.join(near)}?" if near else "`slipway args` lists all."
            raise InvalidService(path, f"{entry.name} does not exist. {advice}")
    if {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"} <= {entry.name for entry in spec.env}:
        raise InvalidService("spec.env", "HUGGING_FACE_HUB_TOKEN is HF_TOKEN's older name. Keep HF_TOKEN.")


def check_plain_env(entries: tuple[EnvVar, ...], path: str) -> None:
    """The same for a container that is no server, whose variables are its own affair but for credentials."""
    for index, entry in enumerate(entries):
        place = f"{path}[{index}]"
        _check_source(entry, place)
        variable = envs.BY_NAME.get(entry.name)
        if variable and variable.action == "secret-only" and entry.secret is None:
            raise InvalidService(place, f"{entry.name} may not be set: {FROM_A_SECRET}.")


def _check_source(entry: EnvVar, path: str) -> None:
    given = (entry.value, entry.secret, entry.config_map, entry.field)
    if sum(source is not None for source in given) != 1:
        raise InvalidService(path, f"{entry.name} needs exactly one of value, secret, configMap and field.")


def _check_known(
    variable: Variable, entry: EnvVar, spec: ServiceSpec, permitted: Collection[str], path: str
) -> None:
    place = FROM_SECRETS.get(variable.name)
    given = {"hubToken": spec.secrets.hub_token, "apiKey": spec.secrets.api_key}
    if place and given[place]:
        raise InvalidService(path, f"{variable.name} is what spec.secrets.{place} sets. Keep one of them.")
    if variable.action == "reject-unless-opt-in" and not starts(variable.name, permitted):
        raise InvalidService(
            path,
            f"{variable.name} may not be set: {variable.action_reason}. Who runs the cluster can permit it.",
            reason="PolicyDenied",
        )
    if refusal := _refusal(variable, entry, spec):
        raise InvalidService(path, f"{variable.name} may not be set: {refusal}.")
    if entry.value is not None:
        _check_value(variable, entry.value, spec.engine, path)


def _refusal(variable: Variable, entry: EnvVar, spec: ServiceSpec) -> str:
    """Why the variable may not stand there in any cluster, or nothing."""
    match variable.action:
        case "reject" | "operator-only":
            return variable.action_reason
        case "secret-only" if entry.secret is None:
            return FROM_A_SECRET
        case "allow-if-device" if not _may_be_on(variable.device, spec):
            return f"it is for {variable.device} alone, and this service runs on {kind(spec)}"
    return variable.reason if variable.status == "refused" else ""


def _may_be_on(device: str | None, spec: ServiceSpec) -> bool:
    """Whether the service has such devices, or a profile may give it some."""
    return device == kind(spec) or (spec.profile is not None and not spec.devices.present)


def _check_value(variable: Variable, text: str, engine: Mapping[str, object], path: str) -> None:
    try:
        value = variable.parse(text)
    except InvalidEnvironment as error:
        raise InvalidService(f"{path}.value", str(error)) from None
    if not variable.prefer_argument:
        return
    name = camel(variable.prefer_argument.removeprefix("--").replace("-", "_"))
    if name in engine and engine[name] != value:
        raise InvalidService(
            path,
            f"{variable.name}={text} and spec.engine.{name}: {engine[name]} say different things. "
            "Keep the second.",
        )
