"""Families of processes: found however they hide, and ended for good."""

from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from halter.cancel.deadlines import MAX_SECONDS
from halter.cancel.processes import registry, tree
from halter.cancel.processes.proc_table import status_of
from halter.cancel.processes.tree import ProcessTree
from halter.testing import deaf_process
from tests.support.processes import is_alive, run_python, wait_dead


def start_deaf(**options: object) -> tuple[subprocess.Popen[bytes], list[int]]:
    """A process that ignores TERM, in its own session, with an escaped grandchild; and the process ids of both."""
    process = subprocess.Popen(
        deaf_process(escape=True),
        stdout=subprocess.PIPE,
        start_new_session=True,
        **options,  # type: ignore[call-overload]
    )
    assert process.stdout is not None
    pids = [int(word) for word in process.stdout.readline().split()[1:]]
    process.stdout.close()
    return process, pids


def test_an_escapee_is_found_by_its_cookie() -> None:
    """setsid, a double fork and ignoring TERM do not help."""
    process, pids = start_deaf(env=os.environ | {"HALTER_TEST_COOKIE_1": "1"})
    marked_tree = ProcessTree([process.pid], session=process.pid, cookie=b"HALTER_TEST_COOKIE_1", reap=process.poll)
    assert set(pids) <= marked_tree.members().keys()
    assert marked_tree.stop(0.05) == []
    assert not any(is_alive(pid) for pid in pids)
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("cookie", [b"HALTER_TEST_COOKIE_2", None])
def test_a_root_can_be_spared(cookie: bytes | None) -> None:
    """What a process has started is ended, and the process itself lives on."""
    process = subprocess.Popen(
        ["sh", "-c", "sleep 30 & echo $!; wait; exec sleep 30"],
        stdout=subprocess.PIPE,
        env=os.environ | {"HALTER_TEST_COOKIE_2": "1"},
    )
    assert process.stdout is not None
    with process, process.stdout:
        child = int(process.stdout.readline())
        others = ProcessTree([process.pid], cookie=cookie, spare=[process.pid])
        assert others.members().keys() == {child}
        assert others.stop(1.0) == []
        wait_dead(child)
        assert is_alive(process.pid)
        process.kill()


def test_one_that_obeys_is_not_killed() -> None:
    """TERM is enough for processes that handle it; paused ones are continued so that they can."""
    process = subprocess.Popen(["sleep", "30"], start_new_session=True)
    os.kill(process.pid, signal.SIGSTOP)
    assert ProcessTree([process.pid], session=process.pid, reap=process.poll).stop(10) == []
    assert process.returncode == -signal.SIGTERM


