"""The limits of the child: no network, limited memory and processes, and a file system that is read-only
but for the child's own folder.

`enclose` limits the calling process permanently, by features of Linux that need no privileges: user,
mount, network and process namespaces, Landlock, seccomp, and resource limits. It returns a sentence for
each limit that this system does not enforce. bubblewrap would make the namespaces alone: Landlock,
seccomp and resource limits would stay, and many systems lack it. Only the standard library is imported
here, because a process with threads cannot enter a namespace."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWNET = 1 << 17, 1 << 27, 1 << 28, 1 << 30
CLONE_NEWPID = 1 << 29
MS_RDONLY, MS_REC, MS_PRIVATE = 1, 1 << 14, 1 << 18
MS_SAFE = 1 << 1 | 1 << 2 | 1 << 3  # no set-user-ID, no devices, no programs
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS, SIGKILL = 1, 38, 9
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""Landlock's system calls, which have the same numbers on all architectures."""

WRITE_FILE, TRUNCATE, REFER = 1 << 1, 1 << 14, 1 << 13
WRITE_RIGHTS = {1: WRITE_FILE | sum(1 << n for n in range(4, 13)), 2: REFER, 3: TRUNCATE}
"""Landlock's rights to change the file system, by the version that has them first."""

SCOPED, SINCE_SCOPED = 0b11, 6
"""No signals and no abstract sockets to processes outside, and the version that has this first."""

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

PR_SET_SECCOMP, FILTER, ALLOW, REFUSE = 22, 2, 0x7FFF0000, 0x00050000 | errno.EPERM
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
"""Actions of a seccomp filter, and its instructions: load a word of the call, jump, return an action."""

SYSTEM_CALLS = {"x86_64": (0xC000003E, 41, 203), "aarch64": (0xC00000B7, 198, 122)}
"""By machine the architecture that a filter sees, and the numbers of `socket` and `sched_setaffinity`."""

IO_URING_SETUP, OTHER_NUMBERS = 425, 1 << 30
"""A system call that makes other calls, and the first number of calls in x86's third set of numbers."""

FAMILIES = (socket.AF_INET, socket.AF_INET6, 16)
"""The families of sockets that a network namespace encloses: internet, and netlink. Sockets of the file
system lead to any process of the machine, and those of a virtual machine to its host."""

ENDED_BY = 128
"""The exit code of a process that waited for one that a signal ended, without the signal's number."""

PROCESSES, LARGEST_FILE = 4096, 1 << 30

BENEATH = 1


@dataclass(frozen=True)
class Limits:
    """The limits of a child: the only `folder` that it can write to, `hidden` folders that it sees as
    empty, and `memory` in bytes, 0 for no limit."""

    folder: str
    hidden: tuple[str, ...] = ()
    memory: int = 0

    @property
    def words(self) -> list[str]:
        """The limits as arguments of a command."""
        return [self.folder, str(self.memory), *self.hidden]

    @classmethod
    def from_words(cls, words: Sequence[str]) -> Limits:
        folder, memory, *hidden = words
        return cls(folder, tuple(hidden), int(memory))


