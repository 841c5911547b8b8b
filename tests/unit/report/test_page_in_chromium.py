"""The report page in a real browser: charts drawn, keyboard, no request, no error, and no harm from hostile texts."""

import itertools
import json
import re
import shutil

import pytest
from report_scene import HOSTILE, LONG_LINE, write_run

from mathrl_ray.report.page import write_page
from mathrl_ray.report.run_data import read_runs

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WIDTHS = (360, 1280)
HOSTILE_NAME = "<img src=x onerror=window.harmed=5> \u202e$x_{$ \u8fd0\u884c"
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH"),
    pytest.mark.timeout(120),
]


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=60_000)
        yield started
        started.close()


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    """Three runs, one of them at work, with hostile texts everywhere."""
    folder = tmp_path_factory.mktemp("runs")
    paths = [write_run(folder / HOSTILE_NAME), write_run(folder / "b", seed=1), write_run(folder / "c", seed=2, is_finished=False)]
    write_page(read_runs(paths), folder / "report.html")
    return folder / "report.html"


class Opened:
    """A page with all that it asked for and complained of."""

    def __init__(self, browser, file, width=1280, **options):
        self.page = browser.new_page(viewport={"width": width, "height": 900}, **options)
        self.page.set_default_timeout(20_000)
        self.requests, self.complaints = [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: (self.complaints.append("dialog"), dialog.dismiss()))
        self.page.goto(file.as_uri())


@pytest.fixture
def opened(browser, page_file):
    held = Opened(browser, page_file)
    yield held
    held.page.close()


def open_all_details(page):
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    page.wait_for_timeout(100)


def test_nothing_is_requested_and_nothing_is_complained_of(opened, page_file):
    page = opened.page
    open_all_details(page)
    page.get_by_role("radio", name="generated tokens").check()
    page.locator("input[name=run]").first.uncheck()
    page.mouse.wheel(0, 5000)
    page.wait_for_timeout(200)
    assert opened.requests == [page_file.as_uri()]
    assert opened.complaints == []


def test_every_chart_is_drawn_on_every_axis(opened):
    page = opened.page
    for axis in ("step", "generated_tokens", "wall_clock_s"):
        page.locator(f"input[name=axis][value={axis}]").check()
        boxes = page.evaluate(
            """() => [...document.querySelectorAll("figure.chart")].map((figure) => {
                const svg = figure.querySelector(".form:not([hidden]) svg.figure");
                const box = svg.getBoundingClientRect();
                const drawn = [...svg.querySelectorAll("path, use")].filter((each) => each.getBoundingClientRect().width > 0);
                return [figure.dataset.chart, box.width, box.height, drawn.length, svg.querySelectorAll(".run path, .run use").length];
            })"""
        )
        assert len(boxes) >= 15
        for name, width, height, num_drawn, num_of_runs in boxes:
            assert min(width / 200, height / 60, num_drawn / 4) >= 1, name
            assert num_of_runs > 0 or name.startswith("lanes"), name


def test_the_ids_of_the_page_are_its_own(opened):
    repeated = opened.page.evaluate(
        """() => { const ids = [...document.querySelectorAll("[id]")].map((each) => each.id);
                   return ids.filter((id, at) => ids.indexOf(id) !== at); }"""
    )
    assert repeated == []


