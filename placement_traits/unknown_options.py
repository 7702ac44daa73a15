# SPDX-License-Identifier: Apache-2.0
"""Keys of a configuration file that nothing reads, with what may have been meant.

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
    files: Iterable[str], known: Mapping[str, Sequence[cfg.Opt]], *, only_known: bool = False
) -> Iterator[str]:
    """Yield keys of configuration files that nothing reads, with what may have been meant.

    :param files: that were read without an error
    :param known: options by section; sections of libraries are not looked into
    :param only_known: the other sections are another program's
    """
    for file in files:
        sections: dict[str, dict[str, list[str]]] = {}
        cfg.ConfigParser(file, sections).parse()
        for section, keys in sections.items():
            if section.startswith(_OF_LIBRARIES):
                continue
            if section not in known:
                if only_known:
                    continue
                yield f"[{cut(section)}]{_meant(section, known)} in {file}"
                continue
            names = {name for option in known[section] for name in _names(option)}
            for key in keys:
                if key.replace("-", "_") not in names:
                    yield f"[{section}]{cut(key)}{_meant(key, names)} in {file}"


def _names(option: cfg.Opt) -> set[str]:
    return {
        str(name).replace("-", "_")
        for name in (option.dest, *(old.name for old in option.deprecated_opts))
    }


def _meant(word: str, words: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(words), n=1)
    return f" ({near[0]} was meant?)" if near else ""
