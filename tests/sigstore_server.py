# SPDX-License-Identifier: Apache-2.0
"""A sigstore instance of one's own on the loopback.

An authority for certificates (Fulcio's API v2), a certificate log's key and a log
(Rekor's API v1) with a tree of one entry; real keys, real proofs, nobody's trust.
"""

import base64
import datetime
import hashlib
import json
import struct
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import jwt
import rfc8785
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

ISSUER = "https://issuer.example"
WORKFLOW = "https://ci.example/team/fork/release.yml@refs/heads/main"
SHA256 = ec.ECDSA(hashes.SHA256())
DAY = datetime.timedelta(days=1)
MINUTE = datetime.timedelta(minutes=1)
TYPES = "application/vnd.dev.sigstore"


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def public(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(
        Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    )


def key_id(key: ec.EllipticCurvePrivateKey) -> bytes:
    return hashlib.sha256(public(key)).digest()


def usage(sign: bool, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        sign, False, False, False, False, authority, False, False, False
    )


def token(identity: str = WORKFLOW, issuer: str = ISSUER, age: int = 0) -> str:
    """An identity token, as a CI service gives it to a job."""
    now = int(time.time()) - age
    claims = {"aud": "sigstore", "sub": identity, "iss": issuer}
    return jwt.encode(claims | {"iat": now, "exp": now + 300}, "k" * 32)


class Instance:
    """Keys of one instance, and its services while they run.

    Attributes:
        url: Address of the services.
        asked: Paths that were asked for.
        answer: Something else to answer with: (path, status, reason, body).
        hang: A path that is not answered until `go_on` is set.
        spoil: Whether the log signs its promises with another key.
    """

    def __init__(self) -> None:
        self.authority, self.certificates, self.log = (
            ec.generate_private_key(ec.SECP256R1()) for _ in range(3)
        )
        now = datetime.datetime.now(datetime.UTC)
        self.start = now - DAY
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test CA")])
        key = self.authority.public_key()
        self.root = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self.start)
            .not_valid_after(now + 30 * DAY)
            .add_extension(x509.BasicConstraints(True, 0), True)
            .add_extension(usage(False, True), True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), False)
            .sign(self.authority, hashes.SHA256())
        )
        self.asked: list[str] = []
        self.answer: tuple[str, int, str, bytes] | None = None
        self.hang = ""
        self.go_on = threading.Event()
        self.spoil = False
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def leaf(self, key: object, identity: str, issuer: str) -> x509.Certificate:
        """A certificate of ten minutes for an identity, with the log's receipt."""
        now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
        kind = x509.RFC822Name if "@" in identity.partition("/")[0] else (
            x509.UniformResourceIdentifier
        )  # fmt: skip
        text = issuer.encode()
        vouched = x509.AuthorityKeyIdentifier.from_issuer_public_key(
            self.authority.public_key()
        )
        signing = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING])
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(self.root.subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - MINUTE)
            .not_valid_after(now + 10 * MINUTE)
            .add_extension(usage(True, False), True)
            .add_extension(signing, False)
            .add_extension(vouched, False)
            .add_extension(x509.SubjectAlternativeName([kind(identity)]), True)
            .add_extension(extension("57264.1.1", text), False)
            .add_extension(extension("57264.1.8", bytes([12, len(text)]) + text), False)
        )
        proof = self._certificate_proof(builder, int(now.timestamp() * 1000))
        builder = builder.add_extension(extension("11129.2.4.2", proof), False)
        return builder.sign(self.authority, hashes.SHA256())

    def _certificate_proof(
        self, builder: x509.CertificateBuilder, stamp: int
    ) -> bytes:  # RFC 6962, 3.2 and 3.3
        body = builder.sign(self.authority, hashes.SHA256()).tbs_certificate_bytes
        entry = key_id(self.authority) + struct.pack("!I", len(body))[1:] + body
        head = struct.pack("!BBQH", 0, 0, stamp, 1)
        signature = self.certificates.sign(head + entry + b"\0\0", SHA256)
        one = b"\0" + key_id(self.certificates) + struct.pack("!QH", stamp, 0)
        one += b"\4\3" + struct.pack("!H", len(signature)) + signature
        many = struct.pack("!HH", len(one) + 2, len(one)) + one
        size = bytes([len(many)]) if len(many) < 128 else bytes([0x81, len(many)])
        return b"\4" + size + many

    def integrate(self, proposed: object) -> dict[str, object]:
        """Take an entry into a log that holds nothing else."""
        body = rfc8785.dumps(proposed)
        root = hashlib.sha256(b"\0" + body).digest()
        note = f"loopback - 1\n1\n{b64(root)}\n"
        mark = b64(key_id(self.log)[:4] + self.log.sign(note.encode(), SHA256))
        entry = {
            "body": b64(body),
            "integratedTime": int(time.time()),
            "logID": key_id(self.log).hex(),
            "logIndex": 0,
        }
        key = self.certificates if self.spoil else self.log
        proof = {
            "logIndex": 0,
            "rootHash": root.hex(),
            "treeSize": 1,
            "hashes": [],
            "checkpoint": f"{note}\n\u2014 loopback {mark}\n",
        }
        promise = b64(key.sign(rfc8785.dumps(entry), SHA256))
        made = {"signedEntryTimestamp": promise, "inclusionProof": proof}
        return {"ab" * 32: entry | {"verification": made}}

    def trusted_root(self) -> dict[str, object]:
        valid = {"start": self.start.strftime("%Y-%m-%dT%H:%M:%SZ")}

        def log(key: ec.EllipticCurvePrivateKey) -> dict[str, object]:
            return {
                "baseUrl": self.url,
                "hashAlgorithm": "SHA2_256",
                "logId": {"keyId": b64(key_id(key))},
                "publicKey": {
                    "rawBytes": b64(public(key)),
                    "keyDetails": "PKIX_ECDSA_P256_SHA_256",
                    "validFor": valid,
                },
            }

        root = b64(self.root.public_bytes(Encoding.DER))
        authority = {
            "subject": {"organization": "test", "commonName": "test CA"},
            "uri": self.url,
            "certChain": {"certificates": [{"rawBytes": root}]},
            "validFor": valid,
        }
        return {
            "mediaType": f"{TYPES}.trustedroot+json;version=0.1",
            "tlogs": [log(self.log)],
            "ctlogs": [log(self.certificates)],
            "timestampAuthorities": [],
            "certificateAuthorities": [authority],
        }

    def config(self) -> dict[str, object]:
        """The client trust configuration: services and trust root."""
        service = {
            "url": self.url,
            "majorApiVersion": 1,
            "validFor": {"start": self.start.strftime("%Y-%m-%dT%H:%M:%SZ")},
            "operator": "test",
        }
        return {
            "mediaType": f"{TYPES}.clienttrustconfig.v0.1+json",
            "trustedRoot": self.trusted_root(),
            "signingConfig": {
                "mediaType": f"{TYPES}.signingconfig.v0.2+json",
                "caUrls": [service],
                "oidcUrls": [service],
                "rekorTlogUrls": [service],
                "rekorTlogConfig": {"selector": "ANY"},
            },
        }

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        instance = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: object) -> None:
                pass

            def do_POST(self) -> None:
                data = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                instance.asked.append(self.path)
                if self.path == instance.hang:
                    instance.go_on.wait()
                    return
                other = instance.answer
                if other is not None and self.path == other[0]:
                    self._send(other[1], other[3], other[2])
                elif self.path == "/api/v2/signingCert":
                    self._send(201, self._certificate(data))
                else:
                    self._send(201, instance.integrate(data))

            def _certificate(self, data: dict[str, str]) -> dict[str, object]:
                raw = self.headers["Authorization"].split()[1]
                claims = jwt.decode(raw, options={"verify_signature": False})
                asked = base64.b64decode(data["certificateSigningRequest"])
                key = x509.load_pem_x509_csr(asked).public_key()
                leaf = instance.leaf(key, claims["sub"], claims["iss"])
                chain = [
                    each.public_bytes(Encoding.PEM).decode()
                    for each in (leaf, instance.root)
                ]
                return {
                    "signedCertificateEmbeddedSct": {"chain": {"certificates": chain}}
                }

            def _send(self, status: int, body: object, reason: str = "") -> None:
                raw = body if isinstance(body, bytes) else json.dumps(body).encode()
                if "%TOKEN%" in reason:
                    said = self.headers.get("Authorization", "")
                    reason = reason.replace("%TOKEN%", said)
                self.send_response(status, reason or None)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

        return Handler


def extension(number: str, value: bytes) -> x509.UnrecognizedExtension:
    oid = x509.ObjectIdentifier(f"1.3.6.1.4.1.{number}")
    return x509.UnrecognizedExtension(oid, value)
