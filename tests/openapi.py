# SPDX-License-Identifier: Apache-2.0
"""GitHub's own description of its REST interface, as a judge of requests and answers.

It is taken from the npm registry by version and digest, and kept below build/. The form
is OpenAPI 3.0, whose schemas are almost JSON schema: `nullable` is the difference.
"""

import base64
import hashlib
import io
import json
import re
import shutil
import subprocess
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

from github_server import Call
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012
from support import ROOT

VERSION = "23.0.2"
INTEGRITY = (
    "pV8M7L9GY23AybNvTmo2nyjmpmnt6+2sRE/tqr0ZLQcP"
    "S4lnw7u5eZGNmwRNkBC3D7gZXbFx5AHzLUVRBXGDhg=="
)
MEMBER = "package/generated/api.github.com.json"


def missing() -> str:
    """Which program is not installed; empty where all are."""
    cached = _file().exists()
    return "" if cached or shutil.which("npm") else "npm"


def _file() -> Path:
    return ROOT / "build" / "openapi" / f"octokit-{VERSION}.json"


def description() -> Any:
    """Return the description; the first time it is fetched."""
    file = _file()
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["npm", "pack", "--silent", f"@octokit/openapi@{VERSION}"],
            cwd=file.parent,
            check=True,
            timeout=300,
        )
        archive = file.parent / f"octokit-openapi-{VERSION}.tgz"
        data = archive.read_bytes()
        digest = base64.b64encode(hashlib.sha512(data).digest()).decode()
        archive.unlink()
        assert digest == INTEGRITY, digest
        with tarfile.open(fileobj=io.BytesIO(data)) as found:
            member = found.extractfile(MEMBER)
            assert member is not None
            part = file.with_suffix(".part")
            part.write_bytes(member.read())
        part.replace(file)
    return json.loads(file.read_bytes())


def _plain(value: Any) -> Any:
    """Return a schema without `nullable`."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if not isinstance(value, dict):
        return value
    out = {key: _plain(each) for key, each in value.items() if key != "nullable"}
    out.pop("example", None)
    out.pop("discriminator", None)
    if value.get("nullable") is True:
        return {"anyOf": [out, {"type": "null"}]}
    return out


class Judge:
    """Holds calls and answers against the description.

    Attributes:
        problems: What does not fit it.
        seen: The operations that were judged.
    """

    def __init__(self) -> None:
        document = description()
        self.paths = document["paths"]
        self.parts = document["components"]
        schemas = {"components": {"schemas": _plain(self.parts["schemas"])}}
        resource = Resource.from_contents(schemas, default_specification=DRAFT202012)
        self.registry = Registry().with_resource("urn:github", resource)
        self.problems: list[str] = []
        self.seen: set[str] = set()
        self._find = cache(self._look)

    def _look(self, verb: str, path: str) -> tuple[str, Any]:
        found = []
        for template, item in self.paths.items():
            # A ref may have slashes.
            pattern = re.sub(r"\\\{(ref|basehead)\\\}", r".+", re.escape(template))
            pattern = re.sub(r"\\\{[^}]*\\\}", r"[^/]+", pattern)
            if verb in item and re.fullmatch(pattern, path):
                found.append(template)
        assert found, f"GitHub has no {verb} {path}"
        best = min(found, key=lambda each: (each.count("{"), -len(each)))
        return best, self.paths[best][verb]

    def _check(self, schema: Any, value: Any, place: str) -> None:
        text = json.dumps(_plain(schema)).replace(
            '"#/components', '"urn:github#/components'
        )
        judge = Draft202012Validator(json.loads(text), registry=self.registry)
        for error in judge.iter_errors(value):
            where = "/".join(map(str, error.absolute_path))
            self.problems.append(f"{place}: {where}: {error.message[:300]}")

    def _resolved(self, item: Any) -> Any:
        while "$ref" in item:
            _, _, kind, name = item["$ref"].split("/")
            item = self.parts[kind][name]
        return item

    def watch(self, call: Call, status: int, answer: Any) -> None:
        """Judge one call and its answer."""
        path = call.path.removeprefix("/api/v3")
        if path == "/api/graphql":
            return
        template, operation = self._find(call.verb.lower(), path)
        place = f"{call.verb} {template}"
        self.seen.add(place)
        known = {}
        for each in map(self._resolved, operation.get("parameters", ())):
            if each["in"] == "query":
                known[each["name"]] = each["schema"]
        for name, value in call.query.items():
            if name not in known:
                self.problems.append(f"{place}: unknown parameter {name}")
                continue
            number = known[name].get("type") == "integer"
            self._check(known[name], int(value) if number else value, f"{place} {name}")
        if call.body is not None:
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            self._check(schema, call.body, f"{place} request")
            self._unknown(schema, call.body, place)
        answers = operation["responses"]
        if str(status) not in answers:
            self.problems.append(f"{place}: {status} is no answer of it")
            return
        content = self._resolved(answers[str(status)]).get("content", {})
        if answer is not None and "application/json" in content:
            schema = content["application/json"]["schema"]
            self._check(schema, answer, f"{place} {status}")

    def _unknown(self, schema: Any, body: Any, place: str) -> None:
        """GitHub ignores what it does not know, so that a wrong name goes unnoticed."""
        schema = self._resolved(schema)
        forms = [schema, *(schema.get("oneOf") or schema.get("anyOf") or ())]
        names = {name for form in forms for name in form.get("properties", ())}
        for name in body.keys() - names:
            self.problems.append(f"{place}: unknown key {name} in the request")
