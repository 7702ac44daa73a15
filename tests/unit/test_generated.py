# SPDX-License-Identifier: Apache-2.0
"""What is generated out of the code is in the repository, readable without a build, and current: ``make config``."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.entry_points import environment
from tools.tables import PAGES, SOURCE, version

ROOT = Path(__file__).parents[2]
SAMPLES = {
    "etc/nova/config-generator.conf": "etc/nova/nova-numa-ext.conf.sample",
    "etc/numa-ext-jobs/config-generator.conf": "etc/numa-ext-jobs/numa-ext-jobs.conf.sample",
    "etc/numa-ext-jobs/policy-generator.conf": "etc/numa-ext-jobs/policy.yaml.sample",
    "etc/numa-host-agent/config-generator.conf": "etc/numa-host-agent/numa-host-agent.conf.sample",
}
PROGRAMS = {
    "config": "from oslo_config.generator import main; import sys; sys.exit(main(sys.argv[1:]))",
    "policy": "from oslo_policy.generator import generate_sample as main; import sys; sys.exit(main(sys.argv[1:]))",
}


@pytest.mark.parametrize("path", sorted(PAGES))
def test_a_page_of_tables_is_as_it_is_generated(path: str) -> None:
    assert (SOURCE / path).read_text() == PAGES[path]()


def test_no_page_prints_tables_only_when_it_is_built() -> None:
    """But for names and types of options, which are in the samples, each with its default."""
    found = {
        file.relative_to(SOURCE).as_posix(): line
        for file in SOURCE.rglob("*.rst")
        for line in file.read_text().splitlines()
        if line.startswith((".. show-options::", ".. metrics::", ".. option-advice::"))
    }
    assert set(found) == {"reference/options.rst"}


@pytest.mark.parametrize(("generator", "sample"), SAMPLES.items())
def test_a_sample_is_as_it_is_generated(tmp_path: Path, generator: str, sample: str) -> None:
    made = tmp_path / "sample"
    words = ["--config-file", generator, "--output-file", str(made)]
    program = PROGRAMS[Path(generator).name.partition("-")[0]]
    command = [sys.executable, "-c", program, *words]
    subprocess.run(command, cwd=ROOT, env=environment(tmp_path), check=True)
    assert made.read_text() == (ROOT / sample).read_text()


def test_the_sample_of_the_agent_says_where_placement_is_found() -> None:
    text = (ROOT / "etc/numa-host-agent/numa-host-agent.conf.sample").read_text()
    section = text[text.index("[placement]") :]
    for option in ("valid_interfaces = internal,public", "region_name", "endpoint_override"):
        assert f"\n#{option}" in section


def test_pages_name_one_version_that_of_the_package() -> None:
    """A release begins in ``debian/changelog``, and file names in the pages follow."""
    named = {
        found
        for page in SOURCE.rglob("*.rst")
        for found in re.findall(
            r"(?:nova_numa_ext-|_)(\d+\.\d+\.\d+)(?:-py3|\.tar|_all)", page.read_text()
        )
    }
    assert named == {version()}
    assert f"\n{version()}\n=====\n" in (SOURCE / "reference/release-notes.rst").read_text()
