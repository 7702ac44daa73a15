# SPDX-License-Identifier: Apache-2.0
"""Options of leases: what keeps them apart."""

from pathlib import Path
from typing import Any

import pytest

from host_agent.conf.remote_gpus import PAUSE_SPREAD, SILENT_S, RemoteGpuOptions
from nova_numa_ext.orchestrator.lease_steps import LOST_S
from placement_traits.errors import InvalidValueError
from placement_traits.names import gpu_models

LENDS: dict[str, Any] = {
    "gpus": ("a=500", "b=500"),
    "transport": "mine",
    "nics": ("eth1=100",),
    "fabrics": ("main",),
}


def test_each_gpu_has_its_nodes() -> None:
    nodes = ("a=/dev/nvidia0", "a=/dev/nvidiactl", "b=/dev/nvidia1")
    assert RemoteGpuOptions(**LENDS, devices=nodes).nodes() == {
        "a": (Path("/dev/nvidia0"), Path("/dev/nvidiactl")),
        "b": (Path("/dev/nvidia1"),),
    }
    assert RemoteGpuOptions(**LENDS).nodes() == {}


@pytest.mark.parametrize(
    "node", ["c=/dev/nvidia0", "a", "a=nvidia0", "a=/etc/shadow", "a=/dev/../etc/shadow", "=/dev/x"]
)
def test_a_node_that_is_none_of_a_lent_gpu_is_refused(node: str) -> None:
    with pytest.raises(InvalidValueError, match="NAME=/dev/… of a lent GPU"):
        RemoteGpuOptions(**LENDS, devices=(node,))


def test_a_lent_gpu_is_published_with_its_model() -> None:
    pool = RemoteGpuOptions(**LENDS, models=("a=p100",)).lent("g1")
    assert [each.traits for each in pool.gpus] == [{"CUSTOM_NUMA_EXT_RGPU_MODEL_P100"}, set()]
    assert gpu_models(pool.gpus[0].traits) == {"p100"}
    for wrong in ("c=p100", "a", "a=P 100", "p100"):
        with pytest.raises(InvalidValueError, match="NAME=MODEL of a lent GPU"):
            RemoteGpuOptions(**LENDS, models=(wrong,)).check()


def test_leases_are_kept_apart_unless_it_is_a_trial() -> None:
    assert RemoteGpuOptions(**LENDS).isolated
    with pytest.raises(InvalidValueError, match="nothing keeps leases apart"):
        RemoteGpuOptions(**LENDS, isolated=False)
    assert not RemoteGpuOptions(**LENDS, isolated=False, trying_out=True).isolated


def test_guests_are_led_by_who_knows_which_servers_run_and_by_which_transport() -> None:
    assert RemoteGpuOptions(guests=True, uses=True, transport="mine").guests
    for lacks in ({"uses": True}, {"transport": "mine"}):
        with pytest.raises(InvalidValueError, match="uses = true and the name of a transport"):
            RemoteGpuOptions(guests=True, **lacks)  # type: ignore[arg-type]


def test_no_host_rests_until_the_service_takes_it_for_silent() -> None:
    assert SILENT_S == LOST_S
    assert RemoteGpuOptions(uses=True, rest_s=45.0, interval_s=11.9).rest_s == 45.0
    for rest_s, interval_s in ((45.0, 12.0), (30.0, 24.0), (1.0, 50.0)):
        assert rest_s + (1 + PAUSE_SPREAD) * interval_s >= LOST_S
        with pytest.raises(InvalidValueError, match="rest_s"):
            RemoteGpuOptions(uses=True, rest_s=rest_s, interval_s=interval_s)
        assert RemoteGpuOptions(uses=True, rest_s=0.0, interval_s=interval_s).rest_s == 0.0
        assert RemoteGpuOptions(**LENDS, uses=True, rest_s=rest_s, interval_s=interval_s).uses


def test_a_fabric_that_placement_could_not_name_is_refused_where_it_is_written() -> None:
    for lends in ({}, LENDS):
        with pytest.raises(InvalidValueError, match=r"\[remote_gpus\]fabrics.*lower-case letters"):
            RemoteGpuOptions(**{**lends, "uses": True, "fabrics": ("main", "Rack 7")})
