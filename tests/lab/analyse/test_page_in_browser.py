"""What a real browser makes of the explorer page: pointer, keyboard, filters, sizes of screens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from browser import Browser
from page_runs import HOSTILE, big_page, model, run_of

import gatewise as gw
from gatewise.lab.analyse import map_gates
from gatewise.lab.analyse.page import PageRun, page


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    made = Browser(tmp_path_factory.mktemp("profile"))
    yield made
    made.driver.quit()


def show(browser: Browser, folder: Path, text: str) -> None:
    path = folder / "report.html"
    path.write_text(text, encoding="utf-8")
    browser.width(1280)
    browser.open(path)


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Browser:
    show(browser, tmp_path, page([run_of(model(), notes=["<b>not bold</b>"])]))
    return browser


POINT = """
const [layer, at] = arguments;
const field = document.querySelector(`.field[data-layer="${layer}"]`);
const box = field.getBoundingClientRect();
field.dispatchEvent(new PointerEvent("pointermove", {clientX: box.left + 16 + 22 * at + 11, clientY: box.top + 6}));
"""
CHANGE = """
const select = document.getElementById(arguments[0]);
select.value = arguments[1];
select.dispatchEvent(new Event("change"));
"""


def keys(browser: Browser, layer: str, *names: str) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    field = browser.driver.find_element(By.CSS_SELECTOR, f'.field[data-layer="{layer}"]')
    for name in names:
        field.send_keys(getattr(Keys, name))
    browser.settle()


def chosen(browser: Browser) -> tuple[str | None, str | None]:
    browser.settle()
    found = browser.run('const d = document.getElementById("detail").dataset; return [d.layer, d.neuron]')
    return found[0], found[1]


def test_it_opens_from_disk_quietly(opened: Browser) -> None:
    """No message in the console, and nothing is asked for: not even an icon."""
    opened.settle()
    assert opened.complaints() == []
    assert [url for url in opened.requests() if url != "data:,"] == [opened.driver.current_url]
    assert opened.driver.title == "one run · gatewise"
    assert "3.00x" in opened.text("#facts")
    assert len(opened.run('return document.querySelectorAll(".chart > svg path.line")')) == 1 + 1 + 2 + 2


def test_the_whole_network_comes_first(opened: Browser) -> None:
    """A picture a layer, removed neurons grey at its right end; and a neuron is chosen already."""
    labels = opened.run(
        'return [...document.querySelectorAll(".picture canvas")].map((c) => c.getAttribute("aria-label"))'
    )
    assert labels[0] == "rnn.l0: 5 of 6 neurons and 8 of 24 gates are left"
    colour = """
        const [at, gate] = arguments;
        const canvas = document.querySelector(".picture canvas");
        const pen = canvas.getContext("2d");
        return [...pen.getImageData(18 * at + 9, 12 * gate + 6, 1, 1).data].slice(0, 3);
    """
    assert opened.run(colour, 0, 0) == [0x00, 0x72, 0xB2]  # neuron 0 is all live: i in its blue
    assert opened.run(colour, 5, 0) == [0xDC, 0xDF, 0xE3]  # neuron 5 is removed
    assert chosen(opened) == ("rnn.l0", "0")


def test_what_spans_decades_has_labelled_ticks(browser: Browser, tmp_path: Path) -> None:
    metrics = [{"epoch": k, "compression": 10.0 ** (k - 1)} for k in (1, 2, 3, 4)]
    run = run_of(model(), metrics=metrics, missing="without the data: no words")
    show(browser, tmp_path, page([run]))
    said = browser.run('return [...document.querySelectorAll(".chart text")].map((t) => t.textContent)')
    assert [tick for tick in said if tick in ("1", "10", "100", "1,000")][:4] == ["1", "10", "100", "1,000"]
    assert browser.text("#notes") == "without the data: no words"


def test_hostile_words_are_text(opened: Browser) -> None:
    """They are shown as they are spelled, and nothing in them runs or becomes an element."""
    seen = ""
    for at in range(5):
        opened.run(POINT, "rnn.l0", at)
        seen += opened.text("#detail")
    for at in range(6):
        opened.run(POINT, "rnn.l1", at)
        seen += opened.text("#detail")
    assert HOSTILE[1] in seen
    assert all(word in seen for word in HOSTILE[:5])
    assert opened.run("return window.pwned") is None
    assert opened.run('return document.querySelectorAll("img, b, #detail script").length') == 0
    assert "<b>not bold</b>" in opened.text("#notes")
    assert opened.complaints() == []


def test_pointing_shows_that_neuron(opened: Browser) -> None:
    """In the order of patterns, ifgo comes first, then go, then the two with o, then the one without."""
    for at, neuron in enumerate((0, 4, 1, 3, 2)):
        opened.run(POINT, "rnn.l0", at)
        assert chosen(opened) == ("rnn.l0", str(neuron))
    text = opened.text("#detail")
    assert "constant" in text
    assert "no live gate" in text
    opened.run(POINT, "rnn.l0", 1)
    opened.settle()
    layer = map_gates(model())["rnn.l0"]
    rows = opened.run(
        'return [...document.querySelectorAll("#detail table.gates tr")].slice(1)'
        ".map((row) => [...row.children].map((cell) => cell.textContent))"
    )
    assert [row[1] for row in rows] == ["constant", "constant", "live", "live"]
    assert [float(row[2]) for row in rows[:2]] == pytest.approx(layer.constant[:2, 4].tolist(), rel=0.01)
    assert [float(row[3]) for row in rows] == pytest.approx([(6 * k + 4) / 8 - 1 for k in range(4)], rel=0.01)


def test_a_filter_before_the_next_frame(opened: Browser) -> None:
    """The neuron that was to be shown is not chosen any more when the frame comes; the first one is, as at first."""
    assert chosen(opened) == ("rnn.l0", "0")
    both = f"(function() {{{POINT}}})('rnn.l0', 1); (function() {{{CHANGE}}})('sort', 'gates');"
    opened.run(both)
    assert chosen(opened) == ("rnn.l0", "2")
    assert opened.complaints() == []


def test_a_real_pointer_hovers_and_clicks(opened: Browser) -> None:
    """Moved by the browser's own input, not by an event that the test makes up."""
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By

    field = opened.driver.find_element(By.CSS_SELECTOR, '.field[data-layer="rnn.l0"]')
    opened.run("arguments[0].scrollIntoView({block: 'center'})", field)
    half = opened.run(
        "const box = arguments[0].getBoundingClientRect(); return [box.width / 2, box.height / 2]", field
    )
    places = [(round(16 + 22 * at + 11 - half[0]), round(10 - half[1])) for at in (1, 3)]
    ActionChains(opened.driver).move_to_element_with_offset(field, *places[0]).perform()
    assert chosen(opened) == ("rnn.l0", "4")
    ActionChains(opened.driver).click().move_to_element_with_offset(field, *places[1]).perform()
    assert chosen(opened) == ("rnn.l0", "4")  # the click holds it
    ActionChains(opened.driver).click().perform()
    assert chosen(opened) == ("rnn.l0", "3")


