"""Makes docs/reference/grafana-dashboard.json from this list of panels. Run as a program, it writes the file anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "grafana-dashboard.json"
WIDTH, HEIGHT, ACROSS = 8, 8, 3


def rate(metric: str, by: str = "") -> str:
    return f"sum {f'by ({by}) ' if by else ''}(rate({metric}[$__rate_interval]))"


def quantile(number: float, metric: str, by: str = "") -> str:
    return (
        f"histogram_quantile({number}, sum by (le{f', {by}' if by else ''}) (rate({metric}_bucket[$__rate_interval])))"
    )


MODEL, TOOL, ERROR = "gen_ai_response_model", "gen_ai_tool_name", "error_type"

# The title of each panel, its unit, and the query and the legend of each line.
PANELS: list[tuple[str, str, list[tuple[str, str]]]] = [
    (
        "Requests",
        "short",
        [
            ("sum(toolbus_requests_running)", "running"),
            ("sum(toolbus_requests_waiting)", "waiting for people"),
            ("sum(toolbus_requests_queued)", "queued"),
            (rate("toolbus_requests_refused_total"), "refused per second"),
        ],
    ),
    (
        "Requests by outcome",
        "reqps",
        [
            (
                rate("gen_ai_invoke_agent_duration_seconds_count", "toolbus_request_outcome"),
                "{{toolbus_request_outcome}}",
            )
        ],
    ),
    (
        "Duration of requests",
        "s",
        [(quantile(each, "gen_ai_invoke_agent_duration_seconds"), f"p{each:.0%}"[:-1]) for each in (0.5, 0.95)],
    ),
    (
        "Duration of model calls, p95",
        "s",
        [(quantile(0.95, "gen_ai_client_operation_duration_seconds", MODEL), f"{{{{{MODEL}}}}}")],
    ),
    ("Tokens per second", "short", [(rate("gen_ai_client_token_usage_sum", f"{MODEL}, gen_ai_token_type"), "")]),
    ("Cost per hour", "short", [(f"3600 * {rate('toolbus_model_cost_total', MODEL)}", f"{{{{{MODEL}}}}}")]),
    ("Model calls that are made again", "short", [(rate("toolbus_model_retries_total", ERROR), f"{{{{{ERROR}}}}}")]),
    ("Tool calls by reason of failure", "short", [(rate("toolbus_tool_calls_total", f"{TOOL}, {ERROR}"), "")]),
    (
        "Duration of tools, p95",
        "s",
        [(quantile(0.95, "gen_ai_execute_tool_duration_seconds", TOOL), f"{{{{{TOOL}}}}}")],
    ),
    (
        "Questions to people",
        "short",
        [
            ("sum(toolbus_approvals_pending)", "waiting"),
            ("sum(toolbus_approvals_overdue)", "overdue"),
        ],
    ),
    (
        "Stuck",
        "short",
        [
            ("sum(toolbus_tool_overdue)", "cancelled handlers that still run"),
            (rate("toolbus_loop_blocked_seconds_total"), "event loop blocked, seconds per second"),
            (rate("toolbus_subscriptions_full_total"), "subscriptions that overflow"),
            ("max(toolbus_subscriptions_lag)", "events that the slowest reader has still to take"),
        ],
    ),
    (
        "Journal",
        "short",
        [
            (rate("toolbus_journal_appends_total"), "steps per second"),
            (rate("toolbus_journal_failures_total"), "refused per second"),
            ("sum(toolbus_store_unavailable)", "processes whose store is away"),
        ],
    ),
    (
        "Time that the store takes for a step, mean",
        "s",
        [
            (
                f"{rate('toolbus_journal_append_time_seconds_total')} / {rate('toolbus_journal_appends_total')}",
                "mean",
            )
        ],
    ),
    (
        "Leases",
        "short",
        [
            ("sum(toolbus_leases)", "held"),
            (rate("toolbus_leases_lost_total"), "lost per second"),
        ],
    ),
    (
        "Late and lost",
        "short",
        [
            (rate("toolbus_tool_late_results_total"), "late results"),
            (rate("toolbus_dead_letters_total"), "dead letters"),
            (rate("toolbus_requests_resumed_total"), "requests resumed"),
        ],
    ),
]


def dashboard() -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${source}"}
    panels: list[Any] = [
        {
            "id": number + 1,
            "title": title,
            "type": "timeseries",
            "datasource": source,
            "gridPos": {
                "x": number % ACROSS * WIDTH,
                "y": number // ACROSS * HEIGHT,
                "w": WIDTH,
                "h": HEIGHT,
            },
            "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
            "targets": [
                {"refId": chr(65 + index), "datasource": source, "expr": query, "legendFormat": legend or "__auto"}
                for index, (query, legend) in enumerate(lines)
            ],
        }
        for number, (title, unit, lines) in enumerate(PANELS)
    ]
    return {
        "title": "toolbus",
        "uid": "toolbus",
        "tags": ["toolbus"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [{"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"}]
        },
        "panels": panels,
    }


def written() -> str:
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    PAGE.write_text(written(), encoding="utf-8")
