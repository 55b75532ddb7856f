"""Requests of the protocol become calls, replies become responses; what does not fit is refused by name."""

from __future__ import annotations

import contextlib
import json
import math
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.wire.protocol import RowError
from ml_udf.oip import InferRequest, RequestedOutput, Tensor, WireError, decode_request
from server.access.caller import Caller, Shares
from server.catalog.functions import Function
from server.ensemble.fit import Fit, SubsetFit
from server.ensemble.gearing import FollowedPlans
from server.ensemble.plan import Plan
from server.ensemble.selection import ENOUGH
from server.errors import (
    BadInput,
    BadOption,
    BodyTooLarge,
    DeadlineExceeded,
    Forbidden,
    ServiceError,
    Unsupported,
)
from server.routes.codec import Codec, raw_request
from server.serving.calls import Call, Reply
from tests.answers import label_columns
from tests.unit.server.served import CLASSES, function, image_model, text_model

COST_S = {"fast": 0.001, "slow": 0.010}
CODEC = Codec(max_rows=10, latency_of=lambda model, form: lambda rows: rows * COST_S.get(model.name, 0.001))
NOW_S = 100.0


def texts(*rows: bytes, **parameters: Any) -> InferRequest:
    return InferRequest([Tensor.of_bytes("text", list(rows))], parameters=parameters)


def reply(*labels: str, scores: bytes = b"", **fields: Any) -> Reply:
    made: dict[str, Any] = {
        "function": function(),
        "rows": len(labels),
        "columns": label_columns(labels, [0.5] * len(labels), scores),
        "errors": {},
        "answered_by": [(0, len(labels), "net")],
        "defaulted": set(),
        **fields,
    }
    return Reply(**made)


def test_a_plain_request_is_a_call_without_goals() -> None:
    call = CODEC.call_of(function(), texts(b"one", b"three"), NOW_S)
    assert (call.form, call.rows, call.nbytes) == ("text", [b"one", b"three"], 8)
    assert (call.deadline_s, call.row_class, call.priority, call.slo_s, call.members) == (
        math.inf,
        "interactive",
        0,
        None,
        None,
    )


def test_the_parameters_become_deadline_class_and_goal() -> None:
    call = CODEC.call_of(
        function(),
        texts(b"x", timeout=2_000_000, ml_udf_deadline_ms=500, ml_udf_class="bulk", ml_udf_slo_ms=40),
        NOW_S,
    )
    assert call.deadline_s == pytest.approx(100.5)
    assert (call.row_class, call.slo_s) == ("bulk", 0.04)
    assert CODEC.call_of(function(), texts(b"x", timeout=2_000_000), NOW_S).deadline_s == pytest.approx(102.0)
    assert CODEC.call_of(function(), texts(b"x", timeout=0), NOW_S).deadline_s == math.inf


def test_a_context_is_kept_as_its_digest() -> None:
    call = CODEC.call_of(function(), texts(b"x", ml_udf_context="user:17"), NOW_S)
    assert len(call.context) == 32
    assert "user" not in call.context
    for none in ("", None):
        assert CODEC.call_of(function(), texts(b"x", ml_udf_context=none), NOW_S).context == ""


def test_a_deadline_further_away_than_timers_count_is_none() -> None:
    assert CODEC.call_of(function(), texts(b"x", ml_udf_deadline_ms=1e25), NOW_S).deadline_s == math.inf


def test_priority_one_is_the_most_urgent_and_none_comes_last() -> None:
    urgency = [CODEC.call_of(function(), texts(b"x", priority=p), NOW_S).priority for p in (1, 2, 9, 0)]
    assert urgency == sorted(urgency, reverse=True)
    assert len(set(urgency)) == 4


def test_a_request_that_comes_after_its_deadline_is_refused() -> None:
    with pytest.raises(DeadlineExceeded):
        CODEC.call_of(function(), texts(b"x", ml_udf_deadline_ms=0), NOW_S)


def test_goals_of_the_request_choose_the_members() -> None:
    both = function(text_model("fast", accuracy=0.7), text_model("slow", accuracy=0.9))
    assert CODEC.call_of(both, texts(b"x", ml_udf_min_accuracy=0.8), NOW_S).members == ("slow/1",)
    assert CODEC.call_of(both, texts(b"x", ml_udf_slo_ms=5), NOW_S).members == ("fast/1",)
    assert CODEC.call_of(both, texts(b"x", ml_udf_slo_ms=100), NOW_S).members is None
    with pytest.raises(BadOption, match=r"accuracy of 0.95; the best has 0.9"):
        CODEC.call_of(both, texts(b"x", ml_udf_min_accuracy=0.95), NOW_S)


