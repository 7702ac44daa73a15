# SPDX-License-Identifier: Apache-2.0
"""Packages and sources that are fetched from the machine's Debian archive and never installed.

Binary packages come through the machine's own apt configuration. Most machines configure no sources, so a private
source list is derived from the archives that the machine uses already; it, its lists and its downloads lie in the
cache folder, and /etc/apt is only read.
"""

import re
import subprocess
from pathlib import Path

from .errors import LabError
from .process import run_logged

_ARCHIVE_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def candidate_versions(pattern: str) -> dict[str, str]:
    """Packages of the archive and the version that apt would install now.

    :param pattern: regular expression that a package's whole name must match.
    """
    names = [
        name for name in _output("apt-cache", "pkgnames").split() if re.fullmatch(pattern, name)
    ]
    if not names:
        return {}
    policy = _output("apt-cache", "policy", *names)
    found = re.findall(r"^(\S+):\n  Installed: .*\n  Candidate: (\S+)", policy, re.MULTILINE)
    return {name: version for name, version in found if version != "(none)"}


def newer(versions: list[str]) -> str:
    """The newest of some Debian version numbers (at least one)."""
    newest = versions[0]
    for version in versions[1:]:
        is_newer = subprocess.run(
            ["dpkg", "--compare-versions", version, "gt", newest], check=False
        )
        if is_newer.returncode == 0:
            newest = version
    return newest


def update(log: Path) -> None:
    """Read the archive's package lists again."""
    run_logged("apt-get update", ["apt-get", "--quiet", "update"], log)


def unpack_package(package: str, folder: Path, log: Path) -> None:
    """Download one binary package and unpack its files into ``folder``, which is made by this.

    :raises LabError: the archive does not have it, or the disk is full.
    """
    folder.mkdir(parents=True)
    download = folder / "download"
    download.mkdir()
    run_logged(
        f"downloading {package}",
        ["apt-get", "--quiet", "-o", "APT::Sandbox::User=root", "download", package],
        log,
        folder=download,
    )
    (archive,) = download.glob("*.deb")
    run_logged(f"unpacking {archive.name}", ["dpkg-deb", "--extract", archive, folder], log)
    archive.unlink()
    download.rmdir()


class SourceArchive:
    """The sources of the archives that this machine uses, through a private apt configuration.

    :param folder: where its list, index files and downloads are kept.
    :param suites: of Debian, beside the ones that this machine uses: theirs may be newer.
    """

    def __init__(self, folder: Path, suites: tuple[str, ...] = ()) -> None:
        self._folder = folder
        self._suites = suites
        self._list = folder / "sources.list"

    def update(self, log: Path) -> None:
        """Write the private source list and fetch the indexes.

        :raises LabError: the machine uses no Debian archive, or it could not be reached.
        """
        archives = self._debian_archives()
        if not archives:
            update(log)
            archives = self._debian_archives()
        if not archives:
            raise LabError("apt on this machine knows no Debian archive to take sources from", log)
        for part in ("lists/partial", "cache/archives/partial"):
            (self._folder / part).mkdir(parents=True, exist_ok=True)
        self._list.write_text(
            "".join(
                f"deb-src [signed-by={_ARCHIVE_KEYRING}] {line}\n"
                for line in (*archives, *_of_suites(archives, self._suites))
            )
        )
        run_logged("apt-get update for sources", [*self._apt("apt-get"), "update"], log)

    def versions(self, source: str) -> list[str]:
        """Versions of a source package on offer."""
        found = _output(*self._apt("apt-cache"), "showsrc", "--only-source", source)
        return re.findall(r"^Version: (\S+)", found, re.MULTILINE)

    def unpack(self, source: str, version: str, folder: Path, log: Path) -> Path:
        """Download a source package into ``folder`` and unpack it, Debian's patches applied; return its tree."""
        run_logged(
            f"downloading the source of {source}",
            [*self._apt("apt-get"), "source", "--download-only", f"{source}={version}"],
            log,
            folder=folder,
        )
        (description,) = folder.glob("*.dsc")
        tree = folder / source
        run_logged(
            f"unpacking the source of {source}", ["dpkg-source", "-x", description, tree], log
        )
        return tree

    def original(self, source: str, version: str, folder: Path, log: Path) -> Path:
        """Download a source package's original archive into ``folder``, without Debian's own part; return it.

        Some mirrors lack single files of a package. The index, which is signed, says what the archive holds.

        :raises LabError: the indexes do not have it, or the archive does not.
        """
        listed = _output(
            *self._apt("apt-get"),
            "source",
            "--print-uris",
            "--download-only",
            f"{source}={version}",
        )
        found = re.findall(r"^'(\S+)' (\S+\.orig\.tar\.\w+) \d+ (SHA256:\w+)", listed, re.MULTILINE)
        if not found:
            raise LabError(f"the archive has no original source of {source} {version}", log)
        address, name, digest = found[0]
        run_logged(
            f"downloading {name}",
            ["/usr/lib/apt/apt-helper", "download-file", address, folder / name, digest],
            log,
        )
        return folder / name

    def _debian_archives(self) -> list[str]:
        targets = _output(
            "apt-get",
            "indextargets",
            "--format",
            "$(ORIGIN) $(REPO_URI) $(RELEASE) $(COMPONENT)",
            "Created-By: Packages",
        )
        debian = [
            line.removeprefix("Debian ")
            for line in targets.splitlines()
            if line.startswith("Debian ")
        ]
        return sorted(set(debian))

    def _apt(self, program: str) -> list[str]:
        return [
            program,
            "--quiet",
            *("-o", f"Dir::Etc::sourcelist={self._list}"),
            *("-o", "Dir::Etc::sourceparts=-"),
            *("-o", f"Dir::State::lists={self._folder}/lists"),
            *("-o", f"Dir::Cache={self._folder}/cache"),
            *("-o", "APT::Sandbox::User=root"),
        ]


def _of_suites(archives: list[str], suites: tuple[str, ...]) -> list[str]:
    """Return lines ``URI SUITE COMPONENT`` of other suites, of the archive that a machine's own lines name."""
    main = [each.split()[0] for each in archives if each.split()[2:] == ["main"]]
    if not main:
        return []
    known = {each.split()[1] for each in archives}
    plain = [uri for uri in main if "security" not in uri]
    uri = (plain or main)[0]
    return [f"{uri} {suite} main" for suite in suites if suite not in known]


def _output(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LabError(f"{argv[0]} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
