"""The generated reference lacks nothing, and the site has every page."""

import inspect
import re
from enum import Enum
from functools import cache
from pathlib import Path

import pytest

from penstock import config
from penstock.integrations import prometheus
from tests.pages import api, build, docstrings, search, tables
from tests.pages.public import INTERNAL, MODULES, everything, is_field, members_of
from tests.test_docs import PUBLIC_MODULES

ROOT = Path(__file__).parents[2]
PUBLIC = [one for one in everything() if one.module != "penstock.errors"]

# Words of a page. The tour is a walk that takes an hour; `test_quickstart.py` holds the README, which is the home page.
WORDS, WORDS_OF_THE_TOUR = 1800, 2500


@cache
def reference() -> str:
    """It takes a second: too long for a collection."""
    return "\n".join(api.pages().values())


@cache
def headings() -> set[str]:
    """Its headings and the names of its lists, which are properties and fields."""
    return set(re.findall(r"^(##+ `[\w.]+` \{ #|- `\w+)", reference(), re.MULTILINE))


@pytest.mark.parametrize("one", PUBLIC, ids=lambda one: f"{one.module}.{one.name}")
def test_every_public_name_and_each_of_its_members_is_described(one):
    assert f"## `{one.name}` {{ #" in headings()
    assert f"from {one.module} import {one.name}\n" in reference()
    if not inspect.isclass(one.thing) or issubclass(one.thing, Enum):
        return
    for name, member in members_of(one.thing):
        assert api.doc_of(one.thing, name), f"{name} has no docstring"
        shown = f"- `{name}" if isinstance(member, property) else f"### `{one.name}.{name}` {{ #"
        assert shown in headings()
    lacking = {
        name
        for name in dir(one.thing)
        if not name.startswith("_")
        and not is_field(one.thing, name, inspect.getattr_static(one.thing, name))
        and next(base for base in one.thing.__mro__ if name in vars(base)).__module__.startswith("penstock")
    } - {name for name, _ in members_of(one.thing)}
    for name in lacking:
        signature = str(inspect.signature(getattr(one.thing, name))) if callable(getattr(one.thing, name)) else ""
        assert {name, f"{one.thing.__name__}.{name}"} & INTERNAL or re.search(r"[A-Z]\w+", signature), name


def test_signatures_are_those_of_a_caller():
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", reference(), re.MULTILINE | re.DOTALL))
    assert "BoundVerb" not in reference()
    assert not re.search(r"\bself\b|\bOperation\[|\bRoundTrip\[|<object|\bBoundVerb\b", code)
    assert (
        "claim(n: int = 1, *, wait: float | None = 0.0, lease: float | None = None) -> list[Item]  # or await claim"
        in code
    )


def test_the_modules_of_the_reference_are_those_of_the_examples():
    application = "penstock.integrations.django_outbox"  # Django imports it, once it is set up
    assert set(MODULES) == PUBLIC_MODULES - {application}


def test_every_setting_and_every_variable_is_described():
    text = tables.settings_page()
    for name in config.KNOWN:
        assert f"| `{name}` | `PENSTOCK_{name.upper()}` | " in text
    described = set(re.findall(r"PENSTOCK_[A-Z_]+", text)) | config.PRIVATE
    assert tables.variables_in_the_source() <= described
    assert config.PRIVATE.isdisjoint(config.ENVIRONMENT)
    assert all(meaning.endswith(".") for meaning in (*config.KNOWN.values(), *config.ENVIRONMENT.values()))


errors = cache(tables.errors_page)


@pytest.mark.parametrize("error", tables.error_classes(), ids=lambda error: error.__name__)
def test_every_error_has_a_cause_and_a_remedy(error):
    assert f"## `{error.__name__}` {{ #{error.__name__.lower()} }}" in errors()
    text = " ".join((inspect.getdoc(error) or "").split())
    assert len(re.findall(r"[.:](?= |$)", text)) > 1, "a sentence says what happened, and another what to do"


def test_every_metric_is_described():
    source = inspect.getsource(prometheus)
    made = set(re.findall(r'"(penstock_\w+)"', source))
    made |= {f"penstock_queue_{name}" for name in re.findall(r'gauge\("(\w+)"', source)}
    assert {name.removesuffix("_total") for name, _, _ in tables.metrics()} == made


