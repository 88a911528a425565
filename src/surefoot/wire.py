"""Sealed lines and descriptors over a Unix socket: ranks, agent and commands of one node (formats §7).

The socket is SOCK_SEQPACKET: one packet is one message, there is no framing to get out of step. A
line too long for a packet travels as a sealed memfd. Nothing here blocks but `wait`: `send` queues.
A peer of another user is refused; one that sends what isn't a message is hung up on, as if it had gone.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import stat
import struct
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from surefoot.errors import AgentError, JournalError
from surefoot.journal.codec import SEALED_BYTES_MAX, seal, unseal

Message = dict[str, Any]
"""An object whose first member is "kind"."""

PACKET_BYTES_MAX = 64 << 10
DESCRIPTORS_MAX = 128
"""In one message; Linux lets 253 pass."""
QUEUED_MAX = 4096
"""Messages that wait for a peer which doesn't read."""
RECEIVED_MAX = 1024
"""Messages taken at one call, so that one busy peer doesn't keep the others waiting."""

_IN_MEMFD = "in_memfd"
"""Kind of the packet whose first descriptor holds the line itself."""
_FIXED = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_CUT = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
"""Flags of a packet that did not fit; as an int, since the enum's operators take longer than the call."""
_CREDENTIALS = struct.Struct("3i")
_DESCRIPTOR = struct.Struct("i")
_CONNECT_S = 5.0


