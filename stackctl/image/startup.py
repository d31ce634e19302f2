# SPDX-License-Identifier: Apache-2.0
"""What runs instead of or beside the tracked files although their bytes match.

Everything found here is a warning with a stable code; none of it is evidence that the
image was tampered with, and all of it decides what a process really executes.
"""

import json
import os
import re
import sys
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass

from stackctl.image import bytecode as pyc
from stackctl.image import documents, entrypoints
from stackctl.image.compare import Comparison
from stackctl.image.contents import Contents
from stackctl.image.expectation import ExpectedTree
from stackctl.image.layers import clean_path
from stackctl.image.roots import PACKAGE, Root
from stackctl.image.rules import Allow, bytecode
from stackctl.image.view import Node, View, show

#: Names of the folders that installers put packages into.
PACKAGES_FOLDERS = (b"site-packages", b"dist-packages")
_PYTHON_LIB = re.compile(rb"python3?(\.\d+)?t?")
#: On the path of every Python, before its library, whether it is there or not.
_PYTHON_ZIP = re.compile(rb"python3\d+t?\.zip")
_PYTHON_BIN = re.compile(rb"python(3(\.\d+)?t?)?")
_PROGRAMS = (b"bin", b"sbin")
#: Where systems have their interpreters.
_SYSTEM_PROGRAMS = (b"bin", b"usr/bin", b"usr/local/bin")
#: What runtimes set where the config does not.
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_BARE = re.compile(rb"python(3(\.\d+)?t?)?|(ba|da|z|a)?sh")
ENTRY_POINTS = b"entry_points.txt"
#: Top packages that many distributions install by mistake, and every checkout has.
_COMMON = (
    b"benchmarks", b"docs", b"examples", b"scripts", b"setup", b"test", b"tests",
    b"tools",
)  # fmt: skip
#: Folders of compiled code by their name, and that of the folder above if it counts.
_CACHES = {
    b"cache": b".triton",
    b"torch_compile_cache": b"",
    b"flashinfer": b".cache",
    b"torch_extensions": b".cache",
    b"ComputeCache": b".nv",
    b".deep_gemm": b"",
}
_CACHE_VARIABLES = (
    "TRITON_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCH_EXTENSIONS_DIR",
    "CUDA_CACHE_PATH",
    "DG_JIT_CACHE_DIR",
)
#: Libraries that the loader puts into every program.
LD_PRELOAD = b"etc/ld.so.preload"
_VENV_VERSION = re.compile(rb"(?m)^version(?:_info)?\s*=\s*(\d+\.\d+\.\d+)")
_CUSTOMIZE = (b"sitecustomize", b"usercustomize")
_ENVIRONMENT = (
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONSTARTUP",
    "PYTHONPYCACHEPREFIX",
    "PYTHONPLATLIBDIR",
    "PYTHONUSERBASE",
    "PYTHONEXECUTABLE",
    "PYTHON_PRESITE",
    "PYTHONBREAKPOINT",
    "PYTHONWARNINGS",
    "BASH_ENV",
    "LD_PRELOAD",
    "LD_AUDIT",
    "LD_LIBRARY_PATH",
    # Libraries that the CUDA driver, and vLLM itself, load by these.
    "CUDA_INJECTION64_PATH",
    "VLLM_NCCL_SO_PATH",
    "VLLM_CUDART_SO_PATH",
)
_INIT = (b"__init__.py", b"__init__.pyc", b"__init__.so")
_EXTENSION = re.compile(rb"[^/.]+(\.[^/]*)?\.(so|pyd)")
_MODULES = (b".py", b".so", b".pyc", b".egg")
_MANY = 20


@dataclass(frozen=True, slots=True)
class Warn:
    """Something to know beside the verdict.

    Attributes:
        code: Stable identifier.
        message: One sentence.
        paths: Paths in the image that it is about; at most a few.
        count: How many there are in all.
        strict: Whether `--strict` makes it a mismatch.
        extra: Further members of its JSON.
    """

    code: str
    message: str
    paths: tuple[str, ...] = ()
    count: int = 1
    strict: bool = True
    extra: Mapping[str, object] | None = None

    def document(self) -> dict[str, object]:
        """Return the warning as JSON."""
        result: dict[str, object] = {"code": self.code, "message": self.message}
        if self.paths:
            result["paths"] = list(self.paths)
        if self.count != 1:
            result["count"] = self.count
        result["strict"] = self.strict
        result.update(self.extra or {})
        return result


def _about(
    code: str, message: str, paths: Iterable[bytes], *, strict: bool = True
) -> Iterator[Warn]:
    shown = sorted({b"/" + path.lstrip(b"/") for path in paths})
    if shown:
        yield Warn(
            code, message, tuple(map(show, shown[:_MANY])), len(shown), strict=strict
        )


