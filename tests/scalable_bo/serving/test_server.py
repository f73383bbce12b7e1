"""A served study on the loopback device: what workers get, and what others do not."""

import json
import math
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

pytest.importorskip("fastapi")

from scalable_bo.evaluation.evaluator import Evaluation, LateError
from scalable_bo.serving import app, middleware
from scalable_bo.serving import server as server_module
from scalable_bo.serving.client import RemoteStudy
from scalable_bo.serving.server import Server
from scalable_bo.serving.tokens import new_token
from scalable_bo.serving.worker import work
from scalable_bo.storage.record import StudyRecord
from scalable_bo.study.study import Study
from tests.scalable_bo.serving.requests import post, send
from tests.scalable_bo.serving.served import make_study, served
from tests.waiting import eventually

GETS = ("/status", "/best", "/best_params", "/points")
POSTS = ("/ask", "/tell", "/fail", "/renew", "/release")


def test_a_study_is_asked_and_told_as_one_at_hand(remote: RemoteStudy, study: Study) -> None:
    batch = remote.ask(3)
    assert (len(batch.ids), len(batch.params)) == (3, 3)
    at_hand = dict(zip(study.pending.ids, study.pending.params, strict=True))
    assert [at_hand[id] for id in batch.ids] == batch.params
    remote.tell(replace(batch, ids=batch.ids[:2]), [0.1, 0.7])
    remote.fail(batch.ids[2], "it broke")
    assert study.reasons(batch.ids) == [None, None, "it broke"]
    assert (remote.num_observations, remote.num_failed) == (2, 1)
    assert remote.best_value == study.best_value == 0.7
    assert remote.best_params == study.best_params
    assert remote.outcomes == ()
    assert set(remote.status()["parameters"]) == {"x", "kind"}


def test_what_is_no_number_fails_as_it_does_at_hand(remote: RemoteStudy, study: Study) -> None:
    ids = remote.ask(4).ids
    remote.tell(ids, [math.nan, "text", 1.0, None], reasons={ids[2]: "withdrawn by hand"})
    assert study.reasons(ids) == [
        "the value is nan",
        "not a number: str 'text'",
        "withdrawn by hand",
        "not a number: NoneType None",
    ]


def test_a_tell_may_be_repeated_and_another_value_is_late(remote: RemoteStudy) -> None:
    (id,) = remote.ask().ids
    remote.tell([id], [1.0])
    remote.tell([id], [1.0])
    with pytest.raises(LateError, match="another value"):
        remote.tell([id], [2.0])
    with pytest.raises(LateError):
        remote.fail(id, "too late")
    with pytest.raises(ValueError, match="unknown") as error:
        remote.tell([10**6], [2.0])
    assert not isinstance(error.value, LateError)
    assert (remote.num_observations, remote.best_value) == (1, 1.0)


def test_workers_go_on_beside_another_process_that_tells_their_points(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy")
    place: dict[str, Any] = {"storage": f"sqlite:///{tmp_path}/shared.db", "name": "tuning"}
    with (
        make_study(**place) as study,
        make_study(**place) as other,
        served(study, evaluations=4) as (_, remote),
    ):
        told_here: list[int] = []

        def evaluate(id: int, params: dict[str, Any]) -> Evaluation:
            if not told_here:  # the point of the worker, and one that waits
                told_here.extend([id, max(other.pending.ids)])
                other.tell(told_here, [8.0, 9.0])
                assert remote.status()["num_observations"] == 2
                assert remote.status()["best_value"] == 9.0
            return Evaluation(id, params["x"])

        assert work(remote, evaluate) == 2  # and ends, as all points have been evaluated
        assert remote.status()["num_pending"] == remote.status()["num_waiting"] == 0
        assert [point.outcomes["value"] for point in study.points(told_here)] == [8.0, 9.0]


@pytest.mark.parametrize("error", [OSError, RuntimeError])
def test_a_storage_that_is_away_is_said_in_json(
    server: Server, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    away = Mock(side_effect=error("The database could not be reached."))
    monkeypatch.setattr(StudyRecord, "refresh", away)
    for path in (*GETS, "/live", "/model", "/rows"):
        status, answer, _ = send(server.url, path, token=server.token)
        assert status == 503
        assert json.loads(answer) == {"detail": "The database could not be reached."}


def test_tells_of_many_threads_are_all_recorded(remote: RemoteStudy, study: Study) -> None:
    ids = remote.ask(64).ids
    ids += remote.ask(64 - len(ids)).ids

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda id: remote.tell([id], [float(id)]), ids))
    frame = study.to_dataframe()
    assert (frame["value"][ids] == ids).all()


