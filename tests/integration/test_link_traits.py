# SPDX-License-Identifier: Apache-2.0
"""GPU traits in ``[pci]device_spec`` lines that our tool prints reach nova's own providers and stay there."""

import json
import re
from collections.abc import Callable, Iterator

import pytest
from numa_lab.configuration import GPU_RESOURCE_CLASS

from tests.integration.cloud import LabCloud, LabHost, eventually

OURS = ("CUSTOM_NUMA_EXT_", "CUSTOM_GPU_LINK_")
UPDATE_S = 15
"""Between two updates of nova-compute in this story; by default a minute."""


def providers(cloud: LabCloud, host: str) -> dict[str, set[str]]:
    """Traits of all providers of a host, by name."""
    ours = {
        uuid: name for uuid, name in cloud.providers().items() if re.match(rf"{host}(_|:|$)", name)
    }
    return {name: cloud.traits(uuid) for uuid, name in ours.items()}


def of_nova(found: dict[str, set[str]], host: str) -> dict[str, set[str]]:
    """Our traits of nova's PCI providers, by PCI address."""
    return {
        name.removeprefix(f"{host}_").lower(): {t for t in traits if t.startswith(OURS)}
        for name, traits in found.items()
        if name.startswith(f"{host}_")
    }


def of_us(found: dict[str, set[str]]) -> dict[str, set[str]]:
    """All providers that our agent made."""
    return {name: traits for name, traits in found.items() if ":" in name.partition("_")[0]}


@pytest.fixture
def told(running_cloud: LabCloud, h1: LabHost) -> Iterator[Callable[[list[str]], None]]:
    """Replaces the ``device_spec`` lines of h1 and restarts its nova-compute, which updates Placement more often then.

    The old file comes back at the end.
    """
    file = h1.emulated.nova_conf
    before = file.read_text()

    def tell(lines: list[str]) -> None:
        text = re.sub(r"^device_spec = .*\n", "", before, flags=re.MULTILINE)
        text = text.replace("[pci]\n", "[pci]\n" + "\n".join(lines) + "\n", 1)
        often = f"[DEFAULT]\nupdate_resources_interval = {UPDATE_S}\n"
        file.write_text(text.replace("[DEFAULT]\n", often, 1))
        running_cloud.restart_compute(h1)

    yield tell
    file.write_text(before)
    running_cloud.restart_compute(h1)


@pytest.mark.long
def test_they_survive_restarts_and_periodic_updates_of_nova_compute(
    cloud: LabCloud, h1: LabHost, told: Callable[[list[str]], None]
) -> None:
    """Issue 3: link traits survive nova-compute's periodic update and restart."""
    printed = h1.ctl("device-spec", "--resource-class", GPU_RESOURCE_CLASS)
    lines = [row["device_spec"] for row in printed]
    specs = [json.loads(line.removeprefix("device_spec = ")) for line in lines]
    wanted = {spec["address"]: set(spec["traits"].split(",")) for spec in specs}
    assert wanted, "h1 has no GPUs"
    assert {address for address, traits in wanted.items() if not traits} == set(), wanted
    before = of_us(providers(cloud, "h1"))

    def there() -> bool:
        return of_nova(providers(cloud, "h1"), "h1") == wanted

    told(lines)
    eventually("nova's providers carry our traits", there, 300, 5)
    cloud.restart_compute(h1)
    updates = (
        "grep -c 'Placement PCI resource view' " + str(h1.emulated.config.log) + "/nova-compute.log"
    )
    seen = int(h1.run(updates))
    eventually("two more updates", lambda: int(h1.run(updates)) >= seen + 2, 400, 10)
    assert of_nova(providers(cloud, "h1"), "h1") == wanted
    after = of_us(providers(cloud, "h1"))
    neighbours = {"CUSTOM_NUMA_EXT_HAS_LC", "CUSTOM_NUMA_EXT_HAS_BE"}
    assert {n: t - neighbours for n, t in after.items()} == {
        n: t - neighbours for n, t in before.items()
    }