def test_every_command_is_in_the_page_of_help():
    from penstock.cli import COMMANDS

    assert all(f"## `penstock {command.name}`\n" in tables.help_page() for command in COMMANDS)


# --- the site ---

# Words that users of Celery, Sidekiq, BullMQ and Temporal type into the search box, and the page that must have each:
# the search of the site finds pages by the words in them.
SEARCHED = {
    "token bucket": "guide/order.md",
    "too many requests": "guide/order.md",
    "429": "guide/order.md",
    "tokens": "guide/order.md",
    "backpressure": "guide/bounds.md",
    "streaming": "guide/output.md",
    "encryption": "guide/sealed.md",
    "workflow": "guide/durable.md",
    "versioning": "guide/durable.md",
    "child jobs": "guide/durable.md",
    "debounce": "guide/schedules.md",
    "cron": "guide/schedules.md",
    "newest call wins": "guide/schedules.md",
    "outbox": "howto/database.md",
    "Prometheus": "howto/metrics.md",
    "KEDA": "howto/containers.md",
}


@pytest.mark.parametrize("word", SEARCHED)
def test_the_search_finds_a_page_by_the_word_of_another_library(word: str):
    page = (ROOT / "docs" / SEARCHED[word]).read_text("utf-8")
    assert word.lower() in " ".join(build.FENCE.sub("", page).lower().split())


def test_the_search_shows_guides_first_and_knows_each_section_that_it_names():
    for location in search.TITLES:
        page, _, anchor = location.partition("#")
        text = (ROOT / "docs" / f"{page.rstrip('/')}.md").read_text("utf-8")
        headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
        assert not anchor or anchor in {re.sub(r"\W+", "-", heading.lower()) for heading in headings}
    places = ["decisions/0001-x/", "reference/api/tasks/#retry", "reference/cli-jobs/", "howto/x/", *search.TITLES]
    index = {"config": {"lang": ["en"]}, "items": [{"location": place, "title": "Retry"} for place in places]}
    found = search.arranged(index)["items"]
    assert [one["location"].partition("/")[0] for one in found if one["title"].endswith("Retry")] == [
        "howto",
        "reference",
        "reference",
    ]
    assert found[0]["location"].startswith("guide/")
    assert found[-1]["title"] == "API: Retry"
    with pytest.raises(ValueError, match="do not exist: guide/"):
        search.arranged({**index, "items": []})


def test_the_words_of_other_libraries_lead_to_every_guide():
    words = (ROOT / "docs" / "reference" / "words.md").read_text("utf-8")
    guides = {path.name for path in (ROOT / "docs" / "guide").glob("*.md")}
    assert {name for name in guides if f"../guide/{name}" not in words} == set()


def test_the_navigation_has_every_page_once():
    listed = [path for _, path in build.in_navigation(build.configuration()["nav"])]
    written = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    generated = {f"reference/{name}" for name in (*api.pages(), *tables.pages())} | {"index.md", "changelog.md"}
    pages = {path for path in written if not path.startswith("decisions/0")} | generated
    assert sorted(listed) == sorted(pages)


def words(text: str) -> int:
    """As a reader counts them. Two Chinese characters take as long to read as a word."""
    characters = re.findall(r"[\u4e00-\u9fff]", text)
    return len(re.sub(r"[\u4e00-\u9fff]", " ", text).split()) + len(characters) // 2


@pytest.mark.parametrize(
    "path", sorted((ROOT / "docs").rglob("*.md")), ids=lambda path: path.relative_to(ROOT).as_posix()
)
def test_a_page_answers_one_question(path: Path):
    text = path.read_text("utf-8")
    assert text.startswith("# "), "a page begins with its title"
    assert len(re.findall(r"^# ", build.FENCE.sub("", text), re.MULTILINE)) == 1
    assert words(text) <= (WORDS_OF_THE_TOUR if path.name == "tour.md" else WORDS)


def test_words_are_counted_in_both_languages():
    assert words("A job runs `twice`.\n\n| a |") == 7
    assert words("\u4efb\u52a1\u6392\u961f `job.id`") == 3


