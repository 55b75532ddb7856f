"""What was answered instead of what: truth and answer in a table, whose cells open the rows behind them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from xml.etree.ElementTree import Element

from markupsafe import Markup

from server.dashboard.charts.markup import classes, node, rendered, shortened

__all__ = ["MOST_CLASSES", "OTHERS", "confusion_table", "folded"]

MOST_CLASSES = 20  # by name; the others are one
OTHERS = "others"
_SHADES = 9
_LABEL = 22  # characters

Counts = Mapping[tuple[str, str], int]  # (truth, answer) → rows
Href = Callable[[str, str], str]


def confusion_table(title: str, labels: Sequence[str], counts: Counts, href: Href | None = None) -> Markup:
    """Rows are the truth, columns the answers, a shade the share of its row.

    labels: in their order; those beyond `MOST_CLASSES` that are confused the least stand together. href: of a
    (truth, answer), where a cell leads; one of several classes, or with nothing in it, leads nowhere.
    """
    shown, told, folded_names = folded(labels, counts)
    heads = [node("th", _name(label), scope="col", title=label) for label in shown]
    body = [
        node(
            "tr",
            node("th", shortened(truth, _LABEL), scope="row", title=truth),
            *(_cell(truth, answer, told, shown, href, folded_names) for answer in shown),
            node("td", str(sum(told[truth, answer] for answer in shown)), class_="sum"),
            node("td", _share(told[truth, truth], sum(told[truth, each] for each in shown)), class_="sum"),
        )
        for truth in shown
    ]
    note = f"“{OTHERS}” are {len(folded_names)} classes" if folded_names else ""
    whole = node(
        "table",
        node("caption", title, class_="sr"),
        node(
            "thead",
            node(
                "tr",
                node("th", "truth ↓ answer →", scope="col"),
                *heads,
                node("th", "rows", scope="col"),
                node("th", "right", scope="col"),
            ),
        ),
        node("tbody", *body),
    )
    return rendered(
        node(
            "figure",
            node("figcaption", node("strong", title), node("span", note, class_="unit") if note else None),
            node("div", whole, class_="scrolls", tabindex="0", role="region", aria_label=title),
            class_="chart confusion",
        )
    )


def folded(
    labels: Sequence[str], counts: Counts
) -> tuple[list[str], Counter[tuple[str, str]], Collection[str]]:
    """The labels by name with `OTHERS` at the end, the counts among them, and what stands behind `OTHERS`."""
    known = list(dict.fromkeys([*labels, *(label for pair in counts for label in pair)]))
    wrong: Counter[str] = Counter()
    for (truth, answer), rows in counts.items():
        if truth != answer:
            wrong[truth] += rows
            wrong[answer] += rows
    if len(known) <= MOST_CLASSES:
        return known, Counter(dict(counts)), ()
    kept = set(sorted(known, key=lambda label: -wrong[label])[: MOST_CLASSES - 1])
    told: Counter[tuple[str, str]] = Counter()
    for (truth, answer), rows in counts.items():
        told[truth if truth in kept else OTHERS, answer if answer in kept else OTHERS] += rows
    named = [label for label in known if label in kept]
    return [*named, OTHERS], told, {label for label in known if label not in kept}


def _cell(
    truth: str,
    answer: str,
    counts: Counter[tuple[str, str]],
    shown: Sequence[str],
    href: Href | None,
    folded_names: Collection[str],
) -> Element:
    rows = counts[truth, answer]
    if not rows:
        return node("td")
    share = rows / sum(counts[truth, each] for each in shown)
    is_right = truth == answer and not (folded_names and truth == OTHERS)
    shade = f"{'is-right' if is_right else 'is-wrong'} shade{math.ceil(share * _SHADES)}"
    told = f"{rows} of {truth} answered {answer}"
    leads = href is not None and not (folded_names and OTHERS in (truth, answer))
    content = node("a", str(rows), href=href(truth, answer), aria_label=told) if href and leads else str(rows)
    return node("td", content, class_=classes(shade), title=told)


def _name(label: str) -> Element:
    """Upright, so that many have room."""
    return node("span", shortened(label, _LABEL), class_="upright")


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "–"
