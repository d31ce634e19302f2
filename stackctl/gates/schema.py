# SPDX-License-Identifier: Apache-2.0
"""The JSON schema and the reference tables of gate files, from their description.

`python -m stackctl.gates.schema` prints the schema that is committed as
docs/gate.schema.json; with `--reference` it prints the tables of docs/gates.md.
"""

import sys
from typing import Any

from stackctl.gates.model import Gate
from stackctl.model.fields import Many, json_text, keys_of, record_schema
from stackctl.model.schema import DIALECT, key_table


def gate_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a gate's file.

    Whatever the strict reader accepts, the schema accepts. The reader knows more: what
    goes with which kind, and what rule and claims say together.
    """
    definitions: dict[str, Any] = {}
    schema = record_schema(Gate, definitions)
    return {
        "$schema": DIALECT,
        "title": "ci/gates/NAME.toml",
        **schema,
        "$defs": definitions,
    }


def reference() -> str:
    """Return the reference tables of a gate's file as Markdown."""
    parts = [key_table("Top of the file", Gate)]
    for item in keys_of(Gate):
        for inner in item.kind.records():
            many = isinstance(item.kind, Many)
            header = f"[[{item.name}]]" if many else f"[{item.name}]"
            parts.append(key_table(f"`{header}`", inner))
    return "\n".join(parts)


if __name__ == "__main__":
    wanted = reference() if "--reference" in sys.argv[1:] else json_text(gate_schema())
    sys.stdout.write(wanted)