def test_tab_reaches_every_control_and_every_chart(opened):
    page = opened.page
    wanted = page.evaluate(
        """() => { const all = [...document.querySelectorAll("a[href], input, summary, .drawing, .scroll")];
                   const seen = all.filter((each) => each.checkVisibility({ contentVisibilityAuto: true }) && each.getClientRects().length
                       && !(each.type === "radio" && !each.checked));
                   seen.forEach((each, at) => { each.dataset.stop = at; }); return seen.length; }"""
    )
    reached = set()
    for _ in range(wanted + 40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.dataset.stop ?? ''"))
    assert reached >= {str(number) for number in range(wanted)}


def test_a_focused_chart_shows_where_it_is(opened):
    chart = opened.page.locator("figure[data-chart=reward] .drawing")
    chart.focus()
    opened.page.keyboard.press("ArrowRight")  # a key: only then is the focus shown
    assert chart.evaluate("(each) => getComputedStyle(each).outlineStyle") == "solid"


def test_arrow_keys_walk_the_readout_and_home_and_end_go_to_its_ends(opened):
    page = opened.page
    chart, readout = page.locator("figure[data-chart=reward] .drawing"), page.locator("figure[data-chart=reward] .readout")
    assert readout.get_attribute("aria-live") == "polite"
    chart.focus()
    texts = []
    for key in ("Home", "ArrowRight", "ArrowRight", "ArrowLeft", "End", "ArrowRight"):
        page.keyboard.press(key)
        texts.append(readout.inner_text())
    assert [text.split(":")[0] for text in texts] == [f"grpo, step {step}" for step in (1, 2, 3, 2, 20, 20)]
    # the second run's first step: 0.5 + 0.3 sin(1/3 + 1) = 0.5 + 0.3 * 0.97194 = 0.79158
    assert "b" in texts[0]
    assert "0.7916" in texts[0]
    assert page.locator("figure[data-chart=reward] .cursor").is_visible()


def test_a_value_in_the_readout_is_of_the_named_step_or_says_of_which(browser, tmp_path):
    """1,000 steps are thinned to 400 points a line, each line in its own way. Here a format reward is a thousandth of its step."""
    folder = write_run(tmp_path / "long", num_steps=1000, is_finished=False)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    told = [{**row, "format_reward_mean": row["step"] / 1000} if "loss" in row else row for row in rows]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in told))
    write_page(read_runs([folder]), tmp_path / "report.html")
    held = Opened(browser, tmp_path / "report.html")
    held.page.locator("figure[data-chart=reward] .drawing").focus()
    others = 0
    for _ in range(40):
        held.page.keyboard.press("ArrowRight")
        text = held.page.locator("figure[data-chart=reward] .readout").inner_text()
        named, value, other = re.search(r"step ([\d,]+):.* format: ([\d.]+)(?: \(step ([\d,]+)\))?", text).groups()
        assert float(value) == int(other or named) / 1000, text
        others += other is not None
    assert 0 < others < 40
    held.page.close()


def test_the_mouse_and_the_finger_move_the_readout(browser, page_file):
    held = Opened(browser, page_file, width=360, has_touch=True)
    svg = held.page.locator("figure[data-chart=entropy] .form:not([hidden]) svg")
    svg.scroll_into_view_if_needed()
    box = svg.bounding_box()
    readout = held.page.locator("figure[data-chart=entropy] .readout")
    held.page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + box["height"] / 2)
    moved = readout.inner_text()
    held.page.touchscreen.tap(box["x"] + box["width"] * 0.3, box["y"] + box["height"] / 2)
    assert "step" in moved
    assert "step" in readout.inner_text()
    assert moved != readout.inner_text()
    held.page.close()


def test_every_chart_has_a_readout_by_keyboard(opened):
    page = opened.page
    for chart in page.locator("figure.chart").all():
        chart.locator(".drawing").focus()
        page.keyboard.press("Home")
        assert chart.locator(".readout").inner_text().strip(), chart.get_attribute("data-chart")


def test_the_axis_switches_all_curves_and_says_so(opened):
    page = opened.page
    page.locator("input[name=axis][value=step]").focus()
    page.keyboard.press("ArrowRight")  # radio buttons: the next one
    shown = page.eval_on_selector_all("#section-curves .form:not([hidden])", "(forms) => forms.map((each) => each.dataset.axis)")
    assert set(shown) == {"generated_tokens"}
    assert len(shown) >= 10
    assert "generated tokens" in page.locator("#said").inner_text()
    page.locator("figure[data-chart=reward] .drawing").focus()
    page.keyboard.press("Home")
    assert "1,000 tokens" in page.locator("figure[data-chart=reward] .readout").inner_text()


def test_a_checkbox_hides_its_run_everywhere(opened):
    page = opened.page
    visible = "(all) => all.filter((each) => getComputedStyle(each).display !== 'none').length"
    before = [page.eval_on_selector_all(f"#section-curves svg.figure .run{run}", visible) for run in (0, 1)]
    page.locator("input[name=run]").nth(1).uncheck()
    assert before[1] > 10
    assert [page.eval_on_selector_all(f"#section-curves svg.figure .run{run}", visible) for run in (0, 1)] == [before[0], 0]
    page.locator("figure[data-chart=loss] .drawing").focus()
    page.keyboard.press("Home")
    assert "b:" not in page.locator("figure[data-chart=loss] .readout").inner_text()
    page.locator("input[name=run]").nth(1).check()
    assert page.eval_on_selector_all("#section-curves svg.figure .run1", visible) == before[1]


