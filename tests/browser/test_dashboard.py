"""A browser looks at every page of the dashboard, and uses it. `make test-browser` installs what this needs."""

import ast
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.speed import scaled

sync_api = pytest.importorskip("playwright.sync_api", reason="make test-browser installs playwright")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="make test-browser installs axe")
CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("make test-browser installs chromium", allow_module_level=True)

SOURCE = Path(penstock.__file__).parent
CHECKS = ("app", "latency", "rights", "server", "storage")
LIVE = Path(__file__).with_name("live_dashboard.py")
PAGES = {
    "overview": "Queues",
    "queue/reports": "Who waits and who is served",
    "dead/mail": "Dead letters of mail",
    "workers": "Workers",
    "locks": "invoice:7",
    "rates": "api:acme",
    "messages": "Mailboxes",
    "chat/ops": "read by 1 of 3",
    "contacts": "user:17",
    "contacts/user:17": "Zoë",
    "files": "Files",
    "directories": "guild:9",
    "health": "Finding",
    "jobs/bulk": "searched",
    "jobs/tasks?state=running": "charge",
    "schedules": "Monday to Friday at 07:00",
    "queue/tasks": "1 at a time",
    "job/flow:merge": "1 of 3 have ended",
    "job/flow:approve": "wait_for approved",
    "dead/long": "Dead letters of long",
    "job/long:one": "Reason",
    "job/talk:talk": "newest",
    "job/talk:scribe": "newest first",
    "queue/long": "50 of 203",
    "tasks": "flow",
    "jobs/odd": "completed",
    "jobs/long?tag=xxx": "searched",
    "jobs/long?text=xxxxx": "searched",
    "dead/odd": "ValueError",
}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, str(LIVE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    yield process.stdout.readline().strip()
    process.stdin.close()
    with process.stdout:
        assert process.wait(scaled(30)) == 0


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        sandbox = [] if os.getuid() else ["--no-sandbox"]  # the sandbox of chromium refuses root
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        yield opened
        opened.close()


WIDTHS = {"phone": 390, "tablet": 820}
# Axe takes most of the time. In the dark, only colours differ; the layout of a tablet is between the other two.
ALL_RULES: dict[str, Any] = {"resultTypes": ["violations"]}
RULES = {"light": ALL_RULES, "phone": ALL_RULES, "dark": {**ALL_RULES, "runOnly": ["color-contrast"]}, "tablet": None}


@pytest.fixture(params=RULES)
def look(request: pytest.FixtureRequest) -> dict[str, Any]:
    size = {"width": WIDTHS.get(request.param, 1280), "height": 800}
    return {"viewport": size, "color_scheme": "dark" if request.param == "dark" else "light", "locale": "en-GB"}


@pytest.fixture
def page(browser: Any, address: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A page whose test fails on any error in the browser's console, and on any request to another server."""
    look = request.getfixturevalue("look") if "look" in request.fixturenames else {"locale": "en-GB"}
    context = browser.new_context(**look)
    opened = context.new_page()
    opened.set_default_timeout(scaled(20) * 1000)
    faults: list[Any] = []
    opened.on("pageerror", lambda fault: faults.append(fault))  # noqa: PLW0108 (playwright takes no method of a list)
    opened.on("console", lambda line: faults.append(line.text) if is_fault(line) else None)
    opened.on("request", lambda sent: faults.append(sent.url) if not sent.url.startswith((address, "data:")) else None)
    opened.goto(address)
    opened.get_by_role("heading", name="Overview").wait_for()
    yield opened
    title = opened.title()
    context.close()
    assert (faults, title == "broken") == ([], False)


def is_fault(line: Any) -> bool:
    """An answer 400 or 404 is one of ours, which the page reports; a 503 is of a test that refuses a request."""
    return line.type in {"error", "warning"} and not re.search("status of (40[04]|503)", line.text)


def go(page: Any, to: str) -> None:
    page.evaluate(f"location.hash = '#/{to}'")


def test_every_page_is_shown_without_a_fault(page: Any, look: dict[str, Any], request: pytest.FixtureRequest):
    for to, text in PAGES.items():
        go(page, to)
        # A filter of the page may offer the same word in a closed list, which is not visible.
        page.locator("main").get_by_text(text).filter(visible=True).first.wait_for()
        if rules := RULES[request.node.callspec.params["look"]]:
            found = axe.Axe().run(page, options=rules).response["violations"]
            assert [(fault["id"], [node["target"] for node in fault["nodes"]]) for fault in found] == [], to
        # Wide tables scroll by themselves, so that the page does not.
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), to
        if folder := os.environ.get("PENSTOCK_SCREENSHOTS"):
            page.locator(".side .end .mono").evaluate("place => { place.textContent = 'valkey://localhost:6379'; }")
            page.screenshot(path=f"{folder}/{re.sub('[^a-z]+', '-', to)}-{request.node.callspec.id}.png")


@pytest.mark.parametrize("width", [390, 1280])
def test_every_page_fits_in_chinese(page: Any, width: int):
    page.set_viewport_size({"width": width, "height": 800})
    page.get_by_role("combobox", name="Language").select_option("zh")
    page.get_by_role("heading", name="概览").wait_for()
    for to in PAGES:
        go(page, to)
        page.locator("main h1").first.wait_for()
        page.locator("main [aria-busy]").first.wait_for(state="detached")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), to
        headings = page.locator("main h1, main .card > h2, main th").all_inner_texts()
        names = re.compile(r"[A-Za-z]{4,}")
        known = re.compile(
            "reports|mail|bulk|tasks|flow|long|odd|talk|guild|merge|approve|part|book|invoice|rated|user|scribe"
        )
        plain = [text for text in headings if names.search(text) and not known.search(text)]
        assert plain == [], to


