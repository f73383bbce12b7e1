"""However a process ends, nothing that it started lives on."""

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from scalable_bo.evaluation import processes
from scalable_bo.evaluation.evaluator import Evaluation
from scalable_bo.evaluation.external import Command
from scalable_bo.evaluation.interruption import EndedBySignalError, signals_as_interruptions
from tests.waiting import eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
ROOT = Path(__file__).parents[3]
TRACER = "TRACER_OF_THE_TEST"
ANSWER = """read line; echo '{"id": 0, "value": 1.0}'"""

# Two evaluations at a time, each with a child in a session of its own.
IN_PROCESSES = """
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from scalable_bo.evaluation.evaluator import Evaluator, call
from tests.scalable_bo.objectives import wait_for_a_child
executor = lambda: ProcessPoolExecutor(3, mp_context=get_context("{start}"))
with Evaluator(partial(call, wait_for_a_child, None), executor, None, lambda: False) as evaluator:
    list(evaluator.run({{0: {{}}, 1: {{}}}}))
"""
IN_PROGRAMS = """
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from scalable_bo.evaluation.evaluator import Evaluator
from scalable_bo.evaluation.external import Command
command = Command(["sh", "-c", "echo child >> begun; setsid sleep 600 & sleep 600"])
evaluate = partial(command.evaluate, None)
executor = lambda: ThreadPoolExecutor(2)
with Evaluator(evaluate, executor, None, lambda: False, command.stop) as evaluator:
    list(evaluator.run({0: {}, 1: {}}))
"""
# Killed when a pool has just been started, before anybody was told of its processes
BEFORE_THE_WATCH = """
import os, signal
from scalable_bo.evaluation import processes
def killed(pids):
    assert [*pids]
    open("begun", "w").write("pool")
    os.kill(os.getpid(), signal.SIGKILL)
processes.watch = killed
"""
SCRIPTS = {
    "programs": IN_PROGRAMS,
    "fork": IN_PROCESSES.format(start="fork"),
    "spawn": IN_PROCESSES.format(start="spawn"),
}


