import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from lucius.contract import ClientCallbackUrls, Fault, RefRules
from lucius.contract.refs import Use, find_policy_faults
from lucius.contract.reserved_names import DATA_FILES
from lucius.public_addresses import is_private_host
from lucius.usecases.submit import refs as checks
from lucius.usecases.submit.ref_policy import NamedRules
from lucius.usecases.submit.refs import check_callback_urls

OPEN = RefRules(input_schemes=["blob", "https", "file"], output_schemes=["blob", "https", "file"])
AZURE = "https://acct.blob.core.windows.net"


def check_ref(pointer: str, ref: str, rules: RefRules, use: Use = "input") -> list[Fault]:
    return checks.check_ref(pointer, ref, use, [NamedRules("refs", rules)])


@pytest.mark.parametrize(
    "ref",
    [
        "blob://in/a.pdf",
        "blob://in/2024/a%20b.pdf",
        "https://files.example.com/a.pdf?version=3#page=2",
        "https://files.example.com:8443/a",
        "https://[2606:4700::1111]/a",
        "file:///tmp/a.pdf",
        "file://localhost/tmp/a.pdf",
        "file:///tmp/..a/b..pdf/...",
        "BLOB://in/a",
        "https://h/a?assignment=1&design=x",
        f"https://{'a' * 63}.{'b' * 63}.example.com/a",
        "https://a_b.xn--bcher-kva.example/a",
        "https://1.1.1.1:8443/a",
        "blob://in-2024/a",
        "https://[2606:4700::1111]:8443/a",
        "https://[::ffff:1.1.1.1]/a",
        "https://10.example.com/a",
        "https://0x7f.example.com/a",
        "https://h:1/a",
        "https://h:65535/a",
        "https://h/folder/",
        "https://h/a%5Cb",
    ],
)
def test_valid_reference_is_accepted(ref: str) -> None:
    assert check_ref("/input_ref", ref, OPEN) == []


PRIVATE_HOSTS = [
    *("10.0.0.1", "127.0.0.1", "169.254.169.254", "192.168.1.1", "0.0.0.0", "168.63.129.16"),
    *("167772161", "0x0a000001", "0xa.1", "10.1", "012.0.0.1", "0", "127.1"),
    *("[::1]", "[::]", "[fd00::1]", "[fe80::1]", "[::ffff:10.0.0.1]", "[::ffff:a00:1]", "[64:ff9b::10.0.0.1]"),
    *("localhost", "LOCALHOST", "db.localhost"),
]


@pytest.mark.parametrize("port", ["", ":8443"])
@pytest.mark.parametrize("host", PRIVATE_HOSTS)
def test_https_input_at_an_address_that_is_not_public_needs_an_entry_in_hosts(host: str, port: str) -> None:
    ref = f"https://{host}{port}/a"
    (fault,) = check_ref("/input_ref", ref, OPEN)
    assert "is not a public address" in fault.message
    assert "refs.hosts in the config file" in fault.message
    listed = replace(OPEN, hosts=[f"{host.lower()}{port}"])
    assert check_ref("/input_ref", ref, listed) == []
    assert check_ref("/output_ref", ref, OPEN, "output") == []
    (other,) = check_ref("/input_ref", ref, replace(OPEN, hosts=["files.example.com"]))
    assert "refs.hosts in the config file" in other.message


def test_hosts_of_a_tenant_do_not_permit_an_address_that_is_not_public() -> None:
    policy = [NamedRules("refs", OPEN), NamedRules("tenants.acme.refs", RefRules(hosts=["10.0.0.1"]))]
    (fault,) = checks.check_ref("/input_ref", "https://10.0.0.1/a", "input", policy)
    assert "(refs.hosts in the config file" in fault.message


@pytest.mark.parametrize("host", PRIVATE_HOSTS)
def test_job_callback_to_an_address_that_is_not_public_needs_an_entry_in_job_hosts(host: str) -> None:
    urls = ClientCallbackUrls(job=f"https://{host}/hook")
    (fault,) = check_callback_urls(urls, ())
    assert "is not a public address" in fault.message
    assert "callbacks.job_hosts in the config file" in fault.message
    assert check_callback_urls(urls, (), [host.lower()]) == []


