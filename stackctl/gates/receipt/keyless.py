# SPDX-License-Identifier: Apache-2.0
"""Signatures by an identity instead of a key: sigstore bundles beside receipts.

A certificate that lives for minutes names who signed (a mail address, a workflow) and
who vouches for that (the issuer); a log that only grows proves when. What is trusted is
one committed file, `receipts/keys/sigstore-trusted-root.json`: judging fetches nothing.
The `sigstore` package does the work and is loaded when it is needed and not before.
"""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any, Final

from packaging.version import Version

from stackctl.errors import InputError, RemoteError, UsageError
from stackctl.fsutil import read_regular, write_atomic
from stackctl.gates.receipt.model import FOLDER, Receipt
from stackctl.gates.receipt.signature import (
    BUNDLE,
    KEYS,
    MAX_BYTES,
    MAX_KEY,
    SCRATCH,
    TIMEOUT,
    TRUSTED_ROOT,
    Signature,
    Signer,
)
from stackctl.model.fields import escape
from stackctl.scratch import scratch_folder

if TYPE_CHECKING:
    import requests

OLDEST: Final = Version("4.5")
"""First version of the `sigstore` package that this was tested with."""

BEFORE: Final = Version("5")
"""First version that may be another one altogether."""


@dataclass(frozen=True, slots=True)
class _Library:
    """The modules of the package that are used."""

    models: Any
    oidc: Any
    sign: Any
    verify: Any
    policy: Any


class _Anybody:
    """A policy of the package's verifier that leaves the identity to us."""

    def verify(self, cert: object) -> None:
        """Accept a certificate: who signed is asked after all else holds."""


def judge_bundle(
    data: bytes, bundle: bytes, signers: Sequence[Signer], project: Path | None
) -> Signature:
    """Judge a sigstore bundle without the network.

    Args:
        data: The receipt's bytes.
        bundle: The bundle's bytes.
        signers: Those that count; keys among them are passed over.
        project: The project folder, which holds the trust root.

    Raises:
        InputError: The trust root cannot be read.
        UsageError: The `sigstore` package is not installed (`package-missing`).
    """
    library = _load()
    with _quiet():
        try:
            read = library.models.Bundle.from_json(bundle)
        # What a hostile file makes a parser raise is not listed anywhere.
        except Exception as error:
            return Signature("invalid", why=f"it is no sigstore bundle: {_said(error)}")
        root = _trusted_root(library, project)
        if root is None:
            return Signature(
                "unlisted",
                why="there is no trust root to judge it by: put it into "
                f"{FOLDER}/{KEYS}/{TRUSTED_ROOT}",
            )
        if (wrong := _wrong(library, data, read, root)) is not None:
            return Signature("invalid", why=wrong)
        for signer in signers:
            if signer.kind != "sigstore":
                continue
            wanted = library.policy.Identity(identity=signer.key, issuer=signer.issuer)
            try:
                wanted.verify(read.signing_certificate)
            except Exception:  # noqa: S112 - whatever it is, it is not this identity
                continue
            return Signature("trusted", signer.name)
    return Signature("unlisted", why="it is by no identity of `receipt_signers`")


def sign_bundles(
    receipts: Sequence[Receipt], *, config: Path | None = None, browser: bool = False
) -> tuple[Path, ...]:
    """Sign receipts with the identity that the environment gives, over the network.

    One certificate signs them all. A bundle is judged before it is written.

    Args:
        receipts: The receipts, each read from its file.
        config: The services and their trust root (a client trust configuration of
            sigstore); the public ones by default.
        browser: Log in with a browser instead; the package prints what to do.

    Returns:
        The files with the bundles, in the order of the receipts.

    Raises:
        InputError: The configuration is bad, or a file cannot be written.
        RemoteError: A service refuses or is not reached (`not-signed`).
        UsageError: There is no identity, or the package is missing.
    """
    library = _load()
    made = []
    token = None
    with _quiet():
        services = _services(library, config)
        try:
            token = _token(library, services, browser)
            context = library.sign.SigningContext.from_trust_config(services)
            _limit(context)
            with context.signer(token) as signer:
                for receipt in receipts:
                    assert receipt.path is not None  # read from its file
                    bundle = signer.sign_artifact(receipt.data)
                    root = services.trusted_root
                    wrong = _wrong(library, receipt.data, bundle, root)
                    if wrong is not None:
                        raise _not_signed(f"what the services gave is bad: {wrong}")
                    text = bundle.to_json().encode("utf-8") + b"\n"
                    if len(text) > MAX_BYTES:
                        raise _not_signed(
                            f"the bundle has {len(text):,} bytes; at most "
                            f"{MAX_BYTES:,} are read again"
                        )
                    target = receipt.path.with_name(receipt.path.name + BUNDLE)
                    write_atomic(target, text)
                    made.append(target)
        except (InputError, RemoteError, UsageError):
            raise
        # The package lets errors of half a dozen libraries through, unlisted.
        except Exception as error:
            secret = "" if token is None else str(token)
            raise _not_signed(_said(error, secret)) from None
    return tuple(made)


