"""An upper bound on the cost of checking a value against a JSON schema, known before the check. Pure.

Both the schema and the value may come from a stranger, and the library that compares them cannot be stopped half way.
So the work is bounded from above, by the keywords of the schema and by the shape of the value, and the caller decides
by that bound whether to check. The bound relies on the way in which the library works (jsonschema-rs 0.60):

1. A schema is applied to a value once for each path that leads to it. Paths multiply where alternatives are nested in
   alternatives, also through `$ref`, and again at each level of a value where a schema recurses.
2. `unevaluatedProperties` and `unevaluatedItems` check all keywords beside them once more, to learn what those have
   evaluated: nested n times, that is about 2.6**n times.
3. Patterns are matched in linear time (`_patterns`). `pattern` and `uniqueItems` are keywords of our own: the time of
   the first is measured, and the second is linear. Formats are not checked.
4. An error report copies the wrong part of the value for each line of the report, and searches for a matching
   alternative once more at each level.

References lead within the schema, as `#/pointer`. All others are refused, so that nothing is ever fetched and the
bound covers all that the library sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias, cast

from ..errors import ConfigurationError
from ._allowance import INLINE_NS
from ._json_parts import as_object, way_to
from ._patterns import cost_of
from ._shape import Shape, TooCostly

_MAX_PARTS = 6_000  # subschemas, and the paths between them
_MAX_HEIGHT = 32  # subschemas within one another that apply to the same value, since the library recurses
_MAX_STEPS = 40_000  # steps in which the cost of each level of a value is computed
_ENDLESS = 10**18

# The times are measured with jsonschema-rs 0.60.3 and rounded up; tests/schemas/test_schema_bounds.py measures them
# again. Names end with their unit: nanoseconds (_NS) or picoseconds (_PS).
_VISIT_NS = 200
_LIMIT_NS = 1_500  # to compare a number that has a fraction with a limit
_NUMBER_NS = 2_000  # to compare a number with a constant
_DIVISOR_NS, _FRACTION_NS = 2_000, 50_000  # `multipleOf` with an integer, and with a fraction
_PATTERN_NS = 3_000  # to call our own keyword `pattern`, without the matching
_OWN_KEYWORD_NS, _OWN_BELOW_NS = 8_000, 3_000  # `uniqueItems`, for each list and each value below it
_OWN_CHARS = 100  # characters below a list that cost `uniqueItems` as much as one value
_CHAR_PS = 100
_CONTENT_PS = 60_000
_LINE_NS, _LINE_BELOW_NS, _LINE_CHAR_NS = 10_000, 300, 10

_SAME: Final = "same"  # a schema that applies to the value itself
_EITHER: Final = "either"  # schemas of which at most one applies to a value within it
_EACH: Final = "each"  # schemas of which all may apply to a value within it
_APPLIED = {
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "not", "if", "then", "else"), _SAME),
    **dict.fromkeys(("dependentSchemas", "dependencies"), _SAME),
    **dict.fromkeys(("properties", "additionalProperties", "additionalItems", "items", "prefixItems"), _EITHER),
    **dict.fromkeys(("contains", "propertyNames", "unevaluatedItems", "unevaluatedProperties"), _EACH),
    "patternProperties": _EACH,
}
_BY_NAME = frozenset({"dependencies", "dependentSchemas", "patternProperties", "properties"})  # mappings to schemas
_AGAIN = frozenset({"unevaluatedItems", "unevaluatedProperties"})
_PLAIN = frozenset({"const", "dependencies", "dependentRequired", "enum", "required", "type"})
_LINES = frozenset({"dependencies", "dependentRequired", "required"})  # may report one line for each name
_LIMITS = frozenset({"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum"})
_REFUSED = frozenset({"$dynamicRef", "$recursiveRef"})

_Json: TypeAlias = Mapping[str, Any]
_Cost: TypeAlias = tuple[int, int, int, int]
"""The cost of comparing a value.