def test_the_keyboard_reaches_every_neuron(opened: Browser) -> None:
    keys(opened, "rnn.l0", "HOME")
    assert chosen(opened) == ("rnn.l0", "0")
    keys(opened, "rnn.l0", "ARROW_RIGHT", "ARROW_RIGHT")
    assert chosen(opened) == ("rnn.l0", "1")
    keys(opened, "rnn.l0", "END")
    assert chosen(opened) == ("rnn.l0", "2")
    keys(opened, "rnn.l0", "ARROW_RIGHT")  # there is no further one
    assert chosen(opened) == ("rnn.l0", "2")
    assert opened.text("#status") == "rnn.l0, neuron 2, no live gate, constant"


def test_enter_holds_and_escape_lets_go(opened: Browser) -> None:
    keys(opened, "rnn.l0", "HOME", "ENTER")
    opened.run(POINT, "rnn.l0", 2)
    assert chosen(opened) == ("rnn.l0", "0")
    keys(opened, "rnn.l0", "ESCAPE")
    opened.run(POINT, "rnn.l0", 2)
    assert chosen(opened) == ("rnn.l0", "1")


def test_sorting_changes_the_order(opened: Browser) -> None:
    orders = {}
    for order in ("number", "gates", "reach"):
        opened.run(CHANGE, "sort", order)
        orders[order] = []
        for at in range(5):
            opened.run(POINT, "rnn.l0", at)
            orders[order].append(int(chosen(opened)[1] or -1))
    reach = run_of(model()).lags["rnn.l0"].reach
    assert orders["number"] == [0, 1, 2, 3, 4]
    assert orders["gates"] == [2, 1, 3, 4, 0]
    assert orders["reach"][:2] == reach.argsort(descending=True, stable=True)[:2].tolist()


def test_filters_change_what_is_shown(opened: Browser) -> None:
    shown = """return [...document.querySelectorAll(".field")].map((field) => Number(field.dataset.shown))"""
    assert opened.run(shown) == [5, 6]
    opened.run("""document.querySelector('.chip[data-pattern="o"]').click()""")
    assert opened.run(shown) == [2, 0]
    assert "2 shown" in opened.text(".map .counts")
    opened.run(POINT, "rnn.l0", 0)
    assert chosen(opened) == ("rnn.l0", "1")
    opened.run("""document.querySelector('.chip[data-pattern="go"]').click()""")
    assert opened.run(shown) == [3, 0]
    opened.run(CHANGE, "kind", "short")
    assert opened.run(shown) == [2, 0]