def test_several_outcomes_travel_by_name() -> None:
    study = make_study(objectives={"cost": "minimize", "gain": "maximize"})
    with served(study) as (_, remote):
        ids = remote.ask(3).ids
        remote.tell(ids[:1], [{"cost": 1.0, "gain": 2.0}])
        remote.tell(ids[1:2], [(0.5, 1.0)])
        remote.tell(ids[2:3], [{"cost": None, "gain": math.nan}])
        assert study.reasons(ids) == [None, None, "cost: not a number: NoneType None"]
        assert math.isnan(remote.best_value) and remote.status()["best_value"] is None
        best = remote.best()
        assert len(best["front"]) == 2
        assert best["hypervolume"] == study.result.hypervolume > 0.0
        assert best["reference_point"] == study.result.reference_point
        with pytest.raises(ValueError, match="must have one objective for `best_params`") as here:
            _ = study.best_params
        with pytest.raises(ValueError) as there:
            _ = remote.best_params
        assert str(there.value) == str(here.value)


def test_what_keeps_no_limit_is_told_as_at_hand() -> None:
    study = make_study(outcome_constraints={"weight": (None, 1.0)})
    with served(study) as (_, remote):
        with pytest.raises(ValueError, match="There is no `result` yet"):
            _ = remote.best_params
        remote.tell(remote.ask(1).ids, [{"value": 1.0, "weight": 3.0}])
        with pytest.raises(ValueError, match="none does: the nearest .*weight"):
            _ = remote.best_params
        least = study.result.least_violating
        assert least is not None and remote.best()["least_violating"] == vars(least)
        remote.tell(remote.ask(1).ids, [{"value": 0.5, "weight": 0.5}])
        assert remote.best_params == study.best_params
        assert remote.best_value == study.best_value == 0.5


def test_outcomes_that_are_told_one_by_one_complete_a_point(tmp_path: Path) -> None:
    objectives = {"cost": "minimize", "gain": "maximize"}
    with (
        make_study(objectives=objectives, path=tmp_path) as study,
        served(study, evaluations=3) as (server, remote),
    ):
        ids = remote.ask(3).ids
        ids += remote.ask(3 - len(ids)).ids if len(ids) < 3 else []
        remote.tell(ids[:2], [{"cost": 1.0}, (math.nan, Decimal("2.5"))])
        results = [{"id": ids[2], "value": {"gain": 3.0, "cost": None}}]
        assert post(server.url, "/tell", server.token, {"results": results})[0] == 200
        assert remote.ask().ids == []  # all have been evaluated, and wait for other outcomes
        assert study.pending.outcomes == [{"cost": 1.0}, {"gain": 2.5}, {"gain": 3.0}]
        assert remote.status()["num_pending"] == 3
        remote.tell(ids[:1], [{"cost": 1.0}])  # the same again
        with pytest.raises(LateError, match="cost of 0 was 1.0 and is 2.0 now"):
            remote.tell(ids[:1], [{"cost": 2.0}])
        with pytest.raises(ValueError, match="got 'gian'; the nearest is 'gain'") as refused:
            remote.tell(ids[:1], [{"gian": 2.0}])
        assert not isinstance(refused.value, LateError)
        results = [{"id": ids[0], "value": {"gian": 2.0}}]
        status, answer = post(server.url, "/tell", server.token, {"results": results})
        assert (status, "nearest is 'gain'" in answer["detail"]) == (422, True)
        results = [{"id": ids[0], "value": [[1.0, 0.1], 2.0]}]
        assert post(server.url, "/tell", server.token, {"results": results})[0] == 422
    with (
        make_study(objectives=objectives, path=tmp_path) as study,
        served(study, evaluations=3) as (_, remote),
    ):
        assert remote.ask().ids == []
        remote.tell(ids, [{"gain": 2.0}, (1.0, None), (1.0, 3.0)])
        assert study.result.outcomes.tolist() == [[1.0, 2.0], [1.0, 2.5], [1.0, 3.0]]


