"""What the dashboard answers, the visitors that it refuses, and what it does. `tests/browser` looks at its pages."""

import asyncio
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import valkey

import penstock.web
from penstock import Concurrency, LeaseLost, Penstock, Rate, Settings, Worker, current, result_of, step, wait_for
from penstock.errors import BarrierBroken, QueueFull
from penstock.files.dead_files import FileFailure
from penstock.ops.inspect import Inspector
from penstock.testing import TemporaryServer, run_jobs
from penstock.web import dashboard
from penstock.web.access import COOKIE, HEADERS, Password
from penstock.web.dashboard import pages
from penstock.web.sampler import Sampler
from tests.seals import TestSeal
from tests.servers import eventually
from tests.speed import scaled
from tests.web.asking import JSON, LOCAL, act, acting, ask

FOLDER = Path(penstock.web.__file__).parent

# --- what it answers ---


def test_the_overview_counts_each_queue(app: Penstock):
    app.queue("mail").put_many(["a", "b"], tenant="acme")
    answer = ask(dashboard(app), "/api/overview").json()
    (mail,) = answer["queues"]
    assert (mail["name"], mail["ready"], mail["workers"], answer["may_act"]) == ("mail", 2, 0, False)
    assert [row[1] for row in answer["history"]] == [2]


def test_a_queue_shows_who_waits(app: Penstock):
    app.queue("mail").put_many(["a", "b"], tenant="acme")
    app.queue("mail").put("c", tenant="globex")
    answer = ask(dashboard(app), "/api/queues/mail").json()
    assert {one["name"]: one["counts"]["ready"] for one in answer["largest"]} == {"acme": 2, "globex": 1}
    assert ask(dashboard(app), "/api/queues/nothing").status_code == 404


def test_a_job_is_shown_masked_and_cut(app: Penstock):
    job = app.queue("mail").put({"card": "4111", "text": "x" * 50_000})
    shown = ask(dashboard(app), f"/api/jobs/{job.id}").json()
    assert "4111" in shown["body"]
    assert shown["why"]["sentence"].startswith("no live worker serves queue mail")
    assert len(shown["body"]) < 21_000
    masked = ask(dashboard(app, mask=lambda body: {**body, "card": "…"}), f"/api/jobs/{job.id}").json()
    assert "4111" not in masked["body"]
    assert ask(dashboard(app), "/api/jobs/mail:nothing").status_code == 404


def test_a_job_that_cannot_be_opened_shows_the_id_of_its_key(app: Penstock, server: TemporaryServer):
    settings = Settings(prefix=app.settings.prefix, seal=TestSeal("k1"))
    with Penstock(server.address, settings=settings) as sealing:

        @sealing.task(queue="mail")
        def send(to: str) -> str:
            return to

        done = send.enqueue("ada@example.com")
        run_jobs(sealing)
        waits = send.using(delay=60).enqueue("ada@example.com")
        sealing.schedules.add("each", send.call("ada@example.com"), every=3600)
        for asked, shown in ((sealing, "ada@example.com"), (app, "sealed with key k1")):
            asgi = pages(Inspector(asked))
            assert shown in ask(asgi, f"/api/jobs/{waits.id}").json()["body"]
            assert ask(asgi, f"/api/jobs/{done.id}").json()["result"] == f'"{shown}"'
            assert shown in ask(asgi, "/api/schedules").json()["schedules"][0]["body"]


def test_a_job_shows_the_flow_that_it_waits_for(app: Penstock):
    @app.task
    async def part(n: int) -> int:
        return n

    @app.task
    async def whole(parts: list[int]) -> None: ...

    parts = [part.enqueue(n) for n in range(70)]
    job = whole.using(after=parts).enqueue([result_of(one) for one in parts])
    shown = ask(dashboard(app), f"/api/jobs/{job.id}").json()
    assert (shown["status"], shown["steps"], shown["flow"]["total"], shown["flow"]["left"]) == ("waiting", [], 70, 70)
    assert [one["id"] for one in shown["flow"]["predecessors"]] == [one.id for one in parts[:59]]
    flow = ask(dashboard(app), f"/api/jobs/{parts[0].id}").json()["flow"]
    assert (flow["awaited_by"], [one["id"] for one in flow["dependents"]]) == (1, [job.id])
    alone = part.enqueue(1)
    assert ask(dashboard(app), f"/api/jobs/{alone.id}").json()["flow"] is None


def test_a_search_of_all_states_says_whether_more_have_ended(app: Penstock):
    queue = app.queue("q")
    for n, more in ((3, False), (60, True)):
        queue.put_many(range(n))
        for item in queue.claim(n):
            item.complete()
        assert ask(dashboard(app), "/api/find?queue=q").json()["more_ended"] is more


def test_every_question_is_answered(app: Penstock):
    app.queue("mail").put("a")
    app.mailbox("user:17").post({"text": "hi"})
    app.chats.create(["ada", "bo"], sender="cy", message={"text": "hi"}, id="ops")
    app.directory("guild:9").add_many([("Ma Smith", "u2"), ("Ann", "u1")])
    prefix = app.settings.prefix
    with app.lock(f"{prefix}:invoice"), app.semaphore("market", limit=5), app.election("scheduler"):
        locks = ask(dashboard(app), "/api/locks").json()
    assert f"{prefix}:invoice" in {lock["name"] for lock in locks["locks"]}
    assert [(one["name"], one["held"]) for one in locks["semaphores"]] == [("market", 1)]
    assert [one["leader"]["pid"] for one in locks["elections"]] == [os.getpid()]
    messages = ask(dashboard(app), "/api/messages").json()
    assert [(box["name"], box["unread"]) for box in messages["mailboxes"]] == [("user:17", 1)]
    assert [one["chat"]["id"] for one in messages["chats"]] == ["ops"]
    assert ask(dashboard(app), "/api/directories").json()["directories"] == [{"name": "guild:9", "names": 2}]
    assert [one["id"] for one in ask(dashboard(app), "/api/complete/guild:9?q=ma").json()["entries"]] == ["u2"]
    assert ask(dashboard(app), "/api/files").json()["channels"] == []
    assert ask(dashboard(app), "/api/workers").json()["workers"] == []
    assert ask(dashboard(app), "/api/tasks?since=60").json()["tasks"] == []
    assert ask(dashboard(app), "/api/tasks?since=x").status_code == 400
    quick = ask(dashboard(app), "/api/doctor?without=keys").json()["checks"]
    slow = ask(dashboard(app), "/api/doctor?topic=keys").json()["checks"]
    assert {check["topic"] for check in slow} == {"keys"}
    assert {check["topic"] for check in quick} > {"server", "memory"}
    assert "keys" not in {check["topic"] for check in quick}
    assert {"ok", "warn"} >= {check["level"] for check in [*quick, *slow]}