def bytecode_warnings(
    comparisons: Iterable[Comparison],
    expected: ExpectedTree,
    contents: Contents,
    judged_source: Callable[[bytes], bytes | None],
    version: Callable[[Comparison], str] = lambda _: "",
) -> Iterator[Warn]:
    """Yield what is to say about bytecode under the roots.

    Args:
        comparisons: The compared roots.
        expected: Where the sources of tracked files come from.
        contents: Where the bytecode comes from.
        judged_source: Gives the source of an untracked file that is judged, by its
            path in the image, or None.
        version: Gives the Python release that a root states to be for, or nothing.
    """
    found: dict[str, list[bytes]] = {}
    for comparison in comparisons:
        stated = version(comparison)
        other = bool(stated) and not same_release(stated)
        _check_bytecode(comparison, expected, contents, judged_source, found, other)
    messages = {
        "bytecode-unchecked": "Python runs this bytecode whatever the source says",
        "bytecode-foreign": "Python runs this bytecode, and it is not what the source "
        "compiles to",
        "bytecode-unverifiable": "Python may run this bytecode, and it cannot be "
        "compared with its source here",
        "bytecode-orphan": "this bytecode has no source beside it",
    }
    for code, message in messages.items():
        yield from _about(code, message, found.get(code, ()))
    yield from _about(
        "bytecode-stale",
        "Python passes over this bytecode, whose header does not fit the source",
        found.get("stale", ()),
        strict=False,
    )


def _check_bytecode(
    comparison: Comparison,
    expected: ExpectedTree,
    contents: Contents,
    judged_source: Callable[[bytes], bytes | None],
    found: dict[str, list[bytes]],
    other_release: bool,
) -> None:
    root = comparison.real_path + b"/" if comparison.real_path else b""
    wanted = expected.subtree(comparison.root.tree)
    pending: list[tuple[bytes, bytes, Node, int]] = []
    for path, node in comparison.bytecode.items():
        place = bytecode(path)
        if place is None:
            continue
        source = comparison.nodes.get(place.source)
        if source is None:
            found.setdefault("bytecode-orphan", []).append(root + path)
            continue
        header = pyc.read_header(node.head)
        comparable = (
            header is not None
            and header.magic == pyc.MAGIC
            and place.level in ("", "1", "2")
            # pytest changes what it compiles and says so in the tag.
            and place.tag.count("-") < 2
        )
        text: bytes | None = None
        if comparable or (header is not None and header.hashed):
            if place.source in comparison.tracked and source.kind == "f":
                text = expected.read(wanted[place.source][1])
            else:
                text = judged_source(root + place.source)
        times = (source.mtime, *source.times)
        use = pyc.usage(header, times, source.size, text)
        if source.kind != "f" and use == pyc.STALE:
            # The time and size that count are those of what the link leads to.
            use = pyc.USED
        if use == pyc.UNCHECKED:
            found.setdefault("bytecode-unchecked", []).append(root + path)
        elif use in (pyc.STALE, pyc.BROKEN):
            found.setdefault("stale", []).append(root + path)
            continue
        if not comparable or text is None:
            if use != pyc.UNCHECKED:
                found.setdefault("bytecode-unverifiable", []).append(root + path)
            continue
        pending.append((path, text, node, int(place.level or 0)))
    by_path = {root + path: (text, level) for path, text, _, level in pending}
    nodes = [(root + path, node) for path, _, node, _ in pending]
    for where, body in contents.fetch(nodes):
        text, level = by_path.pop(where)
        outcome = pyc.compare_code(body, text, show(where), level)
        if outcome == pyc.INSTRUCTIONS and other_release:
            found.setdefault("bytecode-unverifiable", []).append(where)
        elif outcome != pyc.SAME:
            found.setdefault("bytecode-foreign", []).append(where)
    for where in by_path:
        found.setdefault("bytecode-unverifiable", []).append(where)


def same_release(stated: str) -> bool:
    """Whether a stated version is that of the Python that runs this."""
    own = sys.version_info[:3]
    return stated.split(".")[:3] == [str(number) for number in own]


def stated_version(
    view: View,
    comparison: Comparison,
    contents: Contents,
    config: documents.Object | None,
) -> str:
    """Return the Python release that an image states for a root, or nothing.

    It is only used to choose between two warnings, so it need not be true.
    """
    parts = comparison.real_path.split(b"/")
    for depth in range(len(parts) - 1, 0, -1):
        path = b"/".join([*parts[:depth], b"pyvenv.cfg"])
        node = view.lookup(path).node
        if node is not None and node.kind == "f":
            data = dict(contents.fetch([(path, node)])).get(path, b"")
            matched = _VENV_VERSION.search(data)
            if matched:
                return matched[1].decode("ascii")
    run = config.get("config") if config else None
    for item in documents.as_list(
        run.get("Env") if isinstance(run, dict) else None, "config Env"
    ):
        name, _, value = str(item).partition("=")
        if name == "PYTHON_VERSION":
            return value
    return ""


