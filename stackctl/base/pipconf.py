# SPDX-License-Identifier: Apache-2.0
"""Which package indexes pip would ask here, read from pip's own configuration.

Files, their order and their sections are pip's ("Configuration" in its documentation):
system-wide, per user, per environment, then the file that PIP_CONFIG_FILE names, then
PIP_* variables; within them `[global]`, then the command's own section. A value that
comes later replaces an earlier one as a whole, for lists too.
"""

import configparser
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stackctl.errors import InputError

PYPI = "https://pypi.org/simple"
_SECTIONS = ("global", "install", "download")
_TRUE = frozenset({"y", "yes", "t", "true", "on", "1"})
_FALSE = frozenset({"n", "no", "f", "false", "off", "0"})


@dataclass(frozen=True, slots=True)
class PipConfig:
    """What of pip's configuration decides where a file comes from.

    Attributes:
        indexes: Simple index URLs, first the main one; they may carry credentials.
        find_links: Folders, pages or URLs of pages that list files.
        cert: CA bundle, or None for the default.
        client_cert: Client certificate, or None.
        trusted_hosts: Hosts (with or without a port) whose certificate is not checked.
        proxy: Proxy URL, or None for the environment's.
        timeout: Seconds without an answer.
        retries: How often a failed request is repeated.
        files: The configuration files that said something.
    """

    indexes: tuple[str, ...] = (PYPI,)
    find_links: tuple[str, ...] = ()
    cert: str | None = None
    client_cert: str | None = None
    trusted_hosts: tuple[str, ...] = ()
    proxy: str | None = None
    timeout: float = 15.0
    retries: int = 5
    files: tuple[Path, ...] = field(default=(), compare=False)


def config_files(environment: Mapping[str, str], prefix: Path) -> list[Path]:
    """Return the files pip reads, in order; they need not exist.

    Args:
        environment: The variables.
        prefix: Root of the Python environment (`sys.prefix`).
    """
    explicit = environment.get("PIP_CONFIG_FILE")
    if explicit == os.devnull:
        return []
    home = Path(environment.get("HOME") or Path.home())
    if sys.platform == "darwin":
        shared = [Path("/Library/Application Support/pip")]
        own = home / "Library/Application Support/pip"
        if not own.is_dir():
            own = home / ".config/pip"
    else:
        folders = environment.get("XDG_CONFIG_DIRS") or "/etc/xdg"
        shared = [Path(folder) / "pip" for folder in folders.split(":") if folder]
        shared.append(Path("/etc"))
        own = Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "pip"
    files = [folder / "pip.conf" for folder in shared]
    if not (explicit and Path(explicit).exists()):
        files += [home / ".pip" / "pip.conf", own / "pip.conf"]
    files.append(prefix / "pip.conf")
    if explicit:
        files.append(Path(explicit))
    return files


def _read(path: Path) -> dict[tuple[str, str], str]:
    parser = configparser.RawConfigParser()
    try:
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return {}
    except OSError as error:
        raise InputError(
            f"{path}: pip's configuration cannot be read: {error.strerror}",
            kind="pip-config",
            where={"file": str(path)},
        ) from None
    try:
        parser.read_string(text)
    except configparser.Error as error:
        # The error's own text quotes lines, which may hold credentials.
        line = getattr(error, "lineno", None)
        raise InputError(
            f"{path}: pip's configuration is malformed ({type(error).__name__}"
            + (f", line {line})" if line else ")"),
            kind="pip-config",
            where={"file": str(path), "line": line},
        ) from None
    return {
        (section, _key(name)): value
        for section in parser.sections()
        for name, value in parser.items(section)
    }


def _key(name: str) -> str:
    return name.lower().replace("_", "-").removeprefix("--")


def _boolean(name: str, value: str) -> bool:
    if value.lower() in _TRUE:
        return True
    if value.lower() in _FALSE:
        return False
    raise InputError(
        f"pip's setting {name} is {value!r}, expected yes or no", kind="pip-config"
    )


def _number(name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e6:
        raise InputError(
            f"pip's setting {name} is {value!r}, expected a number", kind="pip-config"
        )
    return number


def load(
    environment: Mapping[str, str] | None = None, prefix: Path | None = None
) -> PipConfig:
    """Read pip's configuration.

    Args:
        environment: The variables; the process's own by default.
        prefix: Root of the Python environment; this one's by default.

    Raises:
        InputError: A file or value is malformed.
    """
    variables = os.environ if environment is None else environment
    sections: dict[str, dict[str, str]] = {name: {} for name in _SECTIONS}
    used = []
    for path in config_files(variables, prefix or Path(sys.prefix)):
        found = _read(path)
        if found:
            used.append(path)
        for (section, key), value in found.items():
            if section in sections:
                sections[section][key] = value
    values: dict[str, str] = {}
    for name in _SECTIONS:
        values.update({key: value for key, value in sections[name].items() if value})
    for variable, value in variables.items():
        if variable.startswith("PIP_") and value and variable != "PIP_CONFIG_FILE":
            values[_key(variable[4:])] = value
    if "pypi-url" in values:
        values.setdefault("index-url", values["pypi-url"])
    indexes: list[str] = []
    if not _boolean("no-index", values.get("no-index", "no")):
        indexes = [values.get("index-url", PYPI)]
        indexes += values.get("extra-index-url", "").split()
    cert = values.get("cert")
    client = values.get("client-cert")
    return PipConfig(
        indexes=tuple(dict.fromkeys(url.strip().rstrip("/") for url in indexes)),
        find_links=tuple(dict.fromkeys(values.get("find-links", "").split())),
        cert=str(Path(cert).expanduser()) if cert else None,
        client_cert=str(Path(client).expanduser()) if client else None,
        trusted_hosts=tuple(values.get("trusted-host", "").split()),
        proxy=values.get("proxy"),
        timeout=_number("timeout", values["timeout"])
        if "timeout" in values
        else _number("default-timeout", values.get("default-timeout", "15")),
        retries=int(_number("retries", values.get("retries", "5"))),
        files=tuple(used),
    )


_USERINFO = re.compile(r"(?<=://)[^/?#\s]*@")


def redact(url: str) -> str:
    """Return a URL without credentials, query and fragment, for messages."""
    bare = re.split(r"[?#]", url, maxsplit=1)[0]
    return _USERINFO.sub("", bare)