def test_the_overview_the_doctor_and_healthz_agree(app: Penstock):
    app.queue("idle").put("a")
    app.queue("idle").claim(1)[0].complete()
    assert ask(dashboard(app), "/healthz").json() == {"level": "ok", "findings": []}
    app.queue("dead").put_many(range(12))
    *good, bad = app.queue("dead").claim(12)
    for item in good:  # so many that the queue does not count as failing when the ten seconds of its history end
        item.complete()
    bad.fail("no")
    app.queue("held-up").pause()
    found = ask(dashboard(app), "/api/overview").json()["findings"]
    assert [(one["kind"], one["queue"], one["jobs"]) for one in found] == [
        ("paused", "held-up", 0),
        ("dead", "dead", 1),
    ]
    assert ask(dashboard(app), "/healthz").json() == {"level": "warn", "findings": found}
    checks = Inspector(app).doctor("queues")
    assert [(check.message, check.advice) for check in checks] == [(one["message"], one["advice"]) for one in found]


def test_a_worker_of_several_queues_is_one_process(app: Penstock):
    @app.task(queue="mail")
    async def send() -> None: ...

    @app.task(queue="raw")
    async def store() -> None: ...

    async def counted() -> dict[str, Any]:
        async with app:
            worker = Worker(app)
            running = asyncio.create_task(worker.run())
            for _ in range(400):
                if len(await Inspector(app).workers.all.aio()) == 2:
                    break
                await asyncio.sleep(0.05)
            try:
                return await Sampler(Inspector(app)).document()
            finally:
                worker.stop()
                await running

    app.enqueue_many([send.call(), store.call()])
    document = asyncio.run(counted())
    assert (document["workers"], [queue["workers"] for queue in document["queues"]]) == (1, [1, 1])


def test_a_new_queue_is_there_with_the_next_search(app: Penstock, monkeypatch: pytest.MonkeyPatch):
    async def two() -> list[Any]:
        async with app:
            sampler = Sampler(Inspector(app))
            await app.queue("mail").put.aio("a")
            before = await sampler.document()
            await app.queue("raw").put.aio("b")
            later = time.monotonic() + 4.5
            monkeypatch.setattr(time, "monotonic", lambda: later)
            return [before, await sampler.document()]

    assert [[queue["name"] for queue in one["queues"]] for one in asyncio.run(two())] == [["mail"], ["mail", "raw"]]


def test_the_sender_is_not_the_one_that_is_furthest_behind(app: Penstock):
    chat = app.chats.create(["ada", "bo", "cy"], sender="cy", message={"text": "hi"}, id="ops")
    for text in "abc":
        chat.send("cy", {"text": text})
    chat.reader("ada").ack(upto=chat.reader("ada").pull()[1])
    (view,) = ask(dashboard(app), "/api/messages").json()["chats"]
    assert (view["last_reader"]["name"], view["last_reader"]["unread"]) == ("bo", 4)


def test_the_live_answer_sends_samples(app: Penstock):
    async def first_two() -> list[Any]:
        async with app:
            samples = Sampler(Inspector(app)).documents()
            return [await anext(samples), await anext(samples)]

    app.queue("mail").put("a")
    one, two = asyncio.run(first_two())
    assert one["queues"][0]["ready"] == two["queues"][0]["ready"] == 1
    assert two["at"] - one["at"] >= 1.5
    assert len(two["history"]) == 1


def test_only_its_own_files_are_served(app: Penstock):
    asgi = dashboard(app)
    assert "<script" in ask(asgi, "/").text
    assert ask(asgi, "/static/app.js").headers["content-type"].startswith("text/javascript")
    for path in (
        "/static/%00",
        "/text/%00",
        "/static/../access.py",
        "/static/%2e%2e/access.py",
        "/text/../access.py",
        "/static/none",
        "/static/",
    ):
        assert ask(asgi, path).status_code == 404


# --- the visitors that it answers ---


def test_without_users_it_answers_only_this_machine_under_its_own_name(app: Penstock):
    asgi = dashboard(app)
    assert ask(asgi, "/").status_code == 200
    assert ask(asgi, "/", base="http://127.0.0.1:8321").status_code == 200
    assert ask(asgi, "/", client="192.0.2.7").status_code == 403
    assert ask(asgi, "/", client="192.0.2.7", headers={"x-forwarded-for": "127.0.0.1"}).status_code == 403
    # A page of another site may resolve its name to this machine.
    assert ask(asgi, "/api/overview", base="http://attacker.example").status_code == 403


def test_without_users_it_only_shows(app: Penstock):
    app.queue("mail").put("a")
    assert act(dashboard(app), action="pause", queue="mail").status_code == 403
    assert (
        act(pages(Inspector(app), read_only=True, local_may_act=True), action="pause", queue="mail").status_code == 403
    )
    assert app.queue("mail").count().paused is False


def test_a_users_request_is_named_and_others_are_refused(app: Penstock):
    async def user_of(request: Any) -> str | None:
        return request.headers.get("x-user")

    asgi = dashboard(app, auth=user_of)
    assert ask(asgi, "/api/overview").status_code == 401
    answer = ask(asgi, "/api/overview", headers={"x-user": "ada"}, client="192.0.2.7", base="http://ops.example")
    assert (answer.json()["user"], answer.json()["may_act"]) == ("ada", True)


