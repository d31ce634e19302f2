# SPDX-License-Identifier: Apache-2.0
"""What may enter a receipt: an allow-list of shapes, keys and variables.

A receipt is published, and what a gate's script prints is not under our control. So
nothing is searched for and taken out; a word comes in only when it has an allowed
shape: words, numbers with units, versions, short identifiers, paths inside a tree,
placeholders. Everything else (an absolute path, a URL, an address, a dotted host name,
a long random text) becomes `[removed]`. What has the shape of a word and still is
private on this machine (its name, the user's, the values of secret variables) is
removed by value.

`Filter` is idempotent: what came through comes through again, unchanged.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from stackctl.errors import InputError

REMOVED: Final = "[removed]"
"""Stands in the place of what may not enter."""

MAX_TEXT: Final = 2_000
"""Longest text that is kept, characters."""

SHORT: Final = 100
"""Longest text of which a filter remembers what it made, characters."""

MOST_KNOWN: Final = 4_096
"""Most such texts."""

MAX_DEPTH: Final = 12
"""Deepest nesting of a unit's answer."""

ENDINGS: Final = (
    "c", "cc", "cfg", "cpp", "cu", "cuh", "diff", "h", "hpp", "html", "json", "jsonl",
    "lock", "log", "md", "patch", "ptx", "py", "pyi", "rst", "safetensors", "sh", "so",
    "toml", "txt", "whl", "yaml", "yml",
)  # fmt: skip
"""Endings that make a dotted word a file's name and not a host's."""

MODULES: Final = (
    "cuda", "dram", "engagement", "extra", "json", "lts", "math", "numpy", "os",
    "pytest", "samples", "scipy", "sm", "stackctl", "statsmodels", "stop", "subprocess",
    "tests", "torch", "triton", "vllm",
)  # fmt: skip
"""First parts of dotted names of Python, of GPU counters and of a unit's answer."""

LAST: Final = ("avg", "max", "min", "pct", "sum", "sm", "mem", "current", "total")
"""Last parts of the names of counters."""

VARIABLES: Final = (
    "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING",
    "CUDA_VISIBLE_DEVICES", "LANG", "LANGUAGE", "LC_ALL", "MKL_NUM_THREADS",
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PYTHONDONTWRITEBYTECODE",
    "PYTHONHASHSEED", "PYTHONSAFEPATH", "PYTHONUNBUFFERED", "STACKCTL_GATE_ARMS",
    "STACKCTL_GATE_BLOCK", "STACKCTL_GATE_UNIT", "TOKENIZERS_PARALLELISM", "TZ",
)  # fmt: skip
"""Environment variables that a receipt may hold, by name."""

PREFIXES: Final = (
    "CUBLAS_", "GLM", "KDA_", "KPOOL_", "NCCL_", "PYTORCH_", "TORCH_", "TRITON_",
    "TORCHINDUCTOR_", "VLLM_",
)  # fmt: skip
"""Starts of further variables, unless a part of the name is in `PRIVATE_PARTS`."""

PRIVATE_PARTS: Final = frozenset(
    (
        "ADDR", "ADDRESS", "APIKEY", "AUTH", "BEARER", "CACHE", "COOKIE", "CREDENTIAL",
        "CREDENTIALS", "CRED", "DIR", "DIRECTORY", "ENDPOINT", "FILE", "FOLDER", "HOME",
        "HOST", "HOSTNAME", "IP", "KEY", "LOGIN", "NODE", "PASS", "PASSPHRASE",
        "PASSWD", "PASSWORD", "PATH", "PAT", "PRIVATE", "PROXY", "ROOT", "SECRET",
        "SERVER", "SIGNATURE", "SOCKET", "SOCK", "TEMP", "TMP", "TOKEN", "URI", "URL",
        "USER", "USERNAME",
    )
)  # fmt: skip
"""Parts of a variable's name behind which there is a place, a person or a secret."""

