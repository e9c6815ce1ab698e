"""Write the sample contract that `make demo` and the tests read: four pages, one of them a scan.

python -m scripts.demo_pdf
"""

import random
import zlib
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFilter, ImageFont

SAMPLE = Path(__file__).resolve().parent.parent / "src" / "lucius" / "reference_services" / "sample" / "contract.pdf"

WIDTH, HEIGHT = 595, 842  # A4 in points
MARGIN, TOP = 64, 770
SCAN_DPI = 150
SHADES = 16


class Line(NamedTuple):
    text: str
    size: int = 11
    gap: float = 1.4
    """Space above the line, in line heights."""


def heading(text: str) -> Line:
    return Line(text, 13, 2.2)


def paragraph(*lines: str) -> list[Line]:
    return [Line(text, gap=2.0 if number == 0 else 1.4) for number, text in enumerate(lines)]


PARTIES = [
    Line("Supply Agreement No. SA-2026-0417", 18),
    *paragraph(
        "This agreement is made on 2 February 2026 between Nordvik Pumps AB, Harbour Street 12,",
        "Gothenburg (the Supplier), and Halden Waterworks GmbH, Mill Lane 4, Hamburg (the Buyer).",
    ),
    heading("1. Subject"),
    *paragraph(
        "The Supplier manufactures and delivers circulation pumps of type NP-320 to the Buyer.",
        "The Buyer takes at least 120 pumps in each contract year.",
    ),
    heading("2. Term"),
    *paragraph(
        "This agreement enters into force on 1 March 2026 and ends on 28 February 2029.",
        "It is renewed for one further year if neither party objects in writing before 30 November 2028.",
    ),
    heading("3. Prices"),
    *paragraph(
        "The price of one pump is 1,240 euros, excluding value added tax.",
        "From the hundredth pump of a contract year on, the price falls to 1,150 euros.",
        "Prices include packaging. Freight is charged at cost.",
    ),
    heading("4. Contacts"),
    *paragraph(
        "The Buyer is represented by Maria Lindqvist, head of procurement.",
        "The Supplier is represented by Jonas Weber, sales director.",
    ),
]

DELIVERY = [
    heading("5. Delivery"),
    *paragraph(
        "The Supplier delivers to the Buyer's warehouse in Bremen every Tuesday between 7 and 11 a.m.",
        "Orders are placed by the fifth working day of a month for the month after.",
        "Risk passes to the Buyer when the goods are unloaded.",
    ),
    heading("6. Payment"),
    *paragraph(
        "Invoices are payable within forty-five days of receipt by bank transfer.",
        "Overdue amounts bear interest of eight percent a year.",
    ),
    heading("7. Late delivery"),
    *paragraph(
        "For every full week of delay the Supplier pays a penalty of 0.5 percent of the order value,",
        "at most 5 percent in all. Further claims of the Buyer remain unaffected.",
    ),
    heading("8. Warranty"),
    *paragraph(
        "The Supplier repairs or replaces defective pumps free of charge for twenty-four months",
        "after delivery. The Buyer reports visible defects within ten days.",
    ),
    heading("9. Insurance"),
    *paragraph(
        "The Supplier maintains product liability insurance of at least 5,000,000 euros per event",
        "and shows the Buyer proof of it once a year.",
    ),
]

ACCEPTANCE = [
    Line("Annex A: Acceptance record", 18),
    *paragraph("Order HW-7731, first delivery under agreement SA-2026-0417."),
    *paragraph(
        "The acceptance test took place on 14 April 2026 at the plant in Gothenburg.",
        "48 pumps of type NP-320 were inspected by Ingrid Solberg of Baltic Marine Surveyors.",
        "Each pump ran for thirty minutes at a pressure of 16 bar.",
    ),
    *paragraph(
        "One pump, serial number NP-320-1027, was rejected because of a leaking shaft seal.",
        "The Supplier replaced it on 21 April 2026.",
        "The mean power draw of the accepted pumps was 310 watts.",
    ),
    *paragraph("The remaining 47 pumps were accepted without reservation."),
    *paragraph("Signed: I. Solberg, J. Weber"),
]

CLOSING = [
    heading("10. Termination"),
    *paragraph(
        "Either party may terminate this agreement with ninety days' written notice.",
        "The right to terminate at once for an important reason remains unaffected.",
    ),
    heading("11. Confidentiality"),
    *paragraph(
        "Drawings, prices and test results are confidential for five years after the agreement ends.",
        "Each party protects personal data according to the law that applies to it.",
    ),
    heading("12. Governing law and disputes"),
    *paragraph(
        "This agreement is governed by the law of Sweden.",
        "Disputes are settled by arbitration in Copenhagen. The language of the proceedings is English.",
    ),
    heading("13. Final provisions"),
    *paragraph(
        "Changes to this agreement must be made in writing and signed by both parties.",
        "If a provision is void, the others remain in force.",
    ),
    *paragraph("Gothenburg, 2 February 2026"),
    *paragraph("For the Supplier: Jonas Weber", "For the Buyer: Maria Lindqvist"),
]