def test_a_token_in_a_link_begins_a_session(app: Penstock):
    asgi = dashboard(app, auth=Password(token="secret"))
    refused = ask(asgi, "/")
    assert (refused.status_code, "Basic" in refused.headers["www-authenticate"]) == (401, False)
    assert ask(asgi, "/?token=wrong").status_code == 401
    redirected = ask(asgi, "/?token=secret&offset=2")
    assert (redirected.status_code, redirected.headers["location"]) == (303, "./?offset=2")
    cookie, *flags = redirected.headers["set-cookie"].lower().split("; ")
    assert {"httponly", "samesite=lax", "max-age=43200"} <= set(flags)
    assert ("secret" in cookie, "secure" in flags) == (False, False)
    assert ask(asgi, "/", headers={"cookie": f"{COOKIE}=secret"}).status_code == 401
    assert ask(asgi, "/", headers={"authorization": "Bearer secret"}).status_code == 200


def session_of(asgi: Any, **how: Any) -> str:
    return str(ask(asgi, "/?token=secret", **how).headers["set-cookie"].partition(";")[0])


def test_a_session_ends_by_itself_or_by_signing_out(app: Penstock, monkeypatch: pytest.MonkeyPatch):
    asgi = dashboard(app, auth=Password(token="secret"), read_only=True)
    one, two = ({"cookie": session_of(asgi)} for _ in range(2))
    assert ask(asgi, "/api/overview", headers=one).json()["session"] is True
    assert ask(asgi, "/api/overview", headers={"authorization": "Bearer secret"}).json()["session"] is False
    foreign = {**JSON, **one, "origin": "http://attacker.example"}
    assert ask(asgi, "/api/sign-out", method="POST", headers=foreign).status_code == 403
    assert ask(asgi, "/api/sign-out", method="POST", headers={**JSON, **one}).status_code == 204
    assert ask(asgi, "/", headers=one).status_code == 401
    assert ask(asgi, "/", headers=two).status_code == 200
    later = time.monotonic() + 12 * 3600
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert ask(asgi, "/", headers=two).status_code == 401


def test_a_cookie_is_secure_where_the_scheme_is_known_to_be(app: Penstock):
    forwarded = {"x-forwarded-proto": "https"}
    behind = dashboard(app, auth=Password(token="secret", trusts_proxy=True))
    direct = dashboard(app, auth=Password(token="secret"))

    def is_secure(asgi: Any, **how: Any) -> bool:
        return "secure" in ask(asgi, "/?token=secret", **how).headers["set-cookie"].lower().split("; ")

    assert is_secure(direct, base="https://localhost:8321")
    assert is_secure(behind, headers=forwarded)
    assert not is_secure(behind)
    assert not is_secure(direct, headers=forwarded)


@pytest.mark.parametrize("name", ["X-Forwarded-For", "Via", "Forwarded", "X-Real-IP"])
def test_without_users_a_request_through_a_proxy_is_refused(app: Penstock, name: str):
    app.queue("mail").put("a")
    for asgi in (acting(app), dashboard(app)):
        refused = ask(asgi, "/api/overview", headers={name: "127.0.0.1"})
        assert (refused.status_code, "--user" in refused.text) == (403, True)
    assert act(acting(app), {**JSON, name: "127.0.0.1"}, action="pause", queue="mail").status_code == 403
    assert app.queue("mail").count().paused is False


def test_a_password_is_asked_for(app: Penstock):
    asgi = dashboard(app, auth=Password(user="ada", password="pärl"))
    assert ask(asgi, "/", auth=("ada", "pärl")).status_code == 200
    refused = ask(asgi, "/", auth=("ada", "wrong"))
    assert (refused.status_code, "Basic" in refused.headers["www-authenticate"]) == (401, True)
    assert ask(asgi, "/", headers={"authorization": "Basic ?"}).status_code == 401
    assert ask(asgi, "/", headers={"authorization": "Bearer "}).status_code == 401  # no token is no empty token


def test_every_answer_allows_only_its_own_files(app: Penstock):
    for client, path in (("127.0.0.1", "/"), ("127.0.0.1", "/static/app.js"), ("192.0.2.7", "/"), ("127.0.0.1", "/x")):
        answer = ask(dashboard(app), path, client=client)
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "application/json"}, 403),
        ({**JSON, "origin": "http://attacker.example"}, 403),
        ({**JSON, "origin": "null"}, 403),
        ({**JSON, "content-type": "text/plain"}, 415),
    ],
)
def test_another_site_cannot_act(app: Penstock, headers: dict[str, str], status: int):
    app.queue("mail").put("a")
    assert act(acting(app), headers, action="pause", queue="mail").status_code == status
    assert app.queue("mail").count().paused is False


# --- what it does ---


def test_a_queue_is_paused_and_resumed_with_an_audit_line(app: Penstock, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "penstock.audit")
    app.queue("mail").put("a")
    assert act(acting(app), action="pause", queue="mail").json()["done"] == "paused"
    assert app.queue("mail").count().paused
    assert act(acting(app), action="resume", queue="mail").json()["done"] == "resumed"
    assert act(acting(app), action="pause", queue="nothing").status_code == 404
    assert [record.message for record in caplog.records][:2] == [
        "local: pause mail: paused",
        "local: resume mail: resumed",
    ]
    assert "failed: no queue" in caplog.records[2].message


def test_a_tenant_is_paused_and_weighed(app: Penstock):
    queue = app.queue("mail")
    queue.put("a", tenant="acme")
    assert act(acting(app), action="pause", queue="mail", tenant="acme").json()["done"] == "paused"
    assert [one.name for one in queue.pauses()] == ["tenant acme"]
    queue.pause()
    assert act(acting(app), action="resume", queue="mail").json()["done"] == "resumed; tenant acme stays paused"
    assert act(acting(app), action="resume", queue="mail", tenant="acme").json()["done"] == "resumed"
    assert act(acting(app), action="weigh", queue="mail", tenant="acme", weight=2.5).json()["done"] == "weight 2.5"
    assert queue.tenant("acme").count().weight == 2.5
    assert act(acting(app), action="weigh", queue="mail", tenant="acme", weight=0).status_code == 400
    assert act(acting(app), action="weigh", queue="mail").status_code == 400