def test_the_index_of_decisions_has_each_and_says_which_are_replaced():
    folder = ROOT / "docs" / "decisions"
    index = (folder / "index.md").read_text("utf-8")
    listed = re.findall(r"^- \[(\d{4})\]\(([^)]+)\) (.*)$", index, re.MULTILINE)
    assert sorted(name for _, name, _ in listed) == sorted(path.name for path in folder.glob("0*.md"))
    for number, name, title in listed:
        text = (folder / name).read_text("utf-8")
        found = re.search(r"^\*((?:Partly r|R)eplaced) by \[(\d{4})\]", text, re.MULTILINE)
        assert name.startswith(number)
        assert text.partition("\n")[0].removeprefix(f"# {number}: ").removeprefix("# ") == title.partition(" (*")[0]
        assert title.partition(" (*")[2] == (f"{found[1].lower()} by {found[2]}*)" if found else "")
        assert not re.search(r"^[^*\n]{0,40}[Rr]eplaced by \[", text, re.MULTILINE)


def test_links_of_a_page_lead_to_pages_or_to_the_repository():
    source, here = build.urls()["Source"], ROOT / "docs" / "guide" / "queue.md"
    text = (
        "[a](jobs.md#cancel) [b](../../examples/flow.py) [c](https://valkey.io) [d](#here)\n```\n[e](../../x.py)\n```\n"
    )
    moved = build.outside_links(text, here)
    assert moved == text.replace("../../examples/flow.py", f"{source}/blob/main/examples/flow.py")
    assert build.outside_links("[a](docs/guide/queue.md#cancel)", ROOT / "README.md") == "[a](guide/queue.md#cancel)"
    site = build.urls()["Documentation"]
    text = f"[a]({site}guide/queue/#cancel) [b]({site}) [c]({site}reference/api/)"
    assert (
        build.inside_links(text, Path("index.md"))
        == "[a](guide/queue.md#cancel) [b](index.md) [c](reference/api/index.md)"
    )
    assert (
        build.inside_links(text, Path("guide/jobs.md"))
        == "[a](queue.md#cancel) [b](../index.md) [c](../reference/api/index.md)"
    )


def test_an_image_follows_the_colours_of_the_site(tmp_path: Path):
    for name in ("x-light.png", "x-dark.png", "y-light.png"):
        (tmp_path / name).touch()
    both = "![a](x-light.png#only-light)\n![a](x-dark.png#only-dark)"
    assert build.both_images("![a](x-light.png) ![b](y-light.png)", tmp_path) == f"{both} ![b](y-light.png)"
    tags = '<img alt="a" src="x-light.png#only-light">\n<img alt="a" src="x-dark.png#only-dark">'
    picture = '<picture>\n<source srcset="x-dark.png">\n<img alt="a" src="x-light.png">\n</picture>'
    assert build.both_images(picture, tmp_path) == tags
    assert build.both_images('<img alt="a" src="x-light.png">', tmp_path) == tags


def test_a_link_of_the_site_that_leads_nowhere_is_found(tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "index.html").write_text(
        '<a href="a/#there">x</a><a href="b/">y</a><a href="https://x.example/c/">z</a>'
    )
    (tmp_path / "a" / "index.html").write_text('<h2 id="here">H</h2><a href="../">home</a>')
    assert build.broken_links(tmp_path, "https://x.example/") == [
        "index.html links to a/#there: that page has no such heading",
        "index.html links to b/, which does not exist",
        "index.html links to https://x.example/c/, which does not exist",
    ]


def test_the_addresses_of_the_project_are_given_once():
    project = build.configuration()
    assert project["site_url"] == build.urls()["Documentation"]
    assert project["repo_url"] == build.urls()["Source"]


# --- docstrings ---


def test_columns_of_a_docstring_become_a_list_and_examples_code():
    text = """Does it.

        app.queue("q").count()

    wait   seconds to
           wait
    n, m   numbers

    Raises BadCall.
    """
    assert docstrings.markdown(text) == (
        'Does it.\n\n```python\napp.queue("q").count()\n```\n\n'
        "- `wait`: seconds to wait\n- `n`, `m`: numbers\n\nRaises BadCall."
    )
    assert docstrings.first_sentence("It is `a`. And more.") == "It is `a`."


def test_the_lead_of_a_page_is_its_first_sentence_in_words():
    page = "\n\n    pip install it\n\n| a |\n|---|\n\n```python\nx = 1\n```\n\nIt [shows](b.md) all.\nMore.\n"
    assert build.lead(page) == "It shows all."
    assert build.lead("\n从零开始。需要 Python。\n") == "从零开始"
    assert not build.lead("\n| only | a table |\n")
