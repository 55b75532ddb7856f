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

A deployment has one detector, so boxes need no such fit; several that somebody put together are all asked.

How sure an answer is says nothing there, so states of evidence tell apart who answered, and no more. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from server.ensemble.evidence import evidence_of_subsets, subset_of
from server.ensemble.fit import Fit, Subset, SubsetFit, rounded
from server.ensemble.log_pool import unfitted_weight

__all__ = ["fit_of_worths"]


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


def _bounded(worth: float) -> float:
    return rounded(min(1.0, worth)) if worth > 0 else 0.0  # nor is what is no number