PIECES = {
    *("7 s ago", "in 7 s", "7 of queue 7", "sleeping, waits for 7 7", "7 was paused 7 s ago", "7 is paused7"),
    *("no live worker of queue 7 knows its task 7", "when those start", "when one of those ends", "in about 7 s"),
    *("in about 7 s, by recent runs", "does not know its task 7", "cannot read its call", "cannot continue it"),
    *("is sealed with key", "for 7 s", "has waited for 7 s", "7: the oldest of its 7 parked jobs 7"),
    *("jobs are ready", "7 keys of prefix 7", "7, all in order", "7 7 s", "appendonly yes, appendfsync 7: 7"),
    *("7 writes in a row were reported safe after 7 s", "7: its oldest ready job has waited 7"),
    *("7: no worker serves it; 7, the oldest 7",),
}
"""What the modules put together: no sentences by themselves."""


def sentences(path: str) -> Iterator[str]:
    """The sentences in a module of the package, with example values where it inserts some."""
    tree = ast.parse((SOURCE / path).read_text("utf-8"))
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise | ast.JoinedStr)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for inner in ast.walk(node)
        if inner is not node
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr | ast.Constant) and id(node) not in skipped:
            text = example(node)
            if (
                text.count(" ") >= 2
                and not re.match(r"[ ,(:;]|.*\{\}|penstock |ACL |CONFIG ", text)
                and text not in PIECES
            ):
                yield text


REFUSING = (
    *("web/actions.py", "web/bulk.py", "web/questions.py", "ops/jobs.py", "ops/schedules.py", "ops/workers.py"),
    *("jobs/running_again.py", "jobs/editing.py", "jobs/queue_limits.py", "jobs/durable_bindings.py"),
    *("jobs/registry.py", "jobs/job_list.py", "jobs/dead_groups.py"),
)
"""The modules whose errors the actions of a page report."""


def refusals(path: str) -> Iterator[str]:
    """The texts with which a module raises errors, with example values where it inserts some."""
    for node in ast.walk(ast.parse((SOURCE / path).read_text("utf-8"))):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            text = example(node.exc.args[0])
            if text.count(" ") >= 2:
                yield text


def test_refused_actions_are_explained_in_chinese(page: Any):
    page.get_by_role("combobox", name="Language").select_option("zh")
    page.get_by_role("heading", name="概览").wait_for()
    spoken = "async (texts) => { const { say } = await import('./static/text.js'); return texts.map(say); }"
    found = [text for module in REFUSING for text in refusals(module)]
    assert len(found) > 40
    plain = [
        text for text, own in zip(found, page.evaluate(spoken, found), strict=True) if not re.search("[一-鿿]", own)
    ]
    assert not plain, "\n".join(plain)
    put_together = {
        "no queue 'mial' with prefix 'penstock' on this server; there is mail": (
            "此服务器上没有队列 'mial'(前缀 'penstock');现有:mail"
        ),
        "no task is named 'sand'; did you mean 'send'?": "没有名为 'sand' 的任务函数;是否指 'send'?",
    }
    assert dict(zip(put_together, page.evaluate(spoken, [*put_together]), strict=True)) == put_together
    go(page, "job/mail:nobody")
    sync_api.expect(page.get_by_role("alert")).to_contain_text("没有任务")


def example(node: ast.expr) -> str:
    """A text as the program could print it."""
    match node:
        case ast.Constant(str(text)):
            return text
        case ast.JoinedStr(values):
            return "".join(map(example, values))
        case ast.FormattedValue(ast.Call(ast.Name("many"), [_, ast.Constant(str(noun))])):
            return f"7 {noun}s"
        case ast.FormattedValue(ast.Call(ast.Name("many"), [_, _, ast.Constant(str(plural))])):
            return f"7 {plural}"
        case ast.FormattedValue(ast.Call(ast.Name("age" | "milliseconds" | "size"))):
            return "7 s"
        case ast.FormattedValue(ast.Call(ast.Attribute(attr="_ago"))):
            return "7 s ago"
        case ast.FormattedValue(ast.Call(ast.Attribute(attr="_in"))):
            return "in 7 s"
    return "7" if isinstance(node, ast.FormattedValue) else ""


PUT_TOGETHER = {
    "orders: no worker serves it; 15 jobs are ready, the oldest for 3 min": (
        "orders:没有工作进程为它服务;15 个任务就绪,最久已等 3 分钟"
    ),
    "it is parked at rate crm, key ada: 100 in 60 s, used up, and the job takes 3; the next place comes in about 5 s": (
        "停放于速率 crm 的键 ada:60 秒内 100,已用完,此任务需要 3;约 5 秒后有下一个位置"
    ),
    "about 4 jobs go first (1 more urgent, 3 of its tenant); no rate is known": (
        "约有 4 个任务在它之前(1 个更紧急,同租户 3 个);速度未知"
    ),
    "tasks: the oldest of its 2 parked jobs has waited for 14 min": "tasks:其 2 个停放的任务中最久的已等待 14 分钟",
    "mail: its oldest ready job has waited for 3 h": "mail:最久的就绪任务已等待 3 小时",
    "374 keys of prefix 'penstock', all in order": "前缀 'penstock' 的 374 个键均正常",
    "tenant acme of queue mail was paused 3 min ago by ada: to continue, `penstock queue resume mail --tenant acme`": (
        "队列 mail 的租户 acme 在 3 分钟前由 ada 暂停:执行 `penstock queue resume mail --tenant acme` 可恢复"
    ),
    "no live worker of queue q knows its task 'a': does each import the module that defines it?": (
        "队列 q 没有存活的工作进程认识任务函数 'a':它们都导入了定义它的模块吗?"
    ),
    "durable=True is refused: 2 writes in a row were reported safe after 340 ms, with one fsync a second at most": (
        "durable=True 会被拒绝:连续 2 次写入在 340 毫秒后被报告为安全,而每秒最多一次 fsync"
    ),
    "what nobody knows": "what nobody knows",
    "": "",
}


