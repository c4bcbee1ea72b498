"""Build the site: `python -m tests.pages.build` writes build/docs and build/site, and fails at the first fault.

    build/docs   all pages as Markdown: docs/, the README as the home page, the change log, and the generated reference
    build/site   the site, with each page as Markdown beside its HTML, and `llms.txt`, an index of those

Every link of every page is followed in the built HTML, anchors included. Nothing is fetched from the network.
"""

from __future__ import annotations

import html.parser
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.pages import api, search, tables
from tests.pages.docstrings import first_sentence

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "build" / "docs"
SITE = ROOT / "build" / "site"
CONFIGURATION = ROOT / "zensical.toml"

FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
SECTION = re.compile(r"^## (`[^`\n]+`)", re.MULTILINE)
LINK = re.compile(r"(?P<before>\]\(\s*<?)(?P<target>[^)\s>]+)")
IMAGE = re.compile(
    r"<picture>.*?(?P<tag><img [^>]*?(?P<file>[\w./-]+)-light\.png\"[^>]*>).*?</picture>"
    r"|(?P<html><img [^>]*?(?P<own>[\w./-]+)-light\.png\"[^>]*>)"
    r"|(?P<markdown>!\[[^\]]*\]\((?P<path>[\w./:-]+)-light\.png\))",
    re.DOTALL,
)
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
ABSOLUTE = re.compile(r"[a-z][a-z+.-]*:|//|#", re.IGNORECASE)

# Markdown that a browser shows, beside what the theme has.
STYLE = """\
.md-typeset table:not([class]) { font-size: 0.68rem; }
.md-typeset table:not([class]) td:first-child code { white-space: nowrap; }
.md-typeset h2 > code, .md-typeset h3 > code { background: none; padding: 0; }
"""


def configuration() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads(CONFIGURATION.read_text("utf-8"))["project"]
    return project


def urls() -> dict[str, str]:
    """The addresses of the project, as pyproject.toml gives them."""
    found: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]
    return found


def in_navigation(entries: Any) -> Iterator[tuple[str, str]]:
    """Title and path of each page, in order."""
    for entry in entries:
        for title, inner in entry.items() if isinstance(entry, dict) else [("", entry)]:
            if isinstance(inner, str):
                yield title, inner
            else:
                yield from in_navigation(inner)


