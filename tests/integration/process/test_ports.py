from tests.support.ports import free_port


def test_free_ports_are_not_reused_within_a_test_run() -> None:
    given = [free_port() for _ in range(200)]
    assert len(set(given)) == len(given)
