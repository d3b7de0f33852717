"""Names of a package that are imported when they are used."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from toolbus._lazy import imported_when_used


def test_a_name_is_imported_at_its_first_use_and_then_an_attribute(monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModuleType("shelf")
    monkeypatch.setitem(sys.modules, "shelf", package)
    find, names = imported_when_used("shelf", {"collections": ["OrderedDict"]})
    assert names()[-1] == "__spec__"
    assert "OrderedDict" in names()
    assert not hasattr(package, "OrderedDict")
    found = find("OrderedDict")
    assert found is sys.modules["collections"].OrderedDict
    assert vars(package)["OrderedDict"] is found
    with pytest.raises(AttributeError, match="module 'shelf' has no attribute 'else'"):
        find("else")