def collect() -> None:
    """Put all pages together in build/docs, with links that lead somewhere from there."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES)
    for path in PAGES.rglob("*.md"):
        page = path.relative_to(PAGES)
        path.write_text(inside_links(outside_links(path.read_text("utf-8"), ROOT / "docs" / page), page), "utf-8")
    readme = (ROOT / "README.md").read_text("utf-8")
    home = Path("index.md")
    (PAGES / home).write_text(inside_links(outside_links(readme, ROOT / "README.md"), home), "utf-8")
    changes = outside_links((ROOT / "CHANGELOG.md").read_text("utf-8"), ROOT / "CHANGELOG.md")
    (PAGES / "changelog.md").write_text(changes, "utf-8")
    api.write(PAGES / "reference")
    tables.write(PAGES / "reference")
    for path in PAGES.rglob("*.md"):
        path.write_text(both_images(path.read_text("utf-8"), path.parent), "utf-8")
    (PAGES / "site.css").write_text(STYLE, "utf-8")
    shutil.copyfile(Path(__file__).with_name("pasted.js"), PAGES / "pasted.js")


def outside_links(text: str, path: Path) -> str:
    """Links to files that are no pages, such as an example, lead to the repository."""
    source = urls()["Source"]

    def moved(found: re.Match[str]) -> str:
        target, _, anchor = found["target"].partition("#")
        if ABSOLUTE.match(found["target"]) or not target:
            return found[0]
        file = Path(os.path.normpath(path.parent / target))
        if file.is_relative_to(ROOT / "docs"):
            if path.is_relative_to(ROOT / "docs"):
                return found[0]
            inner = file.relative_to(ROOT / "docs").as_posix()
            return f"{found['before']}{inner}{'#' + anchor if anchor else ''}"
        kind = "tree" if file.is_dir() else "blob"
        return (
            f"{found['before']}{source}/{kind}/main/{file.relative_to(ROOT).as_posix()}{'#' + anchor if anchor else ''}"
        )

    return prose(text, lambda part: LINK.sub(moved, part))


def inside_links(text: str, page: Path) -> str:
    """Make absolute links to this site relative. The README, which is read in other places too, has them, and so have
    links from `page` to pages that are made here, because they do not exist where the repository is read.
    """
    site = urls()["Documentation"]
    listed = {path for _, path in in_navigation(configuration()["nav"])}

    def shortened(found: re.Match[str]) -> str:
        target = found["target"]
        if not target.startswith(site):
            return found[0]
        linked, _, anchor = target.removeprefix(site).partition("#")
        path = linked if "." in linked.rpartition("/")[2] else f"{linked.strip('/') or 'index'}.md"
        if path not in listed and f"{linked.strip('/')}/index.md" in listed:
            path = f"{linked.strip('/')}/index.md"
        return f"{found['before']}{os.path.relpath(path, page.parent)}{'#' + anchor if anchor else ''}"

    return prose(text, lambda part: LINK.sub(shortened, part))


def both_images(text: str, folder: Path) -> str:
    """An image `x-light.png` that has an `x-dark.png` beside it follows the colours that the reader chose on the site.

    On other sites a `<picture>` follows the colours of the system.
    """

    def doubled(found: re.Match[str]) -> str:
        stem = found["file"] or found["own"] or found["path"]
        one = found["tag"] or found["html"] or found["markdown"]
        if not (folder / f"{stem}-dark.png").exists():
            return found[0]
        return "\n".join(one.replace("-light.png", f"-{kind}.png#only-{kind}") for kind in ("light", "dark"))

    return prose(text, lambda part: IMAGE.sub(doubled, part))


def prose(text: str, change: Any) -> str:
    """The text with its prose changed, and its code as it is."""
    end, parts = 0, list[str]()
    for fence in FENCE.finditer(text):
        parts += [change(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(text[end:])])


# --- what machines read ---


def lead(body: str) -> str:
    """The first sentence of a page: of its first paragraph that is no code, table, heading or picture."""
    paragraphs = (part.strip("\n") for part in FENCE.sub("", body).split("\n\n"))
    found = next((part for part in paragraphs if re.match(r"[\w`*\[]", part)), "")
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", first_sentence(found)).partition("。")[0]


def write_index_for_machines() -> None:
    """Write `llms.txt`: each page with its first sentence, and where it is as Markdown."""
    project = configuration()
    lines = [f"# {project['site_name']}", "", f"> {project['site_description']}", ""]
    for section in project["nav"]:
        for title, entries in section.items():
            if isinstance(entries, str):
                continue
            lines += [f"## {title}", ""]
            for name, path in in_navigation(entries):
                text = (PAGES / path).read_text("utf-8")
                heading, _, body = text.partition("\n")
                listed = path.startswith("reference/api/") and not path.endswith("/index.md")
                about = ", ".join(SECTION.findall(body)) if listed else lead(body)
                lines.append(f"- [{name or heading.lstrip('# ')}]({project['site_url']}{path}): {about}".rstrip(": "))
            lines.append("")
    (SITE / "llms.txt").write_text("\n".join(lines), "utf-8")
    for source in PAGES.rglob("*.md"):
        target = SITE / source.relative_to(PAGES)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


# --- checks of what was built ---


class Links(html.parser.HTMLParser):
    """The ids of a page, and where its links and images lead."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.targets: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and name in ("id", "name"):
                self.ids.add(value)
            if value and (tag, name) in (("a", "href"), ("img", "src"), ("link", "href"), ("script", "src")):
                self.targets.add(value)


def broken_links(site: Path, address: str) -> list[str]:
    """Links inside the site that lead nowhere, and files that a page would load from another server."""
    pages = {path: Links(path.read_text("utf-8")) for path in site.rglob("*.html")}
    faults = []
    for path, page in pages.items():
        if path.name == "404.html":
            continue
        for target in sorted(page.targets):
            is_own = target.startswith(address)
            parts = urlsplit(target.removeprefix(address))
            if parts.scheme or parts.netloc:
                continue
            folder = site if is_own else path.parent
            file = Path(os.path.normpath(folder / unquote(parts.path))) if parts.path or is_own else path
            file = file / "index.html" if file.is_dir() else file
            if not file.exists():
                faults.append(f"{path.relative_to(site)} links to {target}, which does not exist")
            elif parts.fragment and file in pages and unquote(parts.fragment) not in pages[file].ids:
                faults.append(f"{path.relative_to(site)} links to {target}: that page has no such heading")
    return faults


def build() -> int:
    collect()
    shutil.rmtree(SITE, ignore_errors=True)
    program = Path(sys.executable).with_name("zensical")
    done = subprocess.run(
        [program, "build", "--clean", "--strict"], cwd=ROOT, capture_output=True, encoding="utf-8", check=False
    )
    if done.returncode:
        print(COLOUR.sub("", done.stdout + done.stderr.partition("Traceback")[0]), file=sys.stderr)
        return done.returncode
    write_index_for_machines()
    search.arrange(SITE)
    faults = broken_links(SITE, str(configuration()["site_url"]))
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"build/site has {sum(1 for _ in SITE.rglob('*.html'))} pages and {len(faults)} broken links")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(build())
