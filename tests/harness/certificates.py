"""Certificates for brokers and clients: good, expired, of another authority, for another host."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = timedelta(days=1)


class Authority:
    """A certificate authority with a directory of its own."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        subject = _named(name)
        builder = self._builder(subject, subject, self._key.public_key(), expired=False)
        self._certificate = builder.add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        ).sign(self._key, hashes.SHA256())
        self.file = directory / f"{name}.pem"
        self.file.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    @staticmethod
    def _builder(
        subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, *, expired: bool
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 20 * _DAY)
            .not_valid_after(now - 10 * _DAY if expired else now + 10 * _DAY)
        )

    def issue(
        self, name: str, *, host: str = "127.0.0.1", expired: bool = False, password: str | None = None
    ) -> tuple[Path, Path]:
        """Make a certificate; return the files of its key and of its chain. Both are the owner's alone."""
        key = ec.generate_private_key(ec.SECP256R1())
        try:
            where: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            where = x509.DNSName(host)
        certificate = (
            self._builder(_named(name), self._certificate.subject, key.public_key(), expired=expired)
            .add_extension(x509.SubjectAlternativeName([where]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        cipher: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            cipher = serialization.BestAvailableEncryption(password.encode())
        files = self._directory / f"{name}.key", self._directory / f"{name}.crt"
        files[0].touch(mode=0o600)
        files[0].write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, cipher)
        )
        files[1].write_bytes(
            certificate.public_bytes(serialization.Encoding.PEM)
            + self._certificate.public_bytes(serialization.Encoding.PEM)
        )
        return files

    def key_store(self, name: str, **options: object) -> Path:
        """Make a certificate for a broker; return one file with key and chain, as Kafka reads them."""
        key, chain = self.issue(name, **options)  # type: ignore[arg-type]
        file = self._directory / f"{name}.keystore.pem"
        file.write_bytes(key.read_bytes() + chain.read_bytes())
        return file


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
