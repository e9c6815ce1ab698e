import pytest
from hypothesis import given
from hypothesis import strategies as st

from lucius.contract import ClientCallbackUrls
from lucius.ports.config import RefPolicy
from lucius.service.refs import check_callback_urls, check_ref, check_refs

OPEN = RefPolicy()
AZURE = "https://acct.blob.core.windows.net"


@pytest.mark.parametrize(
    "ref",
    [
        "blob://in/a.pdf",
        "blob://in",
        "blob://in/2024/a%20b.pdf",
        "https://files.example.com/a.pdf?version=3#page=2",
        "https://files.example.com:8443/a",
        "https://[::1]/a",
        "file:///tmp/a.pdf",
        "file://localhost/tmp/a.pdf",
        "file:///tmp/..a/b..pdf/...",
        "BLOB://in/a",
        "https://h/a?assignment=1&design=x",
        f"https://{'a' * 63}.{'b' * 63}.example.com/a",
        "https://a_b.xn--bcher-kva.example/a",
        "https://10.0.0.1:8443/a",
        "blob://in-2024/a",
    ],
)
def test_a_good_reference_passes(ref: str) -> None:
    assert check_ref("/input_ref", ref, OPEN) == []


@pytest.mark.parametrize(
    ("ref", "says"),
    [
        ("", "not a URI"),
        ("a.pdf", "not a URI"),
        ("/tmp/a.pdf", "not a URI"),
        ("in/a.pdf:1", "not a URI"),
        ("s3://bucket/a", "scheme s3 is not allowed; allowed: blob, https, file"),
        ("javascript:alert(1)", "scheme javascript"),
        ("http://host/a", "scheme http"),
        ("blob:///a", "no valid container"),
        ("blob:in/a", "no valid container"),
        ("https:///a", "no valid host"),
        ("https://a..example.com/a", "no valid host"),
        ("https://.example.com/a", "no valid host"),
        ("https://example.com./a", "no valid host"),
        (f"https://{'a' * 64}.example.com/a", "no valid host"),
        (f"https://example.{'a' * 64}:443/a", "no valid host"),
        ("https://-a.example.com/a", "no valid host"),
        ("blob://in..out/a", "no valid container"),
        ("https://ho st/a", "percent-encoded"),
        ("https://host\\a", "percent-encoded"),
        ("blob://in/ü.pdf", "outside ASCII"),
        ("blob://in/%zz", "percent-encoded"),
        ("blob://in/a\n", "control characters"),
        ("blob://in/a\x00b", "control characters"),
        ("blob://in/a%00b", "control characters"),
        ("blob://in/a%0D%0Ab", "control characters"),
        ("blob://in/" + "a" * 4096, "longer than 4096"),
        ("https://user:pw@host/a", "user name or password"),
        ("blob://user@in/a", "user name or password"),
        ("file://u@/a", "user name or password"),
        ("file://server/share", "must not name a host"),
        ("file:tmp/a", "absolute path"),
        ("file:/tmp/a", "absolute path"),
        ("file:////server/share", "absolute path"),
        ("file:///tmp/../etc/passwd", "'..'"),
        ("file:///tmp/%2e%2e/etc", "'..'"),
        ("file:///tmp/%252e%252e/etc", "'..'"),
        ("file:///tmp/..%5cetc", "'..'"),
        ("blob://in/../out/a", "'..'"),
    ],
)
def test_a_bad_reference_is_refused_with_its_reason(ref: str, says: str) -> None:
    faults = check_ref("/input_ref", ref, OPEN)
    assert faults
    assert any(says in fault.message for fault in faults), faults
    assert {fault.pointer for fault in faults} == {"/input_ref"}


@pytest.mark.parametrize(
    "query",
    [
        "?sv=2022-11-02&sig=abc",
        "?SIG=abc",
        "?s%69g=abc",
        "?X-Amz-Signature=abc",
        "?x-goog-signature=abc",
        "?X-Amz-Security-Token=abc",
        "?AWSAccessKeyId=abc&Expires=1",
        "?a=1;token=abc",
        "?access_token=abc",
        "?api_key=abc",
        "#access_token=abc",
        "?page=2#sig=abc",
    ],
)
def test_a_signature_or_token_in_a_reference_is_refused(query: str) -> None:
    (fault,) = check_ref("/output_ref", f"{AZURE}/out/a{query}", OPEN)
    assert "signature or a token" in fault.message