# The slow one is the better one; together they are better still.
FIT = Fit(
    ("fast", "slow"),
    (1.0, 1.0),
    (
        SubsetFit((0,), (1.0,), 0.7, 0.5),
        SubsetFit((1,), (1.0,), 0.9, 0.4),
        SubsetFit((0, 1), (1.0, 1.0), 0.95, 0.3),
    ),
    rows=100,
    classes=3,
)


def fitted(**fields: Any) -> Function:
    members = text_model("fast", accuracy=0.75), text_model("slow", accuracy=0.85)
    return function(*members, **{"combine": "log_pool", "fit": FIT, **fields})


def test_goals_of_the_request_are_limits_on_what_members_answer_together() -> None:
    def members(**parameters: Any) -> tuple[str, ...] | None:
        return CODEC.call_of(fitted(), texts(b"x", **parameters), NOW_S).members

    assert members(ml_udf_min_accuracy=0.94) is None, "no member alone is so accurate"
    assert members(ml_udf_min_accuracy=0.8, ml_udf_slo_ms=10.5) == ("slow/1",)
    assert members(ml_udf_slo_ms=5) == ("fast/1",)
    with pytest.raises(
        BadOption, match=r"f: no members .* accuracy of 0\.96 together; the best, fast \+ slow"
    ):
        members(ml_udf_min_accuracy=0.96)
    with pytest.raises(BadOption, match=r"1 rows in 5 ms with an accuracy of 0\.8: slow would take 10 ms"):
        members(ml_udf_min_accuracy=0.8, ml_udf_slo_ms=5)


def test_members_of_other_workers_are_taken_to_run_beside_one_another() -> None:
    apart = replace(CODEC, workers=lambda: [{"fast/1"}, {"slow/1"}])
    asked = texts(b"x", ml_udf_slo_ms=10.5)
    assert CODEC.call_of(fitted(), asked, NOW_S).members == ("slow/1",)
    assert apart.call_of(fitted(), asked, NOW_S).members is None


def test_rows_that_follow_plans_keep_the_limits_by_themselves() -> None:
    plans = tuple(
        Plan((ENOUGH,), np.array([[cost_s]]), right) for cost_s, right in ((0.01, 0.94), (0.001, 0.7))
    )
    following = replace(CODEC, plans=lambda function, form: FollowedPlans(plans, 1))
    planned = fitted(select="value")

    def call(codec: Codec = following, **parameters: Any) -> Call:
        return codec.call_of(planned, texts(b"x", **parameters), NOW_S)

    limited = call(ml_udf_min_accuracy=0.94, ml_udf_slo_ms=3)
    assert (limited.members, limited.min_accuracy, limited.slo_s) == (None, 0.94, 0.003)
    assert call(ml_udf_slo_ms=0.1).members is None, "the goal is the rows' own"
    everybody = ("fast/1", "slow/1")
    assert call(ml_udf_min_accuracy=0.945).members == everybody, "no plan is right that often"
    assert call(CODEC, ml_udf_min_accuracy=0.9).members == everybody, "there is no plan yet"
    assert call(ml_udf_min_accuracy=0.8, ml_udf_slo_ms=10.5, ml_udf_class="bulk").members == ("slow/1",)
    with pytest.raises(BadOption, match=r"the best, fast \+ slow, has 0\.95"):
        call(ml_udf_min_accuracy=0.96)


def test_where_only_members_are_known_each_has_to_be_accurate_enough() -> None:
    voting = fitted(combine="majority_vote")
    assert CODEC.call_of(voting, texts(b"x", ml_udf_min_accuracy=0.8), NOW_S).members == ("slow/1",)
    with pytest.raises(BadOption, match=r"no model of f has an accuracy of 0\.9; the best has 0\.85"):
        CODEC.call_of(voting, texts(b"x", ml_udf_min_accuracy=0.9), NOW_S)


