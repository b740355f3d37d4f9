"""The modules of the page, one by one, in the browser that runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

import halter.gateway
from halter import Agent
from halter.gateway.http.static_files import StaticFiles
from halter.stores import MemoryStore
from halter.testing import Gate, ScriptedModel
from tests.support.waiting import wait_until
from tests.support.web_page import House, Tab, context_of

MakeHouse = Callable[..., House]
MakeTab = Callable[..., Tab]

_TO_THE_END = "(log => log.scrollHeight - log.scrollTop - log.clientHeight)(document.getElementById('log'))"
RENDERED = {
    "a *b* **c** ~~d~~ `e<f>`": "<p>a <em>b</em> <strong>c</strong> <del>d</del> <code>e&lt;f&gt;</code></p>",
    "***both*** and __that__ _this_": "<p><strong><em>both</em></strong> and <strong>that</strong> <em>this</em></p>",
    "snake_case_name 2*3*4 a * b * c": "<p>snake_case_name 2<em>3</em>4 a * b * c</p>",
    "open **bold and `code": "<p>open **bold and `code</p>",
    r"\*not\* \<this\>": "<p>*not* &lt;this&gt;</p>",
    "one\ntwo": "<p>one<br>two</p>",
    "# A\n## B #\ntext": "<h2>A</h2><h3>B</h3><p>text</p>",
    "- a\n- b\n  - c\n- d": "<ul><li>a</li><li>b<ul><li>c</li></ul></li><li>d</li></ul>",
    "3. a\n4. b": '<ol start="3"><li>a</li><li>b</li></ol>',
    "text\n- a\n\ntext": "<p>text</p><ul><li>a</li></ul><p>text</p>",
    "> a\n> > b": "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>",
    "a\n\n---\n\nb": "<p>a</p><hr><p>b</p>",
    "5 < 6 & <b>x</b>": "<p>5 &lt; 6 &amp; &lt;b&gt;x&lt;/b&gt;</p>",
}
LONG = """# A
Some *text* with `code`, a [link](https://example.com/a_(b)) and https://example.com/x.

1. one
2. two
   - below
     more

   still two

3. three

```python
def f():
    return "```"

# not a heading
```

| a | b |
|---|:-:|
| 1 | `2|` |

> quoted
> more

* * *

~~~
tilde
~~~
last **words
"""


def test_every_module_comes_in_one_script(house: Callable[..., House], browser: Browser) -> None:
    """A browser takes milliseconds for each file, so it is sent four, whatever the number of modules is."""
    context = context_of(browser)
    opened = context.new_page()
    fetched: list[str] = []
    opened.on("request", lambda request: fetched.append(request.url.rpartition("/")[2]))
    opened.goto(house().address())
    opened.locator("#text").wait_for()
    context.close()
    assert sorted({each for each in fetched if "." in each}) == ["icon.svg", "main.js", "styles.css", "theme.js"]
    folder = Path(halter.gateway.__file__).parent / "web"
    text = StaticFiles()._files["main.js"].data.decode()
    for path in folder.glob("*.js"):
        assert path.name in ("main.js", "theme.js") or text.count(f"const ${path.stem} =") == 1, path.name
    styles = StaticFiles()._files["styles.css"].data.decode()
    assert all(path.name == "styles.css" or path.read_text() in styles for path in folder.glob("*.css"))


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    house = House()
    context = context_of(browser)
    opened = context.new_page()
    opened.goto(house.address())
    yield opened
    context.close()
    house.close()


def render(page: Page, text: str, *, step: int = 0) -> str:
    """The HTML of a text, shown at once or growing by so many characters."""
    return str(
        page.evaluate(
            """async ([text, step]) => {
              const { Markdown } = await import("/page/markdown.js");
              const node = document.createElement("div"), markdown = new Markdown(node);
              for (let end = step; step && end < text.length; end += step) markdown.show(text.slice(0, end));
              markdown.show(text);
              return node.innerHTML;
            }""",
            [text, step],
        )
    )


@pytest.mark.parametrize("text", RENDERED)
def test_markdown_becomes_elements(page: Page, text: str) -> None:
    """The marks that models use are shown as what they mean; all else stays as it was written."""
    assert render(page, text) == RENDERED[text]


def test_markdown_that_grows_is_that_which_comes_at_once(page: Page) -> None:
    """However a text is cut into pieces, what is shown in the end is the same."""
    whole = render(page, LONG)
    assert "<table>" in whole
    for step in (1, 2, 3, 7, 50):
        assert render(page, LONG, step=step) == whole


def test_marks_without_end_take_no_time_without_end(page: Page) -> None:
    """Texts made of nothing but marks are shown, and a depth without end is cut off."""
    many = ("*", "[", "`a", "**a ", "- ", "_a_", "![", "> ", "|-", "1. ", "~~~", "a\n")
    for text in [mark * 5_000 + "x" for mark in many]:
        assert render(page, text)


@pytest.mark.parametrize(
    "text",
    ["|a" * 150_000 + "\n" + "|-" * 150_000, "|a|b|\n|-|-|\n" + "|x|y|\n" * 150_000, "|a|\n|-|\n" + "|" * 150_000],
    ids=["columns", "rows", "a row"],
)
def test_a_table_without_end_is_shown(page: Page, text: str) -> None:
    """150,000 pipes were more than the browser could take, and nothing of the conversation was drawn any more."""
    shown = render(page, text)
    assert "|a" in shown or "<table>" in shown


def test_what_is_whole_is_not_made_again(house: MakeHouse, tab: MakeTab) -> None:
    """Of an answer of thousands of pieces only the end is drawn anew: what stood before is the same element."""
    gate = Gate()
    pieces = [f"word{number} " if number % 40 else "\n\nNext " for number in range(1, 4_000)]
    there = house(["The first paragraph.\n\nAnd ", gate, *pieces, "end."])
    one = tab(there.address())
    one.say("tell me everything")
    expect(one.answers.locator("p")).to_have_count(2)
    one.page.evaluate("document.querySelector('.answer p').mine = true")
    gate.open()
    expect(one.answers).to_contain_text("word3999 end.")
    assert one.page.evaluate("document.querySelector('.answer p').mine")
    assert one.page.evaluate(f"{_TO_THE_END} < 2")


def test_who_reads_above_is_not_pulled_down(house: MakeHouse, tab: MakeTab) -> None:
    """Scrolled away from the end, the page stays where it is, and a button leads to what is new."""
    gate = Gate()
    there = house(["line\n\n" * 60, gate, "and more"])
    one = tab(there.address())
    one.say("much")
    expect(one.answers.locator("p")).to_have_count(60)
    one.page.locator("#log").hover()
    one.page.mouse.wheel(0, -900)
    wait_until(lambda: one.page.evaluate(f"{_TO_THE_END} > 500"))
    before = one.page.evaluate("document.getElementById('log').scrollTop")
    gate.open()
    expect(one.answers).to_contain_text("and more")
    assert one.page.evaluate("document.getElementById('log').scrollTop") == before
    one.button("Jump to latest").click()
    expect(one.answers.get_by_text("and more")).to_be_in_viewport()


def test_events_are_put_together_from_any_pieces(page: Page) -> None:
    """However a stream is cut, the same events come out, once each and in order."""
    stream = "".join(f'id: {n}\nevent: x\ndata: {{"seq":{n},"t":"a\\n\\nb é"}}\n\n' for n in range(1, 6))
    stream = "retry: 1000\n\n" + stream.replace("id: 3", ": \n\nid: 3")
    wrong = page.evaluate(
        """async (stream) => {
          const { Parser } = await import("/page/stream.js");
          const wrong = [];
          for (let size = 1; size <= stream.length; size += 1) {
            const parser = new Parser(), found = [];
            for (let at = 0; at < stream.length; at += size) found.push(...parser.take(stream.slice(at, at + size)));
            if (found.map((event) => event.seq).join() !== "1,2,3,4,5") wrong.push(size);
          }
          return wrong;
        }""",
        stream,
    )
    assert wrong == []


def test_an_event_that_comes_again_changes_nothing(page: Page) -> None:
    """Events are told apart by their numbers: one that was seen is passed over, and a new log begins anew."""
    texts = page.evaluate(
        """async () => {
          const { SessionDisplay } = await import("/page/session_view.js");
          const state = new SessionDisplay();
          const event = (seq, type, rest) => ({ seq, time: seq, session: "s", turn: "t", data: { type, ...rest } });
          const said = (seq, text) => event(seq, "text.delta", { text });
          const log = [event(1, "turn.started", { model: "m" }), said(2, "a"), said(3, "b")];
          const text = () => state.turns.map((turn) => turn.items.map((item) => item.text).join("")).join("|");
          for (const each of [...log, log[1], log[2]]) state.apply(each);
          const first = text();
          for (const each of log.slice(0, 2)) state.apply(each);
          return [first, text()];
        }"""
    )
    assert texts == ["ab", "a"]


def test_a_stream_is_live_when_all_that_had_happened_has_come(page: Page) -> None:
    """The gateway says how many events there are; what comes before the last of them is history, not news."""
    heard = page.evaluate(
        """async () => {
          const { EventStream } = await import("/page/stream.js");
          const heard = [];
          let send;
          const body = new ReadableStream({ start: (stream) => { send = stream; } });
          const api = { events: async () => new Response(body, { headers: { "Halter-Last-Event": "2" } }) };
          const stream = new EventStream(api, "s", {
            onEvents: (events) => heard.push(...events.map((each) => each.seq)),
            onState: (state) => heard.push(state),
            onClock: () => {},
          });
          const seen = async (what) => { while (!heard.includes(what)) await new Promise((go) => setTimeout(go)); };
          stream.run();
          for (const seq of [1, 2, 3]) {
            await seen(seq === 1 ? "joining" : seq === 2 ? 1 : "live");
            send.enqueue(new TextEncoder().encode(`data: {"seq":${seq}}\\n\\n`));
          }
          await seen(3);
          stream.close();
          return heard;
        }"""
    )
    assert heard == ["joining", 1, 2, "live", 3]


def test_a_long_session_is_drawn_from_its_end(house: MakeHouse, browser: Browser) -> None:
    """Nobody sees the first turns pass by; those before the last are drawn later, all of them, in their order."""
    store = MemoryStore()
    with Agent(ScriptedModel(*["Answer."] * 400)).session("long", store) as session:
        for number in range(400):
            session.run(f"Message {number}.")
    context = context_of(browser)
    opened = context.new_page()
    opened.add_init_script(
        """new MutationObserver((_, self) => {
          const shown = [...document.querySelectorAll(".turn")];
          if (!shown.length) return;
          self.disconnect();
          window.first = shown.map((each) => each.textContent);
        }).observe(document, { subtree: true, childList: true });
        // After a second the page draws what has come. On a busy machine that is not yet the end of the session.
        const wait = window.setTimeout;
        window.setTimeout = (act, pause, ...given) => wait(act, pause === 1_000 ? 600_000 : pause, ...given);"""
    )
    opened.goto(house(store=store).address("long"))
    expect(opened.locator(".turn")).to_have_count(400)
    first = opened.evaluate("first")
    assert "Message 399." in first[-1]
    assert len(first) < 400
    assert opened.locator(".message p").all_text_contents() == [f"Message {number}." for number in range(400)]
    expect(opened.locator("article.turn .undo:visible")).to_have_count(1)
    expect(opened.locator("article.turn").last.get_by_role("button", name="Undo")).to_be_visible()
    context.close()
