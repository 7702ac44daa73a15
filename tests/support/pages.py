# SPDX-License-Identifier: Apache-2.0
"""Commands and settings that a page of the documentation shows."""

import re
from textwrap import dedent


def block(page: str, first: str) -> str:
    """The commands of a page that begin with this line."""
    blocks = re.findall(r"::\n\n((?:    .*\n|\n)+)", page)
    (found,) = [each for each in blocks if each.strip().startswith(first)]
    return dedent(found)


def settings(page: str, section: str) -> str:
    """The lines of a configuration file that a page shows and that begin with this section."""
    blocks = re.findall(r"\.\. code-block:: ini\n\n((?:    .*\n|\n)+)", page)
    (found,) = [each for each in blocks if each.strip().startswith(section)]
    return dedent(found)