Nanoseconds for the value itself, picoseconds for each character of its texts and keys, nanoseconds for each value
within it, and nanoseconds for reporting what is wrong with it.
"""


_NONE: list[int] = []  # shared by all parts without other parts, and never changed


class _Part:
    """A schema, which may be a boolean. Lists hold the numbers of other parts.

    The parts in `same` apply to the same value. Of those in `either`, at most one applies to a value within it; of
    those in `each`, all may.
    """

    __slots__ = ("again", "cost", "each", "either", "same")

    def __init__(self, cost: _Cost) -> None:
        self.cost = cost
        self.same = self.either = self.each = _NONE
        self.again = False  # whether a keyword makes the library check all keywords beside it once more


class Bounds:
    """The bounds on the cost of one schema, and the `patterns` in it.

    Raises `ConfigurationError` for a schema that cannot be checked within any bounds.
    """

    __slots__ = ("_has_names", "_height", "_levels", "_newest", "_order", "_parts", "_times", "patterns")

    def __init__(self, schema: _Json | bool) -> None:  # noqa: FBT001 -- a schema may be one
        reader = _Reader(schema)
        self._has_names = reader.has_names
        self.patterns = tuple(reader.patterns)
        self._parts = reader.parts
        self._order, heights = _in_order(self._parts)
        self._height = max(heights)
        # A part with an `unevaluated` keyword is checked twice, and once more for each level of schemas that apply to
        # the same value.
        self._times = [2 + height if part.again else 1 for part, height in zip(self._parts, heights, strict=True)]
        self._newest = self._here()
        self._levels = [self._newest[0]]
        if max(cost[0] for cost in self._newest) > INLINE_NS:
            raise ConfigurationError(
                "its alternatives multiply: a single value may have to be compared more than "
                f"{INLINE_NS // _VISIT_NS} times"
            )

    def cost(self, shape: Shape) -> int:
        """Return the most nanoseconds that it takes to find out whether a value fits. Raises `TooCostly`."""
        levels = self._up_to(len(shape.values))
        below, letters_below = sum(shape.values), sum(shape.chars)
        total = 0
        for (here, chars, inside, _), values, letters in zip(levels, shape.values, shape.chars, strict=False):
            total += values * here + letters * chars // 1_000
            total += inside * (below + letters_below // _OWN_CHARS)
            below -= values
            letters_below -= letters
        return total

    def cost_of_report(self, shape: Shape) -> int:
        """Return the most nanoseconds that it takes to report all that is wrong with a value.

        Raises `TooCostly` where `cost` does.
        """
        levels = self._up_to(len(shape.values))
        below, letters_below = sum(shape.values), sum(shape.chars)
        # On each level with alternatives, the library searches for one that fits before it reports them.
        total = self.cost(shape) * (len(shape.values) * (self._height + 1) if self._height else 1)
        for (_, _, _, report), values, letters in zip(levels, shape.values, shape.chars, strict=False):
            lines = -(-report // _LINE_NS)
            copied = below * _LINE_BELOW_NS + letters_below * _LINE_CHAR_NS
            if self._has_names:  # For each name that does not fit, its whole object is copied.
                copied = (copied + values * _LINE_BELOW_NS + letters * _LINE_CHAR_NS) * values
            total += report * values + lines * copied
            below -= values
            letters_below -= letters
        return total

    def _up_to(self, depth: int) -> list[_Cost]:
        """Return the cost of the schema at each level of a value, up to `depth` or to its own last level."""
        parts, ways = len(self._parts), sum(len(each.same) + len(each.either) + len(each.each) for each in self._parts)
        while len(self._levels) < depth and self._levels[-1] != _NOTHING:
            if len(self._levels) * (parts + ways // 4) > _MAX_STEPS:
                raise TooCostly("$: it cannot be checked, since it is nested too deeply for a schema of this size")
            self._newest = self._inside(self._newest)
            self._levels.append(self._newest[0])
        return self._levels

    def _here(self) -> list[_Cost]:
        """Return the cost of each part for comparing the value itself."""
        costs = [each.cost for each in self._parts]
        for number in self._order:
            part = self._parts[number]
            if part.same:
                costs[number] = _sum([part.cost, *(costs[each] for each in part.same)], self._times[number])
        return costs

    def _inside(self, last: list[_Cost]) -> list[_Cost]:
        """Return the cost of each part for comparing the values one level below those of `last`."""
        costs = [_NOTHING] * len(last)
        for number in self._order:
            part = self._parts[number]
            inside = [last[each] for each in part.each] + [costs[each] for each in part.same]
            if part.either:
                inside.append(_highest([last[each] for each in part.either]))
            if inside:
                costs[number] = _sum(inside, self._times[number])
        return costs


_NOTHING: _Cost = (0, 0, 0, 0)


def _sum(costs: list[_Cost], times: int) -> _Cost:
    if len(costs) == 1 and times == 1:
        return costs[0]
    a, b, c, d = map(sum, zip(*costs, strict=True))
    return min(a * times, _ENDLESS), min(b * times, _ENDLESS), min(c * times, _ENDLESS), min(d * times, _ENDLESS)


def _highest(costs: list[_Cost]) -> _Cost:
    if len(costs) == 1:
        return costs[0]
    a, b, c, d = map(max, zip(*costs, strict=True))
    return a, b, c, d


def _in_order(parts: list[_Part]) -> tuple[list[int], list[int]]:
    """Return the numbers of the parts, each after the parts that apply to the same value, and the parts' heights."""
    # A height of -1 is not known yet, and one of -2 is being computed.
    heights = [-1 if part.same else 0 for part in parts]
    order = [number for number, part in enumerate(parts) if not part.same and (part.either or part.each)]
    for start, part in enumerate(parts):
        stack = [start] if part.same else []
        while stack:
            number = stack[-1]
            same = parts[number].same
            if heights[number] == -1:
                heights[number] = -2
                stack += [each for each in same if heights[each] < 0]
                if any(heights[each] == -2 for each in same):
                    raise ConfigurationError("it refers to itself without end")
                continue
            stack.pop()
            if heights[number] == -2:
                heights[number] = 1 + max(heights[each] for each in same)
                order.append(number)
                if heights[number] > _MAX_HEIGHT:
                    raise ConfigurationError(f"more than {_MAX_HEIGHT} schemas apply to one value, one inside another")
    return order, heights


