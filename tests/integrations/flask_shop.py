"""A Flask application with a factory and isolated tasks, as a service has them."""

from flask import Flask, current_app, g

from penstock import Penstock
from penstock.integrations.flask import FlaskContext

closed: list[str] = []


def create_app() -> Flask:
    flask = Flask("shop")
    flask.config["GREETING"] = "hello"

    @flask.post("/greet/<name>")
    def enqueue(name: str) -> str:
        return greet.enqueue(name).id

    @flask.teardown_appcontext
    def close(error: BaseException | None) -> None:
        closed.append(g.pop("user", ""))

    return flask


def not_an_application() -> str:
    return "nothing"


app = Penstock(middleware=[FlaskContext("tests.integrations.flask_shop:create_app")])


@app.task
def greet(name: str) -> str:
    g.user = name
    return f"{current_app.config['GREETING']} {name}"


@app.task
async def greet_later(name: str) -> str:
    import asyncio

    g.user = name
    await asyncio.sleep(0.01)
    return f"{current_app.config['GREETING']} {g.user}"


@app.task(isolate=True)
def greet_alone(name: str) -> str:
    return f"{current_app.config['GREETING']} {name}"
