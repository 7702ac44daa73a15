# SPDX-License-Identifier: Apache-2.0
"""``openstack numa fabric …``: plans in and out, into Placement, what is there, and what groups have left over."""

import argparse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from osc_lib.command import command
from osc_lib.exceptions import CommandError

from nova_numa_ext.cli import fabric_drawing
from nova_numa_ext.cli.cloud import ListedProvider
from nova_numa_ext.cli.fabric_sources import aggregates, ibnetdiscover, lldp, native, slurm
from nova_numa_ext.group_topology import CabledServer, as_slurm, as_slurm_conf
from nova_numa_ext.heal.group_claims import SweepResult
from nova_numa_ext.policy.network.fragmentation import LeafKind, LeafKinds
from nova_numa_ext.policy.network.leafs import Leaf, Leafs
from placement_traits import names
from placement_traits.fabric import Fabric, FabricKind
from placement_traits.fabric_tree import layout_of

_FILES: Final = ("native", "slurm-conf", "slurm-yaml", "ibnetdiscover")
_LLDP: Final = "lldp"  # it shows leafs and no pods: it verifies a plan, and makes none
_OF_NOVA: Final = ("aggregates", "segments")
_WRITERS: Final = {"slurm-conf": as_slurm_conf, "slurm-yaml": as_slurm}
SWEPT: Final = {
    SweepResult.RELEASED: "released",
    SweepResult.WOULD: "would be released",
    SweepResult.ALIVE: "in use",
    SweepResult.FOLLOWED: "in use; the uplinks that it shares follow its servers",
    SweepResult.WOULD_FOLLOW: "in use; the uplinks that it shares would follow its servers",
    SweepResult.UNKNOWN: "left: nova does not know the group, and servers of its project are on its leafs",
    SweepResult.CHANGED: "has changed meanwhile; run again",
}


class ImportFabric(command.Command):  # type: ignore[misc]
    """Read where hosts hang from another source, and print it as a plan for openstack numa fabric apply.

    Nothing is written to the cloud. What a source does not know (bandwidths, words for levels) is added by hand.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add source and file."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "--from",
            dest="source",
            required=True,
            choices=(*_FILES, *_OF_NOVA),
            help="What the file is; aggregates and segments are read from nova",
        )
        parser.add_argument("file", metavar="<file>", nargs="?", help="File of the source")
        parser.add_argument(
            "--name",
            default="fabric",
            metavar="<name>",
            help="Name of the fabric (default: fabric)",
        )
        parser.add_argument(
            "--kind",
            choices=[kind.value for kind in FabricKind],
            default=FabricKind.ETHERNET.value,
            help="What its switches speak (default: ethernet); ibnetdiscover shows InfiniBand",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Print the plan."""
        if (parsed_args.file is None) != (parsed_args.source in _OF_NOVA):
            raise CommandError(
                "Give a file; only aggregates and segments are read from nova, and take none."
            )
        if parsed_args.source in _OF_NOVA:
            found = self.app.client_manager.numa.nova_aggregates()
            if parsed_args.source == "segments":
                fabric = aggregates.read_segments(found, parsed_args.name)
            else:
                fabric = aggregates.read(found, parsed_args.name, FabricKind(parsed_args.kind))
        else:
            fabric = _read(
                parsed_args.source, parsed_args.file, parsed_args.name, FabricKind(parsed_args.kind)
            )
        self.app.stdout.write(native.written(fabric))


class ExportFabric(command.Command):  # type: ignore[misc]
    """Print a plan as another program reads it, such as Slurm on the hosts themselves.

    Nothing is asked of the cloud. Bandwidths and blocks are left out: these files have no place for them.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add form and plan."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "--to", dest="form", required=True, choices=tuple(_WRITERS), help="What is printed"
        )
        parser.add_argument("file", metavar="<plan>", help="The plan, YAML")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Print it."""
        plan = _read("native", parsed_args.file, "", FabricKind.ETHERNET)
        hosts = [
            CabledServer(host, (leaf, *plan.above(leaf)))
            for leaf in plan.leafs
            for host, its in plan.hosts.items()
            if its == leaf
        ]
        self.app.stdout.write(_WRITERS[parsed_args.form](hosts, plan.levels))


