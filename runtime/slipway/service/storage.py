"""The volumes of a pod, each with the place where its containers find it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from slipway.service.engine import CA_FILE, CA_FOLDER, CACHE, MODEL_FOLDER, TLS_FOLDER
from slipway.service.fields import InvalidService, written
from slipway.service.pod_parts import Volume
from slipway.service.projected import check_projected, projected_source
from slipway.service.spec import ServiceSpec

Object = dict[str, Any]

PROGRAM = "/opt/slipway"
"""Where our images have their own code."""
WRITABLE = (str(CACHE), "/dev/shm", "/tmp")
READ_ONLY = (PROGRAM, str(MODEL_FOLDER), str(TLS_FOLDER), str(CA_FOLDER))
"""What a container finds beside the document's own mounts, which may lie in the former alone."""
OURS = ("shm", "tmp", "cache", "model", "tls")
FILES = "files-"
"""Names of our volumes, and how those of `spec.files` begin."""
AUTHORITIES = f"{FILES}ca"
"""The volume of `spec.trustedCA`, by a name that no document could have given before there was one."""
SOURCES = ("pvc", "csi", "emptyDir", "projected")
"""Of `spec.volumes`."""
NEVER_RENEWED = "files below it are never renewed: tokens would expire. Mount the whole volume"
ELSEWHERE = "Choose another folder, such as one below /etc"
DOWNLOADS = "100Gi"
"""Of an emptyDir that holds a model: a bound for a model gone wrong, which nothing reserves."""
CACHED = "10Gi"
"""Of an emptyDir that holds compiled code alone."""


def volumes(spec: ServiceSpec, shared_memory: str) -> list[tuple[Object, Object | None]]:
    """Each volume with the server's mount of it; `shared_memory` is the size of /dev/shm. No hostPath."""
    return [
        _volume("shm", {"emptyDir": {"medium": "Memory", "sizeLimit": shared_memory}}, "/dev/shm"),
        _volume("tmp", {"emptyDir": {}}, "/tmp"),
        _volume("cache", _cache(spec), str(CACHE)),
        *_given(spec),
        *((_source(volume), _mount(volume)) for volume in spec.volumes),
    ]


def _cache(spec: ServiceSpec) -> Object:
    cache = spec.model.cache
    if cache.pvc:
        return {"persistentVolumeClaim": {"claimName": cache.pvc}}
    downloaded = spec.model.hub or spec.model.s3
    return {"emptyDir": {"sizeLimit": cache.size or (DOWNLOADS if downloaded else CACHED)}}


def _given(spec: ServiceSpec) -> Iterator[tuple[Object, Object]]:
    """Model, certificates and files, all of them read-only."""
    model, tls = spec.model, spec.secrets.tls
    if model.pvc:
        claim = {"claimName": model.pvc.name, "readOnly": True}
        yield _volume("model", {"persistentVolumeClaim": claim}, str(MODEL_FOLDER), fixed=True)
    if model.image:
        source: Object = {"reference": model.image.reference}
        if model.image.pull_policy:
            source["pullPolicy"] = model.image.pull_policy
        yield _volume("model", {"image": source}, str(MODEL_FOLDER), fixed=True)
    if tls:
        yield _volume("tls", {"secret": {"secretName": tls.name}}, str(TLS_FOLDER), fixed=True)
    if authorities := spec.trusted_ca:
        items = [{"key": authorities.key, "path": CA_FILE}]
        source = {"configMap": {"name": authorities.config_map, "items": items}}
        yield _volume(AUTHORITIES, source, str(CA_FOLDER), fixed=True)
    for index, files in enumerate(spec.files):
        source = {"configMap": {"name": files.config_map}}
        if files.secret:
            source = {"secret": {"secretName": files.secret}}
        yield _volume(f"{FILES}{index}", source, files.mount_path, fixed=True)


def _volume(name: str, source: Object, path: str, fixed: bool = False) -> tuple[Object, Object]:
    mount: Object = {"name": name, "mountPath": path}
    if fixed:
        mount["readOnly"] = True
    return {"name": name, **source}, mount


def _source(volume: Volume) -> Object:
    made: Object = {"name": volume.name}
    if volume.pvc:
        made["persistentVolumeClaim"] = {"claimName": volume.pvc.name}
    if volume.csi:
        made["csi"] = written(volume.csi)
    if volume.empty_dir:
        made["emptyDir"] = written(volume.empty_dir)
    if volume.projected:
        made["projected"] = projected_source(volume.projected)
    if volume.pvc and volume.pvc.read_only:
        made["persistentVolumeClaim"]["readOnly"] = True
    return made


def _mount(volume: Volume) -> Object | None:
    if volume.mount_path is None:
        return None
    mount: Object = {"name": volume.name, "mountPath": volume.mount_path}
    if volume.sub_path:
        mount["subPath"] = volume.sub_path
    return mount | ({"readOnly": True} if volume.read_only else {})


def check_mounts(spec: ServiceSpec) -> None:
    """Raises InvalidService where a volume has no source, a name of ours, or a place that is taken."""
    for index, volume in enumerate(spec.volumes):
        _check_volume(volume, f"spec.volumes[{index}]")
    places = [(f"spec.files[{index}]", files.mount_path) for index, files in enumerate(spec.files)]
    places += [
        (f"spec.volumes[{index}]", one.mount_path) for index, one in enumerate(spec.volumes) if one.mount_path
    ]
    for index, (field, folder) in enumerate(places):
        path, others = f"{field}.mountPath", [other for _, other in places[:index]]
        if folder in others:
            raise InvalidService(path, f"{folder} is mounted twice. Choose another folder.")
        if other := next((one for one in others if within(one, folder) or within(folder, one)), None):
            raise InvalidService(path, f"{folder} and {other} lie in each other, and cannot both be mounted.")
        if hidden := hidden_by(folder):
            raise InvalidService(path, f"{folder} would hide {hidden}, which the server needs. {ELSEWHERE}.")


def _check_volume(volume: Volume, path: str) -> None:
    if volume.name in OURS or volume.name.startswith(FILES):
        raise InvalidService(
            f"{path}.name", f"{volume.name} is a volume of the operator's own. Choose another name."
        )
    sources = (volume.pvc, volume.csi, volume.empty_dir, volume.projected)
    if sum(source is not None for source in sources) != 1:
        raise InvalidService(
            path, f"{volume.name} needs exactly one of {', '.join(SOURCES[:-1])} and {SOURCES[-1]}."
        )
    if volume.sub_path and not volume.mount_path:
        raise InvalidService(
            f"{path}.subPath", "it is of the server's mount: give mountPath too, or leave it out."
        )
    if volume.projected:
        check_projected(volume.projected, f"{path}.projected")
        if volume.sub_path:
            raise InvalidService(
                f"{path}.subPath",
                f"{NEVER_RENEWED}.",
            )


def hidden_by(folder: str) -> str | None:
    """What of a container's own folders a mount at `folder` would hide, or lie in where nothing may."""
    for own in (*WRITABLE, *READ_ONLY):
        if own == folder or within(own, folder) or (own in READ_ONLY and within(folder, own)):
            return own
    return None


def within(folder: str, other: str) -> bool:
    """Whether a folder lies below another."""
    return folder.startswith(f"{other}/")
