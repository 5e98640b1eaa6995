"""The model thread and those who share its steps."""

import threading

from gma.decoding.streaming import StreamingTranslator
from gma.serve.engine import FINISH, Engine, Outcome, Speaker, Told
from tests.support.small_models import small_loaded, small_model


def test_an_outcome_that_cannot_be_told_costs_one_speaker(caplog):
    told: dict[str, list[Outcome]] = {"first": [], "second": []}
    done = threading.Event()

    def tell(name: str, outcome: Outcome) -> None:
        told[name].append(outcome)
        if name == "first" and outcome.error is None:
            raise ValueError("planted")
        if outcome.finished:
            done.set()

    engine = Engine(StreamingTranslator(small_loaded(small_model(0))), lambda function: function())
    speakers = {name: Speaker(lambda outcome, name=name: tell(name, outcome), None, None) for name in told}
    for speaker in speakers.values():
        engine.send(speaker, Told(1, "ab c. "))
        engine.send(speaker, Told(2, FINISH))
    engine.start()
    try:
        assert done.wait(30)
    finally:
        engine.stop()
    assert [type(outcome.error) for outcome in told["first"]][:2] == [type(None), ValueError]
    assert all(outcome.error is None for outcome in told["second"])
    assert told["second"][-1].ack == 2
    assert "planted" in caplog.text