class _Reader:
    """One walk through a schema, from its root to all that may be applied. Definitions are read where they are used."""

    def __init__(self, root: _Json | bool) -> None:  # noqa: FBT001 -- as above
        self._root = root
        self._draft = None if isinstance(root, bool) else root.get("$schema")
        self._bases = ("$id", "id") if "draft-04" in str(self._draft) else ("$id",)
        self._known: dict[int, int] = {}
        self._left: list[tuple[_Part, _Json]] = []
        self.patterns: dict[str, int] = {}  # the nanoseconds for each character that each pattern costs to match
        self._ways = 0
        self._compile_ns = 0
        self.has_names = False
        self.parts: list[_Part] = []
        self._part(root)
        while self._left:
            self._read(*self._left.pop())

    def _part(self, schema: Any) -> int:
        """Return the number of the part that a schema is."""
        self._ways += 1
        if self._ways > _MAX_PARTS:
            raise ConfigurationError(f"it has more than {_MAX_PARTS} parts")
        number = self._known.get(id(schema))
        if number is None:
            number = len(self.parts)
            part = _Part((_VISIT_NS, _CHAR_PS, 0, _LINE_NS))
            self.parts.append(part)
            if isinstance(schema, dict):
                self._known[id(cast("object", schema))] = number
                self._left.append((part, cast("_Json", schema)))
        return number

    def _read(self, part: _Part, schema: _Json) -> None:
        if schema is not self._root:
            self._check_base(schema)
        own = _Own(len(schema))
        for key, given in schema.items():
            applied = _APPLIED.get(key)
            if applied is not None:
                more = [self._part(each) for each in _schemas(given, by_name=key in _BY_NAME)]
                setattr(part, applied, getattr(part, applied) + more)
            if key in _AGAIN:
                part.again = True
            elif key == "propertyNames":
                self.has_names = True
            elif key in _REFUSED:
                raise ConfigurationError(f"it has a {key}, which is not supported")
            elif key == "$ref":
                part.same = [*part.same, self._part(self._at(given))]
            elif key == "patternProperties" and isinstance(given, dict):
                self._keys(part, cast("_Json", given))
            elif key == "pattern" and isinstance(given, str):
                self._match_ns(given)  # This only checks that it can be used; its time is measured during the match.
                own.here += _PATTERN_NS
            else:
                own.add(key, given)
        part.cost = own.here, own.chars, own.below, own.report

    def _keys(self, part: _Part, patterns: _Json) -> None:
        """Add the cost of matching each key with each pattern, for the three keywords that do so.

        They are `patternProperties`, `additionalProperties` and `unevaluatedProperties`.
        """
        total = 3 * sum(map(self._match_ns, patterns))
        part.each = [*part.each, len(self.parts)]
        self.parts.append(_Part((3 * _VISIT_NS * len(patterns), 1_000 * total, 0, 0)))

    def _match_ns(self, pattern: str) -> int:
        if pattern not in self.patterns:
            try:
                cost = cost_of(pattern)
            except ValueError as exc:
                raise ConfigurationError(f"its pattern {pattern[:80]!r} cannot be used: {exc}") from None
            self._compile_ns += cost.compile_ns
            if self._compile_ns > INLINE_NS:
                raise ConfigurationError("its patterns are too many, or too long, to be compiled")
            self.patterns[pattern] = cost.match_ns
        return self.patterns[pattern]

    def _check_base(self, schema: _Json) -> None:
        """Refuse a subschema with its own id or of another draft, which would change the target of references."""
        for key in self._bases:
            if isinstance(schema.get(key), str):
                raise ConfigurationError(f"a schema within it has an {key} of its own, which is not supported")
        if "$schema" in schema and schema["$schema"] != self._draft:
            raise ConfigurationError("a schema within it uses another draft, which is not supported")

    def _at(self, reference: Any) -> Any:
        """Return the target of a reference, a JSON pointer (RFC 6901)."""
        where = f"it refers to {str(reference)[:200]!r}"
        if not str(reference).startswith("#/") and reference != "#":
            raise ConfigurationError(f"{where}; references must lead within the schema, as '#/$defs/name' does")
        try:
            way = way_to(reference, self._root)
        except LookupError:
            raise ConfigurationError(f"{where}, which does not exist") from None
        for each in way[1:-1]:
            self._check_base(as_object(each))
        return way[-1]


