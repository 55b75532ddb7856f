"""What members' answers are worth together where they are no classes: by the measure of their task.

Plans weigh what one more member gains against its time. Of classes that is how often the answer turns right;
of other answers it is the gain in a score that is linear in what each row contributes, 1 where all is as it
was to be said and 0 where the answers are worth no more than one without a model:

    of numbers   1 − MSE / variance, the share of the variance that is explained (R²): Murphy's skill score
                 with the mean as its reference (1988, "Skill scores based on the mean square error and their
                 relationships to the correlation coefficient"). It is a mean over the rows, so a row of a
                 function of numbers and one of a function of classes can be held against each other, and a
                 price of a device's second means the same of both. An RMSE is neither bounded nor a mean.
    of labels    micro-F1
    of boxes     mAP@[.5:.95] of the fused boxes (Lin et al. 2014), which looks at all pictures together: a
                 picture's share of it is an approximation

How sure an answer is says nothing there, so states of evidence tell apart who answered, and no more. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from gpu_worker.tasks.average_precision import mean_average_precision
from gpu_worker.tasks.boxes import Box
from server.ensemble.evidence import evidence_of_subsets, subset_of
from server.ensemble.fit import Fit, Subset, SubsetFit, rounded
from server.ensemble.log_pool import unfitted_weight
from server.ensemble.weighted_boxes import fused_boxes

__all__ = ["box_worths", "fit_of_worths"]


def fit_of_worths(
    members: Sequence[str], worths: Mapping[Subset, float], rows: int, *, rule: str, measure: str
) -> Fit:
    """What plans go by, of members whose subsets were measured on so many held-out rows.

    worths: of every subset, by its members' places; below 0, and what is no number, counts as 0, above 1 as
    1. rule: of combination, by which they answered. Raises ValueError where a subset is missing.
    """
    bounded = {subset: _bounded(worth) for subset, worth in worths.items()}
    evidence = evidence_of_subsets(
        len(members), {subset_of(subset): worth for subset, worth in bounded.items()}
    )
    subsets = sorted(bounded, key=lambda subset: (len(subset), subset))
    return Fit(
        tuple(members),
        (1.0,) * len(members),
        tuple(
            SubsetFit(each, (unfitted_weight(len(each)),) * len(each), bounded[each], 0.0) for each in subsets
        ),
        rows,
        0,
        evidence,
        rule=rule,
        measure=measure,
    )


def box_worths(
    found: Sequence[Sequence[Sequence[Box]]], true: Sequence[Sequence[Box]]
) -> dict[Subset, float]:
    """By subset of the members, the mAP of their fused boxes.

    found: by member, of each picture the boxes that it draws. true: of each picture. Raises ValueError for
    other numbers of pictures than there are true ones of.
    """
    worths: dict[Subset, float] = {}
    for size in range(1, len(found) + 1):
        for subset in combinations(range(len(found)), size):
            drawn = zip(*(found[member] for member in subset), strict=True)
            fused = [list(each[0]) if size == 1 else fused_boxes(each) for each in drawn]
            worths[subset] = mean_average_precision(fused, true)
    return worths


def _bounded(worth: float) -> float:
    return rounded(min(1.0, worth)) if worth > 0 else 0.0  # nor is what is no number