def test_the_workers_are_found_without_another_scan(app: Penstock, server: TemporaryServer):
    app.queue("q").put(1)
    asgi = dashboard(app)

    def scans() -> int:
        with valkey.Valkey.from_url(server.address) as client:
            return int(client.info("commandstats").get("cmdstat_scan", {"calls": 0})["calls"])

    before = scans()
    assert ask(asgi, "/api/overview").status_code == 200
    searched = scans() - before
    assert ask(asgi, "/api/workers").json()["workers"] == []
    assert scans() - before == searched > 0


def test_a_worker_is_asked_to_be_quiet_and_to_stop(app: Penstock):
    @app.task(queue="q")
    async def work() -> None: ...

    async def stopped() -> None:
        worker = Worker(app)
        run = asyncio.create_task(worker.run())
        job = await work.enqueue.aio()
        await job.result.aio(timeout=scaled(20))
        for name in ("quiet_worker", "stop_worker"):
            order = partial(act, acting(app), action=name, names=[worker.name], confirmed=True)
            answer = await asyncio.to_thread(order)
            assert answer.status_code == 200, answer.text
        await asyncio.wait_for(run, scaled(30))

    asyncio.run(stopped())
    assert act(acting(app), action="stop_worker", names=["nowhere:1"], confirmed=True).status_code == 404
    assert act(acting(app), action="stop_worker", names=["nowhere:1"]).status_code == 409


def test_a_dead_letter_runs_with_other_arguments(app: Penstock):
    @app.task(queue="q")
    async def divide(by: int) -> float:
        return 1 / by

    job = divide.enqueue(0)
    run_jobs(app, dead=True)
    assert ask(dashboard(app), f"/api/jobs/{job.id}").json()["may_edit"] is True
    assert ask(dashboard(app, mask=lambda body: body), f"/api/jobs/{job.id}").json()["may_edit"] is False
    for text in ("[1]", "{", '{"by": "x"}', '{"to": 1}'):
        assert act(acting(app), action="edit", ids=[job.id], text=text).status_code == 400
    assert act(acting(app), action="edit", ids=[job.id], text='{"by": 2}').json()["done"] == "1 job requeued"
    run_jobs(app)
    assert job.result(timeout=0) == 0.5


def test_a_job_that_has_ended_runs_again(app: Penstock):
    @app.task(queue="q", result_ttl=0)
    async def divide(by: int) -> None: ...

    app.queue("q").keep(arguments=True)
    job = divide.enqueue(4)
    run_jobs(app)
    shown = ask(dashboard(app), f"/api/jobs/{job.id}").json()
    assert (json.loads(shown["body"]), shown["may_edit"]) == ({"by": 4}, True)
    hidden = ask(dashboard(app, mask=lambda body: "hidden"), f"/api/jobs/{job.id}").json()
    assert (hidden["body"], hidden["may_edit"]) == ('"hidden"', False)
    run_again = partial(act, acting(app), action="run_again", ids=[job.id])
    assert run_again().status_code == 409
    for text in ("[1]", '{"by": "x"}'):
        assert run_again(confirmed=True, text=text).status_code == 400
    assert app.queue("q").count().ready == 0
    for text, by in (("", 4), ('{"by": 2}', 2)):
        words = run_again(confirmed=True, text=text).json()["done"]
        assert words.startswith(f"{job.id} runs again as q:")
        assert app.job(words.rpartition(" ")[2]).info().body == ["divide", {"by": by}]
    assert act(acting(app), action="run_again", ids=["q:none"], confirmed=True).status_code == 404
    run_jobs(app)


def test_a_semaphore_gets_a_limit_and_loses_it(app: Penstock):
    with app.semaphore("market", limit=5):
        assert act(acting(app), action="limit_semaphore", names=["market"], most=3).json()["done"] == "limit 3"
        (one,) = ask(dashboard(app), "/api/locks").json()["semaphores"]
        assert one["limit"] == 3
        assert act(acting(app), action="limit_semaphore", names=["market"]).json()["done"] == "limit removed"
        assert act(acting(app), action="limit_semaphore", names=["market"], most=0).status_code == 400


def test_a_receiver_is_removed(app: Penstock, tmp_path: Path):
    (tmp_path / "a.log").write_text("line\n" * 10)
    app.files("logs").send([tmp_path / "a.log"], receivers=["one", "two"])
    order: dict[str, Any] = {"action": "remove_receiver", "names": ["logs", "two"]}
    assert act(acting(app), **order).status_code == 409
    assert act(acting(app), **order, confirmed=True).json()["done"] == "1 receiver removed"
    (channel,) = ask(dashboard(app), "/api/files").json()["channels"]
    assert [one["name"] for one in channel["receivers"]] == ["one"]
    assert act(acting(app), action="remove_receiver", names=["nothing", "x"], confirmed=True).status_code == 404


def test_a_signal_is_sent_to_a_job(app: Penstock):
    @app.task(queue="q")
    async def approve() -> Any:
        return await wait_for("approved")

    job = approve.enqueue()
    run_jobs(app)
    assert act(acting(app), action="signal", ids=[job.id], names=["approved"], text="{").status_code == 400
    sent = act(acting(app), action="signal", ids=[job.id], names=["approved"], text='{"by": "ada"}')
    assert sent.json()["done"] == "signal approved sent"
    run_jobs(app)
    assert job.result(timeout=0) == {"by": "ada"}


def test_without_a_state_the_latest_ends_are_found_as_well(app: Penstock):
    @app.task(queue="q")
    async def work(n: int) -> None: ...

    done = work.enqueue(1)
    run_jobs(app)
    waits = work.using(delay=60).enqueue(2)
    found = ask(dashboard(app), "/api/find?queue=q").json()
    assert {job["id"]: job["status"] for job in found["jobs"]} == {done.id: "completed", waits.id: "delayed"}
    found = ask(dashboard(app), "/api/find?queue=q&state=ended&since=60").json()
    assert [job["id"] for job in found["jobs"]] == [done.id]


