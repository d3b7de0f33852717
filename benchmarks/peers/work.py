"""The same work in one other runtime, in a process of its own: `python work.py NAME`.

The process prints one line of JSON once it is ready, {"version": ..., "python": ...}. For each line "REQUESTS WIDTH"
that it reads, it runs so many requests, WIDTH at once, and prints the CPU time of its process (all threads) per request
in microseconds. One request is ROUNDS rounds of CALLS tool calls, then a text; the model is a function that answers at
once.

This file knows nothing of toolbus and is not imported, because each runtime is installed in an environment of its own.
It has no `from __future__ import annotations`, since two of the runtimes read the annotations of local classes.
"""
# pyright: basic, reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
# ruff: noqa: A002, ARG002 -- parameters have the names that each runtime requires

import asyncio
import gc
import importlib.metadata
import json
import os
import platform
import sys
import time
from dataclasses import dataclass

ROUNDS, CALLS = 3, 2


async def lookup(city: str, n: int) -> dict:
    """Look a city up."""
    return {"ok": True, "city": city, "n": n}


def plan(round_no):
    """The calls of a round: id, tool, arguments."""
    return [(f"call_{round_no}_{i}", "lookup", {"city": "Paris", "n": i}) for i in range(CALLS)]


def make_raw():
    """A loop by hand without any precautions: no validation, no time-outs, no handling of errors. Needs only Python."""
    tools = {"lookup": lookup}

    async def model(messages):
        done = sum(message["role"] == "assistant" for message in messages)
        if done == ROUNDS:
            return {"role": "assistant", "content": "done"}
        calls = [
            {"id": i, "type": "function", "function": {"name": n, "arguments": json.dumps(a)}} for i, n, a in plan(done)
        ]
        return {"role": "assistant", "content": None, "tool_calls": calls}

    async def run(call):
        result = await tools[call["function"]["name"]](**json.loads(call["function"]["arguments"]))
        return {"role": "tool", "tool_call_id": call["id"], "content": json.dumps(result)}

    async def one():
        messages = [{"role": "user", "content": "go"}]
        while True:
            message = await model(messages)
            messages.append(message)
            if not message.get("tool_calls"):
                return message["content"]
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(run(call)) for call in message["tool_calls"]]
            messages.extend(task.result() for task in tasks)

    return one


def make_pydantic_ai():
    """Set up an `Agent` with a `FunctionModel`."""
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    def model(messages, _info):
        done = sum(isinstance(message, ModelResponse) for message in messages)
        if done < ROUNDS:
            return ModelResponse(parts=[ToolCallPart(n, a, tool_call_id=i) for i, n, a in plan(done)])
        return ModelResponse(parts=[TextPart("done")])

    agent = Agent(FunctionModel(model), tools=[lookup])

    async def one():
        return (await agent.run("go")).output

    return one


def make_openai_agents():
    """Set up an `Agent` with a `Model` of its own, and without tracing."""
    from agents import Agent, RunConfig, Runner, function_tool, set_tracing_disabled
    from agents.items import ModelResponse
    from agents.models.interface import Model
    from agents.usage import Usage
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

    set_tracing_disabled(True)

    class Fake(Model):
        async def get_response(self, system_instructions, input, *_args, **_options):
            items = input if isinstance(input, list) else []
            calls = [item for item in items if isinstance(item, dict) and item.get("type") == "function_call"]
            done = len(calls) // CALLS
            if done < ROUNDS:
                output = [
                    ResponseFunctionToolCall(type="function_call", call_id=i, name=n, arguments=json.dumps(a))
                    for i, n, a in plan(done)
                ]
            else:
                text = ResponseOutputText(type="output_text", text="done", annotations=[])
                output = [
                    ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])
                ]
            return ModelResponse(output=output, usage=Usage(), response_id=None)

        def stream_response(self, *_args, **_options):
            raise NotImplementedError

    agent = Agent(name="a", model=Fake(), tools=[function_tool(lookup)])

    async def one():
        return (await Runner.run(agent, "go", run_config=RunConfig(tracing_disabled=True))).final_output

    return one