def _load() -> _Library:
    """Return the package's modules."""
    hint = "pip install 'stackctl[sigstore]'"
    where = {"package": "sigstore"}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from sigstore import models, oidc, sign, verify
            from sigstore.verify import policy

        found = Version(version("sigstore"))
    except (ImportError, PackageNotFoundError) as error:
        raise UsageError(
            f"sigstore is needed for this signature, and cannot be imported: {error}",
            kind="package-missing",
            hint=hint,
            where=where,
        ) from None
    if not OLDEST <= found < BEFORE:
        raise UsageError(
            f"sigstore {OLDEST} or later, before {BEFORE}, is needed for this "
            f"signature; found {found}",
            kind="package-missing",
            hint=hint,
            where=where,
        )
    return _Library(models, oidc, sign, verify, policy)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the package from logging: at DEBUG it logs what logs a user in."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _trusted_root(library: _Library, project: Path | None) -> Any:
    """Return the project's trust root, None where it has none."""
    if project is None:
        return None
    file = project / FOLDER / KEYS / TRUSTED_ROOT
    if not file.is_file():
        return None
    data = read_regular(file, MAX_KEY)
    with scratch_folder(Path(gettempdir()), SCRATCH) as folder:
        copy = folder / TRUSTED_ROOT
        copy.write_bytes(data)
        try:
            root = library.models.TrustedRoot.from_file(str(copy))
            library.verify.Verifier(trusted_root=root)
        except Exception as error:
            raise InputError(
                f"{file}: is no trust root of sigstore: {_said(error)}",
                kind="bad-trust-root",
                hint="take the `trustedRoot` of the services' configuration",
                where={"file": str(file)},
            ) from None
    return root


def _wrong(library: _Library, data: bytes, bundle: Any, root: Any) -> str | None:
    """Say why a bundle is no signature of some bytes by anybody, None where it is."""
    try:
        verifier = library.verify.Verifier(trusted_root=root)
        verifier.verify_artifact(data, bundle, _Anybody())
    except Exception as error:
        return f"it does not hold: {_said(error)}"
    return None


def _services(library: _Library, config: Path | None) -> Any:
    """Return the services that sign and what is trusted of them."""
    if config is None:
        try:
            return library.models.ClientTrustConfig.production()
        except Exception as error:
            raise _not_signed(_said(error)) from None
    data = read_regular(config, MAX_KEY)
    try:
        found = library.models.ClientTrustConfig.from_json(data)
        _ = found.trusted_root, found.signing_config
    except Exception as error:
        raise InputError(
            f"{config}: is no client trust configuration of sigstore: {_said(error)}",
            kind="bad-sigstore-config",
            hint="a JSON file with `trustedRoot` and `signingConfig`",
            where={"file": str(config)},
        ) from None
    return found


def _token(library: _Library, services: Any, browser: bool) -> Any:
    """Return who signs, as an identity token."""
    if browser:
        issuer = library.oidc.Issuer(services.signing_config.get_oidc_url())
        return issuer.identity_token()
    raw = library.oidc.detect_credential()
    if raw is None:
        raise UsageError(
            "nothing here says who signs: no identity token of a CI service or a "
            "cloud was found",
            kind="no-identity",
            hint="let the CI job have one (GitHub: `permissions: id-token: write`; "
            "GitLab: SIGSTORE_ID_TOKEN), or log in with --browser",
        )
    try:
        return library.oidc.IdentityToken(raw)
    except Exception as error:
        raise _not_signed(_said(error, raw)) from None


def _limit(context: Any) -> None:
    """Give the package's requests the limit of time that they do not ask for."""
    from requests.adapters import HTTPAdapter

    class Limited(HTTPAdapter):
        def send(
            self, request: "requests.PreparedRequest", *args: Any, **options: Any
        ) -> "requests.Response":
            if options.get("timeout") is None:
                options["timeout"] = TIMEOUT
            return super().send(request, *args, **options)

    clients = [context._fulcio, context._rekor, *context._tsa_clients]
    for client in clients:
        session = getattr(client, "session", None) or getattr(client, "_session", None)
        if session is not None:
            session.mount("https://", Limited())
            session.mount("http://", Limited())


def _not_signed(why: str) -> RemoteError:
    return RemoteError(f"sigstore did not sign: {why}", kind="not-signed")


def _said(error: BaseException, secret: str = "") -> str:
    """Return an error's own words, on one line and without a secret."""
    found: BaseException | None = error
    while found is not None:
        if text := str(found):
            if secret:
                text = text.replace(secret, "[removed]")
            return escape(" ".join(text.split()), 200)
        found = found.__cause__ or found.__context__
    return type(error).__name__
