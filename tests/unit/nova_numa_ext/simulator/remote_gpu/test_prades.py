# SPDX-License-Identifier: Apache-2.0
"""The tables of the publication beside the models: what is exact, what is near, and what is not."""

import pytest

from nova_numa_ext.simulator.remote_gpu.prades import Origin, SourceRow, Table, Verdict, tables


@pytest.mark.parametrize(
    ("ours", "verdict"), [(100.4, "exact"), (111.0, "modelled"), (113.0, "off"), (87.0, "off")]
)
def test_a_row_is_judged_by_its_distance(ours: float, verdict: str) -> None:
    row = SourceRow("row", 100.0, Origin.MEASURED, lambda f: ours)
    assert row.verdict == verdict
    assert (
        Table("table", (row, SourceRow("fine", 1.0, Origin.MEASURED, lambda f: 1.0))).verdict
        == verdict
    )


def test_a_limit_is_kept_or_not() -> None:
    assert SourceRow("below", 0.5, Origin.LIMIT, lambda f: 0.1).verdict is Verdict.MODELLED
    assert SourceRow("above", 0.5, Origin.LIMIT, lambda f: 0.51).verdict is Verdict.OFF


def test_what_the_publication_calculated_comes_out_exactly() -> None:
    calculated = [row for table in tables() for row in table.rows if row.origin == "calculated"]
    assert len(calculated) == 14
    assert {row.name: row.verdict for row in calculated if row.verdict != "exact"} == {}


def test_what_the_models_do_not_explain_is_named() -> None:
    off = {row.name for table in tables() for row in table.rows if row.verdict is Verdict.OFF}
    assert off == {
        "6 GPUs, qdr",
        "4 GPUs, fdr",
        "throughput of 12 servers, at most",
        "utilisation of one GPU with two jobs",
    }


def test_perturbed_inputs_move_the_model_and_the_same_seed_draws_the_same() -> None:
    row = next(row for row in tables()[0].rows if row.name == "16 GPUs, fdr, s")
    found = row.perturbed(50, seed=1)
    assert found == row.perturbed(50, seed=1)
    assert found[0] < row.ours < found[-1]
    assert 0.8 * row.ours <= found[0]
    assert found[-1] <= 1.2 * row.ours