class _Own:
    """The cost of the keywords of one schema that apply no other schema."""

    __slots__ = ("below", "chars", "here", "report")

    def __init__(self, keywords: int) -> None:
        self.here = _VISIT_NS
        self.chars = _CHAR_PS * (1 + keywords)
        self.below = 0
        self.report = _LINE_NS * keywords

    def add(self, key: str, given: Any) -> None:
        if key in _PLAIN:
            size = _size(given)
            self.here += _VISIT_NS * size
            self.report += (_LINE_NS if key in _LINES else _LINE_BELOW_NS) * size
            if key in ("const", "enum"):
                self.here += _NUMBER_NS * _numbers(given)
        elif key == "properties" and isinstance(given, dict):
            self.here += _VISIT_NS * len(cast("_Json", given))
        elif key in _LIMITS:
            self.here += _LIMIT_NS
        elif key == "multipleOf":
            self.here += _DIVISOR_NS if isinstance(given, int) else _FRACTION_NS
        elif key in ("contentEncoding", "contentMediaType"):
            self.chars += _CONTENT_PS
        elif key == "uniqueItems" and given is True:
            self.here += _OWN_KEYWORD_NS
            self.below = _OWN_BELOW_NS


def _schemas(given: Any, *, by_name: bool) -> list[Any]:
    """Return the schemas in the value of a keyword: one, a list, or a mapping."""
    if isinstance(given, (dict, list)) and (by_name or isinstance(given, list)):
        every: Iterable[Any] = cast("_Json", given).values() if isinstance(given, dict) else cast("list[Any]", given)
        return [each for each in every if isinstance(each, (dict, bool))]
    return [given] if isinstance(given, (dict, bool)) and not by_name else []


def _size(value: Any) -> int:
    """Return the number of values in a value, including itself."""
    return sum(1 for _ in _inside(value))


def _numbers(value: Any) -> int:
    """Return the number of numbers in a value."""
    return sum(type(each) in (int, float) for each in _inside(value))


def _inside(value: Any) -> Iterator[Any]:
    """Yield all values in a value, including itself."""
    left = [value]
    while left:
        each = left.pop()
        yield each
        if isinstance(each, dict):
            left += cast("_Json", each).values()
        elif isinstance(each, list):
            left += cast("list[Any]", each)