def enclose(limits: Limits) -> list[str]:
    """Limit this process and its children. Returns a sentence for each limit that the system does not
    enforce; [] if all are enforced."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "unshare"):
        return ["this system limits neither network, nor files, nor memory of the child"]
    for resource_kind, maximum in (
        (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, LARGEST_FILE),
        (resource.RLIMIT_NPROC, PROCESSES), (resource.RLIMIT_DATA, limits.memory),
    ):  # fmt: skip
        if maximum or resource_kind == resource.RLIMIT_CORE:
            hard = resource.getrlimit(resource_kind)[1]
            maximum = maximum if hard == resource.RLIM_INFINITY else min(maximum, hard)
            with suppress(ValueError, OSError):
                resource.setrlimit(resource_kind, (maximum, maximum))
    unenforced, has_own_processes = [], _enter_namespaces(libc)
    if has_own_processes is not None:
        for folder in limits.hidden:
            if _mount(libc, folder, MS_RDONLY):
                unenforced.append(f"the child can read {folder}")
        _mount(libc, "/dev/shm", 0)
    else:
        unenforced.append("the child has the machine's network, and can read the whole file system")
    version = libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if version < 1 or not _restrict_files(libc, limits.folder, version):
        unenforced.append("the child can write wherever its user can")
    if version < SINCE_SCOPED and not has_own_processes:
        unenforced.append("the child can send signals to other processes of its user")
    if not _filter_system_calls(libc):
        unenforced.append("the child can use all processors, and sockets of the file system")
    libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)  # a new namespace forgets this
    return unenforced


def _enter_namespaces(libc: ctypes.CDLL) -> bool | None:
    """Enter new user, mount, network and IPC namespaces, as the same user. Returns None if that fails,
    True if this is now a process of a new process namespace, too, False if not."""
    user, group = os.getuid(), os.getgid()
    namespaces = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC
    has_own_processes = not libc.unshare(namespaces | CLONE_NEWPID)
    if not has_own_processes and libc.unshare(namespaces):
        return None
    if has_own_processes:
        # Signals of its own do not end the first process of a namespace: the second one goes on.
        _continue_in_fork(libc)
        _continue_in_fork(libc)
    try:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")
    except OSError:
        return None
    if libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None):
        return None
    if has_own_processes:
        libc.mount(b"none", b"/proc", b"proc", MS_SAFE, None)
    return has_own_processes


def _continue_in_fork(libc: ctypes.CDLL) -> None:
    """Fork, and return in the new process. The old process waits, and then ends with the same code."""
    fork = os.fork()
    if not fork:
        libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
        return
    ended_pid = status = 0
    while ended_pid != fork:
        ended_pid, status = os.wait()
    code = os.waitstatus_to_exitcode(status)
    code = ENDED_BY - code if code < 0 else code
    if code > ENDED_BY and os.getpid() != 1:
        with suppress(OSError, ValueError):
            signal.signal(code - ENDED_BY, signal.SIG_DFL)
        os.kill(os.getpid(), code - ENDED_BY)
    os._exit(code)


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def _mount(libc: ctypes.CDLL, folder: str, flags: int) -> bool:
    """Mount an empty file system over a folder. Returns True if that fails."""
    return bool(libc.mount(b"none", os.fsencode(folder), b"tmpfs", flags, None))


def _restrict_files(libc: ctypes.CDLL, folder: str, version: int) -> bool:
    """Allow this process to change files only in one folder, /dev/shm and some devices, by Landlock.
    Returns True if the system can do that."""
    rights = sum(right for since, right in WRITE_RIGHTS.items() if since <= version)
    scoped = SCOPED if version >= SINCE_SCOPED else 0
    attributes = struct.pack("QQQ", rights, 0, scoped)[: 24 if version >= SINCE_SCOPED else 8]
    rules = libc.syscall(CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    if rules < 0:
        return False
    # REFER is a right of its own version, and a folder without it keeps its files.
    allowed = {folder: rights, "/dev/shm": rights, **dict.fromkeys(DEVICES, WRITE_FILE)}
    allowed |= {f"/dev/{n}": WRITE_FILE for n in os.listdir("/dev") if n.startswith("nvidia")}
    for path, right in allowed.items():
        with suppress(OSError):
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            libc.syscall(ADD_RULE, rules, BENEATH, struct.pack("=Qi", right, descriptor), 0)
            os.close(descriptor)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    failed = libc.syscall(RESTRICT_SELF, rules, 0)
    os.close(rules)
    return not failed


def _filter_system_calls(libc: ctypes.CDLL) -> bool:
    """Let system calls fail that create sockets of families outside `FAMILIES`, or choose processors.
    Returns True if the system can do that."""
    if os.uname().machine not in SYSTEM_CALLS:
        return False
    architecture, make_socket, choose_processors = SYSTEM_CALLS[os.uname().machine]
    # Jumps are counted from the next instruction: the last two are refusal and permission.
    program = [
        (LOAD, 0, 0, 4), (EQUAL, 0, 9, architecture),
        (LOAD, 0, 0, 0), (AT_LEAST, 7, 0, OTHER_NUMBERS),
        (EQUAL, 6, 0, IO_URING_SETUP), (EQUAL, 5, 0, choose_processors), (EQUAL, 0, 5, make_socket),
        (LOAD, 0, 0, 16), *((EQUAL, 3 - n, 0, family) for n, family in enumerate(FAMILIES)),
        (RETURN, 0, 0, REFUSE), (RETURN, 0, 0, ALLOW),
    ]  # fmt: skip
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in program))
    rules = struct.pack("@HP", len(program), ctypes.addressof(code))
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    return not libc.prctl(PR_SET_SECCOMP, FILTER, rules, 0, 0)
