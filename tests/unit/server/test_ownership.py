"""Whose things are, as pure rules and in the registry."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from server.access.caller import Caller, Grants, Scope, implied
from server.access.masking import masked, masked_text
from server.access.ownership import Ownership
from server.access.permissions import Thing, Visibility, changes, sees
from server.access.seen_catalog import SeenCatalog
from server.access.things import Things
from server.access.view import View, Views, common_folders, folders_of
from server.catalog.wants import Wants
from server.errors import BadOption, Forbidden
from server.store.database import migrate, open_database
from server.store.repository import Repository
from server.store.things import ThingRepository
from tests.unit.training.training_house import on_a_loop

pytestmark = pytest.mark.security


def caller(token: str, scope: Scope = "deploy", grants: Grants | None = None) -> Caller:
    return Caller(token, scopes=implied((scope,)), grants=grants or Grants(), is_shared=False)


@pytest.mark.parametrize(
    ("visibility", "who", "is_seen", "is_changed"),
    [
        ("private", caller("ann"), True, True),
        ("private", caller("ben"), False, False),
        ("shared", caller("bi"), True, False),
        ("shared", caller("ben"), False, False),
        ("public", caller("ben"), True, False),
        ("private", caller("root", "admin"), True, True),
        ("public", caller("ben", grants=Grants(functions=("udf_*",))), False, False),
    ],
)
def test_who_sees_a_thing_and_who_changes_it(
    visibility: Visibility, who: Caller, is_seen: bool, is_changed: bool
) -> None:
    thing = Thing("function", "food", "ann", visibility, frozenset({"bi"}))
    assert sees(who, thing) is is_seen
    assert (is_seen and changes(who, thing)) is is_changed


def test_what_was_there_before_owners_is_everybodys_but_for_datasets() -> None:
    things = Things()
    ben = View(caller("ben"), things)
    assert [ben.sees(kind, "old") for kind in ("function", "model", "dataset")] == [True, True, False]
    assert ben.changes("function", "old")


def test_a_view_follows_what_is_shared_and_forgotten() -> None:
    things = Things()
    who = caller("ben")
    view = Views(things).of(who)
    things.keep(Thing("function", "food", "ann", "private"))
    assert not view.sees("function", "food")
    things.keep(Thing("function", "food", "ann", "shared", frozenset({"ben"})))
    assert view.sees("function", "food")
    things.forget("function", "food")
    assert view.changes("function", "food")


def test_a_function_tells_of_no_dataset_that_its_user_does_not_see() -> None:
    things = Things()
    things.keep(Thing("dataset", "salaries", "ann", "private"))
    things.keep(Thing("dataset", "dishes", "ann", "public"))
    catalog: Any = SimpleNamespace(is_function=lambda name: False)
    function: Any = SimpleNamespace(named=(), fit=None, asked=(), parity=None, pipeline=None)
    function.cascade = {"dataset": "dishes"}
    function.wants = Wants(dataset="salaries")
    for who, hidden in (("ann", {}), ("ben", {"salaries": "a dataset"})):
        assert SeenCatalog(catalog, View(caller(who), things)).hidden_members(function) == hidden


def test_hidden_names_leave_a_text_as_whole_words() -> None:
    hidden = {"cnn": "member 2"}
    said = "cnn/1 and cnn, but neither cnn_large nor my.cnn; cnn."
    assert masked_text(said, hidden) == "member 2 and member 2, but neither cnn_large nor my.cnn; member 2."
    assert masked({"by": {"cnn": [1, "cnn/3"]}}, hidden) == {"by": {"member 2": [1, "member 2"]}}


def test_folders_that_two_have_in_common_are_the_inner_ones() -> None:
    assert common_folders(["/photos"], ["/photos/red", "/else"]) == ("/photos/red",)
    assert common_folders(["/photos/red/new"], ["/photos/red"]) == ("/photos/red/new",)
    assert common_folders(["/photos"], ["/photos/../etc"]) == ()
    assert common_folders(["/photos"], ["/photos2"]) == ()
    assert common_folders(None, ["/photos"]) == ("/photos",)
    assert (folders_of(("*",)), folders_of(("/photos/*",))) == (None, ("/photos",))


@on_a_loop
async def test_a_claim_is_kept_where_the_thing_was_made_in_spite_of_an_error(tmp_path: Path) -> None:
    engine = open_database(f"sqlite:///{tmp_path / 'registry.db'}")
    migrate(engine)
    things = Things()
    ownership = Ownership(ThingRepository(engine), things, "private")
    view = View(caller("ann"), things)

    async def make(name: str, *, is_made: bool) -> None:
        async with ownership.making(view, "function", name, exists=False):
            assert things.of("function", name).owner == "ann"
            if is_made:
                Repository(engine, tmp_path).deploy(name, {})
            raise OSError("the disk")

    for name, is_made in (("made", True), ("unmade", False)):
        with pytest.raises(OSError, match="the disk"):
            await make(name, is_made=is_made)
        assert things.is_claimed("function", name) is is_made
        assert (name in {each.name for each in ThingRepository(engine).all()}) is is_made
    with pytest.raises(Forbidden, match="is taken"):
        ownership.check(View(caller("ben"), things), "function", "made", exists=True)


@on_a_loop
async def test_a_model_made_for_a_function_is_seen_by_who_sees_that() -> None:
    things = Things()
    things.keep(Thing("function", "food", "ann", "shared", frozenset({"ben"})))
    ownership = Ownership(None, things, "public")
    ann = View(caller("ann"), things)
    async with ownership.making(ann, "model", "cnn", exists=False, function="food"):
        pass
    async with ownership.making(ann, "model", "rnn", exists=False, function="nothing yet"):
        pass
    assert things.of("model", "cnn") == Thing("model", "cnn", "ann", "shared", frozenset({"ben"}))
    assert things.of("model", "rnn").visibility == "public"


@on_a_loop
@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ({"visibility": "secret"}, "must be one of"),
        ({"visibility": "shared"}, "must name the tokens"),
        ({"shared_with": "bi"}, "must be a list"),
        ({"shared_with": ["x" * 101]}, "name of a token"),
        ({"shared_with": ["a\0b"]}, "control characters"),
        ({"owner": "\ud800"}, "control characters"),
        ({"colour": "red"}, "no field 'colour'"),
    ],
)
async def test_a_share_that_says_nothing_sensible_is_refused(form: dict[str, object], reason: str) -> None:
    things = Things()
    things.keep(Thing("model", "words", "ann"))
    with pytest.raises(BadOption, match=reason):
        await Ownership(None, things).share(View(caller("ann"), things), "model", "words", form)
