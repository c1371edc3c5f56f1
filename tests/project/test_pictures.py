"""Text in the pictures of docs/ can be read, on light pages and on dark ones, and the pictures follow the switch of the pages."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image

PICTURES = sorted((Path(__file__).parent.parent.parent / "docs").glob("*.svg"))
LEAST = 4.5  # of WCAG 2.2, level AA
# What mkdocs-material has behind a page.
GROUNDS = {"light": [255, 255, 255], "dark": [30, 33, 41]}

pytestmark = [
    pytest.mark.xdist_group("site"),
    pytest.mark.unsanitized(reason="a browser does not start with the sanitizers in it"),
]

# Each text with its colour and with what is drawn below its middle. matplotlib draws text as shapes, in groups.
TEXTS = """(ground) => {
    const texts = "text, g[id^=text_]", shapes = "rect, path, polygon, ellipse, circle";
    const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
    return [...document.querySelectorAll(texts)].map((text) => {
        const { x, y, width, height, right, bottom } = text.getBoundingClientRect();
        if (x < 0 || y < 0 || right > innerWidth || bottom > innerHeight) throw new Error("a text is outside of the window");
        let under = ground;
        for (const shape of document.elementsFromPoint(x + width / 2, y + height / 2).reverse()) {
            const { fill, fillOpacity } = getComputedStyle(shape);
            if (!shape.matches(shapes) || shape.closest(texts) || fill === "none") continue;
            const [red, green, blue, alpha = 1] = numbers(fill);
            under = [red, green, blue].map((each, i) => each * alpha * fillOpacity + under[i] * (1 - alpha * fillOpacity));
        }
        return [text.textContent.trim(), numbers(getComputedStyle(text.querySelector("use") ?? text).fill), under];
    });
}"""


def luminance(color):
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in (c / 255 for c in color)]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear))


def contrast(one, other):
    dark, light = sorted([luminance(one), luminance(other)])
    return (light + 0.05) / (dark + 0.05)


def contrasts(browser, path, scheme):
    page = browser.new_page(color_scheme=scheme, offline=True, viewport={"width": 1300, "height": 1000})
    page.goto(path.as_uri())
    found = [(text, contrast(ink, under)) for text, ink, under in page.evaluate(TEXTS, GROUNDS[scheme])]
    page.close()
    return found


@pytest.mark.parametrize("scheme", GROUNDS)
@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_text_has_contrast(browser, path, scheme):
    found = contrasts(browser, path, scheme)
    assert len(found) >= 10
    assert [each for each in found if each[1] < LEAST] == []


@pytest.mark.parametrize(
    ("drawn", "light", "dark"),
    [
        ('<text fill="#000000">x</text>', 21, 1.305),
        ('<text fill="#808790">x</text>', 3.62, 4.47),
        ('<rect x="-9" y="-9" width="99" height="99" fill="#ffffff"/><text fill="#000000">x</text>', 21, 21),
        ('<rect x="-9" y="-9" width="99" height="99" fill="#ffffff" fill-opacity="0"/><text>x</text>', 21, 1.305),
        ('<path d="M-9 0H99" style="fill: none; stroke: #000000"/><text fill="#ffffff">x</text>', 1, 16.1),
    ],
    ids=["black", "grey", "on white", "on glass", "across a line"],
)
def test_what_is_measured(browser, tmp_path, drawn, light, dark):
    path = tmp_path / "text.svg"
    path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg"><g transform="translate(20 40)">{drawn}</g></svg>')
    for scheme, ratio in (("light", light), ("dark", dark)):
        assert contrasts(browser, path, scheme) == [("x", pytest.approx(ratio, rel=0.01))]


INK = {"light": (0x59, 0x61, 0x6B), "dark": (0xAA, 0xB2, 0xBD)}  # of text without a ground, in pictures of the project


@pytest.mark.parametrize("system", GROUNDS)
def test_pictures_follow_the_switch_of_the_page(opened, system):
    """Also where the system has the other scheme."""
    page = opened(
        color_scheme=system, device_scale_factor=3
    )  # strokes wide enough for a pixel of the very ink, wherever a picture lies
    other = {"light": "dark", "dark": "light"}[system]
    for name in ("benchmarks", "accuracy", "how-it-decides", "architecture"):
        page.goto(f"http://docs.invalid/{name}.html")
        for scheme in (system, other, system):
            if page.locator("body").evaluate("body => getComputedStyle(body).colorScheme") != scheme:
                page.locator("label[for^=__palette]:visible").click()
            ground = page.locator("body").evaluate("body => getComputedStyle(body).backgroundColor")
            assert ground == f"rgb({', '.join(map(str, GROUNDS[scheme]))})"
            for picture in page.locator('.md-content img[src$=".svg"]').all():
                colors = {
                    color for _, color in Image.open(io.BytesIO(picture.screenshot())).convert("RGB").getcolors(1 << 24)
                }
                assert {each for each, ink in INK.items() if ink in colors} == {scheme}, name