def test_what_destroys_must_be_confirmed(app: Penstock):
    jobs = app.queue("mail").put_many(["a", "b", "c"])
    assert act(acting(app), action="cancel", ids=[jobs[0].id]).status_code == 409
    assert act(acting(app), action="cancel", ids=[jobs[0].id], confirmed=True).json()["done"] == "1 job cancelled"
    assert act(acting(app), action="purge", queue="mail").status_code == 409
    assert app.queue("mail").count().ready == 2
    assert act(acting(app), action="purge", queue="mail", confirmed=True).json()["done"] == "2 jobs cancelled"


def test_a_job_of_the_app_is_enqueued(app: Penstock, caplog: pytest.LogCaptureFixture):
    @app.task(queue="mail", name="send")
    async def send(to: str) -> None: ...

    assert ask(dashboard(app), "/api/tasks").json()["declared"] == ["send"]
    enqueue = partial(act, acting(app), action="enqueue", names=["send"], tenant="acme")
    assert enqueue(text='{"to": "ada"}').status_code == 409
    for text in ("{", "[]", '{"too": "ada"}', "{}", '{"to": 7}'):
        assert enqueue(confirmed=True, text=text).status_code == 400, text
    assert act(acting(app), action="enqueue", names=["sand"], text="{}", confirmed=True).status_code in {400, 404, 409}
    with caplog.at_level("INFO", "penstock.audit"):
        words = enqueue(confirmed=True, text='{"to": "ada"}').json()["done"]
    assert "enqueue acme send" in caplog.text
    assert "ada" not in caplog.text
    info = app.job(words.split()[0]).info()
    assert (info.body, info.tenant) == (["send", {"to": "ada"}], "acme")
    assert app.queue("mail").count().ready == 1


def test_dead_letters_run_again_or_go(app: Penstock):
    queue = app.queue("mail")
    ids = [job.id for job in queue.put_many(["a", "b", "c"])]
    for item in queue.claim(3):
        item.fail("<b>no</b>")
    page = ask(dashboard(app), "/api/dead/mail").json()
    assert (page["total"], {letter["reason"] for letter in page["letters"]}) == (3, {"<b>no</b>"})
    assert act(acting(app), action="requeue", ids=ids[:1]).json()["done"] == "1 job requeued"
    assert act(acting(app), action="remove", ids=ids[1:2], confirmed=True).json()["done"] == "1 job removed"
    assert act(acting(app), action="remove", ids=ids[1:2], confirmed=True).json()["done"].startswith("0 jobs removed")
    assert act(acting(app), action="requeue_all", queue="mail").json()["done"] == "1 job requeued"
    assert (queue.count().ready, queue.count().dead) == (2, 0)


def test_a_lock_is_broken(app: Penstock):
    held = app.lock(name := f"{app.settings.prefix}:invoice").acquire()
    assert (
        act(acting(app), action="break", names=[name], reason="stuck", confirmed=True).json()["done"] == "1 lock broken"
    )
    assert app.lock(name).info().holder is None
    assert held.fence


@pytest.mark.parametrize("kind", ["semaphore", "rwlock", "election"])
def test_what_a_process_holds_is_taken_from_it(app: Penstock, kind: str, caplog: pytest.LogCaptureFixture):
    """Only from the holder that the page showed. The others, and those that came since, keep it."""
    held: Any
    other: Any = None
    match kind:
        case "semaphore":
            held, other = [app.semaphore("x", limit=5, lease=60).acquire() for _ in range(2)]
        case "rwlock":
            held, other = [app.read_write_lock("x", lease=60).read().acquire() for _ in range(2)]
        case _:
            held = app.election("x", lease=60).campaign()
    order: dict[str, Any] = {"action": "break", "kind": kind, "names": ["x"], "ids": [held.token], "reason": "stuck"}
    assert act(acting(app), **order).status_code == 409
    with caplog.at_level(logging.INFO, "penstock.audit"):
        assert act(acting(app), **order, confirmed=True).json()["done"] == "1 holding broken"
    assert f": break {kind} {held.token}, x: 1 holding broken" in caplog.text
    assert act(acting(app), **order, confirmed=True).json()["done"] == "0 holdings broken"
    with pytest.raises(LeaseLost, match="stuck"):
        held.release()
    if other is not None:
        other.release()
    assert act(acting(app), action="break", kind="queue", names=["x"], confirmed=True).status_code == 400


def test_a_latch_is_opened_and_a_meeting_is_broken(app: Penstock):
    app.latch("x", count=3).count_down()
    assert act(acting(app), action="open_latch", names=["x"], confirmed=True).json()["done"] == "x is open"
    assert app.latch("x", count=3).info().left == 0

    def party() -> None:
        with pytest.raises(BarrierBroken):
            app.barrier("x", parties=2).wait()

    waits = threading.Thread(target=party)
    waits.start()
    eventually(lambda: app.barrier("x", parties=2).info().waiting)
    breaks: dict[str, Any] = {"action": "break_barrier", "names": ["x"], "confirmed": True}
    assert act(acting(app), **breaks).json()["done"] == "1 meeting broken"
    waits.join()
    assert act(acting(app), **breaks).json()["done"] == "0 meetings broken"


@pytest.mark.parametrize("content", ["", "nonsense", "[]", '{"action": "explode"}', '{"action": "pause", "queue": 3}'])
def test_a_senseless_order_is_one_clear_error(app: Penstock, content: str):
    answer = ask(acting(app), "/api/act", method="POST", content=content, headers=JSON)
    assert (answer.status_code, "error" in answer.json()) == (400, True)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("dead/mail?offset=9223372036854775807", 400),
        ("dead/mail?offset=-1", 400),
        ("dead/mail?offset=x", 400),
        ("jobs/nonsense", 404),
        ("jobs/:", 400),
        ("jobs/a b:c", 400),
        ("queues/a b", 400),
        ("history/a b", 400),
        ("complete/guild?q=%00", 400),
        ("doctor?topic=x", 400),
    ],
)
def test_a_mistake_of_the_user_is_not_a_fault_of_the_server(app: Penstock, path: str, status: int):
    app.queue("mail").put("a")
    answer = ask(dashboard(app), f"/api/{path}")
    assert (answer.status_code, "damaged" in answer.json()["error"]) == (status, False)


