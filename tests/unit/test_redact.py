"""Error messages of services: likely secrets are masked, and details that help to find the cause are kept."""

import html
import json
import time
from base64 import b64encode
from urllib.parse import quote, quote_plus

import pytest

from lucius.adapters.http.secrets import Filling
from lucius.usecases.callbacks.error_messages import MASK, MAX_MESSAGE_CHARS, redacted


def b64(raw: bytes, alternative: bytes | None = None) -> str:
    return b64encode(raw, alternative).decode()


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("401: Authorization: Bearer abc.DEF-123", f"401: Authorization: {MASK}"),
        ("sent bearer s3cr3t/+= and was refused", f"sent bearer {MASK} and was refused"),
        ("proxy said Basic dXNlcjpwYXNz", f"proxy said Basic {MASK}"),
        ("login failed: password=hunter2; user=ada", f"login failed: password={MASK}; user=ada"),
        ("PASSWORD = 'two words'", f"PASSWORD = {MASK}"),
        ("Pwd=a;Server=db", f"Pwd={MASK};Server=db"),
        ("token=abc&page=2", f"token={MASK}&page=2"),
        ("api_key=k-1, region=eu", f"api_key={MASK}, region=eu"),
        ("X-Amz-Signature=ff00 expired", f"X-Amz-Signature={MASK} expired"),
        ("client_secret: abc", f"client_secret: {MASK}"),
        ('{"access_token": "abc", "code": 7}', f'{{"access_token": {MASK}, "code": 7}}'),
        ("key=1 secret=2 sig=3", f"key={MASK} secret={MASK} sig={MASK}"),
        ("no route to postgres://ada:pw@db:5432/x", f"no route to postgres://{MASK}@db:5432/x"),
        ("no route to amqp://ada:p/w@bus", f"no route to amqp://{MASK}@bus"),
        ("no route to amqp://a/b://ada:p@w@bus", f"no route to amqp://a/b://{MASK}@bus"),
        (f"{'my_' * 40}token=abc", f"{'my_' * 40}token={MASK}"),
        ("GET https://a.b/c?sig=1&x=2: 403", f"GET https://a.b/c?{MASK} 403"),
        ("jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln is too old", f"jwt {MASK} is too old"),
        (f"sent {b64(b'api_key=sk_live_1234')} twice", f"sent {MASK} twice"),
        (f"sent {b64(b'password=hunter2hunter2').rstrip('=')}, no padding", f"sent {MASK}, no padding"),
        (f"sent {b64(b'??>token=abcdefghijk', b'-_')}", f"sent {MASK}"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----", MASK),
    ],
)
def test_likely_secret_is_masked(said: str, kept: str) -> None:
    assert redacted(said) == kept


@pytest.mark.parametrize("width", [5, 20, 76])
@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
@pytest.mark.parametrize("before", ["sent: ", "sent:\n", "body\n", "the body was\n"])
def test_wrapped_base64_is_masked_completely(width: int, line_break: str, before: str) -> None:
    encoded = b64(b"user=ada api_key=sk_live_1234567890abcdefghijklmnopqrstuvwxyz and some more")
    lines = [encoded[at : at + width] for at in range(0, len(encoded), width)]
    shown = redacted(before + line_break.join(lines) + " was refused")
    assert shown.endswith(f"{MASK} was refused")
    assert not any(line in shown for line in lines)


@pytest.mark.parametrize("width", [5, 20, 76])
@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
def test_secret_of_a_call_is_blanked_in_wrapped_base64(width: int, line_break: str) -> None:
    filling = Filling({"KEY": "hidden-value-of-the-operator"})
    filling.fill("${secrets.KEY}")
    encoded = b64(b"user:hidden-value-of-the-operator and a long text that stands behind the secret")
    lines = [encoded[at : at + width] for at in range(0, len(encoded), width)]
    assert filling.blank(f"got: {line_break.join(lines)} today") == "got: [secret] today"
    assert filling.blank("no\nsecret\nhere") == "no\nsecret\nhere"


AWKWARD = 'p@ss"w\\ord/é+key=<&>'


