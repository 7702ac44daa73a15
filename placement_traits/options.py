# SPDX-License-Identifier: Apache-2.0
"""Options of a configuration file, declared once: a frozen dataclass a section, a field an option.

.. code-block:: python

    @dataclass(frozen=True, slots=True)
    class BwapOptions(Section):
        section: ClassVar = "bwap"
        title: ClassVar = "Search for the best spread of memory (BWAP)"

        stuck_s: float = option(
            60.0,
            "Seconds after which a search is given up …",
            minimum=1.0,
            change="servers are very large …",
            leave="…",
        )

The annotation is the type of the option: ``bool``, ``int``, ``float``, ``str``, each of them ``| None``, :class:`Port`,
:class:`HostAddress`, ``Path``, a ``StrEnum`` or ``Literal`` (the choices), ``tuple[str, ...]`` or a mapping. A field
without :func:`option` is a constant of the code that tests and benchmarks may vary, not an operator's. :func:`part`
puts the options of another dataclass into the same section.

Decisions take these objects as they are. :mod:`placement_traits.oslo_options` makes oslo.config's options of them and
reads a configuration into them; this module knows nothing of oslo.config, so that pure code may import it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, ClassVar, Final, NewType, get_type_hints

Port = NewType("Port", int)
HostAddress = NewType("HostAddress", str)

_OPTION: Final = "option"
_PART: Final = "part"


@dataclass(frozen=True, slots=True)
class Option:
    """What a field's metadata says of its option.

    :param text: what it is and what else it touches; blank lines end paragraphs
    :param change: when to change it: a clause after "Change it when"
    :param leave: when not: a clause after "Leave it when"
    :param minimum: least number that is allowed
    :param maximum: largest number that is allowed
    :param choices: value -> what it means, of each that the annotation has
    :param repeated: the file may give it several times, a value each; else a list is one line
    :param secret: never logged
    :param mutable: its component takes a new value while it runs (oslo.config's mutation, at SIGHUP)
    :param formerly: its name in an earlier release, which is read, too; "": it never had another one
    """

    text: str
    change: str
    leave: str
    minimum: float | None = None
    maximum: float | None = None
    choices: Mapping[str, str] = field(default_factory=dict)
    repeated: bool = False
    secret: bool = False
    mutable: bool = False
    formerly: str = ""


@dataclass(frozen=True, slots=True)
class Declared:
    """One option of a section.

    :param name: as the file spells it
    :param kind: the field's annotation
    :param default: the field's
    """

    name: str
    kind: Any
    default: Any
    option: Option


def option(
    default: Any,
    text: str,
    *,
    change: str,
    leave: str,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: Mapping[str, str] | None = None,
    repeated: bool = False,
    secret: bool = False,
    mutable: bool = False,
    formerly: str = "",
) -> Any:
    """Return a dataclass field that is an option; parameters as of :class:`Option`."""
    declared = Option(
        text, change, leave, minimum, maximum, choices or {}, repeated, secret, mutable, formerly
    )
    if isinstance(default, Mapping):
        return field(default_factory=lambda: default, metadata={_OPTION: declared})
    return field(default=default, metadata={_OPTION: declared})


def part(kind: "type[Section]", prefix: str = "") -> Any:
    """Return a dataclass field whose own options stand in the section of the class around it.

    :param kind: their dataclass
    :param prefix: what its names begin with in the file
    """
    return field(default_factory=kind, metadata={_PART: prefix})


class Section:
    """Base of a section's dataclass. An object whose values contradict each other cannot be made.

    ``gone`` says of each option that only earlier releases had what takes its place.
    """

    __slots__ = ()

    section: ClassVar[str]
    title: ClassVar[str]
    gone: ClassVar[Mapping[str, str]] = {}

    def __post_init__(self) -> None:
        """See :meth:`check`."""
        self.check()

    def check(self) -> None:
        """Compare values with one another; bounds of one value are in its declaration.

        :raises InvalidValueError: names section and option
        """


def declared(kind: type[Section], prefix: str = "") -> Iterator[Declared]:
    """Yield the options of a section in the order of its fields."""
    kinds = get_type_hints(kind)
    for each in fields(kind):  # type: ignore[arg-type]
        if _OPTION in each.metadata:
            yield Declared(
                prefix + each.name, kinds[each.name], _default(each), each.metadata[_OPTION]
            )
        elif _PART in each.metadata:
            yield from declared(kinds[each.name], prefix + each.metadata[_PART])


def build(kind: type[Section], values: Mapping[str, Any], prefix: str = "") -> Any:
    """Return the dataclass of a section.

    :param values: option's name -> value of the field's type, all of them
    :raises InvalidValueError: values contradict each other
    """
    kinds = get_type_hints(kind)
    found = {}
    for each in fields(kind):  # type: ignore[arg-type]
        if _OPTION in each.metadata:
            found[each.name] = values[prefix + each.name]
        elif _PART in each.metadata:
            found[each.name] = build(kinds[each.name], values, prefix + each.metadata[_PART])
    return kind(**found)


def _default(each: "Field[Any]") -> Any:
    if each.default_factory is not MISSING:
        return each.default_factory()
    return each.default
