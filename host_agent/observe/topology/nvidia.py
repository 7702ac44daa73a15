# SPDX-License-Identifier: Apache-2.0
"""NVLinks between GPUs, which PCI does not show: from NVML, or from a recorded ``nvidia-smi topo -m``.

NVML sees a GPU only while NVIDIA's driver holds it. A host that gives its GPUs to servers binds them to vfio-pci, so
there the operator records the matrix once, before that, and names the file in the agent's configuration::

    nvidia-smi topo -m > gpus.txt
    nvidia-smi --query-gpu=index,pci.bus_id --format=csv,noheader >> gpus.txt

Without the second command GPU numbers follow PCI addresses, as nvidia-smi's own default does.
"""

import importlib
import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, Final, TypeAlias

from placement_traits.errors import InvalidValueError
from placement_traits.names import GpuLink
from placement_traits.topology import Gpu, GpuEdge, implied_link

LOG = logging.getLogger(__name__)

Links: TypeAlias = dict[tuple[str, str], GpuLink]
"""Link by the PCI addresses of its ends, the lower one first."""

_GPU = re.compile(r"GPU([0-9]{1,6})$")
_ADDRESS = re.compile(r"([0-9a-f]{1,8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])")
_INDEX = re.compile(r"\s*([0-9]{1,6})\s*,\s*([0-9A-Fa-f:.]+)\s*$")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")  # nvidia-smi underlines its heading
_SELF: Final = "X"
_OLD_WORDS: Final = {"SOC": "SYS", "INTERNAL": "PIX"}
_NVLINKS: Final = sorted(
    (int(link.removeprefix("NV")) for link in GpuLink if link.startswith("NV")), reverse=True
)


def nvlink(count: int) -> GpuLink:
    """Return the nominal class of so many NVLinks between two GPUs: the largest that is not more."""
    return GpuLink(f"NV{next(n for n in _NVLINKS if n <= count)}")


def normal_address(bus_id: str) -> str:
    """Write a PCI address as sysfs does: NVML and nvidia-smi use eight digits for the domain, and capitals.

    :raises InvalidValueError: it is none
    """
    match = _ADDRESS.fullmatch(bus_id.strip().lower())
    if match is None:
        raise InvalidValueError("address of a GPU", bus_id, "such as 00000000:3B:00.0")
    return f"{int(match[1], 16):04x}:{match[2]}"


def parse_topo_matrix(text: str, addresses: Sequence[str], where: str) -> Links:
    """Read the output of ``nvidia-smi topo -m``.

    :param text: the matrix, followed by lines ``index, address`` where they were recorded
    :param addresses: PCI addresses of the host's GPUs, ascending: their numbers where no such lines are
    :param where: name of the file, for errors
    :raises InvalidValueError: for an unknown link word, an address that is none, or a GPU that the host does not have
    """
    lines = [_ESCAPES.sub("", line) for line in text.splitlines()]
    named = {int(m[1]): normal_address(m[2]) for line in lines if (m := _INDEX.match(line))}
    address_of = named or dict(enumerate(addresses))
    columns: list[int] = []
    links: Links = {}
    for line in lines:
        words = line.split()
        if not words or _GPU.match(words[0]) is None:
            continue
        numbers = [int(match[1]) for word in words if (match := _GPU.match(word))]
        if len(numbers) > 1 or not columns:  # the heading
            columns = numbers
            continue
        row = numbers[0]
        for column, word in zip(columns, words[1:], strict=False):
            if word != _SELF:
                a, b = sorted(_address(address_of, i, addresses, where) for i in (row, column))
                links[a, b] = _link(word, f"{where}: GPU{row} to GPU{column}")
    return links


def _address(
    address_of: Mapping[int, str], number: int, addresses: Sequence[str], where: str
) -> str:
    address = address_of.get(number)
    if address not in addresses:
        allowed = f"GPUs of this host: {', '.join(addresses) or 'none'}"
        raise InvalidValueError(f"{where}: GPU{number}", address, allowed)
    return str(address)


def _link(word: str, where: str) -> GpuLink:
    if re.fullmatch(r"NV[1-9][0-9]{0,5}", word):
        return nvlink(int(word.removeprefix("NV")))
    try:
        return GpuLink(_OLD_WORDS.get(word, word))
    except ValueError:
        raise InvalidValueError(where, word, "X, NV<number>, PIX, PXB, PHB, NODE, SYS") from None


def read_nvml(nvml: Any = None) -> Links:
    """Ask NVML for the NVLinks of all GPUs that its driver holds.

    GPUs that are joined by NVSwitches have as many links to each other as the lesser of the two has to the switches.

    :param nvml: module with the interface of ``pynvml``; default the installed one, absent = no links, one log line
    """
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            LOG.info("nvidia-ml-py is not installed: NVLinks are not looked for.")
            return {}
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        LOG.info("NVML finds no driver (%s): NVLinks are not looked for.", error)
        return {}
    try:
        return _nvml_links(nvml)
    finally:
        nvml.nvmlShutdown()


def _nvml_links(nvml: Any) -> Links:
    handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    remotes = {_bus_id(nvml.nvmlDeviceGetPciInfo(h)): _remotes(nvml, h) for h in handles}
    links: Links = {}
    for a, b in combinations(sorted(remotes), 2):
        direct = remotes[a][b]
        switched = min(
            sum(n for end, n in remotes[gpu].items() if end not in remotes) for gpu in (a, b)
        )
        if direct or switched:
            links[a, b] = nvlink(direct or switched)
    return links


def _remotes(nvml: Any, handle: Any) -> Counter[str]:
    """Number of active NVLinks of one GPU by the address at the other end."""
    found: Counter[str] = Counter()
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            if nvml.nvmlDeviceGetNvLinkState(handle, link) == nvml.NVML_FEATURE_ENABLED:
                found[_bus_id(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link))] += 1
        except nvml.NVMLError:
            continue  # this GPU has no link of that number
    return found


def _bus_id(info: Any) -> str:
    bus_id = info.busId
    return normal_address(bus_id.decode() if isinstance(bus_id, bytes) else bus_id)


def with_links(
    gpus: Iterable[Gpu], edges: Iterable[GpuEdge], links: Mapping[tuple[str, str], GpuLink]
) -> tuple[GpuEdge, ...]:
    """Put links over those that PCI shows; what follows from switch and node numbers is left out.

    :param gpus: GPUs of the host
    :param edges: links by PCI
    :param links: links by NVML or a recorded matrix; GPUs that the host does not have are ignored
    :returns: links ascending by ends
    """
    by_address = {gpu.address: gpu for gpu in gpus}
    merged = {(edge.a, edge.b): edge.link for edge in edges}
    merged |= {ends: link for ends, link in links.items() if by_address.keys() >= set(ends)}
    return tuple(
        GpuEdge(a, b, link)
        for (a, b), link in sorted(merged.items())
        if link is not implied_link(by_address[a], by_address[b])
    )
