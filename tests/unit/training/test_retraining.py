"""Functions that are trained again: when, from what, what survives a restart, and what is promoted."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from server.access.audit_entry import AuditEntry
from server.access.caller import Grants, Kind, implied
from server.access.owners import view_of_owner
from server.access.permissions import Thing
from server.access.things import Things
from server.access.token import Token
from server.access.tokens import Tokens
from server.access.view import View
from server.catalog.retraining import Retraining
from server.errors import BadOption, NoSpace, Overloaded, UnknownFunction
from server.store.database import migrate, open_database
from server.store.retraining import RetrainingRepository
from server.store.training import TrainingRepository
from server.training.jobs.spec import JobSpec
from server.training.retraining import Retrainings, every_of, seen_retrainings
from tests.unit.training.training_house import on_a_loop

START = datetime(2026, 11, 1, 12, tzinfo=UTC)
SPEC = JobSpec("churn", task="tabular-classification", models=("random_forest",), budget_epochs=30).as_json()
KNOBS = {"max_depth": 7, "max_features": 0.5, "min_samples_leaf": 3, "criterion": "entropy"}


@dataclass
class House:
    """A schedule over a real registry; jobs end when a test says so, deployments as it says."""

    folder: Path
    now: datetime = START
    source: str = "push"
    promoted: bool = True
    trouble: Exception | None = None  # that the next deployment ends with
    started: list[dict[str, Any]] = field(default_factory=list)
    refreshed: list[Any] = field(default_factory=list)
    deployed: list[dict[str, Any]] = field(default_factory=list)
    audited: list[AuditEntry] = field(default_factory=list)
    views: list[View] = field(
        default_factory=list
    )  # in whose name rows were read, jobs begun, models deployed
    owners: dict[str, Token] = field(default_factory=dict)  # of the function and the dataset

    def __post_init__(self) -> None:
        engine = open_database(f"sqlite:///{self.folder / 'registry.db'}")
        migrate(engine)
        self.jobs = TrainingRepository(engine)
        self.repository = RetrainingRepository(engine)
        self.rows("s1")
        self.jobs.set_job(self.jobs.add_job("churn", "s1", SPEC).id, "done")
        directory = self.folder / "model"
        directory.mkdir()
        trained = {"job": 1, "snapshot": "s1", "trial": 0, "knobs": KNOBS}
        manifest = {"architecture": "random_forest", "trained": trained}
        (directory / "model.json").write_text(json.dumps(manifest))
        model = SimpleNamespace(key="m/1", directory=directory)
        self.champion = SimpleNamespace(name="udf_churn", version=3, members=[model], slo_ms=200.0)
        self.retrainings = self.opened()

    def rows(self, snapshot: str) -> None:
        spec = {"name": "churn", "task": "tabular-classification", "source": self.source}
        self.jobs.add_snapshot("churn", spec, {"id": snapshot, "classes": [], "file": "f"})

    def opened(self, owner: str = "one", has_files: bool = True) -> Retrainings:
        """The service of a server that has just been started. has_files: of the jobs that others began."""
        catalog = SimpleNamespace(is_function="udf_churn".__eq__, versions=lambda name: [self.champion])
        it = cast(Any, self)
        began: set[int] = set()

        async def start(form: dict[str, Any], view: View) -> Any:
            self.views.append(view)
            job = await self.start(form)
            began.add(job.id)
            return job

        training = SimpleNamespace(start=start, job=self.job, runs=lambda job: has_files or job in began)
        return Retrainings(
            self.repository,
            self.jobs,
            cast(Any, catalog),
            it,
            cast(Any, training),
            it,
            now=lambda: self.now,
            owner=owner,
            view_of_owner=self.view_of_owner,
            audit=cast(Any, SimpleNamespace(keep=self.keep)),
        )

    async def keep(self, entry: AuditEntry) -> bool:
        self.audited.append(entry)
        return True

    def view_of_owner(self, kind: Kind, name: str) -> View:
        things = Things()
        for kept, token in self.owners.items():
            things.keep(Thing("dataset" if kept == "churn" else "function", kept, token.name))
        tokens = Tokens(token for token in self.owners.values() if token.expires_s is None)
        return view_of_owner(tokens, things, kind, name)

    async def newest(self, dataset: str) -> Any:
        return self.jobs.snapshot(dataset)

    async def refresh(self, dataset: str, roles: Any, caller: str, view: Any) -> Any:
        self.refreshed.append(roles)
        self.views.append(view)
        return self.jobs.snapshot(dataset)

    async def start(self, form: dict[str, Any]) -> Any:
        self.started.append(form)
        return self.jobs.add_job("churn", "s2", JobSpec.from_json(form).as_json())

    async def job(self, number: int) -> Any:
        return self.jobs.job(number), SimpleNamespace(ending=True)

    async def deploy(self, run: Any, function: str, *, view: Any, **options: Any) -> Any:
        if self.trouble is not None:
            trouble, self.trouble = self.trouble, None
            raise trouble
        self.deployed.append({"function": function, **options})
        self.views.append(view)
        return SimpleNamespace(
            promoted=self.promoted, version=4 if self.promoted else 3, p_value=0.01, looks=2
        )

    @property
    def told(self) -> Any:
        return self.repository.find("udf_churn")


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


@on_a_loop
async def test_a_function_is_trained_again_as_its_champion_was_and_begins_with_its_knobs(
    house: House,
) -> None:
    house.rows("s2")
    await house.retrainings.ask("udf_churn", "1 day", None, None)
    await house.retrainings.step()
    (form,) = house.started
    assert (form["seed"], form["retrains"], form["budget_epochs"]) == (1, "udf_churn", 30)
    point = JobSpec.from_json(form).space("random_forest").default_point()
    assert point is not None
    assert dict(point[1]) == KNOBS, "the first trial is the champion's"
    assert (house.told.state, house.told.next_at) == ("running", START + timedelta(days=1))


@on_a_loop
async def test_what_is_found_is_deployed_only_if_it_is_better(house: House) -> None:
    house.rows("s2")
    house.promoted = False
    await house.retrainings.ask("udf_churn", "1 day", "2 minutes", None)
    await house.retrainings.step()
    await house.retrainings.step()
    assert house.deployed == [], "its job still runs"
    house.jobs.set_job(2, "done")
    await house.retrainings.step()
    (asked,) = house.deployed
    assert asked == {
        "function": "udf_churn",
        "promote": "if_better",
        "slo_ms": 200.0,
        "keeps_settings": True,
    }
    assert (
        "version 3 stays: that of job 2 is not shown to be better (p = 0.01 at look 2)" in house.told.outcome
    )
    assert house.told.state == "waiting"


@pytest.mark.parametrize("trouble", [Overloaded("no worker is up"), NoSpace("the disk is full")])
@on_a_loop
async def test_what_was_found_is_deployed_once_that_can_be_done(house: House, trouble: Exception) -> None:
    house.rows("s2")
    await house.retrainings.ask("udf_churn", None, None, None)
    await house.retrainings.step()
    house.jobs.set_job(2, "done")
    house.trouble = trouble
    await house.retrainings.step()
    assert (house.told.job, house.deployed) == (2, [])
    await house.retrainings.step()
    assert (house.told.job, len(house.deployed)) == (None, 1)
    assert "version 4 answers now" in house.told.outcome


@on_a_loop
async def test_a_server_that_was_stopped_goes_on_with_the_job_and_the_schedule(house: House) -> None:
    house.rows("s2")
    await house.retrainings.ask("udf_churn", "6 hours", None, None)
    await house.retrainings.step()
    again = house.opened()
    house.jobs.set_job(2, "done")
    house.now += timedelta(hours=20)
    await again.step()
    assert len(house.deployed) == 1
    await again.step()
    assert len(house.started) == 2, "what was missed is made up for once"
    assert house.told.next_at == START + timedelta(hours=24)


@on_a_loop
async def test_a_job_that_was_begun_and_not_noted_is_not_begun_twice(house: House) -> None:
    house.rows("s2")
    await house.retrainings.ask("udf_churn", None, None, None)
    due = house.told
    await house.retrainings.step()
    house.repository.amend("udf_churn", lambda _: due)  # as a crash before the note left it
    await house.opened().step()
    assert len(house.started) == 1
    assert house.told.job == 2


@on_a_loop
async def test_of_two_servers_on_one_registry_one_trains_and_deploys(house: House) -> None:
    house.rows("s2")
    one, other = house.opened("one"), house.opened("other")
    await other.ask("udf_churn", "1 day", None, None)

    async def looks(server: Retrainings) -> None:
        for _ in range(5):
            await server.step()

    await asyncio.gather(looks(one), looks(other))
    assert len(house.started) == 1
    house.jobs.set_job(2, "done")
    await asyncio.gather(looks(one), looks(other))
    assert len(house.deployed) == 1
    assert (house.told.owner, house.told.job) == (None, None), "what is done is nobody's"
    house.now += timedelta(days=1)
    house.champion.version = 4
    await other.step()
    assert house.told.owner == "other", "whoever looks first"


@on_a_loop
async def test_a_job_that_runs_for_hours_is_held_by_who_renews_its_lease(house: House) -> None:
    house.rows("s2")
    one, other = house.opened("one"), house.opened("other", has_files=False)
    await one.ask("udf_churn", None, None, None)
    await one.step()
    for _ in range(60):
        house.now += timedelta(seconds=10)
        await one.renew()
        await one.step()
        await other.renew()
        await other.step()
    assert (house.told.owner, len(house.started)) == ("one", 1)


@on_a_loop
async def test_what_a_dead_server_was_at_is_taken_over_within_a_minute(house: House) -> None:
    house.source = "warehouse"
    house.rows("s2")
    one, other = house.opened("one"), house.opened("other", has_files=False)
    await one.ask("udf_churn", None, None, None)
    refresh = house.refresh

    async def killed(dataset: str, roles: Any, caller: str, view: Any) -> Any:
        raise asyncio.CancelledError

    house.refresh = killed  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        await one.step()
    house.refresh = refresh  # type: ignore[method-assign]
    house.now += timedelta(seconds=29)
    await other.step()
    assert (house.told.owner, house.started) == ("one", [])
    house.now += timedelta(seconds=1)
    await other.step()
    assert (house.told.owner, len(house.started)) == ("other", 1), "nothing had begun: after 30 s"

    third = house.opened("third", has_files=False)
    house.now += timedelta(seconds=59)
    await third.step()
    assert house.told.job == 2, "its server may come back and go on with it"
    house.now += timedelta(seconds=1)
    await third.step()
    assert "job 2 was lost with the server that ran it" in house.told.outcome
    await third.step()
    assert (house.told.owner, house.told.job, len(house.started)) == ("third", 3, 2)
    await other.step()
    await other.renew()
    house.jobs.set_job(2, "done")
    await other.step()
    assert house.deployed == [], "who has lost it deploys nothing"
    house.jobs.set_job(3, "done")
    await third.step()
    assert len(house.deployed) == 1


@on_a_loop
async def test_who_wakes_after_its_lease_was_taken_deploys_and_notes_nothing(house: House) -> None:
    house.source = "warehouse"
    house.rows("s2")
    one, other = house.opened("one"), house.opened("other")
    await one.ask("udf_churn", None, None, None)
    refresh = house.refresh

    async def slow(dataset: str, roles: Any, caller: str, view: Any) -> Any:
        house.refresh = refresh  # type: ignore[method-assign]
        house.now += timedelta(seconds=31)
        await other.step()
        return await refresh(dataset, roles, caller, view)

    house.refresh = slow  # type: ignore[method-assign]
    await one.step()
    assert house.told.owner == "other"
    await one.renew()
    assert house.told.owner == "other"


def test_who_may_hold_a_retraining_is_a_function_of_its_state_and_the_time() -> None:
    due = Retraining("f", next_at=START)
    early, late = START - timedelta(seconds=1), START + timedelta(days=1)
    assert due.held_by("one", early, runs_here=False) is None, "there is nothing to do yet"
    held = due.held_by("one", START, runs_here=False)
    assert held is not None
    assert (held.owner, held.leased_until) == ("one", START + timedelta(seconds=30))
    assert held.held_by("other", START + timedelta(seconds=29), runs_here=False) is None
    assert held.held_by("other", START + timedelta(seconds=30), runs_here=False) is not None
    assert held.held_by("one", late, runs_here=False) is not None
    training = replace(held, job=7, next_at=None)
    at = START + timedelta(seconds=31)
    assert training.held_by("other", at, runs_here=False) is None, "who ran it comes first"
    assert training.held_by("restarted", at, runs_here=True) is not None
    assert training.held_by("other", START + timedelta(seconds=60), runs_here=False) is not None
    assert Retraining("f").held_by("one", late, runs_here=True) is None


@on_a_loop
async def test_without_new_rows_nothing_is_trained(house: House) -> None:
    await house.retrainings.ask("udf_churn", "1 day", None, None)
    await house.retrainings.step()
    assert house.started == []
    assert "the rows are those of version 3" in house.told.outcome


@on_a_loop
async def test_the_query_of_a_source_is_run_again_in_the_name_of_who_asked(house: House) -> None:
    house.source = "warehouse"
    house.rows("s2")
    await house.retrainings.ask("udf_churn", None, None, ["analysts"])
    await house.retrainings.step()
    assert house.refreshed == [("analysts",)]
    house.jobs.set_job(2, "failed", "the workers are gone")
    await house.retrainings.step()
    assert house.told.outcome == "job 2 is failed: the workers are gone"
    assert house.told.state == "done", "once was asked for"


@on_a_loop
async def test_orders_given_while_a_query_runs_are_taken_at_once_and_stand(house: House) -> None:
    house.source = "warehouse"
    house.rows("s2")
    await house.retrainings.ask("udf_churn", "1 day", None, None)
    refresh, ordered = house.refresh, START + timedelta(minutes=5)

    async def slow(dataset: str, roles: Any, caller: str, view: Any) -> Any:
        house.now = ordered
        await asyncio.wait_for(house.retrainings.ask("udf_churn", "6 hours", "2 minutes", None), 5)
        return await refresh(dataset, roles, caller, view)

    house.refresh = slow  # type: ignore[method-assign]
    await house.retrainings.step()
    assert (house.told.job, house.told.every_s, house.told.budget) == (2, 21_600.0, "2 minutes")
    assert house.told.next_at == ordered


@on_a_loop
async def test_what_is_forgotten_while_its_query_runs_stays_forgotten(house: House) -> None:
    house.source = "warehouse"
    house.rows("s2")
    await house.retrainings.ask("udf_churn", "1 day", None, None)
    refresh = house.refresh

    async def slow(dataset: str, roles: Any, caller: str, view: Any) -> Any:
        await asyncio.wait_for(house.retrainings.forget("udf_churn"), 5)
        return await refresh(dataset, roles, caller, view)

    house.refresh = slow  # type: ignore[method-assign]
    await house.retrainings.step()
    assert house.told is None
    assert len(house.started) == 1, "its job goes on"


def test_an_outcome_names_no_model_that_its_reader_does_not_see() -> None:
    seen: Any = SimpleNamespace(
        sees=lambda name: name != "udf_hidden",
        is_function=lambda name: name != "udf_gone",
        versions=lambda name: [name],
        hidden_members=lambda function: {"inner": "member 1"},
    )
    said = "not trained: inner/1 of function udf_churn was not trained here"
    known = [Retraining(name, outcome=said) for name in ("udf_churn", "udf_gone", "udf_hidden")]
    told = [(each.function, each.outcome) for each in seen_retrainings(known, seen)]
    assert told == [("udf_churn", said.replace("inner/1", "member 1")), ("udf_gone", said)]


@on_a_loop
async def test_what_a_database_says_of_a_query_is_not_told_to_all_who_may_read_outcomes(house: House) -> None:
    house.source = "warehouse"
    house.rows("s2")
    await house.retrainings.ask("udf_churn", "1 day", None, None)

    async def refused(dataset: str, roles: Any, caller: str, view: Any) -> Any:
        raise BadOption("the database refused the query: invalid input for type integer: 'secret'")

    house.refresh = refused  # type: ignore[method-assign]
    await house.retrainings.step()
    assert "the query of its dataset failed" in house.told.outcome
    assert "churn" not in house.told.outcome
    assert "secret" not in house.told.outcome
    assert house.told.next_at == START + timedelta(days=1)


@on_a_loop
async def test_what_the_server_does_by_itself_stands_in_the_audit_trail_with_its_cause(house: House) -> None:
    house.source = "warehouse"
    house.rows("s2")
    await house.retrainings.ask("udf_churn", "1 day", None, None)
    await house.retrainings.step()
    house.jobs.set_job(2, "done")
    await house.retrainings.step()
    assert [(each.token, each.action, each.what, each.outcome) for each in house.audited] == [
        ("server", "refresh dataset", "churn: trains udf_churn again", "done"),
        ("server", "train", "churn job 2: trains udf_churn again", "done"),
        (
            "server",
            "deploy function",
            "udf_churn version 4: job 2, which trained it again, is better (p = 0.01 at look 2)",
            "done",
        ),
    ]


@on_a_loop
async def test_it_acts_in_the_names_of_whose_things_they_are_and_reaches_no_more_than_they(
    house: House,
) -> None:
    grants = Grants(media_roots=("/photos/red",), sources=("warehouse",))
    house.owners = {
        "churn": Token("red", "1", implied(["train"]), grants),
        "udf_churn": Token("blue", "2", implied(["train", "deploy"])),
    }
    house.source = "warehouse"
    house.rows("s2")
    await house.retrainings.ask("udf_churn", "1 day", None, None)
    await house.retrainings.step()
    house.jobs.set_job(2, "done")
    await house.retrainings.step()
    assert [view.caller.token for view in house.views] == ["red", "blue", "blue"]
    assert house.views[0].media_roots == ("/photos/red",)
    assert not any(view.is_admin for view in house.views)


@on_a_loop
async def test_it_acts_in_the_name_of_no_token_that_counts_no_more(house: House) -> None:
    house.owners = {"udf_churn": Token("gone", "2", implied(["deploy"]), expires_s=1.0)}
    house.rows("s2")
    await house.retrainings.ask("udf_churn", "1 day", None, None)
    await house.retrainings.step()
    assert house.started == []
    assert house.told.outcome.startswith("not trained: the token gone, whose the function udf_churn is,")


@on_a_loop
async def test_what_is_overloaded_is_tried_again_and_a_model_without_files_costs_no_others_their_turn(
    house: House,
) -> None:
    house.source = "warehouse"
    house.rows("s2")
    await house.retrainings.ask("udf_churn", None, None, None)
    refresh = house.refresh

    async def full(dataset: str, roles: Any, caller: str, view: Any) -> Any:
        raise Overloaded("too many queries", 1.0)

    house.refresh = full  # type: ignore[method-assign]
    await house.retrainings.step()
    assert (house.told.state, house.told.outcome) == ("waiting", "")
    house.refresh = refresh  # type: ignore[method-assign]
    (house.folder / "model" / "model.json").unlink()
    await house.retrainings.step()
    assert house.told.outcome.startswith("not trained: ")
    assert house.told.state == "done"


@on_a_loop
async def test_what_cannot_be_trained_again_is_refused(house: House) -> None:
    with pytest.raises(UnknownFunction, match="no function 'udf_other'"):
        await house.retrainings.ask("udf_other", "1 day", None, None)
    with pytest.raises(UnknownFunction, match="is not trained again"):
        await house.retrainings.forget("udf_churn")
    await house.retrainings.ask("udf_churn", "1 day", None, None)
    await house.retrainings.forget("udf_churn")
    assert house.told is None
    (house.folder / "model" / "model.json").write_text("{}")
    with pytest.raises(BadOption, match="was not trained here"):
        await house.retrainings.ask("udf_churn", "1 day", None, None)


@pytest.mark.parametrize("every", ["1", "day", "0 days", "-1 day", "1 fortnight", 7, ""])
def test_a_time_without_its_unit_is_refused(every: object) -> None:
    with pytest.raises(BadOption, match="'1 day' or '6 hours'"):
        every_of(every)


def test_a_time_longer_than_the_calendar_is_refused() -> None:
    assert every_of("500 weeks") == 500 * 604_800.0
    with pytest.raises(BadOption, match="ten years at the most"):
        every_of("999999 weeks")