def test_what_the_server_says_is_in_chinese(page: Any):
    page.get_by_role("combobox", name="Language").select_option("zh")
    page.get_by_role("heading", name="概览").wait_for()
    modules = ["jobs/why.py", "ops/health.py", *(f"ops/checks/{one}.py" for one in CHECKS)]
    found = [text for module in modules for text in sentences(module)]
    assert len(found) > 100
    spoken = page.evaluate(
        """async (texts) => {
        const { say } = await import("./static/text.js");
        return texts.map(say);
    }""",
        [*found, *PUT_TOGETHER],
    )
    plain = [text for text, own in zip(found, spoken, strict=False) if not re.search("[一-鿿]", own)]
    assert not plain, "\n".join(plain)
    assert dict(zip(PUT_TOGETHER, spoken[len(found) :], strict=True)) == PUT_TOGETHER


def rows(page: Any, place: str) -> list[dict[str, str]]:
    """The rows of the first table in a place of the page, by their headings."""
    table = page.locator(place).locator("table").first
    table.wait_for()
    found = table.evaluate("""table => [...table.querySelectorAll("tr")].map(
        row => [...row.cells].map(cell => cell.innerText))""")
    return [dict(zip(found[0], row, strict=True)) for row in found[1:]]


def number(text: str) -> int:
    return int(re.sub(r"\D", "", text) or 0)


def test_the_numbers_are_those_of_the_command_line(page: Any, address: str):
    """Of the queues in which nothing happens now."""
    server = page.request.get(f"{address}api/overview").json()["location"].partition(",")[0]

    def printed(*words: str) -> Any:
        command = [sys.executable, "-m", "penstock", *words, "--json", "--url", server]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    names = ("Ready", "Delayed", "Running", "Dead")
    shown = {row["Queue"]: [number(row[name]) for name in names] for row in rows(page, "main")}
    for queue in printed("queue", "ls"):
        if queue["name"] not in {"work", "elsewhere"}:
            assert shown[queue["name"]] == [queue["counts"][name.lower()] for name in names], queue["name"]
    go(page, "tasks")
    page.get_by_role("heading", name="Tasks").wait_for()
    shown_tasks = {
        (row["Queue"], row["Task"]): (number(row["Completed"]), number(row["Failed for good"]))
        for row in rows(page, "main")
    }
    for task in printed("task", "ls")["tasks"]:
        if task["queue"] not in {"work", "tasks"}:
            key = task["queue"], task["task"] or "(values)"
            assert shown_tasks[key] == (task["completed"], task["failed"])
    go(page, "rates")
    page.get_by_role("heading", name="Rate limits").wait_for()
    shown_rates = {row["Name"]: (row["Left"].split()[0], row["Waiting"]) for row in rows(page, "main")}
    for rate in printed("ratelimit", "ls"):
        assert shown_rates[rate["name"]] == (str(rate["left"]), str(rate["waiting"]))
    go(page, "queue/long")
    page.get_by_role("heading", name="Who waits").wait_for()
    place = ".card:has(h2:text('Who waits'))"
    tenants = {row["Tenant"].strip(): number(row["Ready"]) for row in rows(page, place)}
    largest = printed("queue", "show", "long", "--tenants", "50")["largest"]
    assert {name: tenants.get(name) for name in (one["name"] for one in largest)} == {
        one["name"]: one["counts"]["ready"] for one in largest
    }
    go(page, "workers")
    page.get_by_role("heading", name="Workers").wait_for()
    processes = {row["Worker"] for row in rows(page, "main")}
    assert {one["name"] for one in printed("worker", "ls")} <= processes | {""}


def test_a_tenant_is_paused_in_its_menu(page: Any):
    go(page, "queue/bulk")
    page.get_by_role("button", name="Actions on acme").click()
    dialog = page.locator("dialog[open]")
    dialog.get_by_role("button", name="Pause").click()
    dialog.get_by_role("button", name="Resume").click()
    dialog.get_by_role("button", name="Close").click()
    sync_api.expect(dialog).to_be_hidden()


def test_bounds_are_set_and_a_key_of_a_rate_is_closed_and_opened(page: Any):
    go(page, "queue/bulk")
    page.get_by_text("/ 1,600").wait_for()
    page.get_by_role("button", name="Set bounds").click()
    dialog = page.locator("dialog[open]")
    dialog.get_by_label("Bound of jobs").fill("9000")
    dialog.get_by_label("Bound of each tenant").fill("")
    dialog.get_by_role("button", name="Set bounds").click()
    page.get_by_text("up to 9,000 jobs").wait_for()
    page.get_by_text("/ 9,000").wait_for()
    go(page, "queue/tasks")
    closed = page.get_by_role("row").filter(has_text="closed for")
    closed.get_by_role("button", name="Open key").click()
    page.get_by_text("open", exact=True).wait_for()
    page.get_by_role("row").filter(has_text="crm").get_by_role("button", name="Close key").click()
    dialog.get_by_label("Key").fill("ada")
    dialog.get_by_label("Seconds").fill("500")
    dialog.get_by_role("button", name="Close key").click()
    page.get_by_role("row").filter(has_text="ada").get_by_text("closed for").wait_for()


def test_a_dead_letter_is_edited_and_a_mistake_stays_on_the_page(page: Any):
    go(page, "jobs/odd?state=dead")
    page.locator("tbody a.mono").first.click()
    page.get_by_role("button", name="Edit and run").click()
    dialog = page.locator("dialog[open]")
    dialog.get_by_role("textbox").fill("{")
    dialog.get_by_role("button", name="Edit and run").click()
    dialog.get_by_text("is not JSON").wait_for()
    assert dialog.get_by_role("textbox").input_value() == "{"