class Page(NamedTuple):
    content: bytes
    image: bytes | None = None


def build() -> bytes:
    """Return the contract, whose third page is scanned."""
    return document([text_page(PARTIES), text_page(DELIVERY), image_page(scan(ACCEPTANCE)), text_page(CLOSING)])


def document(pages: list[Page], trailer: bytes = b"") -> bytes:
    """Return a PDF of these pages, with `trailer` in its trailer."""
    kids = b" ".join(b"%d 0 R" % (4 + 3 * number) for number in range(len(pages)))
    objects = [
        b"<</Type /Catalog /Pages 2 0 R>>",
        b"<</Type /Pages /Count %d /Kids [%s]>>" % (len(pages), kids),
        b"<</Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding>>",
    ]
    for number, page in enumerate(pages):
        place = 4 + 3 * number
        resources = b"/Font <</F1 3 0 R>>" + (b" /XObject <</Im1 %d 0 R>>" % (place + 2) if page.image else b"")
        box = b"/MediaBox [0 0 %d %d]" % (WIDTH, HEIGHT)
        head = b"<</Type /Page /Parent 2 0 R %s /Resources <<%s>> /Contents %d 0 R>>" % (box, resources, place + 1)
        objects += [head, _stream(b"", page.content), page.image or b"null"]
    return _file(objects, trailer)


def text_page(lines: list[Line]) -> Page:
    shown: list[bytes] = []
    place = float(TOP)
    for line in lines:
        place -= line.gap * line.size
        text = line.text.encode("cp1252").replace(b"\\", b"\\\\").replace(b"(", b"\\(").replace(b")", b"\\)")
        shown.append(b"/F1 %d Tf 1 0 0 1 %d %d Tm (%s) Tj" % (line.size, MARGIN, round(place), text))
    return Page(b"BT\n" + b"\n".join(shown) + b"\nET")


def image_page(paper: Image.Image) -> Page:
    """Return a page with only an image: greyscale, four bits per pixel."""
    rows = (paper.crop((0, y, paper.width, y + 1)).tobytes() for y in range(paper.height))
    packed = bytes(
        (left & 0xF0) | (right >> 4) for row in rows for left, right in zip(row[::2], row[1::2], strict=True)
    )
    entries = (
        b"/Type /XObject /Subtype /Image /Width %d /Height %d /ColorSpace /DeviceGray /BitsPerComponent 4"
        b" /Filter /FlateDecode " % paper.size
    )
    return Page(b"q %d 0 0 %d 0 0 cm /Im1 Do Q" % (WIDTH, HEIGHT), _stream(entries, zlib.compress(packed, 9)))


def scan(lines: list[Line]) -> Image.Image:
    """Return a page as scanned: slightly rotated, blurred, and dusty."""
    scale = SCAN_DPI / 72
    paper = Image.new("L", (round(WIDTH * scale) // 2 * 2, round(HEIGHT * scale)), 255)
    draw = ImageDraw.Draw(paper)
    place = float(HEIGHT - TOP)
    for line in lines:
        place += line.gap * line.size
        font = ImageFont.load_default(round(line.size * scale))  # comes with Pillow: the same on every machine
        draw.text((MARGIN * scale, (place - line.size) * scale), line.text, font=font, fill=30)
    paper = paper.rotate(0.6, resample=Image.Resampling.BICUBIC, fillcolor=255)
    paper = paper.filter(ImageFilter.GaussianBlur(0.7))
    dust = random.Random(320)
    for _ in range(150):
        paper.putpixel((dust.randrange(paper.width), dust.randrange(paper.height)), dust.randrange(60, 180))
    step = 256 // SHADES
    return paper.point([value // step * step for value in range(256)])


def _stream(entries: bytes, data: bytes) -> bytes:
    return b"<<%s/Length %d>>\nstream\n%s\nendstream" % (entries, len(data), data)


def _file(objects: list[bytes], trailer: bytes) -> bytes:
    body = bytearray(b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n")
    places: list[int] = []
    for number, found in enumerate(objects, start=1):
        places.append(len(body))
        body += b"%d 0 obj\n%s\nendobj\n" % (number, found)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    start = len(body)
    body += b"xref\n0 %d\n0000000000 65535 f \n%s" % (len(objects) + 1, table)
    body += b"trailer\n<</Size %d /Root 1 0 R %s>>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, trailer, start)
    return bytes(body)


def main() -> None:
    SAMPLE.parent.mkdir(parents=True, exist_ok=True)
    SAMPLE.write_bytes(build())
    print(f"{SAMPLE.name}: {SAMPLE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
