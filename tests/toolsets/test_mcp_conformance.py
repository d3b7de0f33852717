"""The client scenarios of the official conformance suite of MCP, on real sockets."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qsl, urljoin, urlsplit

import anyio
import httpx2
import orjson
import pytest
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.client.auth.extensions.identity_assertion import IdentityAssertionOAuthProvider
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl

from support import npm_servers
from support.conformance import Scenario, run_suite
from toolbus import Runtime
from toolbus.events import ApprovalRequested
from toolbus.testing import ScriptedProvider, calls, text
from toolbus.tools import ToolRegistry
from toolbus.toolsets.mcp import McpServer, McpTools, ask_people

REDIRECT = AnyUrl("http://127.0.0.1:3030/callback")
NO_PROVIDER = "the SDK has no provider for it; an application can pass an `httpx2.Auth` of its own"
NOT_APPLICABLE = {"auth/dpop": NO_PROVIDER, "auth/dpop-nonce": NO_PROVIDER, "auth/wif-jwt-bearer": NO_PROVIDER}
"""The scenarios that are not run, with the reasons."""
REFUSED = {
    "auth/iss-normalized": "Authorization response iss mismatch",
    "auth/iss-supported-missing": "Authorization response missing iss parameter",
    "auth/iss-unexpected": "Authorization response iss mismatch",
    "auth/iss-wrong-issuer": "Authorization response iss mismatch",
    "auth/metadata-issuer-mismatch": "Authorization server metadata issuer mismatch",
    "auth/resource-mismatch": "Protected resource https://evil.example.com/mcp does not match",
    "auth/scope-retry-limit": "the server refuses the new token",
}
"""The scenarios in which nobody may be signed in, with the beginning of the reason that the status gives."""
ARGUMENTS = {
    "web__add_numbers": {"a": 2, "b": 3},
    "web__json_schema_2020_12_tool": {"email": "ada@example.org"},
    "web__valid_tool": {"region": "eu"},
}


class User:
    """A user with a browser, whose tokens are kept in memory."""

    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None

    async def visit(self, url: str) -> None:
        async with httpx2.AsyncClient() as browser:
            response = await browser.get(url)
        self._given = dict(parse_qsl(urlsplit(response.headers["location"]).query))

    async def redirected(self) -> AuthorizationCodeResult:
        return AuthorizationCodeResult(**self._given)

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


async def auth_of(scenario: Scenario) -> httpx2.Auth | None:
    url, user = scenario.url, User()
    client_id, secret = scenario.given.get("client_id", ""), scenario.given.get("client_secret", "")
    match scenario.name:
        case "auth/client-credentials-basic":
            return ClientCredentialsOAuthProvider(url, user, client_id, secret)
        case "auth/client-credentials-jwt":
            key = scenario.given["private_key_pem"]
            signed = SignedJWTParameters(
                issuer=client_id, subject=client_id, signing_algorithm="ES256", signing_key=key
            )
            return PrivateKeyJWTOAuthProvider(url, user, client_id, signed.create_assertion_provider())
        case "auth/enterprise-managed-authorization":
            return await with_identity(scenario, user)
        case "auth/pre-registration":
            user.client = OAuthClientInformationFull(
                client_id=client_id,
                client_secret=secret,
                redirect_uris=[REDIRECT],
                token_endpoint_auth_method="client_secret_basic",
            )
        case name if not name.startswith("auth/"):
            return None
        case _:
            pass
    about = OAuthClientMetadata(client_name="toolbus", redirect_uris=[REDIRECT])
    document = "https://conformance-test.local/client-metadata.json"
    return OAuthClientProvider(url, about, user, user.visit, user.redirected, client_metadata_url=document)


async def with_identity(scenario: Scenario, user: User) -> httpx2.Auth:
    """Return the `Auth` of an employee, whom the identity provider of an enterprise has signed in already."""
    given = scenario.given
    async with httpx2.AsyncClient() as client:
        about = await client.get(urljoin(scenario.url, "/.well-known/oauth-protected-resource/mcp"))

    async def assertion(audience: str, resource: str) -> str:
        asked = {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "requested_token_type": "urn:ietf:params:oauth:token-type:id-jag",
            "audience": audience,
            "resource": resource,
            "subject_token": given["idp_id_token"],
            "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
            "client_id": given["idp_client_id"],
        }
        async with httpx2.AsyncClient() as client:
            response = await client.post(given["idp_token_endpoint"], data=asked)
        return response.json()["access_token"]

    (issuer,) = about.json()["authorization_servers"]
    return IdentityAssertionOAuthProvider(
        scenario.url,
        user,
        given["client_id"],
        given["client_secret"],
        issuer,
        assertion,
        token_endpoint_auth_method="client_secret_basic",
    )


def calls_of(scenario: Scenario, registry: ToolRegistry) -> list[tuple[str, dict[str, Any]]]:
    """Return calls of all tools of a scenario's server, with the arguments that it expects."""
    found = {each.name: dict[str, Any]() for each in registry}
    found |= {f"web__{each['name']}": each["arguments"] for each in scenario.given.get("toolCalls", [])}
    found |= {name: ARGUMENTS[name] for name in found.keys() & ARGUMENTS}
    kept = registry.get("web__json_schema_2020_12_tool")
    if kept is not None:
        found["web__json_schema_echo"] = {"schema": json.loads(orjson.dumps(kept.parameters, default=dict))}
    return list(found.items())


