# SPDX-License-Identifier: Apache-2.0
"""Keys of a configuration file that nothing reads, with what may have been meant, and those with another name today.

``oslo-config-validator`` finds them, too, but only logs "section/key is not part of the sample config": it offers no
function that returns them, does not say which key may have been meant, compares with the entry points that are
installed rather than with this code, and does not know the options of a keystoneauth plug-in that ``auth_type`` or
``auth_section`` names. The files are read here by what it reads them with, :class:`oslo_config.cfg.ConfigParser`.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from oslo_config import cfg

from placement_traits.errors import cut

_OF_LIBRARIES: Final = ("oslo_",)  # sections that oslo.messaging reads


def keys(
    files: Iterable[str],
    known: Mapping[str, Sequence[cfg.Opt]],
    *,
    gone: Mapping[str, Mapping[str, str]] | None = None,
    only_known: bool = False,
) -> Iterator[str]:
    """Yield keys of configuration files that nothing reads, with what may have been meant.

    :param files: that were read without an error
    :param known: options by section; sections of libraries are not looked into
    :param gone: options that only earlier releases had, by section: what takes their place
    :param only_known: the other sections are another program's
    """
    for file, section, given in _given(files):
        if section not in known:
            if not only_known:
                yield f"[{cut(section)}]{_meant(section, known)} in {file}"
            continue
        names = {str(option.dest) for option in known[section]}  # oslo.config reads no hyphens
        earlier = _earlier(known[section])
        instead = (gone or {}).get(section, {})
        for key in given:
            if key in instead:
                yield f"[{section}]{key} (gone: {instead[key]}) in {file}"
            elif key not in names | earlier.keys():
                yield f"[{section}]{cut(key)}{_meant(key, names)} in {file}"


def renamed(files: Iterable[str], known: Mapping[str, Sequence[cfg.Opt]]) -> Iterator[str]:
    """Yield keys of configuration files that are read by the name of an earlier release, with today's.

    :param files: that were read without an error
    :param known: options by section
    """
    for file, section, given in _given(files):
        earlier = _earlier(known.get(section, ()))
        for key in given:
            if key in earlier:
                yield f"[{section}]{key} (now {earlier[key]}) in {file}"


def _given(files: Iterable[str]) -> Iterator[tuple[str, str, Iterable[str]]]:
    """Yield file, section and keys of each section that is not a library's."""
    for file in files:
        sections: dict[str, dict[str, list[str]]] = {}
        cfg.ConfigParser(file, sections).parse()
        for section, keys in sections.items():
            if not section.startswith(_OF_LIBRARIES):
                yield file, section, keys


def _earlier(options: Iterable[cfg.Opt]) -> dict[str, str]:
    """Return names of earlier releases with today's."""
    return {
        str(old.name): str(option.dest)
        for option in options
        for old in option.deprecated_opts
        if old.name
    }


def _meant(word: str, words: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(words), n=1)
    return f" ({near[0]} was meant?)" if near else ""
