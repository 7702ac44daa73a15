# SPDX-License-Identifier: Apache-2.0
"""Mistakes in a configuration, in sentences: what cannot be read, and keys that nobody reads."""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from oslo_config import cfg

from placement_traits.errors import NumaExtError

_OF_LIBRARIES = (
    "oslo_",
    "numa_ext_privileged",
)  # sections that oslo.messaging and oslo.privsep read


class ConfigurationError(NumaExtError):
    """The configuration cannot be read, or holds a value that is not allowed."""


def read(parse: Callable[[], Any], conf: cfg.ConfigOpts, groups: Iterable[str]) -> None:
    """Parse the configuration files, and read every value now rather than when it is needed.

    :param parse: parses the files into ``conf``
    :param groups: whose values are read
    :raises ConfigurationError: names the file or the key
    """
    try:
        parse()
    except (cfg.Error, OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(" ".join(str(error).split())) from error
    for group in groups:
        for name in conf[group]:
            try:
                _ = conf[group][name]
            except (cfg.Error, ValueError) as error:
                reason = str(error).rpartition("is not valid: ")[2]
                files = ", ".join(conf.config_file)
                raise ConfigurationError(f"[{group}]{name} in {files}: {reason}") from error


def unknown(files: Iterable[str], known: Mapping[str, Sequence[cfg.Opt]]) -> Iterator[str]:
    """Yield keys of configuration files that nobody reads, with what may have been meant.

    :param files: that were read without an error
    :param known: options by section; sections of libraries are not looked into
    """
    for file in files:
        sections: dict[str, dict[str, list[str]]] = {}
        cfg.ConfigParser(file, sections).parse()
        for section, keys in sections.items():
            if section.startswith(_OF_LIBRARIES):
                continue
            if section not in known:
                yield f"[{section}]{_meant(section, known)} in {file}"
                continue
            names = {name for option in known[section] for name in _names(option)}
            for key in keys:
                if key.replace("-", "_") not in names:
                    yield f"[{section}]{key}{_meant(key, names)} in {file}"


def _names(option: cfg.Opt) -> set[str]:
    return {
        str(name).replace("-", "_")
        for name in (option.dest, *(old.name for old in option.deprecated_opts))
    }


def _meant(word: str, words: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(words), n=1)
    return f" ({near[0]} was meant?)" if near else ""