def test_known_variances_travel_with_their_values(remote: RemoteStudy, study: Study) -> None:
    ids = remote.ask(2).ids
    remote.tell(ids, [1.0, 2.0], noise=[0.1, 0.2])
    assert list(study.to_dataframe()["noise"][ids]) == [0.1, 0.2]
    batch = remote.ask(1)
    remote.tell(batch, [1.0], noise=1)  # of all
    assert study.to_dataframe()["noise"][batch.ids[0]] == 1.0
    with pytest.raises(ValueError, match="`noise` must be given"):
        remote.tell(remote.ask(1).ids, [1.0])


def test_leases_are_held_while_a_point_is_evaluated(study: Study) -> None:
    with (
        served(study, lease=2.0, batch=1) as (server, one),
        RemoteStudy(server.url, token=server.token) as other,
    ):
        (id,) = one.ask().ids
        lease = server.leased.held()[id]
        with one.holding([id]):
            renewed = lambda: server.leased.held().get(id, lease)  # noqa: E731
            eventually(lambda: renewed().until > lease.until)
            assert renewed().worker == one.worker
        eventually(lambda: id in other.ask(100).ids)
        assert one.renew([id]) == [id]


def test_without_the_token_there_is_nothing_but_a_health_check(server: Server) -> None:
    for token in (None, "", "wrong", server.token[:-1], server.token + "x", new_token()):
        server_is_fresh(server)
        for path in GETS:
            assert send(server.url, path, token=token)[0] == 401
        for path in POSTS:
            assert post(server.url, path, token or "-", {})[0] == 401
        for path in ("/", "/nothing", "/page.js"):
            assert send(server.url, path, token=token)[0] == 401
    assert send(server.url, "/health")[:2] == (200, b'{"status": "ok"}')


def server_is_fresh(server: Server) -> None:
    """Forget the wrong requests so far."""
    behind: Any = server._server.config.app
    behind._strangers._left.clear()


def test_a_token_of_before_is_refused(tmp_path: Path, study: Study) -> None:
    file = tmp_path / "token"
    with Server(study, token_file=file) as server:
        before = server.token
    file.unlink()
    with Server(study, token_file=file) as server:
        assert send(server.url, "/status", token=before)[0] == 401
        assert send(server.url, "/status", token=server.token)[0] == 200


def test_a_password_shows_but_does_not_change_anything(server: Server) -> None:
    from base64 import b64encode

    password = b64encode(f"anyone:{server.token}".encode()).decode()
    headers = {"Authorization": f"Basic {password}", "Content-Type": "application/json"}
    assert send(server.url, "/status", headers=headers)[0] == 200
    body = b'{"worker": "one"}'
    assert send(server.url, "/ask", method="POST", body=body, headers=headers)[0] == 401


def test_answers_allow_a_browser_nothing_from_elsewhere(server: Server) -> None:
    for token in (None, server.token):
        _, _, headers = send(server.url, "/status", token=token)
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers
        assert not [name for name in headers if name.startswith("access-control")]
    status, _, headers = send(
        server.url, "/tell", method="OPTIONS", headers={"Origin": "https://elsewhere.example"}
    )
    assert status == 401
    assert not [name for name in headers if name.startswith("access-control")]


# Where they are told of a point that is out
WRONG: list[tuple[str, Any]] = [
    ("/ask", {}),
    ("/ask", []),
    ("/ask", {"worker": "one", "q": 0}),
    ("/ask", {"worker": "one", "q": 10**9}),
    ("/ask", {"worker": "one", "q": "1"}),
    ("/ask", {"worker": "one", "q": True}),
    ("/ask", {"worker": "<b>", "q": 1}),
    ("/ask", {"worker": "a" * 101}),
    ("/ask", {"worker": "one", "more": 1}),
    ("/tell", {"results": [{"id": -1, "value": 1.0}]}),
    ("/tell", {"results": [{"id": 0, "value": "1.0"}]}),
    ("/tell", {"results": [{"id": 0, "value": None}]}),
    ("/tell", {"results": [{"id": 0, "value": [[1.0]]}]}),
    ("/tell", {"results": [{"id": 0, "value": {"value": 1.0}}]}),
    ("/tell", {"results": [{"id": 2**80, "value": 1.0}]}),
    ("/tell", {"results": [{"id": 0, "value": 1.0, "noise": -1.0}]}),
    ("/tell", {"results": [{"id": 0, "value": 1.0}, {"id": 0, "value": 1.0}]}),
    ("/tell", {"results": [{"id": 0, "value": 1.0}] * 1001}),
    ("/fail", {"failures": [{"id": 0, "reason": "x" * 2001}]}),
    ("/renew", {"worker": "one", "ids": [0.5]}),
]


