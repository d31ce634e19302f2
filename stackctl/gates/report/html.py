# SPDX-License-Identifier: Apache-2.0
"""Markup in which nothing can be forgotten to be escaped."""

import html


class Html(str):
    """Text that is markup already; any other text is escaped where it is put in."""

    __slots__ = ()


def text(value: object) -> Html:
    """Return a text as markup, harmless in content and in attributes.

    What does not print (controls, marks that turn the direction of writing) is shown
    by its code: titles and reasons are other people's words.
    """
    shown = "".join(
        char if char.isprintable() or char == "\n" else f"\\u{ord(char):04x}"
        for char in str(value)
    )
    return Html(html.escape(shown, quote=True))


def el(element: str, /, *content: object, **attributes: object) -> Html:
    """Return an element.

    Args:
        element: Its name.
        *content: What is in it; None and False are left out.
        **attributes: Its attributes; `_` stands for `-`, a last `_` is dropped. None
            and False are left out, True is the bare name.
    """
    inner = "".join(
        item if isinstance(item, Html) else text(item)
        for item in content
        if item is not None and item is not False
    )
    opened = element + "".join(
        f" {_attribute(key)}"
        if value is True
        else f' {_attribute(key)}="{text(value)}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if element in _VOID:
        return Html(f"<{opened}>")
    return Html(f"<{opened}>{inner}</{element}>")


def join(parts: object) -> Html:
    """Return parts one after the other, each on a line of its own."""
    assert isinstance(parts, (list, tuple))
    return Html(
        "\n".join(part if isinstance(part, Html) else text(part) for part in parts)
    )


def _attribute(key: str) -> str:
    # SVG has names with capitals, which Python keeps as they are.
    return key.rstrip("_").replace("_", "-")


_VOID = frozenset(("meta", "link", "br"))