SECRET_PARTS: Final = frozenset(
    (
        "APIKEY", "AUTH", "BEARER", "COOKIE", "CREDENTIAL", "CREDENTIALS", "CRED",
        "KEY", "PASS", "PASSPHRASE", "PASSWD", "PASSWORD", "PAT", "SECRET", "TOKEN",
    )
)  # fmt: skip

_PERSONAL_PARTS: Final = frozenset(
    ("HOST", "HOSTNAME", "LOGIN", "NODE", "NODENAME", "PW", "PWD", "USER", "USERNAME")
)
"""Parts of a key's name at which a text names a person or a machine."""

_SECRET_NAME = re.compile(
    r"PASSWORD|PASSWD|PASSPHRASE|SECRET|APIKEY|CREDENTIAL|TOKEN(?!IZ)|PASS$"
    r"|_(?:PWD|DSN)$"
)

DIGEST_KEYS: Final = frozenset(
    (
        "commit", "composition", "content_sha256", "digest", "expected_tree", "head",
        "inputs", "installed_tree", "sha256", "site", "tree",
    )
)  # fmt: skip
"""Keys whose value may be a digest; elsewhere a long hexadecimal text is removed."""

SCOPE_KEYS: Final[Mapping[str, frozenset[str]]] = {
    "hardware": frozenset(
        (
            "gpus", "model", "name", "uuid", "driver", "cuda", "memory_mib", "sm",
            "sm_max_mhz",
            "compute_capability", "power_limit_w", "clocks", "sm_mhz", "memory_mhz",
            "max_sm_mhz", "max_memory_mhz", "persistence", "mig", "ecc", "numa",
            "topology", "links", "nvlink", "count", "index", "pcie", "l2_bytes",
            "multiprocessors", "temperature_c", "power_w", "throttle_reasons",
            "throttle", "visible", "performance_state", "compute_mode", "application",
            "total", "memory", "memory_bytes", "power_limit_mw",
        )
    ),
    "host": frozenset(
        (
            "cpu", "cpus", "model", "name", "numa", "numa_nodes", "nodes", "sockets",
            "cores", "threads", "memory_mib", "memory_bytes", "governor", "load_before",
            "load_peak", "load_mean", "load_after", "loadavg", "machine", "system",
            "release", "kernel", "architecture", "container", "limits", "affinity",
            "usable_cpus",
            "virtual", "os", "libc", "cpus_allowed", "cpu_model", "memory", "load",
        )
    ),
    "versions": frozenset(
        (
            "python", "torch", "triton", "vllm", "git", "stackctl", "cuda", "driver",
            "numpy", "scipy", "statsmodels", "pytest", "cudnn", "nccl", "glibc",
            "transformers", "flashinfer", "ray", "httpx", "openai", "llama_cpp",
            "kernel", "nvml", "implementation", "server", "pynvml", "safetensors",
            "tokenizers", "os", "site",
        )
    ),
}  # fmt: skip
"""Keys of the scope, at any depth below each of its three tables."""

UNIT_KEYS: Final = ("unit", "exit", "ns", "answer", "host", "gpus", "problems")
ANSWER_KEYS: Final = (
    "schema", "samples", "engagement", "stop", "notes", "extra", "inputs",
)  # fmt: skip
HOST_KEYS: Final = (
    "load_before", "load_peak", "load_mean", "load_after", "cpus", "loadavg", "node",
)  # fmt: skip
GPU_KEYS: Final = ("uuid", "before", "after", "throttled", "name", "model", "index")

_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_HEX = re.compile(r"(?:sha256:)?(?:[0-9a-f]{64}|[0-9a-f]{40})")
_PLACE = re.compile(
    r"\{(?:python|site|project|model|base-url|scratch|out"
    r"|(?:tree|site):[a-z0-9][a-z0-9_-]{0,40})\}"
)
_NODE = re.compile(r"node-[0-9a-f]{8}")
_SPACE = re.compile(r"(\s+)")