def make_langgraph():
    """Set up a `StateGraph` of a model and a `ToolNode`, without a checkpointer."""
    from langchain_core.messages import AIMessage
    from langchain_core.tools import tool
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition

    async def model(state):
        done = sum(isinstance(message, AIMessage) for message in state["messages"])
        if done == ROUNDS:
            return {"messages": [AIMessage(content="done")]}
        calls = [{"id": i, "name": n, "args": a} for i, n, a in plan(done)]
        return {"messages": [AIMessage(content="", tool_calls=calls)]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", model)
    graph.add_node("tools", ToolNode([tool(lookup)]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    app = graph.compile()

    async def one():
        return (await app.ainvoke({"messages": [("user", "go")]}))["messages"][-1].content

    return one


def make_llama_index_workflows():
    """Set up a `Workflow` of three steps, with an event for each call."""
    from workflows import Context, Workflow, step
    from workflows.events import Event, StartEvent, StopEvent

    class Ask(Event):
        messages: list

    class Requested(Event):
        call_id: str
        name: str
        args: dict

    class Completed(Event):
        call_id: str
        content: str

    class Loop(Workflow):
        @step
        async def begin(self, ctx: Context, ev: StartEvent) -> Ask:
            return Ask(messages=[{"role": "user", "content": "go"}])

        @step
        async def model(self, ctx: Context, ev: Ask) -> Requested | StopEvent | None:
            done = sum(message["role"] == "assistant" for message in ev.messages)
            if done == ROUNDS:
                return StopEvent(result="done")
            calls = plan(done)
            await ctx.store.set("messages", [*ev.messages, {"role": "assistant", "tool_calls": calls}])
            for i, n, a in calls:
                ctx.send_event(Requested(call_id=i, name=n, args=a))
            return None

        @step(num_workers=8)
        async def tool(self, ctx: Context, ev: Requested) -> Completed:
            return Completed(call_id=ev.call_id, content=json.dumps(await lookup(**ev.args)))

        @step
        async def collect(self, ctx: Context, ev: Completed) -> Ask | None:
            results = ctx.collect_events(ev, [Completed] * CALLS)
            if results is None:
                return None
            answers = [{"role": "tool", "tool_call_id": each.call_id, "content": each.content} for each in results]
            return Ask(messages=[*await ctx.store.get("messages"), *answers])

    loop = Loop(timeout=None)

    async def one():
        return await loop.run()

    return one


# The four messages between autogen-core's agents.
@dataclass
class CoreAsk:
    text: str


@dataclass
class CoreAnswer:
    text: str


@dataclass
class CoreCall:
    call_id: str
    name: str
    args: str


@dataclass
class CoreResult:
    call_id: str
    content: str


def make_autogen_core():
    """Set up two agents and messages between them, since the runtime has no loop of its own."""
    from autogen_core import AgentId, MessageContext, RoutedAgent, SingleThreadedAgentRuntime, message_handler

    class ToolAgent(RoutedAgent):
        def __init__(self):
            super().__init__("t")

        @message_handler
        async def run(self, message: CoreCall, ctx: MessageContext) -> CoreResult:
            return CoreResult(message.call_id, json.dumps(await lookup(**json.loads(message.args))))

    class Session(RoutedAgent):
        def __init__(self):
            super().__init__("s")

        @message_handler
        async def run(self, message: CoreAsk, ctx: MessageContext) -> CoreAnswer:
            messages = [{"role": "user", "content": message.text}]
            for round_no in range(ROUNDS):
                asked = [
                    self.send_message(CoreCall(i, n, json.dumps(a)), AgentId("tool", "t")) for i, n, a in plan(round_no)
                ]
                messages += [{"role": "tool", "content": each.content} for each in await asyncio.gather(*asked)]
            return CoreAnswer("done")

    runtime = SingleThreadedAgentRuntime()
    sessions = 0

    async def start():
        await ToolAgent.register(runtime, "tool", ToolAgent)
        await Session.register(runtime, "session", Session)
        runtime.start()

    async def one():
        nonlocal sessions
        if not sessions:  # `main` runs the first request by itself
            await start()
        sessions += 1
        return (await runtime.send_message(CoreAsk("go"), AgentId("session", f"s{sessions}"))).text

    return one


def make_bubus():
    """Set up an event for each call on its bus, since it has no loop. It refuses more than 100 pending events."""
    import logging

    logging.disable(logging.CRITICAL)
    from bubus import BaseEvent, EventBus

    class ToolCallRequested(BaseEvent[dict]):
        call_id: str
        name: str
        args: dict

    buses = []

    async def handler(event: ToolCallRequested) -> dict:
        return await lookup(**event.args)

    async def one():
        if not buses:
            buses.append(EventBus(name="Bench", max_history_size=50))
            buses[0].on(ToolCallRequested, handler)
        messages = []
        for round_no in range(ROUNDS):
            events = [buses[0].dispatch(ToolCallRequested(call_id=i, name=n, args=a)) for i, n, a in plan(round_no)]
            for event in events:
                await event
                messages.append(json.dumps(await event.event_result()))
        return "done"

    return one


MAKERS = {name[5:].replace("_", "-"): made for name, made in globals().items() if name.startswith("make_")}
PACKAGES = {"pydantic-ai": "pydantic-ai-slim"}


async def flights(one, requests, width):
    """Run so many requests, `width` at once."""
    while requests > 0:
        answers = await asyncio.gather(*[one() for _ in range(min(width, requests))])
        if answers != ["done"] * len(answers):
            raise RuntimeError(f"the answers are wrong: {answers}")
        requests -= width


async def main(name, answers):
    """Answer the lines of standard input."""
    one = MAKERS[name]()
    for _ in range(3):
        await flights(one, 1, 1)
    version = "" if name == "raw" else importlib.metadata.version(PACKAGES.get(name) or name)
    print(json.dumps({"version": version, "python": platform.python_version()}), file=answers, flush=True)
    for line in sys.stdin:
        requests, width = map(int, line.split())
        gc.collect()
        started = time.process_time()
        await flights(one, requests, width)
        print(json.dumps((time.process_time() - started) / requests * 1e6), file=answers, flush=True)
    answers.flush()
    os._exit(0)  # this ends runtimes that would run for ever


if __name__ == "__main__":
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the output of a runtime must not be mistaken for an answer
    asyncio.run(main(sys.argv[1], output))