def test_a_shortened_id_is_copied_whole(page: Any):
    go(page, "jobs/odd?state=completed")
    link = page.locator("tbody a.mono").first
    link.wait_for()
    whole = link.get_attribute("title")
    assert (
        link.evaluate("""one => {
        const range = document.createRange(), chosen = getSelection();
        range.selectNodeContents(one);
        chosen.removeAllRanges();
        chosen.addRange(range);
        return chosen.toString();
    }""")
        == whole
    )


def test_numbers_change_while_it_is_open(page: Any):
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="work", exact=True))
    row.wait_for()
    at = page.get_by_role("columnheader").all_inner_texts().index("Completed /s")
    sync_api.expect(row.get_by_role("cell").nth(at)).not_to_have_text("0", timeout=scaled(15) * 1000)


def test_a_queue_is_paused_and_that_is_undone(page: Any):
    go(page, "queue/reports")
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Resume").wait_for()
    page.get_by_role("button", name="Undo").click()
    page.get_by_role("button", name="Pause").wait_for()


def test_an_opened_reason_stays_with_its_job(page: Any):
    found = page.request.get(f"{page.url.partition('#')[0]}api/dead/mail").json()
    letters = [{**found["letters"][0], "id": f"mail:{n}", "reason": f"reason {n}"} for n in range(3)]
    page.route("**/api/dead/mail*", lambda route: route.fulfill(json={**found, "letters": letters}))
    go(page, "dead/mail")
    page.get_by_text("reason 1").click()
    opened = page.locator("details[open] summary")
    sync_api.expect(opened).to_have_text(["reason 1"])
    letters.insert(0, {**letters[0], "id": "mail:new", "reason": "reason new"})
    page.get_by_text("reason new").wait_for()
    sync_api.expect(opened).to_have_text(["reason 1"])


@pytest.mark.parametrize("size", [{"width": 1280, "height": 800}, {"width": 390, "height": 800}])
def test_the_text_of_a_question_is_shown_whole(page: Any, size: Any):
    page.set_viewport_size(size)
    go(page, "locks")
    page.get_by_role("row").filter(has_text="lock:xxx").get_by_role("button", name="Break").click()
    dialog = page.locator("dialog[open]")
    assert dialog.evaluate("one => one.scrollWidth <= one.clientWidth")
    assert dialog.locator("p").evaluate("one => getComputedStyle(one).whiteSpace") == "normal"


def test_dates_have_the_form_of_the_browser(browser: Any, address: str):
    for name, pattern in (("en-GB", r"\d\d/\d\d/\d{4}, \d\d:\d\d:\d\d$"), ("en-US", r"[AP]M$"), ("zh-CN", r"^\d{4}/")):
        context = browser.new_context(locale=name)
        page = context.new_page()
        page.goto(address)
        shown = page.evaluate("""async () => (await import("./static/text.js")).time(1800000000)""")
        assert re.search(pattern, shown), shown
        context.close()


def test_a_purge_asks_first(page: Any):
    go(page, "queue/reports")
    page.get_by_role("button", name="Purge").first.click()
    dialog = page.get_by_role("dialog")
    sync_api.expect(dialog).to_contain_text("30 waiting jobs")
    dialog.get_by_role("button", name="Keep everything").click()
    sync_api.expect(dialog).to_be_hidden()
    page.get_by_role("button", name="Purge").first.click()
    dialog.get_by_role("button", name="Purge").click()
    page.get_by_text("30 jobs cancelled").wait_for()


def test_the_answer_is_about_what_the_question_was_about(page: Any):
    rows = [tenant("one", 3), tenant("two", 5)]

    found = page.request.get(f"{page.url.partition('#')[0]}api/queues/reports").json()

    def answer(route: Any) -> None:
        route.fulfill(json={**found, "tenants": 2, "largest": rows})

    orders: list[Any] = []

    def act(route: Any) -> None:
        orders.append(route.request.post_data_json)
        route.fulfill(json={"done": "3 jobs cancelled"})

    page.route("**/api/queues/reports", answer)
    page.route("**/api/act", act)
    go(page, "queue/reports")
    page.get_by_role("button", name="Actions on one").click()
    page.locator("dialog.menu[open]").get_by_role("button", name="Purge").click()
    rows.reverse()
    sync_api.expect(page.locator("tbody tr").first).to_contain_text("two")
    dialog = page.locator("dialog[open]:not(.menu)")
    sync_api.expect(dialog).to_contain_text("3 waiting jobs of the tenant one")
    dialog.get_by_role("button", name="Purge").click()
    page.get_by_text("3 jobs cancelled").wait_for()
    assert [order["tenant"] for order in orders] == ["one"]


def tenant(name: str, ready: int) -> dict[str, Any]:
    counts = dict.fromkeys(("delayed", "sleeping", "parked", "dependent", "running", "dead"), 0)
    return {"name": name, "counts": {**counts, "ready": ready, "oldest": 1.0, "weight": 1.0}}


def test_a_chart_of_a_single_moment_shows_a_minute(page: Any):
    spans = page.evaluate("""async () => {
        const { timeRange } = await import("./static/components.js");
        const ranges = [[], [1000], [1000, 4600]].map((times) => timeRange({ data: [times] }, 1000, 4600));
        return ranges.map(([low, high]) => high - low);
    }""")
    assert spans == [60, 60, 3600]


def test_a_dead_letter_is_looked_at_and_run_again(page: Any):
    go(page, "dead/mail")
    page.locator("summary").first.click()
    page.get_by_role("link", name=re.compile("^mail:")).first.click()
    sync_api.expect(page.locator("main")).to_contain_text("<img src=x")
    page.get_by_role("button", name="Run again").click()
    page.get_by_text("1 job requeued").wait_for()


