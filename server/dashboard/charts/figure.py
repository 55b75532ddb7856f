"""What every chart is: a figure with a caption, a picture that a screen reader can tell, and its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from markupsafe import Markup

from server.dashboard.charts.markup import classes, node, rendered

__all__ = [
    "COLOURS",
    "EMPTY",
    "MOST_LISTED",
    "SMALL",
    "WIDE",
    "Plot",
    "Size",
    "colour",
    "figure",
    "picture",
    "table",
]

COLOURS = 8  # that the style sheet has for series
MOST_LISTED = 60  # rows of the table behind a chart


@dataclass(frozen=True, slots=True)
class Size:
    """Of the picture, in units of its view box. A small one is as wide as a phone, and text in it is then as
    large as text beside it; a wide one scrolls where it has no room.
    """

    width: float
    height: float
    is_wide: bool = False


SMALL = Size(400, 200)
EMPTY = Size(400, 70)
WIDE = Size(880, 260, is_wide=True)


@dataclass(frozen=True, slots=True)
class Plot:
    """The rectangle within the axes."""

    left: float
    top: float
    right: float
    bottom: float

    @classmethod
    def within(
        cls, size: Size, *, left: float = 46, top: float = 22, right: float = 10, bottom: float = 20
    ) -> Plot:
        """What is left of a picture."""
        return cls(left, top, size.width - right, size.height - bottom)

    @property
    def width(self) -> float:
        """From left to right."""
        return self.right - self.left

    @property
    def height(self) -> float:
        """From top to bottom."""
        return self.bottom - self.top


def colour(index: int) -> str:
    """The class of a series' colour."""
    return f"s{index % COLOURS}"


def picture(
    title: str, description: str, size: Size, *marks: Element | None, has_links: bool = False
) -> Element:
    """An SVG with its name and its description. One with links is a group: in an image there are none."""
    return node(
        "svg",
        node("title", title),
        node("desc", description),
        *(mark for mark in marks if mark is not None),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {size.width:g} {size.height:g}",
        role="group" if has_links else "img",
        aria_label=title,
        class_=classes("wide" if size.is_wide else ""),
    )


def table(
    heads: Sequence[str], rows: Iterable[Sequence[str | Element]], note: str = "", caption: str = ""
) -> Element:
    """Numbers as a table; the first column names the row."""
    body = [
        node(
            "tr",
            *(
                node("th", cell, scope="row") if place == 0 else node("td", cell)
                for place, cell in enumerate(row)
            ),
        )
        for row in rows
    ]
    return node(
        "table",
        node("caption", caption, class_="sr") if caption else None,
        node("thead", node("tr", *(node("th", head, scope="col") for head in heads))),
        node("tbody", *body),
        node("tfoot", node("tr", node("td", note, colspan=len(heads)))) if note else None,
    )


def figure(
    title: str,
    unit: str,
    shown: Element,
    numbers: Element | None,
    *,
    legend: Sequence[tuple[str, str]] = (),
    is_wide: bool = False,
) -> Markup:
    """The whole: caption with a legend of (class, name), picture, and the numbers one click away."""
    caption = [node("strong", title)]
    if unit:
        caption.append(node("span", unit, class_="unit"))
    if legend:
        entries = (node("li", node("i", class_=mark), name) for mark, name in legend)
        caption.append(node("ul", *entries, class_="legend"))
    picture_room = (
        node("div", shown, class_="scrolls", tabindex="0", role="region", aria_label=title)
        if is_wide
        else shown
    )
    behind = (
        node(
            "details",
            node("summary", "Numbers", node("span", f" of {title}", class_="sr")),
            node(
                "div", numbers, class_="scrolls", tabindex="0", role="region", aria_label=f"Numbers: {title}"
            ),
        )
        if numbers is not None
        else None
    )
    return rendered(node("figure", node("figcaption", *caption), picture_room, behind, class_="chart"))
