# SPDX-License-Identifier: Apache-2.0
"""Release notes: the change fragments of a composition as Markdown."""

import re
from collections.abc import Iterator, Mapping, Sequence

from stackctl.model.lock import Content, composition_id
from stackctl.model.series import Series
from stackctl.release.authors import Author
from stackctl.release.changes import Changes
from stackctl.release.fragments import CATEGORIES, Fragment

_CODE = re.compile(r"(`+[^`]*`+)")
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#])")


def _plain(text: str) -> str:
    """Return text of others so that Markdown takes none of it for markup."""
    return _SPECIAL.sub(r"\\\1", text)


def _prose(text: str) -> str:
    """Return a fragment's sentence: its emphasis, code and https links, but no HTML."""
    parts = _CODE.split(text)
    for n in range(0, len(parts), 2):
        part = parts[n].replace("<", "\\<")
        parts[n] = re.sub(r"\](?=\((?!https://))", r"\\]", part)
    return "".join(parts)


def render_notes(
    series: Series,
    content: Content,
    changes: Changes,
    authors: Mapping[str, Sequence[Author]],
    *,
    title: str | None = None,
    everything: bool = False,
) -> str:
    """Return the release notes of a composition.

    Args:
        series: The series.
        content: What was composed: exactly its sets are told.
        changes: Its fragments.
        authors: The authors of each set.
        title: Name of the release; by default that of the series.
        everything: Tell what earlier releases carried, too.

    Returns:
        Markdown with a final line feed; the same for the same input.
    """
    lines = list(_head(series, content, changes, title))
    told = changes.carried if everything else changes.new
    composed = set(changes.sets)
    for category, heading in CATEGORIES.items():
        some = [
            each
            for each in told
            if each.category == category
            and (not each.sets or category == "removed" or composed & set(each.sets))
        ]
        if some:
            lines += ["", f"## {heading}", ""]
            for each in some:
                lines += _item(each, changes, authors)
    lines += _sets(series, content, changes, authors)
    return "\n".join(lines) + "\n"


def _head(
    series: Series, content: Content, changes: Changes, title: str | None
) -> Iterator[str]:
    yield f"# {title or series.name}"
    yield ""
    yield f"- Series: {series.name}"
    yield f"- Base: `{content.base.identity}`, tree `{content.base.tree}`"
    yield f"- Composition: `{composition_id(content)}`, tree `{content.tree}`"
    yield (
        f"- Changes since {changes.since}" if changes.since else "- The first release"
    )


def _item(
    fragment: Fragment, changes: Changes, authors: Mapping[str, Sequence[Author]]
) -> Iterator[str]:
    yield f"- {_prose(fragment.summary)}"
    if fragment.corrects:
        first = changes.first.get(fragment.corrects)
        of = f" of {first}" if first else ""
        yield f"  Corrects `{fragment.corrects}`{of}."
    if fragment.action:
        yield f"  {_prose(fragment.action)}"
    about = [
        f"Compatibility: {fragment.compatibility}.",
        f"Models: {', '.join(fragment.models)}.",
    ]
    if fragment.sets:
        about.append(f"Sets: {', '.join(f'`{name}`' for name in fragment.sets)}.")
    if by := _names(fragment.sets, authors):
        about.append(f"By {by}.")
    yield f"  {' '.join(about)}"
    if fragment.evidence:
        yield f"  Evidence: {', '.join(f'`{each}`' for each in fragment.evidence)}."
    else:
        yield f"  Not proved: {_prose(fragment.unproved or '')}"


def _names(sets: Sequence[str], authors: Mapping[str, Sequence[Author]]) -> str:
    names = [each.name for name in sets for each in authors.get(name, ())]
    return ", ".join(_plain(name) for name in dict.fromkeys(names))


def _sets(
    series: Series,
    content: Content,
    changes: Changes,
    authors: Mapping[str, Sequence[Author]],
) -> Iterator[str]:
    yield ""
    yield "## Sets"
    yield ""
    if not changes.sets:
        yield "None: this is the base."
        return
    titles = {each.name: each.title for each in series.sets}
    yield "| set | what | steps | authors |"
    yield "|---|---|---|---|"
    for name in changes.sets:
        count = sum(step.set == name for step in content.steps)
        people = _names([name], authors)
        yield f"| `{name}` | {_plain(titles.get(name, ''))} | {count} | {people} |"