def open_new_job(page: Any) -> None:
    """Open the job that the notice names."""
    notice = page.locator(".toast").filter(has_text="runs again as")
    new = re.search(r"runs again as (again:\w+)", notice.inner_text())
    assert new is not None
    go(page, f"job/{new[1]}")


def test_a_job_that_has_ended_runs_again_after_a_question(page: Any):
    go(page, "job/again:ended")
    page.get_by_role("button", name="Run again").click()
    page.locator("dialog[open]").get_by_role("button", name="Run again").click()
    open_new_job(page)
    page.get_by_text('"hello ada"').wait_for()


def test_a_job_that_has_ended_runs_again_with_other_arguments(page: Any):
    go(page, "job/again:ended")
    page.get_by_role("button", name="Edit and run").click()
    dialog = page.locator("dialog[open]")
    assert json.loads(dialog.get_by_role("textbox").input_value()) == {"who": "ada"}
    dialog.get_by_role("textbox").fill('{"whom": "bo"}')
    dialog.get_by_role("button", name="Edit and run").click()
    dialog.get_by_role("alert").wait_for()  # it has no such parameter
    dialog.get_by_role("textbox").fill('{"who": "bo"}')
    dialog.get_by_role("button", name="Edit and run").click()
    open_new_job(page)
    page.get_by_text('"hello bo"').wait_for()


def test_a_dead_letter_runs_again_with_other_arguments(page: Any):
    go(page, "job/again:dead")
    page.get_by_role("button", name="Edit and run").click()
    dialog = page.locator("dialog[open]")
    dialog.get_by_role("textbox").fill('{"who": "cy"}')
    dialog.get_by_role("button", name="Edit and run").click()
    page.get_by_text("1 job requeued").wait_for()
    page.get_by_text('"hello cy"').wait_for()


def test_a_job_of_the_app_is_enqueued_with_typed_arguments(page: Any):
    go(page, "tasks")
    page.get_by_role("button", name="New job").click()
    dialog = page.locator("dialog[open]")
    dialog.get_by_label("Task").select_option("greet")
    dialog.get_by_role("button", name="New job").click()
    dialog.get_by_role("alert").get_by_text("who").wait_for()  # the argument is missing
    dialog.get_by_label("Arguments").fill('{"who": "di"}')
    dialog.get_by_label("Tenant").fill("acme")
    dialog.get_by_role("button", name="New job").click()
    notice = page.locator(".toast").filter(has_text="enqueued")
    go(page, f"job/{notice.inner_text().split()[0]}")
    page.get_by_text('"hello di"').wait_for()
    page.get_by_role("heading", name="greet · acme").wait_for()


def test_tasks_show_how_long_their_runs_took(page: Any):
    go(page, "tasks")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="greet"))
    bars = row.get_by_role("img")
    sync_api.expect(bars).to_have_attribute("aria-label", re.compile(r"up to .*: \d"))
    assert bars.locator("rect").count() >= 1


def test_dead_letters_of_all_queues_are_grouped(page: Any):
    go(page, "dead")
    group = page.locator(".card:has(h2 a:text-is('again'))")
    sync_api.expect(group).to_contain_text("ValueError: nobody is here")
    group.get_by_role("link", name="an example").click()
    page.get_by_role("heading", name="greet").wait_for()


def test_workers_show_what_they_run_and_fit_a_phone(page: Any):
    page.set_viewport_size({"width": 390, "height": 800})
    go(page, "workers")
    running = page.locator(".card:has(h2:text('Running now'))")
    running.get_by_role("link", name="talk:talk").wait_for()
    queues = page.locator("td[data-heading=Queues] a")
    queues.first.wait_for()
    # A name that is as high as three lines stands letter below letter.
    assert max(queues.evaluate_all("all => all.map(one => one.getBoundingClientRect().height)")) < 60


def test_a_worker_with_more_jobs_than_a_page_leads_to_all_of_them(page: Any):
    found = page.request.get(f"{page.url.partition('#')[0]}api/find?state=running").json()
    page.route("**/api/find?*", lambda route: route.fulfill(json={**found, "cursor": "more"}))
    worker = next(one["worker"] for one in found["jobs"] if one["worker"])
    go(page, f"workers/{worker}")
    card = page.locator(".card:has(h2:text('Running now'))")
    sync_api.expect(card.get_by_role("heading")).to_contain_text(f"{len(found['jobs'])}+")
    card.get_by_role("link", name="Show all").click()
    page.wait_for_url(re.compile("state=running"))
    assert f"worker={worker.replace(':', '%3A')}" in page.url


def test_a_schedule_for_a_named_day_is_put_into_words(page: Any):
    found = page.request.get(f"{page.url.partition('#')[0]}api/schedules").json()
    days = [{**found["schedules"][0], "id": f"tasks:{day}", "cron": f"0 7 * * {day}"} for day in ("MON", "7", "1-5")]
    page.route("**/api/schedules", lambda route: route.fulfill(json={**found, "schedules": days}))
    go(page, "schedules")
    for words in ("every Monday at 07:00", "every Sunday at 07:00", "Monday to Friday at 07:00"):
        page.get_by_text(words).wait_for()


def test_jobs_are_found_by_a_filter_that_the_address_holds(page: Any):
    go(page, "jobs/bulk")
    page.get_by_label("Tenant").fill("bo")
    page.wait_for_timeout(3000)  # the live connection draws the page again every two seconds
    page.get_by_role("button", name="Search", exact=True).click()
    page.get_by_text("Found: 20").wait_for()
    assert page.evaluate("location.hash").endswith("?tenant=bo")
    page.reload()
    page.get_by_text("Found: 20").wait_for()
    go(page, "jobs/bulk?state=ready&tenant=acme")
    page.get_by_role("button", name="Search on").click()
    page.get_by_text("Found: 100").wait_for()


