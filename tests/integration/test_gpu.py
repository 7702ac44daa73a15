# SPDX-License-Identifier: Apache-2.0
"""A GPU flavor gets the device by VFIO on an emulated host."""

import json

from tests.integration.cloud import LabCloud


def test_the_server_has_the_device_and_explain_names_its_node(cloud: LabCloud) -> None:
    server = cloud.boot("be.gpu")
    host = cloud.hosts[server.host]
    domain = host.enforced(server.id)
    (address,) = domain.facts["hostdevs"]
    device = f"/sys/bus/pci/devices/{address}"
    node = host.run(f"cat {device}/numa_node").strip()
    driver = host.run(f"basename $(readlink {device}/driver)").strip()
    assert driver == "vfio-pci"
    assert node in ("0", "2"), "the lab's GPUs are on NUMA nodes 0 and 2"
    held = host.run(f"ls -l /proc/{domain.facts['pid']}/fd")
    assert "/dev/vfio/" in held, "QEMU does not hold a VFIO group"
    explained = json.dumps(host.ctl("explain", server.id))
    assert f'"{address}"' in explained
    (told,) = [row for row in host.ctl("status") if row["uuid"] == server.id]
    assert told["gpus"] == [{"address": address, "node": int(node)}]