@pytest.mark.parametrize(
    ("parameters", "error", "said"),
    [
        ({"ml_udf_deadline_ms": "soon"}, BadOption, "ml_udf_deadline_ms"),
        ({"ml_udf_slo_ms": 0}, BadOption, "ml_udf_slo_ms"),
        ({"ml_udf_slo_ms": math.nan}, BadOption, "ml_udf_slo_ms"),
        ({"ml_udf_class": "first"}, BadOption, "ml_udf_class"),
        ({"ml_udf_colour": 1}, BadOption, "ml_udf_colour"),
        ({"priority": -1}, BadOption, "priority"),
        ({"priority": 1.5}, BadOption, "priority"),
        ({"timeout": True}, BadOption, "timeout"),
        ({"timeout": 10**400}, BadOption, "timeout"),
        ({"sequence_id": 7}, Unsupported, "sequences"),
        ({"ml_udf_context": 17}, BadOption, "a context must be a text"),
        ({"ml_udf_context": "x" * 201}, BadOption, "of up to 200 characters"),
    ],
)
def test_a_parameter_that_cannot_be_is_named(
    parameters: dict[str, Any], error: type[ServiceError], said: str
) -> None:
    with pytest.raises(error, match=said):
        CODEC.call_of(function(), texts(b"x", **parameters), NOW_S)


def test_an_unknown_parameter_of_somebody_else_is_let_through() -> None:
    assert CODEC.call_of(function(), texts(b"x", my_trace="abc"), NOW_S).rows == [b"x"]


@pytest.mark.parametrize(
    ("inputs", "error", "said"),
    [
        ([], BadOption, "exactly one input, one of text"),
        ([Tensor.of_bytes("text", [b"a"]), Tensor.of_bytes("text", [b"b"])], BadOption, "exactly one"),
        ([Tensor.of_bytes("image", [b"a"])], BadOption, "no input 'image'; there are text"),
        ([Tensor("text", "BYTES", (1, 2), [b"a", b"b"])], BadOption, "shape"),
        ([Tensor("text", "INT8", (1,), b"a")], BadOption, "must be BYTES"),
        ([Tensor.of_bytes("text", [b"a"] * 11)], BodyTooLarge, "11 rows"),
        (
            [Tensor("text", "BYTES", (1,), [b"a"], {"shared_memory_region": "r"})],
            Unsupported,
            "shared memory",
        ),
    ],
)
def test_an_input_that_does_not_fit_is_refused(
    inputs: list[Tensor], error: type[ServiceError], said: str
) -> None:
    with pytest.raises(error, match=said):
        CODEC.call_of(function(), InferRequest(inputs), NOW_S)


def test_a_column_of_one_wide_rows_is_taken_as_a_column() -> None:
    wide = InferRequest([Tensor("text", "BYTES", (2, 1), [b"a", b"b"])])
    assert CODEC.call_of(function(), wide, NOW_S).rows == [b"a", b"b"]


def test_pixels_are_cut_into_rows_of_the_models_size() -> None:
    row = struct.pack("<12f", *range(12))
    request = InferRequest([Tensor("pixels", "FP32", (2, 3, 2, 2), row * 2)])
    call = CODEC.call_of(function(image_model(side=2)), request, NOW_S)
    assert (call.form, call.rows) == ("tensor", [row, row])


def test_pixels_of_another_size_are_refused_and_so_are_they_where_members_differ() -> None:
    request = InferRequest([Tensor("pixels", "FP32", (1, 3, 4, 4), bytes(192))])
    with pytest.raises(BadOption, match=r"FP32 of shape \['n', 3, 2, 2\]"):
        CODEC.call_of(function(image_model(side=2)), request, NOW_S)
    with pytest.raises(BadOption, match="no input 'pixels'; there are image_path, image"):
        CODEC.call_of(function(image_model("a", side=4), image_model("b", side=2)), request, NOW_S)


def test_a_raw_body_is_one_row_of_the_functions_own_input_and_asks_for_binary() -> None:
    request = raw_request(function(), b"a whole review")
    assert CODEC.call_of(function(), request, NOW_S).rows == [b"a whole review"]
    assert request.wants_binary("label")


def test_a_raw_body_of_pixels_is_as_many_rows_as_fit() -> None:
    pixels = function(image_model(side=2), form="tensor")
    assert len(CODEC.call_of(pixels, raw_request(pixels, bytes(96)), NOW_S).rows) == 2
    with pytest.raises(BadOption, match="no whole number of rows"):
        raw_request(pixels, bytes(97))


def test_scores_are_computed_only_for_those_who_get_them() -> None:
    asked = InferRequest([Tensor.of_bytes("text", [b"x"])], [RequestedOutput("label")])
    assert not CODEC.call_of(function(), asked, NOW_S).outputs
    assert not CODEC.call_of(function(), texts(b"x"), NOW_S).outputs
    asked.outputs.append(RequestedOutput("scores"))
    assert "scores" in CODEC.call_of(function(), asked, NOW_S).outputs