def test_a_bulk_move_is_undone_before_it_begins(page: Any):
    go(page, "jobs/bulk?tenant=bo")
    page.get_by_role("button", name="Move all that match").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("jobs of the queue bulk match").wait_for()
    dialog.get_by_role("textbox").fill("nowhere")
    dialog.get_by_role("button", name="Move all that match").click()
    dialog.get_by_text("Begins in four seconds").wait_for()
    dialog.get_by_role("button", name="Undo").click()
    page.wait_for_timeout(5000)
    go(page, "queue/nowhere")
    page.get_by_text("no queue").first.wait_for()


def test_jobs_that_match_are_counted_and_then_moved_and_cancelled(page: Any):
    go(page, "jobs/crowd?tenant=bo")
    page.get_by_role("button", name="Move all that match").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("20 jobs of the queue crowd match").wait_for()
    dialog.get_by_label("Move to the queue").fill("elsewhere")
    dialog.get_by_role("button", name="Move all that match").click()
    dialog.get_by_text("20 of 20 jobs changed").wait_for()
    dialog.get_by_role("button", name="Close").click()
    go(page, "jobs/crowd?state=ready&tenant=acme")
    page.get_by_role("button", name="Cancel all that match").click()
    dialog.get_by_text("1,500 jobs of the queue crowd match").wait_for()
    dialog.get_by_role("button", name="Cancel all that match").click()
    dialog.get_by_text("1,500 of 1,500 jobs changed").wait_for()


def test_the_job_of_a_flow_leads_to_those_it_waits_for(page: Any):
    go(page, "job/flow:merge")
    page.get_by_text("dead letters: 1").wait_for()
    flow = page.locator(".card:has(h2:text('Flow'))")
    flow.get_by_role("heading", name="Awaited by 1").wait_for()
    sync_api.expect(flow).to_contain_text("flow:report")
    flow.locator("li").filter(has_text="running").get_by_role("link", name=re.compile("^flow:")).click()
    page.get_by_text("part 2 began").wait_for()
    sync_api.expect(page.locator(".flow li").first).to_contain_text("blocked")
    sync_api.expect(page.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "40")


def test_a_flow_is_drawn_with_each_job_once_and_many_alike_together(page: Any):
    go(page, "job/flow:merge")
    picture = page.locator(".graph")
    sync_api.expect(picture.locator(".box")).to_have_count(5)
    sync_api.expect(picture.locator("path")).to_have_count(4)
    sync_api.expect(picture.locator(".own")).to_contain_text("merge")
    places = [picture.locator(".box", has_text=name).first.bounding_box()["x"] for name in ("part", "merge")]
    assert places == sorted(places)

    go(page, "job/wide:end")
    sync_api.expect(picture.locator(".box")).to_have_count(3)
    sync_api.expect(picture.locator(".box", has_text="× 10")).to_contain_text("delayed")
    sync_api.expect(picture.locator("path")).to_have_count(3)
    picture.locator("[title='wide:both']").get_by_role("link", name="bake").click()
    page.get_by_role("heading", name="Awaited by 1").wait_for()
    sync_api.expect(picture.locator(".own")).to_have_attribute("title", "wide:both")


def test_the_edges_of_a_flow_go_to_the_right_where_its_tree_is_cut(page: Any):
    def node(name: str, *predecessors: Any) -> dict[str, Any]:
        known = {"status": "completed", "task": name, "left": 0, "dead": 0, "awaited_by": 0, "dependents": []}
        return {"id": f"wide:{name}", "total": len(predecessors), "predecessors": predecessors, **known}

    farther = {**node("X"), "total": 1}  # what it waited for is only where it appears first
    flow = node("end", node("a", node("X", node("first"))), node("b", node("c", node("d", farther))))
    found = page.request.get(f"{page.url.partition('#')[0]}api/jobs/wide:end").json()
    page.route("**/api/jobs/wide*", lambda route: route.fulfill(json={**found, "flow": flow}))
    go(page, "job/wide:end")
    sync_api.expect(page.locator(".graph .box")).to_have_count(7)
    paths = [re.findall(r"[\d.]+", one.get_attribute("d")) for one in page.locator(".graph path").all()]
    assert len(paths) == 7
    assert all(float(path[0]) < float(path[-2]) for path in paths)


def test_the_log_of_a_job_is_followed_with_the_newest_line_first(page: Any):
    go(page, "job/talk:scribe")
    log = page.locator(".card:has(h2:text-is('Log'))")
    log.get_by_text("live").wait_for()
    first = log.locator("tbody tr code").first
    number = int(first.inner_text().split()[-1])
    sync_api.expect(first).to_have_text(re.compile(f" ({number + 2}|{number + 3})$"), timeout=scaled(10) * 1000)
    sync_api.expect(log.locator("tbody tr")).to_have_count(20)
    log.get_by_role("button", name="earlier lines").click()
    sync_api.expect(log.locator("tbody tr")).to_have_count(120)
    sync_api.expect(log).to_contain_text("<img src=x")
    log.get_by_role("button", name="earlier lines").click()
    sync_api.expect(log.locator("tbody tr").nth(130)).to_be_visible()


def test_an_ended_job_says_when_it_began_and_ended(page: Any):
    go(page, "jobs/odd?state=completed")
    page.locator("tbody tr a").first.click()
    facts = page.locator(".card dl")
    for name in ("Started", "Ended", "Took"):
        facts.get_by_text(name, exact=True).wait_for()
    timeline = page.locator(".card:has(h2:text('Timeline'))")
    sync_api.expect(timeline).to_contain_text(re.compile("enqueued.*started by .*completed", re.DOTALL))


