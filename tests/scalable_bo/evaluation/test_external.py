"""Objectives that are programs: whatever a program writes or does, only its point fails."""

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalable_bo.evaluation.evaluator import AnswerError, Evaluation
from scalable_bo.evaluation.external import Command, _NoAnswerError, _read_answer
from scalable_bo.space.space import Float, Space
from scalable_bo.study.study import Study

READS_ON = """
import json, os, sys
for line in sys.stdin:
    point = json.loads(line)
    print(json.dumps({"id": point["id"], "value": point["params"]["x"] + POINTS}), flush=True)
    POINTS += 1
"""


@contextmanager
def program(code: str, **options: object) -> Iterator[Command]:
    command = Command([sys.executable, "-ISc", code], **options)  # type: ignore[arg-type]
    try:
        yield command
    finally:
        command.close()


def answer(text: str) -> str:
    return f"import sys; line = sys.stdin.readline(); {text}"


@pytest.mark.parametrize("timeout", [None, 60.0, 3e6, 1e10, 1e300])
def test_a_program_that_reads_on_is_given_the_next_points(timeout: float | None) -> None:
    with program("POINTS = 0" + READS_ON) as command:
        assert [command.evaluate(timeout, number, {"x": 0.0}) for number in range(3)] == [
            Evaluation(n, float(n)) for n in range(3)
        ]


def test_a_program_that_ends_after_its_answer_is_started_again() -> None:
    with program(answer('print(\'{"id": 3, "value": 1.5}\', flush=True)')) as command:
        for _ in range(3):
            assert command.evaluate(5.0, 3, {"x": 1.0}) == Evaluation(3, 1.5)


def test_a_program_that_ends_at_a_later_point_is_not_given_it_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = (
        f"import json, sys\nfor line in sys.stdin:\n    id = json.loads(line)['id']\n   "
        f" print(id, file=open({str(log)!r}, 'a'))\n    id == 1 and sys.exit(9)\n   "
        " print(json.dumps({'id': id, 'value': 1}), flush=True)"
    )
    with program(code) as command:
        reasons = [command.evaluate(20.0, number, {}).reason for number in range(3)]
    assert reasons == [None, "the program ended without an answer, exit code 9", None]
    assert log.read_text().split() == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("work", "rest", "timeout", "reason"),
    [(0.0, 0.5, 20.0, None), (1.0, 2.5, 3.0, "TimeoutError: no answer within 3 s")],
)
def test_a_point_that_an_ended_program_has_not_read_is_given_to_another_in_the_time_left(
    work: float, rest: float, timeout: float, reason: str | None
) -> None:
    answers = f'time.sleep({work}); print(\'{{"id": 3, "value": 1}}\', flush=True)'
    with program(answer(f"import time; {answers}; time.sleep({rest})")) as command:
        assert command.evaluate(timeout, 3, {}).reason is None
        assert command.evaluate(timeout, 3, {}).reason == reason


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (answer("print('garbage')"), "the answer must be JSON, got b'garbage'"),
        (
            answer("sys.stdout.buffer.write(bytes([255, 0, 10]))"),
            r"the answer must be JSON, got b'\xff\x00'",
        ),
        (answer("print('[' * 100_000)"), "the answer must be JSON, got b'[[["),
        (
            answer("print('[1]')"),
            "the answer must be an object with an `id`, a whole number, got b'[1]'",
        ),
        (answer("print('{\"value\": 1}')"), "the answer must be an object with an `id`"),
        (answer("print('{\"id\": 3}')"), "the answer must have either `value` or `error`"),
        (
            answer('print(\'{"id": 4, "value": 1}\')'),
            "the answer must be to the point 3, got `id` 4",
        ),
        (
            answer('print(\'{"id": "3", "value": 1}\')'),
            "the answer must be an object with an `id`, a whole number, got",
        ),
        (answer('print(\'{"id": 3, "value": NaN}\')'), "the value is nan"),
        (answer('print(\'{"id": 3, "value": "one"}\')'), "not a number: str 'one'"),
        (
            answer('print(\'{"id": 3, "value": 1, "error": "no convergence"}\')'),
            "the answer must have either `value` or `error`, got",
        ),
        (answer('print(\'{"id": 3, "value": null}\')'), "not a number: NoneType None"),
        (answer('print(\'{"id": 3, "error": "no convergence"}\')'), "no convergence"),
        (
            answer('print(\'{"id": 3, "value": 1\' + 400 * "0" + "}")'),
            "The value of point 3 must be at most 1.8e+308 in size, got a larger int",
        ),
        (answer("print('x' * 3_000_000)"), "the answer is longer than 1048576 bytes"),
        (
            answer("sys.stdout.write('{'); sys.exit(3)"),
            "the answer must be JSON, got b'{'",
        ),
        (answer("sys.exit(3)"), "the program ended without an answer, exit code 3"),
        (
            "import sys; print('first', 'last words', sep='\\n', file=sys.stderr); sys.exit(1)",
            "exit code 1; stderr: last words",
        ),
        (
            "import os; os.kill(os.getpid(), 9)",
            "the program ended without an answer, killed by SIGKILL",
        ),
        (
            "import os; os.kill(os.getpid(), 40)",
            "the program ended without an answer, killed by signal 40",
        ),
        (answer("import time; time.sleep(60)"), "TimeoutError: no answer within 0.5 s"),
    ],
)
def test_what_is_no_answer_fails_the_point_with_the_reason(code: str, reason: str) -> None:
    with program(code) as command:
        found = command.evaluate(0.5 if "sleep" in code else 20.0, 3, {"x": 0.5})
    assert found.value != found.value
    assert found.reason is not None
    assert reason in found.reason
    assert len(found.reason) <= 500


