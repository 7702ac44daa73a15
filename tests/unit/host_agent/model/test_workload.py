# SPDX-License-Identifier: Apache-2.0
"""From a domain's XML to what the server wants, and what may be done to it."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulation.servers import BE_SPECS, LC_SPECS, PROJECT, Server
from host_agent.model.workload import Activity, Unmanaged, Workload, parse
from placement_traits.errors import InvalidValueError
from placement_traits.names import MemoryPolicy, Tier


def read(server: Server, **options: bool) -> Workload:
    return parse(server.xml, Activity.RUNNING, **options)


def test_a_latency_critical_server_is_understood() -> None:
    workload = read(Server("web", LC_SPECS, cpus=(5, 7), vcpus=2, node=2))
    assert (workload.title, workload.tier, workload.floating) == ("web", Tier.LC, False)
    assert workload.domain.vcpu_pins == {0: {5}, 1: {7}}
    assert workload.domain.emulator_pin == {5, 7}
    (cell,) = workload.domain.cells
    assert (cell.vcpus, cell.memory_mb, cell.host_nodes) == ({0, 1}, 64, {2})
    assert workload.request is not None
    assert workload.request.ways == 4
    assert workload.project == PROJECT


def test_a_server_whose_owner_is_not_said_has_no_project() -> None:
    xml = Server("web", LC_SPECS, cpus=(5,)).xml.replace("nova:owner", "nova:else")
    workload = parse(xml, Activity.RUNNING)
    assert (workload.tier, workload.project) == (Tier.LC, "")


def test_a_floating_server_keeps_the_cpus_that_nova_lets_it_share() -> None:
    workload = read(Server("batch", BE_SPECS, shared="0,2-4"))
    assert workload.floating
    assert workload.domain.vcpu_cpuset == {0, 2, 3, 4}
    assert workload.request is not None
    assert workload.request.memory_policy is MemoryPolicy.BWAP


def test_a_numa_topology_from_the_image_makes_a_server_bound() -> None:
    """The flavor says nothing of NUMA, the XML does: the XML is right."""
    assert not read(Server("image", BE_SPECS, cpus=(1,))).floating


def test_the_older_metadata_namespace_is_read() -> None:
    xml = Server("old", BE_SPECS).xml.replace("libvirt/nova/1.1", "libvirt/nova/1.0")
    assert parse(xml, Activity.RUNNING).tier is Tier.BE


def test_an_image_gives_numa_nodes_and_dedicated_cpus() -> None:
    image = (
        "<nova:image><nova:properties><nova:property name='hw_numa_nodes'>2</nova:property>"
        "<nova:property name='hw_cpu_policy'>dedicated</nova:property></nova:properties></nova:image></nova:instance>"
    )
    xml = Server("image", BE_SPECS).xml.replace("</nova:instance>", image)
    request = parse(xml, Activity.RUNNING).request
    assert request is not None
    assert (request.floating, request.dedicated, request.numa_nodes) == (False, True, 2)


def test_an_image_trait_gives_the_tier() -> None:
    server = Server("image", {})
    image = (
        "<nova:image><nova:properties><nova:property name='traits_required'>"
        "['CUSTOM_NUMA_EXT_TIER_BE']</nova:property></nova:properties></nova:image></nova:instance>"
    )
    xml = server.xml.replace("</nova:instance>", image)
    assert parse(xml, Activity.RUNNING).tier is Tier.BE


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        (Server("foreign", {}, metadata=""), Unmanaged.NOT_NOVA),
        (Server("plain", {}), Unmanaged.UNTAGGED),
        (Server("off", {"numa_ext:managed": "false"}), Unmanaged.OPTED_OUT),
        (Server("typo", {"numa_ext:teir": "LC"}), Unmanaged.MALFORMED),
        (Server("value", {"numa_ext:tier": "best"}), Unmanaged.MALFORMED),
        (Server("combination", {"numa_ext:tier": "LC"}), Unmanaged.MALFORMED),
        (Server("nova", {**BE_SPECS, "hw:numa_nodes": "many"}), Unmanaged.MALFORMED),
    ],
    ids=lambda value: value.title if isinstance(value, Server) else value.name,
)
def test_what_is_left_alone_says_why(server: Server, reason: Unmanaged) -> None:
    workload = read(server)
    assert (workload.request, workload.unmanaged) == (None, reason)
    assert bool(workload.problem) == (reason is Unmanaged.MALFORMED)


def test_untagged_servers_are_managed_on_demand() -> None:
    workload = read(Server("plain", {}), manage_untagged=True)
    assert workload.request is not None
    assert workload.tier is None


@pytest.mark.parametrize(
    ("devices", "word"),
    [
        (
            "<hostdev mode='subsystem' type='pci'><source><address domain='0x0000' bus='0x81' slot='0x00' "
            "function='0x0'/></source></hostdev>",
            "VFIO",
        ),
        ("<interface type='vdpa'><source dev='/dev/vhost-vdpa-0'/></interface>", "VFIO"),
    ],
)
def test_devices_that_pin_pages_make_a_server_immovable(devices: str, word: str) -> None:
    domain = read(Server("gpu", BE_SPECS, devices=devices)).domain
    assert word in (domain.immovable or "")


def test_a_vfio_device_is_known_by_its_address() -> None:
    address = "<address domain='0x0000' bus='0x81' slot='0x00' function='0x1'/>"
    device = f"<hostdev mode='subsystem' type='pci'><source>{address}</source></hostdev>"
    assert read(Server("gpu", BE_SPECS, devices=device)).domain.hostdevs == ("0000:81:00.1",)


@pytest.mark.parametrize(
    ("backing", "word"),
    [("<hugepages/>", "hugetlb"), ("<locked/>", "locked"), ("<nosharepages/>", "")],
)
def test_memory_backing_decides_whether_pages_may_move(backing: str, word: str) -> None:
    xml = Server("be", BE_SPECS).xml.replace("<allocation mode='immediate'/>", backing)
    assert word in (parse(xml, Activity.RUNNING).domain.immovable or "")


@settings(deadline=None)
@given(st.text(max_size=200))
def test_rubbish_is_refused_in_our_words(text: str) -> None:
    with pytest.raises(InvalidValueError):
        parse(text, Activity.RUNNING)


HUGE = "9" * 5000
BOUND = Server("web", LC_SPECS, cpus=(5, 7), vcpus=2, node=2).xml
HOSTDEV = (
    "<devices><hostdev type='pci'><source><address domain='0x0000' bus='{bus}' slot='0x00' "
    "function='0x0'/></source></hostdev>"
)
BAD_DOMAINS = {
    "cell without a number": BOUND.replace(f"memory='{64 * 1024}'", "memory='many'"),
    "cell of 5,000 digits": BOUND.replace(f"memory='{64 * 1024}'", f"memory='{HUGE}'"),
    "negative cell": BOUND.replace("cell id='0'", "cell id='-1'"),
    "memory that no float holds": BOUND.replace(f"'KiB'>{64 * 1024}<", f"'GiB'>{'9' * 400}<"),
    "vCPUs of 5,000 digits": BOUND.replace("static'>2<", f"static'>{HUGE}<"),
    "pin of 5,000 digits": BOUND.replace(
        "vcpupin vcpu='0' cpuset='5'", f"vcpupin vcpu='0' cpuset='{HUGE}'"
    ),
    "PCI address of words": BOUND.replace("<devices>", HOSTDEV.format(bus="first")),
    "PCI address of 5,000 digits": BOUND.replace("<devices>", HOSTDEV.format(bus=f"0x{HUGE}")),
    "half a character": BOUND.replace("instance-", "instance-\ud800"),
    "10 MB of a number": BOUND.replace("static'>2<", f"static'>{'x' * 10_000_000}<"),
}


@pytest.mark.parametrize("xml", BAD_DOMAINS.values(), ids=BAD_DOMAINS)
def test_a_domain_that_makes_no_sense_is_refused_in_one_short_sentence(xml: str) -> None:
    assert xml != BOUND
    with pytest.raises(InvalidValueError) as caught:
        parse(xml, Activity.RUNNING)
    assert len(str(caught.value)) < 600


@settings(deadline=None)
@given(st.data())
def test_any_damage_to_a_domain_is_understood_or_refused(data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(BOUND)))
    last = data.draw(st.integers(first, min(first + 40, len(BOUND))))
    put = data.draw(st.one_of(st.text(max_size=12), st.just(HUGE), st.just("'-1'")))
    with suppress(InvalidValueError):
        assert (
            parse(BOUND[:first] + put + BOUND[last:], Activity.RUNNING).activity is Activity.RUNNING
        )


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(
            [
                "numa_ext:tier",
                "numa_ext:slo_p99_us",
                "hw:numa_nodes",
                "numa_ext:x",
                "resources:CUSTOM_RDT_CLOS",
            ]
        ),
        st.text("<&>\"'aLCBE01-_.é ", max_size=12).map(
            lambda text: text.replace("&", "&amp;").replace("<", "&lt;")
        ),
    )
)
def test_hostile_extra_specs_never_get_through(specs: dict[str, str]) -> None:
    """Whatever a flavor holds, the server is understood or left alone; nothing else happens."""
    workload = read(Server("hostile", specs))
    assert (workload.request is None) == (workload.unmanaged is not None)