def test_why_a_job_waits_leads_to_the_jobs_that_it_names(page: Any):
    go(page, "job/flow:report")
    page.locator(".card:has(h2:text('Why'))").get_by_role("link", name="flow:merge").click()
    page.get_by_role("heading", name="Awaited by 1").wait_for()


def test_jobs_are_counted_by_state_and_one_click_shows_them(page: Any):
    go(page, "jobs/later?tenant=bo")
    states = page.get_by_role("navigation", name="State")
    sync_api.expect(states.get_by_role("link", name="delayed")).to_have_text(re.compile(r"delayed\s*20"))
    sync_api.expect(states.get_by_role("link", name="sleeping")).to_have_count(0)
    states.get_by_role("link", name="delayed").click()
    page.get_by_text("Found: 20").wait_for()
    assert "tenant=bo" in page.url
    sync_api.expect(states.get_by_role("link", name="delayed")).to_have_attribute("aria-current", "true")
    states.get_by_role("link", name="Any state").click()
    page.wait_for_function("!location.hash.includes('state=')")


def test_a_dead_letter_names_its_task(page: Any):
    go(page, "dead/odd")
    page.get_by_role("region", name="Dead letters").first.wait_for()
    page.locator("tbody").get_by_role("link", name="شركة الاختبار.send", exact=True).last.click()
    page.get_by_role("heading", name="Jobs").wait_for()
    assert "state=dead" in page.url


def test_a_list_says_what_a_job_waits_for_that_has_no_date(page: Any):
    go(page, "jobs/flow?state=sleeping")
    sync_api.expect(page.locator("tbody tr").first).to_contain_text("until its signal")


def test_a_list_of_all_states_leads_to_further_jobs_that_have_ended(page: Any):
    go(page, "jobs/work")
    page.get_by_role("link", name="More jobs that have ended").click()
    sync_api.expect(page.locator("select[name=state]")).to_have_value("ended")
    assert "state=ended" in page.url


def test_a_queue_of_short_jobs_is_at_work_though_it_is_empty(page: Any):
    row = page.locator("tbody tr").filter(has=page.get_by_role("link", name="work", exact=True))
    row.get_by_text("at work").wait_for()
    for _ in range(5):
        sync_api.expect(row).not_to_contain_text("idle")
        page.wait_for_timeout(300)


def test_an_axis_of_jobs_has_whole_numbers(page: Any):
    go(page, "queue/letters")
    page.locator(".u-axis").first.wait_for()
    steps = page.evaluate("import('./static/components.js').then((one) => one.WHOLE_STEPS)")
    assert steps[:4] == [1, 2, 5, 10]
    assert all(step == int(step) for step in steps)


def test_tags_are_offered_and_shown(page: Any):
    go(page, "jobs/long?state=delayed")
    page.locator("tbody").get_by_role("link", name="شركة الاختبار", exact=True).first.wait_for()
    assert "شركة الاختبار" in page.locator("#known-tag option").evaluate_all("all => all.map(one => one.value)")


def test_the_output_of_a_job_is_followed_and_read_backwards(page: Any):
    go(page, "job/talk:talk")
    output = page.locator(".card:has(h2:text('Output'))")
    newest = output.locator("pre").last
    newest.get_by_text('"tick"').wait_for()
    before = newest.inner_text()
    page.wait_for_function(
        "before => document.querySelector('.card > pre.output').innerText.length > before", arg=len(before)
    )
    sync_api.expect(output.get_by_text("live")).to_be_visible()
    assert newest.evaluate("one => one.scrollTop + one.clientHeight >= one.scrollHeight - 8")
    earlier = output.get_by_role("button", name="Earlier output")
    while earlier.count():
        with contextlib.suppress(sync_api.TimeoutError):  # the last answer takes the button away
            earlier.click(timeout=1000)
    output.locator("summary").click()
    sync_api.expect(output.locator("details pre")).to_contain_text("<img src=x")
    sync_api.expect(output.locator("details pre")).to_contain_text("line 299 of attempt 1")


def test_the_output_of_an_ended_job_is_fetched_to_its_end(page: Any):
    def part(number: int, text: str, missed: int = 0) -> dict[str, Any]:
        return {"id": f"{number}-1", "attempt": 1, "at": 1, "missed": missed, "text": text}

    answers: list[Any] = [
        {"parts": [part(2, "two\n")], "earlier": True, "ended": False},
        None,
        {"parts": [part(5, "five\n", missed=2)], "earlier": False, "ended": False},
        {"parts": [part(6, "six\n")], "earlier": False, "ended": True},
    ]
    asked: list[str] = []
    held: list[Any] = []

    def answer(route: Any) -> None:
        query = route.request.url.partition("?")[2]
        asked.append(query)
        if "before=" in query:
            held.append(route)
        elif found := answers.pop(0):
            route.fulfill(json=found)
        else:
            route.fulfill(status=503, json={"error": "busy"})

    page.route("**/api/output/**", answer)
    go(page, "job/long:one")
    output = page.locator("pre.output")
    output.get_by_text("six").wait_for()
    sync_api.expect(output).to_have_text("two\n(2 chunks are gone)\nfive\nsix\n")
    assert asked == ["", "after=2-1", "after=2-1", "after=5-1"]
    button = page.get_by_role("button", name="Earlier output")
    button.dblclick()
    while not held:
        page.wait_for_timeout(20)
    held.pop().fulfill(status=503, json={"error": "busy"})
    page.wait_for_timeout(100)  # until the page knows that it may ask again
    button.dblclick()
    while not held:
        page.wait_for_timeout(20)
    held.pop().fulfill(json={"parts": [part(1, "one\n")], "earlier": False, "ended": False})
    sync_api.expect(button).to_have_count(0)
    sync_api.expect(output).to_have_text("one\ntwo\n(2 chunks are gone)\nfive\nsix\n")
    assert asked[4:] == ["before=2-1"] * 2


