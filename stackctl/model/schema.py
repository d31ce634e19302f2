# SPDX-License-Identifier: Apache-2.0
"""The JSON schema and the reference tables of `series.toml`, from its description.

`python -m stackctl.model.schema` prints the schema that is committed as
docs/series.schema.json; with `--reference` it prints the tables of docs/series.md.
"""

import sys
from typing import Any, Final

from stackctl.model.fields import (
    Key,
    Many,
    OneForm,
    Record,
    json_text,
    keys_of,
    record_schema,
    summary,
)
from stackctl.model.series import (
    Exclude,
    Github,
    Image,
    PatchSet,
    Policy,
    Series,
)

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def series_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of `series.toml`.

    Whatever the strict reader accepts, the schema accepts. The reader knows more: rules
    between sets, and between the keys of a set, have no place in a schema.
    """
    definitions: dict[str, Any] = {}
    schema = record_schema(Series, definitions)
    return {
        "$schema": DIALECT,
        "title": "series.toml",
        **schema,
        "$defs": definitions,
    }


def schema_text() -> str:
    """Return the schema as the text of docs/series.schema.json."""
    return json_text(series_schema())


def reference() -> str:
    """Return the reference tables of `series.toml` as Markdown."""
    parts = [key_table("Top of the file", Series)]
    base = next(item for item in keys_of(Series) if item.name == "base")
    for cls in base.kind.records():
        parts.append(key_table(f"`[base]` with `{keys_of(cls)[0].name}`", cls))
    parts.append(key_table("`[[set]]`", PatchSet))
    parts += _inner("[[set]]", PatchSet)
    parts.append(key_table("`[[exclude]]`", Exclude))
    parts += _inner("[[exclude]]", Exclude)
    parts.append(key_table("`[[image]]`", Image))
    parts += _inner("[[image]]", Image)
    parts.append(key_table("`[policy]`", Policy))
    parts.append(key_table("`[github]`", Github))
    return "\n".join(parts)


def _inner(header: str, cls: type) -> list[str]:
    """Return the tables of the records inside a record."""
    parts: list[str] = []
    for item in keys_of(cls):
        for inner in item.kind.records():
            form = ""
            if isinstance(item.kind, OneForm):
                form = f" with `{keys_of(inner)[0].name}`"
            parts.append(key_table(f"`{item.name}` of `{header}`{form}", inner))
    return parts


def key_table(title: str, cls: type) -> str:
    """Return the reference table of one record class as Markdown.

    Args:
        title: Heading of the table.
        cls: The dataclass; its fields carry keys.
    """
    rows = [
        f"### {title}",
        "",
        summary(cls),
        "",
        "| key | value | what it is for | example |",
        "|---|---|---|---|",
    ]
    for item in keys_of(cls):
        need = "**required**" if item.required else _default(item)
        example = f"`{item.example}`" if item.example else ""
        rows.append(
            f"| `{item.name}` | {_words(item)}; {need} | {item.doc} | {example} |"
        )
    return "\n".join([*rows, ""])


def _words(item: Key) -> str:
    kind = item.kind
    if isinstance(kind, Many) and kind.records():
        return "list of tables"
    if isinstance(kind, (Record, OneForm)):
        return "table"
    return kind.words.replace("|", "\\|")


def _default(item: Key) -> str:
    if item.computed:
        return f"default: {item.computed}"
    if item.default is None or item.default == "" or item.kind.records():
        return "optional"
    if isinstance(item.default, bool):
        return f"default `{str(item.default).lower()}`"
    if isinstance(item.default, tuple):
        shown = ", ".join(f'"{value}"' for value in item.default)
        return f"default `[{shown}]`"
    shown = f'"{item.default}"' if isinstance(item.default, str) else item.default
    return f"default `{shown}`"


if __name__ == "__main__":
    wanted = reference() if "--reference" in sys.argv[1:] else schema_text()
    sys.stdout.write(wanted)