def test_malformed_requests_are_refused_in_a_line(server: Server, study: Study) -> None:
    assert post(server.url, "/ask", server.token, {"worker": "one"})[0] == 200
    for path, content in WRONG:
        server_is_fresh(server)
        status, answer = post(server.url, path, server.token, content)
        assert status == 422, (path, content)
        assert len(answer["detail"]) < 600 and "\n" not in answer["detail"]
    assert (study.num_observations, study.num_failed) == (0, 0)


def test_what_is_no_json_is_refused(server: Server) -> None:
    options: dict[str, Any] = {"method": "POST", "token": server.token}
    options["headers"] = {"Content-Type": "application/json"}
    huge = b'{"worker":"one","q":' + b"9" * 5000 + b"}"
    for body in (b"", b"{", b"\xff", b"[" * 100_000, huge):
        status, answer, _ = send(server.url, "/ask", body=body, **options)
        assert status in (400, 422)
        assert "detail" in json.loads(answer)


def test_large_bodies_are_refused_with_and_without_a_length(server: Server) -> None:
    large = b" " * (middleware.MOST_BYTES + 1)
    headers = {"Content-Type": "application/json"}
    token = server.token
    options: dict[str, Any] = {"method": "POST", "token": token, "headers": headers}
    assert send(server.url, "/ask", body=large, **options)[0] == 413
    # http.client sends what it is given bit by bit in chunks, without a length
    assert send(server.url, "/ask", body=iter([large]), **options)[0] == 413
    assert send(server.url, "/ask", body=iter([b'{"worker": ', b'"one"}']), **options)[0] == 200


def test_too_many_wrong_requests_are_put_off_and_workers_go_on(
    server: Server, remote: RemoteStudy
) -> None:
    answers = [send(server.url, "/status", token="wrong")[0] for _ in range(40)]
    assert answers[0] == 401 and 429 in answers
    assert remote.ask().ids


def test_texts_in_a_reason_come_back_as_they_were(remote: RemoteStudy, study: Study) -> None:
    (id,) = remote.ask().ids
    remote.fail(id, "<script>alert(1)</script> \ud800 \0 ü")
    assert study.reasons([id]) == ["<script>alert(1)</script> \\ud800 \0 ü"]


def test_other_machines_are_not_served_without_tls(study: Study) -> None:
    for host in ("0.0.0.0", "192.0.2.1", "example.org", "::"):
        with pytest.raises(ValueError, match="`certificate`"):
            Server(study, host=host)