def test_the_lag_curve_is_the_neurons_own(opened: Browser) -> None:
    norms = run_of(model()).lags["rnn.l0"].norms
    for at, neuron in enumerate((0, 4, 1)):
        opened.run(POINT, "rnn.l0", at)
        opened.settle()
        first = float(opened.run('return document.querySelector("#detail .lag").dataset.first'))
        assert first == pytest.approx(norms[0, neuron].log10().item(), abs=0.03)


def test_lags_that_few_sequences_reach_are_faint(browser: Browser, tmp_path: Path) -> None:
    net = model()
    lags = run_of(net).lags
    few = {name: replace(layer, sequences=torch.tensor([20] * 6 + [1] * 3)) for name, layer in lags.items()}
    for name, given in (("all", lags), ("few", few)):
        show(browser, tmp_path, page([run_of(net, lags=given)]))
        browser.run(POINT, "rnn.l0", 0)
        veils = "#detail .lag rect.few"
        browser.settle()
        assert browser.run(f"return document.querySelectorAll('{veils}').length") == (name == "few")
        assert ("faint: fewer than 2 sequences" in browser.text("#detail .lag .keys")) == (name == "few")
        assert browser.complaints() == []


def test_counts_after_the_cut_and_those_of_the_paper_are_told_apart(browser: Browser, tmp_path: Path) -> None:
    for net, end in ((model(), "gates live"), (gw.compress(model()), "gates live · after the cut")):
        show(browser, tmp_path, page([run_of(net)]))
        assert browser.text(".map .counts").endswith(end)
        titles = browser.run('return [...document.querySelectorAll(".chart h3")].map((h) => h.textContent)')
        assert titles[2:] == ["neurons, as the paper counts", "live gates, as the paper counts"]


def test_a_layer_without_neurons_is_told(browser: Browser, tmp_path: Path) -> None:
    net = model()
    with torch.no_grad():
        net.rnn.weight_ih_l1.zero_()
        net.rnn.weight_hh_l0.zero_()
    show(browser, tmp_path, page([PageRun("empty", net)]))
    assert browser.text(".map .counts") == "0 of 6 neurons kept · 0 of 24 gates live"
    assert browser.run("return document.getElementById('training').hidden")
    keys(browser, "rnn.l0", "ARROW_RIGHT", "ENTER")
    assert browser.text("#detail").startswith("rnn.l1 · neuron 0")  # the other layer has some
    assert browser.complaints() == []


def test_two_runs_stand_side_by_side(browser: Browser, tmp_path: Path) -> None:
    other = model()
    with torch.no_grad():
        other.rnn.weight_ih_l0.fill_(0.1)
    show(browser, tmp_path, page([run_of(model()), run_of(other, "<i>second</i>")]))
    boxes = browser.run(
        'return [...document.querySelectorAll(".map")].map((m) => [m.offsetLeft, m.offsetTop])'
    )
    assert len(boxes) == 4
    assert boxes[0][1] == boxes[1][1]
    assert boxes[0][0] < boxes[1][0]
    assert browser.text("#title") == "one run and <i>second</i>"
    assert browser.complaints() == []


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_scrolls_one_way_only(opened: Browser, dark: bool) -> None:
    opened.width(400, 800, dark)
    opened.driver.refresh()
    keys(opened, "rnn.l1", "HOME", "ARROW_RIGHT")
    assert opened.run("return document.documentElement.scrollWidth") <= 400
    paper = opened.run("return getComputedStyle(document.body).backgroundColor")
    assert (int(re.findall(r"\d+", paper)[0]) < 60) == dark


def test_1500_neurons_a_layer_stay_responsive(browser: Browser, tmp_path: Path) -> None:
    """Sorting both layers, and pointing at a hundred neurons, panel included; limits are loose for slow machines."""
    show(browser, tmp_path, big_page())
    assert (
        browser.run("return [...document.querySelectorAll('.field')].map((f) => f.dataset.shown)")
        == ["1500"] * 2
    )
    sorting = browser.run("""
        const start = performance.now();
        const select = document.getElementById("sort");
        select.value = "reach";
        select.dispatchEvent(new Event("change"));
        return performance.now() - start;
    """)
    assert sorting < 1000
    browser.driver.set_script_timeout(20)
    moving = browser.driver.execute_async_script("""
        const done = arguments[0];
        const field = document.querySelectorAll(".field")[1];
        const box = field.getBoundingClientRect();
        const times = [];
        let k = 0;
        const next = () => {
            if (k === 100) { times.sort((a, b) => a - b); done([times[50], times[95]]); return; }
            const start = performance.now();
            const place = {clientX: box.left + 16 + 9 * (k % 60) + 4, clientY: box.top + 5 + 39 * (k % 7)};
            k += 1;
            field.dispatchEvent(new PointerEvent("pointermove", place));
            requestAnimationFrame(() => setTimeout(() => { times.push(performance.now() - start); next(); }));
        };
        next();
    """)
    assert moving[0] < 100  # the median, in milliseconds, with the wait for the frame
    assert moving[1] < 400
    assert browser.complaints() == []