@pytest.mark.parametrize(
    ("order", "status"),
    [
        ({"action": "pause_schedule", "names": []}, 400),
        ({"action": "run_schedule", "names": ["a", "b"]}, 400),
        ({"action": "pause", "queue": "a b"}, 400),
        ({"action": "move_matching", "queue": "mail", "to": ""}, 400),
        ({"action": "cancel", "ids": ["x"], "confirmed": True}, 400),
    ],
)
def test_an_impossible_action_is_refused(app: Penstock, order: dict[str, Any], status: int):
    app.queue("mail").put("a")
    answer = act(acting(app), **order)
    assert (answer.status_code, answer.json()["error"] != "") == (status, True)


def test_a_long_body_is_refused_before_it_is_read(app: Penstock):
    read = 0

    async def body() -> Any:
        nonlocal read
        for _ in range(100):
            read += 1
            yield b" " * 10_000

    assert ask(acting(app), "/api/act", method="POST", content=body(), headers=JSON).status_code == 413
    assert read <= 10
    named = {**JSON, "content-length": "100000"}
    assert ask(acting(app), "/api/act", method="POST", content=" " * 100_000, headers=named).status_code == 413


def test_a_job_is_found_by_an_id_without_its_queue(app: Penstock):
    app.queue("archive").put("b")
    job = app.queue("mail").put("a")
    assert ask(dashboard(app), f"/api/jobs/{job.key}").json()["id"] == job.id
    assert Inspector(app).jobs.show(job.key).id == job.id


def test_the_mask_covers_all_that_a_job_says(app: Penstock):
    app.queue("mail").put("card 4111")
    for item in app.queue("mail").claim(1):
        item.fail("card 4111 refused")
    job_id = ask(dashboard(app), "/api/dead/mail").json()["letters"][0]["id"]

    @app.task(queue="mail", tags=["card {card}"])
    async def charge(card: str) -> None:
        current().log("card 4111 is charged")
        current().progress(0.5, "card 4111")
        await step(book, 1)
        raise ValueError("card 4111 refused")

    async def book(n: int) -> None: ...

    app.schedules.add("hourly", charge.call("4111"), every=3600)
    masked = dashboard(app, mask=lambda value: str(value).replace("4111", "…"))
    charge.using(id="one").enqueue("4111")
    run_jobs(app, dead=True)
    tagged = app.queue("mail").put("x", tags=["card 4111"])
    for asgi, is_shown in (
        (dashboard(app), True),
        (masked, False),
        (dashboard(app, mask=lambda value: value[9]), False),
    ):
        for path in (
            *("jobs/mail:one", f"jobs/{job_id}", f"jobs/{tagged.id}", "log/mail:one", "dead/mail", "schedules"),
            *("find?queue=mail", "find?queue=mail&state=ended"),
        ):
            answer = ask(asgi, f"/api/{path}")
            assert (answer.status_code, "4111" in answer.text) == (200, is_shown), path
    nothing = ask(dashboard(app, mask=lambda value: None), "/api/schedules").json()["schedules"]
    assert [(one["task"].rpartition(".")[2], one["body"]) for one in nothing] == [("charge", "null")]


def test_arguments_that_a_mask_hides_are_not_searched(app: Penstock):
    app.queue("mail").put({"card": "4111"})
    assert len(ask(dashboard(app), "/api/find?queue=mail&text=4111").json()["jobs"]) == 1
    masked = ask(dashboard(app, mask=lambda value: "…"), "/api/find?queue=mail&text=4111")
    assert (masked.status_code, "hides arguments" in masked.text) == (400, True)


# --- texts and files ---


def test_both_languages_have_every_text_that_the_pages_use():
    english, chinese = (json.loads((FOLDER / f"text/{name}.json").read_text("utf-8")) for name in ("en", "zh"))
    assert english.pop("sentences") == {}  # of the server; the browser test reads them
    assert chinese.pop("sentences")
    assert english.keys() == chinese.keys()
    holes = re.compile(r"\{\w+\}")
    assert all(sorted(holes.findall(english[key])) == sorted(holes.findall(chinese[key])) for key in english)
    source = "".join(path.read_text("utf-8") for path in (FOLDER / "static").glob("*.js"))
    used = set(re.findall(r'\bt\(\s*"([^"]+)"', source))
    assert used <= english.keys()
    families = tuple(f"{start}." for start in re.findall(r"\bt\(`(\w+)\.\$", source))
    named = set(re.findall(r'"([\w.-]+)"', source))
    assert [key for key in english if key not in used | named and not key.startswith(families)] == []


def test_no_page_names_another_server():
    for path in (FOLDER / "static").glob("*.*"):
        names = set(re.findall(r"https?://[^\s\"'`)]+", path.read_text("utf-8")))
        assert names <= {"http://www.w3.org/2000/svg"}, path


# --- the command ---


def run(*words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", "dashboard", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def test_the_command_serves_until_it_is_interrupted(server: TemporaryServer):
    with run("--listen", "127.0.0.1:0", "--token", "new", "--url", server.address) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline(), process.stdout.readline()]
        link = lines[1].split()[1]
        with _get(link) as answer:
            assert b"<script" in answer.read()
        process.send_signal(signal.SIGTERM)
        assert process.wait(scaled(20)) in {0, -signal.SIGTERM}


def test_the_command_writes_what_was_done_to_stderr(server: TemporaryServer):
    with run("--listen", "127.0.0.1:0", "--url", server.address) as process:
        assert process.stdout is not None
        process.stdout.readline()
        address = process.stdout.readline().split()[1]
        with _get(address):
            pass
        answer = httpx.post(
            f"{address}api/act",
            json={"action": "pause", "queue": "nothing"},
            headers={"origin": address.rstrip("/")},
        )
        assert answer.status_code == 404
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=scaled(20))
    assert "info penstock.audit: local: pause nothing: failed: no queue 'nothing'" in said