def test_the_second_part_of_an_answer_does_not_wait_for_the_first_to_be_acknowledged() -> None:
    with (
        server_module._listen("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()),
    ):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_an_address_that_is_taken_is_named(server: Server, study: Study) -> None:
    port = int(server.url.rpartition(":")[2])
    with pytest.raises(OSError, match=str(port)):
        Server(study, port=port)


@pytest.fixture
def certificate(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A certificate of 127.0.0.1, signed by itself, and its key."""
    pem, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    try:
        subprocess.run(
            [*command, "-keyout", key, "-out", pem], check=True, capture_output=True, timeout=300
        )
    except FileNotFoundError:
        pytest.skip("there is no openssl")
    yield pem, key


def test_tls_by_certificate_files(study: Study, certificate: tuple[Path, Path]) -> None:
    pem, key = certificate
    with Server(study, certificate=pem, key=key) as server:
        assert server.url.startswith("https://")
        with RemoteStudy(server.url, token=server.token, certificate=pem) as remote:
            remote.tell(remote.ask().ids, [1.0])
        with (
            RemoteStudy(server.url, token=server.token) as remote,
            pytest.raises(ssl.SSLCertVerificationError, match="give it as `certificate`"),
        ):
            remote.status()
        plain = RemoteStudy(server.url.replace("https", "http"), token=server.token, patience=0.0)
        with plain, pytest.raises(ConnectionError, match="a server with TLS needs https://"):
            plain.status()
    assert study.num_observations == 1


def test_a_key_is_read_once_so_that_its_passphrase_is_asked_for_once(
    study: Study, certificate: tuple[Path, Path], spy: Any
) -> None:
    pem, key = certificate
    seen = spy(ssl.SSLContext, "load_cert_chain")
    with Server(study, certificate=pem, key=key):
        assert len(seen.call_args_list) == 1


def test_a_wrong_certificate_is_named_before_the_study_is_asked(
    study: Study, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("no certificate")
    for name in ("none.pem", "token"):
        file = tmp_path / name
        for options in ({"certificate": file}, {"key": file}):
            message = f"`certificate` must be a PEM file, with the server's key.*{name}.*Correct"
            with pytest.raises(OSError, match=message):
                Server(study, **options)
        with pytest.raises(
            OSError, match=f"`certificate` must be a PEM file, got.*{name}.*Correct"
        ):
            RemoteStudy("https://127.0.0.1:1", token="t", certificate=file)
    assert not len(study.snapshot().rows)


def test_a_server_that_cannot_start_leaves_no_thread(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(threading.enumerate())
    monkeypatch.setattr(server_module, "make_app", Mock(side_effect=MemoryError))
    with pytest.raises(MemoryError):
        Server(study)
    assert set(threading.enumerate()) == before


def test_wrong_arguments_of_the_client_are_named(server: Server, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`token`"):
        RemoteStudy(server.url)
    for url in (f"{server.url}/a b", "http://127.0.0.1 :1", " http://127.0.0.1"):
        with pytest.raises(ValueError, match="`url` must .* no blank, got"):
            RemoteStudy(url, token=server.token)
    stranger = RemoteStudy(server.url, token=new_token())
    with stranger, pytest.raises(PermissionError, match="token"):
        stranger.ask()
    remote = RemoteStudy(server.url, token=server.token)
    with remote, pytest.raises(ValueError, match="`values`"):
        remote.tell([1, 2], [1.0])


def test_who_waits_for_a_server_is_told_its_address(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        port = taken.getsockname()[1]
        remote = RemoteStudy(f"http://127.0.0.1:{port}", token="t", patience=3.0)
        with remote, pytest.raises(ConnectionError, match="does not answer"):
            remote.status()
    (line,) = caplog.messages
    assert line.startswith(f"No answer from 127.0.0.1:{port}: ConnectionRefusedError")


def test_what_is_no_study_is_not_served() -> None:
    with pytest.raises(TypeError, match=r"`study` must be a Study, got 'runs/tuning'.*Study.open"):
        Server("runs/tuning")  # type: ignore[arg-type]


def test_a_server_that_is_down_is_waited_for(study: Study, tmp_path: Path) -> None:
    file = tmp_path / "token"
    with Server(study, token_file=file) as server:
        remote = RemoteStudy(server.url, token_file=file, patience=0.5)
        (id,) = remote.ask().ids
    with pytest.raises(ConnectionError, match="does not answer"):
        remote.tell([id], [1.0])
    port = int(server.url.rpartition(":")[2])
    remote.patience = 60.0
    told = threading.Thread(target=remote.tell, args=([id], [1.0]))
    told.start()
    with Server(study, port=port, token_file=file):
        told.join()
        remote.close()
    assert study.num_observations == 1


def test_an_answer_that_breaks_off_is_no_answer() -> None:
    """A server that is killed has sent the head of an answer, and not the body."""
    content = b'{"best_value": 1.5}'
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(content)

    def answer(listener: socket.socket) -> None:
        for part in (b"", content[:7], content):
            connection, _ = listener.accept()
            with connection:
                assert connection.recv(2**16)
                connection.sendall(head + part)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener,), daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with RemoteStudy(url, token="any", patience=20.0) as remote:
            assert remote.best_value == 1.5
        thread.join(300)


def test_what_is_not_finite_is_null_in_json() -> None:
    content = {"a": math.nan, "b": [math.inf, 1.0], 3: (True, None)}
    answer = app.reply(content)
    assert json.loads(bytes(answer.body)) == {"a": None, "b": [None, 1.0], "3": [True, None]}
