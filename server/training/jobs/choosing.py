"""Which models a job trains when it names none (Rafiki §4.1). Pure.

"We select the models with similar performance but with different architectures": a set whose members err on
different rows gains most as an ensemble, and models of one task do consistently across datasets. So what
earlier jobs of the task have found shows how good each model is: how far it stayed, on average, behind the
best of its own job. Those within `tolerance` of the best are similar; of one family only the best is taken.
While there are models that no job has tried, one of them has the last place: so in time each is tried, though
the first ones do well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["behind", "choose_models"]


def behind(results: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """For each model that was tried, its mean distance to the best score of its job; 0 = always the best.

    results: of each job, the best validation score of each of its models. A job of one model shows nothing.
    """
    gaps: dict[str, list[float]] = {}
    for scores in results:
        if len(scores) > 1:
            best = max(scores.values())
            for model, score in scores.items():
                gaps.setdefault(model, []).append(best - score)
    return {model: sum(found) / len(found) for model, found in gaps.items()}


def choose_models(
    families: Mapping[str, str],
    defaults: Sequence[str],
    results: Sequence[Mapping[str, float]],
    *,
    tolerance: float = 0.05,
) -> tuple[str, ...]:
    """As many models as there are `defaults`, fewer where fewer are similar; the best first.

    families: of every model of the task, in the order of the registry. defaults: what is taken while nothing
    is known, and the first to be tried.
    """
    gaps = {model: gap for model, gap in behind(results).items() if model in families}
    if not gaps:
        return tuple(defaults)
    least = min(gaps.values())
    similar = sorted(
        (model for model, gap in gaps.items() if gap - least <= tolerance),
        key=lambda model: (gaps[model], list(families).index(model)),
    )
    best = _of_each_family(similar, families)
    untried = [model for model in dict.fromkeys((*defaults, *families)) if model not in gaps]
    taken = {families[model] for model in best}
    untried.sort(key=lambda model: families[model] in taken)  # what differs most is tried first
    places = len(defaults)
    tried = best[: places - 1] if untried and places > 1 else best[:places]
    return (*tried, *untried[: places - len(tried)])


def _of_each_family(models: Sequence[str], families: Mapping[str, str]) -> list[str]:
    """The first of each family."""
    first: dict[str, str] = {}
    for model in models:
        first.setdefault(families[model], model)
    return list(first.values())
