"""The objects that the command line names: providers, tools and limits.

This module knows where they come from, and runs only the modules that the user asked it to import. Every fault is a
`ConfigurationError` whose text is one line that says what to do.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from .._option_checks import no_option
from ..core.limits import Limits
from ..core.prices import Price
from ..errors import ConfigurationError, ToolbusError
from ..failures import line_of, words_of
from ..protocols import Provider
from ..providers import NAMED, choose_from_environment, no_provider, resolve
from ..tools import Tool, ToolRegistry
from ..toolsets.code_context import CodeIndex, code_context_tool
from ..toolsets.workspace import workspace_tools

_VENDORS = frozenset({*NAMED, "extractive"})
"""Names that always mean a provider of toolbus, and never a module of the user."""
_FALLBACK = "extractive"
_NO_MODEL = (
    "no model is named, so the built-in provider 'extractive' answers: it quotes files, and is not a language model.\n"
    "  For a model: set OPENAI_API_KEY or ANTHROPIC_API_KEY, or pass --provider openai:MODEL, anthropic:MODEL,\n"
    "  ollama:MODEL or that of another vendor."
)


# ------------------------------------------------------------------------------------------------ providers


def load_provider(name: str | None) -> tuple[Provider, str, str]:
    """Return the provider to ask, its name, and a remark for the user where nobody chose a provider.

    `name` takes precedence, then the environment, then the built-in provider. Raises `ConfigurationError`.
    """
    if name is None:
        chosen = choose_from_environment()
        if chosen is None:
            return resolve(_FALLBACK), _FALLBACK, _NO_MODEL
        name = chosen
    return _provider(name.strip()), name.strip(), ""


def is_vendor(name: str) -> bool:
    """Return whether toolbus has the named provider itself, so that no module of the user is imported for it."""
    return name.strip().partition(":")[0] in _VENDORS


def _provider(name: str) -> Provider:
    module = name.partition(":")[0]
    if module in _VENDORS:
        return _resolved(name)
    if ":" not in name or not _is_module(module):
        models = ", ".join(f"{each}:MODEL" for each in NAMED)
        raise ConfigurationError(
            f"{no_provider(name)}: pass {models}, extractive (not a language model: it quotes files), or "
            "MODULE:NAME of your own Provider"
        )
    found = load_object(name, "--provider")
    if inspect.isclass(found) or (callable(found) and not isinstance(found, Provider)):
        found = _called(name, cast("Callable[[], object]", found))
    if not isinstance(found, Provider):
        raise ConfigurationError(
            f"--provider {name} is of type {type(found).__name__}, which is not a Provider: it needs `vendor` and "
            "`respond`"
        )
    return found


def _resolved(name: str) -> Provider:
    certificates = os.environ.get("SSL_CERT_FILE", "")
    if certificates and not os.path.isfile(certificates):  # noqa: PTH113
        raise ConfigurationError(f"SSL_CERT_FILE is {certificates!r}, and there is no such file")
    try:
        return resolve(name)
    except ToolbusError:
        raise
    except Exception as exc:
        # The vendor's client raised it; the client reads the environment itself.
        variables = "HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, SSL_CERT_FILE and SSL_CERT_DIR"
        raise ConfigurationError(f"--provider {name} could not be created: {_said(exc)}; it reads {variables}") from exc


def _called(name: str, make: Callable[[], object]) -> object:
    try:
        return make()
    except (Exception, SystemExit) as exc:
        # The user's code raised it.
        raise ConfigurationError(f"--provider {name} could not be created: {_said(exc)}") from exc


def _is_module(name: str) -> bool:
    _make_importable()
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError, AttributeError):
        return False
    except KeyboardInterrupt:
        raise
    except BaseException:
        # The package that contains the module raised it; importing the module will report it.
        return True


# ------------------------------------------------------------------------------------------------ tools


def load_tools(directory: str, sources: Sequence[str]) -> ToolRegistry:
    """Return the workspace tools and code context for `directory`, and the tools that `sources` (MODULE:NAME) name.

    Raises `ConfigurationError`.
    """
    if not os.path.isdir(directory):  # noqa: PTH112 -- the path exactly as the user typed it
        what = "is not a directory" if os.path.exists(directory) else "does not exist"  # noqa: PTH110
        raise ConfigurationError(f"--dir {directory} {what}: name the directory with the files to ask about")
    registry = ToolRegistry(workspace_tools(directory))
    # Without a home folder there is no location for the index, and the tool is left out.
    with contextlib.suppress(ConfigurationError):
        registry.add(code_context_tool(CodeIndex(directory)))
    for source in sources:
        load_own_tools(source, "--tools", registry)
    return registry


def load_own_tools(source: str, option: str, registry: ToolRegistry) -> None:
    """Add the tools that `source` (MODULE:NAME), the value of `option`, names. Raises `ConfigurationError`."""
    for each in _tools_of(f"{option} {source}", load_object(source, option)):
        try:
            registry.add(each)
        except ConfigurationError as exc:
            raise ConfigurationError(f"{option} {source}: {exc}") from exc


def _tools_of(source: str, found: Any) -> list[Tool | Callable[..., Any]]:
    if isinstance(found, ToolRegistry) or (isinstance(found, Iterable) and not isinstance(found, (str, bytes))):
        try:
            each_of = list(cast("Iterable[Any]", found))
        except Exception as exc:
            # The user's code raised it.
            raise ConfigurationError(f"{source}: {_said(exc)}") from exc
        if all(isinstance(each, Tool) or (callable(each) and not inspect.isclass(each)) for each in each_of):
            return each_of
    elif callable(found) and not inspect.isclass(found):
        return [found]
    kind = type(cast("object", found)).__name__
    raise ConfigurationError(
        f"{source} is of type {kind}: it must be a function, a Tool, a list of them, or a ToolRegistry"
    )


# ------------------------------------------------------------------------------------------------ MODULE:NAME


def load_object(reference: str, option: str) -> Any:
    """Return the object that MODULE:NAME names, after importing the module, which runs it.

    The current directory is importable. Raises `ConfigurationError`.
    """
    module_name, colon, path = reference.partition(":")
    if not (colon and module_name and path):
        raise ConfigurationError(f"{option} {reference}: write MODULE:NAME, such as mytools:search")
    found: Any = _import(module_name, reference, option)
    names = path.split(".")
    for step, name in enumerate(names):
        try:
            found = getattr(found, name)
        except AttributeError as exc:
            near = difflib.get_close_matches(name, [each for each in dir(found) if not each.startswith("_")])
            hint = f"; is it {near[0]!r}?" if near else ""
            where = f"module {module_name!r}" if step == 0 else repr(".".join(names[:step]))
            raise ConfigurationError(f"{option} {reference}: {where} has no {name!r}{hint}") from exc
        except Exception as exc:
            # The user's code raised it.
            raise ConfigurationError(f"{option} {reference}: {_said(exc)}") from exc
    return found


def _import(name: str, reference: str, option: str) -> Any:
    _make_importable()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        if exc.name and (name == exc.name or name.startswith(f"{exc.name}.")):
            hint = (
                f"there is no module {exc.name!r}; run toolbus from the directory that contains it, or set PYTHONPATH"
            )
            raise ConfigurationError(f"{option} {reference}: {hint}") from exc
        raise ConfigurationError(f"{option} {reference}: importing {name!r} failed: {_said(exc)}") from exc
    except KeyboardInterrupt:
        raise
    except BaseException as exc:
        # A module can do anything when it is imported, including exiting.
        raise ConfigurationError(f"{option} {reference}: importing {name!r} failed: {_said(exc)}") from exc


def _make_importable() -> None:
    # This is the current directory. Unlike its path, the empty text does no harm if the directory was removed.
    if "" not in sys.path:
        sys.path.insert(0, "")


def _said(exc: BaseException) -> str:
    """Describe an exception of the user's code on one line, with its file and line."""
    line = line_of(exc)
    return f"{words_of(exc)}{f' ({line})' if line else ''}"