@pytest.mark.parametrize(("binary", "most"), [(True, 10 * 3 * 4), (False, 10 * 3 * 24)])
def test_scores_that_would_be_too_many_bytes_are_refused_before_they_are_computed(
    binary: bool, most: int
) -> None:
    asked = InferRequest([Tensor.of_bytes("text", [b"x"] * 10)], [RequestedOutput("scores", binary=binary)])
    assert replace(CODEC, max_reply_bytes=most).call_of(function(), asked, NOW_S).outputs == ("scores",)
    with pytest.raises(BodyTooLarge, match="send fewer rows, or do not ask for 'scores'"):
        replace(CODEC, max_reply_bytes=most - 1).call_of(function(), asked, NOW_S)


@pytest.mark.security
def test_a_caller_may_claim_no_more_than_its_token() -> None:
    plain = Caller("ask", "10.0.0.1", shares=Shares(row_class="bulk", priority=0))
    assert CODEC.call_of(function(), texts(b"x"), NOW_S, plain).row_class == "bulk"
    assert CODEC.call_of(function(), texts(b"x", timeout=1), NOW_S, plain).row_class == "bulk"
    for said in ({"ml_udf_class": "interactive"}, {"priority": 1}, {"priority": 7}):
        with pytest.raises(Forbidden):
            CODEC.call_of(function(), texts(b"x", **said), NOW_S, plain)
    some = Caller("ask", "10.0.0.1", shares=Shares(priority=5))
    assert CODEC.call_of(function(), texts(b"x", priority=5), NOW_S, some).priority > 0
    with pytest.raises(Forbidden, match="less than 5"):
        CODEC.call_of(function(), texts(b"x", priority=4), NOW_S, some)


def test_outputs_come_in_the_order_asked_for() -> None:
    asked = InferRequest([], [RequestedOutput(name) for name in ("answered_by", "label", "error")])
    response = CODEC.response_of(
        reply("laksa", "", errors={1: RowError(1, "input_not_found", "gone")}), asked
    )
    assert [(t.name, t.data) for t in response.outputs] == [
        ("answered_by", [b"net", b"net"]),
        ("label", [b"laksa", b""]),
        ("error", [b"", b"input_not_found: gone"]),
    ]


def test_without_wishes_label_and_confidence_come_and_scores_where_they_are_asked_for() -> None:
    scores = struct.pack("<3f", 0.25, 0.5, 0.25)
    response = CODEC.response_of(reply("pizza", scores=scores), InferRequest([]))
    assert [(t.name, t.datatype, t.shape) for t in response.outputs] == [
        ("label", "BYTES", (1,)),
        ("confidence", "FP32", (1,)),
    ]
    asked = InferRequest([], [RequestedOutput("scores")])
    (tensor,) = CODEC.response_of(reply("pizza", scores=scores), asked).outputs
    assert (tensor.shape, tensor.numbers()) == ((1, len(CLASSES)), [0.25, 0.5, 0.25])


def test_a_row_at_fault_fails_the_request_that_did_not_ask_for_errors() -> None:
    errors = {2: RowError(2, "input_forbidden", "outside"), 1: RowError(1, "input_not_found", "gone")}
    with pytest.raises(BadInput, match=r"row 1: gone \(2 rows at fault\)") as caught:
        CODEC.response_of(reply("a", "", "", errors=errors), InferRequest([]))
    assert caught.value.wire_text.startswith("input_not_found: ")


def test_a_default_answer_says_that_it_is_one() -> None:
    asked = InferRequest([], [RequestedOutput("answered_by")])
    response = CODEC.response_of(reply("laksa", "none", defaulted={1}), asked)
    assert response.outputs[0].data == [b"net", b"default"]


def test_an_answer_says_what_is_expected_of_it_and_what_it_took() -> None:
    two = reply(
        "laksa",
        "pizza",
        "none",
        "",
        function=fitted(max_batch=32),
        answered_by=[(0, 1, "fast"), (1, 4, "fast,slow")],
        defaulted={2},
        errors={3: RowError(3, "input_not_found", "gone")},
    )
    names = ("expected_accuracy", "device_seconds", "error")
    expected, taken_s, _ = CODEC.response_of(two, texts_asking(*names)).outputs
    assert (expected.datatype, expected.numbers()) == ("FP64", [0.7, 0.95, -1, -1])
    assert taken_s.numbers() == pytest.approx([0.001, 0.011, 0.011, 0.011])