def test_the_table_under_a_chart_holds_its_numbers(opened):
    page = opened.page
    page.locator("figure[data-chart=grad_norm] details.numbers summary").click()
    table = page.locator("figure[data-chart=grad_norm] details.numbers table")
    table.locator("tbody tr").first.wait_for(state="attached")  # the browser says later that it was opened
    assert table.locator("tbody tr").count() >= 60  # 20 steps of three runs, and of what a group has
    assert table.locator("caption").count() == 1
    assert table.locator("th[scope=col]").count() == 10
    assert table.locator("tbody th[scope=row]").count() == table.locator("tbody tr").count()


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_makes_the_page_wider_than_its_window(browser, page_file, width):
    held = Opened(browser, page_file, width=width)
    assert held.page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    open_all_details(held.page)
    assert held.page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    assert held.complaints == []
    held.page.close()


def test_hostile_texts_do_no_harm_and_are_shown_as_text(opened):
    page = opened.page
    open_all_details(page)
    assert page.evaluate("window.harmed") is None
    assert page.locator("script").count() == 2
    assert page.locator("main img, main b:not(.readout b), h1 img, iframe, object").count() == 0
    text = page.evaluate("document.body.innerText")
    for hostile in (*HOSTILE[:7], HOSTILE[9]):
        assert hostile in text
    assert "nul␀ bell␇ escape␛[31m" in text
    assert "⟦U+202E⟧right to left⟦U+202C⟧" in text
    assert "⟦U+200B⟧widthless ⟦U+2028⟧line" in text
    assert "49" not in page.locator("#section-examples").inner_text()  # {{ 7 * 7 }} was not worked out
    assert page.locator("h1").inner_text() == "3 runs"
    assert "<img src=x onerror=window.harmed=5>" in text


def test_a_line_of_a_hundred_thousand_characters_is_cut_and_wraps(opened):
    page = opened.page
    open_all_details(page)
    cut = page.locator(".cut", has_text="characters left out").first
    # the response: the line of 100,007 characters with " </think> <answer> ", 200 of it, and " </answer>": 19 + 200 + 10 more
    assert f"of {len(LONG_LINE) + 229:,} characters" in page.evaluate("document.body.textContent")
    box = cut.locator("xpath=..").bounding_box()
    assert box["width"] < 1280


def test_headings_landmarks_and_language_are_there(opened):
    page = opened.page
    assert page.locator("html").get_attribute("lang") == "en"
    assert page.locator("main").count() == 1
    assert page.locator("h1").count() == 1
    levels = page.eval_on_selector_all("h1, h2, h3, h4, h5", "(all) => all.map((each) => Number(each.tagName[1]))")
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert page.locator("table:not(:has(caption))").count() == 0
    assert page.locator("th:not([scope])").count() == 0
    assert page.eval_on_selector_all("svg.figure", "(all) => all.every((each) => each.getAttribute('role') === 'img')")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_their_background(browser, page_file, scheme):
    held = Opened(browser, page_file, color_scheme=scheme)
    open_all_details(held.page)
    too_faint = held.page.evaluate(
        """() => {
            const light = (text) => {
                const [r, g, b] = text.match(/[\\d.]+/g).map(Number)
                    .map((c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
                return 0.2126 * r + 0.7152 * g + 0.0722 * b;
            };
            const behind = (each) => { for (; each; each = each.parentElement) {
                const colour = getComputedStyle(each).backgroundColor;
                if (!/, 0\\)$/.test(colour)) return colour; } return "rgb(255, 255, 255)"; };
            const words = "p, th, td, dt, dd, pre, summary, a, legend, label, h1, h2, h3, h4, h5, figcaption, .state, .cut";
            return [...document.querySelectorAll(words)]
                .filter((each) => each.textContent.trim() && each.checkVisibility())
                .map((each) => { const [one, other] = [light(getComputedStyle(each).color), light(behind(each))].sort((a, b) => b - a);
                                 return [(one + 0.05) / (other + 0.05), each.tagName + "." + each.className]; })
                .filter(([ratio]) => ratio < 4.5);
        }"""
    )
    assert too_faint == []
    held.page.close()


def test_the_charts_are_there_without_scripts(browser, page_file):
    held = Opened(browser, page_file, java_script_enabled=False)
    assert held.page.locator("figure[data-chart=reward] .form >> nth=0").is_visible()
    assert held.page.locator("noscript").count() == 1
    assert held.requests == [page_file.as_uri()]
    held.page.close()
