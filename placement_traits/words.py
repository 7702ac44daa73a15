# SPDX-License-Identifier: Apache-2.0
"""Numbers with their nouns, for people."""


def counted(number: int, noun: str, several: str = "") -> str:
    """Return a number with its noun: 1 host, 2 hosts.

    :param noun: of one
    :param several: of any other number, where an s does not make it
    """
    return f"{number} {noun if number == 1 else several or f'{noun}s'}"
