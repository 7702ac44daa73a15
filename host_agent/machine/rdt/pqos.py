# SPDX-License-Identifier: Apache-2.0
"""The second backend: the same few file operations, carried out by Intel's libpqos.

For sites whose rules say that only libpqos writes RDT. It implements
:class:`~host_agent.machine.rdt.files.ResctrlFiles`, so that everything above it is the same code: reading is reading
the tree, making and removing control groups, masks, bandwidth and threads go through the library.

What libpqos (4.5, interface "OS") does decides the rest:

- Its start makes a group ``COS1``, ``COS2`` … for *every* class of service. So no group of other software can exist
  beside it; with one there it would fail half-way and leave all classes taken. This backend refuses to start then.
- Classes have numbers only. Which of our groups is which number is kept in a small file, with a count of lives: a class
  that is used again goes on counting where it stood.
- Its reset forgets all threads but the first of each process. Here each thread is given back by itself.
- It takes a socket for one L3 domain on Intel CPUs, and cannot even read a tree that has more. Then, too, this backend
  refuses to start.
- It sets one resource at a time: a command with several lines that fails may have been carried out in part. The
  executor reads back and tries again.

Monitoring groups are directories in the class's own and made directly. A thread that libpqos moves would take its
monitoring group along, by name; it leaves it first.
"""

import errno
import fcntl
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from host_agent.machine.rdt.files import RESCTRL_ROOT, OsFiles, ResctrlFiles
from host_agent.model.rdt import Schemata, parse_mask, parse_schemata
from placement_traits.errors import CapabilityMissingError, ConflictError
from placement_traits.json_store import JsonStore
from placement_traits.plain import Value

_VERSION: Final = 1
_FIXED: Final = frozenset({"info", "mon_data", "mon_groups"})
_STATUS: Final = "info/last_cmd_status"
_COS: Final = "COS"
_ROOT_CLASS: Final = 0
_NO_REASON: Final = "libpqos gives no reason"
# Return codes of libpqos as the error numbers that the kernel would give.
_ERRNO: Final = {2: errno.EINVAL, 3: errno.ENOSPC, 7: errno.EBUSY}


class Library(Protocol):
    """What is used of libpqos; errors are ``OSError``."""

    def domains(self, resource: str) -> frozenset[int]:
        """Return the domains of "L3", "L2" or "MB" that it can set."""

    def set_masks(self, resource: str, domain: int, number: int, masks: tuple[int, ...]) -> None:
        """Set the mask of a class in a cache, or those for code and for data."""

    def set_bandwidth(self, domain: int, number: int, value: int) -> None:
        """Set the bandwidth of a class."""

    def move(self, tid: int, number: int) -> None:
        """Put a thread into a class."""

    def number(self, tid: int) -> int:
        """Return the class of a thread."""

    def threads(self, number: int) -> set[int]:
        """Return the threads in a class."""


