"""The line between processes of a node: whole messages, descriptors, peers that go, lie or don't read."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from surefoot import wire
from surefoot.errors import AgentError
from surefoot.journal.codec import seal
from surefoot.wire import Channel, accept, connect, listen, runtime_dir, socket_path

Ends = tuple[Channel, Channel]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Two ends of one connection; no test may leave a descriptor behind."""
    before = descriptors()
    pair = tuple(map(Channel, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)))
    yield pair[0], pair[1]
    for end in pair:
        end.close()
    assert descriptors() == before


@pytest.fixture
def raw() -> Iterator[tuple[socket.socket, Channel]]:
    """A socket that may send anything, and the channel that has to bear it."""
    before = descriptors()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel = Channel(theirs)
    yield ours, channel
    ours.close()
    channel.close()
    assert descriptors() == before


@pytest.fixture
def runtime(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runtime folder of the test's own, with a short name."""
    path = tmp_path_factory.mktemp("r")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(path))
    return path


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def memfd(data: bytes, seals: int = 0) -> int:
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.write(fd, data)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def test_messages_come_whole_and_in_order(ends: Ends) -> None:
    """Every message arrives as it was sent, both ways, and nothing arrives twice."""
    here, there = ends
    sent = [{"kind": "event", "n": n, "text": "ä" * n} for n in range(5)]
    for message in sent:
        here.send(message)
    there.send({"kind": "welcome"})
    assert [message for message, _ in there.receive()] == sent
    assert here.receive() == [({"kind": "welcome"}, [])]
    assert there.receive() == []


def test_descriptors_travel(ends: Ends) -> None:
    """A descriptor arrives as one of the receiver's own, closed on exec; the sender keeps its own."""
    here, there = ends
    fd = memfd(b"slot")
    here.send({"kind": "slots"}, [fd, fd])
    os.close(fd)
    ((message, fds),) = there.receive()
    assert message == {"kind": "slots"}
    assert [os.pread(each, 4, 0) for each in fds] == [b"slot", b"slot"]
    assert not any(os.get_inheritable(each) for each in fds)
    for each in fds:
        os.close(each)


def test_long_lines_travel_in_memory(ends: Ends) -> None:
    """A line longer than a packet arrives like any other, with its descriptors."""
    here, there = ends
    fd = memfd(b"x")
    message = {"kind": "hello", "boxes": ["w" * 100] * 20_000}
    here.send(message, [fd])
    ((received, fds),) = there.receive()
    assert received == message
    assert len(fds) == 1
    os.close(fds[0])
    os.close(fd)


def test_sending_never_blocks(ends: Ends) -> None:
    """What a slow peer doesn't take is queued with its descriptors, and leaves in order when there is room."""
    here, there = ends
    fd = memfd(b"x")
    for n in range(300):
        here.send({"kind": "event", "n": n, "text": "x" * 5_000}, [fd])
    os.close(fd)
    assert here.queued > 0
    received: list[int] = []
    while len(received) < 300:
        for message, fds in there.receive():
            received.append(message["n"])
            os.close(fds[0])
        here.flush()
    assert received == list(range(300))
    assert here.queued == 0


