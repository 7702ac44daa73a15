# SPDX-License-Identifier: Apache-2.0
"""F-000-43, blind: what the harness measures on a modelled host is what the model holds, and labels carry all of it."""

import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from emulation.gpu_workloads import RODINIA, ModelledGpuHost
from nova_numa_ext.characterisation import profiles
from nova_numa_ext.characterisation.campaign import measure, same_gpus
from nova_numa_ext.characterisation.plan import Experiment, experiments
from nova_numa_ext.gpu_files import read_profiles
from nova_numa_ext.policy.gpu.job import ProfileStore, parse_profiles
from nova_numa_ext.simulator.gpu.machines import graph
from nova_numa_ext.simulator.gpu.workload import load_model

TOLERANCE = 0.05
MODEL = load_model()
TRUTH = MODEL.store()

Ratios = dict[tuple[str, str], float]


def hidden(seed: int) -> dict[str, str]:
    """Names that say nothing -> the model's job types, in drawn order."""
    kinds = list(TRUTH.profiles)
    random.Random(seed).shuffle(kinds)
    return {f"image-{number:02}": kind for number, kind in enumerate(kinds)}


def measured(seed: int) -> tuple[dict[str, str], dict[Experiment, tuple[float, ...]]]:
    """All experiments on a DGX-1, five runs each; the remote ones for as many workloads as Rodinia has programs."""
    behind = hidden(seed)
    remote = dict(zip(behind, RODINIA.values(), strict=False))
    host = ModelledGpuHost(graph("dgx1"), MODEL, behind, remote, seed=seed)
    plan = experiments(graph("dgx1"), list(behind), 2, list(remote))
    return behind, measure(host, plan, as_planned=same_gpus, seed=seed)


def ratios(store: ProfileStore, behind: Mapping[str, str]) -> Ratios:
    """Pack/spread ratio and co-location matrix of a store, by the names of images."""
    found = {(one, "spread"): store.get(one).spread for one in behind}
    return found | {(one, two): store.slowdown(one, two) for one in behind for two in behind}


def truth(behind: Mapping[str, str]) -> Ratios:
    """The same of the model itself."""
    found = {(one, "spread"): TRUTH.get(kind).spread for one, kind in behind.items()}
    return found | {
        (one, two): TRUTH.slowdown(behind[one], behind[two]) for one in behind for two in behind
    }


def correlation(one: Ratios, two: Ratios) -> float:
    """Pearson's coefficient."""
    pairs = [(one[key], two[key]) for key in two]
    mean_x, mean_y = (sum(values) / len(pairs) for values in zip(*pairs, strict=True))
    above = sum((x - mean_x) * (y - mean_y) for x, y in pairs)
    spread_x = sum((x - mean_x) ** 2 for x, _ in pairs)
    spread_y = sum((y - mean_y) ** 2 for _, y in pairs)
    return above / (spread_x * spread_y) ** 0.5


@pytest.mark.parametrize("seed", range(3))
def test_pack_spread_and_co_location_of_the_model_are_recovered_within_5_per_cent(
    seed: int, tmp_path: Path
) -> None:
    behind, runs = measured(seed)
    file = tmp_path / "profiles.yaml"
    file.write_text(profiles.text(runs, "modelled DGX-1"))
    found, expected = ratios(read_profiles(file, "profiles"), behind), truth(behind)
    worst = max(abs(found[key] / expected[key] - 1.0) for key in expected)
    assert worst <= TOLERANCE
    assert correlation(found, expected) > 0.95


def test_shuffled_labels_recover_nothing() -> None:
    """Negative control: the same run times, each under another experiment's label."""
    shuffled = []
    for seed in range(3):
        behind, runs = measured(seed)
        times = [each for seconds in runs.values() for each in seconds]
        random.Random(seed).shuffle(times)
        wrong = {one: tuple(times[5 * n : 5 * n + 5]) for n, one in enumerate(runs)}
        found = ratios(parse_profiles(profiles.document(wrong)), behind)
        expected = truth(behind)
        shuffled.append(correlation(found, expected))
        off = sum(abs(found[key] / expected[key] - 1.0) > TOLERANCE for key in expected)
        assert off > len(expected) / 2
    assert max(map(abs, shuffled)) < 0.3


def test_network_sensitivity_of_remote_gpus_is_recovered() -> None:
    """S3: the share of time on the network, and the slowdown under load (1 - n0) / (1 - n1)."""
    behind, runs = measured(0)
    shares = profiles.network_shares(runs)
    store = parse_profiles(profiles.document(runs))
    expected = dict(zip(behind, RODINIA.values(), strict=False))
    assert shares.keys() == expected.keys()
    for name, share in expected.items():
        assert shares[name] == pytest.approx(share.alone, abs=TOLERANCE)
        slowdown = store.slowdown(profiles.remote_name(name), profiles.NETWORK_LOAD)
        assert slowdown == pytest.approx(share.slowdown, rel=TOLERANCE)
