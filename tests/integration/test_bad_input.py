# SPDX-License-Identifier: Apache-2.0
"""Bad input is refused with one clear sentence, the same one wherever it is met."""

import json

import pytest

from placement_traits.request import EXTRA_SPECS, InvalidRequestError, parse, unknown_key
from tests.integration.cloud import LabCloud, LabHost, eventually

LC = {
    "numa_ext:tier": "LC",
    "hw:cpu_policy": "dedicated",
    "hw:numa_nodes": "1",
    "resources:CUSTOM_RDT_CLOS": "1",
}


def sentences(extra_specs: dict[str, str]) -> tuple[str, ...]:
    """What our parser says about a combination."""
    with pytest.raises(InvalidRequestError) as caught:
        parse(extra_specs, vcpus=1, memory_mb=128)
    return caught.value.problems


@pytest.mark.parametrize(
    ("key", "value"),
    [("numa_ext:tier", "gold"), ("numa_ext:slo_p99_us", "0"), ("numa_ext:min_utility", "1.5")],
)
def test_the_api_refuses_a_bad_value_with_our_sentence(
    cloud: LabCloud, key: str, value: str
) -> None:
    flavor = cloud.flavor({})
    done = cloud.openstack("flavor", "set", "--property", f"{key}={value}", flavor, check=False)
    assert done.returncode != 0, done.stdout
    assert str(EXTRA_SPECS[key].problem(value)) in done.stderr
    assert "400" in done.stderr


def test_the_api_refuses_an_unknown_key_and_names_the_near_one(cloud: LabCloud) -> None:
    flavor = cloud.flavor({})
    done = cloud.openstack("flavor", "set", "--property", "numa_ext:teir=LC", flavor, check=False)
    assert done.returncode != 0, done.stdout
    assert unknown_key("numa_ext:teir") in done.stderr
    assert "400" in done.stderr


@pytest.mark.parametrize(
    "extra_specs",
    [
        {"numa_ext:tier": "LC"},
        {"numa_ext:tier": "BE", "numa_ext:slo_p99_us": "500"},
        {"numa_ext:tier": "BE", "hw:numa_nodes": "1", "numa_ext:memory_policy": "bwap"},
        {"numa_ext:tier": "BE", "numa_ext:remote_gpu": "required"},
    ],
    ids=["lc-without-dedicated-cpus", "slo-on-be", "bwap-on-one-node", "remote-gpu-without-amount"],
)
def test_a_bad_combination_gets_the_same_sentence_everywhere(
    cloud: LabCloud, extra_specs: dict[str, str]
) -> None:
    wanted = sentences(extra_specs)
    flavor = cloud.flavor(extra_specs)
    checked = cloud.openstack("numa", "flavor", "check", flavor, "-f", "json", check=False)
    assert checked.returncode != 0, checked.stdout
    said = checked.stdout + checked.stderr
    server = cloud.settled(cloud.create(flavor))
    assert server.status == "ERROR"
    assert "No valid host" in server.fault
    explained = cloud.command(
        "numa-ext-explain",
        "--config-file",
        str(cloud.settings.etc / "nova" / "nova.conf"),
        server.id,
        "-f",
        "json",
    ).stdout
    for sentence in wanted:
        assert json.dumps(sentence)[1:-1] in said or sentence in said
        assert json.dumps(sentence)[1:-1] in explained


def test_a_host_without_rdt_refuses_an_lc_server_and_says_what_is_missing(cloud: LabCloud) -> None:
    """The local compute has no RDT: what an LC flavor needs is named for it."""
    server = cloud.settled(cloud.create("lc.small", "--host", "local"))
    assert server.status == "ERROR"
    assert "No valid host" in server.fault
    explained = cloud.command(
        "numa-ext-explain",
        "--config-file",
        str(cloud.settings.etc / "nova" / "nova.conf"),
        "--flavor",
        "lc.small",
    ).stdout
    (line,) = [line for line in explained.splitlines() if "local" in line.split()]
    assert "RDT" in line


def test_malformed_metadata_leaves_the_domain_alone_and_others_unaffected(
    cloud: LabCloud, h1: LabHost
) -> None:
    server = cloud.boot("lc.small", "--host", "h1")
    before = h1.enforced(server.id)
    xml = """<domain type='qemu'><name>broken</name><memory unit='MiB'>64</memory><vcpu>1</vcpu>
    <os><type>hvm</type></os><metadata><nova:instance xmlns:nova='http://openstack.org/xmlns/libvirt/nova/1.1'>
    <nova:flavor name='x'><nova:extraSpecs><nova:extraSpec name='numa_ext:tier'>gold</nova:extraSpec></nova:extraSpecs>
    </nova:flavor></nova:instance></metadata></domain>"""
    h1.run(f"cat > /tmp/broken.xml <<'END'\n{xml}\nEND\nvirsh -q create /tmp/broken.xml")
    try:
        (uuid,) = [d["uuid"] for d in h1.read_back()["domains"] if d["name"] == "broken"]

        def warned() -> bool:
            return uuid in h1.agent.log.read_text()

        eventually("the agent warns about the domain", warned)
        (told,) = [row for row in h1.ctl("status") if row["uuid"] == uuid]
        assert told["managed"] is False
        broken = h1.domain(uuid)
        assert broken is not None
        assert broken.group == "", "an unmanaged domain belongs to the root group"
        warnings = [
            line
            for line in h1.agent.log.read_text().splitlines()
            if uuid in line and "WARNING" in line
        ]
        assert len(warnings) == 1
        after = h1.enforced(server.id)
        assert (after.group, after.cpus) == (before.group, before.cpus)
    finally:
        h1.run("virsh -q destroy broken")