def test_a_refusal_never_repeats_the_secret() -> None:
    faults = check_ref("/input_ref", "https://me:hunter2@host/a?sig=hunter3", OPEN)
    assert len(faults) == 2
    assert not any("hunter" in fault.message for fault in faults)


def test_the_policy_limits_schemes_hosts_and_containers() -> None:
    policy = RefPolicy(
        schemes=("blob", "https"), hosts=("*.blob.core.windows.net", "files.example.com"), containers=("in", "out")
    )

    def passes(ref: str) -> bool:
        return check_ref("/input_ref", ref, policy) == []

    assert passes("blob://in/a")
    assert not passes("blob://other/a")
    assert not passes("file:///tmp/a")
    assert passes("https://files.example.com/a")
    assert passes("https://FILES.example.com/a")
    assert not passes("https://files.example.com.evil.net/a")
    assert not passes("https://evil.net/files.example.com")
    assert not passes("https://blob.core.windows.net/in/a")
    assert passes(f"{AZURE}/in/a")
    assert not passes(f"{AZURE}/other/a")
    assert not passes(f"{AZURE}/in/../other/a")


def test_both_references_are_checked() -> None:
    faults = check_refs("nope", "s3://b/a", OPEN)
    assert [fault.pointer for fault in faults] == ["/input_ref", "/output_ref"]


@given(st.text() | st.from_regex(r"(blob|https|file)://?[ -~]{0,40}", fullmatch=True))
def test_no_text_breaks_the_check(text: str) -> None:
    check_ref("/input_ref", text, OPEN)
    check_callback_urls(ClientCallbackUrls(ack=text, job=text), ("host",))


def test_callbacks_that_carry_tokens_go_to_allowed_hosts_only() -> None:
    urls = ClientCallbackUrls(ack="https://relay.example.com/ack", result="https://evil.net/r", job="https://x.net/j")
    assert [fault.pointer for fault in check_callback_urls(urls, ())] == ["/callback_urls/ack", "/callback_urls/result"]
    (fault,) = check_callback_urls(urls, ("relay.example.com",))
    assert fault.pointer == "/callback_urls/result"
    assert "evil.net" in fault.message


@pytest.mark.parametrize(
    "url", ["ftp://h/a", "relay", "https://", "https://u:p@relay/a", "https://re lay/", "//relay/a"]
)
def test_a_malformed_callback_url_is_refused_whatever_the_policy(url: str) -> None:
    assert len(check_callback_urls(ClientCallbackUrls(ack=url, job=url), ("relay",))) == 2


@pytest.mark.parametrize(
    ("url", "job_hosts", "fine"),
    [
        ("https://any.example.com/x", None, True),
        ("http://any.example.com/x", None, False),
        ("https://any.example.com/x", (), False),
        ("http://a.example.com/x", ("*.example.com",), True),
        ("https://a.example.com:8443/x", ("*.example.com:8443",), True),
        ("https://a.example.com/x", ("a.example.com:443",), True),
        ("http://a.example.com/x", ("a.example.com:443",), False),
        ("https://A.example.com?q=1", ("a.example.com",), True),
        ("https://b.example.net/a.example.com", ("a.example.com",), False),
    ],
)
def test_where_a_job_may_be_told_of(url: str, job_hosts: tuple[str, ...] | None, fine: bool) -> None:
    assert (check_callback_urls(ClientCallbackUrls(job=url), (), job_hosts) == []) is fine


def test_no_callback_urls_are_fine() -> None:
    assert check_callback_urls(None, ()) == []
    assert check_callback_urls(ClientCallbackUrls(), ()) == []


@pytest.mark.parametrize("host", ["a..partner.com", f"{'a' * 64}.partner.com", f"{'a.' * 80}.partner.com"])
@pytest.mark.parametrize("name", ["ack", "result", "job"])
def test_a_callback_host_that_no_resolver_takes_is_refused_though_the_policy_allows_it(name: str, host: str) -> None:
    urls = ClientCallbackUrls(**{name: f"https://{host}/hook"})
    (fault,) = check_callback_urls(urls, ["*.partner.com"], ["*.partner.com"])
    assert (fault.pointer, fault.message) == (f"/callback_urls/{name}", "has no valid host")
