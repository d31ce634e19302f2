# SPDX-License-Identifier: Apache-2.0
"""The JSON schema and the reference table of change fragments, from their description.

`python -m stackctl.release.schema` prints the schema that is committed as
docs/changes.schema.json; with `--reference` it prints the table of docs/release.md.
"""

import sys
from typing import Any

from stackctl.model.fields import json_text, record_schema
from stackctl.model.schema import DIALECT, key_table
from stackctl.release.fragments import FRAGMENT, Fragment


def fragment_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a change fragment.

    Whatever the strict reader accepts, the schema accepts.
    """
    schema = record_schema(Fragment, {}, FRAGMENT.requirements)
    return {"$schema": DIALECT, "title": "changes/<id>.toml", **schema}


def schema_text() -> str:
    """Return the schema as the text of docs/changes.schema.json."""
    return json_text(fragment_schema())


def reference() -> str:
    """Return the reference table of change fragments as Markdown."""
    return key_table("`changes/<id>.toml`", Fragment)


if __name__ == "__main__":
    wanted = reference() if "--reference" in sys.argv[1:] else schema_text()
    sys.stdout.write(wanted)