# Known spellings of secrets; on top of the shapes, which refuse most of them already.
_KNOWN_SECRET = re.compile(
    r"(?i)(?:^|[^a-z0-9])(?:gh[opsur]_|github_pat_|glpat-|hf_[a-z]{8}|sk-|pk-|rk_live|"
    r"sk_live|xox[abeprs]-|akia|asia[a-z0-9]{8}|aiza|ya29|eyj|npm_|pypi-|dckr_|nvapi-|"
    r"wandb_|ssh-(?:rsa|ed25519|dss)|ecdsa-sha2|ip-\d+-\d+|basic$|bearer$)"
)
_ASSIGNED = re.compile(
    r"(?i)(?:pass(?:wd|word|phrase)?|pwd|secret|token|api[_-]?key|apikey|auth"
    r"(?:orization)?|credentials?|cookie|bearer|private[_-]?key)[\"']?[=:]."
)
_ANNOUNCED = re.compile(
    r"(?i)(?:.*[^a-z])?(?:(?:pass(?:wd|word|phrase)|secret|api[_-]?key|apikey|bearer"
    r"|authorization|credentials?|cookie|private[_-]?key)[\"']?[=:]*"
    r"|(?:token|auth|key|user|login|host(?:name)?|node|pwd)[\"']?[=:]+"
    r"|--?[a-z-]*(?:token|key|password|secret|auth|user|host)=?)"
)
_UUID_TEXT = re.compile(r"(?i)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_PIECE = re.compile(
    r"""
      [a-z]{1,19} | [A-Z]{1,12}s? | \d{1,16} | [A-Za-z]{1,8}
    | [a-z0-9]{1,10} | [A-Z0-9]{1,8}
    | (?:[a-z]{1,12}|[A-Z]{1,8}|[A-Z][a-z]{1,11})\d{1,5}(?:[a-z]{0,3}|[A-Z]{0,3})\d{0,3}
    | \d{1,16}(?:[a-z]{0,6}|[A-Z]{0,3}|[A-Z][a-z]{0,5})\d{0,3}
    | (?=.{1,19}$)(?:[a-z]{2,12})?(?:[A-Z]{1,4}[a-z]{2,12}){1,3}[A-Z]{0,3}\d{0,3}
    | (?=.{1,24}$)(?:[a-z]{2,12}|[A-Z]{1,6})?(?:[A-Z][a-z]{2,14}){1,6}[A-Z]{0,4}\d{0,3}
    | (?:[a-z]{3,12}|[A-Z]{1,6})?(?:[A-Z][a-z]{3,12}){1,6}[A-Z]{0,4}\d{0,3}
    """,
    re.VERBOSE,
)
_NUMBER = r"\d{1,16}(?:\.\d{1,16}){1,2}(?:e[+-]?\d{1,3})?"
_VERSION = re.compile(
    rf"""
      (?:[A-Za-z]{{1,10}}-?)?{_NUMBER}(?:-{_NUMBER})?
      (?:\.?[A-Za-z]{{1,5}}\d{{0,6}})?
      (?:[+-](?:[a-z]{{1,10}}\d{{0,8}}|\d{{1,10}}|g[0-9a-f]{{6,12}})){{0,4}}
    | \.\d{{1,16}} | e\.g | i\.e
    """,
    re.VERBOSE,
)
# Some endings of files are also top-level domains: those have one dot only.
_DOTTED = re.compile(
    rf"""
      (?:{"|".join(MODULES)})(?:\.[A-Za-z_]\w{{0,40}}){{1,6}}
    | \w{{1,60}}(?:\.(?:{"|".join(LAST)})){{1,3}}
    | [\w-]{{1,120}}\.(?:{"|".join(ENDINGS)})
    | [\w-]{{1,60}}(?:\.[\w-]{{1,40}}){{1,3}}\.(?:json|jsonl|log|patch|toml|txt|whl)
    """,
    re.VERBOSE | re.ASCII,
)


