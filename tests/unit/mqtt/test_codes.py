import pytest

from penstock.mqtt import PacketType, ReasonCode, Sender
from penstock.mqtt.codes import ALLOWED, reason_of_return_code, return_code_of_reason


def test_every_allowed_code_has_a_name() -> None:
    named = {int(code) for code in ReasonCode}
    for allowed in ALLOWED.values():
        assert allowed <= named


def test_every_code_is_allowed_somewhere() -> None:
    assert {int(code) for code in ReasonCode} == set().union(*ALLOWED.values())


@pytest.mark.parametrize("code", range(6))
def test_return_codes_of_3_1_1_survive_the_way_there_and_back(code: int) -> None:
    reason = reason_of_return_code(code)
    assert reason is not None
    assert return_code_of_reason(reason) == code


def test_return_codes_above_5_do_not_exist() -> None:
    assert reason_of_return_code(6) is None


def test_no_refusal_becomes_an_acceptance_in_3_1_1() -> None:
    for reason in ALLOWED[PacketType.CONNACK, Sender.SERVER]:
        assert (return_code_of_reason(reason) == 0) == (reason == 0)
