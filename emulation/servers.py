# SPDX-License-Identifier: Apache-2.0
"""Servers as nova defines them in libvirt: the XML of a domain with nova's metadata."""

import uuid as uuids
from dataclasses import dataclass, field

_FLAVOR = """
  <metadata>
    <nova:instance xmlns:nova="http://openstack.org/xmlns/libvirt/nova/1.1">
      <nova:package version="34.0.0"/>
      <nova:name>{title}</nova:name>
      <nova:flavor name="{flavor}" id="c35ad548-90c0-49bc-bc8e-57ea6cb03137">
        <nova:memory>{memory}</nova:memory>
        <nova:vcpus>{vcpus}</nova:vcpus>
        <nova:extraSpecs>{specs}</nova:extraSpecs>
      </nova:flavor>
      <nova:owner>
        <nova:user uuid="7f6a2c3f0b8c4a63a4dc4e6b6d9a5c01">demo</nova:user>
        <nova:project uuid="{project}">demo</nova:project>
      </nova:owner>
    </nova:instance>
  </metadata>"""

PROJECT = "0e4d8a52a5d34f7c9a1b6a1f0f7d2c3e"
LC_SPECS = {
    "hw:cpu_policy": "dedicated",
    "hw:numa_nodes": "1",
    "numa_ext:tier": "LC",
    "resources:CUSTOM_RDT_CLOS": "1",
    "resources_NODE:CUSTOM_LLC_WAY": "4",
}
BE_SPECS = {"numa_ext:tier": "BE"}


@dataclass(frozen=True)
class Server:
    """A server as nova would define it.

    :param cpus: pin of each vCPU of a dedicated server, () for a floating one
    :param node: host node of its one guest cell, when it is dedicated
    :param metadata: replaces nova's metadata
    :param shared: CPUs that a floating one may use, "" when nova restricts nothing
    :param devices: XML of more devices
    :param backing: XML of how its memory is backed
    """

    title: str
    specs: dict[str, str]
    cpus: tuple[int, ...] = ()
    vcpus: int = 1
    memory_mb: int = 64
    uuid: str = field(default_factory=lambda: str(uuids.uuid4()))
    metadata: str | None = None
    shared: str = "0-1"
    node: int = 0
    devices: str = ""
    backing: str = ""

    @property
    def xml(self) -> str:
        """The domain as nova writes it, less what QEMU does not need to idle."""
        specs = "".join(
            f'<nova:extraSpec name="{key}">{value}</nova:extraSpec>'
            for key, value in self.specs.items()
        )
        metadata = self.metadata
        if metadata is None:
            metadata = _FLAVOR.format(
                title=self.title,
                flavor=f"{self.title}.flavor",
                memory=self.memory_mb,
                vcpus=self.vcpus,
                specs=specs,
                project=PROJECT,
            )
        vcpu = f"<vcpu placement='static'>{self.vcpus}</vcpu>"
        topology = ""
        if self.cpus:
            pins = "".join(
                f"<vcpupin vcpu='{vcpu_id}' cpuset='{cpu}'/>"
                for vcpu_id, cpu in enumerate(self.cpus)
            )
            every = ",".join(map(str, self.cpus))
            nodes = f"mode='strict' nodeset='{self.node}'"
            topology = f"""
  <cputune>{pins}<emulatorpin cpuset='{every}'/></cputune>
  <numatune><memory {nodes}/><memnode cellid='0' {nodes}/></numatune>
  <cpu><numa><cell id='0' cpus='0-{self.vcpus - 1}' memory='{self.memory_mb * 1024}' unit='KiB'/></numa></cpu>"""
        elif self.shared:
            vcpu = f"<vcpu placement='static' cpuset='{self.shared}'>{self.vcpus}</vcpu>"
        return f"""<domain type='qemu'>
  <name>instance-{self.uuid[:8]}</name>
  <uuid>{self.uuid}</uuid>{metadata}
  <memory unit='KiB'>{self.memory_mb * 1024}</memory>
  {vcpu}{topology}
  <memoryBacking>{self.backing}<allocation mode='immediate'/></memoryBacking>
  <os><type arch='x86_64' machine='pc'>hvm</type></os>
  <features><acpi/><apic/></features>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <controller type='usb' model='none'/>
    <memballoon model='virtio' autodeflate='on' freePageReporting='on'/>{self.devices}
  </devices>
</domain>"""
