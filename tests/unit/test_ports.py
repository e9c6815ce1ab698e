from tests.support.ports import free_port


def test_no_port_is_given_out_twice_while_its_server_may_still_be_coming() -> None:
    given = [free_port() for _ in range(200)]
    assert len(set(given)) == len(given)