class ApplyFabric(command.Lister):  # type: ignore[misc]
    """Make Placement equal to a plan: providers of the fabric, and on each host the trait of its leaf.

    Refused as a whole, with the names of leaf and groups, where a leaf would lose hosts that groups hold. It may be
    called again at any time; what is there already is not written.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the plan."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("file", metavar="<plan>", help="The plan, YAML")
        parser.add_argument("--dry-run", action="store_true", help="Only show what would be done")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and rows."""
        plan = read_plan(parsed_args.file)
        writer = self.app.client_manager.numa.fabric_writer()
        changes = writer.apply(plan, dry_run=parsed_args.dry_run)
        done = "would be done" if parsed_args.dry_run else "done"
        return ("Result", "What"), [
            *((done, each) for each in changes.done),
            *(("problem", each) for each in changes.problems),
        ]


class RemoveFabric(command.Lister):  # type: ignore[misc]
    """Take a fabric out of Placement: its providers, and on each host the trait of its leaf.

    Refused, with the names of leaf and groups, where groups hold hosts of it or share its uplinks.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the fabric."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("fabric", metavar="<fabric>", help="Fabric, by name")
        parser.add_argument("--dry-run", action="store_true", help="Only show what would be done")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and rows."""
        writer = self.app.client_manager.numa.fabric_writer()
        changes = writer.remove(parsed_args.fabric, dry_run=parsed_args.dry_run)
        if not changes.done:
            raise CommandError(f"Placement has no fabric {parsed_args.fabric}.")
        done = "would be done" if parsed_args.dry_run else "done"
        return ("Result", "What"), [(done, each) for each in changes.done]


class ShowFabric(command.Lister):  # type: ignore[misc]
    """Show a fabric as Placement has it: its pods and leafs, and what groups hold there.

    The column Held has the hosts that groups hold, by resource class; Uplinks has who uses those of a leaf (alone: a
    quiet or exclusive group has all that go with its hosts), and of a pod. Use says what each leaf is for by what is
    held there, and whether it is drained; that of the fabric counts leafs, and those on which only groups of one leaf
    are, whose uplinks could be off.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add fabric and drawing."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("fabric", metavar="<fabric>", help="Fabric, by name")
        parser.add_argument("--svg", metavar="<file>", help="Also draw it into a file")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and rows."""
        numa = self.app.client_manager.numa
        providers = numa.fabric(parsed_args.fabric)
        if not providers:
            raise CommandError(f"Placement has no fabric {parsed_args.fabric}.")
        states = (each for each in numa.fabrics().read() if each.name == parsed_args.fabric)
        state = next(states, None)
        if state is None:
            raise CommandError(
                f"Placement has a part of fabric {parsed_args.fabric} only: apply its plan again."
            )
        use = {leaf.name: _use(leaf) for leaf in state.leafs.leafs}
        use[parsed_args.fabric] = _summary(LeafKinds.of(state.leafs), len(state.leafs.leafs))
        uplinks = _uplinks(state.leafs)
        root = next(each for each in providers if each.parent is None)
        if parsed_args.svg:
            drawn = [_drawn(leaf, uplinks.get(leaf.name, "")) for leaf in state.leafs.leafs]
            drawing = fabric_drawing.draw(parsed_args.fabric, drawn)
            try:
                Path(parsed_args.svg).write_text(drawing, encoding="utf-8")
            except OSError as error:
                raise CommandError(
                    f"{parsed_args.svg} cannot be written: {error.strerror}."
                ) from error
        columns = ("Node", "Level", "Layout", "Hosts", "Held", "Uplinks", "Use")
        return columns, [
            (*row, uplinks.get(node, "-"), use.get(node, "-"))
            for row in _rows(root, providers, "")
            for node in [row[0].strip()]
        ]