class PqosFiles:
    """The tree as libpqos's classes.

    :param state: folder of the agent's state
    :param proc: where proc(5) is mounted
    :param library: starts the library; called before the first change, with whether its classes are there
    :param tree: the tree that the library works on; it knows only the usual place
    """

    def __init__(
        self,
        state: Path,
        proc: Path,
        library: Callable[[bool], Library] | None = None,
        tree: ResctrlFiles | None = None,
    ) -> None:
        self._tree = tree or OsFiles(RESCTRL_ROOT)
        self._names = ClassNames(state, proc)
        self._start = library or _libpqos
        self._library: Library | None = None
        self._refusal = ""
        self._status = ""

    # -- reading: the tree, under our names --

    def read(self, path: str) -> str:
        if path == _STATUS and self._status:
            return self._status
        return self._tree.read(self._there(path))

    def listdir(self, path: str) -> list[str]:
        return sorted(self._ours(self._tree.listdir(self._there(path)), path))

    def directories(self, path: str) -> list[str]:
        return sorted(self._ours(self._tree.directories(self._there(path)), path))

    def identity(self, path: str) -> int:
        known = self._names.recall().get(path)
        if known is None:
            return self._tree.identity(self._there(path))
        number, life = known
        return life << 32 | self._tree.identity(f"{_COS}{number}")

    def _there(self, path: str) -> str:
        """Return where the tree holds what we call ``path``."""
        group, slash, rest = path.partition("/")
        known = self._names.recall().get(group)
        return f"{_COS}{known[0]}{slash}{rest}" if known else path

    def _ours(self, names: list[str], path: str) -> list[str]:
        if path:
            return names
        kept = {name: f"{_COS}{number}" for name, (number, _) in self._names.recall().items()}
        used = [name for name, place in kept.items() if place in names]
        return [name for name in names if not _is_class(name)] + used

    # -- changing: the library --

    def mkdir(self, path: str) -> None:
        if "/" in path:
            self._tree.mkdir(self._there(path))
            return
        library = self._started()
        names = self._names.recall()
        taken = {number for number, _ in names.values()}
        classes = [int(name[len(_COS) :]) for name in self._tree.directories("") if _is_class(name)]
        free = sorted(set(classes) - taken)
        if path in names:
            raise _error(errno.EEXIST)
        if not free:
            self._status = "Out of CLOSIDs"
            raise _error(errno.ENOSPC)
        self._give_back(library, free[0])
        self._names.keep(names | {path: (free[0], self._names.next_life())})
        self._status = ""

    def rmdir(self, path: str) -> None:
        if "/" in path:
            self._tree.rmdir(self._there(path))
            return
        library = self._started()
        names = self._names.recall()
        if path not in names:
            raise _error(errno.ENOENT)
        self._give_back(library, names[path][0])
        self._names.keep({name: known for name, known in names.items() if name != path})

    def write(self, path: str, data: str) -> None:
        library = self._started()
        group, _, file = path.rpartition("/")
        names = self._names.recall()
        if group and group not in names:  # a monitoring group: libpqos has none
            self._tree.write(self._there(path), data)
            return
        number = names[group][0] if group else _ROOT_CLASS
        self._status = _NO_REASON
        match file:
            case "schemata":
                self._set(library, number, parse_schemata(data))
            case "tasks":
                tid = int(data)
                self._leave_monitor(library.number(tid), tid)
                library.move(tid, number)
            case _:
                raise _error(errno.EPERM)
        self._status = ""

    def options(self) -> frozenset[str]:
        return self._tree.options()

    @contextmanager
    def lock(self, *, exclusive: bool) -> Iterator[None]:
        """Hold a lock of our own: libpqos takes the tree's itself in each call, and would wait for us for ever."""
        with self._names.locked(exclusive=exclusive):
            yield

    def give_up(self) -> None:
        """Remove the classes that are not in use, so that others can have groups again."""
        used = {f"{_COS}{number}" for number, _ in self._names.recall().values()}
        for name in self._tree.directories(""):
            if _is_class(name) and name not in used:
                self._tree.rmdir(name)
        self._library = None

    def _started(self) -> Library:
        if self._refusal:  # the CPU stays the same: no need to take all classes again
            raise CapabilityMissingError(self._refusal)
        if self._library is None:
            names = self._tree.directories("")
            others = [name for name in names if name not in _FIXED and not _is_class(name)]
            if others:
                raise ConflictError(
                    "libpqos takes all classes of service of the host for itself, but there are groups of others: "
                    f"{', '.join(others)}; remove them, or set [rdt]backend = resctrl"
                )
            library = self._start(any(map(_is_class, names)))
            self._refuse_unknown_domains(library)
            self._library = library
        return self._library

    def _refuse_unknown_domains(self, library: Library) -> None:
        """Make room for others again where libpqos knows other domains than the kernel.

        :raises CapabilityMissingError: it does
        """
        for name, values in parse_schemata(self._tree.read("schemata")).items():
            known = library.domains(name[:2])
            if not known.issuperset(values):
                self.give_up()
                self._refusal = (
                    f"libpqos knows the {name} domains {_listed(known)}, the kernel has {_listed(values)}: it takes a "
                    "socket for one domain on this CPU; set [rdt]backend = resctrl"
                )
                raise CapabilityMissingError(self._refusal)

    def _set(self, library: Library, number: int, schemata: Schemata) -> None:
        for resource, values in schemata.items():
            for domain, value in values.items():
                if resource == "MB":
                    library.set_bandwidth(domain, number, value)
                else:
                    masks = self._masks(number, resource, domain, schemata)
                    library.set_masks(resource[:2], domain, number, masks)

    def _masks(
        self, number: int, resource: str, domain: int, schemata: Schemata
    ) -> tuple[int, ...]:
        """Return the mask to set; with CDP those for code and for data, which the library sets together."""
        if len(resource) == len("L3"):
            return (schemata[resource][domain],)
        place = f"{_COS}{number}/" if number else ""
        now = parse_schemata(self._tree.read(f"{place}schemata"))
        names = [f"{resource[:2]}{kind}" for kind in ("CODE", "DATA")]
        return tuple(schemata.get(name, now[name]).get(domain, now[name][domain]) for name in names)

    def _give_back(self, library: Library, number: int) -> None:
        """Make a class as a new one: no threads, no monitoring groups, all ways, all bandwidth."""
        for name in self._monitors(number):
            self._tree.rmdir(f"{_COS}{number}/mon_groups/{name}")
        while threads := library.threads(number):
            for tid in threads:
                try:
                    library.move(tid, _ROOT_CLASS)
                except ProcessLookupError:
                    continue  # it has ended
        self._set(library, number, self._everything())

    def _monitors(self, number: int) -> list[str]:
        place = f"{_COS}{number}" if number else ""
        if "mon_groups" not in self._tree.directories(place):
            return []
        return self._tree.directories(f"{place}/mon_groups".lstrip("/"))

    def _leave_monitor(self, number: int, tid: int) -> None:
        """Take a thread out of its monitoring group, as the kernel does; libpqos would make one like it elsewhere."""
        if self._monitors(number):
            self._tree.write(f"{_COS}{number}/tasks" if number else "tasks", f"{tid}\n")

    def _everything(self) -> dict[str, dict[int, int]]:
        found = parse_schemata(self._tree.read("schemata"))
        full = {
            name: parse_mask(self._tree.read(f"info/{name}/cbm_mask"))
            for name in found
            if name != "MB"
        }
        # Root's bandwidth is never written: it is what the host has.
        return {
            name: dict.fromkeys(values, full[name]) if name in full else dict(values)
            for name, values in found.items()
        }