class Channel:
    """One end of a connection. Raises `ConnectionError` when made for a peer of another user."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._queue: deque[tuple[bytes, list[int]]] = deque()
        self._gone: str | None = None
        # Asking first is several times cheaper than the error of a socket that has nothing to say.
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)
        raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        self._pid, uid, _ = _CREDENTIALS.unpack(raw)
        if uid != os.getuid():
            sock.close()
            raise ConnectionError(
                f"the peer is user {uid}, expected {os.getuid()}: use the user that started the run"
            )

    def peer(self) -> tuple[int, int]:
        """Return (pid, uid) of the process that connected or listened."""
        return self._pid, os.getuid()

    def fileno(self) -> int:
        """Return the socket's descriptor, to poll; to write too while anything is `queued`."""
        return self._sock.fileno()

    @property
    def queued(self) -> int:
        """Messages that have not left yet."""
        return len(self._queue)

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Send a message and copies of descriptors, or queue it where the peer is slow.

        A peer that is gone is not noticed here but by `receive`, behind the last it said.
        """
        if next(iter(message), None) != "kind":
            raise ValueError(f"a message begins with its kind: {message}")
        if self._gone is not None:
            return
        line = seal(message)
        copies = [os.dup(fd) for fd in fds]
        if len(line) > PACKET_BYTES_MAX:
            copies.insert(0, _memfd(line))
            line = seal({"kind": _IN_MEMFD})
        self._queue.append((line, copies))
        self.flush()
        if len(self._queue) > QUEUED_MAX:
            self._hang_up(f"it has not read for {QUEUED_MAX:,} messages")

    def flush(self) -> None:
        """Send what is queued, as much as the peer takes now."""
        while self._queue:
            line, fds = self._queue[0]
            try:
                # Not socket.send_fds: it drops the flags, and a script may have made SIGPIPE deadly again.
                if fds:
                    self._sock.sendmsg([line], _rights(fds), socket.MSG_NOSIGNAL)
                else:
                    self._sock.send(line, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            except OSError:
                self._drop_queue()  # what the peer said before it went is still to be received
                return
            self._queue.popleft()
            _close(fds)

    def receive(self) -> list[tuple[Message, list[int]]]:
        """Return every message that is there, each with its descriptors, which are the caller's then.

        Raises `ConnectionError` once the peer is gone and everything it sent has been returned; the
        same for a peer that was hung up on. Close the channel then.
        """
        received: list[tuple[Message, list[int]]] = []
        while self._gone is None and len(received) < RECEIVED_MAX and self._readable.poll(0):
            try:
                line, fds, flags = _packet(self._sock)
            except OSError as error:
                self._hang_up(str(error))
                break
            try:
                if not line:
                    raise ValueError("it closed the connection")
                if flags & _CUT:
                    raise ValueError("it sent more than a packet holds")
                received.append((_opened(line, fds), fds))
            except (JournalError, ValueError, OSError) as error:
                _close(fds)
                self._hang_up(str(error))
        if not received and self._gone is not None:
            raise ConnectionError(f"the connection to process {self._pid} is over: {self._gone}")
        return received

    def wait(self, timeout_s: float) -> bool:
        """Wait until `receive` has something to say, sending meanwhile; False after the timeout."""
        deadline_s = time.monotonic() + timeout_s
        while self._gone is None:
            poll = select.poll()
            poll.register(self._sock, select.POLLIN | (select.POLLOUT if self._queue else 0))
            ready = poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000)
            if not ready or ready[0][1] & ~select.POLLOUT:
                return bool(ready)
            self.flush()
        return True

    def close(self) -> None:
        """Hang up."""
        self._gone = self._gone or "it was closed here"
        self._drop_queue()
        self._sock.close()

    def _hang_up(self, why: str) -> None:
        self._gone = why
        self._drop_queue()
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it is gone already

    def _drop_queue(self) -> None:
        while self._queue:
            _close(self._queue.popleft()[1])


def _packet(sock: socket.socket) -> tuple[bytes, list[int], int]:
    """Return a packet, its descriptors and the flags; socket.recv_fds would leave them open across exec."""
    room = socket.CMSG_LEN(DESCRIPTORS_MAX * _DESCRIPTOR.size)
    line, ancillary, flags, _ = sock.recvmsg(PACKET_BYTES_MAX, room, socket.MSG_CMSG_CLOEXEC)
    fds: list[int] = []
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            whole = len(data) - len(data) % _DESCRIPTOR.size
            fds += [fd for (fd,) in _DESCRIPTOR.iter_unpack(data[:whole])]
    return line, fds, flags


def _rights(fds: Sequence[int]) -> list[tuple[int, int, bytes]]:
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))]


def _memfd(line: bytes) -> int:
    fd = os.memfd_create("surefoot-message", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(fd, "wb", closefd=False) as file:
        file.write(line)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _FIXED | fcntl.F_SEAL_SEAL)
    return fd


def _opened(line: bytes, fds: list[int]) -> Message:
    """Return the message of a packet; takes the descriptor that holds the line off `fds`."""
    message = unseal(line)
    if message.get("kind") == _IN_MEMFD:
        if not fds:
            raise ValueError("a descriptor is missing")
        message = unseal(_content(fds.pop(0)))
    if next(iter(message), None) != "kind" or not isinstance(message["kind"], str):
        raise ValueError("a message has to begin with its kind")
    return message


def _content(fd: int) -> bytes:
    try:
        # Only of a sealed memfd is it certain that reading neither blocks nor sees it change.
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _FIXED != _FIXED:
            raise ValueError("a line came in a memfd that isn't sealed")
        size = os.fstat(fd).st_size
        if size > SEALED_BYTES_MAX:
            raise ValueError(f"a line of {size:,} bytes")
        return os.pread(fd, size, 0)
    finally:
        os.close(fd)


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


# --- where the sockets are --------------------------------------------------------------------------


def runtime_dir() -> Path:
    """Return this user's own folder for sockets, made if need be.

    Raises `AgentError` where it is another user's or others may write to it: who owns the folder
    decides who answers there.
    """
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    private = Path(f"/tmp/surefoot-{os.getuid()}")  # noqa: S108 - who owns it is looked at below
    path = Path(given) / "surefoot" if given and Path(given).is_dir() else private
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise AgentError(
            f"cannot make {path}: {error.strerror}; expected a place for sockets; set XDG_RUNTIME_DIR to a "
            "directory of yours"
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise AgentError(
            f"{path} is not safe to use: expected a directory of user {os.getuid()} with mode 0700, found user "
            f"{found.st_uid}, mode {stat.filemode(found.st_mode)}; remove it, or set XDG_RUNTIME_DIR"
        )
    return path


def socket_path(run_id: str) -> Path:
    """Return where the agent of that run listens on this node."""
    return runtime_dir() / f"{run_id}.sock"


def listen(path: Path) -> socket.socket:
    """Listen at `path`, in place of a socket that nobody answers any more; the result doesn't block.

    Raises `AgentError` if another process answers there, or no socket can be made.
    """
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        # One at a time: between two that find the same dead socket, the second would remove the first's.
        fcntl.flock(directory, fcntl.LOCK_EX)
        if _answers(path):
            raise AgentError(
                f"another process listens at {path}: expected one agent per run and node; stop it, or "
                "connect to it"
            )
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        listener.listen(4096)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise AgentError(
            f"cannot listen at {path}: {error}; expected a short path on a local file system; set "
            "XDG_RUNTIME_DIR to one"
        ) from error
    except AgentError:
        listener.close()
        raise
    finally:
        os.close(directory)
    return listener


def accept(listener: socket.socket) -> Channel | None:
    """Return the next connection of this user, or None if there is none; others are hung up on."""
    while True:
        try:
            sock, _ = listener.accept()
        except BlockingIOError:
            return None
        try:
            return Channel(sock)
        except ConnectionError:
            continue


def connect(path: Path) -> Channel:
    """Connect to the agent that listens at `path`; raises `OSError` where none does."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.settimeout(_CONNECT_S)
        sock.connect(str(path))
        return Channel(sock)
    except BaseException:
        sock.close()
        raise


def _answers(path: Path) -> bool:
    try:
        connect(path).close()
    except (FileNotFoundError, ConnectionRefusedError):
        return False
    except (ConnectionError, BlockingIOError, TimeoutError):
        return True  # there is somebody: another user's, or too busy to accept
    return True