def shadow_warnings(comparisons: Iterable[Comparison]) -> Iterator[Warn]:
    """Yield modules that Python finds before a tracked one of the same name.

    In one folder it takes a package first, then an extension module, then a source, and
    a folder without `__init__` last.
    """
    shadows: list[bytes] = []
    for comparison in comparisons:
        base = comparison.real_path + b"/" if comparison.real_path else b""
        modules = {path[:-3] for path in comparison.tracked if path.endswith(b".py")}
        namespaces = _namespaces(comparison)
        for path in comparison.nodes:
            if path in comparison.tracked:
                continue
            folder, slash, name = path.rpartition(b"/")
            stem = name.partition(b".")[0]
            module = folder + slash + stem
            extension = bool(_EXTENSION.fullmatch(name))
            source = name in (stem + b".py", stem + b".pyc")
            if (extension and module in modules) or (
                (extension or source) and module in namespaces
            ):
                shadows.append(base + path)
            if stem == b"__init__" and folder and folder in modules:
                shadows.append(base + path)
    yield from _about(
        "shadowed-module",
        "Python imports this in place of the tracked source of the same name",
        shadows,
    )


def _is_cache(folder: bytes, name: bytes) -> bool:
    """Whether a folder holds what Triton, torch and others compiled before.

    Args:
        folder: Name of the folder above.
        name: Its own.
    """
    if name.startswith(b"torchinductor_"):
        return folder == b"tmp"
    above = _CACHES.get(name)
    return above is not None and above in (b"", folder)


def _is_test(test: object) -> bool:
    """Whether a health check runs something."""
    return bool(test) and test != ["NONE"]


def _is_bare(command: object) -> bool:
    """Whether a command is a shell or an interpreter by itself."""
    if not isinstance(command, list) or len(command) != 1:
        return False
    return bool(_BARE.fullmatch(os.fsencode(str(command[0])).rpartition(b"/")[2]))


def _compared_names(comparisons: Sequence[Comparison]) -> frozenset[bytes]:
    """Return the top packages of the roots."""
    names = {
        os.fsencode(comparison.root.tree.split("/")[0])
        for comparison in comparisons
        if comparison.root.kind == PACKAGE
    }
    if names:
        return frozenset(names)
    for comparison in comparisons:
        names |= {
            path.split(b"/")[0]
            for path in comparison.tracked
            if path.count(b"/") == 1 and path.endswith(b"/__init__.py")
        }
    return frozenset(names - {b"tests", b"test", b"docs", b"examples", b"benchmarks"})


def _namespaces(comparison: Comparison) -> set[bytes]:
    """Return the tracked folders with modules that have no `__init__`."""
    folders = {
        path.rpartition(b"/")[0]
        for path in comparison.tracked
        if path.endswith(b".py") and b"/" in path
    }
    for folder in list(folders):
        while folder := folder.rpartition(b"/")[0]:
            folders.add(folder)
    packages = {
        folder
        for folder, _, name in (path.rpartition(b"/") for path in comparison.nodes)
        if name.partition(b".")[0] == b"__init__"
    }
    return folders - packages


