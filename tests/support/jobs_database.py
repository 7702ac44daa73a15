# SPDX-License-Identifier: Apache-2.0
"""Jobs to be stored, and an engine that leads."""

from dataclasses import replace

from nova_numa_ext.orchestrator.store.jobs import NewJob, Sizes, StoredPart

PART = StoredPart(
    name="workers",
    count=2,
    flavor="flavor-1",
    sizes=Sizes(vcpus=4, memory_mb=2048, disk_gb=10),
    extra_specs={"numa_ext:gpu_policy": "topo_p"},
    image="image-1",
    networks=("network-1",),
)


def new_job(name="job", parts=(PART,), project="project-1", user="user-1", trust="trust-1", **more):
    """A job of one part unless more is given."""
    return NewJob(project, user, trust, name, tuple(parts), **more)


def part(name, **more):
    return replace(PART, name=name, **more)
