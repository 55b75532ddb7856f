"""By what a kept answer is found: whatever a fresh computation of the row would go by, and nothing else.

    key = scope and row, as the store makes keys (keying.py)
    scope = function, version, its members' files, what labels have taught it, and of the call: the form of
            its rows, the columns, the members and the context that were asked for

The row is its bytes; of a path it is the stamp of the file that it names (files.py), so a changed file has
another key, and a file with two names has one. A new version, another option, a label that teaches: each
makes another scope, whose rows nobody has asked for yet. Who asks is in no key: whoever may ask for a row
gets its answer, and whether they may is decided before. Pure.
"""

from __future__ import annotations

import json
from hashlib import blake2b

from server.cache.keying import KEY_BYTES
from server.catalog.functions import Form, Function
from server.record import record
from server.scheduling.policy import RowClass

__all__ = ["Asked", "Scope", "function_digest", "is_kept_of", "scope_of"]

# Policies whose answers are the same whenever nobody waits. The others draw lots, take turns among the
# members, or answer by what is left of a goal: a fresh computation would give now this, now that.
_STEADY_POLICIES = ("value", "gear", "cascade")


@record
class Asked:
    """What a call asks of its rows, beside the function. columns: none for those that it has by default.

    members: keys of those that are asked; None for all, or those that its plan asks. shifts: of its context,
    None for none. with_members: whether what each said is wanted too. min_accuracy: that its plan must have;
    where a proxy answers, the agreement.
    """

    form: Form
    columns: tuple[str, ...] = ()
    members: tuple[str, ...] | None = None
    shifts: tuple[float, ...] | None = None
    with_members: bool = False
    row_class: RowClass = "interactive"
    min_accuracy: float | None = None


@record
class Scope:
    """What all rows of a call have in common. digest: the key by which each row is hashed. columns: of the
    answer, those that are kept. members: the names of those who answer, where no plan says who does.
    """

    function: Function
    asked: Asked
    digest: bytes
    columns: tuple[str, ...]
    members: frozenset[str]


def is_kept_of(function: Function) -> bool:
    """Whether answers of a function may be kept: unless it says otherwise, where they are its members' alone.

    A member behind another server may be changed there, and nobody would hear of it: such a function says
    `answer_cache` itself. What asks its members by lot, or learns by whom it asks, is never kept.
    """
    if function.follows_plans and function.select not in _STEADY_POLICIES:
        return False
    if function.answer_cache is not None:
        return function.answer_cache
    return not any(member.endpoint for member in function.asked)


def function_digest(function: Function) -> bytes:
    """Of all by which a function answers: its deployment, and what labels have taught it since.

    One deployment of a registry never changes, so its number stands for the rest; the members' hashes are
    there for a registry that was set back.
    """
    known = function.feedback
    learned = None if known is None else [known.refits, known.taught]
    told = [
        function.name,
        function.version,
        function.bare,
        function.task.name,
        function.combine,
        str(function.select),
        [
            [model.key, model.sha256, [[each.name, each.sha256] for each in model.files], model.endpoint]
            for model in function.asked
        ],
        function.min_confidence,
        function.default,
        sorted(function.thresholds.items()),
        learned if function.is_taught or function.follows_plans else sorted(function.rule.weights.items()),
    ]
    return blake2b(json.dumps(told).encode(), digest_size=KEY_BYTES).digest()


def scope_of(function: Function, digest: bytes, asked: Asked) -> Scope:
    """The scope of rows that a function, of that digest, is asked for so."""
    names = {*function.task.default_outputs, *asked.columns}
    columns = tuple(spec.name for spec in function.outputs if spec.name in names)
    plans = function.follows_plans and asked.members is None
    keys = {model.key: model.name for model in function.members}
    members = asked.members or tuple(keys)
    told = [
        asked.form,
        columns,
        sorted(members),
        asked.shifts,
        asked.with_members,
        [asked.row_class, asked.min_accuracy] if plans else None,
    ]
    hashed = blake2b(json.dumps(told).encode(), key=digest, digest_size=KEY_BYTES).digest()
    return Scope(function, asked, hashed, columns, frozenset(keys.get(key, key) for key in members))