def test_a_peer_that_never_reads_is_hung_up_on(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue has a limit; beyond it the connection is over on both sides and the queue is gone."""
    here, there = ends
    monkeypatch.setattr(wire, "QUEUED_MAX", 10)
    for _ in range(300):
        here.send({"kind": "event", "text": "x" * 50_000})
    assert here.queued == 0
    with pytest.raises(ConnectionError, match="has not read"):
        here.receive()
    assert there.receive()
    with pytest.raises(ConnectionError):
        there.receive()


def test_what_a_peer_said_before_it_went_is_received(ends: Ends) -> None:
    """All that was sent arrives before the end does, which then comes every time."""
    here, there = ends
    here.send({"kind": "bye"})
    here.close()
    there.send({"kind": "late"})
    assert there.wait(0)
    assert there.receive() == [({"kind": "bye"}, [])]
    for _ in range(2):
        with pytest.raises(ConnectionError, match=f"process {os.getpid()} is over"):
            there.receive()
    there.send({"kind": "into the void"})
    assert there.queued == 0


def test_a_peer_that_is_gone_is_no_signal(ends: Ends) -> None:
    """Writing to it kills nobody, also where a script has made SIGPIPE deadly again."""
    ours, theirs = ends
    theirs.close()
    if (child := os.fork()) == 0:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        ours.send({"kind": "event"})
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_wait_says_whether_there_is_something(ends: Ends) -> None:
    """Waiting ends at once with something to receive, a peer that is gone too, and else at the timeout."""
    here, there = ends
    assert not there.wait(0)
    here.send({"kind": "a"})
    assert there.wait(10)
    there.receive()
    here.close()
    assert there.wait(10)


def test_wait_sends_what_is_queued(ends: Ends) -> None:
    """A process that waits for an answer sends its question meanwhile."""
    here, there = ends
    while not here.queued:
        here.send({"kind": "event", "text": "x" * 50_000})
    there.receive()
    assert not here.wait(0.001)
    assert here.queued == 0


def test_a_busy_peer_does_not_hold_the_others_up(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call takes a limited number of messages; the rest is there at the next."""
    here, there = ends
    monkeypatch.setattr(wire, "RECEIVED_MAX", 3)
    for _ in range(5):
        here.send({"kind": "event"})
    assert [len(there.receive()) for _ in range(3)] == [3, 2, 0]


def test_a_message_begins_with_its_kind(ends: Ends) -> None:
    """Sending anything else is a mistake of ours and raises at once."""
    for message in ({}, {"n": 1, "kind": "event"}):
        with pytest.raises(ValueError, match="begins with its kind"):
            ends[0].send(message)


@pytest.mark.parametrize(
    "packet",
    [
        b"hello",
        b"\x00" * 100,
        seal({"kind": "event"})[:-2],
        seal({"kind": "event"}).replace(b"event", b"evens"),
        seal({"n": 1, "kind": "event"}),
        seal({"kind": 7}),
        seal({"kind": "in_memfd"}),
        b"[" * 60_000,
        seal({"kind": "event", "text": "x" * 65_000})[:65_000],
        seal({"kind": "event", "text": "x" * 70_000}),
    ],
)
def test_what_is_no_message_ends_the_connection(raw: tuple[socket.socket, Channel], packet: bytes) -> None:
    """A hostile packet ends this one connection, after what came before it, and leaks no descriptor."""
    peer, channel = raw
    fd = memfd(b"x")
    peer.send(seal({"kind": "good"}))
    socket.send_fds(peer, [packet], [] if b"in_memfd" in packet else [fd])
    os.close(fd)
    assert channel.receive() == [({"kind": "good"}, [])]
    with pytest.raises(ConnectionError):
        channel.receive()
    assert peer.recv(10) == b""


@pytest.mark.parametrize("seals", [0, fcntl.F_SEAL_SHRINK, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK])
def test_a_line_in_unsealed_memory_is_refused(raw: tuple[socket.socket, Channel], seals: int) -> None:
    """A line that its sender could still change or cut is never read."""
    peer, channel = raw
    fd = memfd(seal({"kind": "event"}), seals)
    socket.send_fds(peer, [seal({"kind": "in_memfd"})], [fd])
    os.close(fd)
    with pytest.raises(ConnectionError, match="isn't sealed"):
        channel.receive()


def test_a_line_in_a_pipe_is_refused(raw: tuple[socket.socket, Channel]) -> None:
    """A descriptor that could block its reader is never read."""
    peer, channel = raw
    read_end, write_end = os.pipe()
    socket.send_fds(peer, [seal({"kind": "in_memfd"})], [read_end])
    os.close(read_end)
    os.close(write_end)
    with pytest.raises(ConnectionError):
        channel.receive()


def test_a_huge_line_is_refused(raw: tuple[socket.socket, Channel], monkeypatch: pytest.MonkeyPatch) -> None:
    """A line over the limit is not even read."""
    peer, channel = raw
    monkeypatch.setattr(wire, "SEALED_BYTES_MAX", 100)
    fd = memfd(b"x" * 101, wire._FIXED)
    socket.send_fds(peer, [seal({"kind": "in_memfd"})], [fd])
    os.close(fd)
    with pytest.raises(ConnectionError, match="101 bytes"):
        channel.receive()


def test_too_many_descriptors_are_refused(raw: tuple[socket.socket, Channel]) -> None:
    """More descriptors than a message may have end the connection, and those that came are closed."""
    peer, channel = raw
    fd = memfd(b"x")
    socket.send_fds(peer, [seal({"kind": "event"})], [fd] * (wire.DESCRIPTORS_MAX + 60))
    os.close(fd)
    with pytest.raises(ConnectionError, match="more than a packet"):
        channel.receive()


def test_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A channel to a process of another user is never made."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    user = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    with pytest.raises(ConnectionError, match=f"the peer is user {user}, expected {user + 1}"):
        Channel(theirs)
    assert theirs.fileno() == -1
    ours.close()


def test_the_runtime_folder_is_private(runtime: Path) -> None:
    """The folder is made with mode 0700 inside the user's own, and the socket is named after the run."""
    assert runtime_dir() == runtime / "surefoot"
    assert stat.S_IMODE(runtime_dir().stat().st_mode) == 0o700
    assert socket_path("ab" * 16) == runtime / "surefoot" / f"{'ab' * 16}.sock"


def test_without_a_runtime_folder_there_is_one_per_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where XDG_RUNTIME_DIR is unset or absent, sockets lie in a folder named after the user."""
    for value in ("", "/nonexistent/folder"):
        monkeypatch.setenv("XDG_RUNTIME_DIR", value)
        assert runtime_dir() == Path(f"/tmp/surefoot-{os.getuid()}")


def test_a_folder_open_to_others_is_refused(runtime: Path, tmp_path: Path) -> None:
    """A folder that others may enter, a link to one, or none at all is refused with what to do."""
    (runtime / "surefoot").mkdir()
    (runtime / "surefoot").chmod(0o755)
    with pytest.raises(AgentError, match=r"mode 0700, found .* mode drwxr-xr-x; remove it"):
        runtime_dir()
    (runtime / "surefoot").rmdir()
    (runtime / "surefoot").symlink_to(tmp_path)
    with pytest.raises(AgentError, match="not safe"):
        runtime_dir()
    (runtime / "surefoot").unlink()
    (runtime / "surefoot").write_text("")
    with pytest.raises(AgentError, match="cannot make"):
        runtime_dir()


def test_a_connection_is_made(runtime: Path) -> None:
    """Who connects is accepted, knows the other's pid, and talks; without a connection there is nothing."""
    path = socket_path("run")
    with listen(path) as listener:
        assert accept(listener) is None
        client = connect(path)
        server = accept(listener)
        assert server is not None
        assert client.peer() == server.peer() == (os.getpid(), os.getuid())
        client.send({"kind": "hello"})
        assert select.select([server], [], [], 10)[0] == [server]
        assert server.receive() == [({"kind": "hello"}, [])]
        client.close()
        server.close()


def test_others_are_not_accepted(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection of another user is dropped, and the next one is accepted."""
    path = socket_path("run")
    with listen(path) as listener:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
            stranger.connect(str(path))
            user = os.getuid()
            monkeypatch.setattr(os, "getuid", lambda: user + 1)
            assert accept(listener) is None
            assert stranger.recv(10) == b""


def test_nobody_listens(runtime: Path) -> None:
    """Connecting raises `OSError` where no socket is, and where a dead one is left."""
    path = socket_path("run")
    with pytest.raises(FileNotFoundError):
        connect(path)
    listen(path).close()
    with pytest.raises(ConnectionRefusedError):
        connect(path)


def test_a_dead_socket_is_replaced_and_a_live_one_is_not(runtime: Path) -> None:
    """What an agent that died left behind makes way; a second agent beside a live one is refused."""
    path = socket_path("run")
    listen(path).close()
    with listen(path) as listener:
        with pytest.raises(AgentError, match="another process listens"):
            listen(path)
        probe = accept(listener)
        assert probe is not None
        with pytest.raises(ConnectionError):
            probe.receive()
        probe.close()
        connect(path).close()


def test_a_path_that_cannot_be_is_named(runtime: Path) -> None:
    """A path too long for a socket is an error that says what to set."""
    with pytest.raises(AgentError, match=r"too long.*XDG_RUNTIME_DIR"):
        listen(runtime_dir() / ("x" * 120))
