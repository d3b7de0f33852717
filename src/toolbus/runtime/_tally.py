"""The numbers of each tool and model, counted from what is published. Bounded in names, and in bytes for each name.

Knows the bus, its events, and the providers of a request. Must not know sessions.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..bus import EventBus
from ..events import (
    Event,
    HistoryCompressed,
    ModelResponded,
    ModelRetrying,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallRetrying,
)
from ..messages import Usage

_Spent: TypeAlias = ModelResponded | ModelRetrying | HistoryCompressed
_MAX_NAMES = 1_000
_OTHERS = "(others)"
_MAYBE_NO_TOOL = ("unknown_tool", "limit", "cancelled")
# A duration is kept as a power of this number, so that a quantile is off by 5 % at most.
_GROWTH = 1.1
_MIN_SECONDS = 1e-4  # seconds; 218 different powers lie between this and the next one
_MAX_SECONDS = 1e5


@dataclass(slots=True, frozen=True)
class ToolStatistics:
    """The calls of one tool that were settled. `outcomes` counts them: "completed", or the reason of the failure.

    `retries` counts attempts after the first one. `p50_seconds`, `p95_seconds` and `p99_seconds` are quantiles of the
    time from the beginning of a handler until its call was settled, correct to 5 %; 0 before the first.
    """

    calls: int
    outcomes: Mapping[str, int]
    retries: int
    p50_seconds: float
    p95_seconds: float
    p99_seconds: float


@dataclass(slots=True, frozen=True)
class ModelStatistics:
    """The replies of one model. `retries` counts how often it was asked again, or instead of a model that had failed.

    `usage` is the sum of the replies' tokens, and `cost` that of their costs, by the requests' `prices`. Both include
    what `calls` does not count: summaries of a history, and replies that were interrupted or could not be used.
    """

    calls: int
    retries: int
    usage: Usage
    cost: float


class _Quantiles:
    """A histogram of durations whose boundaries grow by `_GROWTH`."""

    def __init__(self) -> None:
        self._counts = Counter[int]()

    def add(self, seconds: float) -> None:
        power = math.floor(math.log(min(max(seconds, _MIN_SECONDS), _MAX_SECONDS), _GROWTH))
        self._counts[power] += 1

    def at(self, quantile: float) -> float:
        """Return a duration that this part of all durations does not exceed."""
        rest = quantile * self._counts.total()
        for power in sorted(self._counts):
            rest -= self._counts[power]
            if rest <= 0:
                return _GROWTH ** (power + 0.5)
        return 0.0


class _OfTool:
    def __init__(self) -> None:
        self.outcomes = Counter[str]()
        self.retries = 0
        self.durations = _Quantiles()

    def statistics(self) -> ToolStatistics:
        p50, p95, p99 = map(self.durations.at, (0.5, 0.95, 0.99))
        return ToolStatistics(self.outcomes.total(), dict(self.outcomes), self.retries, p50, p95, p99)


class _OfModel:
    def __init__(self) -> None:
        self.calls = self.retries = 0
        self.usage = Usage()
        self.cost = 0.0

    def statistics(self) -> ModelStatistics:
        return ModelStatistics(self.calls, self.retries, self.usage, self.cost)


class Tally:
    """A receiver that counts tool calls and model calls by name. Names beyond 1,000 are counted as "(others)"."""

    KINDS: tuple[type[Event], ...] = (
        ToolCallCompleted,
        ToolCallFailed,
        ToolCallRetrying,
        ModelResponded,
        ModelRetrying,
        HistoryCompressed,
    )

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus
        self._tools: dict[str, _OfTool] = {}
        self._models: dict[str, _OfModel] = {}

    def __call__(self, event: Event) -> None:
        """Count one event of `KINDS`."""
        match event:
            case ToolCallCompleted():
                self._settled(event.name, "completed", event.duration_seconds)
            case ToolCallFailed():
                # The model may have made up the name, if the call was refused before anybody looked for the tool.
                is_checked = event.reason not in _MAYBE_NO_TOOL or event.duration_seconds > 0
                name = event.name if is_checked or event.name in self._tools else _OTHERS
                self._settled(name, event.reason, event.duration_seconds)
            case ToolCallRetrying():
                self._tool(event.name).retries += 1
            case ModelResponded() if not event.message.interrupted:
                self._spend(event).calls += 1
            case ModelResponded() | HistoryCompressed():
                if event.usage != Usage():
                    self._spend(event)
            case _:
                assert isinstance(event, ModelRetrying)
                if event.usage != Usage():
                    self._spend(event)
                providers = self._providers(event)[event.provider_index :]
                if event.provider_index == 0 and event.vendor:
                    # It is the one that has failed, which `provider_for_round` may have chosen.
                    self._model(self._name_of(event)).retries += 1
                elif providers:
                    self._model(_name(providers[0])).retries += 1

    def tools(self) -> Mapping[str, ToolStatistics]:
        """Return the numbers of each tool."""
        return {name: each.statistics() for name, each in [*self._tools.items()]}

    def models(self) -> Mapping[str, ModelStatistics]:
        """Return the numbers of each model, by "VENDOR:MODEL"."""
        return {name: each.statistics() for name, each in [*self._models.items()]}

    def _settled(self, name: str, outcome: str, seconds: float) -> None:
        tool = self._tool(name)
        tool.outcomes[outcome] += 1
        if seconds > 0:  # A call that was refused has none.
            tool.durations.add(seconds)

    def _tool(self, name: str) -> _OfTool:
        if name not in self._tools and len(self._tools) >= _MAX_NAMES:
            name = _OTHERS
        return self._tools.setdefault(name, _OfTool())

    def _model(self, name: str) -> _OfModel:
        if name not in self._models and len(self._models) >= _MAX_NAMES:
            name = _OTHERS
        return self._models.setdefault(name, _OfModel())

    def _spend(self, event: _Spent) -> _OfModel:
        model = self._model(self._name_of(event))
        model.usage += event.usage
        model.cost += event.cost or 0.0
        return model

    def _providers(self, event: Event) -> Any:
        return getattr(self._bus.arbitration.view(event.request_id), "providers", ())

    def _name_of(self, event: _Spent) -> str:
        """Return the name under which the model was asked: a reply may name a version of it.

        The longest such name counts, because another model's name may begin with it.
        """
        given = f"{event.vendor}:{event.model}"
        names = [_name(each) for each in self._providers(event) if getattr(each, "model", "")]
        return max((each for each in names if given.startswith(each)), key=len, default=given)


def _name(provider: Any) -> str:
    return f"{provider.vendor}:{getattr(provider, 'model', '') or ''}"