class Startup:
    """Looks at what Python reads before it reaches the tracked files.

    Args:
        view: The image.
        comparisons: The compared roots.
        contents: Where small files come from.
        config: The image config, if there is one.
        allow: Files of which nobody needs to hear.
        commands: What the package's commands lead to, by those that can be believed.
    """

    def __init__(
        self,
        view: View,
        comparisons: list[Comparison],
        contents: Contents,
        config: documents.Object | None,
        allow: tuple[Allow, ...],
        commands: entrypoints.Commands,
    ) -> None:
        self._view = view
        self._comparisons = comparisons
        self._contents = contents
        self._allow = allow
        self._commands = commands
        inner = config.get("config") if config else None
        self._has_config = config is not None
        self._run = inner if isinstance(inner, dict) else {}
        self._working = documents.as_text(
            self._run.get("WorkingDir"), "config WorkingDir"
        )
        self._names = _compared_names(comparisons)
        self._packages_named = frozenset(map(os.fsdecode, self._names))
        self._packages: dict[bytes, Node] = {}
        self._libraries: dict[bytes, Node] = {}
        self._caches: list[bytes] = []
        for path, node in view.folders():
            folder, _, name = path.rpartition(b"/")
            if name in PACKAGES_FOLDERS:
                self._packages[path] = node
            elif _PYTHON_LIB.fullmatch(name) or name == b"lib-dynload":
                self._libraries[path] = node
            elif node.children and _is_cache(folder.rpartition(b"/")[2], name):
                self._caches.append(path)
        # A package root tells where its siblings are, whatever that folder is called.
        for comparison in comparisons:
            if comparison.root.kind == PACKAGE:
                parent = comparison.real_path.rpartition(b"/")[0]
                found = view.lookup(parent).node
                if found is not None and found.kind == "d":
                    self._packages.setdefault(parent, found)

    def warnings(self) -> Iterator[Warn]:
        """Yield everything there is to say."""
        yield from self._config()
        extra_paths = list(self._python_path())
        pth = list(self._pth(extra_paths))
        yield from self._customize(extra_paths)
        yield from pth
        if self._has_config:
            # `python -m` looks here first; without a working folder it is the root.
            extra_paths.append(self._working.encode() or b"/")
        extra_paths += self._script_folders()
        places = {**self._packages, **self._libraries, **self._folders(extra_paths)}
        yield from self._copies(places, extra_paths)
        yield from self._editable()
        yield from self._preload()
        yield from self._beside()
        yield from self._plugins(places)
        yield from self._code_caches()
        yield from self._scripts()

    def _quiet(self, paths: Iterable[bytes]) -> list[bytes]:
        return _not_allowed(paths, self._allow)

    def _config(self) -> Iterator[Warn]:
        run = self._run
        environment = {}
        for item in documents.as_list(run.get("Env"), "config Env"):
            name, _, value = documents.as_text(item, "config Env").partition("=")
            # Of a variable that is set twice, runtimes take the first or the last.
            if value:
                environment[name] = value
        for name in _ENVIRONMENT:
            if name in environment and self._counts(name, environment[name]):
                code = "pythonpath" if name == "PYTHONPATH" else "environment"
                yield Warn(
                    code,
                    f"the config sets {name}, which changes what is loaded",
                    extra={"name": name, "value": environment[name][:500]},
                )
        entrypoint = run.get("Entrypoint")
        command = run.get("Cmd")
        if command and not entrypoint and not _is_bare(command):
            yield Warn(
                "command",
                "the config sets a command, which is what runs where none is named",
                strict=False,
                extra={"value": command},
            )
        check = run.get("Healthcheck")
        # Docker reads the key in any case.
        tests = [
            value
            for key, value in (check.items() if isinstance(check, dict) else ())
            if key.casefold() == "test"
        ]
        for test in filter(_is_test, tests):
            yield Warn(
                "healthcheck",
                "the config sets a health check, which Docker runs all the time beside "
                "what was compared",
                extra={"value": test},
            )
        if entrypoint:
            yield Warn(
                "entrypoint",
                "the config sets an entrypoint, which runs before anything that was "
                "compared",
                extra={"value": entrypoint},
            )
        volumes = run.get("Volumes")
        if isinstance(volumes, dict):
            for volume in sorted(volumes):
                if self._covers_root(volume.encode("utf-8", "surrogateescape")):
                    yield Warn(
                        "volume-over-root",
                        f"the config declares the volume {volume!r}: what is mounted "
                        "there at run time hides what was compared",
                        (volume,),
                    )

    def _counts(self, name: str, value: str) -> bool:
        """Whether a variable of this value changes what is loaded."""
        if name == "PYTHONBREAKPOINT":
            return value != "0"
        if name == "PYTHONWARNINGS":
            # A category in a module is imported at the start; others are Python's own.
            fields = [item.split(":") for item in value.split(",")]
            return any(len(item) > 2 and "." in item[2] for item in fields)
        if name == "LD_LIBRARY_PATH":
            return any(map(self._has_libraries, re.split("[:;]", value)))
        return True

    def _has_libraries(self, folder: str) -> bool:
        """Whether the image has files where the loader looks, and no rule allows them.

        A folder that is not in the image is one that is mounted, as a driver's is.
        """
        if not folder.startswith("/"):
            # Below the working folder, whatever that is; `$ORIGIN` is nobody's guess.
            return True
        found = self._view.lookup(folder.encode("utf-8", "surrogateescape"))
        return (
            found.node is not None
            and bool(found.node.children)
            and bool(self._quiet([clean_path(os.fsencode(folder))]))
        )

    def _covers_root(self, volume: bytes) -> bool:
        # Runtimes drop `..` before they follow symlinks.
        volume = clean_path(volume)
        real = self._view.lookup(volume).path
        for comparison in self._comparisons:
            literal = comparison.root.path.encode("utf-8", "surrogateescape")
            for root in (comparison.real_path, literal.strip(b"/")):
                for path in (real, volume):
                    inside = below(root, path) or below(path, root)
                    if inside:
                        return True
            # A link on the way is hidden too by what is mounted over its folder.
            for step in self._view.lookup(literal).visited:
                if below(step, real) or below(step, volume):
                    return True
        return False

    def _python_path(self) -> Iterator[bytes]:
        """Yield the folders of `PYTHONPATH`."""
        for value in self._values("PYTHONPATH"):
            yield from self._parts(value)

    def _values(self, variable: str) -> Iterator[str]:
        """Yield what a variable is set to; several where it is set several times."""
        for item in documents.as_list(self._run.get("Env"), "config Env"):
            name, _, value = str(item).partition("=")
            if name == variable and value:
                yield value

    def _parts(self, value: str) -> Iterator[bytes]:
        """Yield the folders that a variable lists."""
        for part in value.split(":"):
            place = part if part.startswith("/") else f"{self._working}/{part}"
            yield place.encode()

    def _customize(self, extra_paths: Iterable[bytes]) -> Iterator[Warn]:
        found = []
        places = {**self._packages, **self._libraries, **self._folders(extra_paths)}
        for path, node in places.items():
            for name, child in (node.children or {}).items():
                stem = name.partition(b".")[0]
                if stem in _CUSTOMIZE and (child.kind != "d" or _has_init(child)):
                    found.append(path + b"/" + name)
        yield from _about(
            "sitecustomize",
            "Python imports this at every start, before anything else",
            self._quiet(found),
        )

    def _pth(self, extra_paths: list[bytes]) -> Iterator[Warn]:
        files: list[tuple[bytes, Node]] = []
        for path, node in self._packages.items():
            for name, child in (node.children or {}).items():
                if name.endswith(b".pth") and child.kind in "fl":
                    target = self._view.lookup(path + b"/" + name).node
                    if target is not None and target.kind == "f":
                        files.append((path + b"/" + name, target))
        texts = dict(self._contents.fetch(files))
        code_lines: list[bytes] = []
        for path, _ in files:
            data = texts.get(path)
            active = []
            for line in _pth_lines(data or b""):
                text = line.rstrip()
                if text and not line.startswith(b"#"):
                    active.append(text)
                    if not line.startswith((b"import ", b"import\t")):
                        folder = path.rpartition(b"/")[0]
                        extra_paths.append(
                            text if text.startswith(b"/") else folder + b"/" + text
                        )
            if active or data is None:
                code_lines.append(path)
        code_lines += self._path_files()
        yield from _about(
            "pth-file",
            "Python reads this at every start: it runs code or adds to the path",
            self._quiet(code_lines),
        )

    def _preload(self) -> Iterator[Warn]:
        found = self._view.lookup(LD_PRELOAD)
        if found.node is None or found.node.kind != "f" or not found.node.size:
            return
        yield from _about(
            "ld-preload",
            "the loader puts the libraries that this names into every program",
            self._quiet([LD_PRELOAD]),
        )

    def _path_files(self) -> Iterator[bytes]:
        """Yield files beside an interpreter, or its library, that are all its path."""
        for path, node in self._view.folders():
            name = path.rpartition(b"/")[2]
            if name in _PROGRAMS or name.startswith(b"lib") or b"-linux-" in name:
                for child in node.children or {}:
                    if is_path_file(child):
                        yield path + b"/" + child

    def _copies(
        self, places: Mapping[bytes, Node], extra_paths: Iterable[bytes]
    ) -> Iterator[Warn]:
        names = self._names
        copies = [*self._zips(), *self._archives(extra_paths)]
        distributions: dict[bytes, list[bytes]] = {}
        for place, node in places.items():
            for name, child in (node.children or {}).items():
                path = place + b"/" + name if place else name
                if name in names and self._is_other_copy(path):
                    copies.append(path)
                module = name.endswith(_MODULES)
                if module and child.kind != "d" and name.partition(b".")[0] in names:
                    copies.append(path)
                if name.endswith((b".dist-info", b".egg-info")):
                    key = re.split(rb"-\d", name)[0].replace(b".", b"_").lower()
                    if key in names:
                        distributions.setdefault(key, []).append(path)
        yield from _about(
            "second-copy",
            "a second copy that Python may import in place of the compared one",
            self._quiet(copies),
        )
        for paths in distributions.values():
            if len(paths) > 1:
                yield from _about(
                    "second-distribution",
                    "the package is installed more than once",
                    self._quiet(paths),
                )

    def _folders(self, paths: Iterable[bytes]) -> dict[bytes, Node]:
        """Return those of some paths that are folders, by where they really are."""
        found = map(self._view.lookup, paths)
        return {
            at.path: at.node
            for at in found
            if at.node is not None and at.node.kind == "d"
        }

    def _beside(self) -> Iterator[Warn]:
        """Yield modules that Python finds first because it starts beside them."""
        places = [self._folders(self._script_folders())]
        if self._has_config:
            places.append(self._folders([self._working.encode() or b"/"]))
        installed = {
            name.partition(b".")[0]
            for comparison in self._comparisons
            if comparison.root.kind == PACKAGE
            for name in self._siblings(comparison)
        }
        installed |= set(map(os.fsencode, sys.stdlib_module_names))
        # Of these everybody has some, and nobody means those of others.
        installed -= {*self._names, *_COMMON}
        found: list[bytes] = []
        for path, node in {
            key: n for part in places for key, n in part.items()
        }.items():
            if path in self._packages or path in self._libraries:
                continue
            for name, child in (node.children or {}).items():
                stem = name.partition(b".")[0]
                if stem in installed and (
                    _has_init(child) if child.kind == "d" else name.endswith(_MODULES)
                ):
                    found.append((path + b"/" if path else b"") + name)
        yield from _about(
            "shadowed-import",
            "Python finds this, beside a command or in the working folder, before its "
            "own module or an installed one of the name",
            self._quiet(found),
        )

    def _siblings(self, comparison: Comparison) -> Iterable[bytes]:
        """Return what is installed beside a root's package."""
        folder = _package_of(comparison).rpartition(b"/")[0]
        node = self._view.lookup(folder).node
        return (node.children if node is not None else None) or ()

    def _code_caches(self) -> Iterator[Warn]:
        named = [
            os.fsencode(value)
            for variable in _CACHE_VARIABLES
            for value in self._values(variable)
        ]
        given = [path for path, node in self._folders(named).items() if node.children]
        found = [
            path
            for path in [*self._caches, *given]
            if not any(below(path, c.real_path) for c in self._comparisons)
        ]
        yield from _about(
            "code-cache",
            "what was compiled before is kept here, and is run in place of what the "
            "compared sources would compile to",
            self._quiet(found),
        )

    def _plugins(self, places: Mapping[bytes, Node]) -> Iterator[Warn]:
        files: dict[bytes, tuple[bytes, Node]] = {}
        for place, node in places.items():
            for name in node.children or {}:
                # Python asks for these without regard to case.
                low = name.lower()
                egg = low == b"egg-info" and place.lower().endswith(b".egg")
                if egg or low.endswith((b".dist-info", b".egg-info")):
                    path = (place + b"/" if place else b"") + name
                    path += b"/" + ENTRY_POINTS
                    found = self._view.lookup(path)
                    if found.node is not None and found.node.kind == "f":
                        files[path] = (found.path, found.node)
        texts = dict(self._contents.fetch(files.values()))
        paths: list[bytes] = []
        rows: list[str] = []
        for path in self._quiet(files):
            data = texts.get(files[path][0])
            if data is None:
                # Too large to be kept, and so of nobody's making.
                paths.append(path)
                continue
            for row in entrypoints.plugins(data, self._packages_named):
                paths.append(path)
                rows.append(f"[{row.group}] {row.name} = {':'.join(row.target)}")
        if paths:
            shown = sorted({"/" + show(path) for path in paths})
            yield Warn(
                "plugin",
                "the compared package, or torch, loads this code of others at its "
                "start, by their entry points",
                tuple(shown[:_MANY]),
                len(shown),
                extra={"entry_points": rows[:_MANY]},
            )

    def _scripts(self) -> Iterator[Warn]:
        """Yield what is to say about the commands of the roots' environments."""
        changed: list[bytes] = []
        shadows: list[bytes] = []
        homes = {at.path for at in map(self._view.lookup, self._script_folders())}
        for home in sorted(homes):
            declared = self._declared(home)
            for name in sorted(declared):
                path = home + b"/" + os.fsencode(name)
                if self._is_file(path) and not self._launches(path, home, name):
                    changed.append(path)
            shadows += self._shadowed(home, homes, declared)
        yield from _about(
            "console-script",
            "this command of the package does something else than what an installer "
            "writes for it",
            self._quiet(changed),
        )
        yield from _about(
            "shadowed-command",
            "the config's PATH leads here, and not to the command of this name of the "
            "environment that was compared",
            self._quiet(shadows),
        )

    def _declared(self, home: bytes) -> set[str]:
        """Return the names of the commands that a package has in its environment.

        What the image says is believed about names only.
        """
        files = []
        for place, node in self._packages.items():
            if (
                place.rpartition(b"/")[0].rpartition(b"/")[0].rpartition(b"/")[0]
                != (home.rpartition(b"/")[0])
            ):
                continue
            for name in node.children or {}:
                if name.endswith((b".dist-info", b".egg-info")):
                    found = self._view.lookup(place + b"/" + name + b"/" + ENTRY_POINTS)
                    if found.node is not None and found.node.kind == "f":
                        files.append((found.path, found.node))
        texts = [data for _, data in self._contents.fetch(files)]
        stated = entrypoints.commands_of(texts)
        return set(self._commands) | {
            name
            for name, targets in stated.items()
            if any(target.package in self._packages_named for target in targets)
            and "/" not in name
        }

    def _is_file(self, path: bytes) -> bool:
        node = self._view.lookup(path).node
        return node is not None and node.kind == "f"

    def _launches(self, path: bytes, home: bytes, name: str) -> bool:
        """Whether a file is what an installer writes for a command of the package."""
        found = self._view.lookup(path)
        if found.node is None or found.node.size > entrypoints.MOST_BYTES:
            return False
        data = dict(self._contents.fetch([(found.path, found.node)]))
        launcher = entrypoints.read_launcher(data.get(found.path, b""))
        if launcher is None or self._is_elsewhere(launcher.interpreter, home):
            return False
        wanted = self._commands.get(name)
        if wanted is None:
            return launcher.target.package in self._packages_named
        return launcher.target in wanted

    def _is_elsewhere(self, interpreter: bytes, home: bytes) -> bool:
        """Whether an interpreter is of another environment than the one compared."""
        folder, slash, _ = interpreter.rpartition(b"/")
        if not slash or self._view.lookup(interpreter).node is None:
            # What the image does not have runs nothing.
            return False
        return self._view.lookup(folder).path not in {
            home,
            *(self._view.lookup(path).path for path in _SYSTEM_PROGRAMS),
        }

    def _shadowed(
        self, home: bytes, homes: Collection[bytes], declared: Collection[str]
    ) -> Iterator[bytes]:
        """Yield what the `PATH` leads to in place of an environment's commands."""
        if not self._has_config:
            return
        node = self._view.lookup(home).node
        interpreters = {
            os.fsdecode(name)
            for name in (node.children if node is not None else None) or {}
            if _PYTHON_BIN.fullmatch(name)
        }
        for value in list(self._values("PATH")) or [_DEFAULT_PATH]:
            folders: list[bytes] = []
            reached = False
            for at in map(self._view.lookup, self._parts(value)):
                if at.path in homes:
                    reached = True
                    break
                folders.append(at.path)
            # Without its folder on the path nobody means its interpreter.
            for name in sorted({*declared, *(interpreters if reached else ())}):
                path = self._first(folders, os.fsencode(name))
                if path is None:
                    continue
                own = self._view.lookup(home + b"/" + os.fsencode(name))
                same = self._view.lookup(path).path == own.path
                if not same and not (
                    name in declared and self._launches(path, home, name)
                ):
                    yield path

    def _first(self, folders: Iterable[bytes], name: bytes) -> bytes | None:
        """Return the first program of a name in some folders."""
        for folder in folders:
            path = folder + b"/" + name if folder else name
            node = self._view.lookup(path).node
            if node is not None and node.kind == "f" and node.mode & 0o111:
                return path
        return None

    def _script_folders(self) -> Iterator[bytes]:
        """Yield where the commands of a root's environment are.

        A command that is a script finds modules beside itself before all others.
        """
        for comparison in self._comparisons:
            if comparison.root.kind != PACKAGE:
                continue
            # prefix/lib/python3.N/site-packages/name
            parts = _package_of(comparison).split(b"/")
            if len(parts) >= 4 and parts[-2] in PACKAGES_FOLDERS:
                yield b"/".join([b"", *parts[:-4], b"bin"])

    def _zips(self) -> Iterator[bytes]:
        """Yield archives that Python looks into before its own library."""
        for path in self._libraries:
            folder = path.rpartition(b"/")[0]
            found = self._view.lookup(folder).node
            for name in (found.children if found is not None else None) or {}:
                if _PYTHON_ZIP.fullmatch(name):
                    yield folder + b"/" + name if folder else name

    def _archives(self, paths: Iterable[bytes]) -> Iterator[bytes]:
        """Yield those of some paths that are files: Python takes them for archives."""
        for at in map(self._view.lookup, paths):
            if at.node is not None and at.node.kind == "f" and at.node.size:
                yield at.path

    def _is_other_copy(self, path: bytes) -> bool:
        real = self._view.lookup(path)
        return (
            real.node is not None
            and real.node.kind == "d"
            and _has_init(real.node)
            and not self._is_compared(real.path)
        )

    def _is_compared(self, path: bytes) -> bool:
        for comparison in self._comparisons:
            if comparison.root.kind == PACKAGE and path == _package_of(comparison):
                return True
            if comparison.root.kind != PACKAGE and below(path, comparison.real_path):
                return True
        return False

    def _editable(self) -> Iterator[Warn]:
        found: list[bytes] = []
        urls: list[tuple[bytes, Node]] = []
        for path, node in self._packages.items():
            for name in node.children or {}:
                if (
                    name.startswith(b"__editable__")
                    or name.endswith(b".egg-link")
                    or name.startswith(b"__editable___")
                ):
                    found.append(path + b"/" + name)
                elif name.endswith(b".dist-info"):
                    place = path + b"/" + name + b"/direct_url.json"
                    url = self._view.lookup(place).node
                    if url is not None and url.kind == "f":
                        urls.append((place, url))
        for path, data in self._contents.fetch(urls):
            try:
                document = json.loads(data)
                if document["dir_info"]["editable"] is True:
                    found.append(path)
            except (ValueError, KeyError, TypeError, RecursionError):
                continue
        yield from _about(
            "editable-install",
            "a package is installed as a pointer to another folder",
            self._quiet(found),
        )