def _get(link: str) -> Any:
    address, _, token = link.partition("?token=")
    request = urllib.request.Request(address, headers={"authorization": f"Bearer {token}"})
    end = time.monotonic() + scaled(20)
    while True:
        try:
            return urllib.request.urlopen(request, timeout=30)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["--listen", "0.0.0.0:8321"], "--token new"),
        (["--listen", "8321"], "HOST:PORT"),
        (["--user", "ada"], "PENSTOCK_DASHBOARD_PASSWORD"),
        (["--token", "hunter2"], "PENSTOCK_DASHBOARD_TOKEN"),
        (["--token-file", "/does/not/exist"], "No such file"),
    ],
)
def test_a_dangerous_or_impossible_address_is_refused(server: TemporaryServer, words: list[str], fix: str):
    with run(*words, "--url", server.address) as process:
        _, said = process.communicate(timeout=scaled(30))
    assert (process.returncode, fix in said) == (2, True)


def test_a_used_port_is_one_clear_error(server: TemporaryServer):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        process = run("--listen", listen, "--url", server.address)
        with process:
            _, said = process.communicate(timeout=scaled(30))
    assert (process.returncode, "port 0 takes any free one" in said) == (2, True)


# --- jobs by filter ---


def test_jobs_are_found_by_a_filter(app: Penstock):
    app.queue("mail").put_many(["a", "b"], tenant="acme")
    app.queue("mail").put("c", tenant="globex", delay=60)
    found = ask(dashboard(app), "/api/find?queue=mail&tenant=acme").json()
    assert [job["tenant"] for job in found["jobs"]] == ["acme", "acme"]
    assert (found["cursor"], found["examined"], found["of"]) == (None, 3, 3)
    assert len(ask(dashboard(app), "/api/find?state=delayed&older_than=0").json()["jobs"]) == 1
    for query in ("state=gone", "older_than=x", "colour=red", "cursor=x"):
        assert ask(dashboard(app), f"/api/find?{query}").status_code == 400, query
    assert ask(dashboard(app), "/api/find?queue=nothing").status_code == 404


def test_schedules_and_limits_are_shown(app: Penstock):
    @app.task(queue="tasks", limit=Concurrency(1, key="{account}"))
    def charge(account: str) -> None: ...

    app.schedules.add("hourly", charge.call("ada"), every=3600)
    app.enqueue_many(charge.call("ada") for _ in range(3))
    (schedule,) = ask(dashboard(app), "/api/schedules").json()["schedules"]
    assert (schedule["id"], schedule["every"], schedule["state"]) == ("tasks:hourly", 3600, "active")
    (limit,) = ask(dashboard(app), "/api/limits/tasks").json()["limits"]
    assert [(key["key"], key["used"], key["parked"]) for key in limit["keys"]] == [("ada", 1, 2)]
    assert act(acting(app), action="pause_schedule", names=["tasks:hourly"]).json()["verb"] == "paused"


async def bulk(asgi: Any, action: str, **order: Any) -> dict[str, Any]:
    """Begin an action on all jobs that match, and follow it to its end."""
    transport = httpx.ASGITransport(asgi, client=("127.0.0.1", 5))
    async with httpx.AsyncClient(transport=transport, base_url=LOCAL) as http:
        order |= {"action": f"{action}_matching", "queue": "mail"}
        begun = await http.post("/api/act", content=json.dumps(order), headers=JSON)
        if begun.status_code != 200:
            return {"status": begun.status_code}
        while True:
            run = (await http.get(f"/api/runs/{begun.json()['run']}")).json()
            if run["ended"]:
                return dict(run)
            await asyncio.sleep(0.01)


def test_jobs_that_match_are_counted_moved_and_cancelled(app: Penstock, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "penstock.audit")
    app.queue("mail").put_many(range(7), tenant="acme")
    app.queue("mail").put_many(range(5), tenant="globex")
    asgi, acme = acting(app), {"tenant": "acme"}
    assert asyncio.run(bulk(asgi, "count", filter=acme))["found"] == 7
    assert caplog.records == []
    assert asyncio.run(bulk(asgi, "move", filter=acme, to="other"))["done"] == 7
    assert asyncio.run(bulk(asgi, "cancel")) == {"status": 409}
    assert asyncio.run(bulk(asgi, "cancel", confirmed=True))["done"] == 5
    assert [record.message for record in caplog.records] == [
        "local: move_matching mail: 7 of 7 jobs",
        "local: cancel_matching mail: 5 of 5 jobs",
    ]
    assert (app.queue("other").count().ready, app.queue("mail").count().waiting) == (7, 0)
    assert asyncio.run(bulk(dashboard(app), "count")) == {"status": 403}
    assert ask(asgi, "/api/runs/99").status_code == 400


def test_a_job_shows_its_arguments_and_not_their_stored_form(app: Penstock):
    @app.task(queue="mail")
    async def charge(account: str, cents: int = 0) -> None: ...

    job = charge.using(tenant="acme", delay=60).enqueue("ada", cents=5)
    shown = ask(dashboard(app), f"/api/jobs/{job.id}").json()
    assert (shown["task"], shown["tenant"]) == ("charge", "acme")
    assert json.loads(shown["body"]) == {"account": "ada", "cents": 5}
    assert act(acting(app), action="promote", ids=[job.id]).json()["done"] == "1 job promoted"
    assert app.queue("mail").count().ready == 1
    pair = app.queue("mail").put(["a", {"b": 1}])
    assert json.loads(ask(dashboard(app), f"/api/jobs/{pair.id}").json()["body"]) == ["a", {"b": 1}]


