"""What may come to a request: its limits and options, replies of models, results, and what people decide and say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from turn_driver import TOOLS, call

from toolbus.core.approval import ApprovalPolicy
from toolbus.core.history import Shape
from toolbus.core.limits import Limits
from toolbus.core.output import OutputType
from toolbus.core.prices import Price
from toolbus.core.read_result import READ_RESULT
from toolbus.errors import InvalidArguments
from toolbus.events import Spent
from toolbus.messages import AssistantMessage, Message, SystemMessage, ToolCall, ToolMessage, Usage, UserMessage
from toolbus.protocols import Summary, ToolSpec
from toolbus.records import replace
from toolbus.toolsets.control import give_up, task_complete, update_plan

HISTORIES: list[list[Message]] = [
    [],
    [SystemMessage(text="Be brief.")],
    [
        UserMessage(content="earlier"),
        AssistantMessage(tool_calls=(ToolCall(name="clock", call_id="call_0"),)),
        ToolMessage(call_id="call_0", name="clock", content="noon"),
        AssistantMessage(text="noon"),
    ],
]


@dataclass
class City:
    name: str


def _nothing_bad(arguments: Mapping[str, Any]) -> None:
    if "bad" in arguments:
        raise InvalidArguments("$.bad: there is no such argument")


def _is_much(arguments: Mapping[str, Any]) -> bool:
    if arguments.get("n") == 0.1:
        raise ZeroDivisionError
    return bool(arguments)


OWN_TOOLS: Mapping[str, ToolSpec] = {
    **TOOLS,
    "pay": ToolSpec(name="pay", needs_approval=True, validate=_nothing_bad),
    "send": ToolSpec(name="send", needs_approval=_is_much),
    "step": ToolSpec(name="step", sequential=True, validate=_nothing_bad),
    "sign": ToolSpec(name="sign", sequential=True, needs_approval=True),
    "render": ToolSpec(name="render", background=True),
    "film": ToolSpec(name="film", background=True, needs_approval=True, timeout_seconds=5.0),
    "show": ToolSpec(name="show", return_direct=True),
    "hand_over": ToolSpec(name="hand_over", return_direct=True, needs_approval=True),
    **{each.spec.name: each.spec for each in (task_complete, give_up, update_plan)},
    READ_RESULT.name: READ_RESULT,
}
SEQUENTIAL = {"step", "sign"}
BACKGROUND = {"render", "film"}
DIRECT = {"show", "hand_over"}
CHANGED = {name: replace(spec, description="It is another one now.") for name, spec in OWN_TOOLS.items()}
OFFERS: list[Mapping[str, ToolSpec]] = [
    *[OWN_TOOLS] * 4,
    CHANGED,
    {name: OWN_TOOLS[name] for name in ("clock", "send", "sign", "task_complete")},
    {},
]
OUTPUTS: list[OutputType[Any] | None] = [None, None, OutputType(City), OutputType(list[int])]


def _in_order(spec: ToolSpec, _arguments: Mapping[str, Any]) -> bool:
    return spec.sequential


POLICIES: list[ApprovalPolicy | None] = [None, None, None, True, False, _in_order]

limits = st.builds(
    Limits,
    max_rounds=st.integers(1, 5),
    max_calls_per_round=st.integers(1, 5),
    max_tool_calls=st.sampled_from([1, 4, 20]),
    max_consecutive_errors=st.sampled_from([1, 4, 9]),
    max_repeats=st.sampled_from([1, 3, 9]),
    max_output_repairs=st.integers(1, 2),
    timeout_seconds=st.sampled_from([120.0, 120.0, 5.0, 0.3]),
    tool_timeout_seconds=st.sampled_from([2.0, 30.0, 0.1]),
    model_timeout_seconds=st.sampled_from([3, 60.0, 0.7]),
    approval_timeout_seconds=st.sampled_from([1.0, 3_600.0, 0.3]),
    background_timeout_seconds=st.sampled_from([1.0, 86_400.0]),
    max_input_tokens=st.sampled_from([5, *[1_000_000] * 3]),
    max_output_tokens=st.sampled_from([5, *[1_000_000] * 3]),
    max_cost=st.sampled_from([None, None, None, 2.0]),
    on_limit=st.sampled_from(["answer", "stop"]),
    on_failure=st.sampled_from([*["collect"] * 5, "fail_fast"]),
    stop_on=st.sampled_from([*[()] * 7, {"unknown_tool"}, {"timeout", "denied"}, {"limit", "cancelled"}]),
)
agreed = st.fixed_dictionaries(
    {
        "needs_approval": st.sampled_from(POLICIES),
        "output": st.sampled_from(OUTPUTS),
        "note_failures": st.booleans(),
        "providers": st.sampled_from([1, 1, 2]),
        "prices": st.sampled_from([None, *[{"*": Price(input_per_million=500_000, output_per_million=100_000)}] * 5]),
    }
)
arguments = st.sampled_from(
    [
        *["{}", "", '{"city":"Rome"}', '{"city": 1}', "{", '{"n": 0.1}', '{"a": "\ud800"}', '{"a":1,"a":1}'],
        *['{"n":1}', '{"n":2}', '{"city":"Paris"}'] * 4,
        '{"bad":1}',
    ]
)
controls = st.sampled_from(
    [
        *[call("update_plan", '{"steps":[{"text":"look"}]}'), call("update_plan", '{"steps":[]}')],
        *[call("update_plan", '{"steps":[{"text":"look","status":"done"},{"text":"tell"}]}')] * 2,
        *[call("task_complete", '{"answer":"noon"}'), call("task_complete", '{"answer":"[1]"}')],
        *[call("give_up", '{"reason":"too hard"}'), call("give_up", "{}")],
        *[call("read_result", '{"call_id":"r_0_0"}'), call("read_result", '{"call_id":"call_0","offset":2}')],
        *[call("final_answer", '{"name":"Rome"}'), call("final_answer", '{"value":[1]}'), call("final_answer")],
    ]
)
tools = st.builds(
    call,
    st.sampled_from(
        [
            "clock",
            "weather",
            *["pay", "send"] * 2,
            *["step", "sign"] * 3,
            *["render", "film"] * 2,
            *["show", "hand_over"] * 2,
            "nothing",
            "to\ud800rn",
        ],
    ),
    arguments,
    st.sampled_from(["", "x", "call_0"]),
)
tool_calls = st.one_of(*[tools] * 6, controls)
replies = st.one_of(*[st.lists(tool_calls, min_size=2, max_size=5)] * 4, st.lists(tool_calls, max_size=1))
# What models write is cleaned; what people say comes clean.
texts = st.sampled_from(["", " ", "noon", "ü \ud83d", '{"name":"Rome"}', "Here:\n```json\n[1, 2]\n```"])
sentences = st.sampled_from(["", "\n", "In Rome.", "ü"])
usages = st.builds(Usage, input_tokens=st.integers(0, 3), output_tokens=st.integers(0, 3))
shapes = st.builds(
    Shape,
    before_tokens=st.just(900),
    after_tokens=st.integers(0, 900),
    results_shortened=st.integers(0, 3),
    turns_omitted=st.integers(0, 3),
    summary=st.sampled_from(["", "In short.", "ü \ud83d"]),
)
summaries = st.builds(
    Summary,
    text=st.sampled_from(["", "In short.", "ü \ud83d"]),
    usage=st.builds(Usage, input_tokens=st.sampled_from([0, 1, 6])),
    model=st.sampled_from(["", "quick"]),
)
spents = st.none() | st.builds(Spent, usage=usages, tool_calls=st.integers(0, 2), cost=st.sampled_from([0.0, 1.5]))
seconds = st.sampled_from([0.0, 0.05, 0.1, 0.1, 1.0, 2.9, 31.0])
edits = st.sampled_from([None, None, {}, {"n": 2}, {"bad": 1}, {"city": 5}])
denials = st.sampled_from([{}, {}, {}, {0: "It is forbidden."}, {2: "It is forbidden."}])
cut_offs = st.lists(st.sampled_from(["", "", " \n", "{", '{"city": "Ro', "{}", '{"n":1}']), max_size=3)