def _not_allowed(paths: Iterable[bytes], allow: Sequence[Allow]) -> list[bytes]:
    return [
        path
        for path in paths
        if not any(not rule.sha256 and rule.covers(b"/" + path) for rule in allow)
    ]


def _module(parts: Sequence[bytes]) -> bytes:
    """Return the module that a file makes importable from a folder, or nothing."""
    name = parts[-1] if parts else b""
    stem = name.partition(b".")[0]
    if len(parts) == 1 and name.endswith(_MODULES):
        return stem
    return parts[0] if len(parts) == 2 and stem == b"__init__" else b""


def wheel_warnings(
    outside: Iterable[bytes],
    names: Collection[bytes],
    allow: Sequence[Allow],
    wanted: entrypoints.Commands,
    entry_points: Mapping[bytes, bytes],
) -> Iterator[Warn]:
    """Yield what a wheel puts where Python looks before it comes to site-packages.

    Args:
        outside: Paths of its files below the prefix, outside of site-packages.
        names: The packages that are compared.
        allow: Files of which nobody needs to hear.
        wanted: What the tree's commands lead to.
        entry_points: The wheel's `entry_points.txt`, by its path.
    """
    outside = sorted(outside)
    packages = set(map(os.fsdecode, names))
    changed: list[bytes] = []
    stated: set[str] = set(wanted)
    for path, data in entry_points.items():
        for name, targets in entrypoints.commands_of([data]).items():
            stated.add(name)
            right = wanted.get(name)
            for target in targets:
                if target not in right if right else target.package not in packages:
                    changed.append(path)
    changed += (path for path in outside if _command(path) in stated)
    yield from _about(
        "console-script",
        "the wheel makes a command of the package that does something else than the "
        "tree declares",
        _not_allowed(changed, allow),
    )
    copies: list[bytes] = []
    customize: list[bytes] = []
    interpreters: list[bytes] = []
    imports: list[bytes] = []
    own = set(map(os.fsencode, sys.stdlib_module_names)).difference(_COMMON)
    for path in outside:
        top, *inner = path.split(b"/")
        if top in (b"lib", b"lib64") and len(inner) > 1:
            # The library of Python itself, which comes before site-packages.
            version, *inner = inner
            if not _PYTHON_LIB.fullmatch(version):
                continue
            if inner[0] == b"lib-dynload":
                inner = inner[1:]
            module = _module(inner)
            if module in _CUSTOMIZE:
                customize.append(path)
            elif module in names:
                copies.append(path)
            elif inner and inner[0].partition(b".")[0] in own:
                imports.append(path)
        elif top in (b"lib", b"lib64") and inner:
            if _PYTHON_ZIP.fullmatch(inner[0]):
                copies.append(path)
        elif path == b"pyvenv.cfg" or (
            top == b"bin" and len(inner) == 1 and _PYTHON_BIN.fullmatch(inner[0])
        ):
            interpreters.append(path)
        elif top == b"bin" and _module(inner) in names:
            # A command that is a script finds modules beside itself before all others.
            copies.append(path)
        elif top == b"bin" and _module(inner) in own:
            imports.append(path)
    yield from _about(
        "shadowed-import",
        "the wheel puts this in place of a module of Python's own, or where Python "
        "finds it before",
        _not_allowed(imports, allow),
    )
    yield from _about(
        "second-copy",
        "the wheel puts a second copy where Python may import it in place of the "
        "compared one",
        _not_allowed(copies, allow),
    )
    yield from _about(
        "sitecustomize",
        "Python imports this at every start, before anything else",
        _not_allowed(customize, allow),
    )
    yield from _about(
        "environment",
        "the wheel replaces the interpreter of the environment, or its settings",
        _not_allowed(interpreters, allow),
    )


