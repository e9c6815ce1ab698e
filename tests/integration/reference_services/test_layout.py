"""Reading order, from rectangles only."""

import math

from lucius.reference_services.layout import TextBox, deskew, estimate_skew, text_of


def line(left: float, top: float, text: str, width: float = 300, height: float = 20) -> TextBox:
    return TextBox(left, top, left + width, top + height, text)


def test_boxes_of_a_row_are_read_from_left_to_right_in_any_order() -> None:
    assert (
        text_of([line(400, 2, "world", 80), line(0, 0, "Hello", 80), line(0, 30, "again", 80)]) == "Hello world\nagain"
    )


def test_paragraphs_are_separated_by_a_blank_line() -> None:
    assert text_of([line(0, 0, "one"), line(0, 25, "two"), line(0, 80, "three")]) == "one\ntwo\n\nthree"


def test_columns_of_prose_are_read_one_after_the_other() -> None:
    left = [line(0, 40 + 30 * number, f"left {number}") for number in range(4)]
    right = [line(340, 40 + 30 * number, f"right {number}") for number in range(4)]
    title = line(0, 0, "Title", 640)
    said = text_of([*right, title, *left]).split("\n")
    assert [part for part in said if part] == ["Title", *(p.text for p in left), *(p.text for p in right)]


def test_rows_of_a_table_stay_together() -> None:
    cells = [("Pump", "1,240"), ("Valve", "86"), ("Seal", "12"), ("Bolt", "1")]
    pieces = [
        piece
        for number, (name, price) in enumerate(cells)
        for piece in (line(0, 30 * number, name, 90), line(340, 30 * number, price, 60))
    ]
    assert text_of(pieces) == "Pump 1,240\nValve 86\nSeal 12\nBolt 1"


def test_page_without_text_is_empty() -> None:
    assert text_of([]) == ""
    assert estimate_skew([]) == 0.0


def test_thousand_rows_are_read() -> None:
    assert text_of([line(0, 30 * number, "x") for number in range(1000)]).count("\n") == 999


def test_skewed_page_is_deskewed() -> None:
    angle = 0.03

    def turned(x: float, y: float) -> tuple[float, float]:
        return x * math.cos(angle) - y * math.sin(angle), x * math.sin(angle) + y * math.cos(angle)

    def quad(left: float, top: float, width: float) -> list[tuple[float, float]]:
        corners = ((left, top), (left + width, top), (left + width, top + 20), (left, top + 20))
        return [turned(x, y) for x, y in corners]

    quads = [quad(0, 0, 1000), quad(0, 24, 300), quad(700, 24, 300), quad(0, 48, 1000)]
    assert math.isclose(estimate_skew(quads), angle, abs_tol=1e-6)
    pieces = [deskew(found, estimate_skew(quads), text) for found, text in zip(quads, "abcd", strict=True)]
    assert text_of(pieces) == "a\nb c\nd"
    assert math.isclose(pieces[2].left, 700, abs_tol=0.01)