def _is_class(name: str) -> bool:
    return name.startswith(_COS) and name[len(_COS) :].isdecimal()


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@dataclass(frozen=True, slots=True)
class _Classes:
    """Our groups' numbers and lives.

    :param names: group -> (number of its class, number of its life)
    :param lives: number of lives so far
    """

    names: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    lives: int = 0


class ClassNames:
    """Our groups' numbers and lives, in a file that is good for one boot of the host."""

    def __init__(self, state: Path, proc: Path) -> None:
        self._folder = state
        self._store: JsonStore[_Classes] = JsonStore(
            state / "pqos-classes.json",
            _VERSION,
            _decode,
            _encode,
            boot_id=proc / "sys/kernel/random/boot_id",
            mode=0o644,  # the agent's unprivileged side reads what the privileged one wrote
        )

    def recall(self) -> dict[str, tuple[int, int]]:
        """Return name -> (number of the class, number of its life)."""
        return dict(self._content().names)

    def next_life(self) -> int:
        """Return the number of lives so far, and one more."""
        return self._content().lives + 1

    def keep(self, names: Mapping[str, tuple[int, int]]) -> None:
        """Write the file."""
        lives = max([self._content().lives, *(life for _, life in names.values())])
        self._store.save(_Classes(names, lives))

    @contextmanager
    def locked(self, *, exclusive: bool) -> Iterator[None]:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o750)
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
            yield
        finally:
            os.close(descriptor)

    def _content(self) -> _Classes:
        # Where nothing is known all classes are free, and are emptied before they are used.
        return self._store.load() or _Classes()


