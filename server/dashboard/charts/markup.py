"""Elements of SVG and HTML, and their text. Nothing here is pasted together from strings."""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element, tostring

from markupsafe import Markup

__all__ = ["classes", "node", "rendered", "shortened", "titled"]

# What no XML document may hold, even escaped; half a surrogate pair cannot be sent as UTF-8 either.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def node(tag: str, /, *children: Element | str | None, **attributes: str | float | None) -> Element:
    """An element. `class_` stands for `class`, `stroke_width` for `stroke-width`; None leaves out."""
    element = Element(tag)
    for name, value in attributes.items():
        if value is not None:
            element.set(name.rstrip("_").replace("_", "-"), _text(value))
    last: Element | None = None
    for child in children:
        if isinstance(child, Element):
            element.append(child)
            last = child
        elif child is not None and last is None:
            element.text = (element.text or "") + _text(child)
        elif child is not None and last is not None:
            last.tail = (last.tail or "") + _text(child)
    return element


def titled(element: Element, title: str) -> Element:
    """The element with what a pointer over it shows."""
    element.insert(0, node("title", title))
    return element


def classes(*names: str) -> str | None:
    """The value of `class_`; None where there is no name."""
    return " ".join(filter(None, names)) or None


def rendered(element: Element) -> Markup:
    """As text that is well-formed as XML and as HTML alike."""
    return Markup(tostring(element, encoding="unicode", short_empty_elements=False))


def shortened(text: str, most: int) -> str:
    """At most so many characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _text(value: str | float) -> str:
    if isinstance(value, str):
        return _FORBIDDEN.sub("\ufffd", value)
    return f"{value:.2f}".rstrip("0").rstrip(".")