@pytest.mark.parametrize(
    "line",
    ['"value": 1.5, "error": null', '"value": "1.5"', '"id": 3.0, "value": 1.5', '"value": [1.5]'],
)
@pytest.mark.parametrize("end", ["", "\n"])
def test_an_answer_in_another_form_counts_also_on_a_last_line_that_does_not_end(
    line: str, end: str
) -> None:
    text = f'{{"id": 3, {line}}}{end}'
    with program(answer(f"sys.stdout.write({text!r})")) as command:
        for _ in range(2):
            assert command.evaluate(20.0, 3, {}) == Evaluation(3, 1.5)


@pytest.mark.parametrize(
    ("value", "outcomes", "message"),
    [
        ("[1.5, 0.1]", (), r"The value of point 3 must be one number, got \[1.5, 0.1\]"),
        ('{"Yeild": 70, "Cost": 20}', ("Yield", "Cost"), "got 'Yeild'; the nearest is 'Yield'"),
        ("[70]", ("Yield", "Cost"), "must be one number for each of Yield, Cost, got"),
    ],
)
def test_an_answer_that_is_not_of_the_outcomes_is_refused(
    value: str, outcomes: tuple[str, ...], message: str
) -> None:
    with (
        program(answer(f'print(\'{{"id": 3, "value": {value}}}\')')) as command,
        pytest.raises(AnswerError, match=message),
    ):
        command.evaluate(20.0, 3, {"x": 0.5}, outcomes=outcomes)


def test_outcomes_that_a_program_does_not_know_are_left_out() -> None:
    with program(answer('print(\'{"id": 3, "value": {"a": null, "b": 2}}\')')) as command:
        found = command.evaluate(20.0, 3, {"x": 0.5}, outcomes=("a", "b"))
    assert (found.failure, found.further) == (None, (2.0,))


def test_a_program_that_is_not_there_fails_the_point() -> None:
    assert (
        Command("/nowhere/simulate").evaluate(None, 1, {}).reason
        == "/nowhere/simulate could not be started: No such file or directory"
    )


def test_after_a_failure_the_next_point_gets_a_new_program() -> None:
    code = (
        'import sys, time\nfor line in sys.stdin:\n    print(\'{"id": 1, "value": 1}\' if'
        " '\"id\": 1' in line else 'x\\nx', flush=True)"
    )
    with program(code) as command:
        assert [command.evaluate(20.0, number, {}).value == 1.0 for number in (1, 0, 1, 0, 1)] == [
            True,
            False,
            True,
            False,
            True,
        ]


