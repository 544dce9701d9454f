"""What the programs of a node read: configuration as text, from the ground's folder alone."""

from __future__ import annotations

import json
from pathlib import Path

from e2e.ground.names import REGISTRY_PORT, Addresses, Ground

PAUSE = "slipway.dev/e2e/pause:1"


def containerd(ground: Ground, runc: str, plugins: Path) -> str:
    """containerd's configuration: all its files and mounts under the ground's folder."""
    folder = ground.folder
    return f"""\
version = 3
root = "{folder}/containerd/root"
state = "{folder}/containerd/state"

[grpc]
address = "{socket(ground)}"

# Its socket has one name on a machine: two clusters that start at once would both want it.
[plugins.'io.containerd.nri.v1.nri']
disable = true
[plugins.'io.containerd.cri.v1.images']
# A copy of each layer less: an image for inference has gigabytes of them.
discard_unpacked_layers = true
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{PAUSE}"
[plugins.'io.containerd.cri.v1.images'.registry]
config_path = "{registries(ground)}"

[plugins.'io.containerd.cri.v1.runtime']
# In a container of ours the machine may not lower its score.
restrict_oom_score_adj = true
disable_apparmor = true
# Otherwise a killed cluster leaves its pods' namespaces in /run/netns, where nobody knows whose they are.
netns_mounts_under_state_dir = true
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = "{runc}"
Root = "{folder}/runc"
SystemdCgroup = false
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["{plugins}"]
conf_dir = "{folder}/cni"
"""


def socket(ground: Ground) -> Path:
    return ground.folder / "containerd.sock"


def registries(ground: Ground) -> Path:
    """The folder that says where images of each registry come from, in a folder of the registry's name."""
    return ground.folder / "registries"


def mirror(registry: str) -> str:
    """hosts.toml of a registry whose images the ground's own, at this address, has: there is no way to the
    real one."""
    return f"""\
server = "http://{registry}"
[host."http://{registry}"]
capabilities = ["pull", "resolve"]
"""


def network(ground: Ground, addresses: Addresses) -> str:
    """The pods' network: a bridge, addresses kept under the ground's folder."""
    ipam = {
        "type": "host-local",
        "dataDir": str(ground.folder / "addresses"),
        "ranges": [[{"subnet": addresses.pods_of_node}]],
        "routes": [{"dst": addresses.all}],
    }
    bridge = {"type": "bridge", "bridge": "pods0", "isGateway": True, "hairpinMode": True, "ipam": ipam}
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return json.dumps({"cniVersion": "1.0.0", "name": ground.name, "plugins": [bridge, ports]})


def kubelet(ground: Ground, addresses: Addresses, pki: Path, node: str, dns: str) -> str:
    """KubeletConfiguration for a machine that may itself be a container, with either version of cgroups.

    pki   where the node's certificate is, by its name
    dns   the address of the name server that pods get
    """
    folder = ground.folder
    return json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": addresses.everywhere,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(pki / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(pki / f"{node}.crt"),
            "tlsPrivateKeyFile": str(pki / f"{node}.key"),
            "containerRuntimeEndpoint": f"unix://{socket(ground)}",
            "podLogsDir": str(folder / "pod-logs"),
            "volumePluginDir": str(folder / "volume-plugins"),
            "resolvConf": str(folder / "resolv.conf"),
            "clusterDNS": [dns],
            "clusterDomain": "cluster.local",
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "failCgroupV1": False,
            "failSwapOn": False,
            "oomScoreAdj": 0,
            # The disk is the machine's own: it may be nearly full without harm to the tests.
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "serializeImagePulls": False,
            "registryPullQPS": 0,
            "eventRecordQPS": 0,
        }
    )


def registry(ground: Ground) -> str:
    return json.dumps(
        {
            "version": 0.1,
            "log": {"level": "warn", "accesslog": {"disabled": True}},
            "storage": {"filesystem": {"rootdirectory": str(storage(ground))}},
            "http": {"addr": f":{REGISTRY_PORT}"},
        }
    )


def storage(ground: Ground) -> Path:
    """The registry's files."""
    return ground.folder / "registry"


def dns(kubeconfig: Path, addresses: Addresses) -> str:
    """CoreDNS as kubeadm sets it up, less the way to servers outside: there is no outside."""
    return f""".:53 {{
    bind {addresses.node}
    errors
    kubernetes cluster.local in-addr.arpa ip6.arpa {{
        kubeconfig {kubeconfig} e2e
        pods insecure
    }}
}}
"""