def _command(path: bytes) -> str:
    """Return the command that a file below the prefix is, or nothing."""
    folder, _, name = path.rpartition(b"/")
    return os.fsdecode(name) if folder == b"bin" else ""


def _pth_lines(data: bytes) -> Iterator[bytes]:
    """Yield the lines of a `.pth` file, as the Python that sees most of them does.

    From 3.13 on a form feed or a separator of Unicode ends a line too.
    """
    text = data.decode("utf-8", "surrogateescape").replace("\udc85", "\n")
    for line in text.splitlines():
        yield line.encode("utf-8", "surrogateescape")


def _package_of(comparison: Comparison) -> bytes:
    """Return where the package is of which a root holds a part, or all."""
    path = comparison.real_path
    for part in reversed(os.fsencode(comparison.root.tree).split(b"/")[1:]):
        folder, _, name = path.rpartition(b"/")
        if name != part:
            break
        path = folder
    return path


def below(path: bytes, folder: bytes) -> bool:
    """Whether a path is a folder or something in it; the root holds everything."""
    return not folder or path == folder or path.startswith(folder + b"/")


def _has_init(node: Node) -> bool:
    return any(name.partition(b".")[0] == b"__init__" for name in (node.children or {}))


def startup_paths(view: View, roots: Iterable[Root]) -> tuple[set[bytes], set[bytes]]:
    """Return the paths that decide how Python starts for some roots.

    Returns:
        Paths that count by themselves, and folders whose direct contents count.
    """
    exact: set[bytes] = set()
    folders: set[bytes] = set()
    for root in roots:
        real = view.lookup(root.path.encode("utf-8", "surrogateescape")).path
        packages = real.rpartition(b"/")[0]
        if root.kind != PACKAGE:
            continue
        folders.add(packages)
        parts = packages.split(b"/")
        if len(parts) < 3 or parts[-1] not in PACKAGES_FOLDERS:
            continue
        prefix = b"/".join(parts[:-3])
        library = b"/".join(parts[:-1])
        folders.add(library)
        exact.add(prefix + b"/pyvenv.cfg" if prefix else b"pyvenv.cfg")
        for name in _interpreters(view, prefix):
            exact.update(view.lookup(name).visited)
    return exact, folders


def _interpreters(view: View, prefix: bytes) -> Iterator[bytes]:
    folder = view.lookup(prefix + b"/bin")
    if folder.node is not None:
        for name in folder.node.children or {}:
            if _PYTHON_BIN.fullmatch(name):
                yield prefix + b"/bin/" + name


def is_path_file(name: bytes) -> bool:
    """Whether a file of this name is all the path of the interpreter beside it.

    The second name is that of an interpreter in its build folder.
    """
    return name.endswith(b"._pth") or name == b"pybuilddir.txt"


def is_startup_name(path: bytes) -> bool:
    """Whether a path decides how Python starts, wherever it is."""
    folder, _, name = path.rpartition(b"/")
    if path == LD_PRELOAD or is_path_file(name):
        return True
    parent = folder.rpartition(b"/")[2]
    if name == ENTRY_POINTS and parent.endswith((b".dist-info", b".egg-info")):
        return True
    if parent in PACKAGES_FOLDERS and (
        name.endswith(b".pth") or name.partition(b".")[0] in _CUSTOMIZE
    ):
        return True
    if name in PACKAGES_FOLDERS or name == b"pyvenv.cfg":
        return True
    return parent == b"bin" and bool(_PYTHON_BIN.fullmatch(name))