def test_what_a_program_says_unasked_is_not_taken_for_the_next_answer() -> None:
    code = (
        'import sys\nfor line in sys.stdin:\n    print(\'{"id": 1, "value": 1}\\n{"id": 2, "value":'
        " 99}', flush=True)"
    )
    with program(code) as command:
        assert command.evaluate(20.0, 1, {}) == Evaluation(1, 1.0)
        assert (
            command.evaluate(20.0, 2, {}).reason == "the answer must be to the point 2, got `id` 1"
        )


def test_a_timeout_kills_what_the_program_started(tmp_path: Path) -> None:
    code = "import subprocess\nchild = subprocess.Popen(['sleep', '60'])\n"
    code += f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\nchild.wait()"
    with program(code) as command:
        assert command.evaluate(1.0, 0, {}).reason == "TimeoutError: no answer within 1 s"
    pid = int((tmp_path / "pid").read_text())
    for _ in range(500):
        status = Path(f"/proc/{pid}/stat")
        if not status.exists() or status.read_text().split()[2] == "Z":
            return
        time.sleep(0.01)
    pytest.fail("the program's child lives on")


def test_a_chatty_program_with_a_long_line_in_is_no_deadlock() -> None:
    code = (
        "import json, sys\nfor line in sys.stdin:\n    sys.stderr.write('progress\\n' * 100_000)\n "
        "   print(json.dumps({'id': 0, 'value': len(json.loads(line)['params']['text'])}),"
        " flush=True)"
    )
    with program(code) as command:
        assert command.evaluate(30.0, 0, {"text": "x" * 500_000}) == Evaluation(0, 500_000.0)


def test_a_study_runs_programs_side_by_side() -> None:
    code = "import os\nPOINTS = 0" + READS_ON.replace("+ POINTS", "+ 0 * POINTS")
    study = Study(Space(x=Float(0.0, 1.0)), maximize=True, num_initial=100)
    with program(code) as command, ThreadPoolExecutor(2) as pool:
        study.optimize(command, rounds=1, batch=8, executor=pool, timeout=30.0)
        assert command._idle.qsize() <= 2
    frame = study.to_dataframe()
    assert (frame["x"] == frame["value"]).all()


@pytest.mark.parametrize(
    ("command", "error"),
    [("", ValueError), ([], ValueError), ([""], ValueError), (["a", 1], TypeError), (3, TypeError)],
)
def test_what_names_no_program_is_refused(command: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="`command` must"):
        Command(command)  # type: ignore[arg-type]


def test_a_line_is_split_as_a_shell_does_and_no_shell_is_run(tmp_path: Path) -> None:
    command = Command(f"echo 'a b' $HOME; touch {tmp_path}/made")
    assert command.command == ("echo", "a b", "$HOME;", "touch", f"{tmp_path}/made")
    assert command.evaluate(10.0, 0, {}).reason is not None
    assert not list(tmp_path.iterdir())


@given(
    st.binary(max_size=80)
    | st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=3), st.lists)
    .map(repr)
    .map(str.encode)
)
def test_any_line_is_an_evaluation_or_no_answer(line: bytes) -> None:
    try:
        assert _read_answer(0, (), line).id == 0
    except _NoAnswerError as error:
        assert str(error)


def test_the_folder_of_programs_stays_the_one_that_was_named_wherever_the_process_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path)
    code = answer('print(f\'{{"id": 3, "value": {len(os.getcwd())}}}\')')
    with program(f"import os; {code}", folder="work") as command:
        for _ in range(2):
            assert command.evaluate(20.0, 3, {}) == Evaluation(3, len(str(tmp_path / "work")))
            monkeypatch.chdir("/")


def test_processes_are_closed_with_the_command() -> None:
    with program("POINTS = 0" + READS_ON) as command:
        command.evaluate(None, 0, {"x": 0.0})
        process = command._idle.get()
        command._idle.put(process)
        assert not process.has_ended()
    assert process.has_ended()