def test_dead_letters_are_deleted_one_by_one_and_by_filter(page: Any):
    go(page, "dead/letters")
    page.get_by_role("checkbox").nth(1).check()
    page.get_by_role("button", name="Delete 1").click()
    dialog = page.locator("dialog[open]")
    dialog.get_by_text("deleted for good").wait_for()
    dialog.get_by_role("button", name="Delete 1").click()
    page.get_by_text("1 job removed").wait_for()
    go(page, "jobs/letters?state=dead")
    page.get_by_role("button", name="Delete all that match").click()
    dialog.get_by_text("3 jobs of the queue letters match").wait_for()
    dialog.get_by_role("button", name="Delete all that match").click()
    dialog.get_by_text("3 of 3 jobs changed").wait_for()


def test_a_parked_job_is_cancelled_on_its_page(page: Any):
    go(page, "jobs/tasks?state=parked")
    page.get_by_role("link", name=re.compile("^tasks:")).first.click()
    page.get_by_role("button", name="Cancel job").click()
    page.locator("dialog[open]").get_by_role("button", name="Cancel job").click()
    page.get_by_text("1 job cancelled").wait_for()


def test_a_schedule_runs_now(page: Any):
    go(page, "schedules")
    page.get_by_role("button", name="Run now").click()
    page.get_by_text("is enqueued in a moment").wait_for()
    page.get_by_text(re.compile(r"^tasks:schedule:nothing:\S+ enqueued$")).wait_for()


def test_a_run_again_is_undone_before_it_begins(page: Any):
    go(page, "dead/mail")
    page.get_by_role("button", name="Run all again").click()
    page.get_by_role("button", name="Undo").click()
    page.wait_for_timeout(4500)
    assert page.locator("tbody tr").count() > 0


def test_a_schedule_is_paused_and_that_is_undone(page: Any):
    go(page, "schedules")
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("cell", name="paused").wait_for()
    page.get_by_role("button", name="Undo").click()
    page.get_by_role("cell", name="active").wait_for()


def test_a_lock_is_broken_after_a_question(page: Any):
    go(page, "locks")
    page.get_by_role("row").filter(has_text="invoice:7").get_by_role("button", name="Break").click()
    page.locator("dialog[open]").get_by_role("button", name="Break").click()
    page.get_by_text("1 lock broken").wait_for()


def test_a_rate_is_reset_after_a_question(page: Any):
    go(page, "rates")
    row = page.get_by_role("row").filter(has_text="api:acme")
    sync_api.expect(row).to_contain_text("1 / 4")
    row.get_by_role("button", name="Reset").click()
    page.locator("dialog[open]").get_by_role("button", name="Reset").click()
    page.get_by_text("all units of api:acme are allowed again").wait_for()
    row.wait_for(state="detached")


def test_a_name_is_completed(page: Any):
    go(page, "directories")
    page.get_by_role("searchbox", name="Complete a name in guild:9").fill("名")
    page.get_by_role("cell", name="名前").wait_for()


def test_keys_lead_to_pages_and_to_the_search(page: Any):
    page.keyboard.press("g")
    page.keyboard.press("l")
    page.get_by_role("heading", name="Locks").first.wait_for()
    page.keyboard.press("g")
    page.keyboard.press("i")
    page.get_by_role("searchbox", name="Complete a name in guild:9").wait_for()
    go(page, "jobs/odd")
    page.locator("tbody tr").nth(2).wait_for()
    rows = "[...document.querySelectorAll('tbody tr')].findIndex(one => one.contains(document.activeElement))"
    for key, row in (("j", 0), ("j", 1), ("j", 2), ("k", 1), ("k", 0), ("k", 0)):
        page.keyboard.press(key)
        assert page.evaluate(rows) == row
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keys")
    sync_api.expect(dialog).to_contain_text("Directories")
    page.keyboard.press("Escape")
    sync_api.expect(dialog).not_to_be_visible()
    page.keyboard.press("/")  # the field is on another page
    page.get_by_role("searchbox", name="id").and_(page.locator(":focus")).wait_for()
    page.keyboard.type("mail:nothing")
    page.keyboard.press("Enter")
    page.get_by_role("alert").wait_for()


def test_it_speaks_chinese_and_changes_its_colours(page: Any):
    page.get_by_role("combobox", name="Language").select_option("zh")
    page.get_by_role("heading", name="概览").wait_for()
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="浅色或深色").click()
    page.wait_for_function("before => getComputedStyle(document.body).backgroundColor !== before", arg=before)


def test_names_lead_to_what_they_name(page: Any):
    go(page, "jobs/long?tag=xxx")
    page.get_by_role("heading", name="Jobs").wait_for()
    go(page, "job/talk:talk")
    page.locator("dl").get_by_role("link", name=re.compile(r":\d+$")).click()
    page.get_by_role("heading", name="Workers").wait_for()
    sync_api.expect(page.locator("main table").first.locator("tbody tr")).to_have_count(1)
    page.get_by_role("link", name="<b>1").click()
    page.get_by_text("only").wait_for()
    page.get_by_role("link", name="Show all").click()
    go(page, "locks")
    page.get_by_role("link", name="market:17").click()
    page.get_by_role("heading", name="Semaphores").wait_for()
    sync_api.expect(page.locator("main .card")).to_have_count(1)
    assert page.locator("main").get_by_role("link", name=re.compile(r":\d+$")).first.get_attribute("href") != ""
    go(page, "dead/odd")
    page.get_by_role("link", name=re.compile("send$")).first.click()
    page.get_by_text("searched").wait_for()
    go(page, "schedules")
    page.get_by_role("link", name="nothing").click()
    page.get_by_text("searched").wait_for()
    go(page, "locks/nobody")
    page.get_by_text("There is none of this name now.").wait_for()
