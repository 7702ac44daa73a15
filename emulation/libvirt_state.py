# SPDX-License-Identifier: Apache-2.0
"""libvirt's own files of a running domain, as far as the agent reads them, for processes that stand for QEMU's."""

from pathlib import Path


def write(folder: Path, name: str, uuid: str, pid: int, tune: str = "") -> None:
    """Write ``NAME.pid`` and ``NAME.xml``.

    :param folder: is made when it is missing
    :param tune: content of ``cputune``
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    (folder / f"{name}.xml").write_text(
        f"<domstatus state='running' reason='booted' pid='{pid}'>\n"
        f"  <domain type='qemu' id='1'><name>{name}</name><uuid>{uuid}</uuid>"
        f"<cputune>{tune}</cputune></domain>\n</domstatus>\n"
    )
    (folder / f"{name}.pid").write_text(f"{pid}\n")
