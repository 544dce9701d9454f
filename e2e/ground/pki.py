"""One certificate authority for each ground, and the certificates and kubeconfigs that it vouches for."""

from __future__ import annotations

import datetime
import ipaddress
import json
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key, both PEM."""

    certificate: Path
    key: Path


class Authority:
    """Issues certificates into one folder. They hold for a day: no ground lives longer."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, mode=0o700)
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("slipway-e2e", None)
        built = (
            _builder(self._name, self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = folder / "ca.crt"
        self.certificate.write_bytes(_pem(built))
        self.key = folder / "ca.key"
        self.key.write_bytes(_private(self._key))

    def issue(self, file: str, user: str, group: str | None = None, *, hosts: tuple[str, ...] = ()) -> Pair:
        """A certificate for `user` of `group`; with `hosts`, names or addresses, it also serves as them."""
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
        builder = _builder(_name(user, group), self._name, key.public_key()).add_extension(
            x509.ExtendedKeyUsage(usages), critical=False
        )
        if hosts:
            names = x509.SubjectAlternativeName([_host(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        pair = Pair(self.folder / f"{file}.crt", self.folder / f"{file}.key")
        pair.certificate.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))
        pair.key.write_bytes(_private(key))
        return pair

    def signing_pair(self, file: str) -> Pair:
        """A bare key pair, as service account tokens are signed with; `certificate` holds the public key."""
        key = ec.generate_private_key(ec.SECP256R1())
        pair = Pair(self.folder / f"{file}.pub", self.folder / f"{file}.key")
        pair.certificate.write_bytes(
            key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )
        pair.key.write_bytes(_private(key))
        return pair

    def kubeconfig(self, file: str, server: str, user: str, group: str | None = None) -> Path:
        """A kubeconfig for `user` that names the certificate files beside it."""
        pair = self.issue(file, user, group)
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "e2e", "cluster": {"server": server, "certificate-authority": str(self.certificate)}}
            ],
            "users": [
                {
                    "name": user,
                    "user": {"client-certificate": str(pair.certificate), "client-key": str(pair.key)},
                }
            ],
            "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": user}}],
            "current-context": "e2e",
        }
        path = self.folder / f"{file}.kubeconfig"
        path.write_text(json.dumps(document, indent=1))
        path.chmod(0o600)
        return path


def _name(user: str, group: str | None) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, user)]
    if group:
        parts.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, group))
    return x509.Name(parts)


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=1))
        .not_valid_after(now + datetime.timedelta(days=1))
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