class VerifyFabric(command.Lister):  # type: ignore[misc]
    """Compare a plan with what was seen of the cables: hosts that hang on another leaf, or were not seen.

    What lldpd of the hosts has heard (--from lldp) shows the switch's port, too, and hosts that see none of the plan's
    leafs are on another one.

    With --mark, hosts on another leaf get the trait CUSTOM_NUMA_EXT_MISCABLED, with which no group is placed there;
    the others lose it.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add plan and what was seen."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("file", metavar="<plan>", help="The plan, YAML")
        parser.add_argument(
            "--from",
            dest="source",
            choices=(*_FILES, _LLDP),
            default="ibnetdiscover",
            help="What that file is (default: %(default)s)",
        )
        parser.add_argument("seen", metavar="<seen>", help="File with what was seen")
        parser.add_argument("--mark", action="store_true", help="Write what is found to Placement")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and rows."""
        plan = read_plan(parsed_args.file)
        if parsed_args.source == _LLDP:
            elsewhere = _heard_elsewhere(plan, parsed_args.seen)
        else:
            seen = _read(parsed_args.source, parsed_args.seen, plan.name, plan.kind)
            planned = _planned_leafs(plan, seen)
            elsewhere = {
                host: seen.hosts.get(host)
                for host, leaf in plan.hosts.items()
                if host not in seen.hosts or planned.get(seen.hosts[host]) != leaf
            }
        if parsed_args.mark:
            marked = {host for host, leaf in elsewhere.items() if leaf is not None}
            self.app.client_manager.numa.fabric_writer().mark(plan, marked)
        return ("Host", "Planned", "Seen"), [
            (host, plan.hosts[host], leaf or "not seen") for host, leaf in elsewhere.items()
        ]


class DrainFabric(command.Lister):  # type: ignore[misc]
    """Keep new groups off leafs, for maintenance; groups that hold hosts there stay."""

    on = True

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add fabric and leafs."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("fabric", metavar="<fabric>", help="Fabric, by name")
        parser.add_argument("leaf", metavar="<leaf>", nargs="+", help="Leaf, by name")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and rows."""
        writer = self.app.client_manager.numa.fabric_writer()
        done = "drained" if self.on else "undrained"
        return ("Leaf", "Result"), [
            (leaf, done if writer.drain(parsed_args.fabric, leaf, on=self.on) else "unchanged")
            for leaf in parsed_args.leaf
        ]


class UndrainFabric(DrainFabric):
    """Let new groups onto leafs again."""

    on = False


class SweepFabric(command.Lister):  # type: ignore[misc]
    """Release what server groups hold of fabrics and no server of theirs uses or waits for any more.

    Such claims are left where nova-scheduler is killed between claiming leafs and placing servers. Groups with a server
    that is on a host, is being placed or is shelved keep what they hold; so does a group that nova does not know while
    a server of its project is on a host of its leafs.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the dry run."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("--dry-run", action="store_true", help="Release nothing, only show")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and rows."""
        found = self.app.client_manager.numa.sweep_fabrics(dry_run=parsed_args.dry_run)
        rows = [(each.claim.consumer, each.claim.project, SWEPT[each.result]) for each in found]
        return ("Server group", "Project", "Result"), rows


def _heard_elsewhere(plan: Fabric, file: str) -> dict[str, str | None]:
    """Return hosts that have heard another switch than their leaf, with what they heard; None: nothing."""
    heard = lldp.read(_text(file), file)
    found: dict[str, str | None] = {}
    for host, leaf in plan.hosts.items():
        neighbour = lldp.seen_on(heard.get(host, ()), leaf, plan.leafs)
        if neighbour is None or not neighbour.is_node(leaf):
            found[host] = None if neighbour is None else str(neighbour)
    return found


