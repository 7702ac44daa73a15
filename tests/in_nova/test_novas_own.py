# SPDX-License-Identifier: Apache-2.0
"""Nova's own functional tests of NUMA, PCI, vGPU and server groups, with our filter and weigher in its scheduler.

They prove harmlessness only: nova's flavors say nothing to this project and its hosts have no agent. So that our code
runs at all, every request is treated as if it spoke to us; candidates are then ordered, hosts weighed and decisions
noted as always.
"""

import unittest

import pytest

from nova_numa_ext.scheduler import decision, process
from placement_traits import journal

_LIBVIRT = "nova.tests.functional.libvirt"
_NUMA = f"{_LIBVIRT}.test_numa_servers"
_PCI = f"{_LIBVIRT}.test_pci_sriov_servers"
_LIVE = f"{_LIBVIRT}.test_numa_live_migration"

ONE_OF_EACH_KIND = (
    f"{_NUMA}.NUMAServersTest.test_create_server_with_dedicated_policy",
    f"{_NUMA}.NUMAServersTest.test_create_server_with_mixed_policy",
    f"{_NUMA}.NUMAServersTest.test_resize_revert_server_with_numa",
    f"{_NUMA}.NUMAServersRebuildTests.test_rebuild_server_with_numa",
    f"{_PCI}.PCIServersTest.test_create_server_with_pci_dev_and_numa",
    f"{_PCI}.PCIServersTest.test_evacuate",
    f"{_PCI}.PCIServersTest.test_unshelve_after_offload",
    f"{_PCI}.PCIServersTest.test_multi_create",
    f"{_LIBVIRT}.test_vgpu.VGPUTests.test_multiple_instance_create",
    "nova.tests.functional.test_server_group.ServerGroupTestV264.test_boot_servers_with_anti_affinity",
)

WHOLE_CLASSES = (
    f"{_NUMA}.NUMAServersTest",
    f"{_NUMA}.NUMAServersRebuildTests",
    f"{_NUMA}.NUMAServersWithNetworksTest",
    f"{_LIVE}.NUMALiveMigrationPositiveTests",
    f"{_LIVE}.NUMALiveMigrationRollbackTests",
    f"{_LIVE}.NUMALiveMigrationNegativeTests",
    f"{_PCI}.PCIServersTest",
    f"{_PCI}.PCIServersWithPreferredNUMATest",
    f"{_PCI}.PCIServersWithRequiredNUMATest",
    f"{_PCI}.PCIServersWithSRIOVAffinityPoliciesTest",
    f"{_PCI}.SRIOVServersTest",
    f"{_LIBVIRT}.test_pci_in_placement.RCAndTraitBasedPCIAliasTests",
    f"{_LIBVIRT}.test_vgpu.VGPUTests",
    "nova.tests.functional.test_server_group.ServerGroupTestV264",
)


REFUSED_BEFORE = frozenset(
    {
        f"{_NUMA}.NUMAServersWithNetworksTest.test_create_server_with_multiple_physnets_fail",
        *(
            f"{_NUMA}.NUMAServersTest.test_create_server_with_{what}_fails"
            for what in (
                "dedicated_policy",
                "hugepages",
                "isolate_thread_policy",
                "mixed_policy",
                "numa",
            )
        ),
    }
)
"""Tests that end by asserting that nova's filter refused the host: ours stands before it and has done so."""

_ASKED_LAST = "self.assertTrue(self.mock_filter.called)"


@pytest.fixture(autouse=True)
def every_request_speaks_to_us(monkeypatch):
    """Nova's flavors go the whole way through our code."""
    monkeypatch.setattr(decision, "concerns_us", lambda *_: True)


def run(name):
    """Run nova's tests of that name; returns how many there were."""
    result = unittest.TestResult()
    tests = unittest.defaultTestLoader.loadTestsFromName(name)
    before = REFUSED_BEFORE & {test.id() for test in _each(tests)}
    tests.run(result)
    failed = {test.id(): trace for test, trace in (*result.errors, *result.failures)}
    refused = {test for test, trace in failed.items() if test in before and _ASKED_LAST in trace}
    others = [f"{test}\n{failed[test]}" for test in failed.keys() - refused]
    assert not others, "\n".join(others)
    assert refused == before
    return result.testsRun


def _each(tests):
    for test in tests:
        yield from _each(test) if isinstance(test, unittest.TestSuite) else (test,)


@pytest.mark.parametrize("name", ONE_OF_EACH_KIND)
def test_novas_own(name):
    assert run(name) == 1
    assert not process.engine().faults
    decided = list(journal.read(process.engine()._journal._path))
    assert any(entry["kind"] == "filter" for entry in decided)


@pytest.mark.long
@pytest.mark.parametrize("name", WHOLE_CLASSES)
def test_novas_own_class(name):
    assert run(name) > 0
