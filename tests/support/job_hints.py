# SPDX-License-Identifier: Apache-2.0
"""Scheduler hints as the job service makes them."""

import time

from nova_numa_ext.job_hint import HINT, JobHint, hint_keys

KEY = "Zm9yIHRlc3RzIG9ubHkuIERvIG5vdCB1c2UgaXQuIQE="
OTHER_KEY = "YW5vdGhlciBvbmUgZm9yIHRlc3RzLiBEbyBub3QuISE="
KEYS = hint_keys([KEY], "numa_ext_jobs")


def job_hint(*hosts, **changes):
    """A hint for a server of project ``project`` and flavor ``f``, planned on hosts."""
    fields = {
        "job": "job-1",
        "part": "workers",
        "project": "project",
        "flavor": "f",
        "hosts": hosts,
        "spare": (),
        "extra_specs": {},
        "any_utility": False,
    }
    return JobHint(**{**fields, **changes})


def sealed(*hosts, keys=KEYS, age_s=0, **changes):
    """Its text."""
    return keys.seal(job_hint(*hosts, **changes), time.time() - age_s)


def hints(text):
    """Hints of a RequestSpec."""
    return {HINT: [text]}