def read_plan(file: str) -> Fabric:
    """Return the fabric of a file in our own YAML.

    :raises CommandError: the file cannot be read
    :raises InvalidValueError: it is no fabric
    """
    return native.read(_text(file), file)


def _text(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise CommandError(f"{file} is no text in UTF-8.") from error


def _read(source: str, file: str, name: str, kind: FabricKind) -> Fabric:
    text = _text(file)
    if source == "slurm-conf":
        return slurm.read_conf(text, name, kind, file)
    if source == "slurm-yaml":
        return slurm.read_yaml(text, name, kind, file)
    if source == "ibnetdiscover":
        return ibnetdiscover.read(text, name, file)
    return native.read(text, file)


def _planned_leafs(plan: Fabric, seen: Fabric) -> dict[str, str]:
    """Return which planned leaf each seen one is: that of its name, else the one with most hosts in common."""
    found = {leaf: leaf for leaf in seen.leafs if leaf in plan.sizes}
    common = Counter(
        (leaf, plan.hosts[host]) for host, leaf in seen.hosts.items() if host in plan.hosts
    )
    for (leaf, planned), _ in common.most_common():
        if leaf not in found and planned not in found.values():
            found[leaf] = planned
    return found


def _rows(
    provider: ListedProvider, providers: tuple[ListedProvider, ...], indent: str
) -> Iterator[tuple[str, str, str, str, str]]:
    levels = [level for trait in provider.traits if (level := names.parse_level(trait))]
    is_leaf = any(map(names.is_leaf_trait, provider.traits))
    stocks = provider.stocks
    yield (
        indent + provider.name.rpartition(":")[2],
        levels[0] if levels else "fabric",
        layout_of(stocks).value if is_leaf else "-",
        str(_hosts(provider)) if is_leaf else "-",
        ", ".join(
            f"{name.removeprefix(names.TRAIT_PREFIX)} {stock.used}"
            for name, stock in stocks.items()
            if stock.used and name not in (names.LEAF_UPLINK, names.POD_UPLINK)
        )
        or "-",
    )
    for child in providers:
        if child.parent == provider.uuid:
            yield from _rows(child, providers, indent + "  ")


def _uplinks(leafs: Leafs) -> dict[str, str]:
    """Return who uses the uplinks of each leaf and pod; those that no group uses are left out."""
    found = {
        pod: "one group alone" if units >= names.WHOLE_UPLINK else f"{units} quiet"
        for pod, units in leafs.uplinks.items()
        if units
    }
    for leaf in leafs.leafs:
        users = [
            *["alone"] * leaf.is_quiet,
            *[f"{len(leaf.residents)} share"] * bool(leaf.residents),
        ]
        if users:
            found[leaf.name] = ", ".join(users)
    return found


def _summary(kinds: LeafKinds, leafs: int) -> str:
    """Return how many leafs there are of each kind, and how many uplinks could be off."""
    found = [f"{number} {kind.value}" for kind in LeafKind if (number := getattr(kinds, kind))]
    return f"{', '.join(found)}; uplinks of {kinds.idle_uplinks} of {leafs} leafs idle"


def _use(leaf: Leaf) -> str:
    kind = LeafKind.of(leaf)
    is_left = leaf.drained and kind is not LeafKind.DRAINED
    return f"{kind.value}, drained" if is_left else kind.value


def _hosts(leaf: ListedProvider) -> int:
    """How many hosts a leaf has; its uplinks have units of their own."""
    return sum(stock.total for name, stock in leaf.stocks.items() if name in names.LEAF_CLASSES)


def _drawn(leaf: Leaf, uplinks: str) -> fabric_drawing.DrawnLeaf:
    return fabric_drawing.DrawnLeaf(
        leaf.name, leaf.pod, leaf.planned_size, leaf.held, uplinks, is_drained=leaf.drained > 0
    )