def test_term_is_sent_once() -> None:
    """Many programs take a second TERM for "at once", and would lose the grace that they were given."""
    code = (
        "import os, signal, time\n"
        "told = []\n"
        "def note(*_):\n"
        "    told.append(time.monotonic())\n"
        "    os.write(1, b'TERM ')\n"
        "signal.signal(signal.SIGTERM, note)\n"
        "os.write(1, b'ready ')\n"
        "while not told or time.monotonic() < told[0] + 0.5: time.sleep(0.01)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    assert os.read(process.stdout.fileno(), 6) == b"ready "
    tree_of_one = ProcessTree([process.pid], session=process.pid, reap=process.poll)
    assert tree_of_one.stop(10) == []
    assert process.stdout.read() == b"TERM "
    process.stdout.close()


def test_without_grace_all_are_killed_at_once() -> None:
    """Zero grace means KILL."""
    process = subprocess.Popen(["sleep", "30"], start_new_session=True)
    assert ProcessTree([process.pid], reap=process.poll).stop(0) == []
    assert process.returncode == -signal.SIGKILL


def test_one_that_left_the_family_tree_is_remembered() -> None:
    """A grandchild in another session is known from before its parent died."""
    code = (
        "import subprocess; p = subprocess.Popen(['sleep', '30'], start_new_session=True); "
        "print(p.pid, flush=True); input()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdin is not None
    grandchild = int(process.stdout.readline())
    no_cookie = ProcessTree([process.pid], session=process.pid, reap=process.poll)
    assert grandchild in no_cookie.members()
    process.stdin.close()
    process.wait(10)
    process.stdout.close()
    assert no_cookie.stop(1) == []
    assert not is_alive(grandchild)


def test_an_orphan_is_found_by_its_session() -> None:
    """It lost its parent before anybody looked and has no cookie, but it did not change its session."""
    process = subprocess.Popen(["sh", "-c", "sleep 30 & echo $!"], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    orphan = int(process.stdout.readline())
    process.stdout.close()
    process.wait(10)
    assert ProcessTree([process.pid], session=process.pid).stop(5) == []
    assert not is_alive(orphan)


def test_one_that_dies_before_its_signal_is_passed_over() -> None:
    """Between the look and the signal it may have gone."""
    process = subprocess.Popen(["true"])
    process.wait()
    empty = ProcessTree([])
    empty._signal({process.pid: 1}, signal.SIGTERM)
    assert empty.members() == {}


def test_those_born_while_the_family_is_ended_are_ended_too() -> None:
    """A parent that starts a new child for each that dies runs out of time, not we."""
    code = """
import os, signal, sys, time
def replace(*_):
    for _ in range(2):
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.setsid()
            time.sleep(30)
            os._exit(0)
signal.signal(signal.SIGTERM, replace)
print("ready", flush=True)
while True:
    time.sleep(30)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        start_new_session=True,
        env=os.environ | {"HALTER_TEST_COOKIE_2": "1"},
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    born = ProcessTree([process.pid], session=process.pid, cookie=b"HALTER_TEST_COOKIE_2", reap=process.poll)
    assert born.stop(0.2) == []
    assert born.members() == {}


def test_a_recycled_number_is_not_hit() -> None:
    """A process with the number of a member, but another start time, is another process."""
    process = subprocess.Popen(["sleep", "30"])
    try:
        impostor = ProcessTree([process.pid])
        impostor._known[process.pid] -= 1
        assert impostor.stop(0.05) == []
        assert process.poll() is None
        with tree._descriptor(process.pid, 1) as descriptor:
            assert descriptor is None
        with tree._descriptor(2**22 + 1, 1) as descriptor:
            assert descriptor is None
    finally:
        process.kill()
        process.wait()


def test_a_family_of_nobody_is_gone() -> None:
    """Processes that have ended before we looked, or are not our children, are no members."""
    process = subprocess.Popen(["true"])
    process.wait()
    assert ProcessTree([process.pid, os.getppid()]).members() == {}
    assert not ProcessTree([process.pid]).may_have_members()


def test_survivors_are_named(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that survives even KILL, as one stuck in the kernel does, is reported by its number."""
    process = subprocess.Popen(["sleep", "30"])
    stuck = ProcessTree([process.pid])
    try:
        monkeypatch.setattr(tree, "_send", lambda *_: None)  # nothing that we may start resists KILL
        monkeypatch.setattr(tree, "KILL_TIMEOUT", 0.05)
        with caplog.at_level(logging.ERROR):
            registry.stop(stuck, 0.0)
        assert str(process.pid) in caplog.text
        assert process.pid in registry.roots()  # the exit tries once more
    finally:
        registry.remove(stuck)
        process.kill()
        process.wait()


def test_without_proc_the_group_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """On other systems than Linux the process group is all that is known, and it is ended."""
    monkeypatch.setattr(tree, "HAS_PROC", False)
    obedient = subprocess.Popen(["sleep", "30"], start_new_session=True)
    assert ProcessTree([obedient.pid], session=obedient.pid, reap=obedient.poll).stop(10) == []
    assert obedient.returncode == -signal.SIGTERM
    process, pids = start_deaf()
    assert ProcessTree([process.pid], session=process.pid, reap=process.poll).stop(0.05) == []
    assert process.returncode == -signal.SIGKILL
    os.kill(pids[1], signal.SIGKILL)
    wait_dead(pids[1])
    unreaped = subprocess.Popen(["sleep", "30"], start_new_session=True)
    monkeypatch.setattr(tree, "KILL_TIMEOUT", 0.05)
    assert ProcessTree([unreaped.pid], session=unreaped.pid).stop(0.05) == [unreaped.pid]  # not reaped
    unreaped.wait()
    assert ProcessTree([]).stop(0.05) == []


def test_the_program_ends_its_families_when_it_exits() -> None:
    """Without any guard, leaving the program ends what run_process() and abandoned calls have started."""
    program = """
        import asyncio, subprocess, threading
        from halter import run_blocking_async, run_process
        from halter.testing import deaf_process
        async def main():
            pids = []
            def deaf():
                process = subprocess.Popen(["sleep", "30"])
                pids.append(process.pid)
                process.wait()
            ready = asyncio.Event()
            def on_output(text):
                pids.extend(int(word) for word in text.split()[1:])
                ready.set()
            tasks = [asyncio.create_task(run_process(deaf_process(escape=True), on_output=on_output)),
                     asyncio.create_task(run_blocking_async(deaf))]
            await ready.wait()
            while len(pids) < 3:
                await asyncio.sleep(0.01)
            print(*pids, flush=True)
        asyncio.run(main())
    """
    result = run_python(program)
    assert result.returncode == 0, result.stderr
    pids = [int(word) for word in result.stdout.split()]
    assert len(pids) == 3
    assert not any(is_alive(pid) for pid in pids)


def test_a_forked_child_does_not_end_the_parents_families() -> None:
    """Families belong to the process that started them."""
    program = """
        import os, subprocess
        from halter.cancel.processes import registry
        from halter.cancel.processes.tree import ProcessTree
        process = subprocess.Popen(["sleep", "30"])
        registry.add(ProcessTree([process.pid]))
        assert process.pid in registry.roots()
        pid = os.fork()
        if pid == 0:
            registry.stop_all(0)
            os._exit(0)
        os.waitpid(pid, 0)
        assert process.poll() is None
    """
    result = run_python(program)
    assert result.returncode == 0, result.stderr


_FEW_DESCRIPTORS = """
    import os, resource, subprocess, sys
    from halter.cancel.processes import guardian, registry
    from halter.cancel.processes.tree import ProcessTree
    guardian.wait_until_started()
    children = [subprocess.Popen(["sleep", "60"], start_new_session=True) for _ in range(8)]
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    def allow_more():  # also before the program ends: the end of a thread may have to load a library
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, most))
    def use_up_descriptors(free):
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))
        opened = []
        try:
            while True:
                opened.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            for _ in range(free):
                os.close(opened.pop())
"""


@pytest.mark.parametrize("free", [0, 1, 4])
def test_without_free_descriptors_the_group_is_ended(free: int) -> None:
    """A server that had used up its descriptors took every process for gone, so a stop ended none."""
    program = f"""
        trees = [ProcessTree([child.pid], session=child.pid, reap=child.poll) for child in children]
        use_up_descriptors({free})
        left = registry.stop(ProcessTree.union_of(trees), 10.0)
        allow_more()
        assert left == []
        assert {{child.returncode for child in children}} == {{-15}}
    """
    ended = run_python(textwrap.dedent(_FEW_DESCRIPTORS) + textwrap.dedent(program))
    assert ended.returncode == 0, ended.stderr


def test_without_free_descriptors_and_without_a_group_they_are_left_behind() -> None:
    """Processes that cannot be looked up are named as survivors, and the exit tries once more."""
    program = """
        pids = [child.pid for child in children]
        tree = ProcessTree(pids)
        use_up_descriptors(0)
        left = registry.stop(tree, 0.0)
        allow_more()
        assert left == sorted(pids)
        assert registry.roots() == set(pids)
        assert registry.stop(tree, 0.0) == []
    """
    ended = run_python(textwrap.dedent(_FEW_DESCRIPTORS) + textwrap.dedent(program))
    assert ended.returncode == 0, ended.stderr


def test_a_tree_that_is_made_without_free_descriptors_is_ended_later() -> None:
    """Its root is found by its session, once there is a descriptor to look with."""
    program = """
        use_up_descriptors(0)
        trees = [ProcessTree([child.pid], session=child.pid, reap=child.poll) for child in children]
        allow_more()
        assert ProcessTree.union_of(trees).stop(10.0) == []
        assert {child.returncode for child in children} == {-15}
    """
    ended = run_python(textwrap.dedent(_FEW_DESCRIPTORS) + textwrap.dedent(program))
    assert ended.returncode == 0, ended.stderr


def test_an_unlimited_grace_is_one() -> None:
    """run_process(grace=math.inf) waited with a number that poll() does not take, and the stop failed."""
    process = subprocess.Popen(
        ["sh", "-c", "trap '' TERM; echo; exec sleep 0.5"], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    with process.stdout:
        process.stdout.readline()
    assert ProcessTree([process.pid], session=process.pid, reap=process.poll).stop(MAX_SECONDS) == []
    assert process.returncode == 0


def test_as_many_as_there_are_descriptors_for_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """With none at all the caller is told, and ends the groups; with some it waits for these, and looks again."""
    open_one = os.pidfd_open
    left: list[int] = []
    to_kill: list[subprocess.Popen[bytes]] = []

    def limited(pid: int) -> int:
        if not left:
            for each in to_kill:  # it is waited for by now: one that is dead before that is not
                each.kill()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return open_one(left.pop())

    monkeypatch.setattr(os, "pidfd_open", limited)
    with subprocess.Popen(["sleep", "30"]) as process:
        status = status_of(process.pid)
        assert status is not None
        members = {process.pid: status.start, os.getpid(): 1}
        with pytest.raises(OSError, match="Too many open files"):
            tree._wait_until_gone(members, time.monotonic() + 30)
        left.append(process.pid)
        to_kill.append(process)
        tree._wait_until_gone(members, time.monotonic() + 30)
        assert left == []