def private_values(more: Iterable[str] = ()) -> tuple[str, ...]:
    """Return what is private on this machine although it may look like a word.

    Args:
        more: Further values: names of other nodes, for example.

    Returns:
        The machine's names, the user's name and home, and the values of variables
        whose names say that they are secret, longest first.
    """
    found: set[str] = set(more)
    node = os.uname().nodename
    found |= {node, node.partition(".")[0]}
    for name in ("HOSTNAME", "HOST", "USER", "LOGNAME", "USERNAME", "HOME"):
        found.add(os.environ.get(name, ""))
    try:
        import pwd

        entry = pwd.getpwuid(os.getuid())
        found |= {entry.pw_name, entry.pw_dir}
    except (ImportError, KeyError):  # a user without an entry, as containers have
        pass
    home = Path(os.environ.get("HOME", "/"))
    if home.parent.name.lower() in {"home", "users"}:
        found.add(home.name)
    for name, value in os.environ.items():
        upper = name.upper()
        secret = SECRET_PARTS & set(upper.split("_")) or _SECRET_NAME.search(upper)
        if secret and len(value) >= 5:
            found.add(value)
    # These name nobody and are no secret, and stand in ordinary sentences.
    common = {
        "/", "root", "localhost", "nobody", "user", "home", "runner", "removed",
        "false", "basic", "never", "always",
    }  # fmt: skip
    kept = (value for value in found if len(value) > 1 and value not in common)
    return tuple(sorted(kept, key=lambda value: (-len(value), value)))


