# SPDX-License-Identifier: Apache-2.0
"""What an image's config sets that decides what runs in it."""

import re
from collections.abc import Iterator, Sequence

from stackctl.image import documents
from stackctl.image.compare import Comparison
from stackctl.image.layers import clean_path
from stackctl.image.rules import Allow
from stackctl.image.view import View, below
from stackctl.image.warn import Warn, not_allowed

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
_BARE = re.compile(rb"python(3(\.\d+)?t?)?|(ba|da|z|a)?sh")


class Settings:
    """An image's config, as far as it decides what Python runs.

    Args:
        view: The image.
        comparisons: The compared roots.
        config: The image config, if there is one.
        allow: Files of which nobody needs to hear.

    Attributes:
        present: Whether there is a config.
        working: The working folder; empty for the root.
    """

    def __init__(
        self,
        view: View,
        comparisons: Sequence[Comparison],
        config: documents.Object | None,
        allow: Sequence[Allow],
    ) -> None:
        self._view = view
        self._comparisons = comparisons
        self._allow = allow
        self.present = config is not None
        inner = config.get("config") if config else None
        self._run = inner if isinstance(inner, dict) else {}
        self.working = documents.as_text(
            self._run.get("WorkingDir"), "config WorkingDir"
        )

    @property
    def start(self) -> bytes:
        """The folder in which the image's programs start."""
        return encoded(self.working) or b"/"

    def warnings(self) -> Iterator[Warn]:
        """Yield what is to say about it."""
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
                if self._covers_root(encoded(volume)):
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
        found = self._view.lookup(encoded(folder))
        return (
            found.node is not None
            and bool(found.node.children)
            and bool(not_allowed([clean_path(encoded(folder))], self._allow))
        )

    def _covers_root(self, volume: bytes) -> bool:
        # Runtimes drop `..` before they follow symlinks.
        volume = clean_path(volume)
        real = self._view.lookup(volume).path
        for comparison in self._comparisons:
            literal = encoded(comparison.root.path)
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

    def python_path(self) -> Iterator[bytes]:
        """Yield the folders of `PYTHONPATH`."""
        for value in self.values("PYTHONPATH"):
            yield from self.parts(value)

    def values(self, variable: str) -> Iterator[str]:
        """Yield what a variable is set to; several where it is set several times."""
        for item in documents.as_list(self._run.get("Env"), "config Env"):
            name, _, value = str(item).partition("=")
            if name == variable and value:
                yield value

    def parts(self, value: str) -> Iterator[bytes]:
        """Yield the folders that a variable lists."""
        for part in value.split(":"):
            place = part if part.startswith("/") else f"{self.working}/{part}"
            yield encoded(place)


def encoded(text: str) -> bytes:
    """Return a text of a document as the bytes of a path, whatever the locale."""
    return text.encode("utf-8", "surrogateescape")


def _is_test(test: object) -> bool:
    """Whether a health check runs something."""
    return bool(test) and test != ["NONE"]


def _is_bare(command: object) -> bool:
    """Whether a command is a shell or an interpreter by itself."""
    if not isinstance(command, list) or len(command) != 1:
        return False
    return bool(_BARE.fullmatch(encoded(str(command[0])).rpartition(b"/")[2]))
