# SPDX-License-Identifier: Apache-2.0
"""One declaration of an option: oslo.config registers it, a file changes it, a dataclass carries it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, Literal

import pytest
from oslo_config import cfg

from placement_traits import oslo_options
from placement_traits.errors import InvalidValueError
from placement_traits.options import HostAddress, Port, Section, option, part

ADVICE = {"change": "you must", "leave": "you need not"}


class Colour(StrEnum):
    RED = "red"
    GREEN = "green"


@dataclass(frozen=True, slots=True)
class Inner(Section):
    url: str | None = option(None, "Where.", **ADVICE)
    query: tuple[str, ...] = option((), "What.", repeated=True, **ADVICE)


@dataclass(frozen=True, slots=True)
class Outer(Section):
    section: ClassVar = "outer"
    title: ClassVar = "Everything"

    on: bool = option(True, "Whether.", **ADVICE)
    low: int = option(1, "Less than high.", minimum=0, maximum=9, **ADVICE)
    high: float = option(2.0, "More than low.", **ADVICE)
    file: Path = option(Path("/a"), "File.", **ADVICE)
    colour: Colour = option(
        Colour.RED, "Colour.", choices={each: f"It is {each}." for each in Colour}, **ADVICE
    )
    mode: Literal["a", "b"] = option("a", "Mode.", choices={"a": "one", "b": "other"}, **ADVICE)
    listen: HostAddress = option(HostAddress("::1"), "Address.", **ADVICE)
    port: Port = option(Port(80), "Port.", **ADVICE)
    names: tuple[str, ...] = option(("x",), "Names.", **ADVICE)
    sizes: Mapping[str, int] = option({}, "Sizes.", minimum=0, **ADVICE)
    inner: Inner = part(Inner, prefix="inner_")
    constant: float = 3.0

    def check(self) -> None:
        if not self.low < self.high:
            raise InvalidValueError("[outer]low", self.low, f"below high, {self.high}")


def load(tmp_path: Path, text: str = "") -> cfg.ConfigOpts:
    (tmp_path / "file").write_text(f"[outer]\n{text}")
    conf = cfg.ConfigOpts()
    oslo_options.register(conf, Outer)
    conf([], default_config_files=[str(tmp_path / "file")])
    return conf


def test_defaults_of_options_and_of_the_dataclass_are_the_same(tmp_path: Path) -> None:
    assert oslo_options.read(Outer, load(tmp_path)) == Outer()


def test_a_file_sets_every_kind_of_option(tmp_path: Path) -> None:
    text = """
on = no
low = 3
high = 4.5
file = /b
colour = green
mode = b
listen = 10.0.0.1
port = 0
names = y,z
sizes = 0:1,1:0
inner_url = http://p
inner_query = a=1
inner_query = b=2,3
"""
    inner = Inner(url="http://p", query=("a=1", "b=2,3"))
    assert oslo_options.read(Outer, load(tmp_path, text)) == Outer(
        on=False,
        low=3,
        high=4.5,
        file=Path("/b"),
        colour=Colour.GREEN,
        mode="b",
        listen=HostAddress("10.0.0.1"),
        port=Port(0),
        names=("y", "z"),
        sizes={"0": 1, "1": 0},
        inner=inner,
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("low = 10", ["low", "10", "9"]),
        ("low = few", ["low", "few"]),
        ("colour = blue", ["colour", "red, green", "blue"]),
        ("mode = c", ["mode", "a, b"]),
        ("port = 70000", ["port", "65535"]),
        ("sizes = 0:-1", ["sizes", "0"]),
        ("inner_url = $nothing", ["inner_url", "nothing"]),
        ("inner_url = any=$inner_url", ["inner_url", "refers to itself"]),
    ],
)
def test_a_bad_value_is_named_with_its_option_and_file(
    tmp_path: Path, text: str, words: list[str]
) -> None:
    conf = load(tmp_path, text)
    with pytest.raises(oslo_options.ConfigurationError) as caught:
        oslo_options.read(Outer, conf)
    said = str(caught.value)
    assert said.startswith(f"[outer]{text} in {tmp_path}/file: ")
    assert [word for word in words if word not in said] == []
    assert "\n" not in said


def test_a_bad_value_may_be_told_and_its_default_counts(tmp_path: Path) -> None:
    told: list[oslo_options.ConfigurationError] = []
    conf = load(tmp_path, "low = few\nhigh = 7\n")
    assert oslo_options.read(Outer, conf, mistake=told.append) == Outer(high=7.0)
    assert [str(error).partition(" in ")[0] for error in told] == ["[outer]low = few"]


def test_values_that_contradict_each_other_make_no_object(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidValueError, match=r"\[outer\]low in .*/file: 5 is not allowed; allowed: below"
    ):
        oslo_options.read(Outer, load(tmp_path, "low = 5\n"))
    with pytest.raises(InvalidValueError, match=r"\[outer\]low"):
        Outer(high=0.5)


def test_a_choice_of_which_nothing_is_said_is_a_mistake_of_ours() -> None:
    @dataclass(frozen=True, slots=True)
    class Silent(Section):
        section: ClassVar = "silent"
        title: ClassVar = "Nothing"

        colour: Colour = option(Colour.RED, "Colour.", choices={Colour.RED: "red"}, **ADVICE)

    with pytest.raises(KeyError, match=next(each for each in Colour if each is not Colour.RED)):
        oslo_options.register(cfg.ConfigOpts(), Silent)
