"""The release on each Python: what its readers install, and the first snippet that they paste."""

from __future__ import annotations

import re
import sys
import tomllib
from typing import TYPE_CHECKING

import dev
import pytest
from environments import BIN, ROOT, Environment

from support.environments import uv

if TYPE_CHECKING:
    from pathlib import Path

README = (ROOT / "README.md").read_text(encoding="utf-8")


def interpreter_of(version: str) -> str:
    """The interpreter of this version; skips the test where the machine has none."""
    if version == "{}.{}".format(*sys.version_info):
        return sys.executable
    found = dev.find_python(version)
    if found is None:
        pytest.skip(f"this machine has no Python {version}")
    return found


@pytest.mark.repeats("the quickstart in other processes")
@pytest.mark.parametrize("version", dev.declared_pythons())
def test_the_quickstart_prints_what_the_readme_shows_where_only_the_wheel_is(
    version: str, wheel: Path, tmp_path: Path
) -> None:
    [source, *_] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    [output] = re.findall(r"<!-- output -->\n```text\n(.*?)```", README, re.DOTALL)
    locked, folder = tmp_path / "constraints.txt", tmp_path / "environment"
    uv("export", "-q", "--frozen", "--all-extras", "--no-emit-project", "--no-hashes", "-o", locked)
    uv("venv", "-q", "--no-project", "--python", interpreter_of(version), folder)
    uv("pip", "install", "-q", "--python", folder / BIN / "python", "--constraints", locked, wheel)
    found = Environment(folder)
    assert found.python("import sys; print('{}.{}'.format(*sys.version_info))") == version
    assert found.python(source) == output.strip()


def test_each_link_of_the_readme_is_absolute_or_becomes_it_with_one_prefix() -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", README)
    relative = [link.partition("#")[0] for link in links if not re.match(r"https?://", link)]
    assert len(relative) > 20
    assert [link for link in relative if link.startswith(("/", "."))] == []
    assert [link for link in relative if not (ROOT / link).is_file()] == []


def test_the_public_address_is_filled_in_everywhere_or_nowhere() -> None:
    """There is no public address yet. At publication, give `[project.urls]` and make the links of the README absolute."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"].get("urls", {})
    relative = [link for link in re.findall(r"\]\(([^)\s]+)\)", README) if not re.match(r"https?://|#", link)]
    assert bool(urls) == (not relative)
    assert all(str(url).startswith("https://") for url in urls.values())
