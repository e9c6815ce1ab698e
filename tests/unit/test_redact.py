"""Error messages of services: what looks like a secret is masked, what helps to find the cause is kept."""

import time

import pytest

from lucius.service.redact import MASK, MAX_MESSAGE, redacted


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
        ("GET https://a.b/c?sig=1&x=2: 403", f"GET https://a.b/c?{MASK} 403"),
        ("jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln is too old", f"jwt {MASK} is too old"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----", MASK),
    ],
)
def test_what_looks_like_a_secret_is_masked(said: str, kept: str) -> None:
    assert redacted(said) == kept


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
    ],
)
def test_what_is_no_secret_is_kept(said: str) -> None:
    assert redacted(said) == said


def test_a_message_is_cut() -> None:
    assert redacted("x" * 1_000) == "x" * 1_000
    assert redacted("x" * 1_001) == "x" * 999 + "…"
    assert len(redacted("password=1 " * 9_000)) == MAX_MESSAGE


@pytest.mark.parametrize(
    "piece", ["a://", "key", "password", "-----BEGIN PRIVATE KEY-----", "eyJ", "bearer ", "a:@", '"']
)
def test_no_message_takes_long(piece: str) -> None:
    started = time.process_time()
    redacted(piece * 60_000)
    assert time.process_time() - started < 1
