# SPDX-License-Identifier: Apache-2.0
"""Certificates of a benchmark's own hosts, by an authority that no file keeps: the product signs none."""

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LASTS = datetime.timedelta(days=1)


def write_certificates(
    folder: Path, compute: str, gpu: str, *others: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Write them; return the options of a doorman on the host ``compute``, and those of a gateway on ``gpu``.

    :param others: hosts of GPUs
    """
    key = ec.generate_private_key(ec.SECP256R1())
    authority = _shape("benchmark", "benchmark", key.public_key()).add_extension(
        x509.BasicConstraints(ca=True, path_length=None), critical=True
    )
    (folder / "ca.pem").write_bytes(_pem(authority.sign(key, hashes.SHA256())))
    uses = {compute: ExtendedKeyUsageOID.CLIENT_AUTH}
    uses |= dict.fromkeys((gpu, *others), ExtendedKeyUsageOID.SERVER_AUTH)
    for host, use in uses.items():
        own = ec.generate_private_key(ec.SECP256R1())
        shape = (
            _shape(host, "benchmark", own.public_key())
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
            .add_extension(x509.ExtendedKeyUsage([use]), critical=False)
        )
        (folder / f"{host}.pem").write_bytes(_pem(shape.sign(key, hashes.SHA256())))
        (folder / f"{host}.key").write_bytes(
            own.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
    return _options(folder, compute), _options(folder, gpu)


def _shape(name: str, issuer: str, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _LASTS)
        .not_valid_after(now + _LASTS)
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _options(folder: Path, host: str) -> tuple[str, ...]:
    return (
        *("-ca", str(folder / "ca.pem"), "-certificate", str(folder / f"{host}.pem")),
        *("-key", str(folder / f"{host}.key"), "-crl", str(folder / "none.pem")),
    )
