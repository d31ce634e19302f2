# SPDX-License-Identifier: Apache-2.0
"""The commands of a package: are they what an installer writes, and are they found?"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from stackctl.image import entrypoints
from stackctl.image.contents import Contents
from stackctl.image.rules import Allow
from stackctl.image.settings import Settings, encoded
from stackctl.image.view import Node, View
from stackctl.image.warn import Warn, about, not_allowed

#: Where systems have their interpreters.
_SYSTEM_PROGRAMS = (b"bin", b"usr/bin", b"usr/local/bin")
#: What runtimes set where the config does not.
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class CommandCheck:
    """Looks at the commands of the compared environments.

    Args:
        view: The image.
        contents: Where small files come from.
        settings: The image's config.
        allow: Files of which nobody needs to hear.
        wanted: What the package's commands lead to, by those that can be believed.
        names: The compared packages.
        packages: Folders that installers put packages into, by path.
        folders: Where the commands of the roots' environments are.
    """

    def __init__(
        self,
        view: View,
        contents: Contents,
        settings: Settings,
        allow: Sequence[Allow],
        *,
        wanted: entrypoints.Commands,
        names: Collection[str],
        packages: Mapping[bytes, Node],
        folders: Iterable[bytes],
    ) -> None:
        self._view = view
        self._contents = contents
        self._settings = settings
        self._allow = allow
        self._wanted = wanted
        self._names = names
        self._packages = packages
        self._folders = folders

    def warnings(self) -> Iterator[Warn]:
        """Yield what is to say about the commands of the roots' environments."""
        changed: list[bytes] = []
        shadows: list[bytes] = []
        homes = {at.path for at in map(self._view.lookup, self._folders)}
        for home in sorted(homes):
            declared = self._declared(home)
            for name in sorted(declared):
                path = home + b"/" + encoded(name)
                if self._is_file(path) and not self._launches(path, home, name):
                    changed.append(path)
            shadows += self._shadowed(home, homes, declared)
        yield from about(
            "console-script",
            "this command of the package does something else than what an installer "
            "writes for it",
            not_allowed(changed, self._allow),
        )
        yield from about(
            "shadowed-command",
            "the config's PATH leads here, and not to the command of this name of the "
            "environment that was compared",
            not_allowed(shadows, self._allow),
        )

    def _declared(self, home: bytes) -> set[str]:
        """Return the names of the commands that a package has in its environment.

        What the image says is believed about names only.
        """
        files = []
        for place, node in self._packages.items():
            # prefix/lib/python3.N/site-packages, and prefix/bin
            if place.split(b"/")[:-3] != home.split(b"/")[:-1]:
                continue
            for name in node.children or {}:
                if name.endswith((b".dist-info", b".egg-info")):
                    path = b"/".join((place, name, entrypoints.FILE))
                    found = self._view.lookup(path)
                    if found.node is not None and found.node.kind == "f":
                        files.append((found.path, found.node))
        texts = [data for _, data in self._contents.fetch(files)]
        stated = entrypoints.commands_of(texts)
        return set(self._wanted) | {
            name
            for name, targets in stated.items()
            if any(target.package in self._names for target in targets)
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
        wanted = self._wanted.get(name)
        if wanted is None:
            return launcher.target.package in self._names
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
        if not self._settings.present:
            return
        node = self._view.lookup(home).node
        interpreters = {
            name.decode()
            for name in (node.children if node is not None else None) or {}
            if entrypoints.INTERPRETER.fullmatch(name)
        }
        for value in list(self._settings.values("PATH")) or [_DEFAULT_PATH]:
            folders: list[bytes] = []
            reached = False
            for at in map(self._view.lookup, self._settings.parts(value)):
                if at.path in homes:
                    reached = True
                    break
                folders.append(at.path)
            # Without its folder on the path nobody means its interpreter.
            for name in sorted({*declared, *(interpreters if reached else ())}):
                path = self._first(folders, encoded(name))
                if path is None:
                    continue
                own = self._view.lookup(home + b"/" + encoded(name))
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