@pytest.mark.parametrize(
    "spelled",
    [
        json.dumps(AWKWARD),
        json.dumps(AWKWARD, ensure_ascii=False),
        json.dumps(AWKWARD).replace("/", "\\/"),
        json.dumps(AWKWARD).replace("u00e9", "u00E9"),
        quote(AWKWARD),
        quote(AWKWARD, safe=""),
        quote(AWKWARD, safe="").lower(),
        quote(AWKWARD, safe="").replace("%2F", "%2f"),
        quote_plus(AWKWARD),
        AWKWARD.encode().hex(),
        AWKWARD.encode().hex().upper(),
        html.escape(AWKWARD),
        html.escape(AWKWARD, quote=False),
    ],
)
def test_secret_of_a_call_is_blanked_in_other_spellings(spelled: str) -> None:
    filling = Filling({"KEY": AWKWARD})
    filling.fill("${secrets.KEY}")
    assert filling.blank(f"got {spelled}, sorry").replace('"', "") == "got [secret], sorry"


@pytest.mark.parametrize("width", [3, 8])
@pytest.mark.parametrize("space", [" ", "\t", " \n"])
def test_secret_of_a_call_is_blanked_in_base64_with_spaces(width: int, space: str) -> None:
    filling = Filling({"KEY": "hidden-value-of-the-operator"})
    filling.fill("${secrets.KEY}")
    encoded = b64(b"user:hidden-value-of-the-operator:more")
    spaced = space.join(encoded[at : at + width] for at in range(0, len(encoded), width))
    shown = filling.blank(f"got {spaced} today")
    assert shown.startswith("got dXNlcj" if width == 8 else f"got dXN{space}lcj")
    assert shown.count("[secret]") == 1
    left = shown.replace("[secret]", "").removeprefix("got ").removesuffix(" today")
    assert len("".join(left.split())) <= len(b64(b"user:")) + len(b64(b":more"))


def test_short_secret_is_not_masked_in_hexadecimal_form() -> None:
    filling = Filling({"KEY": "ab"})
    filling.fill("${secrets.KEY}")
    assert filling.blank("order 6162 of ab") == "order 6162 of [secret]"


def test_lines_of_words_are_not_masked_as_base64() -> None:
    said = "Traceback\nKeyError\npages/of/document\nwere_not_found\nin_the_answer"
    assert redacted(said) == said


def test_only_the_first_characters_of_a_message_are_scanned() -> None:
    assert redacted("token=" + "x" * 3_900 + " tail") == f"token={MASK} tail"
    assert redacted("token=" + "x" * 4_000 + " tail") == f"token={MASK}"


@pytest.mark.parametrize(
    "said",
    [
        "",
        "page 7 of https://store.example/a/b.pdf can't be read: bad xref",
        "unexpected token: }",
        "KeyError: 'pages'",
        "missing key: name",
        "the bearer token is too old",
        "basic authentication is off",
        "mail to ada@example.com bounced",
        "tokens used: 4096",
        f"digest {b64(bytes(range(32)))} of {b64(b'nothing to hide in here')}",
    ],
)
def test_harmless_message_is_kept(said: str) -> None:
    assert redacted(said) == said


def test_long_message_is_truncated() -> None:
    assert redacted("x" * 1_000) == "x" * 1_000
    assert redacted("x" * 1_001) == "x" * 999 + "…"
    assert len(redacted("password=1 " * 9_000)) == MAX_MESSAGE_CHARS


@pytest.mark.parametrize(
    "piece",
    [
        *(
            "a://",
            "key",
            "password",
            "-----BEGIN PRIVATE KEY-----",
            "eyJ",
            "bearer ",
            "a:@",
            '"',
            "a.",
            "a\n",
            "abcd\n",
        ),
        *(".", "Li4u", "://a:", "eyJaaaaaaaa-", "\n-----BEGIN PRIVATE KEY------"),
    ],
)
def test_pathological_message_is_redacted_quickly(piece: str) -> None:
    """A batch of callbacks has hundreds of messages, and each is masked on the event loop."""
    assert min(cpu_seconds(piece * 60_000) for _ in range(3)) < 0.02


def cpu_seconds(message: str) -> float:
    started = time.process_time()
    redacted(message)
    return time.process_time() - started
