"""The module's settings, and those of the functions that live beside them."""

from __future__ import annotations

from collections.abc import Callable

from tests.postgres.batch.session import Session


def test_settings_have_defaults_and_bounds(own: Session) -> None:
    assert own.must("SHOW ml_udf.batching", "SHOW ml_udf.gather_rows").rows == [("on",), ("4096",)]
    error = own.run("SET ml_udf.gather_rows = 0").error
    assert error is not None
    assert error[0] == "22023"


def test_the_functions_own_settings_stay_free(own: Session) -> None:
    """They are placeholders that the functions read; the module does not reserve the prefix."""
    values = {
        "slo_ms": "50",
        "min_accuracy": "0.9",
        "on_error": "null",
        "max_in_flight": "4",
        "timeout_ms": "100",
    }
    for name, value in values.items():
        own.must(f"SET ml_udf.{name} = '{value}'")
        assert own.must(f"SELECT current_setting('ml_udf.{name}', true)").rows == [(value,)]


def test_only_a_superuser_puts_everything_through_the_node(connect: Callable[..., Session]) -> None:
    owner = connect()
    owner.must("CREATE ROLE guest LOGIN")
    guest = connect(user="guest")
    error = guest.run("SET ml_udf.batch_everything = on").error
    assert error is not None
    assert error[0] == "42501"
    guest.close()
    owner.must("DROP ROLE guest")


def test_everything_through_the_node_means_the_same(own: Session) -> None:
    query = "SELECT upper(path) || abs(grp), sqrt(id) FROM items WHERE length(path) > grp ORDER BY id"
    expected = own.must(query).rows
    assert own.must("SET ml_udf.batch_everything = on", query).rows == expected