class Filter:
    """Lets only allowed shapes through.

    Args:
        private: Values that are removed although their shape is allowed.
        public: Names that the project itself declares (arms, gates, cells): they stay
            whatever the machine or its user is called.
    """

    def __init__(self, private: Sequence[str] = (), public: Iterable[str] = ()) -> None:
        self._public = frozenset(public)
        self._removed: dict[str, str] = {}
        self._known: dict[str, str] = {}
        alternatives = "|".join(map(_anywhere_or_word, private))
        self._private = re.compile(f"(?i){alternatives}") if alternatives else None

    def text(self, value: str) -> str:
        """Return a text whose words all have an allowed shape."""
        if value in self._public:
            return value
        # The keys of a million samples are a handful of texts.
        if (known := self._known.get(value)) is not None:
            return known
        found = self._text(value)
        if len(value) <= SHORT and len(self._known) < MOST_KNOWN:
            self._known[value] = found
        return found

    def _text(self, value: str) -> str:
        value = _shortened(value)
        if self._private is not None:
            value = self._private.sub(REMOVED, value)
        parts = _SPACE.split(value)
        announced = False
        for n in range(0, len(parts), 2):
            word = parts[n]
            if not word:
                continue
            if announced and word != REMOVED and re.search(r"\w", word):
                parts[n] = REMOVED
                announced = _ANNOUNCED.fullmatch(word) is not None
                continue
            announced = _ANNOUNCED.fullmatch(word) is not None
            parts[n] = self._word(word)
        parts[1::2] = ["\n" if "\n" in space else " " for space in parts[1::2]]
        return _shortened("".join(parts))

    def name(self, value: str) -> str:
        """Return a name (a key, a test's id), or a stand-in that is as distinct."""
        if value in self._public:
            return value
        if len(value) <= 400 and self.text(value) == value:
            return value
        # Two names stay two names: results of two arms are paired by them.
        return self._removed.setdefault(value, f"removed-{len(self._removed) + 1}")

    def argument(self, value: str) -> str:
        """Return an argument of a command line, or `[removed]`."""
        return value if self.text(value) == value else REMOVED

    def arguments(self, values: Iterable[str], own: Iterable[str] = ()) -> list[str]:
        """Return a command line; what follows an option for a secret is removed.

        Args:
            values: The arguments.
            own: Those that the gate's file itself spells: it is bound and published
                beside the receipt, so they stay whatever their shape, unless they
                hold what is private here or a known form of a secret.
        """
        stay = frozenset(value for value in own if self._harmless(value))
        kept: list[str] = []
        announced = False
        for value in values:
            if announced:
                kept.append(REMOVED)
            else:
                kept.append(value if value in stay else self.argument(value))
            announced = _ANNOUNCED.fullmatch(value) is not None
        return kept

    def _harmless(self, value: str) -> bool:
        """Tell whether an argument of a gate's file may stay as it is."""
        return not (
            (self._private is not None and self._private.search(value))
            or _KNOWN_SECRET.search(value)
            or _ASSIGNED.search(value)
            or _UUID_TEXT.search(value)
            or not value.isprintable()
            or len(value) > MAX_TEXT
        )

    def environment(self, values: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that a receipt may hold, sorted by name."""
        return {
            name: self._variable(name, values[name])
            for name in sorted(values)
            if variable_allowed(name)
        }

    def switches(self, values: Mapping[str, str]) -> dict[str, str]:
        """Return an arm's switches, sorted by name.

        The gate's own file, which is bound, names them, so every name may enter that
        is not the name of a secret or of a place.
        """
        return {
            name: self._variable(name, values[name])
            for name in sorted(values)
            if re.fullmatch(r"[A-Z][A-Z0-9_]{0,80}", name)
            and not PRIVATE_PARTS & set(name.split("_"))
        }

    def _variable(self, name: str, value: str) -> str:
        if name == "CUDA_VISIBLE_DEVICES" and all(
            re.fullmatch(r"\d{1,3}", part) or _UUID.fullmatch(part)
            for part in value.split(",")
        ):
            return value
        return self.argument(value)

    def value(self, value: object, key: str = "", depth: int = 0) -> Any:
        """Return a JSON value whose texts and keys all have an allowed shape.

        Raises:
            InputError: Nested too deeply, or of a type that JSON has not.
        """
        if depth > MAX_DEPTH:
            raise InputError(
                f"an answer is nested more than {MAX_DEPTH} levels deep",
                kind="bad-evidence",
            )
        if value is None or isinstance(value, (bool, int, float)):
            return value
        if isinstance(value, str):
            if _private_key(key) and not _NODE.fullmatch(value):
                return REMOVED
            if key in DIGEST_KEYS and _HEX.fullmatch(value):
                return value
            if key == "uuid":
                return value if _UUID.fullmatch(value) else REMOVED
            return self.name(value) if key == "id" else self.text(value)
        if isinstance(value, Mapping):
            return {
                self.name(str(name)): self.value(content, str(name), depth + 1)
                for name, content in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.value(item, key, depth + 1) for item in value]
        raise InputError(
            f"an answer holds a {type(value).__name__}, which JSON has not",
            kind="bad-evidence",
        )

    def unit(self, unit: Mapping[str, Any]) -> dict[str, Any]:
        """Return a unit of the evidence with its allowed keys."""
        kept = {name: unit[name] for name in UNIT_KEYS if name in unit}
        if isinstance(answer := kept.get("answer"), Mapping):
            kept["answer"] = {
                name: self.value(answer[name], name)
                for name in ANSWER_KEYS
                if name in answer
            }
        host = _only(self.value(kept.get("host", {})), HOST_KEYS)
        if not _NODE.fullmatch(str(host.get("node", ""))):
            host.pop("node", None)  # a name that people gave to a machine
        kept["host"] = host
        kept["gpus"] = [
            _only(self.value(gpu), GPU_KEYS) for gpu in kept.get("gpus", ())
        ]
        kept["problems"] = [self.text(text) for text in kept.get("problems", ())]
        return kept

    def scope(self, scope: Mapping[str, Any]) -> dict[str, Any]:
        """Return hardware, host and versions with their allowed keys."""
        return {
            part: self._scoped(scope[part], allowed)
            for part, allowed in SCOPE_KEYS.items()
            if part in scope
        }

    def _scoped(self, value: object, allowed: frozenset[str], key: str = "") -> Any:
        if isinstance(value, Mapping):
            return {
                name: self._scoped(content, allowed, name)
                for name, content in value.items()
                if name in allowed
            }
        if isinstance(value, (list, tuple)):
            return [self._scoped(item, allowed, key) for item in value]
        return self.value(value, key)

    def _word(self, word: str) -> str:
        if self._allowed(word):
            return word
        return REMOVED + word[len(word.rstrip(",.:;")) :][:1]

    def _allowed(self, word: str) -> bool:
        """Tell whether a word without spaces has an allowed shape."""
        if word in self._public:
            return True
        if len(word) > 240 or not word.isprintable():
            return False
        plain = _PLACE.sub("tree", word.replace(REMOVED, "removed"))
        if _KNOWN_SECRET.search(plain) or _ASSIGNED.search(plain):
            return False
        if _UUID_TEXT.search(plain) or not _paths_inside(plain):
            return False
        segments = re.split(r"[^\w.\-]+|(?<=\w)\.(?=\W|$)", plain)
        return all(_segment(segment) for segment in segments if segment)


def _private_key(key: str) -> bool:
    """Tell whether a text at a key is a secret, or names somebody."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).upper()
    parts = set(re.split(r"[^A-Z0-9]+", words))
    named = re.search("PASSW|PASSPHRASE|SECRET|APIKEY|CREDENTIAL", words)
    return bool(named or parts & (SECRET_PARTS | _PERSONAL_PARTS))


def variable_allowed(name: str) -> bool:
    """Tell whether a receipt may hold an environment variable."""
    if name in VARIABLES:
        return True
    return (
        re.fullmatch(r"[A-Z][A-Z0-9_]{0,80}", name) is not None
        and name.startswith(PREFIXES)
        and not PRIVATE_PARTS & set(name.split("_"))
        and all(_PIECE.fullmatch(part) for part in name.split("_") if part)
    )


def _anywhere_or_word(value: str) -> str:
    """Return a pattern of a private value: inside of words too, unless it is one."""
    pattern = re.escape(value)
    if len(value) >= 8 and not value.isalpha():
        return pattern
    return rf"(?<![A-Za-z0-9]){pattern}(?![A-Za-z0-9])"


def _shortened(text: str) -> str:
    """Cut a long text at a space, so that no half word comes to be."""
    if len(text) <= MAX_TEXT:
        return text
    kept = text[: MAX_TEXT - 4]
    return f"{kept[: max(kept.rfind(' '), 0)].rstrip()} ..."


def _only(table: Any, keys: Sequence[str]) -> dict[str, Any]:
    found = table if isinstance(table, dict) else {}
    return {name: found[name] for name in keys if name in found}


def _paths_inside(word: str) -> bool:
    """Refuse whatever leads out of a tree, names a person's place, or is an address."""
    if re.search(r"://|@|~|\\|%[0-9A-Fa-f]{2}|(?:^|[^\w])\.\.(?:/|$)", word):
        return False
    if re.search(r"(?<![\w}\]])/|//", word):  # absolute, also behind a quote or `=`
        return False
    if re.search(r"(?i)(?:^|/)(?:home|users|root|mnt|media|var|tmp|private)/", word):
        return False
    if re.search(r"\d{1,3}(?:\.\d{1,3}){3}", word):  # an IPv4 address
        return False
    if re.search(r"(?i)\b[0-9a-f]{2}(?:-[0-9a-f]{2}){5}\b", word):  # of hardware
        return False
    # `file.py::test` is no address; `fe80::1` and a hardware address are.
    rest = re.sub(r"\.py::|(?<=[A-Za-z])::(?=[A-Za-z_])", " ", word)
    if "::" in rest or re.search(
        r"(?:^|\W)[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,4}){2,}", rest
    ):
        return False
    return re.search(r"[A-Za-z]:[/\\]", word) is None


def _segment(segment: str) -> bool:
    """Tell whether a part of a word, without separators but `.`, `_`, `-`, may stay."""
    inner = segment.strip("-")
    if "." in inner.strip("."):
        if _VERSION.fullmatch(inner):
            return True
        if not _DOTTED.fullmatch(inner):
            return False
    return all(_piece(part) for part in re.split(r"[._-]+", inner) if part)


def _piece(part: str) -> bool:
    if part.isascii():
        return _PIECE.fullmatch(part) is not None
    return len(part) <= 4 or (len(part) <= 19 and part.isalpha())
