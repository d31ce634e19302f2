# SPDX-License-Identifier: Apache-2.0
"""The JSON schema of a receipt, from its description.

`python -m stackctl.gates.receipt.schema` prints what is committed as
docs/receipt.schema.json.
"""

import sys
from typing import Any

from stackctl.gates.receipt.model import Statement
from stackctl.model.fields import json_text, record_schema
from stackctl.model.schema import DIALECT


def receipt_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a receipt.

    Whatever the strict reader accepts, the schema accepts. The reader knows more: the
    canonical spelling, the file's name, and what stands in two places.
    """
    definitions: dict[str, Any] = {}
    schema = record_schema(Statement, definitions)
    return {"$schema": DIALECT, "title": "receipt", **schema, "$defs": definitions}


def schema_text() -> str:
    """Return the schema as the text of docs/receipt.schema.json."""
    return json_text(receipt_schema())


if __name__ == "__main__":
    sys.stdout.write(schema_text())
