# SPDX-License-Identifier: Apache-2.0
"""Declared options (:mod:`placement_traits.options`) as oslo.config's: to register, to list for samples, to read."""

import inspect
import re
from collections.abc import Callable, Mapping, Set
from enum import StrEnum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Literal, TypeVar, get_args, get_origin

from oslo_config import cfg, types

from placement_traits.errors import LONGEST_TEXT, InvalidValueError, NumaExtError, cut
from placement_traits.options import Declared, HostAddress, Port, Section, build, declared

S = TypeVar("S", bound=Section)


class ConfigurationError(NumaExtError):
    """The configuration cannot be read, or holds a value that is not allowed."""


_PLAIN: Final[Mapping[Any, type[cfg.Opt]]] = {
    bool: cfg.BoolOpt,
    str: cfg.StrOpt,
    Path: cfg.StrOpt,
    HostAddress: cfg.HostAddressOpt,
    Port: cfg.PortOpt,
    tuple[str, ...]: cfg.ListOpt,
    Mapping[str, str]: cfg.DictOpt,
}


def group(section: type[Section]) -> cfg.OptGroup:
    """Return the group of a section; each configuration wants one of its own, oslo.config keeps overrides in it."""
    return cfg.OptGroup(section.section, title=section.title)


def options(section: type[Section]) -> list[cfg.Opt]:
    """Return the options of a section, in the order of their declaration."""
    return [_option(each) for each in declared(section)]


def register(conf: cfg.ConfigOpts, section: type[Section]) -> None:
    """Register a section's options with ``conf``; registering twice is harmless."""
    conf.register_opts(options(section), group=group(section))


def read(
    section: type[S],
    conf: cfg.ConfigOpts,
    *,
    mistake: Callable[[ConfigurationError], None] | None = None,
) -> S:
    """Return a section of a loaded configuration.

    :param mistake: called with each value that is not of its type or not allowed, its default counts then; None: the
        first one is raised
    :raises ConfigurationError: names section, option and file of such a value, and says what is allowed
    :raises InvalidValueError: values contradict each other
    """
    found = {}
    for each in declared(section):
        try:
            found[each.name] = _read(section, each, conf)
        except ConfigurationError as error:
            if mistake is None:
                raise
            mistake(error)
            found[each.name] = each.default
    try:
        made: S = build(section, found)
    except InvalidValueError as error:
        where = f"{error.where} in {_files(conf)}"
        raise InvalidValueError(where, error.value, error.allowed) from error
    return made


def _read(section: type[Section], each: Declared, conf: cfg.ConfigOpts) -> Any:
    try:
        value = conf[section.section][each.name]
        if value is None and _without_none(each.kind) is each.kind:
            raise ValueError("is not valid: no value")  # what oslo.config makes of "name ="
        return _value(each, value)
    except RecursionError:
        reason = "it refers to itself with $"
        raise _mistake(section, each, conf, reason) from None
    except (cfg.Error, ValueError) as error:
        reason = str(error).rpartition("is not valid: ")[2]
        raise _mistake(section, each, conf, reason) from error


def _mistake(
    section: type[Section], each: Declared, conf: cfg.ConfigOpts, reason: str
) -> ConfigurationError:
    names = {each.name, each.option.formerly}
    value = "" if each.option.secret else _given(section.section, names, conf)
    where = f"[{section.section}]{each.name}{cut(value)} in {_files(conf)}"
    return ConfigurationError(f"{where}: {cut(reason, LONGEST_TEXT)}")


def files(conf: cfg.ConfigOpts) -> list[str]:
    """Return all files that a configuration was read from, those of ``--config-dir`` after the others."""
    folders = map(Path, conf.config_dirs or conf.config_dir or ())
    inside = (str(file) for folder in folders for file in sorted(folder.glob("*.conf")))
    return [*(conf.config_file or ()), *inside]


def _files(conf: cfg.ConfigOpts) -> str:
    return ", ".join(files(conf))


def _given(section: str, names: Set[str], conf: cfg.ConfigOpts) -> str:
    """Return what the last file that names an option says, as it says it: oslo.config's errors may leave it out."""
    for file in reversed(files(conf)):
        sections: dict[str, dict[str, list[str]]] = {}
        cfg.ConfigParser(file, sections).parse()
        for key, values in sections.get(section, {}).items():
            if key in names:
                return f" = {values[-1]}"
    return ""


def _option(each: Declared) -> cfg.Opt:
    option = each.option
    more: dict[str, Any] = {
        "help": _paragraphs(option.text),
        "secret": option.secret,
        "mutable": option.mutable,
        "deprecated_name": option.formerly or None,
    }
    kind, default = _without_none(each.kind), each.default
    names = _choices(kind)
    if names:
        choices = [(name, option.choices[name]) for name in names]
        return cfg.StrOpt(each.name, default=str(default), choices=choices, **more)
    if kind in (int, float):
        make = cfg.IntOpt if kind is int else cfg.FloatOpt
        return make(each.name, default=default, min=option.minimum, max=option.maximum, **more)
    if kind == Mapping[str, int]:
        values = types.Dict(types.Integer(min=option.minimum, max=option.maximum))
        return cfg.Opt(each.name, type=values, default=dict(default), **more)
    if option.repeated:
        return cfg.MultiStrOpt(each.name, default=list(default), **more)
    return _PLAIN[kind](each.name, default=plain(default), **more)


def _value(each: Declared, value: Any) -> Any:
    """Return what oslo.config read as the field's type; the fields of an object never change, so neither may these."""
    if value is None:
        return None
    kind = _without_none(each.kind)
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, dict):
        return dict(value)
    if kind is Path or (isinstance(kind, type) and issubclass(kind, StrEnum)):
        return kind(value)
    return value


def plain(default: Any) -> Any:
    """Return a default in the types of oslo.config, as samples and documentation print it."""
    if isinstance(default, tuple):
        return list(default)
    if isinstance(default, Mapping):
        return dict(default)
    return str(default) if isinstance(default, Path | StrEnum) else default


def _without_none(kind: Any) -> Any:
    if get_origin(kind) is not UnionType:
        return kind
    (found,) = (each for each in get_args(kind) if each is not NoneType)
    return found


def _choices(kind: Any) -> tuple[str, ...]:
    if get_origin(kind) is Literal:
        return get_args(kind)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return tuple(each.value for each in kind)
    return ()


def _paragraphs(text: str) -> str:
    """Return each paragraph on one line, to be wrapped where it is shown."""
    return "\n\n".join(
        " ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text))
    )