def test_dead_files_are_shown_retried_and_removed(app: Penstock, tmp_path: Path):
    channel = app.files("access")
    (tmp_path / "one.log").write_text("1\n")
    channel.send([tmp_path / "one.log"], receivers=["agg-1"], close=True)
    receiver = channel.receiver("agg-1")
    names = {"channel": "access", "receiver": "agg-1"}
    failure = FileFailure("one.log", "host:one.log", "it could not be saved", "host:/kept")
    app._driver.blocking.run(channel.bindings.note_dead_file("agg-1", "up-1", failure))
    answer = ask(dashboard(app), "/api/dead-files", params=names).json()
    assert [(one["name"], one["error"], one["is_retried"]) for one in answer["files"]] == [
        ("one.log", "it could not be saved", False)
    ]
    order: dict[str, Any] = {"names": ["access", "agg-1"], "ids": [answer["files"][0]["id"]]}
    assert act(acting(app), JSON, action="retry_files", **order).json()["verb"] == "retried"
    assert act(acting(app), JSON, action="remove_files", **order).status_code == 409
    assert act(acting(app), JSON, action="remove_files", confirmed=True, **order).json()["n"] == 1
    assert receiver.dead.list() == []
    assert act(acting(app), action="retry_files", names=["access"]).status_code == 400
    assert ask(dashboard(app), "/api/dead-files", params={"channel": "none"}).status_code == 404


def test_the_output_of_a_job_is_shown_from_its_end(app: Penstock):
    @app.task(queue="q")
    async def talk(n: int) -> None:
        for word in range(n):
            current().emit(f"{word} ")
        current().emit({"n": n})

    job = talk.enqueue(300)
    asgi = dashboard(app)
    path = f"/api/output/{job.id}"
    assert ask(asgi, path).json() == {"parts": [], "earlier": False, "ended": False}
    run_jobs(app)
    newest = ask(asgi, path).json()
    assert [part["text"] for part in newest["parts"]][-2:] == ["299 ", '{"n":300}\n']
    assert (len(newest["parts"]), newest["earlier"], newest["ended"]) == (200, True, True)
    earlier = ask(asgi, f"{path}?before={newest['parts'][0]['id']}").json()
    assert [part["text"] for part in earlier["parts"]] == [f"{n} " for n in range(101)]
    assert earlier["earlier"] is False
    after = ask(asgi, f"{path}?after={newest['parts'][-2]['id']}&follow=").json()
    assert [part["id"] for part in after["parts"]] == [newest["parts"][-1]["id"]]
    assert after["ended"]
    masked = ask(dashboard(app, mask=lambda text: "…"), path).json()
    assert {part["text"] for part in masked["parts"][:-1]} == {"…"}
    for wrong in ("after=5", "before=x", "after="):
        assert ask(asgi, f"{path}?{wrong}").status_code == 400
    assert ask(asgi, "/api/output/q:nobody").status_code == 404


def test_a_long_output_is_cut_at_its_beginning(app: Penstock):
    @app.task(queue="q")
    async def talk() -> None:
        for n in range(30):
            current().emit(f"{n}{'x' * 15_000}")
        current().emit("y" * 150_000)

    job = talk.enqueue()
    run_jobs(app)
    answer = ask(dashboard(app), f"/api/output/{job.id}").json()
    assert sum(len(part["text"]) for part in answer["parts"]) <= 100_000
    assert answer["earlier"]
    assert answer["parts"][-1]["text"].endswith("130,000 more characters")
    shown = [*answer["parts"]]
    while answer["earlier"]:
        answer = ask(dashboard(app), f"/api/output/{job.id}?before={shown[0]['id']}").json()
        shown = answer["parts"] + shown
    assert [part["text"].rstrip("x") for part in shown[:-1]] == [str(n) for n in range(30)]


def test_bounds_are_set_and_removed_after_a_question(app: Penstock, caplog: pytest.LogCaptureFixture):
    app.queue("q").put_many(range(3), tenant="acme")
    asgi = acting(app)
    order: dict[str, Any] = {"action": "bound", "queue": "q", "most": 5, "per_tenant": 2}
    assert act(asgi, **order).status_code == 409
    with caplog.at_level(logging.INFO, "penstock.audit"):
        assert act(asgi, **order, confirmed=True).json()["done"] == "up to 5 jobs; up to 2 of each tenant"
    assert "bound q: up to 5 jobs; up to 2 of each tenant" in caplog.text
    shown = ask(asgi, "/api/queues/q").json()["counts"]
    assert (shown["bound"], shown["tenant_bound"], shown["refused"]) == (5, 2, 0)
    with pytest.raises(QueueFull):
        app.queue("q").put("x", tenant="acme")
    assert ask(asgi, "/api/queues/q").json()["counts"]["refused"] == 1
    for wrong in (0, -1, 10**10):
        assert act(asgi, action="bound", queue="q", most=wrong, confirmed=True).status_code == 400
    assert act(asgi, action="bound", queue="q", confirmed=True).json()["done"] == "no bound"
    assert app.queue("q").count().bound is None
    assert act(asgi, action="bound", queue="nothing", most=5, confirmed=True).status_code == 404


def test_a_key_of_a_rate_is_closed_and_opened(app: Penstock, caplog: pytest.LogCaptureFixture):
    @app.task(queue="q", limit=[Rate(100, per=60, key="{account}", name="crm"), Concurrency(5, name="few")])
    def call(account: str) -> None: ...

    call.enqueue("ada")
    asgi = acting(app)
    close: dict[str, Any] = {"action": "hold_limit", "queue": "q", "names": ["crm", "ada"], "seconds": 90}
    assert act(asgi, **close).status_code == 409
    with caplog.at_level(logging.INFO, "penstock.audit"):
        assert act(asgi, **close, confirmed=True).json()["verb"] == "held"
    assert "hold_limit q crm, ada: closed for 90 s" in caplog.text
    limits = {one["name"]: one for one in ask(asgi, "/api/limits/q").json()["limits"]}
    assert 80 < limits["crm"]["keys"][0]["held_for"] <= 90
    assert act(asgi, action="open_limit", queue="q", names=["crm", "ada"]).json()["verb"] == "opened"
    limits = {one["name"]: one for one in ask(asgi, "/api/limits/q").json()["limits"]}
    assert all(key["held_for"] is None for key in limits["crm"]["keys"])
    for wrong in ({"names": ["crm"]}, {"seconds": -1}, {"seconds": None}, {"names": ["few", "ada"]}):
        assert act(asgi, **{**close, **wrong}, confirmed=True).status_code == 400
