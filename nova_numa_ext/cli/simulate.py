# SPDX-License-Identifier: Apache-2.0
"""``openstack numa simulate``, and ``trace``, ``network`` and ``remote`` below it."""

import argparse
import sys
from typing import Any, Final

from osc_lib.command import command

from nova_numa_ext.cli import flavor_request, formatting
from nova_numa_ext.cli.cloud import Cloud
from nova_numa_ext.cli.explain import terms_text
from nova_numa_ext.cli.fabric import read_plan
from nova_numa_ext.flow.solvers import installed_solver
from nova_numa_ext.policy.terms import sentence
from nova_numa_ext.simulator import cli as simulator
from nova_numa_ext.simulator.network import report as network
from nova_numa_ext.simulator.remote_gpu import report as remote

_WEIGHTS: Final = (
    "Scores use the default multipliers and those of host aggregates; for those of nova.conf run numa-ext-explain "
    "--flavor on a controller."
)
_NO_AGGREGATES: Final = (
    "You may not list nova's host aggregates: scores are by default multipliers alone."
)
_TERMS_WIDTH: Final = 32
_GPUS_WIDTH: Final = 26  # two PCI addresses


class Simulate(command.Lister):  # type: ignore[misc]
    """Ask every host whether a flavor could go there now, and what it lacks or how good it is. Nothing is booted.

    It judges what Placement knows now; NUMA cells are judged by the scheduler alone, whose decisions numa-ext-explain
    shows. The score is the weighted mean of the known terms, best host first. Weights are the defaults of
    [numa_ext]*_multiplier and what host aggregates set instead; numa-ext-explain --flavor knows nova-scheduler's own.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the flavor and what the image asks."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "--flavor", required=True, metavar="<flavor>", help="Flavor, by name or id"
        )
        flavor_request.add_arguments(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and rows; an invalid flavor raises InvalidRequestError with its sentences."""
        cloud: Cloud = self.app.client_manager.numa
        about = flavor_request.read(cloud, parsed_args.flavor, parsed_args)
        aggregates = cloud.aggregates()
        answers = cloud.what_if(about.request, about.flavor, aggregates or {}, about.aliases)
        rows = [
            (
                answer.host.name,
                "no" if answer.reasons else "yes",
                formatting.folded(
                    "; ".join(sentence(reason) for reason in answer.reasons), parsed_args
                ),
                formatting.folded(formatting.gpus(answer.gpus), parsed_args, _GPUS_WIDTH),
                "-" if answer.score is None else f"{answer.score.value:.3f}",
                "-"
                if answer.score is None
                else formatting.folded(terms_text(answer.score), parsed_args, _TERMS_WIDTH),
            )
            for answer in answers
        ]
        print(_NO_AGGREGATES if aggregates is None else _WEIGHTS, file=self.app.stderr)
        if about.warning():
            print(about.warning(), file=self.app.stderr)
        return ("Host", "Possible", "Lacks", "GPUs", "Score", "Terms"), rows


class SimulateTrace(command.Lister):  # type: ignore[misc]
    """Run GPU placement policies on a workload in a simulated cluster; every figure is modelled.

    Nothing is asked of the cloud. Progress is drawn on the terminal; times are means over jobs in seconds.
    """

    auth_required = False

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the simulator's options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        simulator.add_arguments(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and rows, one row per strategy; raises NumaExtError for a value that is not allowed."""
        return simulator.table(simulator.run(parsed_args, simulator.ProgressBar(sys.stderr)))


class SimulateNetwork(command.Lister):  # type: ignore[misc]
    """Replay a log of jobs on a fabric under policies for groups; every figure is modelled.

    Nothing is asked of the cloud. Jobs have their hosts alone, wait in the queue of the job service, and run as long as
    the log says, or, with --oversubscription, are slowed by others on uplinks. Progress is drawn on the terminal; times
    are in seconds.
    """

    auth_required = False

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the fabric and the options of a replay."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "--fabric", metavar="<file>", help="Fabric, as fabric import writes it (YAML)"
        )
        network.add_arguments(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and rows, one row per policy; raises NumaExtError for a value that is not allowed."""
        plan = None if parsed_args.fabric is None else read_plan(parsed_args.fabric)
        progress = simulator.ProgressBar(sys.stderr)
        return network.table(network.replays(parsed_args, plan, progress))


class SimulateRemote(command.Lister):  # type: ignore[misc]
    """Run a queue of jobs with and without GPUs of other hosts; every figure is modelled.

    Nothing is asked of the cloud. GPUs are stranded because work without GPUs holds cores of their hosts. Nothing is
    moved; with --rebalance, leases that share GPUs are simulated instead, and move by policies of the job service.
    Progress is drawn on the terminal; times are in seconds.
    """

    auth_required = False

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add machines and jobs."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        remote.add_arguments(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and rows, one per setting or policy; raises NumaExtError for a value that is not allowed."""
        progress = simulator.ProgressBar(sys.stderr)
        return remote.simulated(parsed_args, installed_solver(), progress)