@pytest.mark.parametrize("ref", ["blob://in/", "blob://in/a/", "blob://in/a%2F"])
def test_folder_of_blobs_is_an_output_and_no_input(ref: str) -> None:
    assert check_ref("/output_ref", ref, OPEN, "output") == []
    (fault,) = check_ref("/input_ref", ref, OPEN, "input")
    assert "names a folder" in fault.message


@pytest.mark.parametrize(
    ("ref", "says"),
    [
        ("", "not a URI"),
        ("a.pdf", "not a URI"),
        ("/tmp/a.pdf", "not a URI"),
        ("in/a.pdf:1", "not a URI"),
        ("s3://bucket/a", "scheme s3 is not allowed for inputs; allowed: blob, https, file"),
        ("javascript:alert(1)", "scheme javascript"),
        ("http://host/a", "scheme http"),
        ("blob://in", "needs a path after its container"),
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
        ("https://h:0/a", "no valid host"),
        ("https://h:65536/a", "no valid host"),
        ("https://h:99999/a", "no valid host"),
        ("https://[1.2]/a", "no valid host"),
        ("https://[1:2]/a", "no valid host"),
        ("https://[::1]:0/a", "no valid host"),
        (f"https://{'a.' * 127}example/a", "no valid host"),
        ("blob://[::1]/a", "no valid container"),
        ("blob://[1.2]/a", "no valid container"),
        ("blob://in/x%5Cy", "backslash"),
        ("file:///tmp/x%5cy", "backslash"),
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
        ("blob://in/a?x=1", "neither a query nor a fragment"),
        ("file:///tmp/a#page=2", "neither a query nor a fragment"),
        ("blob://in/./a", "'.'"),
        ("blob://in/%2e/a", "'.'"),
        ("https://store/t/acme/..;/beta", "'..'"),
        ("https://store/t/acme/..;x=1/beta", "'..'"),
        ("https://store/t/acme/..%3b/beta", "'..'"),
        ("https://store/t/acme/..%253B/beta", "'..'"),
        ("https://store/t/acme/..%20/beta", "'..'"),
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
    policy = RefRules(
        input_schemes=["blob", "https"],
        hosts=["*.blob.core.windows.net", "files.example.com"],
        containers=["in", "out"],
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
    everywhere = RefRules(containers=["in"])
    for host in ("acct.dfs.core.windows.net", "acct.blob.core.chinacloudapi.cn", "acct.z01.blob.storage.azure.net"):
        assert check_ref("/input_ref", f"https://{host}/in/a", everywhere) == []
        assert len(check_ref("/input_ref", f"https://{host}/other/a", everywhere)) == 1


@pytest.mark.parametrize(
    ("entry", "ref", "fine"),
    [
        ("store.example.com", "https://store.example.com/a", True),
        ("store.example.com", "https://store.example.com:443/a", True),
        ("store.example.com", "https://store.example.com:0443/a", True),
        ("store.example.com", "https://store.example.com:22/a", False),
        ("*.example.com", "https://store.example.com:22/a", False),
        ("store.example.com:8443", "https://store.example.com:8443/a", True),
        ("*.example.com:8443", "https://store.example.com:8443/a", True),
        ("store.example.com:8443", "https://store.example.com/a", False),
        ("store.example.com:443", "https://store.example.com/a", True),
        ("[::1]:8443", "https://[::1]:8443/a", True),
    ],
)
def test_host_without_a_port_permits_the_default_port_only(entry: str, ref: str, fine: bool) -> None:
    assert (find_policy_faults(ref, "input", RefRules(hosts=[entry])) == []) is fine


def test_both_references_are_checked() -> None:
    faults = checks.check_refs("nope", "s3://b/a", [NamedRules("refs", OPEN)])
    assert [fault.pointer for fault in faults] == ["/input_ref", "/output_ref"]


@given(st.text() | st.from_regex(r"(blob|https|file)://?[ -~]{0,40}", fullmatch=True))
def test_random_text_is_checked_without_an_error(text: str) -> None:
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
def test_job_callback_url_must_match_the_allowed_hosts(url: str, job_hosts: tuple[str, ...] | None, fine: bool) -> None:
    assert (check_callback_urls(ClientCallbackUrls(job=url), (), job_hosts) == []) is fine


def test_command_without_callback_urls_is_accepted() -> None:
    assert check_callback_urls(None, ()) == []
    assert check_callback_urls(ClientCallbackUrls(), ()) == []


@pytest.mark.parametrize("port", [0, 65536])
@pytest.mark.parametrize("host", ["relay", "localhost", "[::1]"])
def test_callback_to_a_port_that_does_not_exist_is_refused(host: str, port: int) -> None:
    urls = ClientCallbackUrls(**dict.fromkeys(("ack", "result", "job"), f"https://{host}:{port}/hook"))
    faults = check_callback_urls(urls, [host], [host], allow_loopback=True)
    assert [fault.message for fault in faults] == ["has no valid host"] * 3


@pytest.mark.parametrize("host", ["a..partner.com", f"{'a' * 64}.partner.com", f"{'a.' * 80}.partner.com"])
@pytest.mark.parametrize("name", ["ack", "result", "job"])
def test_invalid_callback_host_is_refused_although_the_policy_allows_it(name: str, host: str) -> None:
    urls = ClientCallbackUrls(**{name: f"https://{host}/hook"})
    (fault,) = check_callback_urls(urls, ["*.partner.com"], ["*.partner.com"])
    assert (fault.pointer, fault.message) == (f"/callback_urls/{name}", "has no valid host")


# Prefixes


def passes(ref: str, *prefixes: str, use: Use = "input", **rules: list[str]) -> bool:
    """Return whether rules with these prefixes permit the ref at ingress; assert that the SDK permits it then."""
    policy = RefRules(prefixes=list(prefixes), **rules)
    at_ingress = check_ref("/input_ref", ref, policy, use) == []
    in_sdk = find_policy_faults(ref, use, policy) == []
    assert at_ingress <= in_sdk, "what ingress permits, the SDK reads"
    return at_ingress


def test_a_prefix_is_compared_by_whole_segments_of_container_and_path() -> None:
    assert passes("blob://in/acme/a.pdf", "in/acme")
    assert passes("blob://in/acme/", "in/acme/", use="output")
    assert passes("blob://in/%61cme/a.pdf", "in/acme")
    assert passes("blob://acme/a.pdf", "in", "acme")
    assert passes(f"{AZURE}/in/acme/a.pdf", "in/acme")
    assert not passes("blob://in/acme2/a.pdf", "in/acme")
    assert not passes("blob://in/acm", "in/acme")
    assert not passes("blob://in", "in/acme")
    assert not passes("blob://in/Acme/a.pdf", "in/acme")
    assert not passes("blob://IN/acme/a.pdf", "in/acme")
    assert not passes("blob://other/in/acme/a.pdf", "in/acme")
    assert not passes(f"{AZURE}/in/globex/a.pdf", "in/acme")
    assert not passes("https://files.example.com/globex/in/acme/a", "in/acme")
    assert not passes("blob://in/acme/a.pdf")


def test_prefix_without_scheme_permits_no_host_outside_blob_storage() -> None:
    assert not passes("https://evil.example.com/documents/acme/x", "documents/acme")
    assert not passes("file:///documents/acme/x", "documents/acme")
    assert passes("https://files.example.com/documents/acme/x", "documents/acme", "https://files.example.com")
    assert passes(f"{AZURE}/documents/acme/x", "documents/acme")


@pytest.mark.parametrize(
    "ref",
    [
        "blob://in/acme/../globex/a",
        "blob://in/acme/%2e%2e/globex/a",
        "blob://in/acme/%252e%252e/globex/a",
        "blob://in/acme%2F..%2Fglobex/a",
        "blob://in/acme%5c..%5cglobex/a",
        "blob://in/acme/./../globex/a",
        "blob://in//acme/a",
        "blob://in/%2561cme/a",
        "blob://in/globex/a?/acme",
        "blob://in/globex/a#/in/acme",
        "blob://in\t/acme/a",
        "BLOB://in/globex/a",
    ],
)
def test_alternative_spelling_does_not_bypass_a_prefix(ref: str) -> None:
    assert not passes(ref, "in/acme")
    assert find_policy_faults(ref, "output", RefRules(prefixes=["in/acme"])) != []


def test_prefix_with_a_scheme_applies_to_that_scheme_and_host() -> None:
    assert passes("https://files.example.com/acme/a", "https://files.example.com/acme")
    assert passes("https://FILES.example.com:443/acme/a", "https://files.example.com/acme")
    assert not passes("https://files.example.com:22/acme/a", "https://files.example.com/acme")
    assert passes("https://files.example.com:8443/acme/a", "https://files.example.com:8443/acme")
    assert passes("https://files.example.com/acme/a", "https://files.example.com:443/acme")
    assert passes("blob://in/acme/a", "blob://in/acme")
    assert passes("file:///srv/acme/a", "file:///srv/acme")
    assert not passes("https://files.example.com/acme2/a", "https://files.example.com/acme")
    assert not passes("https://evil.net/acme/a", "https://files.example.com/acme")
    assert not passes("blob://files.example.com/acme/a", "https://files.example.com/acme")
    assert not passes("file:///https:/files.example.com/acme/a", "https://files.example.com/acme")


def test_blob_in_file_syntax_is_checked_against_the_same_prefix() -> None:
    assert passes("file:///data/blobs/in/acme/a", "in/acme", reachable=["/data/blobs"])
    assert passes("file:///data/blobs/in/acme/a", "blob://in/acme", reachable=["/data/blobs"])
    assert not passes("file:///data/blobs/in/globex/a", "in/acme", reachable=["/data/blobs"])
    assert passes("file:///data/blobs/in/a", "in", reachable=["/data/blobs"], containers=["in"])
    assert not passes("file:///data/blobs/out/a", "out", reachable=["/data/blobs"], containers=["in"])


# Files


@pytest.mark.parametrize(
    ("path", "fine"),
    [
        ("/srv/app/docs/a.pdf", True),
        ("/srv/app/.lucius/blobs/in/a", True),
        ("/srv/app/.lucius/token.secret", False),
        ("/srv/app/.lucius/workspace/lucius/acme/job-1/ocr/1/a", False),
        ("/srv/app/.lucius", False),
        ("/srv/app/.lucius2/a", False),
        ("/srv/app/lucius.conf2", True),
        ("/srv/app/lucius.conf", False),
        ("/srv/apple/a", False),
        ("/etc/passwd", False),
    ],
)
def test_file_must_be_below_a_root_and_outside_folders_of_lucius(path: str, fine: bool) -> None:
    rules = RefRules(
        file_roots=["/srv/app"],
        protected=["/srv/app/.lucius", "/srv/app/lucius.conf"],
        reachable=["/srv/app/.lucius/blobs"],
    )
    for use in ("input", "output"):
        assert (find_policy_faults(f"file://{path}", use, rules) == []) is fine


DEV = RefRules(
    file_roots=["/home/ada", "/home/ada/.work/docs"],
    protected=["/home/ada/.lucius"],
    reachable=["/home/ada/.lucius/blobs"],
)


@pytest.mark.parametrize(
    ("ref", "says"),
    [
        ("file:///home/ada/.bashrc", "the hidden name .bashrc"),
        ("file:///home/ada/.config/gcloud/a.json", "the hidden name .config"),
        ("file:///home/ada/app/.git/hooks/pre-commit", "the hidden name .git"),
        ("file:///home/ada/%2Ebashrc", "the hidden name .bashrc"),
        ("file:///home/ada/.work/docs/.env", "the hidden name .env"),
        ("file:///home/ada/new/lucius.yaml", "the name lucius.yaml, which is reserved"),
        ("file:///home/ada/new/Kubeconfig", "the name Kubeconfig, which is reserved"),
        ("file:///home/ada/.lucius/blobs/in/tls.pem", "the name tls.pem, which is reserved"),
        ("file:///home/ada/.lucius/token.secret", "is a file of Lucius itself"),
        ("blob://in/tls.pem", "the name tls.pem, which is reserved"),
        ("blob://in/%74ls.pem", "the name tls.pem, which is reserved"),
        ("blob://data/token.secret", "the name token.secret, which is reserved"),
        ("blob://in/.ssh/", "the folder name .ssh, which is reserved"),
        ("blob://in/DEV.key", "the name DEV.key, which is reserved"),
        ("file:///home/ada/.lucius/blobs/in/dev.key", "the name dev.key, which is reserved"),
        ("file:///home/ada/new/Board%20deck.key", "the name Board deck.key, which is reserved"),
    ],
)
def test_hidden_and_reserved_names_are_refused(ref: str, says: str) -> None:
    for use in ("input", "output"):
        (fault,) = find_policy_faults(ref, use, DEV)
        assert says in fault


@pytest.mark.parametrize(
    "ref",
    [
        "file:///home/ada/new/lucius.yml2",
        "file:///home/ada/.work/docs/a.pdf",
        "file:///home/ada/.lucius/blobs/in/.parts/a",
        "blob://in/.parts/a",
        "blob://in/Board%20deck.key",
        "file:///home/ada/.lucius/blobs/in/Board%20deck.key",
        "https://files.example.com/.hidden/tls.pem",
    ],
)
def test_names_that_are_neither_hidden_nor_reserved_pass(ref: str) -> None:
    assert find_policy_faults(ref, "output", DEV) == []


@pytest.mark.parametrize("name", DATA_FILES)
def test_names_of_the_files_of_a_data_directory_are_reserved(name: str) -> None:
    assert find_policy_faults(f"blob://in/{name}", "output", DEV)
    assert find_policy_faults(f"file:///home/ada/new/{name}", "output", DEV)


@pytest.mark.parametrize(
    ("host", "is_private"),
    [
        *[(host, True) for host in ("localhost", "localhost.", "A.localhost.", "127.0.0.1.", "10.1..", "[::1].")],
        *[(host, False) for host in ("example.com.", "8.8.8.8.", ".", "")],
    ],
)
def test_private_hosts_are_known_with_trailing_dots(host: str, is_private: bool) -> None:
    assert is_private_host(host) is is_private


def test_without_roots_in_the_rules_only_the_last_name_of_a_file_is_checked() -> None:
    """The services' own roots may lie below a hidden folder."""
    assert find_policy_faults("file:///home/ada/a.key", "output", RefRules(output_schemes=["file"]))
    rules = RefRules(output_schemes=["file"])
    assert find_policy_faults("file:///home/ada/.work/out", "output", rules) == []
    assert find_policy_faults("file:///home/ada/.out", "output", rules) == []
    (fault,) = find_policy_faults("file:///home/ada/new/lucius.yaml", "output", rules)
    assert "the name lucius.yaml, which is reserved" in fault


def test_inputs_and_outputs_have_separate_schemes_and_the_refusal_names_the_setting() -> None:
    rules = RefRules(input_schemes=["blob", "https"], output_schemes=["blob"])
    assert find_policy_faults("https://h/a", "input", rules) == []
    (said,) = find_policy_faults("https://h/a", "output", rules, "refs")
    assert said.startswith("the scheme https is not allowed for outputs; allowed: blob")
    assert "refs.output_schemes in the config file" in said


def test_callback_hosts_of_a_tenant_narrow_the_allowed_hosts() -> None:
    urls = ClientCallbackUrls(ack="https://relay.example.com/a", job="https://x.net/j")
    own = ("tenants.acme.refs.callback_hosts", ("relay.example.com",))
    (fault,) = check_callback_urls(urls, ("relay.example.com",), None, own)
    assert fault.pointer == "/callback_urls/job"
    assert "tenants.acme.refs.callback_hosts" in fault.message


def test_a_tenants_host_with_a_port_permits_callbacks_to_that_port() -> None:
    own = ("tenants.acme.refs.callback_hosts", ("relay.example.com:8443",))
    for port, faults in ((":8443", 0), (":8444", 1), ("", 1)):
        urls = ClientCallbackUrls(job=f"https://relay.example.com{port}/j")
        assert len(check_callback_urls(urls, (), None, own)) == faults