def test_of_a_vote_nothing_is_expected_but_of_one_member_alone() -> None:
    voted = reply(
        "laksa",
        "pizza",
        function=fitted(combine="majority_vote"),
        answered_by=[(0, 1, "fast"), (1, 2, "fast,slow")],
    )
    (expected,) = CODEC.response_of(voted, texts_asking("expected_accuracy")).outputs
    assert expected.numbers() == [0.75, -1]


def texts_asking(*outputs: str) -> InferRequest:
    return InferRequest([Tensor.of_bytes("text", [b"x"])], [RequestedOutput(name) for name in outputs])


@pytest.mark.parametrize(
    ("output", "error"),
    [
        (RequestedOutput("boxes"), BadOption),
        (RequestedOutput("label", None, {"classification": 3}), Unsupported),
        (RequestedOutput("label", None, {"shared_memory_region": "r"}), Unsupported),
    ],
)
def test_an_output_that_there_is_not_is_refused(output: RequestedOutput, error: type[ServiceError]) -> None:
    with pytest.raises(error):
        CODEC.call_of(function(), InferRequest([Tensor.of_bytes("text", [b"x"])], [output]), NOW_S)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
TENSOR = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["text", "image_path", "pixels"]) | JSON,
        "datatype": st.sampled_from(["BYTES", "FP32", "INT8"]) | JSON,
        "shape": st.lists(st.integers(-2, 3), max_size=3) | JSON,
        "data": JSON,
        "parameters": st.dictionaries(st.sampled_from(["binary_data_size", "x"]), JSON) | JSON,
    },
)
PARAMETERS = st.dictionaries(
    st.sampled_from(["timeout", "priority", "ml_udf_deadline_ms", "ml_udf_slo_ms", "ml_udf_min_accuracy"])
    | st.sampled_from(["ml_udf_class", "sequence_id", "binary_data_output"])
    | st.text(max_size=3),
    JSON,
)
REQUEST = st.fixed_dictionaries(
    {},
    optional={
        "id": JSON,
        "inputs": st.lists(TENSOR, max_size=2) | JSON,
        "outputs": st.lists(st.fixed_dictionaries({"name": st.sampled_from(["label"]) | JSON}), max_size=2)
        | JSON,
        "parameters": PARAMETERS | JSON,
    },
)


@settings(max_examples=300, deadline=None)
@given(REQUEST)
def test_whatever_json_comes_is_a_call_or_refused_with_a_reason(body: dict[str, Any]) -> None:
    with contextlib.suppress(WireError, ServiceError):
        CODEC.call_of(function(), decode_request(json.dumps(body).encode(), None), NOW_S)


@pytest.mark.security
def test_what_members_say_is_within_the_limit_of_a_reply_though_ids_are_short() -> None:
    two = function(text_model("fast"), text_model("slow"), combine="mean")
    said = len(CLASSES) * 4 * 2  # bytes of a row
    asked = texts(*[b"x"] * 10)
    asked.outputs = [RequestedOutput("label"), RequestedOutput("prediction")]
    assert replace(CODEC, max_reply_bytes=10 * said).call_of(two, asked, NOW_S).with_members
    with pytest.raises(BodyTooLarge, match="send fewer rows, or do not ask for 'prediction'"):
        replace(CODEC, max_reply_bytes=10 * said - 1).call_of(two, asked, NOW_S)
    asked.outputs.pop()
    assert not replace(CODEC, max_reply_bytes=1).call_of(two, asked, NOW_S).with_members


def test_what_members_say_is_not_kept_where_no_label_could_be_given() -> None:
    asked = texts(b"x")
    asked.outputs = [RequestedOutput("prediction")]
    call = replace(CODEC, max_reply_bytes=1).call_of(function(bare=True), asked, NOW_S)
    assert not call.with_members


def test_texts_that_are_longer_than_a_reply_may_be_are_refused() -> None:
    long = reply("x" * 600, "y" * 600)
    codec = replace(CODEC, max_reply_bytes=1000)
    with pytest.raises(BodyTooLarge, match=r"the label of 2 rows are 1200 characters.*send fewer rows"):
        codec.response_of(long, texts_asking("label"))
    assert codec.response_of(long, texts_asking("confidence")).outputs[0].shape == (2,)
    assert CODEC.response_of(long, texts_asking("label")).outputs[0].shape == (2,)