async def use(scenario: Scenario) -> str:
    """Call all tools of a scenario's server. Return why a call has failed, or why there are no tools."""
    server = McpServer(
        "web",
        url=scenario.url,
        auth=await auth_of(scenario),
        protocol="2026-07-28" if scenario.version == "2026-07-28" else "legacy",
        on_elicitation=ask_people,
    )
    async with McpTools([server]) as mcp:
        reason = mcp.status()[0].reason  # before it is tried again, which some scenarios refuse for another reason
        reply = [calls(*calls_of(scenario, mcp.registry)), text("Done.")] if mcp.registry.specs else [text("Done.")]
        async with Runtime(ScriptedProvider(reply), tools=mcp.registry) as runtime:

            def agree(question: ApprovalRequested) -> None:
                """Approve a call; answer a question with its defaults, and confirm what has none."""
                answer = {name: each is None or each for name, each in question.arguments.get("answer", {}).items()}
                edited = {**question.arguments, "answer": answer} if answer else None
                runtime.bus.publish(question.decided(approved=True, arguments=edited))

            runtime.bus.connect(ApprovalRequested, agree)
            result = await runtime.run("Go.")
        return " ".join([reason, *(each.error for each in result.tool_calls)]).strip()


# The suite does not say which authorization server knows the client.
@pytest.mark.filterwarnings("ignore:Omitting `issuer` is deprecated")
@pytest.mark.parametrize(
    ("options", "anyio_backend"),
    [
        (("--suite", "all"), "asyncio"),
        # Most of the same scenarios, with the newer protocol. `test_mcp_http` has both protocols on both event loops.
        (("--requirements", "2026-07-28"), "trio"),
    ],
    ids=["all", "2026-07-28"],
)
async def test_the_scenarios_of_the_conformance_suite_pass(options: tuple[str, str], anyio_backend: str):
    await anyio.to_thread.run_sync(npm_servers.installed)
    ended = dict[str, str]()

    async def client(scenario: Scenario) -> None:
        if scenario.name not in NOT_APPLICABLE:
            ended[scenario.name] = await use(scenario)

    failures = await run_suite(client, *options)
    assert {name: why for name, why in failures.items() if why and name not in NOT_APPLICABLE} == {}
    assert failures.keys() == ended.keys() | NOT_APPLICABLE
    refused = {name: why.partition("the sign-in failed: ")[2] for name, why in ended.items() if why}
    assert refused.keys() == REFUSED.keys(), ended
    assert all(why.startswith(REFUSED[name]) for name, why in refused.items()), refused