@pytest.fixture(autouse=True)
def _signals_end_processes() -> Iterator[None]:
    """Under `nohup`, or in the background of a shell, some do not, in no process that is begun
    there.
    """
    handlers = {signal.SIGHUP: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def living(tracer: str) -> list[str]:
    """Return the commands of the processes with a tracer in their environment."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                if f"{TRACER}={tracer}".encode() in (process / "environ").read_bytes():
                    found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
    return found


@pytest.mark.parametrize(("start", "owner"), [("fork", "ours"), ("spawn", "the user's")])
def test_a_pool_ends_though_its_process_is_killed_before_it_is_watched(
    tmp_path: Path, tracer: str, start: str, owner: str
) -> None:
    script = BEFORE_THE_WATCH + IN_PROCESSES.format(start=start)
    if owner == "the user's":
        script = script.replace("executor = lambda: ", "executor = ")
    process = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), TRACER: tracer},
        stderr=subprocess.DEVNULL,
        timeout=300,
    )
    assert process.returncode == -signal.SIGKILL
    assert (tmp_path / "begun").read_text()
    eventually(lambda: not living(tracer))


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture
def tracer() -> Iterator[str]:
    token = os.urandom(8).hex()
    yield token
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and int(process.name) != os.getpid():
            try:
                if f"{TRACER}={token}".encode() in (process / "environ").read_bytes():
                    os.kill(int(process.name), signal.SIGKILL)
            except OSError:
                continue


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("programs", signal.SIGKILL),
        ("programs", signal.SIGINT),
        ("fork", signal.SIGTERM),
        ("fork", signal.SIGINT),
        ("spawn", signal.SIGHUP),
    ],
)
def test_nothing_outlives_a_process_that_is_ended_by_a_signal(
    tmp_path: Path, tracer: str, kind: str, number: int
) -> None:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), TRACER: tracer}
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPTS[kind]],
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.DEVNULL,
    )
    begun = tmp_path / "begun"
    try:
        eventually(lambda: begun.exists() and begun.read_text().count("\n") == 2)
        assert len(living(tracer)) >= 4
        process.send_signal(number)
        eventually(lambda: not living(tracer))
    finally:
        process.kill()
        process.wait(120)


def test_a_guard_that_comes_after_the_end_of_its_parent_hears_what_that_said() -> None:
    child = subprocess.Popen(["sleep", "600"])
    nobody = "1"  # is not the parent of the guard
    guard = [sys.executable, "-I", "-S", processes.__file__, nobody, "a mark of nobody."]
    try:
        subprocess.run(guard, input=f"{child.pid}\n".encode(), check=True, timeout=300)
        assert child.wait(120) == -signal.SIGKILL
    finally:
        child.kill()
        child.wait(120)


def test_a_program_that_has_ended_is_not_waited_for_while_a_child_holds_its_output() -> None:
    command = Command(["sh", "-c", "sleep 600 & exit 3"])
    start = time.monotonic()
    reason = command.evaluate(None, 0, {}).reason
    assert time.monotonic() - start < 300
    assert reason == "the program ended without an answer, exit code 3"
    command.close()


def test_an_answer_is_one_though_a_child_is_left_in_the_background() -> None:
    command = Command(["sh", "-c", f"{ANSWER}; sleep 600 & exit 0"])
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: command.evaluate(120.0, 0, {}), range(10)))
    assert found == [Evaluation(0, 1.0)] * 10
    command.close()


@pytest.mark.parametrize("script", ["sleep 600 & exit 0", "setsid sleep 600 & exec sleep 600"])
def test_a_program_leaves_no_children(
    script: str, tracer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes.own_mark()  # starts the guard, which outlives the test, without the tracer
    monkeypatch.setenv(TRACER, tracer)
    command = Command(["sh", "-c", f"{ANSWER}; {script}"])
    assert command.evaluate(120.0, 0, {}) == Evaluation(0, 1.0)
    eventually(lambda: [text for text in living(tracer) if "sleep" in text])
    command.close()
    eventually(lambda: not living(tracer))


def test_stopped_programs_fail_their_points_and_later_points_are_evaluated() -> None:
    waits = 'read line; case "$line" in *wait*) sleep 600;; esac; '
    command = Command(["sh", "-c", waits + ANSWER.removeprefix("read line; ")])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(command.evaluate, None, 0, {"wait": 1})
        eventually(lambda: command._running)
        command.stop()
        assert waiting.result(120).reason is not None
    assert command.evaluate(None, 0, {}) == Evaluation(0, 1.0)
    command.close()


def test_a_guard_that_was_killed_is_replaced() -> None:
    def guards() -> list[int]:
        pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
        return [pid for pid in pids if mark.encode() in command_of(pid)]

    mark = processes.own_mark()
    eventually(guards)
    (guard,) = guards()
    os.kill(guard, signal.SIGKILL)
    eventually(lambda: not guards())
    numbers = itertools.count(2**22 + 1)

    def replaced() -> list[int]:
        # Its end of the pipe may close a moment after its name has gone
        processes.watch([next(numbers)])
        return guards()

    eventually(replaced)


def test_a_mark_is_handed_down_and_told_apart_from_longer_ones() -> None:
    children = [
        subprocess.Popen(["sleep", "600"], env={processes.MARK: mark})
        for mark in ("outer.1.", "outer.1.inner.", "outer.12.")
    ]
    try:
        eventually(lambda: processes._find(set(), "outer.1") >= {c.pid for c in children})
        processes.kill_all(mark="outer.1.")
        assert [child.poll() is None for child in children] == [False, False, True]
    finally:
        for child in children:
            child.kill()
            child.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_end_a_run_as_interruptions_do(number: int) -> None:
    with pytest.raises(EndedBySignalError) as error, signals_as_interruptions():
        signal.raise_signal(number)
    assert error.value.number == number
    assert signal.getsignal(number) is signal.SIG_DFL
    assert issubclass(EndedBySignalError, KeyboardInterrupt)


def test_a_hangup_that_is_ignored_stays_so() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals_as_interruptions():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
