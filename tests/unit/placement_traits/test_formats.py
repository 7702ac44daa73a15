# SPDX-License-Identifier: Apache-2.0
"""The format in which a host is published."""

from emulation.hosts import four_nodes
from placement_traits import formats, names
from placement_traits.tree import desired_tree
from tests.support.hosts import SETTINGS


def test_a_host_without_the_trait_speaks_the_first_format() -> None:
    assert formats.of({names.HOST, "CUSTOM_NUMA_EXT_NODES_4", "HW_CPU_X86_AVX2"}) == formats.FIRST


def test_our_agents_say_which_format_they_speak() -> None:
    assert formats.of(desired_tree("h1", four_nodes(), SETTINGS).root_traits) == formats.CURRENT


def test_of_two_formats_the_later_one_counts() -> None:
    assert formats.of({"CUSTOM_NUMA_EXT_FORMAT_2", "CUSTOM_NUMA_EXT_FORMAT_3"}) == 3