# ------------------------------------------------------------------------------------------------ limits


def load_limits(given: dict[str, float | int], pairs: Sequence[str]) -> Limits:
    """Return the limits from options of their own (`given`) and from `pairs` such as "max_repeats=5".

    Raises `ConfigurationError`.
    """
    defaults: dict[str, Any] = {each.name: each.default for each in dataclasses.fields(Limits)}
    values: dict[str, Any] = dict(given)
    for pair in pairs:
        name, sign, written = pair.partition("=")
        name = name.strip()
        if not sign:
            raise ConfigurationError(f"--limit {pair}: write NAME=VALUE, where NAME is one of {', '.join(defaults)}")
        if name not in defaults:
            raise ConfigurationError(f"--limit {pair}: {no_option([name], defaults, 'limit')}")
        try:
            values[name] = _limit(defaults[name], written.strip())
        except ValueError as exc:
            what = "a whole number" if isinstance(defaults[name], int) else "a number"
            raise ConfigurationError(f"--limit {pair}: {written!r} is not {what}") from exc
    return Limits(**values)


def load_prices(price: tuple[float, float] | None, limits: Limits) -> dict[str, Price] | None:
    """Return the price table for the model's `price`. Raises `ConfigurationError` if a limit needs a price."""
    if price is not None:
        return {"*": Price(input_per_million=price[0], output_per_million=price[1])}
    if limits.max_cost is not None:
        raise ConfigurationError(
            f"--limit max_cost={limits.max_cost:g} needs the model's price: pass --price IN/OUT, per million tokens, "
            "such as --price 0.25/2"
        )
    return None


def _limit(default: Any, written: str) -> Any:
    """Parse the value of a limit that has this default. Raises `ValueError`."""
    if isinstance(default, frozenset):
        # A set is written with commas: stop_on=denied,unknown_tool.
        return frozenset(each.strip() for each in written.split(",") if each.strip())
    return written if isinstance(default, str) else int(written) if isinstance(default, int) else float(written)
