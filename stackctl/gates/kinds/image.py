# SPDX-License-Identifier: Apache-2.0
"""Kind image: `verify-image` of a release, in a process of its own."""

import sys
from pathlib import Path
from typing import Any, Final

from stackctl.errors import ExitCode
from stackctl.gates.here import Here
from stackctl.gates.kinds import BadAnswer, Place, parse_json
from stackctl.gates.kinds.shape import SCHEMA, check
from stackctl.gates.last_words import exit_words
from stackctl.gates.model import Gate

PACKAGE_ROOT: Final = Path(__file__).resolve().parents[3]
"""Folder that holds the package `stackctl`."""


class Image:
    """What is known of units that verify an image."""

    def lacks(self, gate: Gate, here: Here) -> list[str]:
        """Return nothing: stackctl itself verifies."""
        return []

    def command(self, place: Place) -> list[str]:
        """Return the program and arguments of a unit."""
        spec = place.gate.image
        (arm,) = place.arms.values()
        reference = [] if spec is None or spec.ref is None else [place.fill(spec.ref)]
        options = [] if spec is None else list(map(place.fill, spec.options))
        return [
            sys.executable,
            "-m",
            "stackctl",
            "verify-image",
            *reference,
            "--json",
            "-C",
            str(place.project),
            # The arm's own tree, so that another one may be asked about.
            "--expect",
            str(arm.files),
            *options,
        ]

    def environment(self, place: Place) -> dict[str, str]:
        """Return what a unit of this kind sees beside the common environment."""
        from stackctl.cache import default_cache_folder

        return {
            "PYTHONPATH": str(PACKAGE_ROOT),
            "STACKCTL_CACHE_DIR": str(default_cache_folder()),
        }

    def answer(self, place: Place, code: int | None, stdout: bytes) -> dict[str, Any]:
        """Return the unit's answer: the document of `verify-image`.

        Raises:
            BadAnswer: It gave none.
        """
        if not stdout.strip():
            raise BadAnswer(exit_words(code, place.scratch / "stderr"))
        document = parse_json(stdout, "its output")
        if isinstance(document, dict) and isinstance(document.get("error"), dict):
            spec = place.gate.image
            if code == ExitCode.USAGE and (spec is None or spec.ref is None):
                reason = "the series names no image"
                stop = {"verdict": "not-tested", "reason": reason}
                return {"schema": SCHEMA, "stop": stop}
            raise BadAnswer(f"verify-image: {document['error'].get('message')}")
        if isinstance(document, list):
            document = _together(document)
        return check("image", {"schema": SCHEMA, "samples": document})


IMAGE: Final = Image()


def _together(documents: list[Any]) -> dict[str, Any]:
    """Return several images as one: the worst verdict, its reason, and all of them."""
    order = ("unverifiable", "mismatch", "match")
    good = [d for d in documents if isinstance(d, dict) and d.get("verdict") in order]
    if not good or len(good) != len(documents):
        raise BadAnswer("verify-image gave no verdict for an image")
    worst = min(good, key=lambda document: order.index(document["verdict"]))
    return {
        "verdict": worst["verdict"],
        "reason": worst.get("reason"),
        "images": documents,
    }
