# SPDX-License-Identifier: Apache-2.0
"""What runs instead of or beside the tracked files although their bytes match.

Everything found here is a warning with a stable code; none of it is evidence that the
image was tampered with, and all of it decides what a process really executes.
"""

import json
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from stackctl.image import documents, entrypoints
from stackctl.image.commands import CommandCheck
from stackctl.image.compare import Comparison
from stackctl.image.contents import Contents
from stackctl.image.roots import PACKAGE, Root
from stackctl.image.rules import Allow
from stackctl.image.settings import Settings
from stackctl.image.view import Node, View, below, show
from stackctl.image.warn import MANY, Warn, about, not_allowed

#: Names of the folders that installers put packages into.
PACKAGES_FOLDERS = (b"site-packages", b"dist-packages")
_PYTHON_LIB = re.compile(rb"python3?(\.\d+)?t?")
#: On the path of every Python, before its library, whether it is there or not.
_PYTHON_ZIP = re.compile(rb"python3\d+t?\.zip")
_PROGRAMS = (b"bin", b"sbin")
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
_CUSTOMIZE = (b"sitecustomize", b"usercustomize")
_EXTENSION = re.compile(rb"[^/.]+(\.[^/]*)?\.(so|pyd)")
_MODULES = (b".py", b".so", b".pyc", b".egg")


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
    yield from about(
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
        self._settings = Settings(view, comparisons, config, allow)
        self._names = _compared_names(comparisons)
        self._packages_named = frozenset(map(os.fsdecode, self._names))
        self._packages: dict[bytes, Node] = {}
        self._libraries: dict[bytes, Node] = {}
        self._caches: list[bytes] = []
        for path, node in view.folders():
            folder, _, name = path.rpartition(b"/")
            self._find_links(path, name, node)
            if name in PACKAGES_FOLDERS:
                self._packages[path] = node
            elif _PYTHON_LIB.fullmatch(name) or name == b"lib-dynload":
                self._libraries[path] = node
            elif node.children and _is_cache(folder.rpartition(b"/")[2], name):
                self._caches.append(path)
        # A package root tells where its siblings are, whatever that folder is called.
        for place in self._named_places():
            at = view.lookup(place.rpartition(b"/")[0])
            if at.node is not None and at.node.kind == "d":
                self._packages.setdefault(at.path, at.node)

    def _find_links(self, path: bytes, name: bytes, node: Node) -> None:
        """Note the places that only a link in a folder calls by their name."""
        children = node.children or {}
        links = [
            (link, self._packages)
            for link in PACKAGES_FOLDERS
            if link in children and children[link].kind == "l"
        ]
        if name.startswith(b"lib"):
            links += [
                (link, self._libraries)
                for link, child in children.items()
                if child.kind == "l" and _PYTHON_LIB.fullmatch(link)
            ]
        for link, places in links:
            found = self._view.lookup(path + b"/" + link)
            if found.node is not None and found.node.kind == "d":
                places.setdefault(found.path, found.node)

    def warnings(self) -> Iterator[Warn]:
        """Yield everything there is to say."""
        yield from self._settings.warnings()
        extra_paths = list(self._settings.python_path())
        pth = list(self._pth(extra_paths))
        yield from self._customize(extra_paths)
        yield from pth
        if self._settings.present:
            # `python -m` looks here first.
            extra_paths.append(self._settings.start)
        extra_paths += self._script_folders()
        places = {**self._packages, **self._libraries, **self._folders(extra_paths)}
        yield from self._copies(places, extra_paths)
        yield from self._editable()
        yield from self._preload()
        yield from self._beside()
        yield from self._plugins(places)
        yield from self._code_caches()
        yield from CommandCheck(
            self._view,
            self._contents,
            self._settings,
            self._allow,
            wanted=self._commands,
            names=self._packages_named,
            packages=self._packages,
            folders=list(self._script_folders()),
        ).warnings()

    def _quiet(self, paths: Iterable[bytes]) -> list[bytes]:
        return not_allowed(paths, self._allow)

    def _customize(self, extra_paths: Iterable[bytes]) -> Iterator[Warn]:
        found = []
        places = {**self._packages, **self._libraries, **self._folders(extra_paths)}
        for path, node in places.items():
            for name, child in (node.children or {}).items():
                stem = name.partition(b".")[0]
                if stem in _CUSTOMIZE and (child.kind != "d" or _has_init(child)):
                    found.append(path + b"/" + name)
        yield from about(
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
        yield from about(
            "pth-file",
            "Python reads this at every start: it runs code or adds to the path",
            self._quiet(code_lines),
        )

    def _preload(self) -> Iterator[Warn]:
        found = self._view.lookup(LD_PRELOAD)
        if found.node is None or found.node.kind != "f" or not found.node.size:
            return
        yield from about(
            "ld-preload",
            "the loader puts the libraries that this names into every program",
            self._quiet([LD_PRELOAD]),
        )

    def _path_files(self) -> Iterator[bytes]:
        """Yield files beside an interpreter, or its library, that are all its path."""
        for path, node in self._folders(self._script_folders()).items():
            # What a link of that name leads to has another.
            yield from (
                path + b"/" + name for name in node.children or {} if is_path_file(name)
            )
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
        yield from about(
            "second-copy",
            "a second copy that Python may import in place of the compared one",
            self._quiet(copies),
        )
        for paths in distributions.values():
            if len(paths) > 1:
                yield from about(
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
        if self._settings.present:
            places.append(self._folders([self._settings.start]))
        installed = {
            name.partition(b".")[0]
            for comparison in self._comparisons
            if comparison.root.kind == PACKAGE
            for name in self._siblings(comparison)
        }
        installed |= set(map(str.encode, sys.stdlib_module_names))
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
        yield from about(
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
            value.encode("utf-8", "surrogateescape")
            for variable in _CACHE_VARIABLES
            for value in self._settings.values(variable)
        ]
        given = [path for path, node in self._folders(named).items() if node.children]
        found = [
            path
            for path in [*self._caches, *given]
            if not any(below(path, c.real_path) for c in self._comparisons)
        ]
        yield from about(
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
                    path += b"/" + entrypoints.FILE
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
                tuple(shown[:MANY]),
                len(shown),
                extra={"entry_points": rows[:MANY]},
            )

    def _script_folders(self) -> Iterator[bytes]:
        """Yield where the commands of a root's environment are.

        A command that is a script finds modules beside itself before all others.
        """
        for place in self._named_places():
            # prefix/lib/python3.N/site-packages/name
            parts = place.split(b"/")
            if len(parts) >= 4 and parts[-2] in PACKAGES_FOLDERS:
                yield b"/".join([b"", *parts[:-4], b"bin"])

    def _named_places(self) -> Iterator[bytes]:
        """Yield where the roots' packages are, and where a link to one stands."""
        for comparison in self._comparisons:
            if comparison.root.kind != PACKAGE:
                continue
            yield comparison.real_path
            yield _package_of(comparison)
            literal = comparison.root.path.encode("utf-8", "surrogateescape")
            folder, _, name = literal.rstrip(b"/").rpartition(b"/")
            yield self._view.lookup(folder).path + b"/" + name

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
        yield from about(
            "editable-install",
            "a package is installed as a pointer to another folder",
            self._quiet(found),
        )


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
    yield from about(
        "console-script",
        "the wheel makes a command of the package that does something else than the "
        "tree declares",
        not_allowed(changed, allow),
    )
    copies: list[bytes] = []
    customize: list[bytes] = []
    interpreters: list[bytes] = []
    imports: list[bytes] = []
    own = set(map(str.encode, sys.stdlib_module_names)).difference(_COMMON)
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
            top == b"bin"
            and len(inner) == 1
            and entrypoints.INTERPRETER.fullmatch(inner[0])
        ):
            interpreters.append(path)
        elif top == b"bin" and _module(inner) in names:
            # A command that is a script finds modules beside itself before all others.
            copies.append(path)
        elif top == b"bin" and _module(inner) in own:
            imports.append(path)
    yield from about(
        "shadowed-import",
        "the wheel puts this in place of a module of Python's own, or where Python "
        "finds it before",
        not_allowed(imports, allow),
    )
    yield from about(
        "second-copy",
        "the wheel puts a second copy where Python may import it in place of the "
        "compared one",
        not_allowed(copies, allow),
    )
    yield from about(
        "sitecustomize",
        "Python imports this at every start, before anything else",
        not_allowed(customize, allow),
    )
    yield from about(
        "environment",
        "the wheel replaces the interpreter of the environment, or its settings",
        not_allowed(interpreters, allow),
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
            if entrypoints.INTERPRETER.fullmatch(name):
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
    if name == entrypoints.FILE and parent.endswith((b".dist-info", b".egg-info")):
        return True
    # All of it: which packages there are, and so which are imported, is in doubt.
    parts = path.split(b"/")
    if name == b"pyvenv.cfg" or any(part in PACKAGES_FOLDERS for part in parts):
        return True
    return parent == b"bin" and bool(entrypoints.INTERPRETER.fullmatch(name))
