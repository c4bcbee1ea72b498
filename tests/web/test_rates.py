"""What the dashboard answers about rates, and how it resets one."""

import logging

import pytest

from penstock import Penstock, Rate
from penstock.web import dashboard
from tests.web.asking import act, acting, ask


def test_rates_show_what_is_left_and_what_waits(app: Penstock):
    app.rate_limit("api", limit=10, per=3600, burst=4).acquire(3)

    @app.task(queue="mail", limit=Rate(1, per=3600, key="{to}"))
    async def send(to: str) -> None: ...

    for _ in range(2):
        send.enqueue("ada")
    app.queue("mail").claim(2)
    answer = ask(dashboard(app), "/api/rates").json()
    (limit,) = answer["limits"]
    assert (limit["name"], limit["limit"], limit["per"], limit["burst"], limit["left"]) == ("api", 10, 3600.0, 4, 1)
    (queue,) = answer["queues"]
    (rate,) = queue["rates"]
    assert (queue["queue"], rate["name"], rate["per"]) == ("mail", "send", 3600.0)
    assert [(key["key"], key["parked"]) for key in rate["keys"]] == [("ada", 1)]


def test_a_rate_is_reset_after_a_question(app: Penstock, caplog: pytest.LogCaptureFixture):
    limit = app.rate_limit("api", limit=10, per=3600)
    limit.acquire(10)
    assert act(acting(app), action="reset_rate", names=["api"]).status_code == 409
    with caplog.at_level(logging.INFO, "penstock.audit"):
        done = act(acting(app), action="reset_rate", names=["api"], confirmed=True)
    assert done.json()["done"] == "all units of api are allowed again"
    assert "reset_rate api" in caplog.text
    assert limit.try_acquire(10)
    unknown = act(acting(app), action="reset_rate", names=["web"], confirmed=True)
    assert (unknown.status_code, unknown.json()["error"][:24]) == (404, "no rate limit 'web' with")


def test_a_bucket_and_a_window_of_one_name_are_reset_together(app: Penstock):
    bucket = app.rate_limit("api", limit=10, per=3600)
    window = app.rate_limit("api", limit=5, per=3600, kind="window")
    bucket.acquire(10)
    window.acquire(5)
    assert {one["kind"] for one in ask(dashboard(app), "/api/rates").json()["limits"]} == {"bucket", "window"}
    assert act(acting(app), action="reset_rate", names=["api"], confirmed=True).status_code == 200
    assert bucket.try_acquire(10)
    assert window.try_acquire(5)
