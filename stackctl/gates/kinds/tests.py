# SPDX-License-Identifier: Apache-2.0
"""Kind tests: a selection of pytest in the arm's tree."""

import os
import xml.etree.ElementTree as ElementTree
from typing import Any, Final

from stackctl.gates.here import Here
from stackctl.gates.kinds import BadAnswer, Place
from stackctl.gates.kinds.shape import SCHEMA
from stackctl.gates.model import Gate

_RAN: Final = (0, 1, 2, 5)
"""Exit codes of pytest with a report: passed, failed, collection errors, no tests."""


class Tests:
    """What is known of units that are pytest."""

    def lacks(self, gate: Gate, here: Here) -> list[str]:
        """Return that pytest is not there, unless the gate itself asks for it."""
        from packaging.requirements import Requirement

        named = {Requirement(text).name.lower() for text in gate.needs.packages}
        return here.python_lacks(() if "pytest" in named else ("pytest",))

    def command(self, place: Place) -> list[str]:
        """Return the program and arguments of a unit."""
        spec = place.gate.tests
        assert spec is not None  # the reader of gates sees to it
        (arm,) = place.arms.values()
        # The folder of a test file must not come before what the gate names.
        mode = ["--import-mode=append"] if place.gate.pythonpath else []
        return [
            place.here.python,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-c",
            os.devnull,
            "--noconftest",
            f"--rootdir={arm.files}",
            f"--junitxml={place.scratch / 'report.xml'}",
            "-o",
            "junit_family=xunit2",
            *mode,
            *map(place.fill, spec.options),
            *spec.paths,
            *place.tests,
        ]

    def environment(self, place: Place) -> dict[str, str]:
        """Return what a unit of this kind sees beside the common environment."""
        # Nor must the working folder, which is the tree: it has no compiled extensions.
        return {"PYTHONSAFEPATH": "1"} if place.gate.pythonpath else {}

    def answer(self, place: Place, code: int | None, stdout: bytes) -> dict[str, Any]:
        """Return the unit's answer, from pytest's report.

        Raises:
            BadAnswer: pytest did not come to a report.
        """
        report = place.scratch / "report.xml"
        if code not in _RAN or not report.is_file():
            last = stdout.decode("utf-8", "replace").strip().splitlines()[-1:]
            raise BadAnswer(
                f"pytest ended with exit code {code} and made no report: "
                f"{''.join(last)[:200] or 'no output'}"
            )
        try:
            tests = read_report(report.read_bytes())
        except (ElementTree.ParseError, ValueError) as error:
            raise BadAnswer(f"pytest's report cannot be read: {error}") from None
        failed = [test for test in tests if test["outcome"] in ("failed", "error")]
        if code == 2 and not failed:
            raise BadAnswer("pytest was interrupted")
        if bool(failed) != (code in (1, 2)):
            raise BadAnswer(f"pytest's exit code {code} is not what its report says")
        return {"schema": SCHEMA, "samples": {"tests": tests}}


TESTS: Final = Tests()


def read_report(data: bytes) -> list[dict[str, Any]]:
    """Return the tests of a JUnit report of pytest.

    Args:
        data: The report.

    Raises:
        ElementTree.ParseError: It is not XML.
        ValueError: A duration is no number, or it declares entities.
    """
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        raise ValueError("it declares a document type")
    tests = []
    # Nothing is resolved: declarations, where entities come from, are refused above.
    for case in ElementTree.fromstring(data).iter("testcase"):  # noqa: S314
        kinds = {child.tag: child for child in case}
        outcome = "passed"
        if "error" in kinds:
            outcome = "error"
        elif "failure" in kinds:
            outcome = "failed"
        elif "skipped" in kinds:
            expected = kinds["skipped"].get("type") == "pytest.xfail"
            outcome = "xfailed" if expected else "skipped"
        names = [case.get("classname") or "", case.get("name") or ""]
        tests.append(
            {
                "id": "::".join(name for name in names if name) or "?",
                "outcome": outcome,
                "ns": int(float(case.get("time") or 0) * 1e9),
            }
        )
    return tests