def _decode(found: Value) -> _Classes:
    names = {}
    for name, pair in found.member("names").members().items():
        figures = pair.items()
        if len(figures) != 2:
            raise pair.refused("the numbers of a class and of its life")
        names[name] = (figures[0].integer(1), figures[1].integer())
    return _Classes(names, found.member("lives").integer())


def _encode(classes: _Classes) -> Mapping[str, Any]:
    return {"lives": classes.lives, "names": dict(classes.names)}


_running: list["Libpqos"] = []  # the library has one state per process, so there is at most one


def _libpqos(taken: bool) -> Library:
    """Start libpqos in this process, or again when others have removed its classes.

    :raises CapabilityMissingError: it is not installed, or finds nothing to control
    """
    if not _running:
        _running.append(Libpqos())
    elif not taken:
        _running[0].restart()
    return _running[0]


class Libpqos:
    """libpqos through its Python binding (PyPI ``pqos``), imported only where it is used."""

    def __init__(self) -> None:
        try:
            from pqos import Pqos
            from pqos.allocation import PqosAlloc
            from pqos.cpuinfo import PqosCpuInfo
            from pqos.error import PqosError
            from pqos.l2ca import PqosCatL2
            from pqos.l3ca import PqosCatL3
            from pqos.mba import PqosMba

            self._pqos = Pqos()
        except (ImportError, OSError) as error:
            raise CapabilityMissingError(
                "[rdt]backend = pqos needs the Python package pqos 4.5.0 and libpqos 4 (Debian: intel-cmt-cat): "
                f"{error}"
            ) from error
        self._error: type[Exception] = PqosError
        self._init()
        self._caches: dict[str, Any] = {"L3": PqosCatL3(), "L2": PqosCatL2()}
        self._mba = PqosMba()
        self._alloc = PqosAlloc()
        self._cpus = PqosCpuInfo()

    def _init(self) -> None:
        with open(os.devnull, "w") as log:
            try:
                self._pqos.init("OS", log_file=log, verbose="silent")
            except self._error as error:
                raise CapabilityMissingError(f"libpqos cannot control RDT here: {error}") from error

    def restart(self) -> None:
        """Let it take all classes again."""
        self._call(self._pqos.fini)
        self._init()

    def domains(self, resource: str) -> frozenset[int]:
        field = {"L3": "l3cat_id", "L2": "l2_id", "MB": "mba_id"}[resource]
        cpus = self._call(
            lambda: [
                cpu for socket in self._cpus.get_sockets() for cpu in self._cpus.get_cores(socket)
            ]
        )
        return frozenset(getattr(self._call(self._cpus.get_core_info, cpu), field) for cpu in cpus)

    def set_masks(self, resource: str, domain: int, number: int, masks: tuple[int, ...]) -> None:
        if not all(
            masks
        ):  # the binding raises a ValueError, also where the hardware takes empty masks
            raise _error(errno.EINVAL)
        cache_control = self._caches[resource]
        if len(masks) == 1:
            cos = cache_control.COS(number, masks[0])
        else:
            cos = cache_control.COS(number, code_mask=masks[0], data_mask=masks[1])
        self._call(cache_control.set, domain, [cos])

    def set_bandwidth(self, domain: int, number: int, value: int) -> None:
        self._call(self._mba.set, domain, [self._mba.COS(number, value)])

    def move(self, tid: int, number: int) -> None:
        self._of_thread(tid, self._alloc.assoc_set_pid, number)

    def number(self, tid: int) -> int:
        return int(self._of_thread(tid, self._alloc.assoc_get_pid))

    def _of_thread(self, tid: int, function: Callable[..., Any], *arguments: int) -> Any:
        try:
            return self._call(function, tid, *arguments)
        except OSError as error:
            if not os.path.exists(f"/proc/{tid}"):
                raise _error(errno.ESRCH) from error
            raise

    def threads(self, number: int) -> set[int]:
        return set(self._call(self._alloc.get_pids, number))

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except self._error as error:
            raise _error(_ERRNO.get(getattr(error, "code", 0), errno.EIO)) from error
