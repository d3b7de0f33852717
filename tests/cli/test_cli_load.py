from __future__ import annotations

import sys
from pathlib import Path

import pytest
import scenes

from toolbus import Limits, Price
from toolbus.cli._load import load_limits, load_object, load_prices, load_provider, load_tools
from toolbus.errors import ConfigurationError, MissingExtra
from toolbus.providers.extractive import ExtractiveProvider

WORKSPACE = ["list_files", "search_text", "read_lines", "request_code_context"]
NO_TEXT = "class Odd(Exception):\n    def __str__(self): raise ValueError\nraise Odd"


def names(*sources: str) -> list[str]:
    return [each.name for each in load_tools(".", sources)]


def refused(*sources: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load_tools(".", sources)
    return str(caught.value)


@pytest.mark.usefixtures("folder")
class TestTools:
    def test_the_workspace_tools_come_first(self):
        assert names() == WORKSPACE
        assert names("scenes:add") == [*WORKSPACE, "add"]

    @pytest.mark.parametrize(
        ("source", "more"),
        [
            ("scenes:get_weather", ["get_weather"]),
            ("scenes:registry", ["get_weather"]),
            ("scenes:a_pair", ["add", "get_weather"]),
        ],
    )
    def test_a_tool_a_list_and_a_registry_are_taken(self, source: str, more: list[str]):
        assert names(source) == [*WORKSPACE, *more]

    def test_several_sources_are_taken_in_order(self):
        assert names("scenes:registry", "scenes:add")[4:] == ["get_weather", "add"]

    def test_the_current_directory_is_importable(self, folder: Path):
        (folder / "tools_that_stand_here.py").write_text("def look(): 'Look.'\n", encoding="utf-8")
        assert names("tools_that_stand_here:look")[-1] == "look"

    def test_a_current_directory_that_was_removed_is_no_obstacle(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        gone = folder / "gone"
        gone.mkdir()
        monkeypatch.chdir(gone)
        gone.rmdir()
        assert [each.name for each in load_tools(str(folder), ["scenes:add"])] == [*WORKSPACE, "add"]

    def test_a_nested_name_is_found(self):
        assert load_object("scenes:registry.specs", "--tools").keys() == {"get_weather"}

    @pytest.mark.parametrize("source", ["scenes:no_tools", "scenes:half", "scenes:Quiet", "scenes:__doc__"])
    def test_what_is_no_tool_is_refused_by_type(self, source: str):
        assert refused(source).startswith(f"--tools {source} is of type ")

    def test_a_name_that_is_taken_is_refused(self):
        assert "there is already a tool 'search_text'" in refused("scenes:also_search")

    def test_a_function_that_makes_no_tool_is_refused(self, folder: Path):
        code = "class C: ...\ndef f(x: C): 'F.'\ndef g(x: 'Nothing'): 'G.'\n"
        (folder / "odd_signature.py").write_text(code, encoding="utf-8")
        assert refused("odd_signature:f").startswith("--tools odd_signature:f: ")
        assert "name 'Nothing' is not defined" in refused("odd_signature:g")

    def test_an_object_that_can_be_called_is_taken_when_it_has_a_name(self):
        assert names("scenes:callable_object")[-1] == "callable_object"

    @pytest.mark.parametrize(
        ("source", "why"),
        [
            ("code_that_breaks:anything", "LookupError: no anything"),
            ("code_that_breaks_when_listed:tools", "ZeroDivisionError"),
        ],
    )
    def test_code_that_breaks_while_it_is_looked_at_is_reported_with_its_place(
        self, folder: Path, source: str, why: str
    ):
        (folder / "code_that_breaks.py").write_text(
            "def __getattr__(name): raise LookupError(f'no {name}')\n", encoding="utf-8"
        )
        (folder / "code_that_breaks_when_listed.py").write_text("tools = (1 / 0 for _ in 'x')\n", encoding="utf-8")
        reported = refused(source)
        assert reported.startswith(f"--tools {source}: {why}")
        assert f"{source.partition(':')[0]}.py:1)" in reported

    @pytest.mark.parametrize("source", ["scenes", "scenes:", ":add", ""])
    def test_what_is_no_reference_is_refused_with_the_form(self, source: str):
        assert "write MODULE:NAME" in refused(source)

    def test_a_misspelt_name_is_refused_with_the_nearest_one(self):
        assert refused("scenes:get_wether") == (
            "--tools scenes:get_wether: module 'scenes' has no 'get_wether'; is it 'get_weather'?"
        )
        assert refused("scenes:add.__call__.nothing") == (
            "--tools scenes:add.__call__.nothing: 'add.__call__' has no 'nothing'"
        )
        assert refused("scenes:add.nothing_like_it") == (
            "--tools scenes:add.nothing_like_it: 'add' has no 'nothing_like_it'"
        )
        assert refused("scenes:add.nothing_like_it.deeper.still") == (
            "--tools scenes:add.nothing_like_it.deeper.still: 'add' has no 'nothing_like_it'"
        )

    @pytest.mark.parametrize("module", ["no_such_module", "no_such_package.module"])
    def test_a_missing_module_is_refused_by_name(self, module: str):
        said = refused(f"{module}:x")
        assert f"there is no module {module.partition('.')[0]!r}" in said

    def test_a_module_that_needs_a_missing_one_is_refused_with_both_and_the_place(self, folder: Path):
        (folder / "needs_more.py").write_text("\nimport not_there_at_all\n", encoding="utf-8")
        said = refused("needs_more:x")
        assert "importing 'needs_more' failed: ModuleNotFoundError: No module named 'not_there_at_all'" in said
        assert "needs_more.py:2)" in said

    @pytest.mark.parametrize(
        ("code", "error"),
        [("1/0", "ZeroDivisionError"), ("raise SystemExit(3)", "SystemExit"), ("(", "SyntaxError"), (NO_TEXT, "Odd")],
    )
    def test_a_module_that_fails_is_refused_whatever_it_raises(self, folder: Path, code: str, error: str):
        name = f"fails_with_{error.lower()}"
        (folder / f"{name}.py").write_text(code, encoding="utf-8")
        assert f"importing {name!r} failed: {error}" in refused(f"{name}:x")

    def test_ctrl_c_while_a_module_is_imported_is_no_fault_of_the_module(self, folder: Path):
        (folder / "interrupts.py").write_text("raise KeyboardInterrupt", encoding="utf-8")
        with pytest.raises(KeyboardInterrupt):
            names("interrupts:x")

    @pytest.mark.parametrize(("path", "what"), [("nowhere", "does not exist"), ("limits.py", "is not a directory")])
    def test_a_bad_directory_is_refused(self, path: str, what: str):
        with pytest.raises(ConfigurationError, match=f"--dir {path} {what}"):
            load_tools(path, [])


@pytest.mark.usefixtures("folder")
class TestProviders:
    def test_with_nothing_named_the_embedded_one_answers_and_says_so(self):
        provider, name, remark = load_provider(None)
        assert isinstance(provider, ExtractiveProvider)
        assert name == "extractive"
        assert "not a language model" in remark
        assert "--provider openai:MODEL" in remark

    def test_the_environment_is_asked_before_that(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("TOOLBUS_PROVIDER", "scenes:scripted")
        assert load_provider(None)[1:] == ("scenes:scripted", "")

    def test_what_is_named_wins(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("TOOLBUS_PROVIDER", "scenes:scripted")
        assert load_provider("extractive")[1:] == ("extractive", "")

    def test_a_provider_of_the_users_is_an_object_a_class_or_a_function(self):
        assert isinstance(load_provider("scenes:Quiet")[0], scenes.Quiet)
        assert load_provider("scenes:scripted")[0].vendor == "scripted"
        ready = load_provider("scenes:ready")[0]
        assert ready is scenes.ready

    def test_one_of_the_users_may_stand_in_the_current_directory(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
        (folder / "model_that_stands_here.py").write_text("from scenes import Quiet\n", encoding="utf-8")
        assert isinstance(load_provider("model_that_stands_here:Quiet")[0], scenes.Quiet)

    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("nothing", "there is no provider 'nothing'"),
            ("nothing:x", "there is no provider 'nothing:x'"),
            ("gorq:x", "there is no provider 'gorq:x' (did you mean 'groq:x'?)"),
            ("groq:x", "set GROQ_API_KEY"),
            (".:x", "there is no provider '.:x'"),
            ("", "there is no provider ''"),
            ("openai", "names no model"),
            ("scenes:add", "--provider scenes:add could not be created: TypeError"),
            ("scenes:broken", "--provider scenes:broken could not be created: RuntimeError"),
            ("scenes:no_tools", "--provider scenes:no_tools is of type int, which is not a Provider"),
            ("openai:some-model", "OPENAI_API_KEY"),
        ],
    )
    def test_one_that_cannot_be_is_refused(self, name: str, said: str):
        with pytest.raises(ConfigurationError) as caught:
            load_provider(name)
        assert said in str(caught.value)

    @pytest.mark.parametrize(
        ("code", "error"), [("1/0", "ZeroDivisionError"), ("raise SystemExit(3)", "SystemExit"), ("(", "SyntaxError")]
    )
    def test_a_package_that_fails_is_refused_whatever_it_raises(self, folder: Path, code: str, error: str):
        name = f"package_that_fails_with_{error.lower()}"
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(code, encoding="utf-8")
        with pytest.raises(ConfigurationError, match=f"importing '{name}.models' failed: {error}"):
            load_provider(f"{name}.models:mine")

    def test_ctrl_c_while_its_package_is_imported_is_no_fault_of_the_package(self, folder: Path):
        (folder / "package_that_interrupts").mkdir()
        (folder / "package_that_interrupts" / "__init__.py").write_text("raise KeyboardInterrupt", encoding="utf-8")
        with pytest.raises(KeyboardInterrupt):
            load_provider("package_that_interrupts.models:mine")

    def test_one_that_exits_when_it_is_made_is_refused(self, folder: Path):
        (folder / "leaves.py").write_text("def model(): raise SystemExit(0)\n", encoding="utf-8")
        with pytest.raises(ConfigurationError, match="could not be created: SystemExit: 0"):
            load_provider("leaves:model")

    @pytest.mark.parametrize(
        ("variable", "value", "said"),
        [
            ("SSL_CERT_FILE", "/not/there", "SSL_CERT_FILE is '/not/there', and there is no such file"),
            ("ALL_PROXY", "bogus://localhost", "it reads HTTP_PROXY, HTTPS_PROXY, ALL_PROXY"),
        ],
    )
    def test_an_environment_that_no_client_can_be_made_in_is_refused(
        self, variable: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        monkeypatch.setenv(variable, value)
        with pytest.raises(ConfigurationError, match=said):
            load_provider("openai:some-model")

    def test_a_missing_extra_is_named(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setitem(__import__("sys").modules, "openai", None)
        with pytest.raises(MissingExtra, match=r"toolbus\[openai\]"):
            monkeypatch.setenv("OPENAI_API_KEY", "k")
            load_provider("openai:some-model")


class TestLimits:
    def test_they_are_the_defaults_and_what_was_given(self):
        limits = load_limits({"max_rounds": 2}, ["max_repeats = 7", "stream_idle_seconds=1.5", "on_limit=stop"])
        assert limits == Limits(max_rounds=2, max_repeats=7, stream_idle_seconds=1.5, on_limit="stop")

    def test_a_limit_of_the_cost_needs_the_models_price(self):
        assert load_prices(None, Limits()) is None
        assert load_prices((0.25, 2.0), Limits(max_cost=1)) == {
            "*": Price(input_per_million=0.25, output_per_million=2.0)
        }
        with pytest.raises(
            ConfigurationError, match=r"--limit max_cost=0\.5 needs the model's price: pass --price IN/OUT"
        ):
            load_prices(None, Limits(max_cost=0.5))

    def test_those_that_are_no_plain_number_can_be_given_too(self):
        limits = load_limits({}, ["stop_on=denied, unknown_tool", "max_cost=0.5"])
        assert limits == Limits(stop_on=frozenset({"denied", "unknown_tool"}), max_cost=0.5)

    @pytest.mark.parametrize(
        ("pair", "said"),
        [
            ("max_repeats", "write NAME=VALUE"),
            ("max_turns=3", "there is no limit max_turns (did you mean max_rounds?); the limits are max_rounds, "),
            ("max_repeat=3", "there is no limit max_repeat (did you mean max_repeats?); the limits are max_rounds, "),
            ("nothing=3", "there is no limit nothing; the limits are max_rounds, "),
            ("max_repeats=3.5", "'3.5' is not a whole number"),
            ("timeout_seconds=soon", "'soon' is not a number"),
            ("max_repeats=0", "max_repeats is 0"),
            ("timeout_seconds=nan", "timeout_seconds is nan"),
            ("on_limit=explode", "on_limit is 'explode'"),
            ("stop_on=explode", "stop_on has 'explode'"),
            ("max_cost=much", "'much' is not a number"),
        ],
    )
    def test_one_that_cannot_be_is_refused(self, pair: str, said: str):
        with pytest.raises(ConfigurationError) as caught:
            load_limits({}, [pair])
        assert said in str(caught.value)
