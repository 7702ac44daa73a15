# SPDX-License-Identifier: Apache-2.0
"""Bad input is refused with one clear sentence, the same one wherever it is met."""

import json

import pytest

from placement_traits.request import EXTRA_SPECS, InvalidRequestError, parse, unknown_key
from tests.integration.cloud import LabCloud

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
    ids=["lc-without-dedicated-cpus", "slo-on-be", "bwap-on-one-node", "remote-gpu-required"],
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
