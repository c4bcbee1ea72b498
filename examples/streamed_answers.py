"""An answer that a browser reads while a worker writes it, by Server-Sent Events.

Run it with `python examples/streamed_answers.py`; it needs starlette, uvicorn and httpx. The model is a list of words.
The first run fails in the middle of the answer, as if the provider had closed the connection, and the client loses its
own connection once. With `serve` behind the name, the program prints the address of a page for a browser instead.

    GET  /                        the page
    POST /questions               enqueues, and answers with the job's id
    GET  /answers/{id}            the events
"""

import asyncio
import json
import os
import socket
import sys

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from penstock import Penstock, Retry, WorkerSettings, current
from penstock.integrations.starlette import app_of, event_stream, lifespan

jobs = Penstock(prefix="example-answers")

WORDS = ["Water ", "falls ", "through ", "the ", "penstock ", "and ", "turns ", "the ", "wheel."]


@jobs.task(queue="answers", retry=Retry(3, base=0))
async def answer(question: str) -> int:
    for number, word in enumerate(WORDS):
        if number == 5 and current().attempt == 1:
            raise ConnectionError("the provider has closed the connection")
        current().emit(word)
        await asyncio.sleep(0.06)
    return len(WORDS)


async def ask(request: Request) -> Response:
    job = await answer.enqueue.aio((await request.body()).decode())
    return PlainTextResponse(job.id)


async def read(request: Request) -> Response:
    return event_stream(app_of(request).job(request.path_params["id"]))


PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Ask</title>
<form><input aria-label="Question" autofocus> <button>Ask</button></form>
<p role="log"></p>
<p role="status"></p>
<script>
  const [form, answer, state] = document.querySelectorAll("form, p");
  function follow(id) {
    let attempt = 0;
    const source = new EventSource(`/answers/${id}`);     // reconnects with the id of its last event by itself
    source.onmessage = ({ data }) => {
      const part = JSON.parse(data);
      if (part.attempt !== attempt) [answer.textContent, attempt] = ["", part.attempt];    // the job runs again
      answer.textContent += part.chunk;
    };
    source.addEventListener("end", ({ data }) => {
      state.textContent = JSON.parse(data).status;
      source.close();
    });
  }
  form.onsubmit = async (event) => {
    event.preventDefault();
    const asked = await fetch("/questions", { method: "POST", body: form[0].value });
    location.hash = await asked.text();                   // a page that is loaded again finds the answer
    follow(location.hash.slice(1));
  };
  if (location.hash) follow(location.hash.slice(1));
</script>
</html>"""


async def page(request: Request) -> Response:
    return HTMLResponse(PAGE)


web = Starlette(
    routes=[Route("/", page), Route("/questions", ask, methods=["POST"]), Route("/answers/{id}", read)],
    lifespan=lifespan(jobs, worker=WorkerSettings(concurrency=5)),
)


class Client:
    """What a browser's EventSource and three lines of JavaScript do."""

    def __init__(self) -> None:
        self.text, self.attempt, self.last, self.ended = "", 0, "", False

    async def read(self, http: httpx.AsyncClient, url: str, most: int = 1000) -> None:
        headers = {"Last-Event-ID": self.last} if self.last else {}
        async with http.stream("GET", url, headers=headers, timeout=30) as stream:
            kind = "message"
            async for line in stream.aiter_lines():
                name, _, value = line.partition(": ")
                if name == "event":
                    kind = value
                elif name == "id":
                    self.last = value
                elif name == "data" and kind == "end":
                    self.ended = json.loads(value)["status"] == "completed"
                    return
                elif name == "data":
                    self.show(json.loads(value))
                    most -= 1
                    if most == 0:
                        return

    def show(self, part: dict[str, object]) -> None:
        if part["attempt"] != self.attempt:
            if self.attempt:
                print(f"\n(attempt {part['attempt']})")
            self.text, self.attempt = "", int(str(part["attempt"]))
        self.text += str(part["chunk"])
        print(part["chunk"], end="", flush=True)


async def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(web, log_level="warning"))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        base = f"http://127.0.0.1:{listening.getsockname()[1]}"
        async with httpx.AsyncClient(base_url=base) as http:
            id = (await http.post("/questions", content="What is a penstock?")).text
            client = Client()
            await client.read(http, f"/answers/{id}", most=3)
            await client.read(http, f"/answers/{id}")
            late = Client()
            await late.read(http, f"/answers/{id}")
            unknown = await http.get("/answers/answers:nobody")
        server.should_exit = True
        await serving
    assert client.ended
    assert client.text == late.text == "".join(WORDS)
    assert client.attempt == 2
    assert unknown.status_code == 404


async def serve() -> None:
    with socket.create_server(("127.0.0.1", int(os.environ.get("PORT", "8000")))) as listening:
        print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        await uvicorn.Server(uvicorn.Config(web, log_level="warning")).serve(sockets=[listening])


asyncio.run(serve() if "serve" in sys.argv else main())
